//! Memory at a fixed place, and the ledger of what of it is lent to the adapter.

use crate::memory::Pinned;
use crate::raced;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How an adapter accesses memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessBy {
    /// By a [`Tap`], within loans: the adapter is simulated.
    Tap,
    /// By its address. Nothing but the promises of this crate's types keeps it within the loans, so there is no ledger.
    Address,
}

/// What the adapter may do with a range that is lent to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loan {
    /// Read it. The program may read it too.
    Read,
    /// Write it. The program has no access.
    Write,
    /// Read and write it for a peer. The program accesses it under the ledger's lock.
    Shared,
}

/// The adapter has accessed memory that isn't lent to it for this access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotLent;

impl std::fmt::Display for NotLent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the memory isn't lent to the adapter for this access")
    }
}

impl std::error::Error for NotLent {}

#[derive(Default)]
struct Ledger {
    entries: Vec<Option<(Range<usize>, Loan)>>,
    free: Vec<u32>,
}

impl Ledger {
    fn allows(&self, range: &Range<usize>, writes: bool) -> bool {
        let allows = |(lent, loan): &(Range<usize>, Loan)| {
            let fits = lent.start <= range.start && range.end <= lent.end;
            fits && match loan {
                Loan::Read => !writes,
                Loan::Write => writes,
                Loan::Shared => true,
            }
        };
        self.entries.iter().flatten().any(allows)
    }
}

/// Bytes that stay where they are, and the value that owns them.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    owner: Pinned,
    /// `None` with an adapter that accesses memory by its address.
    ledger: Option<Mutex<Ledger>>,
}

// SAFETY: bytes are accessed through buffers, of which each has its own range, and by the adapter within loans.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// # Safety
    /// The bytes are valid and initialised until `owner` is dropped, and nothing else accesses them until then.
    pub(crate) unsafe fn new(bytes: NonNull<[u8]>, owner: Pinned, by: AccessBy) -> Self {
        let ledger = (by == AccessBy::Tap).then(Mutex::default);
        Self { base: bytes.cast(), len: bytes.len(), owner, ledger }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_owned_by<M: std::any::Any>(&self) -> bool {
        self.owner.is::<M>()
    }

    pub(crate) fn into_owner(self) -> Pinned {
        self.owner
    }

    /// The address of a byte.
    ///
    /// # Panics
    /// It is outside.
    pub(crate) fn at(&self, start: usize) -> NonNull<u8> {
        assert!(start <= self.len, "byte {start} of {}", self.len);
        // SAFETY: within the allocation, or right after it.
        unsafe { self.base.add(start) }
    }

    #[inline]
    fn ledger(&self) -> Option<MutexGuard<'_, Ledger>> {
        Some(self.ledger.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lends a range to the adapter until [`Mapping::settle`], and returns the number of the loan.
    #[inline]
    pub(crate) fn lend(&self, range: Range<usize>, loan: Loan) -> u32 {
        if self.ledger.is_none() { 0 } else { self.lend_by_ledger(range, loan) }
    }

    #[inline(never)]
    fn lend_by_ledger(&self, range: Range<usize>, loan: Loan) -> u32 {
        let Some(mut ledger) = self.ledger() else { return 0 };
        if let Some(number) = ledger.free.pop() {
            ledger.entries[number as usize] = Some((range, loan));
            return number;
        }
        ledger.entries.push(Some((range, loan)));
        ledger.entries.len() as u32 - 1
    }

    /// Ends a loan. An access of the adapter that has begun is over when this returns.
    #[inline]
    pub(crate) fn settle(&self, number: u32) {
        if self.ledger.is_some() {
            self.settle_by_ledger(number);
        }
    }

    #[inline(never)]
    fn settle_by_ledger(&self, number: u32) {
        let Some(mut ledger) = self.ledger() else { return };
        if ledger.entries.get_mut(number as usize).and_then(Option::take).is_some() {
            ledger.free.push(number);
        }
    }
}

/// An adapter's access to a range of a region. A simulated adapter reads and writes by it, within [loans](NotLent) only. Another
/// takes the [address](Tap::start).
#[derive(Clone)]
pub struct Tap {
    mapping: Arc<Mapping>,
    range: Range<usize>,
}

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tap").field(&self.range).finish()
    }
}

impl Tap {
    pub(crate) const fn new(mapping: Arc<Mapping>, range: Range<usize>) -> Self {
        Self { mapping, range }
    }

    /// A part of the range.
    ///
    /// # Panics
    /// The part isn't within the range.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {}", self.len());
        let start = self.range.start;
        Self { mapping: self.mapping.clone(), range: start + range.start..start + range.end }
    }

    /// Bytes of the range.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.range.end - self.range.start
    }

    /// The range has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first byte of the range.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.at(self.range.start)
    }

    /// How far the first byte is from an address that is a multiple of 8.
    #[must_use]
    pub fn misalignment(&self) -> u64 {
        self.start().addr().get() as u64 % 8
    }

    /// `len` bytes from `at` on.
    #[inline]
    fn within(&self, at: usize, len: usize) -> Result<NonNull<u8>, NotLent> {
        at.checked_add(len).filter(|end| *end <= self.len()).ok_or(NotLent)?;
        Ok(self.mapping.at(self.range.start + at))
    }

    /// Copies bytes that are exposed: peers may write them meanwhile.
    pub(crate) fn load(&self, at: usize, to: &mut [u8]) -> Result<(), NotLent> {
        if self.mapping.ledger.is_some() {
            return self.read(at, to);
        }
        let from = self.within(at, to.len())?;
        // SAFETY: within the region, and initialised. `to` is exclusive.
        unsafe { raced::copy(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Writes bytes that are exposed: peers may access them meanwhile.
    pub(crate) fn store(&self, at: usize, bytes: &[u8]) -> Result<(), NotLent> {
        if self.mapping.ledger.is_some() {
            return self.write(at, bytes);
        }
        let to = self.within(at, bytes.len())?;
        // SAFETY: within the region; exposed memory has no references to it, but for those of `Exposed::quiet`, whose caller
        // excludes this.
        unsafe { raced::copy(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Replaces an exposed word, and returns what it was. `None` of `f` leaves the word as it is.
    #[inline]
    pub(crate) fn update_word(&self, at: usize, f: impl Fn(u64) -> Option<u64>) -> Result<u64, NotLent> {
        if self.mapping.ledger.is_some() {
            return self.update(at, |before| f(before).unwrap_or(before));
        }
        let word = self.within(at, 8)?.cast::<u64>();
        assert!(word.is_aligned(), "a word at {word:p}, which isn't a multiple of 8");
        // SAFETY: within the region and aligned. The adapter's atomics are instructions of this machine, too.
        let word = unsafe { AtomicU64::from_ptr(word.as_ptr()) };
        let updated = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, f);
        Ok(updated.unwrap_or_else(|before| before))
    }

    /// `len` bytes from `at` on, in the mapping, if they are lent.
    fn lent(&self, ledger: &Ledger, at: usize, len: usize, writes: bool) -> Result<NonNull<u8>, NotLent> {
        let first = self.within(at, len)?;
        let start = self.range.start + at;
        if len > 0 && !ledger.allows(&(start..start + len), writes) {
            return Err(NotLent);
        }
        Ok(first)
    }

    /// Reads bytes from `at` on.
    ///
    /// # Errors
    /// They aren't lent for reading, or the adapter accesses memory by its address.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<(), NotLent> {
        let ledger = self.mapping.ledger().ok_or(NotLent)?;
        let from = self.lent(&ledger, at, to.len(), false)?;
        // SAFETY: the range is initialised. It is lent for reading, so no `&mut` to it exists; the ledger's lock excludes
        // writes of other adapters and of the program to shared memory. `to` is exclusive, so it is elsewhere.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Writes bytes from `at` on.
    ///
    /// # Errors
    /// They aren't lent for writing, or the adapter accesses memory by its address.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), NotLent> {
        let ledger = self.mapping.ledger().ok_or(NotLent)?;
        let to = self.lent(&ledger, at, bytes.len(), true)?;
        // SAFETY: the range is lent for writing, so no reference to it exists; the ledger's lock excludes other accesses.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Replaces the 8 bytes from `at` on, in the byte order of the host, and returns what they were.
    ///
    /// # Errors
    /// They aren't lent for reading and writing, or the adapter accesses memory by its address.
    pub fn update(&self, at: usize, f: impl FnOnce(u64) -> u64) -> Result<u64, NotLent> {
        let ledger = self.mapping.ledger().ok_or(NotLent)?;
        self.lent(&ledger, at, 8, false)?;
        let word = self.lent(&ledger, at, 8, true)?.cast::<u64>();
        // SAFETY: as for `read` and `write`.
        let before = unsafe { word.read_unaligned() };
        let after = f(before);
        // SAFETY: as above.
        unsafe { word.write_unaligned(after) };
        Ok(before)
    }
}
