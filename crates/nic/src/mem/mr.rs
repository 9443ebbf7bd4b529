//! Memory regions and the table of keys.
//!
//! A key is an index into the table (24 bits) and a tag (8 bits) that changes at each reuse of the index.
//! Whoever touches a region's memory holds its gate shared; revoking takes it exclusively, so that nothing touches
//! the memory once `deregister` has returned.

use super::dmabuf::DmaBuf;
use super::{Dm, Pd, copy, persist};
use crate::Context;
use crate::error::{Error, Result, invalid};
use crate::share::{Foreign, Region, rights_bits};
use crate::shm;
use ferroce_proto::{Placement, RemoteAccess, RemoteError, Sge};
use parking_lot::RwLock;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

/// Regions there may be at once.
pub(crate) const MAX_MR: usize = 1 << 20;

/// What may be done with a region (IBV_ACCESS_*).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // ibv_reg_mr(3)
pub struct MrAccess {
    pub local_write: bool,
    pub remote_write: bool,
    pub remote_read: bool,
    pub remote_atomic: bool,
    pub flush: Placement,
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
    /// By which others import it, and the context that knows it by that.
    handle: u32,
    home: Option<Weak<Context>>,
    gate: RwLock<Option<Registered>>,
}

/// What a key stands for.
#[derive(Debug)]
struct Registered {
    init: MrInit,
    pd: Arc<Pd>,
    backing: Backing,
    /// Of another process.
    imported: bool,
}

/// What a region's bytes are, besides memory at an address.
#[derive(Debug)]
enum Backing {
    Program,
    Dm {
        dm: Arc<Dm>,
        offset: u64,
    },
    DmaBuf(DmaBuf),
    /// Memory of another process.
    Foreign(Foreign),
}

impl Registered {
    /// Other processes may reach the memory at its address, as far as the rights go.
    fn is_listed(&self) -> bool {
        matches!(self.backing, Backing::Program | Backing::Dm { .. }) && !self.imported
    }

    /// Tells other processes what the region is: those with a QP that reaches it, and those that may import it.
    fn publish(&self, key: u32, handle: u32, home: Option<&Weak<Context>>) {
        let MrInit { addr, length, iova, access } = self.init;
        let (dm, addr) = match &self.backing {
            Backing::Dm { dm, offset } => (dm.handle(), *offset),
            _ => (0, addr),
        };
        let region = Region { pd: self.pd.handle(), dm, rights: rights_bits(access), addr, iova, length };
        if let Some(home) = home.and_then(Weak::upgrade).filter(|_| self.is_listed()) {
            home.handles().list_mr(handle, region);
        }
        self.publish_to_peers(key);
    }

    fn publish_to_peers(&self, key: u32) {
        if let Some(directory) = shm::own_directory().filter(|_| self.is_listed()) {
            directory.publish_region(key, self.pd.id(), &self.init);
        }
    }

    /// Runs `f`, which touches the memory.
    fn accessed<R>(
        &self,
        addr: u64,
        len: u64,
        write: bool,
        f: impl FnOnce(u64) -> std::result::Result<R, copy::Fault>,
    ) -> std::result::Result<R, copy::Fault> {
        match &self.backing {
            Backing::DmaBuf(buffer) => buffer.accessed(write, || f(addr)),
            Backing::Foreign(foreign) => foreign.accessed(addr, len, write, f),
            Backing::Program | Backing::Dm { .. } => f(addr),
        }
    }

    fn end(self) {
        if let Backing::Dm { dm, .. } = &self.backing {
            dm.release();
        }
        self.pd.release();
    }
}

/// All regions of the process, by key.
#[derive(Debug)]
pub(crate) struct MrTable {
    slots: RwLock<Slots>,
}

#[derive(Debug)]
struct Slots {
    regions: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot {
    tag: u8,
    region: Option<Arc<Mr>>,
}

static TABLE: MrTable = MrTable { slots: RwLock::new(Slots { regions: Vec::new(), free: Vec::new() }) };

impl Mr {
    /// Registers `init` in `pd`. Touches no page: it checks that the range is mapped and permits what is asked.
    ///
    /// # Errors
    /// [`Error::Invalid`] for remote write or atomic without local write, a range that wraps, or a length of 0;
    /// [`Error::Fault`] for a range that isn't mapped or not writable where writing is asked; [`Error::NoMemory`]
    /// when all keys are taken.
    pub fn register(pd: &Arc<Pd>, init: MrInit) -> Result<Arc<Self>> {
        check(&init)?;
        TABLE.insert(pd, init, Backing::Program, None)
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
        if dm.context().device().info().name != pd.context().device().info().name {
            return invalid!("the device memory is of another device");
        }
        if offset.checked_add(length).is_none_or(|end| end > dm.len()) {
            return invalid!("{offset}+{length} is outside of {} bytes of device memory", dm.len());
        }
        let init = MrInit { addr: dm.addr() + offset, length, iova: 0, access };
        // A region of no byte is possible here.
        check(&MrInit { addr: dm.addr(), length: dm.len(), ..init })?;
        dm.hold();
        TABLE.insert(pd, init, Backing::Dm { dm: dm.clone(), offset }, None).inspect_err(|_| dm.release())
    }

    /// A region of another process on device memory of it. `init.addr` is the offset there.
    pub(crate) fn import_dm(pd: &Arc<Pd>, dm: &Arc<Dm>, init: MrInit, handle: u32) -> Result<Arc<Self>> {
        let offset = init.addr;
        if offset.checked_add(init.length).is_none_or(|end| end > dm.len()) {
            return invalid!("{offset}+{} is outside of {} bytes of device memory", init.length, dm.len());
        }
        let init = MrInit { addr: dm.addr() + offset, ..init };
        check(&init)?;
        dm.hold();
        let backing = Backing::Dm { dm: dm.clone(), offset };
        TABLE.insert(pd, init, backing, Some(handle)).inspect_err(|_| dm.release())
    }

    /// A region of memory of another process.
    pub(crate) fn import_foreign(
        pd: &Arc<Pd>,
        memory: Foreign,
        init: MrInit,
        handle: u32,
    ) -> Result<Arc<Self>> {
        if init.addr.checked_add(init.length).is_none() || init.iova.checked_add(init.length).is_none() {
            return invalid!("the range {:#x}+{:#x} wraps around", init.addr, init.length);
        }
        TABLE.insert(pd, init, Backing::Foreign(memory), Some(handle))
    }

    /// Ends what an import has made (ibv_unimport_mr(3)): the region of another context goes on to exist.
    ///
    /// # Errors
    /// As [`Mr::deregister`].
    pub fn unimport(&self) -> Result<()> {
        let imported = self.gate.read_recursive().as_ref().is_some_and(|registered| registered.imported);
        if imported { self.deregister() } else { Ok(()) }
    }

    /// Registers `length` bytes from `offset` on of the dma-buf behind `fd`, which stays the caller's
    /// (ibv_reg_dmabuf_mr(3)).
    ///
    /// # Errors
    /// As [`Mr::register`]; EBADF for a number that is no descriptor; [`Error::Invalid`] for one that is no dma-buf, a
    /// range outside of it, or an `iova` at another offset in its page than `offset`.
    pub fn register_dmabuf(
        pd: &Arc<Pd>,
        fd: RawFd,
        offset: u64,
        length: u64,
        iova: u64,
        access: MrAccess,
    ) -> Result<Arc<Self>> {
        const IN_PAGE: u64 = 0xfff;
        if offset & IN_PAGE != iova & IN_PAGE {
            return invalid!(
                "the iova {iova:#x} has another offset in its page than {offset:#x} in the dma-buf"
            );
        }
        let buffer = DmaBuf::map(fd, offset, length, access.local_write)?;
        let init = MrInit { addr: buffer.addr(), length, iova, access };
        check(&init)?;
        TABLE.insert(pd, init, Backing::DmaBuf(buffer), None)
    }

    /// What it is registered as at present.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a region that is deregistered.
    pub fn init(&self) -> Result<MrInit> {
        match &*self.gate.read_recursive() {
            Some(registered) => Ok(registered.init),
            None => invalid!("the memory region is deregistered"),
        }
    }

    /// Names it to those who import it.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// The key, local and remote alike.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Gives the key another range, other rights or another domain (ibv_rereg_mr(3)). When this returns, nothing
    /// touches the memory as it was registered before. After an error the region is what it was.
    ///
    /// # Errors
    /// As [`Mr::register`]; [`Error::Invalid`] for a region that is deregistered; [`Error::Busy`] when another process is
    /// in the middle of an access and doesn't end it within a second.
    pub fn reregister(&self, pd: Option<&Arc<Pd>>, init: MrInit) -> Result<()> {
        check(&init)?;
        shm::revoke_region(self.key)?;
        let mut gate = self.gate.write();
        let Some(registered) = gate.as_mut() else { return invalid!("the memory region is deregistered") };
        let placed = |init: &MrInit| (init.addr, init.length, init.iova);
        if !matches!(registered.backing, Backing::Program) && placed(&init) != placed(&registered.init) {
            drop(gate);
            return invalid!("the region isn't one of plain memory: it keeps its translation");
        }
        registered.init = init;
        if let Some(pd) = pd {
            pd.hold();
            std::mem::replace(&mut registered.pd, pd.clone()).release();
        }
        registered.publish(self.key, self.handle, self.home.as_ref());
        Ok(())
    }

    /// Ends the registration (ibv_dereg_mr(3)). When this returns, nothing touches the memory through the region.
    ///
    /// # Errors
    /// [`Error::Busy`] when another process is in the middle of an access and doesn't end it within a second: the region
    /// stays.
    pub fn deregister(&self) -> Result<()> {
        shm::revoke_region(self.key)?;
        // The gate isn't held while the table is locked.
        let registered = self.gate.write().take();
        if let Some(registered) = registered {
            TABLE.remove(self.key);
            if let Some(home) = self.home.as_ref().and_then(Weak::upgrade) {
                home.handles().remove(self.handle);
            }
            registered.end();
        }
        Ok(())
    }
}

/// The checks of ibv_reg_mr(3).
fn check(init: &MrInit) -> Result<()> {
    let a = init.access;
    if (a.remote_write || a.remote_atomic) && !a.local_write {
        return invalid!("remote write or atomic access needs local write access as well");
    }
    if init.length == 0 {
        return invalid!("a memory region of length 0");
    }
    if init.addr.checked_add(init.length).is_none() || init.iova.checked_add(init.length).is_none() {
        return invalid!("the range {:#x}+{:#x} wraps around", init.addr, init.length);
    }
    if a.flush.persistent && !persist::outlives_power(init.addr, init.length) {
        return invalid!("what isn't a shared mapping of a file on a disk can't be flushed to persistence");
    }
    let writable = a.local_write;
    match crate::mem::mappings_permit(init.addr, init.length, writable) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Fault(format!(
            "{:#x}+{:#x} isn't mapped{} throughout",
            init.addr,
            init.length,
            if writable { " writable" } else { "" }
        ))),
        // Without /proc the check is left to the copies, which fail safely.
        Err(_) => Ok(()),
    }
}

impl MrTable {
    /// The process's table.
    pub(crate) fn global() -> &'static Self {
        &TABLE
    }

    /// Gives a region its key, and a handle unless it has the one of another process.
    fn insert(&self, pd: &Arc<Pd>, init: MrInit, backing: Backing, handle: Option<u32>) -> Result<Arc<Mr>> {
        let mut slots = self.slots.write();
        let index = match slots.free.pop() {
            Some(index) => index as usize,
            None if slots.regions.len() < MAX_MR => {
                slots.regions.push(Slot { tag: 0, region: None });
                slots.regions.len() - 1
            }
            None => return Err(Error::NoMemory(format!("{MAX_MR} memory regions are registered"))),
        };
        let slot = &mut slots.regions[index];
        slot.tag = slot.tag.wrapping_add(1);
        // Index 0 would give keys that look like small integers; keys start at 0x101.
        let key = (index as u32 + 1) << 8 | u32::from(slot.tag);
        let registered = Registered { init, pd: pd.clone(), backing, imported: handle.is_some() };
        let mr = Arc::new_cyclic(|this| {
            let home = handle.is_none().then(|| Arc::downgrade(pd.context()));
            let handle = handle.unwrap_or_else(|| pd.context().handles().add_mr(this.clone()));
            registered.publish(key, handle, home.as_ref());
            Mr { key, handle, home, gate: RwLock::new(Some(registered)) }
        });
        slot.region = Some(mr.clone());
        pd.hold();
        Ok(mr)
    }

    /// Lists all regions in a directory that was made after them.
    pub(crate) fn publish_all(&self) {
        let slots = self.slots.read();
        for mr in slots.regions.iter().filter_map(|slot| slot.region.as_ref()) {
            if let Some(registered) = &*mr.gate.read_recursive() {
                registered.publish_to_peers(mr.key);
            }
        }
    }

    fn remove(&self, key: u32) {
        let index = (key >> 8) - 1;
        let mut slots = self.slots.write();
        // A directory that was just made may have listed it meanwhile; nobody knows of that directory yet.
        shm::withdraw_region(key);
        let region = slots.regions[index as usize].region.take();
        slots.free.push(index);
        drop(slots);
        drop(region);
    }

    fn lookup(&self, key: u32) -> Option<Arc<Mr>> {
        let index = (key >> 8).checked_sub(1)? as usize;
        let slots = self.slots.read();
        let region = slots.regions.get(index)?.region.as_ref()?;
        (region.key == key).then(|| region.clone())
    }

    /// Address and length of the region with this remote key.
    pub(crate) fn range(&self, rkey: u32) -> Option<(u64, u64)> {
        let mr = self.lookup(rkey)?;
        let gate = mr.gate.read_recursive();
        gate.as_ref().map(|registered| (registered.init.iova, registered.init.length))
    }

    /// Keeps the table still over a fork.
    pub(crate) fn freeze(&self) {
        std::mem::forget(self.slots.write());
    }

    /// Undoes `freeze`.
    ///
    /// # Safety
    /// This thread, or in a child its original, has frozen the table.
    pub(crate) unsafe fn thaw(&self) {
        // SAFETY: locked by `freeze`, says the caller.
        unsafe { self.slots.force_unlock_write() };
    }

    /// Runs `f` with the program address of `sge`, while the region can't be revoked.
    ///
    /// # Errors
    /// `Err(())` when the local key, its domain, range or rights don't allow it, or when `f` says so.
    pub(crate) fn local(
        &self,
        pd: u32,
        sge: &Sge,
        write: bool,
        f: impl FnOnce(u64) -> std::result::Result<(), copy::Fault>,
    ) -> std::result::Result<(), ()> {
        let length = u64::from(sge.length);
        self.find_local(pd, sge, write, |registered, addr| registered.accessed(addr, length, write, f))
    }

    /// Runs `f` with the region of `sge` and the address in it, which `f` doesn't touch.
    fn find_local(
        &self,
        pd: u32,
        sge: &Sge,
        write: bool,
        f: impl FnOnce(&Registered, u64) -> std::result::Result<(), copy::Fault>,
    ) -> std::result::Result<(), ()> {
        if sge.length == 0 {
            return Ok(());
        }
        let mr = self.lookup(sge.lkey).ok_or(())?;
        let gate = mr.gate.read_recursive();
        let registered = gate.as_ref().ok_or(())?;
        let Registered { init, pd: own, .. } = registered;
        if own.id() != pd || (write && !init.access.local_write) {
            return Err(());
        }
        let addr = translate(init, sge.addr, u64::from(sge.length)).ok_or(())?;
        f(registered, addr).map_err(|copy::Fault| ())
    }

    /// Whether a peer's process may read what `sge` names at its address.
    ///
    /// # Errors
    /// As [`MrTable::local`], for reading.
    pub(crate) fn is_listed(&self, pd: u32, sge: &Sge) -> std::result::Result<bool, ()> {
        let mut listed = true;
        self.find_local(pd, sge, false, |registered, _| {
            listed = registered.is_listed();
            Ok(())
        })?;
        Ok(listed)
    }

    /// Runs `f` with the program address of a remote peer's range, while the region can't be revoked.
    ///
    /// # Errors
    /// [`RemoteError::Access`] when key, domain, range or rights don't allow it; [`RemoteError::Operational`] when
    /// the memory behind it is gone.
    pub(crate) fn remote<R>(
        &self,
        pd: u32,
        rkey: u32,
        va: u64,
        len: u64,
        access: RemoteAccess,
        f: impl FnOnce(u64) -> std::result::Result<R, copy::Fault>,
    ) -> std::result::Result<R, RemoteError> {
        let write = access != RemoteAccess::Read;
        self.find_remote(pd, rkey, va, len, access, |registered, addr| match (&registered.backing, access) {
            // Atomics are instructions of the process that has the memory.
            (Backing::Foreign(_), RemoteAccess::Atomic | RemoteAccess::Store) => Err(copy::Fault),
            // Nothing is copied; imported regions don't have the right.
            (_, RemoteAccess::Flush(_)) => f(addr),
            _ => registered.accessed(addr, len, write, f),
        })
    }

    /// Whether a remote peer may do `access` to a range.
    ///
    /// # Errors
    /// [`RemoteError::Access`] when it may not.
    pub(crate) fn check_remote(
        &self,
        pd: u32,
        rkey: u32,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> std::result::Result<(), RemoteError> {
        self.find_remote(pd, rkey, va, len, access, |_, _| Ok(()))
    }

    fn find_remote<R>(
        &self,
        pd: u32,
        rkey: u32,
        va: u64,
        len: u64,
        access: RemoteAccess,
        f: impl FnOnce(&Registered, u64) -> std::result::Result<R, copy::Fault>,
    ) -> std::result::Result<R, RemoteError> {
        let mr = self.lookup(rkey).ok_or(RemoteError::Access)?;
        let gate = mr.gate.read_recursive();
        let registered = gate.as_ref().ok_or(RemoteError::Access)?;
        let Registered { init, pd: own, .. } = registered;
        let allowed = match access {
            RemoteAccess::Read => init.access.remote_read,
            RemoteAccess::Write | RemoteAccess::Store => init.access.remote_write,
            RemoteAccess::Atomic => init.access.remote_atomic,
            RemoteAccess::Flush(placement) => placement.is_within(init.access.flush),
        };
        if own.id() != pd || !allowed {
            return Err(RemoteError::Access);
        }
        let addr = translate(init, va, len).ok_or(RemoteError::Access)?;
        f(registered, addr).map_err(|copy::Fault| RemoteError::Operational)
    }
}

/// The program address of `len` bytes at `va` of the region, if they lie inside it.
fn translate(init: &MrInit, va: u64, len: u64) -> Option<u64> {
    let offset = va.checked_sub(init.iova)?;
    (offset.checked_add(len)? <= init.length).then(|| init.addr + offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RW: MrAccess = MrAccess {
        local_write: true,
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
        flush: Placement { global: true, persistent: false },
    };

    fn init(addr: u64, length: u64, access: MrAccess) -> MrInit {
        MrInit { addr, length, iova: addr, access }
    }

    #[test]
    fn ranges_outside_the_region_have_no_address() {
        let i = MrInit { addr: 0x1000, length: 0x100, iova: 0x8000, access: RW };
        assert_eq!(translate(&i, 0x8000, 0x100), Some(0x1000));
        assert_eq!(translate(&i, 0x80ff, 1), Some(0x10ff));
        assert_eq!(translate(&i, 0x80ff, 2), None);
        assert_eq!(translate(&i, 0x7fff, 1), None);
        assert_eq!(translate(&i, u64::MAX, u64::MAX), None);
    }

    #[test]
    fn what_ibv_reg_mr_refuses() {
        let page = vec![0u8; 8192];
        let at = page.as_ptr() as u64;
        let remote_only = MrAccess { remote_write: true, ..MrAccess::default() };
        assert_eq!(check(&init(at, 8192, remote_only)).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(check(&init(at, 0, RW)).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(check(&init(u64::MAX - 5, 10, RW)).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(check(&init(0x10, 10, RW)).unwrap_err().errno(), libc::EFAULT);
        let text = what_ibv_reg_mr_refuses as fn() as usize as u64;
        assert_eq!(check(&init(text, 4, RW)).unwrap_err().errno(), libc::EFAULT);
        check(&init(text, 4, MrAccess::default())).unwrap();
        check(&init(at, 8192, RW)).unwrap();
    }
}
