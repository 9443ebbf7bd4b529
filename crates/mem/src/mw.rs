//! Memory windows (ibv_alloc_mw(3), IBTA 10.6.7.2): keys for a part of a region, given and taken back by work requests.
//!
//! A window has its place in the table of keys, as a region has; a bind changes the low 8 bits of its key. An access through a window
//! keeps the bond that it has found, an `Arc`, as long as it touches the memory. A bind, an invalidation and `dealloc` take the bond
//! away and wait until they are the last to have it: when they have succeeded, nothing touches memory through the window as it was.
//! Other processes don't find windows in this one's directory: they send packets.

use super::last_user::{wait_for_last, wait_for_turn};
use super::mr::{Mr, Registered, Use};
use super::pd::Pd;
use super::rights::KeyUser;
use ferroce_access::Fault;
use ferroce_explain::{KeyFault, Rights};
use ferroce_os::fork::{OwnTurn, Turn};
use ferroce_os::sync::{RwLock, class};
use ferroce_types::{Access, BindMw, Error, RemoteAccess, RemoteError, Result, invalid};
use std::sync::Arc;

/// How a window is bound and unbound (enum ibv_mw_type).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MwKind {
    /// Bound by ibv_bind_mw(3), of use to every QP of the domain; unbound by binding no byte.
    One,
    /// Bound by a send request to one QP (type 2B), with a key that the program chooses; unbound by being invalidated.
    Two,
}

/// A memory window (ibv_alloc_mw(3)).
#[derive(Debug)]
pub struct Mw {
    /// Never used again, so that a request can't meet another window in its place.
    pub(crate) number: u64,
    pub(crate) kind: MwKind,
    pub(crate) pd: Arc<Pd>,
    /// Of a bind, an invalidation or the end.
    pub(crate) changing: Turn,
    /// Locked for a moment only: accesses keep what they find there.
    pub(crate) gate: RwLock<class::WindowGate, WindowState>,
}

#[derive(Debug)]
pub(crate) struct WindowState {
    pub(crate) rkey: u32,
    pub(crate) bound: Option<Arc<Bound>>,
    pub(crate) freed: bool,
}

#[derive(Debug)]
pub(crate) struct Bound {
    region: Arc<Mr>,
    /// First byte, in the region's address space.
    va: u64,
    length: u64,
    /// Address of the first byte in RETHs.
    base: u64,
    access: Access,
    /// Type 2: the QP that may use it.
    qp: Option<u64>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.region.release_window();
    }
}

/// Ends a bond that isn't found any more, once it isn't in use.
///
/// # Errors
/// The bond, and [`Error::Busy`], when a thread uses it for longer than a second.
pub(crate) fn end(bound: Option<Arc<Bound>>) -> std::result::Result<(), (Arc<Bound>, Error)> {
    let Some(mut bound) = bound else { return Ok(()) };
    wait_for_last(&mut bound).map_err(|busy| (bound, busy))
}

impl Mw {
    /// How it is bound.
    #[must_use]
    pub fn kind(&self) -> MwKind {
        self.kind
    }

    pub(super) fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Its key at present.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.gate.read().rkey
    }

    /// The send request for a bind: `length` bytes at `va` of `region` under a key with the low 8 bits of `rkey`.
    /// The other bits are the window's; the program's are ignored, as by adapters.
    ///
    /// # Errors
    /// [`Error::Invalid`] for bytes of no region; [`Error::Permission`] for a region of another domain than a window of
    /// type 1 (for one of type 2 the bind completes with an error).
    pub fn bind_request(
        &self,
        rkey: u32,
        region: Option<&Mr>,
        (va, length): (u64, u64),
        access: Access,
        zero_based: bool,
    ) -> Result<BindMw> {
        let rkey = (self.rkey() & !0xff) | (rkey & 0xff);
        match region {
            None if va != 0 || length != 0 => return invalid!("a window on no memory region"),
            Some(region) if self.kind == MwKind::One && !region.is_of(&self.pd) => {
                let why = "the memory region is of another protection domain than the window";
                return Err(Error::Permission(why.into()));
            }
            _ => {}
        }
        let lkey = region.map_or(0, Mr::key);
        Ok(BindMw { window: self.number, rkey, lkey, va, length, access, zero_based })
    }

    /// # Errors
    /// [`Error::Busy`] when another thread changes it for longer than a second.
    pub(crate) fn begin_change(&self) -> Result<OwnTurn<'_>> {
        wait_for_turn(&self.changing, "window")
    }

    /// Carries out a bind. `region` finds a region by its lkey.
    ///
    /// # Errors
    /// What forbids it.
    pub(crate) fn bind(
        &self,
        by: KeyUser,
        bind: &BindMw,
        region: impl FnOnce(u32) -> Option<Arc<Mr>>,
    ) -> std::result::Result<(), &'static str> {
        // The end of a window waits for accesses with its turn taken. A queue pair is locked here, and doesn't wait for that.
        if self.gate.read().freed {
            return Err("the window is deallocated");
        }
        let Ok(_changing) = self.begin_change() else { return Err("another thread changes the window") };
        let mut gate = self.gate.write();
        if gate.freed || self.number != bind.window {
            return Err("the window is deallocated");
        }
        if by.pd != self.pd.id() {
            return Err("the queue pair is of another protection domain than the window");
        }
        if self.kind == MwKind::Two && gate.bound.is_some() {
            return Err("a type 2 window that is bound");
        }
        if self.kind == MwKind::Two && bind.length == 0 {
            return Err("a type 2 window on no byte");
        }
        let bound = if bind.length == 0 {
            None
        } else {
            let Some(region) = region(bind.lkey) else {
                return Err("the memory region is deregistered");
            };
            region.hold_window(&self.pd, bind)?;
            Some(Arc::new(Bound {
                region,
                va: bind.va,
                length: bind.length,
                base: if bind.zero_based { 0 } else { bind.va },
                access: bind.access,
                qp: (self.kind == MwKind::Two).then_some(by.qp),
            }))
        };
        let rkey = std::mem::replace(&mut gate.rkey, bind.rkey);
        let before = std::mem::replace(&mut gate.bound, bound);
        drop(gate);
        if let Err((bound, _)) = end(before) {
            let mut gate = self.gate.write();
            gate.rkey = rkey;
            let bound = gate.bound.replace(bound);
            drop(gate);
            drop(bound);
            return Err("a thread is held up in the middle of an access through the window");
        }
        Ok(())
    }

    /// Ends a type 2 window's bond, if `rkey` is its key and `by` the QP that bound it. That QP alone uses the bond, so this waits for no
    /// access, and the turn of another thread is short: a window that is being deallocated isn't bound.
    pub(crate) fn invalidate(&self, by: KeyUser, rkey: u32) -> bool {
        let is_its = |gate: &WindowState| {
            let own = gate.bound.as_ref().is_some_and(|bound| bound.qp == Some(by.qp));
            own && gate.rkey == rkey && by.pd == self.pd.id()
        };
        if !is_its(&self.gate.read()) {
            return false;
        }
        let Ok(_changing) = self.begin_change() else { return false };
        let mut gate = self.gate.write();
        if !is_its(&gate) {
            return false;
        }
        let before = gate.bound.take();
        drop(gate);
        match end(before) {
            Ok(()) => true,
            Err((bound, _)) => {
                self.gate.write().bound = Some(bound);
                false
            }
        }
    }

    /// As [`KeyTable::remote`](crate::KeyTable::remote).
    pub(super) fn remote<R>(
        &self,
        by: KeyUser,
        rkey: u32,
        (va, len): (u64, u64),
        access: RemoteAccess,
        f: impl FnOnce(&Registered, u64) -> std::result::Result<R, Fault>,
    ) -> std::result::Result<R, RemoteError> {
        let gate = self.gate.read();
        let bound = gate.bound.clone().ok_or(RemoteError::Access)?;
        let has_key = gate.rkey == rkey;
        drop(gate);
        let allowed = match access {
            RemoteAccess::Read => bound.access.remote_read,
            RemoteAccess::Write | RemoteAccess::Store => bound.access.remote_write,
            RemoteAccess::Atomic => bound.access.remote_atomic,
            // A window has no such right.
            RemoteAccess::Flush(_) => false,
        };
        let usable = has_key && by.pd == self.pd.id() && bound.qp.is_none_or(|qp| qp == by.qp);
        let offset = va.checked_sub(bound.base).ok_or(RemoteError::Access)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= bound.length);
        if !allowed || !usable || !inside {
            return Err(RemoteError::Access);
        }
        bound.region.remote((by.pd, true), (bound.va + offset, len), access, f)
    }
}

impl Mw {
    /// What keeps `by` from `len` bytes at `va` under `rkey`; `None` if nothing does but the memory itself.
    pub(super) fn fault(
        &self,
        by: KeyUser,
        rkey: u32,
        (va, len): (u64, u64),
        access: RemoteAccess,
    ) -> Option<KeyFault> {
        let gate = self.gate.read();
        if by.pd != self.pd.id() {
            return Some(KeyFault::OtherDomain);
        }
        let Some(bound) = gate.bound.as_ref().filter(|_| gate.rkey == rkey) else {
            return Some(KeyFault::Unbound);
        };
        if bound.qp.is_some_and(|qp| qp != by.qp) {
            return Some(KeyFault::Unbound);
        }
        let Access { remote_read, remote_write, remote_atomic, .. } = bound.access;
        let has = Rights { local_write: false, remote_read, remote_write, remote_atomic };
        let (needs, allowed) = match access {
            RemoteAccess::Read => ("REMOTE_READ", remote_read),
            RemoteAccess::Write | RemoteAccess::Store => ("REMOTE_WRITE", remote_write),
            RemoteAccess::Atomic => ("REMOTE_ATOMIC", remote_atomic),
            RemoteAccess::Flush(_) => ("a region's key", false),
        };
        if !allowed {
            return Some(KeyFault::Rights { needs, has });
        }
        let offset = va.checked_sub(bound.base);
        let inside = |offset: &u64| offset.checked_add(len).is_some_and(|end| end <= bound.length);
        match offset.filter(inside) {
            Some(offset) => bound.region.fault(by.pd, (bound.va + offset, len), Use::Window),
            None => Some(KeyFault::Outside { region: (bound.base, bound.length) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double::Nobody;
    use crate::{KeyTable, MrAccess, MrInit};

    const ALL: Access = Access {
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
        flush: ferroce_types::Placement { global: false, persistent: false },
    };

    /// Two domains, and a region of the first with these rights.
    fn region(memory: &[u8], access: MrAccess) -> ([Arc<Pd>; 2], Arc<Mr>) {
        let pds = [(); 2].map(|()| Pd::alloc(&Arc::new(Nobody)).unwrap());
        let (addr, length) = (memory.as_ptr() as u64, memory.len() as u64);
        let mr = Mr::of_test(&pds[0], MrInit { addr, length, iova: addr, access }).unwrap();
        (pds, mr)
    }

    #[test]
    fn a_bind_is_refused_unless_window_region_range_and_rights_fit() {
        let memory = [0; 64];
        let addr = memory.as_ptr() as u64;
        let (pds, mr) = region(&memory, MrAccess::ALL);
        let (table, by) = (KeyTable::global(), KeyUser { pd: pds[0].id(), qp: 1 });
        for kind in [MwKind::One, MwKind::Two] {
            let mw = Mw::alloc(&pds[0], kind).unwrap();
            let other = Mw::alloc(&pds[0], kind).unwrap();
            let bind = |mw: &Mw, mr: &Mr, length| {
                mw.bind_request(mw.rkey() + 1, Some(mr), (addr, length), ALL, false).unwrap()
            };
            let good = bind(&mw, &mr, 64);
            let refused = |by, bind: &BindMw| table.bind(by, bind).is_err() && mw.rkey() == good.rkey - 1;
            assert!(refused(KeyUser { pd: pds[1].id(), ..by }, &good), "another domain");
            assert!(refused(by, &bind(&mw, &mr, 65)), "beyond the region");
            assert!(refused(by, &BindMw { window: other.number, ..good }), "the number of another window");
            assert!(refused(by, &BindMw { lkey: mr.key() ^ 1, ..good }), "no region");
            let without = [
                MrAccess { bind_windows: false, ..MrAccess::ALL },
                MrAccess { remote_write: false, remote_atomic: false, local_write: false, ..MrAccess::ALL },
            ];
            for access in without {
                let init = MrInit { access, ..mr.init().unwrap() };
                let poor = Mr::of_test(&pds[0], init).unwrap();
                assert!(refused(by, &bind(&mw, &poor, 64)), "{access:?}");
                let of_window = Access { remote_write: false, ..ALL };
                assert!(refused(by, &BindMw { access: of_window, ..bind(&mw, &poor, 64) }), "{access:?}");
                poor.deregister().unwrap();
            }
            if kind == MwKind::Two {
                assert!(refused(by, &BindMw { length: 0, ..good }), "no byte");
            }
            table.bind(by, &good).unwrap();
            assert_eq!((mw.rkey(), mr.deregister().unwrap_err().errno()), (good.rkey, libc::EBUSY));
            assert_eq!(table.bind(by, &bind(&mw, &mr, 32)).is_err(), kind == MwKind::Two, "bound already");
            mw.dealloc().unwrap();
            assert!(table.bind(by, &bind(&mw, &mr, 32)).is_err(), "deallocated");
            other.dealloc().unwrap();
        }
        let of_other = Mw::alloc(&pds[1], MwKind::One).unwrap();
        assert!(of_other.bind_request(0, Some(&mr), (addr, 8), ALL, false).is_err());
        assert!(of_other.bind_request(0, None, (0, 8), ALL, false).is_err());
        of_other.dealloc().unwrap();
        mr.deregister().unwrap();
    }

    #[test]
    fn a_key_of_a_window_reaches_the_windows_bytes_for_its_users_and_rights_alone() {
        let memory = [0; 64];
        let addr = memory.as_ptr() as u64;
        let (pds, mr) = region(&memory, MrAccess::ALL);
        let (table, by) = (KeyTable::global(), KeyUser { pd: pds[0].id(), qp: 1 });
        let accesses = [RemoteAccess::Read, RemoteAccess::Write, RemoteAccess::Store, RemoteAccess::Atomic];
        let none = Access::default();
        let rights = [
            (Access { remote_read: true, ..none }, [true, false, false, false]),
            (Access { remote_write: true, ..none }, [false, true, true, false]),
            (Access { remote_atomic: true, ..none }, [false, false, false, true]),
        ];
        for kind in [MwKind::One, MwKind::Two] {
            for (zero_based, base) in [(false, addr + 16), (true, 0)] {
                for (access, allowed) in rights {
                    let mw = Mw::alloc(&pds[0], kind).unwrap();
                    let bind = mw.bind_request(mw.rkey() + 1, Some(&mr), (addr + 16, 32), access, zero_based);
                    table.bind(by, &bind.unwrap()).unwrap();
                    let reach = |by, rkey, va, access| {
                        let mut reached = None;
                        let copy = |at| {
                            reached = Some(at);
                            Ok(())
                        };
                        let done = table.remote(by, rkey, va, 8, access, copy);
                        assert_eq!(done.is_ok(), reached.is_some());
                        assert_eq!(table.check_remote(by, rkey, va, 8, access).is_ok(), done.is_ok());
                        reached
                    };
                    let rkey = mw.rkey();
                    for (with, is_allowed) in accesses.into_iter().zip(allowed) {
                        for (offset, is_inside) in [(0, true), (24, true), (25, false), (u64::MAX, false)] {
                            let va = base.wrapping_add(offset);
                            let expected = (is_allowed && is_inside).then(|| addr + 16 + offset);
                            assert_eq!(reach(by, rkey, va, with), expected, "{with:?} at {offset}");
                        }
                        assert_eq!(reach(by, rkey - 1, base, with), None, "the key before");
                        assert_eq!(reach(KeyUser { pd: pds[1].id(), ..by }, rkey, base, with), None);
                        let of_any = is_allowed && kind == MwKind::One;
                        assert_eq!(reach(KeyUser { qp: 2, ..by }, rkey, base, with).is_some(), of_any);
                    }
                    let flush =
                        RemoteAccess::Flush(ferroce_types::Placement { global: true, persistent: false });
                    assert_eq!(reach(by, rkey, base, flush), None);
                    mw.dealloc().unwrap();
                }
            }
        }
        mr.deregister().unwrap();
    }

    #[test]
    fn a_window_is_invalidated_by_the_queue_pair_that_bound_it_and_its_key() {
        let memory = [0; 64];
        let (pds, mr) = region(&memory, MrAccess::ALL);
        let (table, by) = (KeyTable::global(), KeyUser { pd: pds[0].id(), qp: 1 });
        let mw = Mw::alloc(&pds[0], MwKind::Two).unwrap();
        let range = (memory.as_ptr() as u64, 64);
        let bind = mw.bind_request(mw.rkey() + 1, Some(&mr), range, ALL, false).unwrap();
        table.bind(by, &bind).unwrap();
        let is_bound = || table.check_remote(by, bind.rkey, range.0, 8, RemoteAccess::Read).is_ok();
        for (by, rkey) in [
            (by, bind.rkey - 1),
            (KeyUser { qp: 2, ..by }, bind.rkey),
            (KeyUser { pd: pds[1].id(), ..by }, bind.rkey),
        ] {
            assert!(table.invalidate(by, rkey).is_err() && is_bound());
        }
        // An access that doesn't end keeps the bond.
        let used = mw.gate.read().bound.clone();
        assert!(table.invalidate(by, bind.rkey).is_err() && is_bound());
        drop(used);
        table.invalidate(by, bind.rkey).unwrap();
        assert!(!is_bound() && table.invalidate(by, bind.rkey).is_err());
        let one = Mw::alloc(&pds[0], MwKind::One).unwrap();
        table.bind(by, &one.bind_request(one.rkey(), Some(&mr), range, ALL, false).unwrap()).unwrap();
        assert!(table.invalidate(by, one.rkey()).is_err(), "of type 1");
        one.dealloc().unwrap();
        mw.dealloc().unwrap();
        mr.deregister().unwrap();
    }

    #[test]
    fn a_window_whose_change_was_refused_is_what_it_was() {
        let memory = [0; 64];
        let (pds, mr) = region(&memory, MrAccess::ALL);
        let (table, by) = (KeyTable::global(), KeyUser { pd: pds[0].id(), qp: 1 });
        let mw = Mw::alloc(&pds[0], MwKind::One).unwrap();
        let at = memory.as_ptr() as u64;
        let bind = |length| mw.bind_request(mw.rkey() + 1, Some(&mr), (at, length), ALL, false).unwrap();
        table.bind(by, &bind(64)).unwrap();
        let rkey = mw.rkey();
        let used = mw.gate.read().bound.clone();
        let reaches = || table.check_remote(by, rkey, at + 56, 8, RemoteAccess::Read).is_ok();
        assert!(table.bind(by, &bind(32)).is_err() && mw.rkey() == rkey && reaches());
        assert_eq!(mw.dealloc().unwrap_err().errno(), libc::EBUSY);
        assert!(reaches());
        drop(used);
        table.bind(by, &bind(32)).unwrap();
        assert!(mw.rkey() != rkey && !reaches());
        mw.dealloc().unwrap();
        mr.deregister().unwrap();
    }
}
