//! The background thread's sleep: whoever leaves something for it knows whether to wake it.

use crate::sync::{AtomicU64, Ordering, fence};

/// When the background thread, asleep, will wake up by itself; 0 while it is awake or has been woken.
#[derive(Debug)]
pub(crate) struct Sleep(AtomicU64);

impl Default for Sleep {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Sleep {
    /// Announces a sleep until `until`. Then looks with `due` when the first thing has to be done, and says until when
    /// to sleep. What is left before this look is seen by it; whoever leaves something later sees the announcement.
    pub(crate) fn begin(&self, until: u64, due: impl FnOnce() -> u64) -> u64 {
        self.0.swap(until, Ordering::AcqRel);
        // Of this fence and that of `interrupt` one comes first: what is before it, the other side sees.
        fence(Ordering::SeqCst);
        until.min(due())
    }

    /// The sleep is over.
    pub(crate) fn end(&self) {
        self.0.swap(0, Ordering::AcqRel);
    }

    /// Whether the caller has to wake the thread for something due at `at` that it has left already. True once per sleep.
    #[inline]
    pub(crate) fn interrupt(&self, at: u64) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) > at && self.0.swap(0, Ordering::AcqRel) != 0
    }
}
