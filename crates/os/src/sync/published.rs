//! A value that is read without a lock, and replaced now and then.

use super::{Reader, wait_for_readers};
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value, or none. One thread at a time replaces it.
pub struct Published<T>(AtomicPtr<T>);

impl<T> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Published")
    }
}

impl<T> Default for Published<T> {
    fn default() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }
}

// SAFETY: it is an `Arc`, which threads share and drop.
unsafe impl<T: Send + Sync> Send for Published<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Published<T> {}

impl<T> Published<T> {
    /// The value, while `reader` lives.
    #[inline]
    #[must_use]
    pub fn get<'a>(&'a self, _reader: &'a Reader) -> Option<&'a T> {
        // SAFETY: null, or of an `Arc` that stays until who takes it away has waited for this reader.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// As [`Published::get`], to be kept, if it is one that is `wanted`.
    #[inline]
    #[must_use]
    pub fn keep(&self, wanted: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        let reader = Reader::enter()?;
        self.get(&reader).filter(|value| wanted(value)).map(|value| {
            // SAFETY: of an `Arc`, as above; one more that stands for it.
            unsafe {
                Arc::increment_strong_count(value);
                Arc::from_raw(value)
            }
        })
    }

    /// There is no value.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }

    /// Whether this is the value.
    #[must_use]
    pub fn is(&self, value: &Arc<T>) -> bool {
        std::ptr::eq(self.0.load(Ordering::Relaxed), Arc::as_ptr(value))
    }

    /// Has it this value where it has none. Several threads may do it at a time.
    pub fn fill(&self, value: &Arc<T>) {
        let new = Arc::into_raw(value.clone()).cast_mut();
        if self.0.compare_exchange(null_mut(), new, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: just made of an `Arc`, and nobody has it.
            drop(unsafe { Arc::from_raw(new) });
        }
    }

    /// Puts another value, or none, in its place. When it returns nobody uses the old one by way of this.
    pub fn replace(&self, value: Option<Arc<T>>) {
        let new = value.map_or(null_mut(), |value| Arc::into_raw(value).cast_mut());
        let old = self.0.swap(new, Ordering::AcqRel);
        if !old.is_null() {
            wait_for_readers();
            // SAFETY: made of an `Arc` here before, and nobody finds it any more.
            drop(unsafe { Arc::from_raw(old) });
        }
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        self.replace(None);
    }
}
