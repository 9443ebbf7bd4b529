//! The order between a thread's word and the gate: the fork pays for it (membarrier(2)), not the threads.

use crate::sync::{AtomicBool, Ordering, fence};
use std::sync::atomic::compiler_fence;

/// membarrier(2) orders the threads' words for a fork; otherwise each of them does, with a fence.
static BARRIER: AtomicBool = AtomicBool::new(false);

/// For a thread, between what it writes and what it then reads.
#[inline]
pub(super) fn order() {
    if BARRIER.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// For a fork, between what it writes and what it then reads of all threads.
pub(super) fn order_all() {
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    fence(Ordering::SeqCst);
}

/// In each process anew.
pub(super) fn register() {
    if membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        BARRIER.store(true, Ordering::Release);
    }
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: takes no pointer.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
