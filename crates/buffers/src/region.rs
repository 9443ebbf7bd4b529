//! Registered memory: the bytes, their owner, and what the adapter knows of them.

use crate::mapping::{Mapping, Tap};
use crate::memory::{Memory, Pinned};
use crate::{Buffer, Error, Failed, Rights};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// What an adapter knows of a region. Dropping it deregisters: the adapter doesn't touch the region after that.
pub trait Registration: Send + Sync {
    /// The local key.
    fn key(&self) -> u32;
    /// The address of the first byte, as requests name it.
    fn address(&self) -> u64;
    /// Registers a part for peers, with a key of its own.
    ///
    /// # Errors
    /// The adapter refuses.
    fn expose(&self, part: Tap, address: u64, rights: Rights) -> Result<Box<dyn Exposure>, Error>;
}

/// What an adapter knows of memory that peers may access. Dropping it makes the key invalid: no peer's access happens after
/// that.
pub trait Exposure: Send + Sync {
    /// The remote key.
    fn key(&self) -> u32;
}

/// A registered region. The fields are dropped in this order: deregistered, then released.
pub(crate) struct Region {
    registration: Box<dyn Registration>,
    mapping: Arc<Mapping>,
}

impl Region {
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(crate) fn registration(&self) -> &dyn Registration {
        &*self.registration
    }

    pub(crate) fn tap(&self, start: usize, len: usize) -> Tap {
        Tap::new(self.mapping.clone(), start..start + len)
    }

    /// Deregisters, and returns the owner of the memory if it is of this type. Otherwise the memory stays registered.
    pub(crate) fn reclaim<M: Any>(region: Arc<Self>) -> Result<M, Arc<Self>> {
        if !region.mapping.is_owned_by::<M>() {
            return Err(region);
        }
        let Self { registration, mapping } = Arc::try_unwrap(region)?;
        drop(registration);
        // The adapter's taps went with the registration.
        let mapping = Arc::into_inner(mapping).expect("a deregistered region has one user");
        Ok(mapping.into_owner().take().unwrap_or_else(|_| unreachable!("the type was compared")))
    }
}

/// Registers memory with an adapter: `register` is given access to all of it.
///
/// # Errors
/// The adapter refuses: the memory comes back.
pub fn register<M: Memory>(
    memory: M,
    register: impl FnOnce(Tap) -> Result<Box<dyn Registration>, Error>,
) -> Result<Buffer, Failed<M>> {
    let (owner, bytes) = Pinned::new(memory);
    // SAFETY: that is what `Memory` promises.
    let mapping = Arc::new(unsafe { Mapping::new(bytes, owner) });
    match register(Tap::new(mapping.clone(), 0..mapping.len())) {
        Ok(registration) => Ok(Buffer::whole(Arc::new(Region { registration, mapping }))),
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
    register: impl FnOnce(Tap) -> Result<Box<dyn Registration>, Error>,
) -> Result<Buffer, Error> {
    let layout = Layout::from_size_align(len, ALIGNMENT).ok().filter(|layout| layout.size() > 0);
    let layout = layout.ok_or_else(|| Error::invalid("alloc", format!("can't allocate {len} bytes")))?;
    // SAFETY: the size isn't 0. The memory is zeroed, so all of it is initialised (S7).
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
    self::register(Allocation { start, layout }, register).map_err(|failed| failed.error)
}
