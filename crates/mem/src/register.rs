//! Regions and windows get their keys here, and give them back.

use super::backing::Backing;
use super::dm::Dm;
use super::dmabuf::DmaBuf;
use super::in_flight;
use super::keys::{KeyTable, Keyed};
use super::last_user::wait_for_last;
use super::mr::{Bytes, CheckedRange, Mr, Registered, check};
use super::mw::{Mw, MwKind, WindowState, end};
use super::null;
use super::owner::{Owner, is_same};
use super::pd::Pd;
use super::rights::{MrAccess, MrInit};
use super::shortcut::SHORTCUTS;
use ferroce_os::fork::Turn;
use ferroce_os::sync::RwLock;
use ferroce_types::{Error, Result, Users, invalid};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

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
        let range = check(&init)?;
        Self::insert(pd, init, Bytes::Program, range, None)
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
        let range = check(&MrInit { addr: dm.addr(), length: dm.len(), ..init })?;
        dm.hold();
        let range = CheckedRange { shared: true, ..range };
        Self::insert(pd, init, Bytes::Dm { dm: dm.clone(), offset }, range, None)
            .inspect_err(|_| dm.release())
    }

    /// A region of another process on device memory of it. `init.addr` is the offset there.
    pub fn import_dm(pd: &Arc<Pd>, dm: &Arc<Dm>, init: MrInit, handle: u32) -> Result<Arc<Self>> {
        let offset = init.addr;
        if offset.checked_add(init.length).is_none_or(|end| end > dm.len()) {
            return invalid!("{offset}+{} is outside of {} bytes of device memory", init.length, dm.len());
        }
        let init = MrInit { addr: dm.addr() + offset, ..init };
        let range = CheckedRange { shared: false, ..check(&init)? };
        dm.hold();
        let bytes = Bytes::Dm { dm: dm.clone(), offset };
        Self::insert(pd, init, bytes, range, Some(handle)).inspect_err(|_| dm.release())
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
        Self::insert(pd, init, Bytes::Backed(memory), CheckedRange::unshared(), Some(handle))
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
    /// As [`Mr::register`]; [`Error::NotSupported`] for a negative number; EBADF for another one that isn't a descriptor;
    /// [`Error::Invalid`] for one that isn't a dma-buf's, a range outside of it, or an `iova` at another offset in its page
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
        let range = CheckedRange { shared: false, ..check(&init)? };
        Self::insert(pd, init, Bytes::DmaBuf(buffer), range, None)
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
        Self::insert(pd, init, Bytes::Null, CheckedRange::unshared(), None)
    }

    /// Gives a region its key, and a handle unless it has the one of another process.
    fn insert(
        pd: &Arc<Pd>,
        init: MrInit,
        bytes: Bytes,
        CheckedRange { shared, noted }: CheckedRange,
        handle: Option<u32>,
    ) -> Result<Arc<Self>> {
        let mr = KeyTable::global().insert_region(|key, rkey| {
            let (imported, bytes) = (handle.is_some(), Arc::new(bytes));
            let registered = Registered { init, pd: pd.clone(), bytes, imported, shared, _noted: noted };
            Arc::new_cyclic(|this: &Weak<Self>| {
                let home = handle.is_none().then(|| Arc::downgrade(pd.owner()));
                let handle = handle.unwrap_or_else(|| pd.owner().add(this.clone()));
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

    /// Ends the registration (ibv_dereg_mr(3)). When this returns, nothing touches the memory through the region.
    ///
    /// # Errors
    /// [`Error::Busy`] while a window is bound to it, and when another process, or a thread, is in the middle of an access and
    /// doesn't end it within a second, or changes the region for longer than a second: the region stays.
    pub fn deregister(&self) -> Result<()> {
        self.check_unbound()?;
        let changing = self.begin_change()?;
        if self.gate.read().is_none() {
            // Its key may be another region's now.
            return Ok(());
        }
        self.revoke()?;
        let withdrawn = SHORTCUTS.withdraw(self.key);
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
}

impl Mw {
    /// A window of `pd` that isn't bound.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when there are as many as can be.
    pub fn alloc(pd: &Arc<Pd>, kind: MwKind) -> Result<Arc<Self>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mw = KeyTable::global().insert_window(|rkey| {
            let state = WindowState { rkey, bound: None, freed: false };
            Arc::new(Self { number, kind, pd: pd.clone(), changing: Turn::free(), gate: RwLock::new(state) })
        })?;
        pd.hold();
        Ok(mw)
    }

    /// Unbinds it and gives its key back (ibv_dealloc_mw(3)). When this returns, nothing touches memory through it.
    ///
    /// # Errors
    /// [`Error::Busy`] when a thread is in the middle of an access, or binds the window, and doesn't end it within a second: the
    /// window stays.
    pub fn dealloc(&self) -> Result<()> {
        let _changing = self.begin_change()?;
        let mut gate = self.gate.write();
        if gate.freed {
            return Ok(());
        }
        gate.freed = true;
        let (rkey, before) = (gate.rkey, gate.bound.take());
        drop(gate);
        if let Err((bound, busy)) = end(before) {
            let mut gate = self.gate.write();
            (gate.freed, gate.bound) = (false, Some(bound));
            return Err(busy);
        }
        KeyTable::global().remove_window(rkey);
        self.pd.release();
        Ok(())
    }
}

impl KeyTable {
    /// Ends the windows and regions of `owner`, which is closed while they exist; returns how many they were.
    pub fn end_with_owner(&self, owner: &dyn Owner) -> (usize, usize) {
        let all = self.all();
        let is_its = |pd: &Pd| is_same(&**pd.owner(), owner);
        let (mut windows, mut regions) = (0, 0);
        // A region with a window on it can't end.
        for held in &all {
            if let Keyed::Window(mw) = held
                && is_its(mw.pd())
            {
                windows += 1;
                if let Err(why) = mw.dealloc() {
                    tracing::warn!(%why, "a window of a closed device is still allocated");
                }
            }
        }
        for held in &all {
            if let Keyed::Region(mr) = held
                && mr.pd().is_some_and(|pd| is_its(&pd))
            {
                regions += 1;
                if let Err(why) = mr.deregister() {
                    tracing::warn!(%why, "a region of a closed device is still registered");
                }
            }
        }
        (windows, regions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyUser;
    use crate::double::{CountedBacking, HandleKeeper};
    use ferroce_types::{RemoteAccess, RemoteError, Sge};
    use std::sync::atomic::AtomicU32;

    fn init(memory: &[u8]) -> MrInit {
        let (addr, length) = (memory.as_ptr() as u64, memory.len() as u64);
        MrInit { addr, length, iova: addr, access: MrAccess::ALL }
    }

    #[test]
    fn what_ends_gives_back_its_handle_and_its_place_in_the_domain_once() {
        let owner = Arc::new(HandleKeeper::default());
        let pd = Pd::alloc(&owner).unwrap();
        let memory = [0; 64];
        let mr = Mr::of_test(&pd, init(&memory)).unwrap();
        assert_eq!(owner.handles(), [pd.handle(), mr.handle()]);
        assert_eq!(pd.dealloc().unwrap_err().errno(), libc::EBUSY);
        for _ in 0..2 {
            mr.deregister().unwrap();
            assert_eq!(owner.handles(), [pd.handle()]);
            pd.check_unused().unwrap();
        }
        let mw = Mw::alloc(&pd, MwKind::One).unwrap();
        assert_eq!(pd.dealloc().unwrap_err().errno(), libc::EBUSY);
        for _ in 0..2 {
            mw.dealloc().unwrap();
            pd.check_unused().unwrap();
        }
        // A null region isn't one of the domain's.
        let null = Mr::null(&pd).unwrap();
        pd.check_unused().unwrap();
        null.deregister().unwrap();
        pd.check_unused().unwrap();
        let parent = Pd::parent(&pd, None).unwrap();
        assert_eq!(pd.dealloc().unwrap_err().errno(), libc::EBUSY);
        parent.dealloc().unwrap();
        pd.dealloc().unwrap();
        assert!(owner.handles().is_empty());
    }

    #[test]
    fn a_region_that_changes_its_domain_belongs_to_the_new_one_alone() {
        let owner = Arc::new(HandleKeeper::default());
        let [first, second] = [(); 2].map(|()| Pd::alloc(&owner).unwrap());
        let memory = [0; 64];
        let init = init(&memory);
        let half = MrInit { length: 32, ..init };
        let mr = Mr::of_test(&first, init).unwrap();
        let are_used = || [&first, &second].map(|pd| pd.check_unused().is_err());
        // It isn't what the change was made of.
        assert_eq!(mr.change_in_test(Some(&second), half, init).unwrap_err().errno(), libc::EBUSY);
        assert_eq!(are_used(), [true, false]);
        mr.change_in_test(Some(&second), init, half).unwrap();
        assert_eq!(are_used(), [false, true]);
        assert!(mr.is_of(&second) && !mr.is_of(&first));
        mr.deregister().unwrap();
        assert_eq!(are_used(), [false, false]);
    }

    #[test]
    fn a_region_whose_end_was_refused_is_found_without_a_lock_again() {
        let _inside = ferroce_os::fork::enter_library().expect("no fork");
        let pd = Pd::alloc(&Arc::new(HandleKeeper::default())).unwrap();
        let memory = [0; 64];
        let mr = Mr::of_test(&pd, init(&memory)).unwrap();
        let sge = Sge { addr: memory.as_ptr() as u64, length: 8, lkey: mr.key() };
        let is_found = || {
            let in_use = ferroce_os::sync::InUse::enter(mr.key()).expect("a thread in the library");
            SHORTCUTS.find(&in_use, pd.id(), &sge, true).is_some()
        };
        assert!(is_found());
        let used = mr.registered();
        assert_eq!(mr.deregister().unwrap_err().errno(), libc::EBUSY);
        assert!(is_found());
        drop(used);
        mr.deregister().unwrap();
        assert!(!is_found());
    }

    #[test]
    fn device_memory_has_a_limit_ranges_and_regions_that_hold_it() {
        let owner = Arc::new(HandleKeeper::default());
        let pd = Pd::alloc(&owner).unwrap();
        let all = Dm::alloc(&owner, crate::MAX_DM, 0).unwrap();
        assert_eq!(Dm::alloc(&owner, 1, 0).unwrap_err().errno(), libc::ENOMEM);
        assert_eq!(owner.handles(), [pd.handle(), all.handle()]);
        all.free().unwrap();
        assert_eq!(owner.handles(), [pd.handle()]);
        drop(all);
        let dm = Dm::alloc(&owner, 4096, 0).unwrap();
        let bytes = [7u8; 8];
        let from = bytes.as_ptr() as u64;
        dm.copy_in(4088, from, 8).unwrap();
        for offset in [4092, 4096, 1 << 40, u64::MAX - 3] {
            assert_eq!(dm.copy_in(offset, from, 8).unwrap_err().errno(), libc::EFAULT, "{offset}");
            assert_eq!(dm.copy_out(offset, from, 8).unwrap_err().errno(), libc::EFAULT, "{offset}");
        }
        let there = |addr, length| MrInit { addr, length, iova: addr, access: MrAccess::ALL };
        for (offset, length) in [(0, 4097), (4096, 1), (u64::MAX, 1)] {
            let registered = Mr::register_dm(&pd, &dm, offset, length, MrAccess::ALL);
            let imported = Mr::import_dm(&pd, &dm, there(offset, length), 7);
            for refused in [registered, imported] {
                assert_eq!(refused.unwrap_err().errno(), libc::EINVAL, "{offset}+{length}");
            }
        }
        let whole = Mr::register_dm(&pd, &dm, 0, 4096, MrAccess::ALL).unwrap();
        let imported = Mr::import_dm(&pd, &dm, there(0, 4096), 7).unwrap();
        let init = whole.init().unwrap();
        let half = MrInit { length: 2048, ..init };
        assert_eq!(whole.change_in_test(None, init, half).unwrap_err().errno(), libc::EINVAL);
        // What isn't imported isn't ended by the end of an import.
        for mr in [&whole, &imported] {
            assert_eq!(dm.free().unwrap_err().errno(), libc::EBUSY);
            mr.unimport().unwrap();
        }
        assert!(imported.init().is_err());
        assert_eq!((whole.init().unwrap(), dm.free().unwrap_err().errno()), (init, libc::EBUSY));
        whole.deregister().unwrap();
        dm.free().unwrap();
    }

    #[test]
    fn memory_of_another_process_is_reached_by_its_copies_and_by_no_atomic() {
        let _inside = ferroce_os::fork::enter_library().expect("no fork");
        let pd = Pd::alloc(&Arc::new(HandleKeeper::default())).unwrap();
        let copies = Arc::new(AtomicU32::new(0));
        let backing = Box::new(CountedBacking(copies.clone()));
        let there = MrInit { addr: 0x1000, length: 64, iova: 0x1000, access: MrAccess::ALL };
        let mr = Mr::import_backed(&pd, backing, there, 7).unwrap();
        let (table, by) = (KeyTable::global(), KeyUser { pd: pd.id(), qp: 1 });
        let sge = Sge { addr: 0x1008, length: 8, lkey: mr.key() };
        for write in [false, true] {
            table
                .local(pd.id(), &sge, write, |addr| {
                    assert_ne!(addr, sge.addr);
                    Ok(())
                })
                .unwrap();
        }
        let remote = |access| table.remote(by, mr.rkey(), 0x1008, 8, access, |_| Ok(()));
        assert_eq!((remote(RemoteAccess::Read), remote(RemoteAccess::Write)), (Ok(()), Ok(())));
        assert_eq!(copies.load(Ordering::Relaxed), 4);
        for access in [RemoteAccess::Atomic, RemoteAccess::Store] {
            assert_eq!(remote(access), Err(RemoteError::Operational));
        }
        assert_eq!(copies.load(Ordering::Relaxed), 4);
        // None of this process's pages is there to be looked at.
        assert_eq!(table.pages_of_local(pd.id(), &sge, true), None);
        assert_eq!(table.pages_of_remote(by, mr.rkey(), 0x1008, 8, RemoteAccess::Write), None);
        assert_eq!(copies.load(Ordering::Relaxed), 4);
        mr.unimport().unwrap();
        assert!(table.local(pd.id(), &sge, false, |_| Ok(())).is_err());
    }

    #[test]
    fn a_region_ends_when_no_element_of_it_is_held() {
        let pd = Pd::alloc(&Arc::new(HandleKeeper::default())).unwrap();
        let memory = [0; 64];
        let mr = Mr::of_test(&pd, init(&memory)).unwrap();
        let hold = |pd: u32, at: u64, write| {
            let sge = Sge { addr: memory.as_ptr() as u64 + at, length: 8, lkey: mr.key() };
            KeyTable::global().hold_local(pd, &sge, write)
        };
        let held = [0, 56].map(|at| hold(pd.id(), at, true).unwrap());
        assert_eq!(held[1].addr, memory.as_ptr() as u64 + 56);
        assert!(hold(pd.id(), 57, true).is_none() && hold(pd.id() + 1, 0, true).is_none());
        assert_eq!(mr.deregister().unwrap_err().errno(), libc::EBUSY);
        drop(held);
        mr.deregister().unwrap();
        assert!(hold(pd.id(), 0, true).is_none());
    }

    #[test]
    fn what_is_written_to_a_null_region_is_lost() {
        let pd = Pd::alloc(&Arc::new(HandleKeeper::default())).unwrap();
        let null = Mr::null(&pd).unwrap();
        let sge = Sge { addr: 0x1234, length: 8, lkey: null.key() };
        KeyTable::global().local(pd.id(), &sge, true, |_| panic!("zeros stay zeros")).unwrap();
        let mut zeros = [1; 8];
        let read = |addr| ferroce_access::copy::read(addr, &mut zeros);
        KeyTable::global().local(pd.id(), &sge, false, read).unwrap();
        assert_eq!(zeros, [0; 8]);
    }
}
