//! Memory that the program has borrowed for the time of a call.

use crate::mapping::{AccessBy, Loan, Tap};
use crate::payload::Part;
use crate::region::{Region, Registration};
use crate::{Error, Held, RawMemory, Segments};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Registers borrowed memory, for requests that end before [`borrowing`] returns.
pub struct Borrows<'env> {
    regions: Mutex<Vec<Arc<Region>>>,
    /// Invariant: memory with a shorter lifetime isn't taken.
    env: PhantomData<&'env mut &'env ()>,
}

/// Calls `f` with something that registers memory of the lifetime `'env`, which is longer than the call. The memory is deregistered
/// when this returns, also by a panic.
///
/// The process aborts if a request has its memory for longer: the memory is the caller's again.
pub fn borrowing<'env, R>(f: impl FnOnce(&Borrows<'env>) -> R) -> R {
    f(&Borrows { regions: Mutex::default(), env: PhantomData })
}

impl<'env> Borrows<'env> {
    /// Registers memory that is read.
    ///
    /// # Errors
    /// The adapter refuses.
    pub fn for_reading(
        &self,
        bytes: &'env [u8],
        by: AccessBy,
        register: impl FnOnce(Tap) -> Result<Box<dyn Registration>, Error>,
    ) -> Result<(Segments, Held), Error> {
        self.lend(NonNull::from(bytes), Loan::Read, by, register)
    }

    /// Registers memory that is written.
    ///
    /// # Errors
    /// The adapter refuses.
    pub fn for_writing(
        &self,
        bytes: &'env mut [u8],
        by: AccessBy,
        register: impl FnOnce(Tap) -> Result<Box<dyn Registration>, Error>,
    ) -> Result<(Segments, Held), Error> {
        self.lend(NonNull::from(bytes), Loan::Write, by, register)
    }

    fn lend(
        &self,
        bytes: NonNull<[u8]>,
        loan: Loan,
        by: AccessBy,
        register: impl FnOnce(Tap) -> Result<Box<dyn Registration>, Error>,
    ) -> Result<(Segments, Held), Error> {
        if bytes.is_empty() {
            return Ok((Segments::new(), Held::default()));
        }
        // SAFETY: initialised, and borrowed until `borrowing` has returned, which deregisters before. What is borrowed for reading
        // is lent for reading alone: the buffer doesn't leave the loan.
        let memory = unsafe { RawMemory::new(bytes.cast(), bytes.len(), ()) };
        let buffer = crate::register(memory, by, register).map_err(|failed| failed.error)?;
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).push(buffer.region().clone());
        let segments = Segments::one(buffer.segment(buffer.capacity()));
        Ok((segments, Held::borrowed(Part::Buffer(buffer), loan)))
    }

    /// Deregisters the memory of requests that have ended.
    pub fn settle(&self) {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let ended: Vec<_> = regions.extract_if(.., |region| Arc::strong_count(region) == 1).collect();
        drop(regions);
        drop(ended);
    }
}

impl Drop for Borrows<'_> {
    fn drop(&mut self) {
        self.settle();
        if !self.regions.get_mut().unwrap_or_else(PoisonError::into_inner).is_empty() {
            eprintln!("ferroce: a request has borrowed memory beyond the end of its scope");
            std::process::abort();
        }
    }
}
