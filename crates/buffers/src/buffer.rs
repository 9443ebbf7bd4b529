//! A piece of registered memory that the program has for itself.

use crate::Memory;
use crate::home::Home;
use crate::mapping::Loan;
use crate::region::Region;
use ferroce_types::Sge;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

/// Registered memory of the program: a capacity, and a length as a `Vec` has.
///
/// A send transfers the bytes up to the length. A receive or a READ writes up to the capacity, and sets the length.
/// Buffers of one region never overlap. A buffer that is posted belongs to the queue pair until its completion.
pub struct Buffer {
    region: Arc<Region>,
    start: usize,
    capacity: usize,
    len: usize,
    /// The pool that it returns to.
    home: Option<Home>,
}

impl Buffer {
    pub(crate) fn whole(region: Arc<Region>) -> Self {
        let capacity = region.mapping().len();
        Self { region, start: 0, capacity, len: capacity, home: None }
    }

    /// A part of a pool's region, empty.
    pub(crate) const fn of_pool(region: Arc<Region>, start: usize, capacity: usize, home: Home) -> Self {
        Self { region, start, capacity, len: 0, home: Some(home) }
    }

    #[inline]
    fn pointer(&self) -> NonNull<u8> {
        self.region.mapping().at(self.start)
    }

    /// Bytes that fit.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets the length. Bytes up to the capacity are always initialised: what they contain is old or zero.
    ///
    /// # Panics
    /// `len` is more than the capacity.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "a length of {len} in a buffer of {} bytes", self.capacity);
        self.len = len;
    }

    /// Replaces the content.
    ///
    /// # Panics
    /// `bytes` is longer than the capacity.
    pub fn fill(&mut self, bytes: &[u8]) {
        self.set_len(bytes.len());
        self.copy_from_slice(bytes);
    }

    /// Splits the buffer at `at` of its capacity, and returns the second part.
    ///
    /// # Panics
    /// `at` is more than the capacity.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.capacity, "byte {at} of a buffer of {} bytes", self.capacity);
        let after = Self {
            region: self.region.clone(),
            start: self.start + at,
            capacity: self.capacity - at,
            len: self.len.saturating_sub(at),
            home: self.home.clone(),
        };
        self.capacity = at;
        self.len = self.len.min(at);
        after
    }

    /// Joins two parts that [`Buffer::split_off`] has separated, `self` the first of them. If the second part is empty,
    /// the length stays that of the first. Otherwise it is the first's capacity and the second's length, and the bytes after the
    /// first's length are old.
    ///
    /// # Errors
    /// They aren't adjacent parts of one buffer, in this order: both come back.
    pub fn join(mut self, after: Self) -> Result<Self, (Self, Self)> {
        let adjacent = Arc::ptr_eq(&self.region, &after.region) && self.start + self.capacity == after.start;
        if !adjacent || !Home::is_same(self.home.as_ref(), after.home.as_ref()) {
            return Err((self, after));
        }
        if after.len > 0 {
            self.len = self.capacity + after.len;
        }
        self.capacity += after.capacity;
        Ok(self)
    }

    /// The buffer in pieces of `size` bytes; the last may be smaller.
    ///
    /// # Panics
    /// `size` is 0.
    pub fn chunks(self, size: usize) -> impl Iterator<Item = Self> {
        assert!(size > 0, "chunks of 0 bytes");
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let mut first = rest.take().filter(|rest| rest.capacity > 0)?;
            if first.capacity > size {
                rest = Some(first.split_off(size));
            }
            Some(first)
        })
    }

    /// Deregisters the memory and returns its owner.
    ///
    /// # Errors
    /// The region isn't of this type, or other parts of it exist: the buffer comes back, registered.
    pub fn reclaim<M: Memory>(self) -> Result<M, Self> {
        let Self { region, start, capacity, len, home } = self;
        Region::reclaim(region).map_err(|region| Self { region, start, capacity, len, home })
    }

    /// What a request names: the length for reading it, the capacity for writing it.
    #[inline]
    pub(crate) fn segment(&self, bytes: usize) -> Sge {
        let addr = self.region.address() + self.start as u64;
        Sge { addr, length: u32::try_from(bytes).unwrap_or(u32::MAX), lkey: self.region.key() }
    }

    pub(crate) const fn is_pooled(&self) -> bool {
        self.home.is_some()
    }

    #[inline]
    pub(crate) const fn length(&self) -> usize {
        self.len
    }

    pub(crate) const fn start(&self) -> usize {
        self.start
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Lends the capacity to the adapter.
    #[inline]
    pub(crate) fn lend(&self, loan: Loan) -> u32 {
        self.region.mapping().lend(self.start..self.start + self.capacity, loan)
    }

    #[inline]
    pub(crate) fn settle(&self, loan: u32) {
        self.region.mapping().settle(loan);
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: initialised (S7), and within the region. Buffers don't overlap, and one that is lent for writing isn't
        // accessible: it is in a slot. So nothing writes it while `self` is borrowed.
        unsafe { slice::from_raw_parts(self.pointer().as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above. A buffer that the adapter reads is in a slot or frozen, so it can't be borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.pointer().as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).field("capacity", &self.capacity).finish()
    }
}
