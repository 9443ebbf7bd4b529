//! The background thread's sleep: a thread that leaves a deadline or a job knows whether to wake it.

use crate::sync::{AtomicU64, Ordering, fence};

/// When the sleeping background thread wakes without a wakeup; 0 while it is awake or has been woken.
#[derive(Debug)]
pub(crate) struct Sleep(AtomicU64);

impl Default for Sleep {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Sleep {
    /// Announces a sleep until `until`. Then reads the first deadline with `due`, and returns when the sleep ends. A deadline that is
    /// set before `due` runs is seen by it; a thread that sets one later sees the announcement.
    pub(crate) fn begin(&self, until: u64, due: impl FnOnce() -> u64) -> u64 {
        self.0.swap(until, Ordering::AcqRel);
        // SYNC: pairs with `Sleep::interrupt` (store buffering): either `due` sees the other thread's deadline, or `interrupt` sees `until`.
        // Model: `a_deadline_set_while_the_background_thread_falls_asleep_is_kept`.
        fence(Ordering::SeqCst);
        until.min(due())
    }

    /// The sleep is over.
    pub(crate) fn end(&self) {
        self.0.swap(0, Ordering::AcqRel);
    }

    /// Whether the caller must wake the thread for a deadline `at` that it has set. True once per sleep.
    #[inline]
    pub(crate) fn interrupt(&self, at: u64) -> bool {
        // SYNC: pairs with `Sleep::begin` and `Lease::nap`: the caller has stored its deadline before.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) > at && self.0.swap(0, Ordering::AcqRel) != 0
    }
}
