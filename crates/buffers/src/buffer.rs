//! A piece of registered memory that the program has for itself.

use crate::Memory;
use crate::home::{Home, Piece};
use crate::mapping::Loan;
use crate::region::Region;
use ferroce_types::Sge;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

/// Registered memory of the program: a capacity, and a length as a `Vec` has.
///
/// A send transfers the bytes up to the length. A receive or a READ writes up to the capacity, and sets the length.
/// Buffers of one region never overlap. A buffer that is posted belongs to the queue pair until its completion.
///
/// It is a pointer, so that it moves through a request and its completion in a register.
pub struct Buffer {
    /// Until it is dropped or taken apart.
    piece: ManuallyDrop<Box<Piece>>,
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: it wasn't taken, and isn't used after this.
        let mut piece = unsafe { ManuallyDrop::take(&mut self.piece) };
        if let Some(home) = piece.home.take() {
            home.give_back(piece);
        }
    }
}

impl Buffer {
    fn new(piece: Piece) -> Self {
        Self { piece: ManuallyDrop::new(Box::new(piece)) }
    }

    pub(crate) fn whole(region: Arc<Region>) -> Self {
        let capacity = region.mapping().len();
        Self::new(Piece { region, start: 0, capacity, len: capacity, home: None })
    }

    /// A place of a pool, with this piece of its region.
    pub(crate) fn of_pool(mut piece: Box<Piece>, home: Home) -> Self {
        piece.home = Some(home);
        Self { piece: ManuallyDrop::new(piece) }
    }

    fn into_piece(self) -> Box<Piece> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: it wasn't taken, and isn't dropped.
        unsafe { ManuallyDrop::take(&mut this.piece) }
    }

    #[inline]
    fn pointer(&self) -> NonNull<u8> {
        self.piece.region.mapping().at(self.piece.start)
    }

    /// Bytes that fit.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.piece.capacity
    }

    /// Sets the length. Bytes up to the capacity are always initialised: what they contain is old or zero.
    ///
    /// # Panics
    /// `len` is more than the capacity.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        let piece = &mut *self.piece;
        assert!(len <= piece.capacity, "a length of {len} in a buffer of {} bytes", piece.capacity);
        piece.len = len;
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
        let piece = &mut **self.piece;
        assert!(at <= piece.capacity, "byte {at} of a buffer of {} bytes", piece.capacity);
        let after = Piece {
            region: piece.region.clone(),
            start: piece.start + at,
            capacity: piece.capacity - at,
            len: piece.len.saturating_sub(at),
            home: piece.home.as_ref().map(Home::another),
        };
        piece.capacity = at;
        piece.len = piece.len.min(at);
        Self::new(after)
    }

    /// Joins two parts that [`Buffer::split_off`] has separated, `self` the first of them. If the second part is empty,
    /// the length stays that of the first. Otherwise it is the first's capacity and the second's length, and the bytes after the
    /// first's length are old.
    ///
    /// # Errors
    /// They aren't adjacent parts of one buffer, in this order: both come back.
    pub fn join(mut self, after: Self) -> Result<Self, (Self, Self)> {
        let (first, second) = (&mut **self.piece, &**after.piece);
        let adjacent =
            Arc::ptr_eq(&first.region, &second.region) && first.start + first.capacity == second.start;
        if !adjacent || !Home::is_same(first.home.as_ref(), second.home.as_ref()) {
            return Err((self, after));
        }
        if second.len > 0 {
            first.len = first.capacity + second.len;
        }
        first.capacity += second.capacity;
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
            let mut first = rest.take().filter(|rest| rest.capacity() > 0)?;
            if first.capacity() > size {
                rest = Some(first.split_off(size));
            }
            Some(first)
        })
    }

    /// Deregisters the memory and returns its owner.
    ///
    /// # Errors
    /// The region isn't of this type, or its pool or other parts of it exist: the buffer comes back, registered.
    pub fn reclaim<M: Memory>(self) -> Result<M, Self> {
        if !self.region().mapping().is_owned_by::<M>() {
            return Err(self);
        }
        let mut piece = self.into_piece();
        if let Some(Err(home)) = piece.home.take().map(Home::end_pool) {
            piece.home = Some(home);
            return Err(Self { piece: ManuallyDrop::new(piece) });
        }
        let Piece { region, start, capacity, len, home } = *piece;
        Region::reclaim(region).map_err(|region| Self::new(Piece { region, start, capacity, len, home }))
    }

    /// What a request names: the length for reading it, the capacity for writing it.
    #[inline]
    pub(crate) fn segment(&self, bytes: usize) -> Sge {
        let Piece { region, start, .. } = &**self.piece;
        let addr = region.address() + *start as u64;
        Sge { addr, length: u32::try_from(bytes).unwrap_or(u32::MAX), lkey: region.key() }
    }

    pub(crate) fn is_pooled(&self) -> bool {
        self.piece.home.is_some()
    }

    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.piece.len
    }

    pub(crate) fn start(&self) -> usize {
        self.piece.start
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.piece.region
    }

    /// Lends the capacity to the adapter.
    #[inline]
    pub(crate) fn lend(&self, loan: Loan) -> u32 {
        let Piece { region, start, capacity, .. } = &**self.piece;
        region.mapping().lend(*start..*start + *capacity, loan)
    }

    #[inline]
    pub(crate) fn settle(&self, loan: u32) {
        self.piece.region.mapping().settle(loan);
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: initialised (S7), and within the region. Buffers don't overlap, and one that is lent for writing isn't
        // accessible: it is in a slot. So nothing writes it while `self` is borrowed.
        unsafe { slice::from_raw_parts(self.pointer().as_ptr(), self.length()) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above. A buffer that the adapter reads is in a slot or frozen, so it can't be borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.pointer().as_ptr(), self.length()) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.length()).field("capacity", &self.capacity()).finish()
    }
}
