//! The first-in, first-out ring that holds the entries of send, receive and completion queues. It lies in memory of its own, which grows
//! with use, or in memory that the program gives (ibv_alloc_parent_domain(3)).
//!
//! An entry is written and read where it lies. Each place of the memory always holds a value of the entry's type: that of an entry, or one
//! that is left over.

use std::fmt::{self, Debug};
use std::mem;
use std::ptr::NonNull;
use std::slice;

/// A ring of entries. The number of its places is a power of two.
pub struct EntryRing<T> {
    places: Places<T>,
    /// The place of the oldest entry.
    first: usize,
    len: usize,
    /// Memory of the program. It is returned when the ring is dropped, although a ring that outgrows it has left it by then.
    given: Option<GivenPlaces<T>>,
}

impl<T> EntryRing<T> {
    /// Places that a ring begins with when its first entry comes.
    const LEAST: usize = 4;

    /// An empty ring, which has no memory yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { places: Places::none(), first: 0, len: 0, given: None }
    }

    /// Places, and bytes, of a ring that never outgrows its memory with `capacity` entries.
    #[must_use]
    pub const fn size_for(capacity: usize) -> (usize, usize) {
        let places = capacity.next_power_of_two();
        (places, places * size_of::<T>())
    }

    /// Number of entries.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The ring has no entry.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The place of the entry after `index` older ones. There are places.
    #[inline]
    fn at(&self, index: usize) -> usize {
        (self.first + index) & (self.places.count - 1)
    }

    /// The entry after `index` older ones.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        (index < self.len).then(|| &self.places.all()[self.at(index)])
    }

    /// As [`EntryRing::get`], to change it.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        if index >= self.len {
            return None;
        }
        let at = self.at(index);
        Some(&mut self.places.all_mut()[at])
    }

    /// The oldest entry.
    #[must_use]
    #[inline]
    pub fn front(&self) -> Option<&T> {
        self.get(0)
    }

    /// The entries, oldest first, without the `from` oldest.
    pub fn iter_from(&self, from: usize) -> impl Iterator<Item = &T> {
        (from..self.len).filter_map(|index| self.get(index))
    }

    /// Removes the oldest entry, if there is one, and leaves its value in its place.
    #[inline]
    pub fn skip_front(&mut self) {
        if self.len > 0 {
            self.first = self.at(1);
            self.len -= 1;
        }
    }
}

impl<T: Default> EntryRing<T> {
    /// An empty ring in memory that has the places of [`EntryRing::size_for`]. `free` is called with the memory when the ring is dropped.
    ///
    /// # Safety
    /// `at` is aligned for `T` and points to memory for `places` values of `T`, which nothing else uses until `free` is called.
    #[must_use]
    pub unsafe fn in_memory(
        at: NonNull<u8>,
        places: usize,
        free: Box<dyn FnOnce(NonNull<u8>) + Send + Sync>,
    ) -> Self {
        assert!(places.is_power_of_two());
        let at = at.cast::<T>();
        for index in 0..places {
            // SAFETY: by the caller there is memory for as many.
            unsafe { at.add(index).write(T::default()) };
        }
        let places = Places { at, count: places };
        Self {
            places,
            first: 0,
            len: 0,
            given: Some(GivenPlaces { at, count: places.count, free: Some(free) }),
        }
    }

    /// Adds an entry, and returns its place. The value there is left over: the caller overwrites it.
    #[inline]
    pub fn add(&mut self) -> &mut T {
        if self.len == self.places.count {
            self.grow();
        }
        let at = self.at(self.len);
        self.len += 1;
        &mut self.places.all_mut()[at]
    }

    #[cold]
    fn grow(&mut self) {
        let mut places: Vec<T> = Vec::new();
        let count = (2 * self.places.count).max(Self::LEAST);
        places.reserve_exact(count);
        while let Some(entry) = self.pop_front() {
            places.push(entry);
        }
        let len = places.len();
        places.resize_with(count, T::default);
        self.free_own();
        (self.places, self.first, self.len) = (Places::own(places), 0, len);
    }

    /// Appends an entry.
    #[inline]
    pub fn push_back(&mut self, entry: T) {
        *self.add() = entry;
    }

    /// Puts an entry before the oldest one.
    pub fn push_front(&mut self, entry: T) {
        if self.len == self.places.count {
            self.grow();
        }
        self.first = self.at(self.places.count - 1);
        self.len += 1;
        let first = self.first;
        self.places.all_mut()[first] = entry;
    }

    /// Removes the oldest entry.
    #[inline]
    pub fn pop_front(&mut self) -> Option<T> {
        let entry = mem::take(self.get_mut(0)?);
        self.skip_front();
        Some(entry)
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        while self.pop_front().is_some() {}
    }

    /// Removes the entries for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        for _ in 0..self.len {
            if let Some(entry) = self.pop_front().filter(&mut keep) {
                self.push_back(entry);
            }
        }
    }

    /// Moves all entries to `other`, and `other` here. Returns what is left of this ring.
    #[must_use]
    pub fn move_to(&mut self, mut other: Self) -> Self {
        while let Some(entry) = self.pop_front() {
            other.push_back(entry);
        }
        mem::replace(self, other)
    }

    /// Removes all entries and frees memory of its own.
    pub fn reset(&mut self) {
        self.clear();
        self.free_own();
        self.first = 0;
        self.places = match &self.given {
            Some(given) => Places { at: given.at, count: given.count },
            None => Places::none(),
        };
    }
}

impl<T> EntryRing<T> {
    /// Frees the places, if they are the ring's own. The caller replaces them.
    fn free_own(&mut self) {
        let places = mem::replace(&mut self.places, Places::none());
        if self.given.as_ref().is_none_or(|given| given.at != places.at) {
            places.free();
        }
    }
}

impl<T> Drop for EntryRing<T> {
    fn drop(&mut self) {
        self.free_own();
    }
}

impl<T> Default for EntryRing<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Debug for EntryRing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ring of {} entries in {} places at {:?}", self.len, self.places.count, self.places.at)
    }
}

/// Values that lie one after the other. The owner frees them, or the memory's `GivenPlaces` does.
struct Places<T> {
    at: NonNull<T>,
    count: usize,
}

impl<T> Clone for Places<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Places<T> {}

// SAFETY: the values belong to one ring alone, as a vector's would.
unsafe impl<T: Send> Send for Places<T> {}
// SAFETY: shared references only read.
unsafe impl<T: Sync> Sync for Places<T> {}

impl<T> Places<T> {
    const fn none() -> Self {
        Self { at: NonNull::dangling(), count: 0 }
    }

    fn own(values: Vec<T>) -> Self {
        let count = values.len();
        let values = Box::into_raw(values.into_boxed_slice());
        // SAFETY: a box isn't null.
        Self { at: unsafe { NonNull::new_unchecked(values.cast::<T>()) }, count }
    }

    /// Frees what [`Places::own`] made.
    fn free(self) {
        if self.count > 0 {
            // SAFETY: `own` took them out of a box of this length, and the ring frees them once.
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.at.as_ptr(), self.count)) });
        }
    }

    #[inline]
    fn all(&self) -> &[T] {
        // SAFETY: all of them always hold values.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }

    #[inline]
    fn all_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; the ring is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.count) }
    }
}

/// Memory of the program, with values in it.
struct GivenPlaces<T> {
    at: NonNull<T>,
    count: usize,
    free: Option<Box<dyn FnOnce(NonNull<u8>) + Send + Sync>>,
}

// SAFETY: the values belong to one ring alone, as a vector's would.
unsafe impl<T: Send> Send for GivenPlaces<T> {}
// SAFETY: shared references only read.
unsafe impl<T: Sync> Sync for GivenPlaces<T> {}

impl<T> Drop for GivenPlaces<T> {
    fn drop(&mut self) {
        // SAFETY: `in_memory` wrote them, and they are dropped once.
        unsafe { std::ptr::slice_from_raw_parts_mut(self.at.as_ptr(), self.count).drop_in_place() };
        if let Some(free) = self.free.take() {
            free(self.at.cast());
        }
    }
}

#[cfg(test)]
mod tests;
