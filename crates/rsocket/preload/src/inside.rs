//! Whether a thread is the program's or librdmacm's, whose own sockets are ordinary ones.
//!
//! A call of librdmacm marks its thread itself, and takes the mark off before the handler of a signal runs: a handler may use the program's
//! sockets, and needn't return. The work of this library runs with signals held back.

use std::cell::Cell;
use std::ffi::c_int;
use std::{mem, ptr};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The mark that librdmacm sets and takes off.
pub(crate) extern "C" fn mark(value: c_int) -> c_int {
    c_int::from(INSIDE.replace(value != 0))
}

pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// All that the thread does is librdmacm's.
pub(crate) fn belongs_to_librdmacm() {
    INSIDE.set(true);
}

unsafe extern "C-unwind" {
    /// A thread that was cancelled ends in it where its cancellation is asynchronous.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    /// A handler may end its thread.
    fn pthread_sigmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int;
}
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Runs `work` of this library, which doesn't wait. No signal comes meanwhile but those of faults.
pub(crate) fn held<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: zeros are a set.
    let mut all: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: a valid set.
    unsafe {
        libc::sigfillset(&raw mut all);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS] {
            libc::sigdelset(&raw mut all, fault);
        }
    }
    without(&all, work)
}

/// Runs `work` that may wait: signals that end or stop the process do so at once.
pub(crate) fn handlers_held<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: valid sets, numbers of signals, and places for the answers.
    let handled = unsafe {
        let (mut handled, mut action): (libc::sigset_t, libc::sigaction) = (mem::zeroed(), mem::zeroed());
        for signal in 1..=libc::SIGRTMAX() {
            let is_known = libc::sigaction(signal, ptr::null(), &raw mut action) == 0;
            if is_known && !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
                libc::sigaddset(&raw mut handled, signal);
            }
        }
        handled
    };
    without(&handled, work)
}

fn without<R>(signals: &libc::sigset_t, work: impl FnOnce() -> R) -> R {
    let mut cancellation = 0;
    // SAFETY: valid sets, and places for the answers.
    let before = unsafe {
        let mut before: libc::sigset_t = mem::zeroed();
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancellation);
        pthread_sigmask(libc::SIG_BLOCK, &raw const *signals, &raw mut before);
        before
    };
    let result = work();
    // First what the handlers, which may not return, find.
    // SAFETY: what the thread had.
    unsafe {
        pthread_setcancelstate(cancellation, ptr::null_mut());
        pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
    }
    result
}

/// Runs `work` of this library that uses ordinary sockets.
pub(crate) fn inside<R>(work: impl FnOnce() -> R) -> R {
    held(|| marked(work))
}

/// The same without holding signals back, which the caller does.
pub(crate) fn marked<R>(work: impl FnOnce() -> R) -> R {
    let before = INSIDE.replace(true);
    let result = work();
    INSIDE.set(before);
    result
}
