//! Whether a process must be woken for cells that another process has published.

use crate::sync::{AtomicU64, Ordering, fence, shared_words};

/// The sleeping threads of a process: bit 0 the background thread, above it the number of threads that wait for an event. Written
/// by that process only.
#[derive(Default, Debug)]
#[repr(C)]
pub struct Bell(AtomicU64);

shared_words!(Bell { 0 });

const BACKGROUND: u64 = 1;
const WAITER: u64 = 2;

impl Bell {
    /// The background thread is about to sleep, and checks for cells after this call. A process that publishes a cell later rings.
    pub fn background_sleeps(&self) {
        self.0.fetch_or(BACKGROUND, Ordering::SeqCst);
        // SYNC: pairs with `Bell::is_wanted`. Model: `the_background_thread_that_falls_asleep_is_woken`.
        fence(Ordering::SeqCst);
    }

    /// The background thread is awake.
    pub fn background_wakes(&self) {
        self.0.fetch_and(!BACKGROUND, Ordering::SeqCst);
    }

    /// As [`Bell::background_sleeps`], for a thread that waits for an event. It may be cancelled in its sleep.
    pub fn waiter_sleeps(&self) {
        self.0.fetch_add(WAITER, Ordering::SeqCst);
        // SYNC: pairs with `Bell::is_wanted`. Model: `a_waiter_that_falls_asleep_is_woken`.
        fence(Ordering::SeqCst);
    }

    /// Such a thread is awake.
    pub fn waiter_wakes(&self) {
        let less = |value: u64| value.checked_sub(WAITER);
        // The count is 0 if `forget_waiters` mistook this thread for a cancelled one.
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// Clears the count of waiters, after those that are in it were cancelled in their sleep.
    pub fn forget_waiters(&self) {
        if self.0.load(Ordering::Relaxed) >= WAITER {
            self.0.fetch_and(BACKGROUND, Ordering::SeqCst);
        }
    }

    /// Whether the background thread sleeps, and wakes immediately for a cell.
    #[inline]
    pub fn wakes_background(&self) -> bool {
        self.0.load(Ordering::Relaxed) & BACKGROUND != 0
    }

    /// For a process that has published a cell or written a result: whether this process must be woken.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        // SYNC: pairs with `Bell::background_sleeps` and `Bell::waiter_sleeps` (store buffering): either the sleeper sees the cell or the result,
        // or this thread sees the bit.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }
}
