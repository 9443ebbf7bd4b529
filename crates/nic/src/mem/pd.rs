//! Protection domains.

use super::QueueMemory;
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
    /// What a parent domain is made on.
    base: Option<Arc<Pd>>,
    /// Where the queues of its objects lie; `None`: wherever the adapter likes.
    queues: Option<Arc<dyn QueueMemory>>,
}

impl Pd {
    /// A new domain of `context`.
    #[must_use]
    pub fn alloc(context: &Arc<Context>) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let users = AtomicUsize::new(0);
        Arc::new(Self { id, context: context.clone(), users, base: None, queues: None })
    }

    /// A parent domain of `base` (ibv_alloc_parent_domain(3)): the same domain, with the objects made on it counted
    /// apart, and their queues in memory of `queues`.
    #[must_use]
    pub fn parent(base: &Arc<Self>, queues: Option<Arc<dyn QueueMemory>>) -> Arc<Self> {
        base.hold();
        let (context, users) = (base.context.clone(), AtomicUsize::new(0));
        Arc::new(Self { id: base.id, context, users, base: Some(base.clone()), queues })
    }

    /// Where the queues of its objects lie, if the program has a say in it.
    pub(crate) fn queues(&self) -> Option<&Arc<dyn QueueMemory>> {
        self.queues.as_ref()
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

    /// Ends the domain (ibv_dealloc_pd(3)).
    ///
    /// # Errors
    /// As [`Pd::check_unused`].
    pub fn dealloc(&self) -> Result<()> {
        self.check_unused()?;
        if let Some(base) = &self.base {
            base.release();
        }
        Ok(())
    }

    /// May the domain be freed?
    ///
    /// # Errors
    /// [`Error::Busy`] while a region, QP, SRQ, address handle or parent domain belongs to it.
    pub fn check_unused(&self) -> Result<()> {
        match self.users.load(Ordering::Acquire) {
            0 => Ok(()),
            n => Err(Error::Busy(format!("{n} objects still belong to this protection domain"))),
        }
    }
}
