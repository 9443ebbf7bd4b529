//! Registered memory: the bytes, their owner, and what the adapter knows of them.

use crate::mapping::{Mapping, Tap};
use crate::{Error, Rights};
use std::any::Any;
use std::sync::Arc;

/// What an adapter knows of a region. Dropping it deregisters: the adapter doesn't touch the region after that.
pub trait Registration: Send + Sync {
    /// The local key.
    fn key(&self) -> u32;
    /// The address of the first byte, as requests name it.
    fn address(&self) -> u64;
    /// The region as the adapter knows it, if a window needs more than its key.
    fn handle(&self) -> u64 {
        0
    }
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
    /// The program looks at the memory. A program that waits for a change looks again and again, so in a simulation time passes.
    fn look(&self) {}
}

/// A registered region. The fields are dropped in this order: deregistered, then released.
pub(crate) struct Region {
    registration: Box<dyn Registration>,
    mapping: Arc<Mapping>,
    /// What the registration returns, which each request names.
    address: u64,
    key: u32,
}

impl Region {
    pub(crate) fn new(registration: Box<dyn Registration>, mapping: Arc<Mapping>) -> Self {
        let (address, key) = (registration.address(), registration.key());
        Self { registration, mapping, address, key }
    }

    #[inline]
    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    #[inline]
    pub(crate) const fn key(&self) -> u32 {
        self.key
    }

    #[inline]
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
        let Self { registration, mapping, .. } = Arc::try_unwrap(region)?;
        drop(registration);
        // The adapter's taps went with the registration.
        let mapping = Arc::into_inner(mapping).expect("a deregistered region has one user");
        Ok(mapping.into_owner().take().unwrap_or_else(|_| unreachable!("the type was compared")))
    }
}
