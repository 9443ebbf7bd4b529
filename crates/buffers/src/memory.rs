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

/// Memory that is described by its address: a mapping of a file or of a device.
#[derive(Debug)]
pub struct RawMemory<K> {
    bytes: NonNull<[u8]>,
    keep: K,
}

// SAFETY: the bytes belong to the value, as `RawMemory::new` demands.
unsafe impl<K: Send> Send for RawMemory<K> {}

impl<K: Send + 'static> RawMemory<K> {
    /// `len` bytes at `start`. `keep` is dropped after they are deregistered; it may unmap them.
    ///
    /// # Safety
    /// The bytes are initialised, and valid for reads and writes by any thread until `keep` is dropped. Nothing else accesses
    /// them until then, also not through `keep`.
    pub const unsafe fn new(start: NonNull<u8>, len: usize, keep: K) -> Self {
        Self { bytes: NonNull::slice_from_raw_parts(start, len), keep }
    }

    /// The value that keeps the bytes valid.
    pub fn into_keep(self) -> K {
        self.keep
    }
}

// SAFETY: that is what `RawMemory::new` demands.
unsafe impl<K: Send + 'static> Memory for RawMemory<K> {
    fn bytes(&mut self) -> NonNull<[u8]> {
        self.bytes
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
