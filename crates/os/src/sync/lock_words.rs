//! The words of a lock that one thread holds. `tests/lock.rs` runs them through loom.
//!
//! Who frees the lock writes one word and reads the other, with plain instructions: who goes to sleep pays for the order between the
//! two, for all threads at once (membarrier(2)).

use crate::atomics::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;

/// The lock, and whether anybody sleeps on it.
#[derive(Debug)]
pub(crate) struct LockWords {
    state: AtomicU32,
    pub(crate) asleep: AtomicU32,
}

impl LockWords {
    /// The value of [`LockWords::asleep`] that a sleeper waits for the change of.
    pub(crate) const ASLEEP: u32 = 1;
    const AWAKE: u32 = 0;

    /// A lock that is free, of words that are 0.
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

    /// Frees it. `order` keeps the look at who sleeps from being before that. True: all who sleep have to be woken.
    #[inline]
    pub(crate) fn unlock(&self, order: impl FnOnce()) -> bool {
        self.state.store(FREE, Ordering::Release);
        order();
        if self.asleep.load(Ordering::Relaxed) == Self::AWAKE {
            return false;
        }
        // Who sets it again before the wake-up finds the lock free, or leaves the word to who has it now.
        self.asleep.store(Self::AWAKE, Ordering::Relaxed);
        true
    }

    /// The caller is about to sleep while `asleep` is [`LockWords::ASLEEP`]. `order_all` orders this before the look at the lock, for
    /// all threads. False: the lock may be free.
    pub(crate) fn about_to_sleep(&self, order_all: impl FnOnce()) -> bool {
        self.asleep.store(Self::ASLEEP, Ordering::Relaxed);
        order_all();
        !self.is_free()
    }
}
