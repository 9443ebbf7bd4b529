//! Which addresses are this network namespace's own, and how another is reached.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use super::NetError;
use super::interface::{Netdev, interfaces, ip};
use super::netlink::{Netlink, NetlinkMessage, attributes, push_attribute, u32_at};

/// `RTAX_MTU` (linux/rtnetlink.h).
const RTAX_MTU: u16 = 2;
/// The entry of the table, and not what a packet would find (linux/rtnetlink.h).
const RTM_F_FIB_MATCH: u32 = 0x2000;
/// `struct rtmsg`.
const RTMSG: usize = 12;

/// The addresses of this network namespace at one moment.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct LocalAddresses {
    /// With the interface for link-local IPv6 addresses, else 0.
    exact: BTreeSet<(IpAddr, u32)>,
    /// IPv4 networks on a loopback interface: the kernel takes every address of such a network for its own.
    loopback_networks: Vec<(Ipv4Addr, u8)>,
}

impl LocalAddresses {
    /// Reads them.
    ///
    /// # Errors
    /// [`NetError::Netlink`].
    pub fn read() -> Result<Self, NetError> {
        Ok(Self::of(&interfaces()?))
    }

    /// Those of the interfaces given.
    #[must_use]
    pub fn of(interfaces: &[Netdev]) -> Self {
        let mut found = Self::default();
        for netdev in interfaces {
            for address in netdev.usable_addresses() {
                let scope = if address.is_link_local_v6() { netdev.ifindex } else { 0 };
                found.exact.insert((address.ip, scope));
                if let (true, IpAddr::V4(ip)) = (netdev.is_loopback(), address.ip) {
                    found.loopback_networks.push((ip, address.prefix_len));
                }
            }
        }
        found
    }

    /// Whether `ip` is an address of this network namespace. `scope` is the interface index for a link-local IPv6
    /// address and ignored for others.
    #[must_use]
    pub fn contains(&self, ip: IpAddr, scope: u32) -> bool {
        let (ip, scope) = match ip.to_canonical() {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => (IpAddr::V6(ip), scope),
            ip => (ip, 0),
        };
        let in_network = |ip: Ipv4Addr| {
            self.loopback_networks.iter().any(|&(network, prefix_len)| {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len.min(32))).unwrap_or(0);
                u32::from(ip) & mask == u32::from(network) & mask
            })
        };
        self.exact.contains(&(ip, scope)) || matches!(ip, IpAddr::V4(ip) if in_network(ip))
    }
}

/// What the kernel would do with a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteKind {
    /// Deliver it here.
    Local,
    /// Send it on.
    Unicast,
    /// Something else: broadcast, multicast, blackhole … (`RTN_*`).
    Other(u8),
}

/// The way to an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// What happens.
    pub kind: RouteKind,
    /// Interface that a packet leaves by.
    pub ifindex: Option<u32>,
    /// Source address that the kernel would choose.
    pub source: Option<IpAddr>,
    /// Next hop; `None` where the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// MTU in bytes where the route or path MTU discovery set one below the interface's.
    pub mtu: Option<u32>,
}

/// Asks the kernel for the way to `destination`; `scope` is the interface index for link-local addresses, else 0. `None`
/// when there is no way.
///
/// # Errors
/// [`NetError::Netlink`].
pub fn route_to(destination: IpAddr, scope: u32) -> Result<Option<Route>, NetError> {
    ask(&mut open()?, &request(destination, scope, None))
}

/// The interface that packets from one address to another leave by, and the MTU of the route if one is configured. An MTU
/// learned by path MTU discovery doesn't count: any host can send such an ICMP message.
///
/// # Errors
/// [`NetError::Netlink`].
pub fn way(from: IpAddr, to: IpAddr, scope: u32) -> Result<Option<(u32, Option<u32>)>, NetError> {
    let mut socket = open()?;
    let mut body = request(to, scope, Some(from));
    let Some(ifindex) = ask(&mut socket, &body)?.and_then(|route| route.ifindex) else { return Ok(None) };
    body[8..12].copy_from_slice(&RTM_F_FIB_MATCH.to_ne_bytes());
    Ok(Some((ifindex, ask(&mut socket, &body)?.and_then(|entry| entry.mtu))))
}

fn open() -> Result<Netlink, NetError> {
    Netlink::open(0).map_err(NetError::asking("for a netlink socket"))
}

fn request(to: IpAddr, scope: u32, from: Option<IpAddr>) -> Vec<u8> {
    let bytes = |ip: IpAddr| match ip.to_canonical() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut body = vec![0u8; RTMSG];
    let destination = bytes(to);
    body[0] = if destination.len() == 4 { libc::AF_INET } else { libc::AF_INET6 } as u8;
    body[1] = (destination.len() * 8) as u8;
    push_attribute(&mut body, libc::RTA_DST, &destination);
    if let Some(source) = from.map(bytes).filter(|source| source.len() == destination.len()) {
        body[2] = (source.len() * 8) as u8;
        push_attribute(&mut body, libc::RTA_SRC, &source);
    }
    if scope != 0 {
        push_attribute(&mut body, libc::RTA_OIF, &scope.to_ne_bytes());
    }
    body
}

fn ask(socket: &mut Netlink, body: &[u8]) -> Result<Option<Route>, NetError> {
    match socket.get(libc::RTM_GETROUTE, body, |message| parse_route(&message)) {
        Ok(route) => Ok(route),
        Err(error) => match error.raw_os_error() {
            // Unreachable, prohibited, blackhole routes answer with the error that a sender would get.
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL) => Ok(None),
            _ => Err(NetError::asking("for a route")(error)),
        },
    }
}

fn parse_route(message: &NetlinkMessage<'_>) -> Option<Route> {
    let body = message.body;
    if message.kind != libc::RTM_NEWROUTE {
        return None;
    }
    let family = *body.first()?;
    let kind = match *body.get(7)? {
        libc::RTN_LOCAL => RouteKind::Local,
        libc::RTN_UNICAST => RouteKind::Unicast,
        other => RouteKind::Other(other),
    };
    let mut route = Route { kind, ifindex: None, source: None, gateway: None, mtu: None };
    for (kind, payload) in attributes(body.get(RTMSG..)?) {
        match kind {
            libc::RTA_OIF => route.ifindex = u32_at(payload, 0),
            libc::RTA_PREFSRC => route.source = ip(family, payload),
            libc::RTA_GATEWAY => route.gateway = ip(family, payload),
            libc::RTA_METRICS => {
                let mtu = attributes(payload).find(|(kind, _)| *kind == RTAX_MTU);
                route.mtu = mtu.and_then(|(_, payload)| u32_at(payload, 0)).filter(|&mtu| mtu != 0);
            }
            _ => {}
        }
    }
    // The kernel answers for unreachable IPv6 destinations with a route that has an error in it.
    match route.kind {
        RouteKind::Other(libc::RTN_UNREACHABLE | libc::RTN_BLACKHOLE | libc::RTN_PROHIBIT) => None,
        _ => Some(route),
    }
}

#[cfg(test)]
mod tests {
    use super::super::interface::tests::netdev;
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn local_addresses_know_scope_and_the_loopback_network() {
        let mut lo = netdev("lo", 1, &["127.0.0.1", "::1"]);
        lo.addresses[0].prefix_len = 8;
        let local = LocalAddresses::of(&[lo, netdev("eth0", 2, &["10.0.0.1", "fe80::1"])]);
        assert!(local.contains(ip("127.0.0.1"), 0));
        assert!(local.contains(ip("127.9.9.9"), 0));
        assert!(local.contains(ip("::1"), 7), "the scope of an address that isn't link-local is ignored");
        assert!(local.contains(ip("10.0.0.1"), 0));
        assert!(local.contains(ip("::ffff:10.0.0.1"), 0));
        assert!(!local.contains(ip("10.0.0.2"), 0));
        assert!(local.contains(ip("fe80::1"), 2));
        assert!(!local.contains(ip("fe80::1"), 3), "the same address on another link is another host");
        assert!(!local.contains(ip("fe80::1"), 0));
    }

    #[test]
    fn route_is_read_with_source_gateway_and_mtu() {
        let mut metrics = Vec::new();
        push_attribute(&mut metrics, RTAX_MTU, &1400u32.to_ne_bytes());
        let mut body = vec![0u8; RTMSG];
        (body[0], body[7]) = (libc::AF_INET as u8, libc::RTN_UNICAST);
        push_attribute(&mut body, libc::RTA_OIF, &4u32.to_ne_bytes());
        push_attribute(&mut body, libc::RTA_PREFSRC, &[10, 0, 0, 1]);
        push_attribute(&mut body, libc::RTA_GATEWAY, &[10, 0, 0, 254]);
        push_attribute(&mut body, libc::RTA_METRICS, &metrics);
        let route = parse_route(&NetlinkMessage::new(libc::RTM_NEWROUTE, &body)).unwrap();
        let expected = Route {
            kind: RouteKind::Unicast,
            ifindex: Some(4),
            source: Some(ip("10.0.0.1")),
            gateway: Some(ip("10.0.0.254")),
            mtu: Some(1400),
        };
        assert_eq!(route, expected);
        body[7] = libc::RTN_UNREACHABLE;
        assert_eq!(parse_route(&NetlinkMessage::new(libc::RTM_NEWROUTE, &body)), None);
    }
}
