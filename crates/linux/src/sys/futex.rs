//! futex(2), between threads of one process.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` is `value`, until [`wake`] is called for it, `limit` is over, or for no reason.
pub fn sleep(word: &AtomicU32, value: u32, limit: Option<Duration>) {
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word and a timeout, or none, that outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, limit) };
}

/// Wakes at most `count` of the threads that sleep on `word`. Nothing is read there: the word may be gone already.
#[expect(clippy::not_unsafe_ptr_arg_deref, reason = "nothing is read there")]
pub fn wake(word: *const AtomicU32, count: i32) {
    // SAFETY: the kernel takes the address as the name of a queue of sleepers.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, count) };
}
