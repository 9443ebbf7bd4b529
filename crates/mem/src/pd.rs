//! Protection domains.

use super::owner::{ListedObject, Owner};
use super::queue_memory::QueueMemory;
use ferroce_types::{Quota, QuotaPlace, Result, Users};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// Protection domains that a process may have, parent domains among them.
pub const MAX_PD: u32 = 1 << 20;
static DOMAINS: Quota = Quota::new("protection domains", MAX_PD);

/// A protection domain (ibv_alloc_pd(3)): regions, windows, address handles and QPs of one domain may work together.
#[derive(Debug)]
pub struct Pd {
    id: u32,
    owner: Arc<dyn Owner>,
    /// Those of a domain that is imported within the process count as the original's.
    users: Arc<Users>,
    /// By which others import it, and the owner that knows it by that.
    handle: u32,
    home: Option<Weak<dyn Owner>>,
    /// What a parent domain is made on.
    base: Option<Arc<Pd>>,
    /// Where the queues of its objects lie; `None`: wherever the adapter likes.
    queues: Option<Arc<dyn QueueMemory>>,
    _held: QuotaPlace,
}

impl Pd {
    /// A new domain of `owner`.
    ///
    /// # Errors
    /// [`ferroce_types::Error::NoMemory`] when there are [`MAX_PD`].
    pub fn alloc<O: Owner>(owner: &Arc<O>) -> Result<Arc<Self>> {
        Self::new(owner.clone(), None)
    }

    fn new(owner: Arc<dyn Owner>, handle: Option<u32>) -> Result<Arc<Self>> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let held = DOMAINS.take()?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new_cyclic(|this: &Weak<Self>| {
            let home = handle.is_none().then(|| Arc::downgrade(&owner));
            let handle = handle.unwrap_or_else(|| {
                let handle = owner.add(this.clone());
                owner.list(handle, ListedObject::Pd);
                handle
            });
            let users = Arc::default();
            Self { id, owner, users, handle, home, base: None, queues: None, _held: held }
        }))
    }

    /// What stands here for the domain `handle` of another process.
    ///
    /// # Errors
    /// As [`Pd::alloc`].
    pub fn of_another<O: Owner>(owner: &Arc<O>, handle: u32) -> Result<Arc<Self>> {
        Self::new(owner.clone(), Some(handle))
    }

    /// The same domain, for objects of another owner.
    ///
    /// # Errors
    /// As [`Pd::alloc`].
    pub fn shared<O: Owner>(original: &Arc<Self>, owner: &Arc<O>) -> Result<Arc<Self>> {
        let held = DOMAINS.take()?;
        let Self { id, handle, .. } = **original;
        let (users, home, queues) = (original.users.clone(), original.home.clone(), original.queues.clone());
        Ok(Arc::new(Self { id, owner: owner.clone(), users, handle, home, base: None, queues, _held: held }))
    }

    /// A parent domain of `base` (ibv_alloc_parent_domain(3)): the same domain, with the objects made on it counted
    /// apart, and their queues in memory of `queues`.
    ///
    /// # Errors
    /// As [`Pd::alloc`].
    pub fn parent(base: &Arc<Self>, queues: Option<Arc<dyn QueueMemory>>) -> Result<Arc<Self>> {
        let held = DOMAINS.take()?;
        base.hold();
        let Self { id, handle, .. } = **base;
        let (owner, users) = (base.owner.clone(), Arc::default());
        Ok(Arc::new(Self {
            id,
            owner,
            users,
            handle,
            home: None,
            base: Some(base.clone()),
            queues,
            _held: held,
        }))
    }

    /// Where the queues of its objects lie, if the program chooses it.
    #[must_use]
    pub fn queues(&self) -> Option<&Arc<dyn QueueMemory>> {
        self.queues.as_ref()
    }

    /// Names it to those who import it.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Whose it is.
    #[must_use]
    pub fn owner(&self) -> &Arc<dyn Owner> {
        &self.owner
    }

    /// The domain's number, which keys are checked by. Domains that stand for one have the same.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Counts an object that belongs to the domain: it can't be freed meanwhile.
    pub fn hold(&self) {
        self.users.hold();
    }

    /// Undoes [`Pd::hold`].
    pub fn release(&self) {
        self.users.release();
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
        if let Some(home) = self.home.as_ref().and_then(Weak::upgrade) {
            home.remove(self.handle);
        }
        Ok(())
    }

    /// May the domain be freed?
    ///
    /// # Errors
    /// [`ferroce_types::Error::Busy`] while a region, QP, SRQ, address handle or parent domain belongs to it.
    pub fn check_unused(&self) -> Result<()> {
        self.users.check_none("the protection domain still has objects")
    }
}

/// Keeps a domain from being freed while it exists.
#[derive(Debug)]
pub struct PdHold(Arc<Pd>);

impl PdHold {
    /// Holds `pd`.
    #[must_use]
    pub fn new(pd: &Arc<Pd>) -> Self {
        pd.hold();
        Self(pd.clone())
    }
}

impl Drop for PdHold {
    fn drop(&mut self) {
        self.0.release();
    }
}
