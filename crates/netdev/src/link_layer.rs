//! How ports are addressed: by GIDs alone as on Ethernet, or by LIDs too as on InfiniBand.
//!
//! This is the one place that maps addresses of hosts to LIDs, GIDs and MLIDs and back; the rest of the adapter knows
//! addresses of hosts only. Packets are RoCEv2 in both modes.

use super::interface::{Address, Netdev};
use ferroce_types as types;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::OnceLock;

/// The environment variable that chooses the link layer: `ethernet` (the default) or `infiniband`.
pub const LINK_LAYER_VARIABLE: &str = "FERROCE_LINK_LAYER";

/// The last unicast LID (IBTA 4.1.3); the first is 1.
pub const LAST_UNICAST_LID: u16 = 0xbfff;
/// Multicast LIDs.
pub const MULTICAST_LIDS: std::ops::RangeInclusive<u16> = 0xc000..=0xfffe;
/// The LID of the subnet manager that ports name. Nothing answers there.
const SM_LID: u16 = 1;

/// The prefix of GIDs of a subnet without a router, fe80::/64.
const DEFAULT_SUBNET: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
/// The first half of a port GUID that ends in an IPv4 address: the organisation's identifier, and the address's version.
const GUID_OF_IPV4: [u8; 4] = [0x02, 0xf0, 0xce, 4];
/// The first 12 bytes of the MGID of an IPv4 group (RFC 4391): link-local scope, the signature of IPv4, the default P_Key.
const GROUP_OF_IPV4: [u8; 12] = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0];

/// What programs see as the link layer of the ports (`link_layer` of ibv_query_port(3)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkLayer {
    /// `IBV_LINK_LAYER_INFINIBAND`
    InfiniBand = 1,
    /// `IBV_LINK_LAYER_ETHERNET`
    Ethernet = 2,
}

impl FromStr for LinkLayer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ethernet" => Ok(Self::Ethernet),
            "infiniband" => Ok(Self::InfiniBand),
            _ => Err("a link layer is ethernet or infiniband".to_owned()),
        }
    }
}

impl std::fmt::Display for LinkLayer {
    /// As the variable has it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "infiniband",
            Self::Ethernet => "ethernet",
        })
    }
}

impl LinkLayer {
    /// That of this process: `FERROCE_LINK_LAYER` as it was when first asked for. A wrong value counts as none.
    #[must_use]
    #[inline]
    pub fn current() -> Self {
        static CURRENT: OnceLock<LinkLayer> = OnceLock::new();
        let read = || ferroce_os::setting(LINK_LAYER_VARIABLE)?.to_str()?.parse().ok();
        *CURRENT.get_or_init(|| read().unwrap_or(Self::Ethernet))
    }

    /// InfiniBand.
    #[must_use]
    #[inline]
    pub fn is_infiniband(self) -> bool {
        self == Self::InfiniBand
    }

    /// As in `link_layer` in `/sys`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ethernet => "Ethernet",
            Self::InfiniBand => "InfiniBand",
        }
    }

    /// `enum ibv_gid_type` of all entries of GID tables.
    #[must_use]
    pub fn gid_type(self) -> u32 {
        match self {
            Self::Ethernet => 2,
            Self::InfiniBand => 0,
        }
    }

    /// The same as `gid_attrs/types` in `/sys` has it.
    #[must_use]
    pub fn gid_type_name(self) -> &'static str {
        match self {
            Self::Ethernet => "RoCE v2",
            Self::InfiniBand => "IB/RoCE v1",
        }
    }

    /// The GID of an address or a group. On InfiniBand an IPv4 address is the port GUID `02f0:ce04:aabb:ccdd` of
    /// fe80::/64, and an IPv4 group has the MGID that IPoIB gives it; IPv6 addresses are GIDs on both.
    #[must_use]
    pub fn gid_of(self, ip: IpAddr) -> [u8; 16] {
        match (self, ip) {
            (Self::InfiniBand, IpAddr::V4(ip)) if ip.is_multicast() => {
                let number = (u32::from(ip) & 0x0fff_ffff).to_be_bytes();
                joined(&GROUP_OF_IPV4, &number)
            }
            (Self::InfiniBand, IpAddr::V4(ip)) => {
                joined(&DEFAULT_SUBNET, &[GUID_OF_IPV4, ip.octets()].concat())
            }
            _ => types::gid_of(ip),
        }
    }
}

fn joined(first: &[u8], second: &[u8]) -> [u8; 16] {
    [first, second].concat().try_into().expect("16 bytes")
}

/// The GID of an address or a group as programs of this process see it.
#[must_use]
pub fn gid_of(ip: IpAddr) -> [u8; 16] {
    LinkLayer::current().gid_of(ip)
}

/// The address or group that a GID stands for, whichever link layer it is of: a peer's may be the other one.
#[must_use]
pub fn ip_of(gid: [u8; 16]) -> IpAddr {
    let [.., a, b, c, d] = gid;
    let last = Ipv4Addr::new(a, b, c, d);
    if gid[..8] == DEFAULT_SUBNET && gid[8..12] == GUID_OF_IPV4 {
        return last.into();
    }
    // Any scope and any partition.
    if gid[0] == 0xff && gid[2..4] == GROUP_OF_IPV4[2..4] {
        return Ipv4Addr::from(0xe000_0000 | u32::from(last) & 0x0fff_ffff).into();
    }
    types::ip_of(gid)
}

/// The MLID of a group. All hosts compute the same one from the MGID. Groups can share an MLID; the MGID identifies a group.
#[must_use]
pub fn mlid_of(mgid: [u8; 16]) -> u16 {
    let (first, last) = (*MULTICAST_LIDS.start(), *MULTICAST_LIDS.end());
    let (pairs, _) = mgid.as_chunks::<2>();
    let sum: u32 = pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    first + (sum % (u32::from(last - first) + 1)) as u16
}

/// The LIDs of a port: the numbers of the hosts of its IP subnet, so that all hosts compute the same ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lids {
    ip: IpAddr,
    prefix_len: u8,
}

impl Lids {
    /// Those of an interface: of its first IPv4 address, else its first IPv6 address that isn't link-local, that has a LID.
    #[must_use]
    pub fn of(netdev: &Netdev) -> Option<Self> {
        candidates(netdev).find(|lids| lids.lid_of(lids.ip).is_some())
    }

    /// The port's own LID.
    #[must_use]
    pub fn own(&self) -> u16 {
        self.lid_of(self.ip).unwrap_or(0)
    }

    /// The subnet manager's.
    #[must_use]
    pub fn subnet_manager(&self) -> u16 {
        SM_LID
    }

    /// The port's address, from which packets to LIDs leave.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.ip
    }

    /// The LID of a host of the subnet: its number in there. `None` for other hosts, and those beyond 0xbfff.
    #[must_use]
    pub fn lid_of(&self, ip: IpAddr) -> Option<u16> {
        let (own, bits) = bits_of(self.ip);
        let (other, other_bits) = bits_of(ip);
        let mask = self.mask();
        if other_bits != bits || own & !mask != other & !mask {
            return None;
        }
        let lid = u16::try_from((other & mask) + self.first_is_1()).ok()?;
        (1..=self.last()).contains(&lid).then_some(lid)
    }

    /// The host that a LID leads to; `None` where the subnet has none of this number.
    #[must_use]
    pub fn address_of(&self, lid: u16) -> Option<IpAddr> {
        if !(1..=self.last()).contains(&lid) {
            return None;
        }
        let (own, _) = bits_of(self.ip);
        let host = own & !self.mask() | (u128::from(lid) - self.first_is_1());
        Some(match self.ip {
            IpAddr::V4(_) => Ipv4Addr::from(host as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from(host).into(),
        })
    }

    /// The highest LID of the subnet; 0 where there is none.
    #[must_use]
    pub fn last(&self) -> u16 {
        let last = match (self.host_bits(), self.ip) {
            (0, _) => 0,
            (1, _) => 2,
            // The highest address is that of broadcasts.
            (_, IpAddr::V4(_)) => self.mask() - 1,
            (_, IpAddr::V6(_)) => self.mask(),
        };
        last.min(LAST_UNICAST_LID.into()) as u16
    }

    /// Both addresses of a subnet of two are hosts (RFC 3021, RFC 6164): their LIDs are 1 and 2.
    fn first_is_1(&self) -> u128 {
        u128::from(self.host_bits() == 1)
    }

    fn host_bits(&self) -> u32 {
        let (_, bits) = bits_of(self.ip);
        bits.saturating_sub(self.prefix_len.into())
    }

    fn mask(&self) -> u128 {
        1_u128.checked_shl(self.host_bits()).unwrap_or(0).wrapping_sub(1)
    }
}

impl std::fmt::Display for Lids {
    /// "10.0.0.1/24".
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix_len)
    }
}

fn candidates(netdev: &Netdev) -> impl Iterator<Item = Lids> {
    let is_global = |address: &&Address| !address.is_link_local_v6();
    netdev
        .usable_addresses()
        .filter(is_global)
        .map(|address| Lids { ip: address.ip, prefix_len: address.prefix_len })
}

/// Why the port of an interface has no LID; `None` if it has one.
#[must_use]
pub fn why_no_lid(netdev: &Netdev) -> Option<String> {
    if Lids::of(netdev).is_some() {
        return None;
    }
    let name = &netdev.name;
    let Some(lids) = candidates(netdev).next() else {
        return Some(format!("{name} has no LID: it has neither an IPv4 address nor a global IPv6 address"));
    };
    Some(if lids.host_bits() == 0 {
        format!("{name} has no LID: LIDs number the hosts of a subnet, and {lids} is a subnet of one address")
    } else {
        format!("{name} has no LID: {lids} isn't one of the first {LAST_UNICAST_LID} hosts of its subnet")
    })
}

/// An address as a number, and how many bits it has.
fn bits_of(ip: IpAddr) -> (u128, u32) {
    match ip {
        IpAddr::V4(ip) => (u32::from(ip).into(), 32),
        IpAddr::V6(ip) => (ip.into(), 128),
    }
}

#[cfg(test)]
mod tests {
    use super::super::interface::tests::netdev;
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn lids(text: &str) -> Lids {
        let (address, prefix_len) = text.split_once('/').unwrap();
        Lids { ip: ip(address), prefix_len: prefix_len.parse().unwrap() }
    }

    #[test]
    fn infiniband_gids_have_the_default_prefix_and_lead_to_the_address() {
        let gid = LinkLayer::InfiniBand.gid_of(ip("10.1.2.3"));
        assert_eq!(Ipv6Addr::from(gid), "fe80::2f0:ce04:a01:203".parse::<Ipv6Addr>().unwrap());
        for text in ["10.1.2.3", "239.77.1.2", "fe80::5054:ff:fe12:3456", "fd00::1", "ff12::7777"] {
            for layer in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
                assert_eq!(ip_of(layer.gid_of(ip(text))), ip(text), "{layer:?}");
            }
        }
    }

    #[test]
    fn an_ipv4_group_has_the_mgid_of_ipoib_in_any_scope_and_partition() {
        let mgid = LinkLayer::InfiniBand.gid_of(ip("239.77.1.2"));
        assert_eq!(Ipv6Addr::from(mgid).to_string(), "ff12:401b:ffff::f4d:102");
        let other: Ipv6Addr = "ff15:401b:8001::f4d:102".parse().unwrap();
        // 28 bits of a group of IPv4.
        assert_eq!(ip_of(other.octets()), ip("239.77.1.2"));
        assert!(MULTICAST_LIDS.contains(&mlid_of(mgid)) && MULTICAST_LIDS.contains(&mlid_of([0xff; 16])));
    }

    #[test]
    fn a_lid_is_the_number_of_a_host_in_its_subnet() {
        for (own, lid, host) in [
            ("10.0.0.1/24", 7, "10.0.0.7"),
            ("10.0.0.1/24", 254, "10.0.0.254"),
            ("172.17.0.2/16", 0xbfff, "172.17.191.255"),
            ("10.128.0.9/20", 4094, "10.128.15.254"),
            ("127.0.0.1/8", 1, "127.0.0.1"),
            ("10.0.0.4/31", 1, "10.0.0.4"),
            ("10.0.0.4/31", 2, "10.0.0.5"),
            ("fd00::1/64", 0x12, "fd00::12"),
            ("fd00::1/127", 1, "fd00::"),
            ("::1/0", 5, "::5"),
        ] {
            let lids = lids(own);
            assert_eq!(lids.address_of(lid), Some(ip(host)), "{own}");
            assert_eq!(lids.lid_of(ip(host)), Some(lid), "{own}");
        }
    }

    #[test]
    fn hosts_of_other_subnets_and_beyond_the_last_lid_have_none() {
        for (own, host) in [
            ("10.0.0.1/24", "10.0.1.1"),
            ("10.0.0.1/24", "10.0.0.0"),
            ("10.0.0.1/24", "10.0.0.255"),
            ("10.0.0.1/24", "fd00::1"),
            ("172.17.0.2/16", "172.17.192.0"),
            ("10.0.0.1/8", "10.1.2.3"),
            ("10.0.0.1/32", "10.0.0.1"),
            ("::1/128", "::1"),
            ("fd00::1/64", "fd00::1:0"),
            ("fd00::1/64", "fd00::5054:ff:fe12:3456"),
        ] {
            assert_eq!(lids(own).lid_of(ip(host)), None, "{own} {host}");
        }
        assert_eq!(lids("10.0.0.1/24").address_of(0), None);
        assert_eq!(lids("10.0.0.1/24").address_of(255), None);
        assert_eq!(lids("172.17.0.1/16").address_of(0xc000), None);
        assert_eq!(lids("10.0.0.1/32").address_of(1), None);
    }

    #[test]
    fn the_first_address_with_a_lid_is_the_ports() {
        let mut eth0 = netdev("eth0", 2, &["10.9.8.7", "10.0.0.3", "fd00::5", "fe80::1"]);
        assert_eq!(Lids::of(&eth0).unwrap().own(), 7);
        eth0.addresses[0].prefix_len = 8;
        assert_eq!(Lids::of(&eth0).unwrap().address(), ip("10.0.0.3"));
        eth0.addresses.remove(1);
        assert_eq!(Lids::of(&eth0).unwrap().address(), ip("fd00::5"));
        eth0.addresses.remove(1);
        assert_eq!(Lids::of(&eth0), None);
        assert!(why_no_lid(&eth0).unwrap().contains("10.9.8.7/8 isn't one of the first 49151"));
        eth0.addresses[0].prefix_len = 32;
        assert!(why_no_lid(&eth0).unwrap().contains("a subnet of one address"));
        assert!(why_no_lid(&netdev("eth0", 2, &["fe80::1"])).unwrap().contains("neither"));
        assert_eq!(why_no_lid(&netdev("eth0", 2, &["10.0.0.1"])), None);
    }

    #[test]
    fn a_link_layer_is_one_of_two_words() {
        assert_eq!("infiniband".parse(), Ok(LinkLayer::InfiniBand));
        assert_eq!("ethernet".parse(), Ok(LinkLayer::Ethernet));
        for layer in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
            assert_eq!(layer.to_string().parse(), Ok(layer));
        }
        for wrong in ["", "ib", "InfiniBand", "roce"] {
            assert!(wrong.parse::<LinkLayer>().is_err(), "{wrong}");
        }
    }
}
