//! Whether a process has to be woken for what another has left for it.

use crate::sync::{AtomicU64, Ordering, fence, shared_words};

/// Who sleeps in a process: bit 0 the background thread, above it the number of threads that wait for an event. Written
/// by that process only.
#[derive(Default, Debug)]
#[repr(C)]
pub struct Bell(AtomicU64);

shared_words!(Bell { 0 });

const BACKGROUND: u64 = 1;
const WAITER: u64 = 2;

impl Bell {
    /// The background thread is about to sleep. What was left before this is seen by a look after it; whoever leaves
    /// something later rings.
    pub fn background_sleeps(&self) {
        self.0.fetch_or(BACKGROUND, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The background thread is awake.
    pub fn background_wakes(&self) {
        self.0.fetch_and(!BACKGROUND, Ordering::SeqCst);
    }

    /// As [`Bell::background_sleeps`], for a thread that waits for an event. It may be cancelled in its sleep.
    pub fn waiter_sleeps(&self) {
        self.0.fetch_add(WAITER, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Such a thread is awake.
    pub fn waiter_wakes(&self) {
        let less = |value: u64| value.checked_sub(WAITER);
        // None is left when `forget_waiters` took it for one that was cancelled.
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// Threads that announced a sleep and never came back don't exist any more.
    pub fn forget_waiters(&self) {
        if self.0.load(Ordering::Relaxed) >= WAITER {
            self.0.fetch_and(BACKGROUND, Ordering::SeqCst);
        }
    }

    /// The background thread sleeps, and wakes at once for whatever is left.
    #[inline]
    pub fn wakes_background(&self) -> bool {
        self.0.load(Ordering::Relaxed) & BACKGROUND != 0
    }

    /// After something was left: does the process have to be woken?
    pub fn is_wanted(&self) -> bool {
        // Of this fence and that of a sleeper one comes first: what is before it, the other side sees.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }
}
