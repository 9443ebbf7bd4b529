//! Names and services: rdma_getaddrinfo(3), rdma_freeaddrinfo(3).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::zeroed;
use std::ptr::{self, null, null_mut};

use ferroce_abi::verbs::{IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND};
use ferroce_entry::call::{Outcome, Refusal, at_mut};
use ferroce_entry::entry;
use libc::{addrinfo, sockaddr, socklen_t};

use crate::abi::*;

/// Information that C programs free as C does.
pub(crate) struct Owned(pub(crate) *mut rdma_addrinfo);

// SAFETY: memory of the C library, which one thread has at a time.
unsafe impl Send for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made here, and given up.
        unsafe { free(self.0) };
    }
}

/// What rdma_resolve_addrinfo(3) has found.
#[derive(Default)]
pub(crate) enum AddrInfoLookup {
    #[default]
    None,
    /// It is looked for.
    Awaited,
    /// It can be queried once.
    Found(Owned),
}

/// Why there is no answer.
pub(crate) enum Failed {
    /// A number of getaddrinfo(3).
    Name(c_int),
    Refused(Refusal),
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A copy that C code can free.
///
/// # Safety
/// `from` is valid for `length` bytes.
unsafe fn copy<T>(from: *const T, length: usize) -> Outcome<*mut T> {
    // SAFETY: malloc has no precondition; the copy is as long as the memory.
    unsafe {
        let to = libc::malloc(length.max(1));
        if to.is_null() {
            return Err(Refusal::new(libc::ENOMEM, "no memory for address information"));
        }
        ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), length);
        Ok(to.cast())
    }
}

/// # Safety
/// `info` is null, or a list whose parts come from malloc.
unsafe fn free(mut info: *mut rdma_addrinfo) {
    // SAFETY: the caller's promise.
    unsafe {
        while let Some(this) = info.as_ref() {
            let next = this.ai_next;
            for part in [
                this.ai_src_addr.cast::<c_void>(),
                this.ai_dst_addr.cast(),
                this.ai_src_canonname.cast(),
                this.ai_dst_canonname.cast(),
                this.ai_route,
                this.ai_connect,
            ] {
                libc::free(part);
            }
            libc::free(info.cast());
            info = next;
        }
    }
}

/// New, empty information.
fn empty() -> Outcome<Owned> {
    // SAFETY: calloc has no precondition, and zeros are valid.
    let info: *mut rdma_addrinfo = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast();
    if info.is_null() {
        return Err(Refusal::new(libc::ENOMEM, "no memory for address information"));
    }
    Ok(Owned(info))
}

/// What the C library is asked for, by the hints of a program.
fn question(hints: Option<&rdma_addrinfo>) -> addrinfo {
    // SAFETY: numbers and pointers.
    let mut asked: addrinfo = unsafe { zeroed() };
    let Some(hints) = hints else { return asked };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        asked.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        asked.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.ai_family != AF_IB {
        asked.ai_family = hints.ai_family;
    }
    asked.ai_socktype = match hints.ai_qp_type {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    asked.ai_protocol = match (hints.ai_port_space, asked.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (RDMA_PS_UDP | RDMA_PS_IPOIB, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    asked
}

/// Takes the source, or another address of the hints, over.
///
/// # Safety
/// `from` is null or valid for `length` bytes.
unsafe fn take(from: *const sockaddr, length: socklen_t) -> Outcome<(*mut sockaddr, socklen_t)> {
    if from.is_null() || length == 0 {
        return Ok((null_mut(), 0));
    }
    // SAFETY: the caller's promise.
    Ok((unsafe { copy(from, length as usize) }?, length))
}

/// Information about a name and a service.
///
/// # Safety
/// The hints' addresses have the lengths in the hints.
pub(crate) unsafe fn find(
    node: Option<&CStr>,
    service: Option<&CStr>,
    hints: Option<&rdma_addrinfo>,
) -> Result<Owned, Failed> {
    let info = empty()?;
    // SAFETY: just made, and the caller's promise.
    unsafe {
        let to = &mut *info.0;
        if let Some(hints) = hints {
            to.ai_flags = hints.ai_flags & RAI_PASSIVE;
            to.ai_family = hints.ai_family;
            to.ai_qp_type = hints.ai_qp_type;
            to.ai_port_space = hints.ai_port_space;
        }
        if node.is_none() && service.is_none() {
            let Some(hints) = hints else {
                return Err(Refusal::invalid(
                    "node, service and hints are NULL: at least one of them must be set",
                )
                .into());
            };
            (to.ai_src_addr, to.ai_src_len) = take(hints.ai_src_addr, hints.ai_src_len)?;
            (to.ai_dst_addr, to.ai_dst_len) = take(hints.ai_dst_addr, hints.ai_dst_len)?;
        } else {
            let is_passive = to.ai_flags & RAI_PASSIVE != 0;
            resolve(to, is_passive, node, service, hints)?;
        }
        let is_datagram = to.ai_qp_type == IBV_QPT_UD;
        if to.ai_port_space == 0 {
            to.ai_port_space = if is_datagram { RDMA_PS_UDP } else { RDMA_PS_TCP };
        }
        if to.ai_qp_type == 0 {
            to.ai_qp_type = if to.ai_port_space == RDMA_PS_UDP { IBV_QPT_UD } else { IBV_QPT_RC };
        }
    }
    Ok(info)
}

/// Asks the C library, whose first answer counts.
///
/// # Safety
/// As [`find`].
unsafe fn resolve(
    to: &mut rdma_addrinfo,
    is_passive: bool,
    node: Option<&CStr>,
    service: Option<&CStr>,
    hints: Option<&rdma_addrinfo>,
) -> Result<(), Failed> {
    let asked = question(hints);
    let pointer = |text: Option<&CStr>| text.map_or(null(), CStr::as_ptr);
    let mut found: *mut addrinfo = null_mut();
    // It may ask a server: a fork doesn't wait for that.
    // SAFETY: strings, a question and a place for the answer.
    let code = ferroce_os::fork::outside_library(|| unsafe {
        libc::getaddrinfo(pointer(node), pointer(service), &raw const asked, &raw mut found)
    });
    if code != 0 {
        return Err(Failed::Name(code));
    }
    // SAFETY: an answer has an entry; it is freed after the last look at it.
    unsafe {
        let first = &*found;
        to.ai_family = first.ai_family;
        if to.ai_qp_type == 0 {
            to.ai_qp_type = if first.ai_socktype == libc::SOCK_DGRAM { IBV_QPT_UD } else { IBV_QPT_RC };
        }
        let taken = take(first.ai_addr, first.ai_addrlen);
        libc::freeaddrinfo(found);
        if is_passive {
            (to.ai_src_addr, to.ai_src_len) = taken?;
        } else {
            (to.ai_dst_addr, to.ai_dst_len) = taken?;
            if let Some(hints) = hints {
                (to.ai_src_addr, to.ai_src_len) = take(hints.ai_src_addr, hints.ai_src_len)?;
            }
        }
    }
    Ok(())
}

/// # Safety
/// `text` is null or a string.
pub(crate) unsafe fn string<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

entry! {
    fn rdma_getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
        res: *mut *mut rdma_addrinfo,
    ) -> minus_one {
        // SAFETY: by the man page strings, hints, and the caller's variable.
        unsafe {
            let res = at_mut(res, "res")?;
            let found = find(string(node), string(service), hints.as_ref());
            match found {
                Ok(info) => {
                    *res = info.0;
                    std::mem::forget(info);
                    Ok(0)
                }
                Err(Failed::Name(code)) => {
                    let why = CStr::from_ptr(libc::gai_strerror(code)).to_string_lossy();
                    tracing::warn!(code, "rdma_getaddrinfo: {why}");
                    Ok(code)
                }
                Err(Failed::Refused(refusal)) => Err(refusal),
            }
        }
    }
}

entry! {
    fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) -> value () = (), {
        // SAFETY: by the man page a list of `rdma_getaddrinfo`.
        unsafe { free(res) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(
        node: Option<&CStr>,
        service: Option<&CStr>,
        hints: Option<&rdma_addrinfo>,
    ) -> Result<Owned, c_int> {
        // SAFETY: strings, and hints without addresses.
        unsafe { find(node, service, hints) }.map_err(|failed| match failed {
            Failed::Name(code) => code,
            Failed::Refused(refusal) => refusal.errno,
        })
    }

    fn hints(flags: c_int, qp_type: c_int, space: c_int) -> rdma_addrinfo {
        // SAFETY: numbers and pointers.
        let mut hints: rdma_addrinfo = unsafe { zeroed() };
        (hints.ai_flags, hints.ai_qp_type, hints.ai_port_space) = (flags, qp_type, space);
        hints
    }

    #[test]
    fn a_service_without_a_node_is_one_to_listen_at() {
        let info = found(None, Some(c"7174"), Some(&hints(RAI_PASSIVE, 0, RDMA_PS_TCP))).expect("an answer");
        // SAFETY: an answer.
        let info = unsafe { &*info.0 };
        assert_eq!(
            (info.ai_flags, info.ai_qp_type, info.ai_port_space),
            (RAI_PASSIVE, IBV_QPT_RC, RDMA_PS_TCP)
        );
        assert!(info.ai_dst_addr.is_null() && info.ai_dst_len == 0 && info.ai_next.is_null());
        // SAFETY: an address.
        let address = unsafe { crate::address::read(info.ai_src_addr, "src") }.expect("an address");
        assert!(address.ip().is_unspecified() && address.port() == 7174);
    }

    #[test]
    fn a_node_is_a_destination() {
        let datagrams = hints(RAI_NUMERICHOST, IBV_QPT_UD, RDMA_PS_UDP);
        for (hints, qp_type, space) in
            [(None, IBV_QPT_RC, RDMA_PS_TCP), (Some(&datagrams), IBV_QPT_UD, RDMA_PS_UDP)]
        {
            let info = found(Some(c"10.1.2.3"), Some(c"80"), hints).expect("an answer");
            // SAFETY: an answer.
            let info = unsafe { &*info.0 };
            assert_eq!((info.ai_qp_type, info.ai_port_space, info.ai_dst_len), (qp_type, space, 16));
            assert!(info.ai_src_addr.is_null());
        }
    }

    #[test]
    fn what_says_nothing_is_refused() {
        assert_eq!(found(None, None, None).err(), Some(libc::EINVAL));
        let numeric = hints(RAI_NUMERICHOST, 0, 0);
        assert_eq!(found(Some(c"no number"), None, Some(&numeric)).err(), Some(libc::EAI_NONAME));
    }
}
