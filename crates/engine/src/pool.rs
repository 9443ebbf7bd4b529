//! Buffers that threads need while they are at work, kept for the next one.

use ferroce_os::sync::{Mutex, class};

/// Buffers that aren't in use.
#[derive(Debug)]
pub struct Pool<T>(Mutex<class::WorkPool, Vec<T>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Pool<T> {
    /// More than this many are freed.
    const KEPT: usize = 8;

    /// Buffers that were used before, else those that `make` makes.
    #[inline]
    pub fn take(&self, make: impl FnOnce() -> T) -> T {
        let unused = self.0.lock().pop();
        unused.unwrap_or_else(make)
    }

    /// Keeps buffers for the next [`Pool::take`].
    #[inline]
    pub fn put(&self, buffers: T) {
        let mut pool = self.0.lock();
        if pool.len() < Self::KEPT {
            pool.push(buffers);
        }
    }
}
