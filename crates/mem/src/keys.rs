//! The table of keys, of regions and windows alike.
//!
//! A key is an index into the table (24 bits) and a tag (8 bits) that changes at each reuse of the index, and whenever a
//! window is bound. Indices are reused in the order in which they were freed, and some of them stay free, so that a stale key
//! names new memory late.

use super::in_flight::{InFlight, LOOKED_AT};
use super::indices::{KeySlot, KeySlots, MAX_MR, MAX_MW, REMEMBERED};
use super::listing::{RegionListing, listing, set_listing};
use super::mr::{HeldPages, Mr, Registered, Use};
use super::mw::Mw;
use super::rights::{Denied, KeyUser};
use super::shortcut::SHORTCUTS;
use ferroce_access::Fault;
use ferroce_explain::KeyFault;
use ferroce_os::clock;
use ferroce_os::sync::{InUse, RwLock, class};
use ferroce_types::{BindMw, Error, RemoteAccess, RemoteError, Result, Sge};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of the longest access that takes no lock.
const SHORT: u32 = 64 * 1024;

/// All regions and windows of the process, by key.
#[derive(Debug)]
pub struct KeyTable {
    slots: RwLock<class::Keys, KeySlots<Keyed>>,
    /// Regions that come get an rkey that isn't their lkey.
    two_keys: AtomicBool,
}

/// What an index stands for.
#[derive(Clone, Debug)]
pub(super) enum Keyed {
    Region(Arc<Mr>),
    Window(Arc<Mw>),
}

static TABLE: KeyTable = KeyTable { slots: RwLock::new(KeySlots::new()), two_keys: AtomicBool::new(false) };

impl KeyTable {
    /// The process's table.
    #[inline]
    #[must_use]
    pub fn global() -> &'static Self {
        &TABLE
    }

    /// Gives regions that are registered from here on an rkey that isn't their lkey, and that no region has as its lkey. Without it
    /// both are one, as programs that mix them up like it.
    pub fn tell_keys_apart(&self) {
        self.two_keys.store(true, Ordering::Relaxed);
    }

    /// Gives the region that `make` makes of them its lkey and its rkey.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when there are as many as can be.
    pub(super) fn insert_region(&self, make: impl FnOnce(u32, u32) -> Arc<Mr>) -> Result<Arc<Mr>> {
        let mut slots = self.slots.write();
        if slots.regions == MAX_MR {
            return Err(Error::NoMemory(format!("{MAX_MR} memory regions are registered")));
        }
        slots.regions += 1;
        let (index, lkey) = slots.take();
        let other = self.two_keys.load(Ordering::Relaxed).then(|| slots.take());
        let mr = make(lkey, other.map_or(lkey, |(_, rkey)| rkey));
        for index in [Some(index), other.map(|(index, _)| index)].into_iter().flatten() {
            slots.all[index].held = Some(Keyed::Region(mr.clone()));
        }
        Ok(mr)
    }

    /// Gives the window that `make` makes a key.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when there are as many as can be.
    pub(super) fn insert_window(&self, make: impl FnOnce(u32) -> Arc<Mw>) -> Result<Arc<Mw>> {
        let mut slots = self.slots.write();
        if slots.windows == MAX_MW {
            return Err(Error::NoMemory(format!("{MAX_MW} memory windows are allocated")));
        }
        slots.windows += 1;
        let (index, key) = slots.take();
        let mw = make(key);
        slots.all[index].held = Some(Keyed::Window(mw.clone()));
        Ok(mw)
    }

    /// Lists regions in `listing` from here on, and those that exist already. It is called again, with the same list, when the
    /// list is empty because it was made anew (in the child of a fork).
    pub fn list_in(&self, listing: &'static dyn RegionListing) {
        set_listing(listing);
        for slot in &self.slots.read().all {
            if let Some(Keyed::Region(mr)) = &slot.held {
                mr.publish();
            }
        }
    }

    /// The regions that there are, at most `most` of them, and how many there are.
    #[must_use]
    pub fn regions(&self, most: usize) -> (Vec<Arc<Mr>>, usize) {
        let slots = self.slots.read();
        // Once each, by the lkey.
        let region = |(index, slot): (usize, &KeySlot<Keyed>)| match &slot.held {
            Some(Keyed::Region(mr)) if mr.key() >> 8 == index as u32 + 1 => Some(mr.clone()),
            _ => None,
        };
        (slots.all.iter().enumerate().filter_map(region).take(most).collect(), slots.regions)
    }

    /// All regions and windows. A region with two keys is there twice.
    pub(super) fn all(&self) -> Vec<Keyed> {
        self.slots.read().all.iter().filter_map(|slot| slot.held.clone()).collect()
    }

    /// Frees the indices of a region.
    pub(super) fn remove_region(&self, mr: &Mr) {
        if mr.rkey() != mr.key() {
            self.remove_as(mr.rkey(), |_| {});
        }
        self.remove_as(mr.key(), |slots| slots.regions -= 1);
    }

    /// Frees the index of a window.
    pub(super) fn remove_window(&self, rkey: u32) {
        self.remove_as(rkey, |slots| slots.windows -= 1);
    }

    /// Frees the index of `key`; the next key there is another. `count` counts what has ended.
    fn remove_as(&self, key: u32, count: impl FnOnce(&mut KeySlots<Keyed>)) {
        let index = (key >> 8) - 1;
        let mut slots = self.slots.write();
        // A new list may contain the key already; no process reads that list yet.
        if let Some(listing) = listing() {
            listing.withdraw(key);
        }
        let slot = &mut slots.all[index as usize];
        slot.tag = key as u8;
        let held = slot.held.take();
        if held.is_some() {
            count(&mut slots);
        }
        slots.free.push_back(index);
        if slots.returned.len() == REMEMBERED {
            slots.returned.pop_front();
        }
        slots.returned.push_back((key, clock::now()));
        drop(slots);
        drop(held);
    }

    /// What has the index of `key`.
    #[inline]
    pub(super) fn at(&self, key: u32) -> Option<Keyed> {
        let index = (key >> 8).checked_sub(1)? as usize;
        self.slots.read().all.get(index)?.held.clone()
    }

    /// The region with this lkey.
    #[inline]
    pub(super) fn region(&self, key: u32) -> Option<Arc<Mr>> {
        match self.at(key)? {
            Keyed::Region(mr) if mr.key() == key => Some(mr),
            _ => None,
        }
    }

    /// Runs `f` with the program address of `sge`, while the region can't be revoked. (What is written to a null region is
    /// lost without `f`.)
    ///
    /// # Errors
    /// [`Denied`] when the local key, its domain, range or rights don't allow it, or when `f` returns a fault.
    #[inline]
    pub fn local(
        &self,
        pd: u32,
        sge: &Sge,
        write: bool,
        f: impl FnOnce(u64) -> std::result::Result<(), Fault>,
    ) -> std::result::Result<(), Denied> {
        if sge.length <= SHORT
            && let Some(in_use) = InUse::enter(sge.lkey)
            && let Some(addr) = SHORTCUTS.find(&in_use, pd, sge, write)
        {
            return f(addr).map_err(|Fault| Denied);
        }
        self.local_by_gate(pd, sge, write, f)
    }

    /// As [`KeyTable::local`], for any region, and with the general answer.
    fn local_by_gate(
        &self,
        pd: u32,
        sge: &Sge,
        write: bool,
        f: impl FnOnce(u64) -> std::result::Result<(), Fault>,
    ) -> std::result::Result<(), Denied> {
        if sge.length == 0 {
            return Ok(());
        }
        self.region(sge.lkey).ok_or(Denied)?.local(pd, sge, write, f)
    }

    /// The program address of `sge`, for a look at its pages. `None`: an access is refused, or reaches no pages of the program's
    /// (`Registered::pages_at`).
    #[inline]
    #[must_use]
    pub fn pages_of_local(&self, pd: u32, sge: &Sge, write: bool) -> Option<u64> {
        if let Some(in_use) = InUse::enter(sge.lkey)
            && let Some(addr) = SHORTCUTS.find(&in_use, pd, sge, write)
        {
            return Some(addr);
        }
        self.hold_local(pd, sge, write).map(|held| held.addr)
    }

    /// As [`KeyTable::pages_of_local`], for accesses to several elements at once.
    #[must_use]
    pub fn hold_local(&self, pd: u32, sge: &Sge, write: bool) -> Option<HeldPages> {
        self.region(sge.lkey)?.hold_local(pd, sge, write)
    }

    /// Address and length of the region with this remote key.
    #[must_use]
    pub fn range(&self, rkey: u32) -> Option<(u64, u64)> {
        match self.at(rkey)? {
            Keyed::Region(mr) if mr.rkey() == rkey => mr.range(),
            _ => None,
        }
    }

    /// Runs `f` with the program address of a remote peer's range, while neither region nor window can be revoked.
    ///
    /// # Errors
    /// [`RemoteError::Access`] when key, domain, range or rights don't allow it; [`RemoteError::Operational`] when
    /// the memory behind it is gone.
    pub fn remote<R>(
        &self,
        by: KeyUser,
        rkey: u32,
        va: u64,
        len: u64,
        access: RemoteAccess,
        f: impl FnOnce(u64) -> std::result::Result<R, Fault>,
    ) -> std::result::Result<R, RemoteError> {
        let touch = |registered: &Registered, addr| registered.accessed_by_peer(addr, len, access, f);
        self.find_remote(by, rkey, (va, len), access, touch)
    }

    /// Whether a remote peer may do `access` to a range.
    ///
    /// # Errors
    /// [`RemoteError::Access`] when it may not.
    pub fn check_remote(
        &self,
        by: KeyUser,
        rkey: u32,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> std::result::Result<(), RemoteError> {
        self.find_remote(by, rkey, (va, len), access, |_, _| Ok(()))
    }

    /// As [`KeyTable::pages_of_local`], for a remote peer's range.
    #[must_use]
    pub fn pages_of_remote(
        &self,
        by: KeyUser,
        rkey: u32,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Option<u64> {
        let find = |registered: &Registered, addr| Ok(registered.pages_at(addr));
        self.find_remote(by, rkey, (va, len), access, find).ok().flatten()
    }

    #[inline]
    fn find_remote<R>(
        &self,
        by: KeyUser,
        rkey: u32,
        range: (u64, u64),
        access: RemoteAccess,
        f: impl FnOnce(&Registered, u64) -> std::result::Result<R, Fault>,
    ) -> std::result::Result<R, RemoteError> {
        match self.at(rkey) {
            Some(Keyed::Region(mr)) if mr.rkey() == rkey => mr.remote((by.pd, false), range, access, f),
            Some(Keyed::Window(mw)) => mw.remote(by, rkey, range, access, f),
            _ => Err(RemoteError::Access),
        }
    }
}

impl KeyTable {
    /// Why a peer's request was refused; asked afterwards, so the answer is of now.
    #[cold]
    pub fn remote_fault(&self, by: KeyUser, rkey: u32, range: (u64, u64), access: RemoteAccess) -> KeyFault {
        let fault = match self.at(rkey) {
            Some(Keyed::Region(mr)) if mr.rkey() == rkey => mr.fault(by.pd, range, Use::Remote(access)),
            Some(Keyed::Region(mr)) if mr.key() == rkey => Some(KeyFault::OtherKind),
            Some(Keyed::Window(mw)) => mw.fault(by, rkey, range, access),
            _ => Some(self.unknown(rkey)),
        };
        fault.unwrap_or(KeyFault::Gone)
    }

    /// Which element of a request or a receive of `pd` is wrong, by its key, and why; `None` if none has a byte.
    #[cold]
    pub fn local_fault(&self, pd: u32, sges: &[Sge], write: bool) -> Option<(u32, KeyFault)> {
        let fault = |sge: &Sge| {
            let range = (sge.addr, u64::from(sge.length));
            let fault = match self.at(sge.lkey) {
                Some(Keyed::Region(mr)) if mr.key() == sge.lkey => {
                    mr.fault(pd, range, Use::Local { write })?
                }
                Some(Keyed::Region(mr)) if mr.rkey() == sge.lkey => KeyFault::OtherKind,
                Some(Keyed::Window(_)) => KeyFault::Unbound,
                _ => self.unknown(sge.lkey),
            };
            Some((sge.lkey, fault))
        };
        let mut with_bytes = sges.iter().filter(|sge| sge.length > 0);
        let gone = with_bytes.clone().next().map(|sge| (sge.lkey, KeyFault::Gone));
        with_bytes.find_map(fault).or(gone)
    }

    /// Nothing has this key; perhaps something had.
    fn unknown(&self, key: u32) -> KeyFault {
        let slots = self.slots.read();
        match slots.returned.iter().rev().find(|(returned, _)| *returned == key) {
            Some((_, at)) => return KeyFault::Deregistered { ago: clock::now().since(*at) },
            None => drop(slots),
        }
        let meant = key.swap_bytes();
        match self.at(meant) {
            Some(Keyed::Region(mr)) if [mr.key(), mr.rkey()].contains(&meant) => {
                KeyFault::ByteSwapped { meant }
            }
            _ => KeyFault::Unknown,
        }
    }
}

impl KeyTable {
    /// Carries out a bind that `by` has posted.
    ///
    /// # Errors
    /// [`Denied`] when window, region, domain, rights or range don't allow it.
    pub fn bind(&self, by: KeyUser, bind: &BindMw) -> std::result::Result<(), Denied> {
        let bound = match self.at(bind.rkey) {
            Some(Keyed::Window(mw)) => mw.bind(by, bind, |lkey| self.region(lkey)),
            _ => Err("the window is deallocated"),
        };
        bound.map_err(|why| {
            tracing::debug!(rkey = bind.rkey, why, "a window isn't bound");
            Denied
        })
    }

    /// Invalidates the key of a type 2 window that `by` has bound.
    ///
    /// # Errors
    /// [`Denied`] for any other key.
    pub fn invalidate(&self, by: KeyUser, rkey: u32) -> std::result::Result<(), Denied> {
        match self.at(rkey) {
            Some(Keyed::Window(mw)) if mw.invalidate(by, rkey) => Ok(()),
            _ => Err(Denied),
        }
    }
}

impl InFlight {
    /// Begins to look at the memory of a request of domain `pd`, which is to be sent or `filled`; what can't be read isn't looked at.
    #[must_use]
    pub fn begin(pd: u32, sges: &[Sge], filled: bool) -> Vec<Self> {
        let begin = |sge: &Sge| {
            let part = Sge { length: sge.length.min(LOOKED_AT), ..*sge };
            let mut begun = None;
            let begin = |addr| {
                begun = Self::at(addr, part.length as usize, filled);
                Ok(())
            };
            // A key that is wrong ends the request soon.
            let found = KeyTable::global().local(pd, &part, false, begin);
            begun.filter(|_| found.is_ok())
        };
        sges.iter().filter(|sge| sge.length > 0).filter_map(begin).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::double::Nobody;
    use crate::indices::{KeySlots, MAX_MR, MAX_MW};
    use crate::mw::WindowState;
    use crate::{Dm, InFlight, KeyTable, KeyUser, Mr, MrAccess, MrInit, Mw, MwKind, Pd, RegionListing};
    use ferroce_access::copy;
    use ferroce_explain::KeyFault;
    use ferroce_os::fork::Turn;
    use ferroce_os::sync::RwLock;
    use ferroce_types::{Access, Placement, RemoteAccess, RemoteError, Sge, Users};
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, LazyLock, Mutex};

    /// More than what is looked up without the gate.
    const LARGE: u32 = super::SHORT + 8;

    #[test]
    fn a_key_reaches_its_regions_bytes_for_its_domain_and_rights_and_nothing_else() {
        // Only a thread that has been in the library finds a region without the gate.
        let _inside = ferroce_os::fork::enter_library().expect("no fork");
        let [pd, other] = [(); 2].map(|()| Pd::alloc(&Arc::new(Nobody)).expect("a domain"));
        let memory = vec![0u8; 1 << 17];
        let (addr, length) = (memory.as_ptr() as u64, memory.len() as u64);
        let register =
            |access| Mr::of_test(&pd, MrInit { addr, length, iova: addr, access }).expect("memory is there");
        let table = KeyTable::global();
        let local = |pd: &Pd, lkey, offset, length, write| {
            let mut reached = None;
            let sge = Sge { addr: addr.wrapping_add(offset), length, lkey };
            let done = table.local(pd.id(), &sge, write, |addr| {
                reached = Some(addr);
                Ok(())
            });
            assert_eq!(done.is_ok(), reached == Some(sge.addr));
            done.is_ok()
        };
        let [all, reads] =
            [MrAccess::ALL, MrAccess { remote_read: true, ..MrAccess::default() }].map(register);
        for len in [8, LARGE] {
            for write in [false, true] {
                assert!(local(&pd, all.key(), 0, len, write));
                assert!(local(&pd, all.key(), length - u64::from(len), len, write), "up to the end");
                assert!(!local(&pd, all.key(), length - u64::from(len) + 1, len, write), "beyond the end");
                assert!(!local(&pd, all.key(), u64::MAX, len, write), "before the beginning");
                assert!(!local(&other, all.key(), 0, len, write), "another domain");
                assert!(!local(&pd, all.key() ^ 1, 0, len, write), "another tag");
                assert_eq!(local(&pd, reads.key(), 0, len, write), !write, "a right");
            }
        }
        let iova = 0x1234_5000;
        let elsewhere =
            Mr::of_test(&pd, MrInit { addr, length, iova, access: MrAccess::ALL }).expect("memory");
        for length in [8, LARGE] {
            let sge = Sge { addr: iova + 16, length, lkey: elsewhere.key() };
            let mut reached = 0;
            let copy = |at| {
                reached = at;
                Ok(())
            };
            table.local(pd.id(), &sge, true, copy).expect("its own address");
            assert_eq!(reached, addr + 16);
            assert!(!local(&pd, elsewhere.key(), 16, length, true), "the program's address");
        }
        elsewhere.deregister().expect("an idle region");
        let remote = |pd: &Pd, rkey, access| {
            let by = KeyUser { pd: pd.id(), qp: 1 };
            table.remote(by, rkey, addr + 8, 8, access, |at| Ok(at == addr + 8))
        };
        let flush = RemoteAccess::Flush(Placement { global: true, persistent: false });
        for access in [RemoteAccess::Read, RemoteAccess::Write, RemoteAccess::Atomic, flush] {
            assert_eq!(remote(&pd, all.rkey(), access), Ok(true), "{access:?}");
            assert_eq!(
                remote(&other, all.rkey(), access),
                Err(RemoteError::Access),
                "{access:?}, another domain"
            );
            assert_eq!(
                remote(&pd, all.rkey() ^ 1, access),
                Err(RemoteError::Access),
                "{access:?}, another tag"
            );
            let expected = if access == RemoteAccess::Read { Ok(true) } else { Err(RemoteError::Access) };
            assert_eq!(remote(&pd, reads.rkey(), access), expected, "{access:?}, a right");
        }
        assert_eq!((table.range(all.rkey()), table.range(all.rkey() ^ 1)), (Some((addr, length)), None));
        all.deregister().expect("an idle region");
        assert!(!local(&pd, all.key(), 0, 8, false) && !local(&pd, all.key(), 0, LARGE, false));
        assert_eq!(remote(&pd, all.rkey(), RemoteAccess::Read), Err(RemoteError::Access));
        reads.deregister().expect("an idle region");
    }

    fn table() -> KeyTable {
        KeyTable { slots: RwLock::new(KeySlots::new()), two_keys: AtomicBool::new(false) }
    }

    /// A region that has ended, with these keys.
    fn region(key: u32, rkey: u32) -> Arc<Mr> {
        let (changing, gate, windows) = (Turn::free(), RwLock::new(None), Users::default());
        Arc::new(Mr { key, rkey, handle: 1, home: None, changing, gate, windows })
    }

    fn window(pd: &Arc<Pd>, rkey: u32) -> Arc<Mw> {
        let gate = RwLock::new(WindowState { rkey, bound: None, freed: true });
        Arc::new(Mw { number: 1, kind: MwKind::Two, pd: pd.clone(), changing: Turn::free(), gate })
    }

    #[test]
    fn a_full_table_gives_no_key() {
        let (pd, table) = (Pd::alloc(&Arc::new(Nobody)).expect("a domain"), table());
        for (regions, windows) in [(MAX_MR, 0), (0, MAX_MW)] {
            let mut slots = table.slots.write();
            (slots.regions, slots.windows) = (regions, windows);
            drop(slots);
            assert_eq!(table.insert_region(region).is_err(), regions > 0);
            assert_eq!(table.insert_window(|rkey| window(&pd, rkey)).is_err(), windows > 0);
        }
    }

    #[test]
    fn a_region_with_two_keys_gives_both_back() {
        let table = table();
        table.tell_keys_apart();
        let mr = table.insert_region(region).expect("room");
        assert_ne!(mr.key(), mr.rkey());
        let there = || [mr.key(), mr.rkey()].map(|key| table.at(key).is_some());
        assert_eq!(there(), [true, true]);
        let (all, count) = table.regions(8);
        assert_eq!((all.len(), count), (1, 1), "it is one region");
        // Each key is of use for one kind of access alone.
        let by = KeyUser { pd: 1, qp: 1 };
        let remote = table.remote_fault(by, mr.key(), (0, 8), RemoteAccess::Read);
        let local = table.local_fault(1, &[Sge { addr: 0, length: 8, lkey: mr.rkey() }], false);
        assert_eq!((remote, local), (KeyFault::OtherKind, Some((mr.rkey(), KeyFault::OtherKind))));
        table.remove_region(&mr);
        assert_eq!(there(), [false, false]);
        let slots = table.slots.read();
        assert_eq!((slots.regions, slots.free.len()), (0, 2));
    }

    /// A program chooses the tag of a window's key when it binds the window.
    #[test]
    fn the_key_after_a_windows_differs_from_the_one_that_the_window_had_last() {
        let (pd, table) = (Pd::alloc(&Arc::new(Nobody)).expect("a domain"), table());
        let first = table.insert_window(|rkey| window(&pd, rkey)).expect("room").rkey();
        let bound = first & !0xff | 0x7f;
        table.remove_window(bound);
        let slots = table.slots.read();
        assert_eq!((slots.windows, slots.all[0].tag, slots.all[0].held.is_none()), (0, 0x7f, true));
    }

    /// A call of a list.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum ListCall {
        Publish { shared: bool },
        Revoke,
        Withdraw,
    }

    #[derive(Default)]
    struct List {
        calls: Mutex<Vec<(u32, ListCall)>>,
        /// Called once, in the middle of the revocation of this key.
        meanwhile: Mutex<Option<(u32, Meanwhile)>>,
    }

    type Meanwhile = Box<dyn FnOnce() + Send>;

    impl List {
        fn note(&self, key: u32, call: ListCall) {
            self.calls.lock().expect("no panic").push((key, call));
        }

        /// The calls about a key since this was asked last.
        fn take(&self, key: u32) -> Vec<ListCall> {
            let all = std::mem::take(&mut *self.calls.lock().expect("no panic"));
            all.into_iter().filter(|(of, _)| *of == key).map(|(_, call)| call).collect()
        }
    }

    impl RegionListing for List {
        fn publish(&self, key: u32, _pd: u32, _init: &MrInit, shared: bool) {
            self.note(key, ListCall::Publish { shared });
        }

        fn revoke(&self, key: u32) -> ferroce_types::Result<()> {
            self.note(key, ListCall::Revoke);
            let meanwhile = self.meanwhile.lock().expect("no panic").take_if(|(of, _)| *of == key);
            if let Some((_, meanwhile)) = meanwhile {
                meanwhile();
            }
            Ok(())
        }

        fn withdraw(&self, key: u32) {
            self.note(key, ListCall::Withdraw);
        }
    }

    #[test]
    fn a_list_for_other_processes_gets_the_regions_there_are_and_loses_those_that_end() {
        static LIST: LazyLock<List> = LazyLock::new(List::default);
        const OWN: ListCall = ListCall::Publish { shared: false };
        let owner = Arc::new(Nobody);
        let pd = Pd::alloc(&owner).expect("a domain");
        let memory = [0u8; 64];
        let addr = memory.as_ptr() as u64;
        let init = MrInit { addr, length: 64, iova: addr, access: MrAccess::ALL };
        let half = MrInit { length: 32, ..init };
        // Tables of other tests of this process give keys of their first indices back.
        let _others = [(); 4].map(|()| Mr::of_test(&pd, init).expect("memory"));
        let mr = Mr::of_test(&pd, init).expect("memory");
        let table = KeyTable::global();
        table.list_in(&*LIST);
        assert_eq!(LIST.take(mr.key()), [OWN]);
        mr.change_in_test(None, init, half).expect("an idle region");
        mr.change_in_test(None, half, init).expect("an idle region");
        assert_eq!(LIST.take(mr.key()), [ListCall::Revoke, OWN, ListCall::Revoke, OWN]);

        // A window forbids it before any process loses its access, also one that is bound while others are waited for.
        let mw = Mw::alloc(&pd, MwKind::One).expect("a window");
        let by = KeyUser { pd: pd.id(), qp: 1 };
        let access = Access { remote_read: true, ..Access::default() };
        let bind =
            |length| mw.bind_request(mw.rkey(), Some(&mr), (addr, length), access, false).expect("a bind");
        for (is_bound, calls) in [(true, &[][..]), (false, &[ListCall::Revoke, OWN])] {
            let ends: [&dyn Fn() -> ferroce_types::Result<()>; 2] =
                [&|| mr.deregister(), &|| mr.change_in_test(None, init, half)];
            for end in ends {
                let bound = bind(8);
                if is_bound {
                    table.bind(by, &bound).expect("an allowed bind");
                } else {
                    let binds = move || table.bind(by, &bound).expect("an allowed bind");
                    *LIST.meanwhile.lock().expect("no panic") = Some((mr.key(), Box::new(binds)));
                }
                assert_eq!(end().expect_err("a bound window").errno(), libc::EBUSY);
                assert_eq!((LIST.take(mr.key()), mr.init().expect("a region")), (calls.into(), init));
                let none = mw.bind_request(mw.rkey(), None, (0, 0), access, false);
                table.bind(by, &none.expect("no byte")).expect("an idle window");
            }
        }
        mw.dealloc().expect("an idle window");

        // So does an access that doesn't end.
        let used = mr.registered();
        assert_eq!(mr.deregister().expect_err("an access").errno(), libc::EBUSY);
        drop(used);
        assert_eq!(LIST.take(mr.key()), [ListCall::Revoke, OWN]);
        mr.deregister().expect("an idle region");
        assert_eq!(LIST.take(mr.key()), [ListCall::Revoke, ListCall::Withdraw]);

        // Device memory is shared, and what is another process's is listed by that one.
        let dm = Dm::alloc(&owner, 4096, 0).expect("device memory");
        let of_dm = Mr::register_dm(&pd, &dm, 0, 64, MrAccess::ALL).expect("a range");
        let read_only = MrAccess { remote_read: true, ..MrAccess::default() };
        let of_dm_init = of_dm.init().expect("a region");
        let changed = MrInit { access: read_only, ..of_dm_init };
        of_dm.change_in_test(None, of_dm_init, changed).expect("an idle region");
        let shared = ListCall::Publish { shared: true };
        assert_eq!(LIST.take(of_dm.key()), [shared, ListCall::Revoke, shared]);
        let there = MrInit { addr: 0, length: 64, iova: 0, access: read_only };
        let imported = Mr::import_dm(&pd, &dm, there, 77).expect("a range");
        assert_eq!(LIST.take(imported.key()), []);
        for mr in [of_dm, imported] {
            mr.deregister().expect("an idle region");
        }
        dm.free().expect("no region");
    }

    #[test]
    fn the_memory_of_a_request_is_looked_at_up_to_a_limit_and_until_its_region_ends() {
        let pd = Pd::alloc(&Arc::new(Nobody)).expect("a domain");
        let memory = vec![0u8; 2 * super::LOOKED_AT as usize];
        let (addr, length) = (memory.as_ptr() as u64, memory.len() as u64);
        let mr =
            Mr::of_test(&pd, MrInit { addr, length, iova: addr, access: MrAccess::ALL }).expect("memory");
        let sge = Sge { addr, length: length as u32, lkey: mr.key() };
        let [looked] = &InFlight::begin(pd.id(), &[sge, Sge { length: 0, ..sge }], false)[..] else {
            panic!("one element has bytes")
        };
        copy::write(addr + u64::from(super::LOOKED_AT), &[1]).expect("memory");
        assert_eq!(looked.written(), None, "beyond the limit");
        copy::write(addr + u64::from(super::LOOKED_AT) - 1, &[1]).expect("memory");
        assert_eq!(looked.written(), Some((addr + u64::from(super::LOOKED_AT) - 1, 1)));
        mr.deregister().expect("an idle region");
        assert_eq!(looked.written(), None, "the program may write there");
        assert!(InFlight::begin(pd.id(), &[sge], false).is_empty(), "a stale key");
    }

    #[test]
    fn what_is_deregistered_is_counted_out_and_remembered_for_a_while() {
        let pd = Pd::alloc(&Arc::new(Nobody)).expect("a domain");
        let memory = [0u8; 64];
        let addr = memory.as_ptr() as u64;
        let table = KeyTable::global();
        let before = table.regions(0).1;
        let register = || {
            Mr::of_test(&pd, MrInit { addr, length: 64, iova: addr, access: MrAccess::ALL }).expect("memory")
        };
        let regions: Vec<_> = (0..=super::REMEMBERED).map(|_| register()).collect();
        assert_eq!(table.regions(0).1, before + regions.len());
        regions.iter().for_each(|region| region.deregister().expect("an idle region"));
        assert_eq!(table.regions(0).1, before);
        let fault = |mr: &Mr| {
            table.remote_fault(KeyUser { pd: pd.id(), qp: 1 }, mr.key(), (addr, 8), RemoteAccess::Read)
        };
        assert_eq!(fault(&regions[0]), KeyFault::Unknown, "one more was given back since");
        assert!(matches!(fault(&regions[1]), KeyFault::Deregistered { .. }));
    }

    #[test]
    fn an_owners_end_ends_what_is_its_own() {
        let owners = [(); 2].map(|()| Arc::new(Nobody));
        let pds = [0, 1].map(|i: usize| Pd::alloc(&owners[i]).expect("a domain"));
        let memory = [0u8; 64];
        let addr = memory.as_ptr() as u64;
        let init = MrInit { addr, length: 64, iova: addr, access: MrAccess::ALL };
        let regions = [0, 1].map(|i: usize| Mr::of_test(&pds[i], init).expect("memory"));
        let windows = [0, 1].map(|i: usize| Mw::alloc(&pds[i], MwKind::One).expect("a window"));
        let table = KeyTable::global();
        assert_eq!(table.end_with_owner(&*owners[0]), (1, 1));
        let is_there = |key| table.at(key).is_some();
        assert!(!is_there(regions[0].key()) && !is_there(windows[0].rkey()));
        assert!(is_there(regions[1].key()) && is_there(windows[1].rkey()));
        assert_eq!(table.end_with_owner(&*owners[1]), (1, 1));
    }
}
