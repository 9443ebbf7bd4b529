//! Protection domains.

use crate::Context;
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// A protection domain (ibv_alloc_pd(3)): regions, windows, address handles and QPs of one domain may work together.
#[derive(Debug)]
pub struct Pd {
    id: u32,
    context: Arc<Context>,
    users: AtomicUsize,
}

impl Pd {
    /// A new domain of `context`.
    #[must_use]
    pub fn alloc(context: &Arc<Context>) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, context: context.clone(), users: AtomicUsize::new(0) })
    }

    /// The device context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::Release);
    }

    /// May the domain be freed (ibv_dealloc_pd(3))?
    ///
    /// # Errors
    /// [`Error::Busy`] while a region, QP, SRQ or address handle belongs to it.
    pub fn check_unused(&self) -> Result<()> {
        match self.users.load(Ordering::Acquire) {
            0 => Ok(()),
            n => Err(Error::Busy(format!("{n} objects still belong to this protection domain"))),
        }
    }
}
