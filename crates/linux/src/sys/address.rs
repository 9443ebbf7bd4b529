//! Addresses in the kernel's form.

use super::KernelAddress;
use std::mem::offset_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// `sockaddr_in` or `sockaddr_in6`, distinguished by the family that both begin with.
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

/// An abstract UNIX name (unix(7)).
#[derive(Clone, Copy)]
pub struct AbstractName {
    address: libc::sockaddr_un,
    length: libc::socklen_t,
}

impl AbstractName {
    /// The name `text`, of which 107 bytes count.
    #[must_use]
    pub fn new(text: &str) -> Self {
        // SAFETY: all-zero bytes are a valid sockaddr_un.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        // The first byte stays zero: abstract.
        let path = &mut address.sun_path[1..];
        let used = text.len().min(path.len());
        for (to, from) in path.iter_mut().zip(text.bytes()) {
            *to = from as libc::c_char;
        }
        let length = offset_of!(libc::sockaddr_un, sun_path) + 1 + used;
        Self { address, length: length as libc::socklen_t }
    }

    /// The name, without the zero before it.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let used = self.length as usize - offset_of!(libc::sockaddr_un, sun_path) - 1;
        self.address.sun_path[1..][..used].iter().map(|&byte| byte as u8).collect()
    }
}

// SAFETY: `length` is at most the size of `address`.
unsafe impl KernelAddress for AbstractName {
    fn pointer(&self) -> *const libc::sockaddr {
        std::ptr::from_ref(&self.address).cast()
    }

    fn length(&self) -> libc::socklen_t {
        self.length
    }
}

macro_rules! whole {
    ($($(#[$doc:meta])* $name:ident($address:ident);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name(libc::$address);

        // SAFETY: a structure of its own size.
        unsafe impl KernelAddress for $name {
            fn pointer(&self) -> *const libc::sockaddr {
                (&raw const self.0).cast()
            }

            fn length(&self) -> libc::socklen_t {
                size_of::<libc::$address>() as libc::socklen_t
            }
        }
    )*};
}

whole! {
    /// What a packet socket is bound to (packet(7)).
    LinkAddress(sockaddr_ll);
    /// What a netlink socket is bound to (netlink(7)).
    NetlinkAddress(sockaddr_nl);
}

impl LinkAddress {
    /// Frames of `protocol` (an EtherType, or 0 for none) on an interface.
    #[must_use]
    pub const fn new(ifindex: u32, protocol: u16) -> Self {
        Self(libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol.to_be(),
            sll_ifindex: ifindex as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        })
    }
}

impl NetlinkAddress {
    /// A number of the kernel's choice, subscribed to `groups` (a mask).
    #[must_use]
    pub const fn new(groups: u32) -> Self {
        // SAFETY: sockaddr_nl consists of integers, for which all zeros is a value.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = groups;
        Self(address)
    }

    /// The kernel, and no process.
    #[must_use]
    pub const fn is_kernel(&self) -> bool {
        self.0.nl_pid == 0
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
