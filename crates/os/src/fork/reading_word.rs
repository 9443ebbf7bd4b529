//! The word by which a thread that removes something sees whether another thread is reading it. `tests/reading.rs` runs it through
//! loom.

use crate::atomics::{AtomicU32, Ordering};

/// Whether one thread is reading what other threads may remove. Only that thread writes it; a signal's handler that interrupts the
/// thread may read too. The low bits are the depth of nested reads, the others count the ends of reads.
#[derive(Debug)]
pub(crate) struct ReadingFlag(AtomicU32);

impl ReadingFlag {
    const DEPTH: u32 = 0xff;

    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// What the thread finds after this stays until [`ReadingFlag::leave`]. `order` keeps later loads from being executed before the
    /// store.
    #[inline]
    pub(crate) fn enter(&self, order: impl FnOnce()) {
        // Release: a thread that sees this value in place of the last `leave` must acquire the same.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Release);
        order();
    }

    /// The thread no longer uses what it has found.
    #[inline]
    pub(crate) fn leave(&self) {
        let word = self.0.load(Ordering::Relaxed) - 1;
        let once_more = if word & Self::DEPTH == 0 { Self::DEPTH + 1 } else { 0 };
        self.0.store(word.wrapping_add(once_more), Ordering::Release);
    }

    /// The word now. The caller has removed something, and has ordered that before this load.
    pub(crate) fn seen(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// The read that was in progress when the word was `seen` has ended.
    pub(crate) fn has_left(&self, seen: u32) -> bool {
        seen & Self::DEPTH == 0 || (self.seen() ^ seen) & !Self::DEPTH != 0
    }

    /// In the child of a fork, for a thread of the parent.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
