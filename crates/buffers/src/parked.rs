//! A value that one guard at a time has for itself.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A value that is used again.
pub trait Reset: Default {
    /// Releases what it owns.
    fn reset(&mut self);
}

#[derive(Default)]
struct Place<T> {
    /// A guard exists.
    lent: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: a guard alone accesses the value, and there is one at a time: it moves the value to its thread and back, by `lent`.
unsafe impl<T: Send> Sync for Place<T> {}

/// The place of a large value that is made and dropped again and again. It stays where it is: what moves is a [`ParkedGuard`], of the size of
/// a pointer, and no memory is allocated for it while the guard before is gone.
#[derive(Default)]
pub struct Parked<T>(Arc<Place<T>>);

impl<T: Reset> Parked<T> {
    /// Lends the value, as [`Reset::reset`] has left it. While a guard exists, or if it was forgotten, the next one gets a new value.
    #[inline]
    pub fn lend(&mut self) -> ParkedGuard<T> {
        // Pairs with the store of the guard's `drop`.
        if self.0.lent.load(Ordering::Acquire) {
            self.renew();
        }
        self.0.lent.store(true, Ordering::Relaxed);
        ParkedGuard(self.0.clone(), PhantomData)
    }

    #[cold]
    fn renew(&mut self) {
        *self = Self::default();
    }
}

impl<T> fmt::Debug for Parked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parked").finish_non_exhaustive()
    }
}

/// Has the value of a [`Parked`] for itself, and resets it at its end. Threads share it if they may share the value.
///
/// ```compile_fail,E0277
/// use ferroce_buffers::{ParkedGuard, Reset};
/// use std::cell::Cell;
///
/// #[derive(Default)]
/// struct Count(Cell<u32>);
///
/// impl Reset for Count {
///     fn reset(&mut self) {}
/// }
///
/// fn shared<T: Sync>() {}
/// shared::<ParkedGuard<Count>>();
/// ```
pub struct ParkedGuard<T: Reset>(Arc<Place<T>>, PhantomData<T>);

impl<T: Reset> Deref for ParkedGuard<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `lent` is set for as long as the guard exists, so there is no other, and the place itself doesn't access the value.
        unsafe { &*self.0.value.get() }
    }
}

impl<T: Reset> DerefMut for ParkedGuard<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T: Reset> Drop for ParkedGuard<T> {
    #[inline]
    fn drop(&mut self) {
        self.reset();
        // Pairs with the load of `Parked::lend`.
        self.0.lent.store(false, Ordering::Release);
    }
}

impl<T: Reset + fmt::Debug> fmt::Debug for ParkedGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
