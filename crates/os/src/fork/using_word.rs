//! The word in which a thread names what it is using, for the thread that takes that away. `tests/using.rs` runs it through loom.

use crate::atomics::{AtomicU64, Ordering};

/// What one thread is using that other threads may take away, by name. Only that thread writes it; a handler of a signal that interrupts
/// the thread may use something too.
///
/// Bit 0: in use. Bits 1 to 31 count uses. Bits 32 to 63: the name.
#[derive(Debug)]
pub(crate) struct Using(AtomicU64);

impl Using {
    const IN_USE: u64 = 1;
    /// The count, with [`Using::IN_USE`] as its lowest bit.
    const COUNT: u64 = u32::MAX as u64;

    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// If the thread finds what has this name after this, it stays until [`Using::leave`]. `order` keeps what the thread reads afterwards
    /// from being read before. False: the thread is using something already.
    #[inline]
    pub(crate) fn enter(&self, name: u32, order: impl FnOnce()) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        if word & Self::IN_USE != 0 {
            return false;
        }
        // Release: a thread that reads this word in place of the last `leave` sees that use complete.
        self.0.store(u64::from(name) << 32 | word & Self::COUNT | Self::IN_USE, Ordering::Release);
        order();
        true
    }

    /// The thread no longer uses what it has found.
    #[inline]
    pub(crate) fn leave(&self) {
        let count = (self.0.load(Ordering::Relaxed) & Self::COUNT).wrapping_add(1) & Self::COUNT;
        self.0.store(count, Ordering::Release);
    }

    /// The word now, for a thread that has taken something away and has ordered that before this look.
    pub(crate) fn seen(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether the thread was using the thing with this name when the word was `seen`.
    pub(crate) fn names(seen: u64, name: u32) -> bool {
        seen & Self::IN_USE != 0 && seen >> 32 == u64::from(name)
    }

    /// The use that was in progress when the word was `seen` has ended.
    pub(crate) fn has_left(&self, seen: u64) -> bool {
        seen & Self::IN_USE == 0 || self.seen() != seen
    }

    /// In the child of a fork, for a thread of the parent.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
