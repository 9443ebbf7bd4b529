//! The words by which a fork finds the threads inside the library, and they find the fork. `tests/gate.rs` runs them through loom.

use crate::atomics::{AtomicU32, Ordering};

/// The process was made by a system call, past the C library's fork: the kernel has wiped the word (MADV_WIPEONFORK).
pub(crate) const WIPED: u32 = 0;
/// Threads come and go.
pub(crate) const OPEN: u32 = 1;
/// A fork is in progress, or about to be.
pub(crate) const CLOSED: u32 = 2;
/// What this process has inherited can't be trusted: no thread enters any more.
pub(crate) const UNUSABLE: u32 = 3;

/// How deep one thread is in the library. Only that thread writes it; a signal's handler that interrupts the thread leaves it as it
/// was.
#[derive(Debug)]
pub(crate) struct Presence(AtomicU32);

impl Presence {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Counts one more call. `order` keeps the later load of the gate from being executed before the store.
    #[inline]
    pub(crate) fn enter(&self, order: impl FnOnce()) {
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        order();
    }

    /// Counts one call less. Release: a fork that reads this sees what the thread has done before.
    #[inline]
    pub(crate) fn leave(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) - 1, Ordering::Release);
    }

    /// Leaves all calls at once, for [`Presence::come_back`] with the number that this returns.
    pub(crate) fn step_out(&self) -> u32 {
        let depth = self.0.load(Ordering::Relaxed);
        self.0.store(0, Ordering::Release);
        depth
    }

    pub(crate) fn come_back(&self, depth: u32, order: impl FnOnce()) {
        self.0.store(depth, Ordering::Relaxed);
        order();
    }

    /// How deep the thread is. 0: it holds no lock, and everything it has written is complete.
    pub(crate) fn depth(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// In the child of a fork, for a thread of the parent.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Closes an open gate; an error contains the word of a gate that isn't open. The caller then orders this before it reads the
/// [`Presence`] of other threads.
pub(crate) fn close(gate: &AtomicU32) -> Result<(), u32> {
    gate.compare_exchange(OPEN, CLOSED, Ordering::Acquire, Ordering::Relaxed).map(drop)
}
