//! The note that a thread has posted an unsignaled request to a queue pair that has had no signaled ones.

use super::PATIENCE;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// There was such a request: in most programs there is none.
static EVER: AtomicBool = AtomicBool::new(false);

thread_local! {
    static PLACE: u8 = const { 0 };
}

/// An address that no other running thread has here.
fn this_thread() -> usize {
    PLACE.with(|place| std::ptr::from_ref(place) as usize)
}

/// Whether there was such a request.
#[inline]
pub(super) fn was_ever_posted() -> bool {
    EVER.load(Ordering::Relaxed)
}

/// The thread that has posted an unsignaled request to a queue pair that has had no signaled ones, and the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unasked {
    /// [`this_thread`].
    thread: usize,
    at: Instant,
}

impl Unasked {
    pub(super) fn now() -> Self {
        EVER.store(true, Ordering::Relaxed);
        Self { thread: this_thread(), at: Instant::now() }
    }

    /// This thread did.
    pub(super) fn is_own(&self) -> bool {
        self.thread == this_thread()
    }

    /// This thread did, long ago.
    pub(super) fn is_old_and_own(&self) -> bool {
        self.is_own() && self.at.elapsed() >= PATIENCE
    }
}
