//! The words of a lock that one thread holds. `tests/lock.rs` runs them through loom.
//!
//! Freeing the lock writes one word and reads the other, with plain instructions: a thread that goes to sleep pays for the order
//! between the two, for all threads at once (membarrier(2)).

use crate::atomics::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;

/// The lock, and whether a thread sleeps on it.
#[derive(Debug)]
pub(crate) struct LockWords {
    state: AtomicU32,
    pub(crate) asleep: AtomicU32,
}

impl LockWords {
    /// The value of [`LockWords::asleep`] on which threads sleep until it changes.
    pub(crate) const ASLEEP: u32 = 1;
    const AWAKE: u32 = 0;

    /// A free lock, of words that are 0.
    pub(crate) const fn new(state: AtomicU32, asleep: AtomicU32) -> Self {
        Self { state, asleep }
    }

    /// Whether it looks free.
    pub(crate) fn is_free(&self) -> bool {
        self.state.load(Ordering::Relaxed) == FREE
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Frees it. `order` pairs with the `order_all` of [`LockWords::about_to_sleep`] (store buffering): either this thread sees a
    /// sleeper, or that one sees the free lock. True: the caller wakes all sleepers.
    #[inline]
    pub(crate) fn unlock(&self, order: impl FnOnce()) -> bool {
        self.state.store(FREE, Ordering::Release);
        order();
        if self.asleep.load(Ordering::Relaxed) == Self::AWAKE {
            return false;
        }
        // A thread that sets it again before the wakeup finds the lock free, or the thread that holds the lock by then sees the
        // word when it unlocks.
        self.asleep.store(Self::AWAKE, Ordering::Relaxed);
        true
    }

    /// The caller is about to sleep while `asleep` is [`LockWords::ASLEEP`]. `order_all` orders the store before the load of the
    /// lock, for all threads. False: the lock may be free.
    pub(crate) fn about_to_sleep(&self, order_all: impl FnOnce()) -> bool {
        self.asleep.store(Self::ASLEEP, Ordering::Relaxed);
        order_all();
        !self.is_free()
    }
}
