//! Registering memory, and allocating memory to register.

use crate::mapping::{AccessBy, Mapping, Tap};
use crate::memory::{Memory, Pinned};
use crate::region::{Region, Registration};
use crate::{Buffer, Error, Failed};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

/// Registers memory with an adapter. `by` is how it accesses the memory; `register` gets all of it.
///
/// # Errors
/// The adapter refuses: the memory comes back.
pub fn register<M: Memory>(
    memory: M,
    by: AccessBy,
    register: impl FnOnce(Tap) -> Result<Box<dyn Registration>, Error>,
) -> Result<Buffer, Failed<M>> {
    let (owner, bytes) = Pinned::new(memory);
    // SAFETY: that is what `Memory` promises.
    let mapping = Arc::new(unsafe { Mapping::new(bytes, owner, by) });
    match register(Tap::new(mapping.clone(), 0..mapping.len())) {
        Ok(registration) => Ok(Buffer::whole(Arc::new(Region::new(registration, mapping)))),
        Err(error) => {
            let mapping = Arc::into_inner(mapping).expect("a refused registration keeps no access");
            let back = mapping.into_owner().take().unwrap_or_else(|_| unreachable!("the type of `memory`"));
            Err(Failed { error, back })
        }
    }
}

/// The alignment of memory that [`alloc`] makes: a page, so that no other data is near to what peers write.
const ALIGNMENT: usize = 4096;

/// Zeroed memory.
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its bytes.
unsafe impl Send for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and released once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

// SAFETY: the bytes were zeroed, and belong to the value.
unsafe impl Memory for Allocation {
    fn bytes(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.layout.size())
    }
}

/// Allocates and registers `len` zeroed bytes, aligned to 4096.
///
/// # Errors
/// The adapter refuses, or `len` is 0 or too much for an allocation.
pub fn alloc(
    len: usize,
    by: AccessBy,
    register: impl FnOnce(Tap) -> Result<Box<dyn Registration>, Error>,
) -> Result<Buffer, Error> {
    let layout = Layout::from_size_align(len, ALIGNMENT).ok().filter(|layout| layout.size() > 0);
    let layout = layout.ok_or_else(|| Error::invalid("alloc", format!("can't allocate {len} bytes")))?;
    // SAFETY: the size isn't 0. The memory is zeroed, so all of it is initialised (S7).
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
    self::register(Allocation { start, layout }, by, register).map_err(|failed| failed.error)
}
