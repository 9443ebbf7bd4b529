//! An asymmetric barrier: orders a thread's store before its later load. The frequent side ([`order`]) costs nothing. The rare side
//! ([`order_all`]) runs membarrier(2) for all threads: a fork, the removal of an object that has readers, a sleep on a lock.

use crate::atomics::{AtomicBool, Ordering, fence};
use crate::sys;
use std::sync::atomic::compiler_fence;
use std::time::Duration;

/// Within this time a CPU's stores become visible to other CPUs without a barrier.
const TO_BE_SEEN: Duration = Duration::from_millis(1);

/// Whether membarrier(2) works. If not, each thread uses a fence.
static BARRIER: AtomicBool = AtomicBool::new(false);

/// The frequent side: between a thread's store and its later load.
#[inline]
pub(crate) fn order() {
    // SYNC: both pair with `order_all`.
    if BARRIER.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The rare side: between a store and a later load of words that other threads store.
pub(crate) fn order_all() {
    // SYNC: pairs with the compiler fence of `order`.
    if BARRIER.load(Ordering::Relaxed) && !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        // A later seccomp profile refuses membarrier(2): threads use fences from now on, and their earlier stores become visible in the pause.
        BARRIER.store(false, Ordering::SeqCst);
        sys::pause(TO_BE_SEEN);
    }
    // SYNC: pairs with the fence of `order`. Models: `crates/os/tests/gate.rs`.
    fence(Ordering::SeqCst);
}

/// Registers this process for membarrier(2); a fork's child registers again.
pub(super) fn register() {
    // SYNC: no partner: the registration lets `order_all` use the expedited command.
    if membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        BARRIER.store(true, Ordering::Release);
    }
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: takes no pointer.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
