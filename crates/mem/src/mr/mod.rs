//! Memory regions.
//!
//! An access keeps the registration that it has found, an `Arc`, as long as it touches the memory. Ending or changing a registration
//! first takes it away and then waits, without a lock, until it is the last to have it: nothing touches the memory once `deregister`
//! has returned.

mod access;
mod check;
mod fault;
mod registered;

use super::dmabuf::DmaBuf;
use super::keys::KeyTable;
use super::last_user::wait_for_last;
use super::{Backing, Dm, Owner, Pd, in_flight, null};
pub(crate) use access::translate_in;
use check::check;
pub(crate) use fault::Use;
use ferroce_os::fork::{OwnTurn, Turn};
use ferroce_os::sync::{RwLock, class};
use ferroce_proto::Placement;
use ferroce_types::{Error, Result, Users, invalid};
use registered::{Bytes, Registered};
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

/// Bytes of the longest region, but for the whole address space.
pub const MAX_MR_SIZE: u64 = 1 << 47;

/// What may be done with a region (IBV_ACCESS_*).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // ibv_reg_mr(3)
pub struct MrAccess {
    pub local_write: bool,
    pub remote_write: bool,
    pub remote_read: bool,
    pub remote_atomic: bool,
    pub flush: Placement,
    /// IBV_ACCESS_MW_BIND: windows may be bound to it.
    pub bind_windows: bool,
    /// IBV_ACCESS_ON_DEMAND: its pages may come and go.
    pub on_demand: bool,
}

impl MrAccess {
    /// All that a peer or a work request can do with memory that is there.
    pub const ALL: Self = Self {
        local_write: true,
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
        flush: Placement { global: true, persistent: false },
        bind_windows: true,
        on_demand: false,
    };
}

/// What to register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrInit {
    /// First byte in the program's memory.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Address of the first byte in work requests and RETHs; `addr` unless ibv_reg_mr_iova(3) says otherwise.
    pub iova: u64,
    /// Rights.
    pub access: MrAccess,
}

/// A memory region (ibv_reg_mr(3)). Dropping it deregisters it.
#[derive(Debug)]
pub struct Mr {
    key: u32,
    rkey: u32,
    /// By which others import it, and the owner that knows it by that.
    handle: u32,
    home: Option<Weak<dyn Owner>>,
    /// Of who changes or ends the registration, which may wait for a second.
    changing: Turn,
    /// Locked for a moment only: accesses keep what they find there.
    gate: RwLock<class::RegionGate, Option<Arc<Registered>>>,
    /// Windows bound to it. It grows under the gate held shared.
    windows: Users,
}

impl Mr {
    /// Registers `init` in `pd`. Touches no page: it checks that the range is mapped and permits what is asked.
    ///
    /// # Safety
    /// Until [`Mr::deregister`] has returned `Ok`, requests that name the region, and peers' requests if it has remote rights, read and
    /// write the range. For each such access the caller answers as if it made the access itself.
    ///
    /// # Errors
    /// [`Error::Invalid`] for remote write or atomic without local write, a range that wraps, or a length of 0;
    /// [`Error::Fault`] for a range that isn't mapped or not writable where writing is asked; [`Error::NoMemory`]
    /// when all keys are taken.
    pub unsafe fn register(pd: &Arc<Pd>, init: MrInit) -> Result<Arc<Self>> {
        let shared = check(&init)?;
        Self::insert(pd, init, Bytes::Program, shared, None)
    }

    /// Registers `length` bytes of device memory from `offset` on; addresses count from 0 (ibv_reg_dm_mr(3)).
    ///
    /// # Errors
    /// As [`Mr::register`]; [`Error::Invalid`] for a range outside of the memory, or memory of another device.
    pub fn register_dm(
        pd: &Arc<Pd>,
        dm: &Arc<Dm>,
        offset: u64,
        length: u64,
        access: MrAccess,
    ) -> Result<Arc<Self>> {
        if dm.owner().device_name() != pd.owner().device_name() {
            return invalid!("the device memory is of another device");
        }
        if offset.checked_add(length).is_none_or(|end| end > dm.len()) {
            return invalid!("{offset}+{length} is outside of {} bytes of device memory", dm.len());
        }
        let init = MrInit { addr: dm.addr() + offset, length, iova: 0, access };
        // A region of no byte is possible here.
        check(&MrInit { addr: dm.addr(), length: dm.len(), ..init })?;
        dm.hold();
        Self::insert(pd, init, Bytes::Dm { dm: dm.clone(), offset }, true, None).inspect_err(|_| dm.release())
    }

    /// A region of another process on device memory of it. `init.addr` is the offset there.
    pub fn import_dm(pd: &Arc<Pd>, dm: &Arc<Dm>, init: MrInit, handle: u32) -> Result<Arc<Self>> {
        let offset = init.addr;
        if offset.checked_add(init.length).is_none_or(|end| end > dm.len()) {
            return invalid!("{offset}+{} is outside of {} bytes of device memory", init.length, dm.len());
        }
        let init = MrInit { addr: dm.addr() + offset, ..init };
        check(&init)?;
        dm.hold();
        let bytes = Bytes::Dm { dm: dm.clone(), offset };
        Self::insert(pd, init, bytes, false, Some(handle)).inspect_err(|_| dm.release())
    }

    /// A region of memory of another process.
    pub fn import_backed(
        pd: &Arc<Pd>,
        memory: Box<dyn Backing>,
        init: MrInit,
        handle: u32,
    ) -> Result<Arc<Self>> {
        if init.addr.checked_add(init.length).is_none() || init.iova.checked_add(init.length).is_none() {
            return invalid!("the range {:#x}+{:#x} wraps around", init.addr, init.length);
        }
        Self::insert(pd, init, Bytes::Backed(memory), false, Some(handle))
    }

    /// Ends what an import has made (ibv_unimport_mr(3)): the region of another context goes on to exist.
    ///
    /// # Errors
    /// As [`Mr::deregister`].
    pub fn unimport(&self) -> Result<()> {
        let imported = self.gate.read().as_ref().is_some_and(|registered| registered.imported);
        if imported { self.deregister() } else { Ok(()) }
    }

    /// Registers `length` bytes from `offset` on of the dma-buf behind `fd`, which stays the caller's
    /// (ibv_reg_dmabuf_mr(3)).
    ///
    /// # Errors
    /// As [`Mr::register`]; [`Error::NotSupported`] for a negative number; EBADF for another one that is no descriptor;
    /// [`Error::Invalid`] for one that is no dma-buf, a range outside of it, or an `iova` at another offset in its page
    /// than `offset`.
    pub fn register_dmabuf(
        pd: &Arc<Pd>,
        fd: RawFd,
        offset: u64,
        length: u64,
        iova: u64,
        access: MrAccess,
    ) -> Result<Arc<Self>> {
        const IN_PAGE: u64 = 0xfff;
        // NCCL and UCX ask with −1 whether the adapter reaches the memory of GPUs, and take EBADF for a yes. A dma-buf
        // that can't be mapped for the CPU, as theirs, isn't reached here.
        if fd < 0 {
            return Err(Error::NotSupported(
                "memory of other devices isn't reached by their dma-bufs".into(),
            ));
        }
        if offset & IN_PAGE != iova & IN_PAGE {
            return invalid!(
                "the iova {iova:#x} has another offset in its page than {offset:#x} in the dma-buf"
            );
        }
        let buffer = DmaBuf::map(fd, offset, length, access.local_write)?;
        let init = MrInit { addr: buffer.addr(), length, iova, access };
        check(&init)?;
        Self::insert(pd, init, Bytes::DmaBuf(buffer), false, None)
    }

    /// A region of no memory: reading gives zeros, and what is written is lost. Only its local key is of use
    /// (ibv_alloc_null_mr(3)). It doesn't keep the domain from being deallocated: on adapters that have it, the key is one
    /// of the device, and the kernel doesn't know of the region.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when all keys are taken, or when there is no room for zeros in the address space.
    pub fn null(pd: &Arc<Pd>) -> Result<Arc<Self>> {
        let access = MrAccess { local_write: true, ..MrAccess::default() };
        let init = MrInit { addr: null::zeros()?, length: u64::MAX, iova: 0, access };
        Self::insert(pd, init, Bytes::Null, false, None)
    }

    /// Gives a region its key, and a handle unless it has the one of another process.
    fn insert(
        pd: &Arc<Pd>,
        init: MrInit,
        bytes: Bytes,
        shared: bool,
        handle: Option<u32>,
    ) -> Result<Arc<Self>> {
        let mr = KeyTable::global().insert_region(|key, rkey| {
            let (imported, bytes) = (handle.is_some(), Arc::new(bytes));
            let registered = Registered { init, pd: pd.clone(), bytes, imported, shared };
            Arc::new_cyclic(|this| {
                let home = handle.is_none().then(|| Arc::downgrade(pd.owner()));
                let handle = handle.unwrap_or_else(|| pd.owner().add_mr(this.clone()));
                registered.publish(key, handle, home.as_ref());
                let gate = RwLock::new(Some(Arc::new(registered)));
                Self { key, rkey, handle, home, changing: Turn::free(), gate, windows: Users::default() }
            })
        })?;
        if !mr.is_null() {
            pd.hold();
        }
        Ok(mr)
    }

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

    /// The remote key: the same, unless keys are told apart ([`KeyTable::tell_keys_apart`]).
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
    /// window is bound to it, when another process is in the middle of an access and doesn't end it within a second, and
    /// when the region isn't `old` any more: another thread has changed it.
    pub unsafe fn reregister(&self, pd: Option<&Arc<Pd>>, old: MrInit, init: MrInit) -> Result<()> {
        if self.is_null() {
            return invalid!("a null memory region stays what it is");
        }
        let shared = check(&init)?;
        self.check_unbound()?;
        let _changing = self.begin_change()?;
        if self.gate.read().is_none() {
            return invalid!("the memory region is deregistered");
        }
        self.revoke()?;
        if let Some(pd) = pd {
            pd.hold();
        }
        let withdrawn = KeyTable::global().shortcuts().withdraw(self.key);
        let changed = withdrawn.and_then(|()| self.replace(pd, old, init, shared));
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
        shared: bool,
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

    /// Ends the registration (ibv_dereg_mr(3)). When this returns, nothing touches the memory through the region.
    ///
    /// # Errors
    /// [`Error::Busy`] while a window is bound to it, and when another process, or a thread, is in the middle of an access and
    /// doesn't end it within a second, or changes the region: the region stays.
    pub fn deregister(&self) -> Result<()> {
        self.check_unbound()?;
        let changing = self.begin_change()?;
        if self.gate.read().is_none() {
            // Its key may be another region's now.
            return Ok(());
        }
        self.revoke()?;
        let withdrawn = KeyTable::global().shortcuts().withdraw(self.key);
        // An access that comes from here on is denied.
        let Some(mut registered) = self.gate.write().take() else { return Ok(()) };
        let left =
            withdrawn.and_then(|()| self.check_unbound()).and_then(|()| wait_for_last(&mut registered));
        if let Err(busy) = left {
            registered.publish_to_data_paths(self.key);
            registered.publish_to_peers(self.key);
            *self.gate.write() = Some(registered);
            return Err(busy);
        }
        drop(changing);
        KeyTable::global().remove_region(self);
        if let Some(home) = self.home.as_ref().and_then(Weak::upgrade) {
            home.remove(self.handle);
        }
        in_flight::forget(registered.init.addr, registered.init.length);
        registered.end();
        Ok(())
    }

    /// What it is registered as now. What is found stays until the last to have it lets it go.
    fn registered(&self) -> Option<Arc<Registered>> {
        self.gate.read().clone()
    }

    /// # Errors
    /// [`Error::Busy`] while another thread is at it.
    fn begin_change(&self) -> Result<OwnTurn<'_>> {
        self.changing
            .take()
            .ok_or_else(|| Error::Busy("another thread changes the region, or ends it".into()))
    }

    /// No other process accesses the region when this returns. The caller changes it alone: a revocation that fails lists the region again.
    fn revoke(&self) -> Result<()> {
        KeyTable::global().listing().map_or(Ok(()), |listing| listing.revoke(self.key))
    }

    fn is_null(&self) -> bool {
        self.gate.read().as_ref().is_some_and(|registered| matches!(*registered.bytes, Bytes::Null))
    }

    fn check_unbound(&self) -> Result<()> {
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
