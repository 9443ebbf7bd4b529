//! Network interfaces and their addresses, read from the kernel over rtnetlink(7).
//!
//! In here: reading links, addresses and the default route. Out of here: which interface is a device.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::netlink::{Netlink, NetlinkMessage, attributes, push_attribute, string, u16_at, u32_at};
use super::{NetError, ethtool};

/// Attributes of `IFLA_LINKINFO` (linux/if_link.h); libc has the outer ones only.
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
/// `struct ifinfomsg`, `struct ifaddrmsg`, `struct rtmsg`.
const IFINFOMSG: usize = 16;
const IFADDRMSG: usize = 8;
const RTMSG: usize = 12;

/// A network interface of this network namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Netdev {
    /// Name, as in ip-link(8).
    pub name: String,
    /// Interface index; also the scope ID of its link-local addresses.
    pub ifindex: u32,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// `IFF_*` of netdevice(7).
    pub flags: u32,
    /// `IF_OPER_*` of RFC 2863 (0 unknown … 6 up).
    pub operstate: u8,
    /// Hardware type, `ARPHRD_*`.
    pub hardware: u16,
    /// Hardware address; `None` where the interface has none (or only zeros, as `lo`).
    pub mac: Option<[u8; 6]>,
    /// Index of the bridge, bond or VRF it belongs to.
    pub master: Option<u32>,
    /// What it is to its master: "bridge", "bond", "vrf" …
    pub port_kind: Option<String>,
    /// Kind of a virtual interface: "veth", "dummy", "bridge" …
    pub kind: Option<String>,
    /// Usable and unusable addresses in the kernel's order, IPv4 before IPv6.
    pub addresses: Vec<Address>,
    /// Mbit/s as the driver reports it; `None` where it reports none.
    pub speed_mbps: Option<u32>,
}

/// An address of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The interface's own address (not a point-to-point peer's).
    pub ip: IpAddr,
    /// Bits of the prefix.
    pub prefix_len: u8,
    /// `RT_SCOPE_*`: 0 universe, 253 link, 254 host.
    pub scope: u8,
    /// `IFA_F_*`.
    pub flags: u32,
}

impl Address {
    /// May be used as a source now: not tentative (unless optimistic) and duplicate address detection didn't fail.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        let tentative = self.flags & libc::IFA_F_TENTATIVE != 0 && self.flags & libc::IFA_F_OPTIMISTIC == 0;
        !tentative && self.flags & libc::IFA_F_DADFAILED == 0
    }

    /// Has a place in the GID table: what may be used, and the link-local address from the start, which the kernel makes
    /// from the MAC before anything is known of others that have it.
    #[must_use]
    pub fn has_gid(&self) -> bool {
        self.is_usable() || self.is_link_local_v6() && self.flags & libc::IFA_F_DADFAILED == 0
    }

    /// An IPv6 address of fe80::/10, meaningful with the interface only.
    #[must_use]
    pub fn is_link_local_v6(&self) -> bool {
        matches!(self.ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
    }
}

impl Netdev {
    /// `lo`, or anything like it.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.flags & libc::IFF_LOOPBACK as u32 != 0
    }

    /// Administratively up and able to carry packets. Many virtual interfaces leave the operational state at
    /// "unknown"; the kernel sets `IFF_RUNNING` for those as well.
    #[must_use]
    pub fn is_up(&self) -> bool {
        let needed = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        let carries = matches!(i32::from(self.operstate), libc::IF_OPER_UNKNOWN | libc::IF_OPER_UP);
        self.flags & needed == needed && carries
    }

    /// A port of a bridge, bond or team: the addresses belong on its master.
    #[must_use]
    pub fn is_port(&self) -> bool {
        self.master.is_some() && self.port_kind.as_deref() != Some("vrf")
    }

    /// Addresses that can be used now, in the kernel's order.
    pub fn usable_addresses(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(|address| address.is_usable())
    }

    /// Addresses that have a place in the GID table, in the kernel's order.
    pub fn gid_addresses(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(|address| address.has_gid())
    }

    /// Reads the interface `ifindex` anew.
    ///
    /// # Errors
    /// [`NetError::Gone`] when it no longer exists, [`NetError::Netlink`] when the kernel can't be asked.
    pub fn read(ifindex: u32) -> Result<Self, NetError> {
        let mut socket = Netlink::open(0).map_err(NetError::asking("for a netlink socket"))?;
        let mut body = link_request();
        body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        let link = match socket.get(libc::RTM_GETLINK, &body, |message| parse_link(&message)) {
            Ok(link) => link,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => None,
            Err(error) => return Err(NetError::asking("for an interface")(error)),
        };
        let mut netdev = link.ok_or(NetError::Gone { ifindex })?;
        for (index, address) in addresses(&mut socket)? {
            if index == ifindex {
                netdev.addresses.push(address);
            }
        }
        netdev.read_speed();
        Ok(netdev)
    }

    /// Asks the driver for the speed. Kept out of [`interfaces`] because a driver may take its time.
    pub(super) fn read_speed(&mut self) {
        self.speed_mbps = ethtool::speed_mbps(&self.name);
    }
}

/// All interfaces of this network namespace by index, without their speed.
///
/// # Errors
/// [`NetError::Netlink`] when the kernel can't be asked.
pub fn interfaces() -> Result<Vec<Netdev>, NetError> {
    let mut socket = Netlink::open(0).map_err(NetError::asking("for a netlink socket"))?;
    interfaces_over(&mut socket)
}

pub(super) fn interfaces_over(socket: &mut Netlink) -> Result<Vec<Netdev>, NetError> {
    let mut found = socket
        .dump(libc::RTM_GETLINK, &link_request(), |message| parse_link(&message))
        .map_err(NetError::asking("for the interfaces"))?;
    found.sort_by_key(|netdev| netdev.ifindex);
    for (ifindex, address) in addresses(socket)? {
        if let Ok(at) = found.binary_search_by_key(&ifindex, |netdev| netdev.ifindex) {
            found[at].addresses.push(address);
        }
    }
    Ok(found)
}

/// The interface of the default route with the lowest metric: of IPv4, else of IPv6, else `None`.
pub(super) fn default_route_interface(socket: &mut Netlink) -> Result<Option<u32>, NetError> {
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut body = vec![0u8; RTMSG];
        body[0] = family as u8;
        let routes = socket
            .dump(libc::RTM_GETROUTE, &body, |message| parse_default_route(&message))
            .map_err(NetError::asking("for the routes"))?;
        if let Some((_, ifindex)) = routes.into_iter().min_by_key(|&(metric, _)| metric) {
            return Ok(Some(ifindex));
        }
    }
    Ok(None)
}

/// All addresses with their interface's index, IPv4 before IPv6.
fn addresses(socket: &mut Netlink) -> Result<Vec<(u32, Address)>, NetError> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut body = vec![0u8; IFADDRMSG];
        body[0] = family as u8;
        let of_family = socket
            .dump(libc::RTM_GETADDR, &body, |message| parse_address(&message))
            .map_err(NetError::asking("for the addresses"))?;
        found.extend(of_family);
    }
    Ok(found)
}

/// The body of a request for links, without the statistics, which are most of an answer.
fn link_request() -> Vec<u8> {
    let mut body = vec![0u8; IFINFOMSG];
    push_attribute(&mut body, libc::IFLA_EXT_MASK, &libc::RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
    body
}

pub(super) fn parse_link(message: &NetlinkMessage<'_>) -> Option<Netdev> {
    if message.kind != libc::RTM_NEWLINK {
        return None;
    }
    let body = message.body;
    let mut netdev = Netdev {
        name: String::new(),
        ifindex: u32_at(body, 4)?,
        mtu: 0,
        flags: u32_at(body, 8)?,
        operstate: 0,
        hardware: u16_at(body, 2)?,
        mac: None,
        master: None,
        port_kind: None,
        kind: None,
        addresses: Vec::new(),
        speed_mbps: None,
    };
    for (kind, payload) in attributes(body.get(IFINFOMSG..)?) {
        match kind {
            libc::IFLA_IFNAME => netdev.name = string(payload),
            libc::IFLA_MTU => netdev.mtu = u32_at(payload, 0)?,
            libc::IFLA_OPERSTATE => netdev.operstate = *payload.first()?,
            libc::IFLA_MASTER => netdev.master = u32_at(payload, 0),
            libc::IFLA_ADDRESS => {
                netdev.mac = <[u8; 6]>::try_from(payload).ok().filter(|mac| *mac != [0; 6]);
            }
            libc::IFLA_LINKINFO => {
                for (kind, payload) in attributes(payload) {
                    match kind {
                        IFLA_INFO_KIND => netdev.kind = Some(string(payload)),
                        IFLA_INFO_SLAVE_KIND => netdev.port_kind = Some(string(payload)),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(netdev)
}

fn parse_address(message: &NetlinkMessage<'_>) -> Option<(u32, Address)> {
    if message.kind != libc::RTM_NEWADDR {
        return None;
    }
    let body = message.body;
    let (family, prefix_len, scope) = (*body.first()?, *body.get(1)?, *body.get(3)?);
    let mut flags = u32::from(*body.get(2)?);
    let (mut local, mut address) = (None, None);
    for (kind, payload) in attributes(body.get(IFADDRMSG..)?) {
        match kind {
            libc::IFA_LOCAL => local = ip(family, payload),
            libc::IFA_ADDRESS => address = ip(family, payload),
            libc::IFA_FLAGS => flags = u32_at(payload, 0)?,
            _ => {}
        }
    }
    // With a point-to-point peer, IFA_ADDRESS is the peer's and IFA_LOCAL the interface's own.
    Some((u32_at(body, 4)?, Address { ip: local.or(address)?, prefix_len, scope, flags }))
}

/// Metric and interface of a default route in the main table.
fn parse_default_route(message: &NetlinkMessage<'_>) -> Option<(u32, u32)> {
    let body = message.body;
    let (destination_len, table, kind) = (*body.get(1)?, *body.get(4)?, *body.get(7)?);
    let is_default = message.kind == libc::RTM_NEWROUTE
        && destination_len == 0
        && table == libc::RT_TABLE_MAIN
        && kind == libc::RTN_UNICAST
        && u32_at(body, 8)? & libc::RTM_F_CLONED == 0;
    if !is_default {
        return None;
    }
    let (mut metric, mut interface) = (0, None);
    for (kind, payload) in attributes(body.get(RTMSG..)?) {
        match kind {
            libc::RTA_PRIORITY => metric = u32_at(payload, 0)?,
            libc::RTA_OIF => interface = u32_at(payload, 0),
            // Several next hops: `struct rtnexthop` has the interface of the first at offset 4.
            libc::RTA_MULTIPATH => interface = interface.or(u32_at(payload, 4)),
            _ => {}
        }
    }
    Some((metric, interface?))
}

/// An address of `family` from its bytes in network order.
pub(super) fn ip(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => <[u8; 4]>::try_from(bytes).ok().map(|b| Ipv4Addr::from(b).into()),
        libc::AF_INET6 => <[u8; 16]>::try_from(bytes).ok().map(|b| Ipv6Addr::from(b).into()),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An interface that is up, with these addresses.
    pub(in super::super) fn netdev(name: &str, ifindex: u32, addresses: &[&str]) -> Netdev {
        let loopback = if name == "lo" { libc::IFF_LOOPBACK } else { libc::IFF_BROADCAST };
        Netdev {
            name: name.into(),
            ifindex,
            mtu: if name == "lo" { 65536 } else { 1500 },
            flags: (libc::IFF_UP | libc::IFF_RUNNING | loopback) as u32,
            operstate: if name == "lo" { libc::IF_OPER_UNKNOWN } else { libc::IF_OPER_UP } as u8,
            hardware: if name == "lo" { libc::ARPHRD_LOOPBACK } else { libc::ARPHRD_ETHER },
            mac: (name != "lo").then_some([2, 0, 0, 0, 0, ifindex as u8]),
            master: None,
            port_kind: None,
            kind: None,
            addresses: addresses.iter().map(|text| address(text)).collect(),
            speed_mbps: None,
        }
    }

    pub(in super::super) fn address(text: &str) -> Address {
        let ip: IpAddr = text.parse().expect("an IP address");
        let prefix_len = if ip.is_ipv4() { 24 } else { 64 };
        Address { ip, prefix_len, scope: 0, flags: libc::IFA_F_PERMANENT }
    }

    #[test]
    fn addresses_under_or_past_failed_detection_are_not_usable() {
        let mut a = address("fe80::1");
        assert!(a.is_usable() && a.is_link_local_v6());
        a.flags = libc::IFA_F_TENTATIVE;
        assert!(!a.is_usable());
        a.flags = libc::IFA_F_TENTATIVE | libc::IFA_F_OPTIMISTIC;
        assert!(a.is_usable());
        a.flags = libc::IFA_F_PERMANENT | libc::IFA_F_DADFAILED;
        assert!(!a.is_usable());
    }

    #[test]
    fn truncated_messages_are_ignored() {
        let mut body = link_request();
        body[8] = 1;
        push_attribute(&mut body, libc::IFLA_IFNAME, b"eth0\0");
        for length in 0..IFINFOMSG {
            let kind = libc::RTM_NEWLINK;
            assert_eq!(parse_link(&NetlinkMessage::new(kind, &body[..length])), None);
        }
        let link = parse_link(&NetlinkMessage::new(libc::RTM_NEWLINK, &body)).unwrap();
        assert_eq!((link.name.as_str(), link.flags), ("eth0", 1));
        assert_eq!(parse_address(&NetlinkMessage::new(libc::RTM_NEWADDR, &[2, 24, 0, 0])), None);
        assert_eq!(parse_default_route(&NetlinkMessage::new(libc::RTM_NEWROUTE, &[2; 11])), None);
    }

    #[test]
    fn own_address_wins_over_the_point_to_point_peer() {
        let mut body = vec![libc::AF_INET as u8, 32, 0x80, 0, 7, 0, 0, 0];
        push_attribute(&mut body, libc::IFA_ADDRESS, &[10, 0, 0, 2]);
        push_attribute(&mut body, libc::IFA_LOCAL, &[10, 0, 0, 1]);
        let (ifindex, address) = parse_address(&NetlinkMessage::new(libc::RTM_NEWADDR, &body)).unwrap();
        assert_eq!(address.ip, IpAddr::from([10, 0, 0, 1]));
        assert_eq!(ifindex, u32::from_ne_bytes([7, 0, 0, 0]));
    }

    #[test]
    fn first_next_hop_of_a_multipath_default_route_counts() {
        let mut body = vec![0u8; RTMSG];
        body[0] = libc::AF_INET as u8;
        body[4] = libc::RT_TABLE_MAIN;
        body[7] = libc::RTN_UNICAST;
        let mut hop = vec![8, 0, 0, 0];
        hop.extend_from_slice(&5u32.to_ne_bytes());
        push_attribute(&mut body, libc::RTA_PRIORITY, &100u32.to_ne_bytes());
        push_attribute(&mut body, libc::RTA_MULTIPATH, &hop);
        assert_eq!(parse_default_route(&NetlinkMessage::new(libc::RTM_NEWROUTE, &body)), Some((100, 5)));
        body[1] = 24;
        assert_eq!(parse_default_route(&NetlinkMessage::new(libc::RTM_NEWROUTE, &body)), None);
    }
}
