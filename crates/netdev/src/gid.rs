//! The GID table of a device, laid out as a kernel RoCE device does: link-local first, the first IPv4 second. On
//! InfiniBand the first entry is the port's GID: that of the address that has the port's LID.
//!
//! Indices are stable: programs and scripts use fixed ones (`-g 1`), and a QP keeps the index it was given. An address that
//! stays keeps its index; an address that goes leaves a zero GID; a new address takes a free index.

use std::net::IpAddr;

use super::interface::Netdev;
use super::link_layer::{Lids, LinkLayer, ip_of};

/// Entries of every GID table (`gid_tbl_len` of ibv_query_port(3)); unused ones are zero.
pub const GID_TABLE_LEN: usize = 64;

/// Where the link-local GID belongs.
const LINK_LOCAL_INDEX: usize = 0;
/// Where the first IPv4 GID belongs.
const IPV4_INDEX: usize = 1;
/// Where the port's GID belongs on InfiniBand.
const PORT_INDEX: usize = 0;

/// A GID in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GidEntry {
    /// The GID in network order ([`LinkLayer::gid_of`]).
    pub gid: [u8; 16],
    /// The address it stands for.
    pub ip: IpAddr,
    /// Interface index for a link-local IPv6 address (`sin6_scope_id`), else 0.
    pub scope_id: u32,
    /// Index of the interface, for ibv_query_gid_ex(3).
    pub ifindex: u32,
}

impl GidEntry {
    /// The address as text, with the name of its interface if it is link-local.
    #[must_use]
    pub fn address_name(&self, interface: &str) -> String {
        if self.scope_id == 0 { self.ip.to_string() } else { format!("{}%{interface}", self.ip) }
    }
}

/// What became of one index in [`GidTable::update`]. A replaced entry has both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GidChange {
    /// Index in the table.
    pub index: usize,
    /// What was there.
    pub old: Option<GidEntry>,
    /// What is there now.
    pub new: Option<GidEntry>,
}

/// Which address has which index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    /// Of a kernel RoCE device.
    Roce {
        /// There was no link-local address when the table was filled: tools ask for index 0, scripts for index 1, so
        /// both are the same address. Decided once, lest a link that goes down and up again changes what 0 means.
        first_repeats_second: bool,
    },
    /// The port's GID first.
    InfiniBand,
}

impl Layout {
    fn of(link_layer: LinkLayer) -> Self {
        match link_layer {
            LinkLayer::Ethernet => Self::Roce { first_repeats_second: false },
            LinkLayer::InfiniBand => Self::InfiniBand,
        }
    }

    fn link_layer(self) -> LinkLayer {
        match self {
            Self::Roce { .. } => LinkLayer::Ethernet,
            Self::InfiniBand => LinkLayer::InfiniBand,
        }
    }

    fn first_repeats_second(self) -> bool {
        self == Self::Roce { first_repeats_second: true }
    }

    const ALL: [Self; 3] = [
        Self::Roce { first_repeats_second: false },
        Self::Roce { first_repeats_second: true },
        Self::InfiniBand,
    ];
}

/// A device's GID table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GidTable {
    entries: Vec<Option<GidEntry>>,
    layout: Layout,
}

impl GidTable {
    /// The table of an interface that has none yet.
    #[must_use]
    pub fn new(netdev: &Netdev) -> Self {
        Self::on(LinkLayer::current(), netdev)
    }

    fn on(link_layer: LinkLayer, netdev: &Netdev) -> Self {
        let mut table = Self { entries: vec![None; GID_TABLE_LEN], layout: Layout::of(link_layer) };
        table.update(netdev);
        table
    }

    /// What another process needs to know of it: its layout, and each index in use with its GID.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let layout = Layout::ALL.iter().position(|layout| *layout == self.layout);
        let mut bytes = vec![layout.unwrap_or_default() as u8];
        for (index, entry) in self.iter() {
            bytes.push(index as u8);
            bytes.extend(entry.gid);
        }
        bytes
    }

    /// A table of another process ([`GidTable::to_bytes`]); `None` for bytes that are none, or a table of the other link
    /// layer. What isn't an address of the interface goes with [`GidTable::update`].
    #[must_use]
    pub fn from_bytes(bytes: &[u8], ifindex: u32) -> Option<Self> {
        Self::from_bytes_on(LinkLayer::current(), bytes, ifindex)
    }

    fn from_bytes_on(link_layer: LinkLayer, bytes: &[u8], ifindex: u32) -> Option<Self> {
        let (&layout, entries) = bytes.split_first()?;
        let layout = *Layout::ALL.get(usize::from(layout))?;
        let mut table = Self { entries: vec![None; GID_TABLE_LEN], layout };
        let (entries, rest) = entries.as_chunks::<17>();
        for &[index, ref gid @ ..] in entries {
            *table.entries.get_mut(usize::from(index))? = Some(entry_of(link_layer, ip_of(*gid), ifindex));
        }
        (layout.link_layer() == link_layer && rest.is_empty()).then_some(table)
    }

    /// The entry at `index`; `None` for an unused index (a zero GID) and beyond the table.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&GidEntry> {
        self.entries.get(index)?.as_ref()
    }

    /// The GID at `index`, zero where unused; `None` beyond the table (EINVAL in ibv_query_gid(3)).
    #[must_use]
    pub fn gid(&self, index: usize) -> Option<[u8; 16]> {
        self.entries.get(index).map(|entry| entry.map_or([0; 16], |entry| entry.gid))
    }

    /// Used indices with their entries.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &GidEntry)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| Some((index, entry.as_ref()?)))
    }

    /// The lowest index of a GID.
    #[must_use]
    pub fn index_of(&self, gid: [u8; 16]) -> Option<usize> {
        self.iter().find(|(_, entry)| entry.gid == gid).map(|(index, _)| index)
    }

    /// Takes over the interface's addresses and returns the changes by index. The caller raises the events (IBV_EVENT_GID_CHANGE).
    pub fn update(&mut self, netdev: &Netdev) -> Vec<GidChange> {
        let old = self.entries.clone();
        let link_layer = self.layout.link_layer();
        let entry = |ip| entry_of(link_layer, ip, netdev.ifindex);
        let now: Vec<GidEntry> = netdev.gid_addresses().map(|address| entry(address.ip)).collect();
        for slot in &mut self.entries {
            if slot.is_some_and(|entry| !now.contains(&entry)) {
                *slot = None;
            }
        }
        let link_local = |entry: &GidEntry| entry.scope_id != 0;
        let is_empty = self.iter().next().is_none();
        match &mut self.layout {
            Layout::Roce { first_repeats_second } if is_empty => {
                *first_repeats_second = !now.iter().any(link_local);
            }
            Layout::Roce { .. } => {}
            Layout::InfiniBand => {
                let port = Lids::of(netdev).map(|lids| entry(lids.address())).or(now.first().copied());
                self.put_first(port);
            }
        }
        let any_ipv4 = now.iter().any(|entry| entry.ip.is_ipv4());
        let mut without_place = 0;
        for entry in now {
            if self.entries.contains(&Some(entry)) {
                continue;
            }
            match self.place_for(&entry, any_ipv4) {
                Some(index) => self.entries[index] = Some(entry),
                None => without_place += 1,
            }
        }
        if without_place > 0 {
            tracing::warn!(
                interface = netdev.name,
                "{without_place} addresses have no place in the GID table of {GID_TABLE_LEN} entries"
            );
        }
        if self.layout.first_repeats_second() && self.entries[LINK_LOCAL_INDEX].is_none() {
            self.entries[LINK_LOCAL_INDEX] = self.entries[IPV4_INDEX];
        }
        let changes = old.into_iter().zip(&self.entries).enumerate();
        changes
            .filter(|(_, (old, new))| old != *new)
            .map(|(index, (old, new))| GidChange { index, old, new: *new })
            .collect()
    }

    /// Makes `port` the entry of the port's GID. The one that was there is left without a place.
    fn put_first(&mut self, port: Option<GidEntry>) {
        for slot in self.entries.iter_mut().filter(|slot| **slot == port) {
            *slot = None;
        }
        self.entries[PORT_INDEX] = port;
    }

    /// The index that belongs to an address of its kind if it is free, else the first free one after those.
    fn place_for(&self, entry: &GidEntry, any_ipv4: bool) -> Option<usize> {
        let Layout::Roce { first_repeats_second } = self.layout else {
            return (PORT_INDEX + 1..GID_TABLE_LEN).find(|&index| self.entries[index].is_none());
        };
        let own = match entry.ip {
            IpAddr::V4(_) => Some(IPV4_INDEX),
            IpAddr::V6(ip) if !ip.is_unicast_link_local() => (!any_ipv4).then_some(IPV4_INDEX),
            IpAddr::V6(_) => (!first_repeats_second).then_some(LINK_LOCAL_INDEX),
        };
        let free = |&index: &usize| self.entries[index].is_none();
        own.filter(free).or_else(|| (IPV4_INDEX + 1..GID_TABLE_LEN).find(free))
    }
}

fn entry_of(link_layer: LinkLayer, ip: IpAddr, ifindex: u32) -> GidEntry {
    let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    GidEntry { gid: link_layer.gid_of(ip), ip, scope_id: if link_local { ifindex } else { 0 }, ifindex }
}

#[cfg(test)]
mod tests {
    use super::super::interface::tests::{address, netdev};
    use super::*;
    use ferroce_types::gid_of;

    fn shown(table: &GidTable) -> Vec<String> {
        table.iter().map(|(index, entry)| format!("{index}:{}", entry.ip)).collect()
    }

    fn table(addresses: &[&str]) -> GidTable {
        GidTable::new(&netdev("eth0", 2, addresses))
    }

    #[test]
    fn on_infiniband_the_ports_gid_is_first_whatever_comes_and_goes() {
        let mut eth0 = netdev("eth0", 2, &["fe80::1"]);
        let mut table = GidTable::on(LinkLayer::InfiniBand, &eth0);
        assert_eq!(shown(&table), ["0:fe80::1"]);
        eth0.addresses.insert(0, address("10.0.0.1"));
        eth0.addresses.push(address("fd00::1"));
        let changed: Vec<_> = table.update(&eth0).iter().map(|change| change.index).collect();
        assert_eq!(changed, [0, 1, 2]);
        assert_eq!(shown(&table), ["0:10.0.0.1", "1:fe80::1", "2:fd00::1"]);
        assert_eq!(table.gid(0).unwrap()[..], [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0xf0, 0xce, 4, 10, 0, 0, 1]);
        assert_eq!(table.update(&eth0), []);
        eth0.addresses.remove(0);
        table.update(&eth0);
        assert_eq!(shown(&table), ["0:fd00::1", "1:fe80::1"]);
        table.update(&netdev("eth0", 2, &[]));
        assert_eq!(table.iter().count(), 0);
    }

    #[test]
    fn a_table_of_the_other_link_layer_is_none() {
        let eth0 = netdev("eth0", 2, &["10.0.0.1", "fe80::1"]);
        let layers = [LinkLayer::Ethernet, LinkLayer::InfiniBand];
        for (ours, theirs) in layers.into_iter().flat_map(|one| layers.map(|other| (one, other))) {
            let table = GidTable::on(theirs, &eth0);
            let read = GidTable::from_bytes_on(ours, &table.to_bytes(), 2);
            assert_eq!(read, (ours == theirs).then_some(table));
        }
    }

    #[test]
    fn link_local_is_first_and_ipv4_second() {
        let table = table(&["10.0.0.1", "10.0.0.2", "2001:db8::1", "fe80::1"]);
        assert_eq!(shown(&table), ["0:fe80::1", "1:10.0.0.1", "2:10.0.0.2", "3:2001:db8::1"]);
        assert_eq!(table.get(0).unwrap().scope_id, 2);
        assert_eq!(table.get(1).unwrap().scope_id, 0);
        assert_eq!(table.gid(1).unwrap()[..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1]);
        assert_eq!(table.gid(63), Some([0; 16]));
        assert_eq!(table.gid(64), None);
        assert_eq!(table.index_of(gid_of("10.0.0.2".parse().unwrap())), Some(2));
    }

    #[test]
    fn without_link_local_the_first_two_are_the_same() {
        assert_eq!(shown(&table(&["127.0.0.1", "::1"])), ["0:127.0.0.1", "1:127.0.0.1", "2:::1"]);
        assert_eq!(shown(&table(&["2001:db8::1"])), ["0:2001:db8::1", "1:2001:db8::1"]);
    }

    #[test]
    fn interface_with_ipv6_only_has_its_global_address_second() {
        assert_eq!(
            shown(&table(&["2001:db8::1", "2001:db8::2", "fe80::1"])),
            ["0:fe80::1", "1:2001:db8::1", "2:2001:db8::2"]
        );
        assert_eq!(shown(&table(&["fe80::1"])), ["0:fe80::1"]);
    }

    #[test]
    fn addresses_that_stay_keep_their_index_and_changes_are_told() {
        let mut eth0 = netdev("eth0", 2, &["10.0.0.1", "10.0.0.2", "2001:db8::1", "fe80::1"]);
        let mut table = GidTable::new(&eth0);
        assert_eq!(table.update(&eth0), []);

        eth0.addresses.retain(|a| a.ip != address("10.0.0.1").ip);
        eth0.addresses.push(address("2001:db8::2"));
        let changes = table.update(&eth0);
        assert_eq!(shown(&table), ["0:fe80::1", "2:10.0.0.2", "3:2001:db8::1", "4:2001:db8::2"]);
        assert_eq!(table.gid(1), Some([0; 16]));
        let told: Vec<_> = changes.iter().map(|c| (c.index, c.old.is_some(), c.new.is_some())).collect();
        assert_eq!(told, [(1, true, false), (4, false, true)]);

        eth0.addresses.push(address("10.0.0.9"));
        assert_eq!(table.update(&eth0).len(), 1);
        assert_eq!(table.get(1).unwrap().ip, address("10.0.0.9").ip);
    }

    #[test]
    fn link_that_goes_down_and_up_gets_its_indices_back() {
        for addresses in [&["10.0.0.1", "2001:db8::1", "fe80::1"][..], &["10.0.0.1", "2001:db8::1"][..]] {
            let up = netdev("eth0", 2, addresses);
            let mut table = GidTable::new(&up);
            let before = table.clone();
            for left in [&["10.0.0.1"][..], &["2001:db8::1"][..], &[][..]] {
                assert!(!table.update(&netdev("eth0", 2, left)).is_empty());
                assert!(!table.update(&up).is_empty());
                assert_eq!(table, before);
            }
        }
    }

    #[test]
    fn a_table_is_told_with_its_holes() {
        for addresses in [&["10.0.0.1", "10.0.0.2", "2001:db8::1", "fe80::1"][..], &["10.0.0.1", "10.0.0.2"]]
        {
            let mut eth0 = netdev("eth0", 2, addresses);
            let mut table = GidTable::new(&eth0);
            eth0.addresses.remove(0);
            table.update(&eth0);
            let mut told = GidTable::from_bytes(&table.to_bytes(), 2).unwrap();
            assert_eq!(told, table);
            assert_eq!(told.update(&eth0), []);
            assert_ne!(GidTable::new(&eth0), table, "a new table has no holes");
        }
    }

    #[test]
    fn nonsense_is_no_table() {
        let good = table(&["10.0.0.1"]).to_bytes();
        assert!(GidTable::from_bytes(&good, 2).is_some());
        for bad in [&[][..], &[3], &good[..good.len() - 1], &[&[0, 64][..], &[0; 16]].concat()] {
            assert_eq!(GidTable::from_bytes(bad, 2), None);
        }
    }

    #[test]
    fn more_addresses_than_entries_leave_the_table_full() {
        let mut eth0 = netdev("eth0", 2, &[]);
        eth0.addresses = (1..=100).map(|i| address(&format!("10.0.0.{i}"))).collect();
        let table = GidTable::new(&eth0);
        assert_eq!(table.iter().count(), GID_TABLE_LEN);
        assert_eq!(table.get(63).unwrap().ip, address("10.0.0.63").ip);
    }

    #[test]
    fn unusable_addresses_are_not_in_the_table() {
        let mut eth0 = netdev("eth0", 2, &["10.0.0.1", "2001:db8::1"]);
        eth0.addresses[1].flags = libc::IFA_F_TENTATIVE;
        assert_eq!(shown(&GidTable::new(&eth0)), ["0:10.0.0.1", "1:10.0.0.1"]);
    }

    #[test]
    fn link_local_address_is_first_from_the_start_unless_another_has_it() {
        let mut eth0 = netdev("eth0", 2, &["10.0.0.1", "fe80::1"]);
        eth0.addresses[1].flags = libc::IFA_F_TENTATIVE;
        let mut table = GidTable::new(&eth0);
        assert_eq!(shown(&table), ["0:fe80::1", "1:10.0.0.1"]);
        eth0.addresses[1].flags = 0;
        assert_eq!(table.update(&eth0), []);
        eth0.addresses[1].flags = libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED;
        assert_eq!(table.update(&eth0).len(), 1);
        assert_eq!(shown(&table), ["1:10.0.0.1"]);
    }
}
