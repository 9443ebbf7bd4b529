//! A value that one guard at a time has for itself.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// A value that is used again.
pub trait Reset: Default {
    /// Releases what it owns.
    fn reset(&mut self);
}

#[derive(Default)]
struct Place<T>(UnsafeCell<T>);

// SAFETY: a guard alone accesses the value, and there is one at a time: it moves the value to its thread, and back by the count of references.
unsafe impl<T: Send> Sync for Place<T> {}

/// The place of a large value that is made and dropped again and again. It stays where it is: what moves is a [`ParkedGuard`], of the size of
/// a pointer, and no memory is allocated for it while the guard before is gone.
#[derive(Default)]
pub struct Parked<T>(Arc<Place<T>>);

impl<T: Reset> Parked<T> {
    /// Lends the value, as [`Reset::reset`] has left it. While a guard exists, or if it was forgotten, the next one gets a new value.
    #[inline(always)]
    pub fn lend(&mut self) -> ParkedGuard<T> {
        let place = self.0.clone();
        // This place's and the new guard's, and not that of the guard before.
        if Arc::strong_count(&place) > 2 {
            return self.renew();
        }
        // SYNC: pairs with the release of the reference that the guard before has had.
        fence(Ordering::Acquire);
        ParkedGuard(place, PhantomData)
    }

    #[cold]
    fn renew(&mut self) -> ParkedGuard<T> {
        *self = Self::default();
        ParkedGuard(self.0.clone(), PhantomData)
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
        // SAFETY: there is no other guard, as this one counts as a reference, and the place itself doesn't access the value.
        unsafe { &*self.0.0.get() }
    }
}

impl<T: Reset> DerefMut for ParkedGuard<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.0.get() }
    }
}

impl<T: Reset> Drop for ParkedGuard<T> {
    #[inline]
    fn drop(&mut self) {
        // The release of the reference comes after this.
        self.reset();
    }
}

impl<T: Reset + fmt::Debug> fmt::Debug for ParkedGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
