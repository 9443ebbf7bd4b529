//! repoll_create, repoll_ctl and repoll_wait: epoll(7), also for rsockets. A set is the kernel's, which finds at a number that is shown
//! what the rsocket is ready for.

use std::ffi::c_int;
use std::io;
use std::time::Instant;

use libc::epoll_event;

use crate::table;
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal};
use ferroce_rsocket_calls::waiting::{not_restarted, readable, sleep};

/// As epoll_create1(2).
pub(crate) fn create(flags: c_int) -> Outcome<c_int> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::epoll_create1(flags) };
    if fd < 0 {
        return Err(SocketRefusal::last("epoll_create1"));
    }
    table::add_set(fd);
    Ok(fd)
}

/// Ends a set; whether there was one. One that was closed otherwise is forgotten when its number is made a socket's.
pub(crate) fn close(fd: c_int) -> bool {
    let is_set = table::forget_set(fd);
    if is_set {
        // SAFETY: a descriptor that was made for the program, which ends it by this.
        unsafe { libc::close(fd) };
    }
    is_set
}

/// As epoll_ctl(2).
///
/// # Safety
/// `event` is null or valid.
pub(crate) unsafe fn control(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> Outcome<()> {
    if let Some(socket) = table::find(fd) {
        socket.show()?;
    }
    // SAFETY: the caller's promise.
    match unsafe { libc::epoll_ctl(set, operation, fd, event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().into()),
    }
}

/// As epoll_wait(2).
///
/// # Safety
/// `events` is valid for `most`, or is refused.
pub(crate) unsafe fn wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    until: Option<Instant>,
) -> Outcome<c_int> {
    loop {
        // SAFETY: the caller's promise.
        match unsafe { libc::epoll_wait(set, events, most, 0) } {
            -1 => return Err(SocketRefusal::last("epoll_wait")),
            0 if until.is_none_or(|until| Instant::now() < until) => {}
            ready => return Ok(ready),
        }
        sleep(vec![readable(set)], until).map_err(not_restarted)?;
    }
}
