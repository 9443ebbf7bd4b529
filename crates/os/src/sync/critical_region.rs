//! A lock that is held from one call to another, while the program's own code runs in between.

use super::RawLock;
use crate::fork::{self, InChild};
use crate::rank::Class;
use lock_api::RawMutex;
use std::cell::UnsafeCell;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A value that only the thread in the region uses. No other part of the adapter ever waits for the region: neither the transport's
/// work nor a fork.
pub struct CriticalRegion<C, T> {
    lock: RawLock<C>,
    /// The thread in the region, with [`IN_USE`] while it uses the value; 0: none.
    owner: AtomicUsize,
    value: UnsafeCell<T>,
}

/// The owner is using the value.
const IN_USE: usize = 1;

// SAFETY: only the thread that `owner` names reaches `value` (see `CriticalRegion::with`), and `T` may go between threads.
unsafe impl<C, T: Send> Sync for CriticalRegion<C, T> {}

impl<C: Class, T: Default> CriticalRegion<C, T> {
    /// A region without a thread.
    #[must_use]
    pub fn new() -> Self {
        Self { lock: RawLock::INIT, owner: AtomicUsize::new(0), value: UnsafeCell::default() }
    }

    /// Enters the region. Waits until no other thread is in it, however long that takes.
    pub fn enter(&self) {
        if !self.lock.try_lock() {
            // The thread in the region runs the program's code, for as long as the program likes; a fork doesn't wait for it.
            fork::outside_library(|| self.lock.lock());
        }
        self.owner.store(this_thread(), Ordering::Relaxed);
    }

    /// Uses the value. `None`: this thread isn't in the region, or is using the value already.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        /// Resets the owner, also after a panic.
        struct Used<'a>(&'a AtomicUsize, usize);
        impl Drop for Used<'_> {
            fn drop(&mut self) {
                self.0.store(self.1, Ordering::Relaxed);
            }
        }

        let this = this_thread();
        // No other thread stores this thread's number, and this thread removes it before it leaves.
        if self.owner.load(Ordering::Relaxed) != this {
            return None;
        }
        self.owner.store(this | IN_USE, Ordering::Relaxed);
        let _used = Used(&self.owner, this);
        // SAFETY: this thread is in the region, others get in after it has left, and a nested call of `with` has
        // returned `None` above.
        Some(f(unsafe { &mut *self.value.get() }))
    }

    /// Leaves the region. False: this thread isn't in it, or is using the value.
    pub fn leave(&self) -> bool {
        let is_owner = self.owner.load(Ordering::Relaxed) == this_thread();
        if is_owner {
            self.free();
        }
        is_owner
    }

    fn free(&self) {
        self.owner.store(0, Ordering::Relaxed);
        // SAFETY: the caller is in the region, or in a child without the thread that was.
        unsafe { self.lock.unlock() };
    }

    /// In the child of a fork: frees the region from a thread that this process doesn't have. That thread may have left the value
    /// half written, so the value is replaced by the default without being dropped.
    pub fn after_fork(&self, _: &InChild) {
        let owner = self.owner.load(Ordering::Relaxed);
        if owner & !IN_USE == this_thread() {
            return;
        }
        if owner != 0 {
            // SAFETY: the owner is a thread of the parent's, and the child has one thread, which is here.
            std::mem::forget(std::mem::take(unsafe { &mut *self.value.get() }));
        }
        // Also without an owner: a thread of the parent may have been about to enter.
        self.free();
    }
}

impl<C: Class, T: Default> Default for CriticalRegion<C, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C, T> fmt::Debug for CriticalRegion<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CriticalRegion").field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// Different for all threads that run at one time, and kept over a fork. Even: it's an address of a structure.
#[inline]
fn this_thread() -> usize {
    // SAFETY: takes nothing and always succeeds.
    unsafe { libc::pthread_self() as usize }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::class;
    use std::sync::Arc;

    type Region = CriticalRegion<class::CriticalRegion, Vec<u32>>;

    #[test]
    fn only_the_thread_in_the_region_uses_the_value_and_leaves() {
        let region = Arc::new(Region::new());
        assert_eq!((region.with(|_| ()), region.leave()), (None, false), "no thread is in it");
        region.enter();
        region.with(|value| value.push(7));
        let other = region.clone();
        let refused = std::thread::spawn(move || (other.with(|_| ()), other.leave()));
        assert_eq!(refused.join().unwrap(), (None, false), "another thread is in it");
        assert_eq!(region.with(|value| value.clone()), Some(vec![7]));
        assert!(region.leave());
        assert_eq!((region.with(|_| ()), region.leave()), (None, false), "it has been left");
    }

    #[test]
    fn the_value_is_used_once_at_a_time_also_after_a_panic() {
        let region = Region::new();
        region.enter();
        let within = region.with(|_| (region.with(|_| ()), region.leave()));
        assert_eq!(within, Some((None, false)));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            region.with(|_| panic!("in the middle"));
        }));
        assert!(panicked.is_err());
        assert_eq!(region.with(|value| value.len()), Some(0));
        assert!(region.leave());
    }

    #[test]
    fn who_comes_meanwhile_waits() {
        let region = Arc::new(Region::new());
        region.enter();
        let other = region.clone();
        let waits = std::thread::spawn(move || {
            other.enter();
            let seen = other.with(|value| value.clone());
            (seen, other.leave())
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        region.with(|value| value.push(1));
        assert!(region.leave());
        assert_eq!(waits.join().unwrap(), (Some(vec![1]), true));
    }
}
