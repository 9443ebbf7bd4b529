//! Conversion between C socket addresses and [`SocketAddr`].

use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use ferroce_entry::call::{Outcome, Refusal};
use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::abi::AF_IB;

/// The family of an address.
///
/// # Safety
/// `address` points to a `sockaddr`.
pub(crate) unsafe fn family_of(address: *const sockaddr) -> c_int {
    // SAFETY: the caller's promise; the structure may lie at any address.
    c_int::from(unsafe { (&raw const (*address).sa_family).read_unaligned() })
}

/// An address that a program passes.
///
/// # Errors
/// EINVAL for NULL and for a family that isn't IPv4's or IPv6's.
///
/// # Safety
/// `address` is null or points to an address of its family's length.
pub(crate) unsafe fn read(address: *const sockaddr, what: &'static str) -> Outcome<SocketAddr> {
    if address.is_null() {
        return Err(Refusal::invalid(format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    unsafe {
        match family_of(address) {
            libc::AF_INET => {
                let from: sockaddr_in = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(from.sin_addr.s_addr));
                Ok(SocketAddrV4::new(ip, u16::from_be(from.sin_port)).into())
            }
            libc::AF_INET6 => {
                let from: sockaddr_in6 = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(from.sin6_addr.s6_addr);
                let port = u16::from_be(from.sin6_port);
                Ok(SocketAddrV6::new(ip, port, from.sin6_flowinfo, from.sin6_scope_id).into())
            }
            AF_IB => Err(Refusal::new(
                libc::ENODEV,
                format!("{what} is an AF_IB address: devices are found by IP addresses"),
            )),
            other => Err(Refusal::invalid(format!("{what} is of family {other}: AF_INET and AF_INET6"))),
        }
    }
}

/// The C structure of an address, and how long it is.
pub(crate) fn to_c(address: SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: numbers only.
    let mut to: sockaddr_storage = unsafe { zeroed() };
    let place = &raw mut to;
    let length = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: numbers only; a `sockaddr_storage` has room for any address, and its alignment.
            unsafe {
                let mut c: sockaddr_in = zeroed();
                c.sin_family = libc::AF_INET as u16;
                c.sin_port = v4.port().to_be();
                c.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                place.cast::<sockaddr_in>().write(c);
            }
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            unsafe {
                let mut c: sockaddr_in6 = zeroed();
                c.sin6_family = libc::AF_INET6 as u16;
                c.sin6_port = v6.port().to_be();
                c.sin6_flowinfo = v6.flowinfo();
                c.sin6_addr.s6_addr = v6.ip().octets();
                c.sin6_scope_id = v6.scope_id();
                place.cast::<sockaddr_in6>().write(c);
            }
            size_of::<sockaddr_in6>()
        }
    };
    (to, length as socklen_t)
}

/// The scope of a link-local address: the interface's index.
pub(crate) fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

/// The unspecified address of the same family.
pub(crate) fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// With this address in place of the one it has.
pub(crate) fn with_ip(address: SocketAddr, ip: IpAddr, scope_id: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(ip) => SocketAddrV4::new(ip, address.port()).into(),
        IpAddr::V6(ip) => {
            let flow = if let SocketAddr::V6(v6) = address { v6.flowinfo() } else { 0 };
            SocketAddrV6::new(ip, address.port(), flow, scope_id).into()
        }
    }
}

/// Stands for every address of this host (librdmacm takes loopback addresses for that, too).
pub(crate) fn is_any(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_unspecified() || ip.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were_shown() {
        for text in ["10.1.2.3:4791", "[fd00::1%7]:80", "[::]:0"] {
            let address: SocketAddr = text.parse().expect("an address");
            let (c, length) = to_c(address);
            assert_eq!(length as usize, if address.is_ipv4() { 16 } else { 28 });
            // SAFETY: a whole address.
            assert_eq!(unsafe { read((&raw const c).cast(), "addr") }.expect("a family"), address);
        }
    }

    #[test]
    fn other_families_are_refused() {
        // SAFETY: numbers only.
        let mut c: sockaddr_storage = unsafe { zeroed() };
        for (family, errno) in
            [(libc::AF_UNIX, libc::EINVAL), (AF_IB, libc::ENODEV), (libc::AF_UNSPEC, libc::EINVAL)]
        {
            c.ss_family = family as u16;
            // SAFETY: a whole address.
            assert_eq!(unsafe { read((&raw const c).cast(), "addr") }.expect_err("no family").errno, errno);
        }
    }
}
