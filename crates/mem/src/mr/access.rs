//! Access to a region: which rights it needs, where the bytes are, and the registration that it keeps meanwhile.

use super::{Bytes, Mr, Registered};
use crate::pd::Pd;
use crate::rights::{Denied, MrInit, translate};
use ferroce_access::Fault;
use ferroce_types::{BindMw, Error, RemoteAccess, RemoteError, Result, Sge};
use std::sync::Arc;

/// Pages of the program's, whose region stays registered meanwhile.
#[derive(Debug)]
pub struct HeldPages {
    /// Their address.
    pub addr: u64,
    _registered: Arc<Registered>,
}

impl Mr {
    /// Does it belong to this domain?
    pub(crate) fn is_of(&self, pd: &Pd) -> bool {
        self.gate.read().as_ref().is_some_and(|registered| registered.pd.id() == pd.id())
    }

    /// Its domain, while it is registered.
    pub(crate) fn pd(&self) -> Option<Arc<Pd>> {
        self.gate.read().as_ref().map(|registered| registered.pd.clone())
    }

    /// What it is registered as and whose it is, for people; `None` when it is being changed, or isn't registered any more.
    #[must_use]
    pub fn try_look(&self) -> Option<(MrInit, Arc<Pd>)> {
        let gate = self.gate.try_read()?;
        gate.as_ref().map(|registered| (registered.init, registered.pd.clone()))
    }

    /// Counts a window of `pd` that is bound to it.
    ///
    /// # Errors
    /// Why it may not be (IBTA 10.6.7.2, C10-72 to C10-75).
    pub(crate) fn hold_window(&self, pd: &Pd, bind: &BindMw) -> std::result::Result<(), &'static str> {
        let gate = self.gate.read();
        let Some(registered) = gate.as_ref() else {
            return Err("the memory region is deregistered");
        };
        let Registered { init, pd: own, .. } = &**registered;
        if own.id() != pd.id() {
            return Err("the memory region is of another protection domain than the window");
        }
        if !init.access.bind_windows {
            return Err("the memory region is registered without IBV_ACCESS_MW_BIND");
        }
        if (bind.access.remote_write || bind.access.remote_atomic) && !init.access.local_write {
            return Err("remote write or atomic access to a memory region without local write access");
        }
        if translate(init, bind.va, bind.length).is_none() {
            return Err("the window isn't inside the memory region");
        }
        self.windows.hold();
        Ok(())
    }

    /// Undoes [`Mr::hold_window`].
    pub(crate) fn release_window(&self) {
        self.windows.release();
    }

    /// As [`KeyTable::local`](crate::KeyTable::local).
    pub(crate) fn local(
        &self,
        pd: u32,
        sge: &Sge,
        write: bool,
        f: impl FnOnce(u64) -> std::result::Result<(), Fault>,
    ) -> std::result::Result<(), Denied> {
        let (registered, addr) = self.find_local(pd, sge, write)?;
        match *registered.bytes {
            // What is written there is lost.
            Bytes::Null if write => Ok(()),
            _ => registered.accessed(addr, sge.length.into(), write, f).map_err(|Fault| Denied),
        }
    }

    /// As [`KeyTable::hold_local`](crate::KeyTable::hold_local).
    pub(crate) fn hold_local(&self, pd: u32, sge: &Sge, write: bool) -> Option<HeldPages> {
        let (registered, addr) = self.find_local(pd, sge, write).ok()?;
        registered.pages_at(addr).map(|addr| HeldPages { addr, _registered: registered })
    }

    /// The address of `sge`, which is touched by [`Registered::accessed`] only, or where [`Registered::pages_at`] returns it.
    fn find_local(
        &self,
        pd: u32,
        sge: &Sge,
        write: bool,
    ) -> std::result::Result<(Arc<Registered>, u64), Denied> {
        let registered = self.registered().ok_or(Denied)?;
        let Registered { init, pd: own, bytes, .. } = &*registered;
        if own.id() != pd || (write && !init.access.local_write) {
            return Err(Denied);
        }
        let addr = match **bytes {
            Bytes::Null => init.addr,
            _ => translate(init, sge.addr, u64::from(sge.length)).ok_or(Denied)?,
        };
        Ok((registered, addr))
    }

    /// As [`KeyTable::remote`](crate::KeyTable::remote), for a QP of domain `pd`; by way of a window, which has the rights, with `by_window`.
    /// `f` touches the memory by [`Registered::accessed_by_peer`] only.
    pub(crate) fn remote<R>(
        &self,
        (pd, by_window): (u32, bool),
        (va, len): (u64, u64),
        access: RemoteAccess,
        f: impl FnOnce(&Registered, u64) -> std::result::Result<R, Fault>,
    ) -> std::result::Result<R, RemoteError> {
        let registered = self.registered().ok_or(RemoteError::Access)?;
        let Registered { init, pd: own, .. } = &*registered;
        let (rights, write) = (init.access, access != RemoteAccess::Read);
        let allowed = match access {
            _ if by_window => rights.bind_windows && (!write || rights.local_write),
            RemoteAccess::Read => rights.remote_read,
            RemoteAccess::Write | RemoteAccess::Store => rights.remote_write,
            RemoteAccess::Atomic => rights.remote_atomic,
            RemoteAccess::Flush(placement) => placement.is_within(rights.flush),
        };
        if own.id() != pd || !allowed {
            return Err(RemoteError::Access);
        }
        let addr = translate(init, va, len).ok_or(RemoteError::Access)?;
        f(&registered, addr).map_err(|Fault| RemoteError::Operational)
    }

    /// Address and length in requests.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        let gate = self.gate.read();
        gate.as_ref().map(|registered| (registered.init.iova, registered.init.length))
    }

    /// The program address of `sge`, whose pages an access would bring in.
    ///
    /// # Errors
    /// As [`Prefetch::run`](crate::Prefetch::run).
    pub(crate) fn pageable(&self, pd: &Pd, sge: &Sge, write: bool) -> Result<u64> {
        let key = self.key;
        let gate = self.gate.read();
        let Some(registered) = gate.as_ref().filter(|registered| registered.init.access.on_demand) else {
            return Err(Error::NotFound(format!("lkey {key:#x} isn't that of an on-demand memory region")));
        };
        if registered.pd.id() != pd.id() {
            return Err(Error::Permission(format!("lkey {key:#x} is of another protection domain")));
        }
        if write && !registered.init.access.local_write {
            return Err(Error::Permission(format!("the region of lkey {key:#x} may not be written")));
        }
        translate(&registered.init, sge.addr, u64::from(sge.length)).ok_or_else(|| {
            Error::Fault(format!("{:#x}+{:#x} isn't inside the memory region", sge.addr, sge.length))
        })
    }

    /// Lists it for other processes.
    pub(crate) fn publish(&self) {
        if let Some(registered) = &*self.gate.read() {
            registered.publish_to_peers(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double::Nobody;
    use crate::{KeyTable, KeyUser, MrAccess, Mw, MwKind};
    use ferroce_types::Access;
    use std::time::{Duration, Instant};

    /// Threads that copy, each so long that there is never a moment without a copy.
    const THREADS: usize = 4;
    const COPY: Duration = Duration::from_millis(2);
    /// A copy takes `COPY`: a longer wait than this is a wait for more than the copies that are under way.
    const BOUND: Duration = Duration::from_secs(5);
    const LIMIT: Duration = Duration::from_secs(15);

    /// Runs `f` while threads call `copy` again and again, until it fails.
    fn in_use(copy: impl Fn() -> bool + Sync, f: impl FnOnce()) {
        std::thread::scope(|threads| {
            for _ in 0..THREADS {
                threads.spawn(|| {
                    let end = Instant::now() + LIMIT;
                    while copy() && Instant::now() < end {}
                });
            }
            std::thread::sleep(10 * COPY);
            f();
        });
    }

    fn in_time<R>(what: &str, f: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = f();
        assert!(start.elapsed() < BOUND, "{what} waited for {:?}", start.elapsed());
        result
    }

    fn slow_copy<T>(_: u64) -> std::result::Result<T, Fault>
    where
        T: Default,
    {
        std::thread::sleep(COPY);
        Ok(T::default())
    }

    #[test]
    fn one_thread_at_a_time_changes_a_region() {
        let pd = Pd::alloc(&Arc::new(Nobody)).unwrap();
        let memory = [0u8; 64];
        let addr = memory.as_ptr() as u64;
        let init = MrInit { addr, length: 64, iova: addr, access: MrAccess::ALL };
        let mr = Mr::of_test(&pd, init).unwrap();
        let change = mr.begin_change().unwrap();
        assert_eq!(mr.deregister().unwrap_err().errno(), libc::EBUSY);
        assert_eq!(mr.change_in_test(None, init, init).unwrap_err().errno(), libc::EBUSY);
        drop(change);
        mr.change_in_test(None, init, init).unwrap();
        // A change that ends soon is waited for.
        let change = mr.begin_change().unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| mr.deregister().unwrap());
            std::thread::sleep(COPY);
            drop(change);
        });
        // It has ended: its key may be another's.
        mr.deregister().unwrap();
    }

    /// A request that binds a window is carried out by any thread that makes progress.
    #[test]
    fn a_window_ends_once_the_bind_that_is_under_way_has_ended() {
        let pd = Pd::alloc(&Arc::new(Nobody)).unwrap();
        let mw = Mw::alloc(&pd, MwKind::One).unwrap();
        let bind = mw.begin_change().unwrap();
        std::thread::scope(|threads| {
            let ends = threads.spawn(|| mw.dealloc());
            std::thread::sleep(COPY);
            drop(bind);
            ends.join().unwrap().unwrap();
        });
    }

    #[test]
    fn memory_in_constant_use_is_revoked_once_the_copies_under_way_have_ended() {
        let pd = Pd::alloc(&Arc::new(Nobody)).unwrap();
        let memory = vec![0u8; 8192];
        let addr = memory.as_ptr() as u64;
        let init = MrInit { addr, length: 8192, iova: addr, access: MrAccess::ALL };
        let mr = Mr::of_test(&pd, init).unwrap();
        let mw = Mw::alloc(&pd, MwKind::One).unwrap();
        let (table, by) = (KeyTable::global(), KeyUser { pd: pd.id(), qp: 1 });
        let access = Access { remote_read: true, ..Access::default() };
        let bind = mw.bind_request(mw.rkey(), Some(&mr), (addr, 4096), access, false).unwrap();
        table.bind(by, &bind).unwrap();

        let rkey = mw.rkey();
        let through_window = || table.remote(by, rkey, addr, 8, RemoteAccess::Read, slow_copy::<()>).is_ok();
        in_use(through_window, || in_time("ibv_dealloc_mw", || mw.dealloc().unwrap()));

        let by_key = |from| {
            let sge = Sge { addr: from, length: 8, lkey: mr.key() };
            move || table.local(by.pd, &sge, false, slow_copy::<()>).is_ok()
        };
        let second_half = MrInit { addr: addr + 4096, length: 4096, iova: addr + 4096, ..init };
        in_use(by_key(addr), || {
            in_time("ibv_rereg_mr", || mr.change_in_test(None, mr.init().unwrap(), second_half).unwrap())
        });
        // Made of what the region was before.
        assert_eq!(mr.change_in_test(None, init, init).unwrap_err().errno(), libc::EBUSY);
        assert_eq!(mr.init().unwrap(), second_half);
        in_use(by_key(addr + 4096), || in_time("ibv_dereg_mr", || mr.deregister().unwrap()));
    }

    /// A copy whose page doesn't come, by the lock-free way, by a region's gate, and through a window.
    #[test]
    fn an_access_that_stands_holds_up_its_own_region_alone() {
        let pd = Pd::alloc(&Arc::new(Nobody)).unwrap();
        let memory = vec![0u8; 4096];
        let addr = memory.as_ptr() as u64;
        let init = MrInit { addr, length: 4096, iova: addr, access: MrAccess::ALL };
        let (table, by) = (KeyTable::global(), KeyUser { pd: pd.id(), qp: 1 });
        for way in ["without a lock", "by the gate", "through a window"] {
            let [mr, other] = &[(); 2].map(|()| Mr::of_test(&pd, init).unwrap());
            let sge = |mr: &Mr| Sge { addr, length: 8, lkey: mr.key() };
            let mw = Mw::alloc(&pd, MwKind::One).unwrap();
            let access = Access { remote_read: true, ..Access::default() };
            let bind = |length| mw.bind_request(mw.rkey(), Some(mr), (addr, length), access, false).unwrap();
            if way == "through a window" {
                table.bind(by, &bind(64)).unwrap();
            }
            let (rkey, window) = (mr.rkey(), mw.rkey());
            let (begun, has_begun) = std::sync::mpsc::channel();
            let (end, ends) = std::sync::mpsc::channel::<()>();
            std::thread::scope(|threads| {
                threads.spawn(move || {
                    let _inside = ferroce_os::fork::enter_library();
                    let stand = |_| {
                        begun.send(()).unwrap();
                        // Until the sender is dropped.
                        let _ = ends.recv();
                        Ok(())
                    };
                    let done = match way {
                        "without a lock" => table.local(by.pd, &sge(mr), false, stand).is_ok(),
                        "by the gate" => table.remote(by, rkey, addr, 8, RemoteAccess::Read, stand).is_ok(),
                        _ => table.remote(by, window, addr, 8, RemoteAccess::Read, stand).is_ok(),
                    };
                    assert!(done, "{way}");
                });
                has_begun.recv().unwrap();
                let busy = if way == "through a window" {
                    // Bound anew, it would be another.
                    assert!(table.bind(by, &bind(128)).is_err());
                    in_time("ibv_dealloc_mw", || mw.dealloc())
                } else {
                    in_time("ibv_dereg_mr", || mr.deregister())
                };
                assert_eq!(busy.unwrap_err().errno(), libc::EBUSY, "{way}");
                let half = MrInit { length: 2048, ..init };
                assert_eq!(mr.change_in_test(None, init, half).unwrap_err().errno(), libc::EBUSY, "{way}");
                // It is what it was.
                assert_eq!(mr.init().unwrap(), init);
                table.local(by.pd, &sge(mr), true, |_| Ok(())).unwrap();
                in_time("ibv_dereg_mr of another", || other.deregister().unwrap());
                drop(end);
            });
            mw.dealloc().unwrap();
            mr.deregister().unwrap();
        }
    }
}
