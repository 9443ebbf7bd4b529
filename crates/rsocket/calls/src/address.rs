//! Addresses as C passes them.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::call::{Outcome, SocketRefusal};

/// Addresses that are the identifiers of RDMA ports.
pub const AF_IB: c_int = 27;
/// The length of such an address.
const SOCKADDR_IB: usize = 48;

/// The length of an address of this family.
fn length_of(family: c_int) -> Option<usize> {
    match family {
        libc::AF_INET => Some(size_of::<sockaddr_in>()),
        libc::AF_INET6 => Some(size_of::<sockaddr_in6>()),
        AF_IB => Some(SOCKADDR_IB),
        _ => None,
    }
}

/// No address.
pub fn nothing(family: c_int) -> sockaddr_storage {
    // SAFETY: integers only, of which zeros are a value.
    let mut name: sockaddr_storage = unsafe { std::mem::zeroed() };
    name.ss_family = family as libc::sa_family_t;
    name
}

/// Reads an address that a program passes.
///
/// # Safety
/// `name` is null or readable for `length` bytes.
pub unsafe fn read(name: *const sockaddr, length: socklen_t) -> Outcome<sockaddr_storage> {
    let given = length as usize;
    if name.is_null() || given < size_of::<libc::sa_family_t>() {
        return Err(SocketRefusal::new(libc::EINVAL, "no address"));
    }
    // SAFETY: the caller's promise.
    let family = c_int::from(unsafe { ptr::read_unaligned(name.cast::<libc::sa_family_t>()) });
    let needed = length_of(family)
        .ok_or_else(|| SocketRefusal::new(libc::EAFNOSUPPORT, "the address is of no family of rsockets"))?;
    if given < needed {
        return Err(SocketRefusal::new(libc::EINVAL, "the address is too short"));
    }
    let mut copy = nothing(family);
    // SAFETY: the caller's promise; a `sockaddr_storage` has room for each family.
    unsafe { ptr::copy_nonoverlapping(name.cast::<u8>(), (&raw mut copy).cast(), needed) };
    Ok(copy)
}

/// Writes an address to a program's memory, as much of it as there is room for.
///
/// # Safety
/// Both are null, or `length` is valid and `name` writable for `*length` bytes.
pub unsafe fn write(from: &sockaddr_storage, name: *mut sockaddr, length: *mut socklen_t) {
    if name.is_null() || length.is_null() {
        return;
    }
    let whole = length_of(from.ss_family.into()).unwrap_or(size_of::<libc::sa_family_t>());
    // SAFETY: the caller's promise.
    unsafe {
        let room = (*length as usize).min(whole);
        ptr::copy_nonoverlapping((&raw const *from).cast::<u8>(), name.cast(), room);
        *length = whole as socklen_t;
    }
}

/// As Rust has it; `None` for another family than IPv4 and IPv6.
pub fn to_rust(name: &sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: an address of this family.
            let v4 = unsafe { &*(&raw const *name).cast::<sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family.
            let v6 = unsafe { &*(&raw const *name).cast::<sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, u32::from_be(v6.sin6_flowinfo), v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// As C has it.
pub fn of_rust(address: SocketAddr) -> sockaddr_storage {
    match address {
        SocketAddr::V4(v4) => {
            let mut name = nothing(libc::AF_INET);
            // SAFETY: a `sockaddr_storage` has room for it.
            let to = unsafe { &mut *(&raw mut name).cast::<sockaddr_in>() };
            to.sin_port = v4.port().to_be();
            to.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            name
        }
        SocketAddr::V6(v6) => {
            let mut name = nothing(libc::AF_INET6);
            // SAFETY: a `sockaddr_storage` has room for it.
            let to = unsafe { &mut *(&raw mut name).cast::<sockaddr_in6>() };
            to.sin6_port = v6.port().to_be();
            to.sin6_addr.s6_addr = v6.ip().octets();
            to.sin6_flowinfo = v6.flowinfo().to_be();
            to.sin6_scope_id = v6.scope_id();
            name
        }
    }
}

/// The length of an address in C.
pub fn c_length(name: &sockaddr_storage) -> socklen_t {
    length_of(name.ss_family.into()).unwrap_or(0) as socklen_t
}

/// The address of any host.
pub fn unspecified(domain: c_int) -> SocketAddr {
    let ip: IpAddr =
        if domain == libc::AF_INET6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        for text in ["192.0.2.7:7471", "[2001:db8::7]:7471", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(to_rust(&of_rust(address)), Some(address));
        }
    }

    #[test]
    fn short_and_foreign_addresses_are_refused() {
        let name = of_rust("192.0.2.7:7471".parse().expect("an address"));
        let pointer = (&raw const name).cast::<sockaddr>();
        // SAFETY: readable for these lengths.
        let errno_of = |length| unsafe { read(pointer, length) }.map(|_| ()).map_err(|refusal| refusal.errno);
        assert_eq!((errno_of(16), errno_of(15), errno_of(0)), (Ok(()), Err(libc::EINVAL), Err(libc::EINVAL)));
        let unix = nothing(libc::AF_UNIX);
        // SAFETY: readable for this length.
        let refused = unsafe { read((&raw const unix).cast(), 100) };
        assert_eq!(refused.map(|_| ()).map_err(|refusal| refusal.errno), Err(libc::EAFNOSUPPORT));
    }
}
