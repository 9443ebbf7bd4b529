//! The functions of librdmacm.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use crate::real::{errno, set_errno};
use libc::{iovec, msghdr, nfds_t, pollfd, sockaddr, socklen_t};

/// Numbers from this on stay ordinary sockets.
pub(crate) const MOST: usize = 1 << 16;

pub(crate) const SOL_RDMA: c_int = 0x10000;
pub(crate) const RDMA_SQSIZE: c_int = 0;
pub(crate) const RDMA_RQSIZE: c_int = 1;
pub(crate) const RDMA_INLINE: c_int = 2;

unsafe extern "C-unwind" {
    pub(crate) fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    pub(crate) fn rbind(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int;
    pub(crate) fn rlisten(fd: c_int, backlog: c_int) -> c_int;
    pub(crate) fn raccept(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int;
    pub(crate) fn rconnect(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int;
    pub(crate) fn rshutdown(fd: c_int, how: c_int) -> c_int;
    pub(crate) fn rclose(fd: c_int) -> c_int;
    pub(crate) fn rrecv(fd: c_int, buffer: *mut c_void, length: usize, flags: c_int) -> isize;
    pub(crate) fn rrecvfrom(
        fd: c_int,
        buffer: *mut c_void,
        length: usize,
        flags: c_int,
        name: *mut sockaddr,
        name_length: *mut socklen_t,
    ) -> isize;
    pub(crate) fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
    pub(crate) fn rsend(fd: c_int, buffer: *const c_void, length: usize, flags: c_int) -> isize;
    pub(crate) fn rsendto(
        fd: c_int,
        buffer: *const c_void,
        length: usize,
        flags: c_int,
        name: *const sockaddr,
        name_length: socklen_t,
    ) -> isize;
    pub(crate) fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize;
    pub(crate) fn rread(fd: c_int, buffer: *mut c_void, length: usize) -> isize;
    pub(crate) fn rreadv(fd: c_int, pieces: *const iovec, count: c_int) -> isize;
    pub(crate) fn rwrite(fd: c_int, buffer: *const c_void, length: usize) -> isize;
    pub(crate) fn rwritev(fd: c_int, pieces: *const iovec, count: c_int) -> isize;
    pub(crate) fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    pub(crate) fn rgetpeername(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int;
    pub(crate) fn rgetsockname(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int;
    pub(crate) fn rsetsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        length: socklen_t,
    ) -> c_int;
    pub(crate) fn rgetsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        length: *mut socklen_t,
    ) -> c_int;
    pub(crate) fn rfcntl(fd: c_int, command: c_int, ...) -> c_int;
}

/// Our librdmacm's option for what the kernel is to find at a number; its value means nothing.
const SHOWN: c_int = 0x4652;
/// How many bytes of a stream can be received.
const UNREAD: c_int = 0x4653;
/// What marks a thread as librdmacm's during a call, of all sockets.
const MARK: c_int = 0x4654;

/// How many bytes can be received; None of a datagram socket.
pub(crate) fn unread(rs: c_int) -> Option<c_int> {
    let (mut value, mut length) = (0 as c_int, size_of::<c_int>() as socklen_t);
    // SAFETY: places of these lengths.
    let result = unsafe { rgetsockopt(rs, SOL_RDMA, UNREAD, (&raw mut value).cast(), &raw mut length) };
    (result == 0).then_some(value)
}

/// A new rsocket with the sizes that the environment sets. With librdmacm of rdma-core there is none, since the kernel can't poll it. Called
/// [inside](crate::inside): the first call marks nothing.
pub(crate) fn new(domain: c_int, kind: c_int, protocol: c_int) -> Option<c_int> {
    let mark: extern "C" fn(c_int) -> c_int = crate::inside::mark;
    // SAFETY: an rsocket, and a value of this length.
    unsafe {
        let new = rsocket(domain, kind, protocol);
        if new < 0 {
            return None;
        }
        let is_fit = (new as usize) < MOST
            && can_be_shown(new)
            && rsetsockopt(new, SOL_RDMA, MARK, (&raw const mark).cast(), size_of_val(&mark) as socklen_t)
                == 0;
        if !is_fit {
            let why = errno();
            rclose(new);
            set_errno(why);
            return None;
        }
        set_sizes(new);
        Some(new)
    }
}

/// Whether the kernel can poll the rsocket. With librdmacm of rdma-core it can't.
fn can_be_shown(rs: c_int) -> bool {
    let (mut value, mut length) = (0 as c_int, size_of::<c_int>() as socklen_t);
    // SAFETY: an rsocket, and places of these lengths.
    unsafe { rgetsockopt(rs, SOL_RDMA, SHOWN, (&raw mut value).cast(), &raw mut length) == 0 }
}

/// Has the kernel find at the rsocket's numbers what it is ready for, as of now and from now on.
pub(crate) fn show(rs: c_int) {
    let value: c_int = 1;
    // SAFETY: an rsocket, and a value of this length.
    unsafe {
        rsetsockopt(rs, SOL_RDMA, SHOWN, (&raw const value).cast(), size_of::<c_int>() as socklen_t);
    }
}

/// Sizes that the environment sets.
fn sizes() -> &'static [(c_int, c_int)] {
    static SIZES: OnceLock<Vec<(c_int, c_int)>> = OnceLock::new();
    SIZES.get_or_init(|| {
        let value = |name: &str| std::env::var(name).ok()?.trim().parse().ok();
        [("RS_SQ_SIZE", RDMA_SQSIZE), ("RS_RQ_SIZE", RDMA_RQSIZE), ("RS_INLINE", RDMA_INLINE)]
            .into_iter()
            .filter_map(|(name, option)| Some((option, value(name)?)))
            .collect()
    })
}

/// Gives an rsocket the sizes that the environment sets.
fn set_sizes(rs: c_int) {
    for (option, value) in sizes() {
        // SAFETY: an rsocket, and a value of this length.
        unsafe { rsetsockopt(rs, SOL_RDMA, *option, (&raw const *value).cast(), 4) };
    }
}
