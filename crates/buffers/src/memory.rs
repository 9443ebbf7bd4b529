//! Memory of the program that can be registered.

use std::any::Any;
use std::ptr::NonNull;

/// A value that owns memory which an adapter can read and write.
///
/// Registering it is safe: the value is kept, and moved to a place that doesn't change, before its memory is asked for.
///
/// # Safety
/// [`Memory::bytes`] returns a range that is initialised, that can be read and written through the returned pointer, and
/// that stays so until the value is moved or dropped. Nothing else accesses the range in that time, also not through a method
/// of the value that another thread could call.
pub unsafe trait Memory: Send + 'static {
    /// The bytes to register.
    fn bytes(&mut self) -> NonNull<[u8]>;
}

// SAFETY: a vector owns its bytes, and `len` of them are initialised.
unsafe impl Memory for Vec<u8> {
    fn bytes(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut **self)
    }
}

// SAFETY: a box owns its bytes.
unsafe impl Memory for Box<[u8]> {
    fn bytes(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut **self)
    }
}

// SAFETY: the memory is static and was borrowed for good.
unsafe impl Memory for &'static mut [u8] {
    fn bytes(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut **self)
    }
}

/// A value in an allocation of its own, held by a raw pointer: moving a `Box` would assert that nothing else points into it.
pub(crate) struct Pinned(NonNull<dyn Any + Send>);

// SAFETY: it owns the value, which is `Send`, and gives no reference to it.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(crate) fn new<M: Memory>(memory: M) -> (Self, NonNull<[u8]>) {
        let mut place = NonNull::from(Box::leak(Box::new(memory)));
        // SAFETY: the value was just made, and nothing else refers to it.
        let bytes = unsafe { place.as_mut() }.bytes();
        (Self(place), bytes)
    }

    /// Keeps a value whose memory is described elsewhere.
    pub(crate) fn keep(value: impl Send + 'static) -> Self {
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    pub(crate) fn is<M: Any>(&self) -> bool {
        // SAFETY: the value exists until `self` is dropped, and only its type is read.
        unsafe { self.0.as_ref() }.is::<M>()
    }

    /// The value again.
    ///
    /// # Errors
    /// It is of another type.
    pub(crate) fn take<M: Any>(self) -> Result<M, Self> {
        if !self.is::<M>() {
            return Err(self);
        }
        let place = std::mem::ManuallyDrop::new(self).0;
        // SAFETY: the allocation was made by `Box` for a value of this type, and isn't used any more.
        Ok(*unsafe { Box::from_raw(place.cast::<M>().as_ptr()) })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the allocation was made by `Box`, and is released once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
