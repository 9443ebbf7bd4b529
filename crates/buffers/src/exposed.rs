//! Memory that peers may access.

use crate::mapping::{Loan, Tap};
use crate::region::Exposure;
use crate::rights::Right;
use crate::{Buffer, Failed, Remote};
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

/// Memory that peers may access with the rights `A`, until it is [revoked](Exposed::revoke) or dropped.
///
/// It has no `Deref`: peers may change it at any time. [`Exposed::load`] and [`Exposed::store`] copy.
pub struct Exposed<A> {
    exposure: Option<Box<dyn Exposure>>,
    /// `None` after `revoke`.
    buffer: Option<Buffer>,
    loan: u32,
    tap: Tap,
    rights: PhantomData<A>,
}

impl Buffer {
    /// Registers the buffer's capacity for peers, with a key of its own.
    ///
    /// # Errors
    /// The adapter refuses: the buffer comes back.
    pub fn expose<A: Right>(self, rights: A) -> Result<Exposed<A>, Failed<Self>> {
        Exposed::new(self, rights)
    }
}

impl<A: Right> Exposed<A> {
    pub(crate) fn new(buffer: Buffer, _rights: A) -> Result<Self, Failed<Buffer>> {
        let address = buffer.segment(0).addr;
        let tap = buffer.region().tap(buffer.start(), buffer.capacity());
        match buffer.region().registration().expose(tap.clone(), address, A::RIGHTS) {
            Ok(exposure) => {
                let loan = buffer.lend(Loan::Shared);
                let exposure = Some(exposure);
                Ok(Self { exposure, buffer: Some(buffer), loan, tap, rights: PhantomData })
            }
            Err(error) => Err(Failed { error, back: buffer }),
        }
    }

    /// The token that lets a peer access the memory.
    #[must_use]
    pub fn token(&self) -> Remote<A> {
        let address = self.buffer.as_ref().map_or(0, |buffer| buffer.segment(0).addr);
        let key = self.exposure.as_ref().map_or(0, |exposure| exposure.key());
        Remote::new(key, address, self.tap.len() as u64)
    }

    /// Invalidates the token, and returns the buffer with its length at the capacity. No peer accesses it after that.
    #[must_use]
    pub fn revoke(mut self) -> Buffer {
        self.end();
        let mut buffer = self.buffer.take().expect("`revoke` consumes the value");
        buffer.set_len(buffer.capacity());
        buffer
    }
}

impl<A> Exposed<A> {
    fn end(&mut self) {
        // First the key, then the loan: an access that the key permits needs the loan.
        self.exposure = None;
        if let Some(buffer) = &self.buffer {
            buffer.settle(self.loan);
        }
    }

    fn look(&self) {
        if let Some(exposure) = &self.exposure {
            exposure.look();
        }
    }

    /// Bytes of the memory.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.tap.len()
    }

    /// The memory has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from `at` on. Peers may write meanwhile, so the copy may contain old and new bytes.
    ///
    /// # Panics
    /// The bytes aren't within the memory.
    pub fn load(&self, at: usize, to: &mut [u8]) {
        self.look();
        self.tap.load(at, to).expect("bytes within the exposed memory");
    }

    /// Writes bytes from `at` on.
    ///
    /// # Panics
    /// The bytes aren't within the memory.
    pub fn store(&self, at: usize, bytes: &[u8]) {
        self.tap.store(at, bytes).expect("bytes within the exposed memory");
    }

    /// The 8 bytes at `at` as a word, atomic with respect to this host's other accesses and to peers' atomics.
    ///
    /// # Panics
    /// They aren't within the memory, or their address isn't a multiple of 8. (The memory of [`alloc`](crate::alloc) is aligned.)
    #[must_use]
    pub fn word(&self, at: usize) -> Word<'_> {
        let aligned = (self.tap.misalignment() + at as u64).is_multiple_of(8);
        assert!(aligned && at + 8 <= self.len(), "an aligned word at byte {at} of {}", self.len());
        Word { tap: &self.tap, at, exposure: self.exposure.as_deref() }
    }

    /// Borrows bytes without a copy.
    ///
    /// # Safety
    /// No peer writes them, and [`Exposed::store`] and words don't, while the slice exists.
    ///
    /// # Panics
    /// The range isn't within the memory.
    #[must_use]
    pub unsafe fn quiet(&self, range: impl RangeBounds<usize>) -> &[u8] {
        let (start, end) = crate::range::limits(&range, self.len());
        let buffer = self.buffer.as_ref().expect("only `revoke` takes the buffer");
        let first = buffer.region().mapping().at(buffer.start() + start);
        // SAFETY: initialised and within the region; the caller excludes writes.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), end - start) }
    }
}

impl<A> Drop for Exposed<A> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<A: Right> fmt::Debug for Exposed<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Exposed").field(&self.token()).finish()
    }
}

/// 8 bytes of [exposed memory](Exposed::word), in the byte order of the host.
pub struct Word<'e> {
    tap: &'e Tap,
    at: usize,
    exposure: Option<&'e dyn Exposure>,
}

impl Word<'_> {
    fn update(&self, f: impl Fn(u64) -> Option<u64>) -> u64 {
        self.tap.update_word(self.at, f).expect("a word within the exposed memory")
    }

    fn look(&self) {
        if let Some(exposure) = self.exposure {
            exposure.look();
        }
    }

    /// The value.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.look();
        self.update(|_| None)
    }

    /// Sets the value.
    pub fn store(&self, value: u64) {
        self.update(|_| Some(value));
    }

    /// Adds, wrapping around, and returns the value before.
    pub fn fetch_add(&self, add: u64) -> u64 {
        self.update(|value| Some(value.wrapping_add(add)))
    }

    /// Sets the value to `swap` if it is `compare`, and returns the value before.
    pub fn compare_swap(&self, compare: u64, swap: u64) -> u64 {
        self.look();
        self.update(|value| (value == compare).then_some(swap))
    }
}

impl fmt::Debug for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Word").field(&self.at).finish()
    }
}
