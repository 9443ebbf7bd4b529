//! The word by which who takes something away sees who is reading it. `tests/reading.rs` runs it through loom.

use crate::atomics::{AtomicU32, Ordering};

/// Whether one thread is reading what others may take away. Only that thread writes it; a handler of a signal that interrupts
/// the thread may read too. The low bits count how deep the thread is in it, the others how often it has come out.
#[derive(Debug)]
pub(crate) struct Reading(AtomicU32);

impl Reading {
    const DEPTH: u32 = 0xff;

    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// What the thread finds after this stays until [`Reading::leave`]. `order` keeps what it reads afterwards from being read before.
    #[inline]
    pub(crate) fn enter(&self, order: impl FnOnce()) {
        // Who sees this in place of the last `leave` is to know as much.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Release);
        order();
    }

    /// The thread uses nothing any more of what it has found.
    #[inline]
    pub(crate) fn leave(&self) {
        let word = self.0.load(Ordering::Relaxed) - 1;
        let once_more = if word & Self::DEPTH == 0 { Self::DEPTH + 1 } else { 0 };
        self.0.store(word.wrapping_add(once_more), Ordering::Release);
    }

    /// The word now, for who has taken something away and has ordered that before this look.
    pub(crate) fn seen(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Whatever the thread was reading when the word was `seen`, it isn't any more.
    pub(crate) fn has_left(&self, seen: u32) -> bool {
        seen & Self::DEPTH == 0 || (self.seen() ^ seen) & !Self::DEPTH != 0
    }

    /// In the child of a fork, of a thread that isn't there.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
