//! repoll_create, repoll_ctl and repoll_wait: epoll(7), also for rsockets. A set is the kernel's, which finds at a number that is shown
//! what the rsocket is ready for.

use std::collections::HashSet;
use std::ffi::c_int;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

use libc::epoll_event;

use crate::call::{Outcome, Refusal};
use crate::table::find;

/// Sets that rclose closes.
static SETS: Mutex<Option<HashSet<RawFd>>> = Mutex::new(None);

/// As epoll_create1(2).
pub(crate) fn create(flags: c_int) -> Outcome<c_int> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::epoll_create1(flags) };
    if fd < 0 {
        return Err(Refusal::last("epoll_create1"));
    }
    SETS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(fd);
    Ok(fd)
}

/// Ends a set; whether there was one. One that was closed otherwise is forgotten when its number is made a socket's.
pub(crate) fn close(fd: c_int) -> bool {
    let is_set = forget(fd);
    if is_set {
        // SAFETY: a descriptor that was made for the program, which ends it by this.
        unsafe { libc::close(fd) };
    }
    is_set
}

/// The number isn't a set's, or not any more; whether it was one.
pub(crate) fn forget(fd: RawFd) -> bool {
    SETS.lock().unwrap_or_else(PoisonError::into_inner).as_mut().is_some_and(|sets| sets.remove(&fd))
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
    if let Some(socket) = find(fd) {
        socket.show()?;
    }
    // SAFETY: the caller's promise.
    match unsafe { libc::epoll_ctl(set, operation, fd, event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().into()),
    }
}
