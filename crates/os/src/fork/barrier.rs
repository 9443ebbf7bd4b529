//! Orders what a thread writes before what it then reads. Threads do this often, and pay nothing. The other side comes seldom, and
//! pays for all threads with membarrier(2): a fork, who takes something away from readers, who goes to sleep on a lock.

use crate::sync::{AtomicBool, Ordering, fence};
use crate::sys;
use std::sync::atomic::compiler_fence;
use std::time::Duration;

/// In this time at the latest a processor's writes are seen by the others, without an instruction that asks for it.
const TO_BE_SEEN: Duration = Duration::from_millis(1);

/// membarrier(2) orders the threads' words for others; otherwise each of them does, with a fence.
static BARRIER: AtomicBool = AtomicBool::new(false);

/// For a thread, between what it writes and what it then reads.
#[inline]
pub(crate) fn order() {
    if BARRIER.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// For who comes seldom, between what it writes and what it then reads of all threads.
pub(crate) fn order_all() {
    if BARRIER.load(Ordering::Relaxed) && !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        // A seccomp profile that came later: from here on the threads do it, and what they have written before comes to be seen.
        BARRIER.store(false, Ordering::SeqCst);
        sys::pause(TO_BE_SEEN);
    }
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
