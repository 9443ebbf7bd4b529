//! How C objects and the adapter's objects belong together: a C structure is the head of a block that holds the
//! adapter's object behind it, and the block's address is the cookie that comes back with events.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::call::{Outcome, Refusal};

/// Implemented by blocks whose head is the C structure `Self::C`.
///
/// # Safety
/// `Self` is `repr(C)` and its first field is a `Self::C`.
pub(crate) unsafe trait Headed: Sized {
    /// The structure that programs see.
    type C;
    /// What it is called in messages.
    const WHAT: &'static str;

    /// The block behind a program's pointer.
    ///
    /// # Safety
    /// `pointer` is null or was returned by [`Headed::allocate`] and not yet given to [`Headed::free`].
    unsafe fn of<'a>(pointer: *mut Self::C) -> Outcome<&'a Self> {
        // SAFETY: the head of a block has the block's address; blocks are only shared, never borrowed mutably.
        unsafe { pointer.cast::<Self>().as_ref() }
            .ok_or_else(|| Refusal::invalid(format!("{} is NULL", Self::WHAT)))
    }

    /// Makes a block. `make` gets the cookie, the block's future address.
    fn allocate(make: impl FnOnce(usize) -> Outcome<Self>) -> Outcome<*mut Self::C> {
        let mut place: Box<MaybeUninit<Self>> = Box::new_uninit();
        let block = make(place.as_mut_ptr() as usize)?;
        place.write(block);
        Ok(Box::into_raw(place).cast())
    }

    /// Frees a block.
    ///
    /// # Safety
    /// As [`Headed::of`], with a pointer that isn't null and that nobody uses any more.
    unsafe fn free(pointer: *mut Self::C) {
        // SAFETY: `allocate` made it as a `Box<Self>`; the caller gives it up.
        drop(unsafe { Box::from_raw(pointer.cast::<Self>()) });
    }
}

/// A number for the `handle` field: unique in the process, of no further meaning.
pub(crate) fn next_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Adds to a counter in a C structure, which other threads may be reading or counting.
///
/// # Safety
/// `counter` is valid and only ever changed by this function.
pub(crate) unsafe fn count(counter: *mut u32, by: u32) {
    // SAFETY: the caller's promise; the field is aligned as a `u32`.
    unsafe { AtomicU32::from_ptr(counter) }.fetch_add(by, Ordering::Relaxed);
}
