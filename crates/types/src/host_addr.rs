//! Addresses of this host and of peers.

use super::gid_of;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// An address of a host or a multicast group, as a GID names it: IPv4 is never in its IPv6-mapped form here, and a scope
/// is there exactly for link-local IPv6 and for groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostAddr {
    ip: IpAddr,
    scope_id: u32,
}

impl HostAddr {
    /// `scope_id` is the interface's index; it is dropped where it means nothing.
    #[must_use]
    #[inline]
    pub fn new(ip: IpAddr, scope_id: u32) -> Self {
        let ip = ip.to_canonical();
        let scoped = ip.is_multicast() || matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        Self { ip, scope_id: if scoped { scope_id } else { 0 } }
    }

    /// From the 16 bytes of a RoCE v2 GID.
    #[must_use]
    #[inline]
    pub fn from_gid(gid: [u8; 16], scope_id: u32) -> Self {
        Self::new(IpAddr::V6(Ipv6Addr::from(gid)), scope_id)
    }

    /// The address, IPv4 or IPv6.
    #[must_use]
    #[inline]
    pub const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Index of the interface of a link-local address or a multicast group, else 0.
    #[must_use]
    #[inline]
    pub const fn scope_id(&self) -> u32 {
        self.scope_id
    }

    /// An IPv6 address that isn't an IPv4 one.
    #[must_use]
    #[inline]
    pub const fn is_ipv6(&self) -> bool {
        self.ip.is_ipv6()
    }

    /// A multicast group on an interface, 224.0.0.0/4 or ff00::/8.
    #[must_use]
    #[inline]
    pub const fn is_group(&self) -> bool {
        self.ip.is_multicast()
    }

    /// The GID of the address.
    #[must_use]
    #[inline]
    pub const fn gid(&self) -> [u8; 16] {
        gid_of(self.ip)
    }

    /// This address with a port.
    #[must_use]
    #[inline]
    pub const fn with_port(&self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(v4) => SocketAddr::V4(SocketAddrV4::new(v4, port)),
            IpAddr::V6(v6) => SocketAddr::V6(SocketAddrV6::new(v6, port, 0, self.scope_id)),
        }
    }
}

impl From<SocketAddr> for HostAddr {
    #[inline]
    fn from(address: SocketAddr) -> Self {
        let scope = if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 };
        Self::new(address.ip(), scope)
    }
}

impl fmt::Display for HostAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope_id {
            0 => write!(f, "{}", self.ip),
            scope => write!(f, "{}%{scope}", self.ip),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn mapped_ipv4_and_useless_scopes_are_normalised() {
        let mapped = HostAddr::from_gid(Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped().octets(), 4);
        assert_eq!(mapped, HostAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)), 0));
        assert_eq!(mapped.scope_id(), 0);
        let link: HostAddr = HostAddr::new("fe80::1".parse().unwrap(), 4);
        assert_eq!(link.scope_id(), 4);
        assert_eq!(link.to_string(), "fe80::1%4");
        assert_eq!(HostAddr::from_gid(link.gid(), 4), link);
        assert_eq!(mapped.gid(), Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped().octets());
    }
}
