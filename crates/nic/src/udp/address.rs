//! Addresses of this host and of peers, in Rust's form and the kernel's.

use crate::sys::KernelAddress;
use ferroce_wire::ROCE_V2_PORT;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// An address of a host or a multicast group, as a GID names it: IPv4 is never in its IPv6-mapped form here, and a scope
/// is there exactly for link-local IPv6 and for groups.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HostAddr {
    ip: IpAddr,
    scope_id: u32,
}

impl HostAddr {
    /// `scope_id` is the interface's index; it is dropped where it means nothing.
    #[must_use]
    pub fn new(ip: IpAddr, scope_id: u32) -> Self {
        let ip = ip.to_canonical();
        let scoped = ip.is_multicast() || matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        Self { ip, scope_id: if scoped { scope_id } else { 0 } }
    }

    /// From the 16 bytes of a RoCE v2 GID.
    #[must_use]
    pub fn from_gid(gid: [u8; 16], scope_id: u32) -> Self {
        Self::new(IpAddr::V6(Ipv6Addr::from(gid)), scope_id)
    }

    /// The address, IPv4 or IPv6.
    #[must_use]
    pub const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Index of the interface of a link-local address or a multicast group, else 0.
    #[must_use]
    pub const fn scope_id(&self) -> u32 {
        self.scope_id
    }

    /// An IPv6 address that isn't an IPv4 one.
    #[must_use]
    pub const fn is_ipv6(&self) -> bool {
        self.ip.is_ipv6()
    }

    /// A multicast group on an interface, 224.0.0.0/4 or ff00::/8.
    #[must_use]
    pub const fn is_group(&self) -> bool {
        self.ip.is_multicast()
    }

    /// The 16 bytes of a GID: IPv4 as `::ffff:a.b.c.d`.
    #[must_use]
    pub const fn gid(&self) -> [u8; 16] {
        match self.ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        }
    }

    /// This address with a port.
    #[must_use]
    pub const fn with_port(&self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(v4) => SocketAddr::V4(SocketAddrV4::new(v4, port)),
            IpAddr::V6(v6) => SocketAddr::V6(SocketAddrV6::new(v6, port, 0, self.scope_id)),
        }
    }

    pub(crate) fn kernel(&self, port: u16) -> InetAddress {
        InetAddress::new(self.with_port(port))
    }

    pub(crate) fn roce(&self) -> InetAddress {
        self.kernel(ROCE_V2_PORT)
    }
}

impl From<SocketAddr> for HostAddr {
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

/// `sockaddr_in` or `sockaddr_in6`, told apart by the family both begin with.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union InetAddress {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl InetAddress {
    pub(crate) const SIZE: libc::socklen_t = size_of::<Self>() as libc::socklen_t;

    pub(crate) const fn zeroed() -> Self {
        // SAFETY: all-zero bytes are valid for every member.
        unsafe { std::mem::zeroed() }
    }

    pub(crate) fn new(address: SocketAddr) -> Self {
        let mut this = Self::zeroed();
        match address {
            SocketAddr::V4(a) => {
                this.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                    sin_zero: [0; 8],
                };
            }
            SocketAddr::V6(a) => {
                this.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: a.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                };
            }
        }
        this
    }

    /// `None` for a family that isn't IP.
    pub(crate) fn socket_addr(&self) -> Option<SocketAddr> {
        // SAFETY: `family` is the first field of every member, and a union is initialised in full by `zeroed`.
        match i32::from(unsafe { self.family }) {
            libc::AF_INET => {
                // SAFETY: plain integers, initialised.
                let a = unsafe { self.v4 };
                let ip = Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(a.sin_port))))
            }
            libc::AF_INET6 => {
                // SAFETY: plain integers, initialised.
                let a = unsafe { self.v6 };
                let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
                let port = u16::from_be(a.sin6_port);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, a.sin6_flowinfo, a.sin6_scope_id)))
            }
            _ => None,
        }
    }
}

// SAFETY: the union is 28 bytes and `length` is the size of the member that `family` names, so at most that.
unsafe impl KernelAddress for InetAddress {
    fn pointer(&self) -> *const libc::sockaddr {
        std::ptr::from_ref(self).cast()
    }

    fn length(&self) -> libc::socklen_t {
        // SAFETY: as in `socket_addr`.
        if i32::from(unsafe { self.family }) == libc::AF_INET {
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        } else {
            Self::SIZE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn kernel_form_round_trips() {
        for text in ["127.0.0.1:4791", "[fe80::2%7]:1", "[::1]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(InetAddress::new(address).socket_addr(), Some(address));
        }
        assert_eq!(InetAddress::zeroed().socket_addr(), None);
    }
}
