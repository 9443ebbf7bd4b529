//! Buffers of one size out of one registration.

use crate::region::Region;
use crate::{Buffer, Error};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A pool of buffers. A dropped buffer returns to it.
#[derive(Clone)]
pub struct Pool {
    region: Arc<Region>,
    size: usize,
    places: Arc<Places>,
}

#[derive(Debug)]
struct Places {
    free: Mutex<Vec<u32>>,
    /// Parts of the buffer at each place: it is free when the last is dropped.
    parts: Box<[AtomicU32]>,
}

impl Places {
    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// Divides memory into buffers of `size` bytes.
    ///
    /// # Errors
    /// `memory` has less than `size` bytes, `size` is 0, or `memory` is a part of a region or of a pool.
    pub fn new(memory: Buffer, size: usize) -> Result<Self, Error> {
        let region = memory.region().clone();
        let whole = memory.capacity() == region.mapping().len() && !memory.is_pooled();
        if size == 0 || memory.capacity() < size || !whole {
            let why = format!("buffers of {size} bytes out of {} bytes", memory.capacity());
            return Err(Error::invalid("pool", why));
        }
        // The only buffer of its region, so all bytes are free to be divided.
        drop(memory);
        let count = u32::try_from(region.mapping().len() / size).unwrap_or(u32::MAX);
        let free = Mutex::new((0..count).rev().collect());
        let parts = (0..count).map(|_| AtomicU32::new(0)).collect();
        Ok(Self { region, size, places: Arc::new(Places { free, parts }) })
    }

    /// Takes a buffer, if one is free. Its length is 0, and its bytes are old.
    #[must_use]
    pub fn try_take(&self) -> Option<Buffer> {
        let place = self.places.free().pop()?;
        self.places.parts[place as usize].store(1, Ordering::Relaxed);
        let home = Home { places: self.places.clone(), place };
        Some(Buffer::of_pool(self.region.clone(), place as usize * self.size, self.size, home))
    }

    /// Buffers that are free now.
    #[must_use]
    pub fn free(&self) -> usize {
        self.places.free().len()
    }

    /// The capacity of each buffer.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("size", &self.size).field("free", &self.free()).finish()
    }
}

/// The place in a pool that a buffer returns to. Each part of a buffer has one.
pub(crate) struct Home {
    places: Arc<Places>,
    place: u32,
}

impl Home {
    pub(crate) fn is_same(one: Option<&Self>, other: Option<&Self>) -> bool {
        match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(&one.places, &other.places) && one.place == other.place,
            (None, None) => true,
            _ => false,
        }
    }
}

impl Clone for Home {
    fn clone(&self) -> Self {
        self.places.parts[self.place as usize].fetch_add(1, Ordering::Relaxed);
        Self { places: self.places.clone(), place: self.place }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // The parts are used before this by the threads that drop them; the last of them sees all of that.
        if self.places.parts[self.place as usize].fetch_sub(1, Ordering::AcqRel) == 1 {
            self.places.free().push(self.place);
        }
    }
}
