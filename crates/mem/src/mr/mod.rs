//! Memory regions.
//!
//! An access keeps the registration that it has found, an `Arc`, as long as it touches the memory. Ending or changing a registration
//! first takes it away and then waits, without a lock, until it is the last to have it: nothing touches the memory once `deregister`
//! has returned.

mod access;
mod check;
mod fault;
mod registered;

pub use access::HeldPages;

use super::last_user::{wait_for_last, wait_for_turn};
use super::listing::listing;
use super::owner::Owner;
use super::pd::Pd;
use super::rights::MrInit;
use super::shortcut::SHORTCUTS;
pub(crate) use check::{CheckedRange, check};
pub(crate) use fault::Use;
use ferroce_os::fork::{OwnTurn, Turn};
use ferroce_os::sync::{RwLock, class};
use ferroce_types::{Error, Result, Users, invalid};
pub(crate) use registered::{Bytes, Registered};
use std::sync::{Arc, Weak};

/// A memory region (ibv_reg_mr(3)). Dropping it deregisters it.
#[derive(Debug)]
pub struct Mr {
    pub(crate) key: u32,
    pub(crate) rkey: u32,
    /// By which others import it, and the owner that knows it by that.
    pub(crate) handle: u32,
    pub(crate) home: Option<Weak<dyn Owner>>,
    /// Of who changes or ends the registration, which may wait for a second.
    pub(crate) changing: Turn,
    /// Locked for a moment only: accesses keep what they find there.
    pub(crate) gate: RwLock<class::RegionGate, Option<Arc<Registered>>>,
    /// Windows bound to it. It grows under the gate held shared.
    pub(crate) windows: Users,
}

impl Mr {
    /// What it is registered as at present.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a region that is deregistered.
    pub fn init(&self) -> Result<MrInit> {
        match &*self.gate.read() {
            Some(registered) => Ok(registered.init),
            None => invalid!("the memory region is deregistered"),
        }
    }

    /// Names it to those who import it.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// The local key.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The remote key: the same, unless regions have two keys ([`KeyTable::tell_keys_apart`](crate::KeyTable::tell_keys_apart)).
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Gives the key another range, other rights or another domain (ibv_rereg_mr(3)); `old` is what `init` was made of. When
    /// this returns, nothing touches the memory as it was registered before. After an error the region is what it was.
    ///
    /// # Safety
    /// As [`Mr::register`], for the new range.
    ///
    /// # Errors
    /// As [`Mr::register`]; [`Error::Invalid`] for a region that is deregistered or of no memory; [`Error::Busy`] while a
    /// window is bound to it, when another process is in the middle of an access and doesn't end it within a second, when another
    /// thread changes the region for longer than a second, and when the region isn't `old` any more.
    pub unsafe fn reregister(&self, pd: Option<&Arc<Pd>>, old: MrInit, init: MrInit) -> Result<()> {
        if self.is_null() {
            return invalid!("a null memory region stays what it is");
        }
        let range = check(&init)?;
        self.check_unbound()?;
        let _changing = self.begin_change()?;
        if self.gate.read().is_none() {
            return invalid!("the memory region is deregistered");
        }
        self.revoke()?;
        if let Some(pd) = pd {
            pd.hold();
        }
        let withdrawn = SHORTCUTS.withdraw(self.key);
        let changed = withdrawn.and_then(|()| self.replace(pd, old, init, range));
        if let Some(registered) = self.registered() {
            registered.publish(self.key, self.handle, self.home.as_ref());
        }
        if let Some(pd) = pd {
            // The domain that it isn't of.
            changed.as_ref().map_or(pd, |before| &before.pd).release();
        }
        changed.map(drop)
    }

    /// Registers it anew, and returns what it was when nothing uses that any more. The caller changes it alone.
    fn replace(
        &self,
        pd: Option<&Arc<Pd>>,
        old: MrInit,
        init: MrInit,
        CheckedRange { shared, noted }: CheckedRange,
    ) -> Result<Arc<Registered>> {
        let Some(before) = self.registered() else { return invalid!("the memory region is deregistered") };
        let placed = |init: &MrInit| (init.addr, init.length, init.iova);
        let keeps_place = matches!(*before.bytes, Bytes::Dm { .. } | Bytes::DmaBuf(_) | Bytes::Backed(_));
        if keeps_place && placed(&init) != placed(&before.init) {
            return invalid!("the region isn't one of plain memory: it keeps its translation");
        }
        if before.init != old {
            return Err(Error::Busy("another thread changes the region".into()));
        }
        let registered = Registered {
            init,
            pd: pd.unwrap_or(&before.pd).clone(),
            bytes: before.bytes.clone(),
            imported: before.imported,
            shared: shared || matches!(*before.bytes, Bytes::Dm { .. }),
            _noted: noted,
        };
        drop(before);
        let Some(mut before) = self.gate.write().replace(Arc::new(registered)) else {
            return invalid!("the memory region is deregistered");
        };
        let left = self.check_unbound().and_then(|()| wait_for_last(&mut before));
        if let Err(busy) = left {
            *self.gate.write() = Some(before);
            return Err(busy);
        }
        Ok(before)
    }

    /// What it is registered as now. What is found stays until the last to have it lets it go.
    #[inline]
    pub(crate) fn registered(&self) -> Option<Arc<Registered>> {
        self.gate.read().clone()
    }

    /// # Errors
    /// [`Error::Busy`] when another thread changes it for longer than a second.
    pub(crate) fn begin_change(&self) -> Result<OwnTurn<'_>> {
        wait_for_turn(&self.changing, "region")
    }

    /// No other process accesses the region when this returns. The caller changes it alone: a revocation that fails lists the region again.
    pub(crate) fn revoke(&self) -> Result<()> {
        listing().map_or(Ok(()), |listing| listing.revoke(self.key))
    }

    pub(crate) fn is_null(&self) -> bool {
        self.gate.read().as_ref().is_some_and(|registered| matches!(*registered.bytes, Bytes::Null))
    }

    pub(crate) fn check_unbound(&self) -> Result<()> {
        self.windows.check_none("the region still has bound memory windows")
    }
}

#[cfg(test)]
impl Mr {
    /// Registers memory of a test, which outlives the region and is accessed by the test and the region in turns.
    pub(crate) fn of_test(pd: &Arc<Pd>, init: MrInit) -> Result<Arc<Self>> {
        // SAFETY: see above.
        unsafe { Self::register(pd, init) }
    }

    /// Likewise, with another range of a test's memory.
    pub(crate) fn change_in_test(&self, pd: Option<&Arc<Pd>>, old: MrInit, init: MrInit) -> Result<()> {
        // SAFETY: see above.
        unsafe { self.reregister(pd, old, init) }
    }
}
