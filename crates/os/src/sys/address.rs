//! Addresses in the kernel's form.

use super::KernelAddress;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// `sockaddr_in` or `sockaddr_in6`, told apart by the family both begin with.
#[derive(Clone, Copy)]
#[repr(C)]
pub union InetAddress {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl InetAddress {
    /// Bytes of the longer one.
    pub const SIZE: libc::socklen_t = size_of::<Self>() as libc::socklen_t;

    /// No address: room for the kernel to write one.
    #[must_use]
    pub const fn zeroed() -> Self {
        // SAFETY: all-zero bytes are valid for every member.
        unsafe { std::mem::zeroed() }
    }

    /// An address in the kernel's form.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
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

    /// The address; `None` for a family that isn't IP.
    #[must_use]
    pub fn socket_addr(&self) -> Option<SocketAddr> {
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
    fn kernel_form_round_trips() {
        for text in ["127.0.0.1:4791", "[fe80::2%7]:1", "[::1]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(InetAddress::new(address).socket_addr(), Some(address));
        }
        assert_eq!(InetAddress::zeroed().socket_addr(), None);
    }
}
