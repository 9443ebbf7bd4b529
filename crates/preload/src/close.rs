//! close(2) and its relatives: the adapter's descriptors, which the program hasn't opened, aren't the program's to close.
//!
//! Daemons close all descriptors. The adapter's own calls don't come by here, so every call here is the program's: a
//! descriptor of ours counts as not open. Only libibverbs.so.1 knows which descriptors are ours: it passes a function for
//! that (`protect`) when it makes the first.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::real::{real, set_errno};

/// Whether a number is one of the adapter's.
type IsOurs = extern "C" fn(c_int) -> bool;

static IS_OURS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Called by libibverbs.so.1, by name.
#[unsafe(export_name = "ferroce_p_ferroce_protect_descriptors")]
extern "C" fn protect(is_ours: IsOurs) {
    IS_OURS.store(is_ours as *mut c_void, Ordering::Release);
}

fn is_ours(fd: c_int) -> bool {
    let known = IS_OURS.load(Ordering::Acquire);
    if known.is_null() {
        return false;
    }
    // SAFETY: `protect` has stored a function of this type, of a library that is never unloaded.
    let known: IsOurs = unsafe { std::mem::transmute(known) };
    known(fd)
}

#[unsafe(export_name = "ferroce_p_close")]
extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_ours(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    real!(c"close", fn(c_int) -> c_int, (fd))
}

/// Closes, or marks, the numbers between ours.
fn close_between(first: c_uint, last: c_uint, mut close: impl FnMut(c_uint, c_uint) -> c_int) -> c_int {
    /// No number of ours is above it.
    const HIGHEST: c_uint = 1 << 16;
    let mut from = first;
    for fd in (first..=last.min(HIGHEST)).filter(|&fd| is_ours(fd as c_int)) {
        if from < fd && close(from, fd - 1) != 0 {
            return -1;
        }
        from = fd + 1;
    }
    if from <= last { close(from, last) } else { 0 }
}

#[unsafe(export_name = "ferroce_p_close_range")]
extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let close = |first, last| real!(c"close_range", fn(c_uint, c_uint, c_int) -> c_int, (first, last, flags));
    // A range the wrong way round is the kernel's to refuse.
    if first > last { close(first, last) } else { close_between(first, last, close) }
}

#[unsafe(export_name = "ferroce_p_closefrom")]
extern "C-unwind" fn closefrom(first: c_int) {
    let first = first.max(0) as c_uint;
    let closed = close_between(first, c_uint::MAX, |first, last| {
        real!(c"close_range", fn(c_uint, c_uint, c_int) -> c_int, (first, last, 0))
    });
    if closed != 0 {
        // Before Linux 5.9 or glibc 2.34: one by one, up to the highest number there can be.
        // SAFETY: takes no pointer.
        let highest = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) }.clamp(0, 1 << 20) as c_uint;
        (first..highest).for_each(|fd| _ = close(fd as c_int));
    }
}

/// A descriptor of ours can't be replaced: dup2(2) documents EBUSY for a number that another thread is just opening.
fn is_refused(new: c_int) -> bool {
    let refused = is_ours(new);
    if refused {
        set_errno(libc::EBUSY);
    }
    refused
}

#[unsafe(export_name = "ferroce_p_dup2")]
extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    if is_refused(new) {
        return -1;
    }
    real!(c"dup2", fn(c_int, c_int) -> c_int, (old, new))
}

#[unsafe(export_name = "ferroce_p_dup3")]
extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if is_refused(new) {
        return -1;
    }
    real!(c"dup3", fn(c_int, c_int, c_int) -> c_int, (old, new, flags))
}
