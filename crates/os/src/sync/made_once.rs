//! A value that is made once, without a lock that a fork could leave taken.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that the first call makes, or finds that there is none. It is never freed.
#[derive(Debug)]
pub struct MadeOnce<T: 'static>(
    /// Null: not asked for yet. Dangling: there is none. Else: a leaked box.
    AtomicPtr<T>,
);

impl<T: Send + Sync> MadeOnce<T> {
    /// Not asked for yet.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Self {
        const { assert!(size_of::<T>() > 0, "a box of nothing is dangling too") };
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// The value, made by `make` at the first call. Threads that come first at once all call `make`; one's value is kept.
    #[inline]
    pub fn get(&'static self, make: impl FnOnce() -> Option<T>) -> Option<&'static T> {
        let mut found = self.0.load(Ordering::Acquire);
        if found.is_null() {
            found = self.make(make);
        }
        if found == Self::none() {
            return None;
        }
        // SAFETY: neither null nor the mark for "none", so it is a box that was leaked by `make` and never freed; the
        // Acquire load pairs with the Release store that published it.
        Some(unsafe { &*found })
    }

    #[cold]
    fn make(&self, make: impl FnOnce() -> Option<T>) -> *mut T {
        let made = make().map_or(Self::none(), |value| Box::into_raw(Box::new(value)));
        match self.0.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(other) => {
                if made != Self::none() {
                    // SAFETY: made from a box just above, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(made) });
                }
                other
            }
        }
    }

    fn none() -> *mut T {
        NonNull::dangling().as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::MadeOnce;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn the_first_value_stays() {
        static VALUE: MadeOnce<u32> = MadeOnce::new();
        assert_eq!(VALUE.get(|| Some(1)), Some(&1));
        assert_eq!(VALUE.get(|| None), Some(&1));
        static NOTHING: MadeOnce<u32> = MadeOnce::new();
        assert_eq!(NOTHING.get(|| None), None);
        assert_eq!(NOTHING.get(|| Some(1)), None);
    }

    #[test]
    fn threads_agree_on_one_value() {
        static VALUE: MadeOnce<String> = MadeOnce::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let get = || VALUE.get(|| Some(NEXT.fetch_add(1, Ordering::Relaxed).to_string())).unwrap();
        let seen = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4).map(|_| s.spawn(get)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(seen.iter().all(|v| std::ptr::eq(*v, get())));
    }
}
