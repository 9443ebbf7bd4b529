//! The functions of librdmacm.

use std::ffi::{CStr, c_int, c_void};

use libc::{epoll_event, fd_set, iovec, msghdr, nfds_t, pollfd, sockaddr, socklen_t, timeval};

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
    pub(crate) fn rselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int;
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

/// The functions that came with rdma-core 61.
pub(crate) struct Repoll {
    pub(crate) create: unsafe extern "C-unwind" fn(c_int) -> c_int,
    pub(crate) ctl: unsafe extern "C-unwind" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int,
    pub(crate) wait: unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int,
}

/// None where librdmacm is older.
pub(crate) fn repoll() -> Option<Repoll> {
    let find = |name: &CStr| {
        // SAFETY: a C string.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    let (create, ctl, wait) = (find(c"repoll_create")?, find(c"repoll_ctl")?, find(c"repoll_wait")?);
    // SAFETY: the functions that librdmacm has by these names are of these types.
    unsafe {
        Some(Repoll {
            create: std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(c_int) -> c_int>(create),
            ctl: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C-unwind" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int,
            >(ctl),
            wait: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int,
            >(wait),
        })
    }
}
