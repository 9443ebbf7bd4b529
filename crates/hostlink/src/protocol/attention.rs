//! Whether a process watches its rings, so that what is left there is dealt with at once.

use crate::sync::{AtomicU64, Ordering, shared_words};

/// When a process looked at its rings last, in ticks of the processor's counter, shifted by one; 0: no thread watches them.
/// Bit 0: it is processing what it found there. Written by that process only, and by one thread at a time. A hint: an
/// initiator that acts on a stale one waits for the process, as for any packet.
#[derive(Default, Debug)]
#[repr(C)]
pub struct Attention(AtomicU64);

shared_words!(Attention { 0 });

const BUSY: u64 = 1;

impl Attention {
    /// The process looks at its rings now.
    #[inline]
    pub fn looks(&self, ticks: u64) {
        self.0.store(ticks << 1, Ordering::Relaxed);
    }

    /// What it has found takes a while.
    #[inline]
    pub fn works(&self, ticks: u64) {
        self.0.store(ticks << 1 | BUSY, Ordering::Relaxed);
    }

    /// No thread watches the rings any more.
    pub fn ends(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether the process looked less than `look` ticks from `now`, or found something less than `work` ticks from it.
    #[inline]
    pub fn is_given(&self, now: u64, look: u64, work: u64) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        // Processors may disagree by some ticks.
        let age = (now << 1).wrapping_sub(word & !BUSY).cast_signed() >> 1;
        word != 0 && age.unsigned_abs() < if word & BUSY == 0 { look } else { work }
    }
}
