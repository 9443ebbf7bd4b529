//! A value that is read without a lock, and replaced now and then.

use super::{ForkReader, wait_for_readers};
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
    pub fn get<'a>(&'a self, _reader: &'a ForkReader) -> Option<&'a T> {
        // SAFETY: null, or of an `Arc` that stays until `Replaced` has waited for this reader.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// As [`Published::get`], to be kept, if it is one that is `wanted`.
    #[inline]
    #[must_use]
    pub fn keep(&self, wanted: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        let _reader = ForkReader::enter()?;
        let value = self.0.load(Ordering::Acquire).cast_const();
        // SAFETY: null, or of an `Arc`, as above.
        if !unsafe { value.as_ref() }.is_some_and(wanted) {
            return None;
        }
        // SAFETY: of an `Arc`; one more that stands for it.
        unsafe {
            Arc::increment_strong_count(value);
            Some(Arc::from_raw(value))
        }
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

    /// Sets the value if there is none. Several threads may call this at a time.
    pub fn fill(&self, value: &Arc<T>) {
        let new = Arc::into_raw(value.clone()).cast_mut();
        if self.0.compare_exchange(null_mut(), new, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: just made from an `Arc`, and no other thread has it.
            drop(unsafe { Arc::from_raw(new) });
        }
    }

    /// Sets another value, or none. The old one is dropped, after a grace period, with what this returns: before that, the caller
    /// frees the locks that look-ups need.
    #[must_use]
    pub fn replace(&self, value: Option<Arc<T>>) -> Replaced<T> {
        let new = value.map_or(null_mut(), |value| Arc::into_raw(value).cast_mut());
        Replaced(self.0.swap(new, Ordering::AcqRel))
    }
}

/// A value that readers can no longer find, but may still use.
#[derive(Debug)]
pub struct Replaced<T>(*mut T);

impl<T> Drop for Replaced<T> {
    fn drop(&mut self) {
        // If a reader stays beyond the limit, the value is never dropped.
        if !self.0.is_null() && wait_for_readers() {
            // SAFETY: made of an `Arc` by `Published`, and no reader finds it.
            drop(unsafe { Arc::from_raw(self.0) });
        }
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        drop(self.replace(None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::time::{Duration, Instant};

    /// Counts drops, and marks itself as dropped: no reader may see that.
    struct Value(Arc<AtomicUsize>, AtomicBool);

    impl Drop for Value {
        fn drop(&mut self) {
            self.1.store(true, Ordering::Relaxed);
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_value_that_is_replaced_is_dropped_when_nobody_reads_it() {
        let (published, dropped) = (Arc::new(Published::default()), Arc::new(AtomicUsize::new(0)));
        let value = || Arc::new(Value(dropped.clone(), AtomicBool::new(false)));
        let first = value();
        published.fill(&first);
        published.fill(&value());
        assert_eq!((published.is(&first), dropped.load(Ordering::Relaxed)), (true, 1));
        drop(first);
        let until = Instant::now() + Duration::from_millis(50);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let published = published.clone();
                std::thread::spawn(move || {
                    let _inside = crate::fork::enter_library();
                    while Instant::now() < until {
                        let reader = ForkReader::enter().expect("it is in the library");
                        let is_gone = |value: &Value| value.1.load(Ordering::Relaxed);
                        assert!(!published.get(&reader).is_some_and(is_gone));
                        drop(reader);
                        assert!(!published.keep(|_| true).is_some_and(|value| is_gone(&value)));
                    }
                })
            })
            .collect();
        let mut replaced = 2;
        while Instant::now() < until {
            drop(published.replace(Some(value())));
            replaced += 1;
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        drop(published.replace(None));
        assert!(published.is_empty() && dropped.load(Ordering::Relaxed) == replaced);
    }
}
