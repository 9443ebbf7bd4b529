//! Why a region doesn't let a request touch its memory: looked up after the request was refused.

use super::{Bytes, Mr, Registered};
use crate::rights::{MrAccess, translate};
use ferroce_explain::{KeyFault, Rights};
use ferroce_types::RemoteAccess;

/// What a request does to a region's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// A request or receive of this process reads or writes.
    Local { write: bool },
    /// A peer's request.
    Remote(RemoteAccess),
    /// A peer's request by way of a window, which has the rights.
    Window,
}

impl Use {
    /// The right that is needed, and whether a region with `access` has it.
    fn needs(self, access: &MrAccess) -> (&'static str, bool) {
        match self {
            Self::Local { write } => ("LOCAL_WRITE", access.local_write || !write),
            Self::Remote(RemoteAccess::Read) => ("REMOTE_READ", access.remote_read),
            Self::Remote(RemoteAccess::Write | RemoteAccess::Store) => ("REMOTE_WRITE", access.remote_write),
            Self::Remote(RemoteAccess::Atomic) => ("REMOTE_ATOMIC", access.remote_atomic),
            Self::Remote(RemoteAccess::Flush(placement)) => {
                ("FLUSH_GLOBAL or FLUSH_PERSISTENT", placement.is_within(access.flush))
            }
            Self::Window => ("MW_BIND", access.bind_windows),
        }
    }
}

impl Mr {
    /// What keeps a request of `pd` from `len` bytes at `va`; `None` if nothing does but the memory itself.
    pub(crate) fn fault(&self, pd: u32, (va, len): (u64, u64), use_: Use) -> Option<KeyFault> {
        let Some(registered) = self.registered() else {
            return Some(KeyFault::Deregistered { ago: core::time::Duration::ZERO });
        };
        let Registered { init, pd: own, bytes, .. } = &*registered;
        if own.id() != pd {
            return Some(KeyFault::OtherDomain);
        }
        let (needs, has) = use_.needs(&init.access);
        if !has {
            return Some(KeyFault::Rights { needs, has: rights(&init.access) });
        }
        if matches!((&**bytes, use_), (Bytes::Null, Use::Local { .. })) || translate(init, va, len).is_some()
        {
            return None;
        }
        let start = init.iova;
        let lost = (va & 0xffff_ffff) | (start & !0xffff_ffff);
        let odd = [va.swap_bytes(), lost, u64::from((va as u32).swap_bytes()) | (start & !0xffff_ffff)];
        let meant = odd.into_iter().find(|&meant| len > 0 && translate(init, meant, len).is_some());
        Some(match meant {
            Some(meant) => KeyFault::OddAddress { meant },
            None => KeyFault::Outside { region: (start, init.length) },
        })
    }
}

fn rights(access: &MrAccess) -> Rights {
    let MrAccess { local_write, remote_read, remote_write, remote_atomic, .. } = *access;
    Rights { local_write, remote_read, remote_write, remote_atomic }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double::Nobody;
    use crate::{KeyTable, KeyUser, MrInit, Pd};
    use ferroce_types::Sge;
    use std::sync::Arc;

    #[test]
    fn each_fault_of_a_key_is_told_from_the_others() {
        let pd = Pd::alloc(&Arc::new(Nobody)).unwrap();
        let other = Pd::alloc(&Arc::new(Nobody)).unwrap();
        let memory = vec![0u8; 4096];
        let addr = memory.as_ptr() as u64;
        let access = MrAccess { local_write: true, remote_read: true, ..MrAccess::default() };
        let mr = Mr::of_test(&pd, MrInit { addr, length: 4096, iova: addr, access }).unwrap();
        let table = KeyTable::global();
        let by = KeyUser { pd: pd.id(), qp: 1 };
        let fault = |va, len, access| table.remote_fault(by, mr.key(), (va, len), access);
        assert_eq!(fault(addr, 8, RemoteAccess::Read), KeyFault::Gone);
        let has = Rights { local_write: true, remote_read: true, ..Rights::default() };
        let rights = KeyFault::Rights { needs: "REMOTE_WRITE", has };
        assert_eq!(fault(addr, 8, RemoteAccess::Write), rights);
        let outside = KeyFault::Outside { region: (addr, 4096) };
        assert_eq!(fault(addr + 4090, 8, RemoteAccess::Read), outside);
        assert_eq!(fault(0, 8, RemoteAccess::Read), outside);
        for odd in [addr.swap_bytes(), addr & 0xffff_ffff, u64::from((addr as u32).swap_bytes())] {
            assert_eq!(fault(odd, 8, RemoteAccess::Read), KeyFault::OddAddress { meant: addr }, "{odd:#x}");
        }
        let swapped = table.remote_fault(by, mr.key().swap_bytes(), (addr, 8), RemoteAccess::Read);
        assert_eq!(swapped, KeyFault::ByteSwapped { meant: mr.key() });
        let stranger = KeyUser { pd: other.id(), qp: 1 };
        let theirs = table.remote_fault(stranger, mr.key(), (addr, 8), RemoteAccess::Read);
        assert_eq!(theirs, KeyFault::OtherDomain);
        let sges = |lkey| [Sge { addr, length: 8, lkey }];
        assert_eq!(table.local_fault(pd.id(), &sges(mr.key()), true), Some((mr.key(), KeyFault::Gone)));
        assert_eq!(table.local_fault(pd.id(), &sges(0), true), Some((0, KeyFault::Unknown)));
        let key = mr.key();
        mr.deregister().unwrap();
        let fault = table.remote_fault(by, key, (addr, 8), RemoteAccess::Read);
        assert!(matches!(fault, KeyFault::Deregistered { .. }), "{fault:?}");
        // A place that has never had as many keys.
        let never = key | 0x00ff_ff00;
        assert_eq!(table.remote_fault(by, never, (addr, 8), RemoteAccess::Read), KeyFault::Unknown);
    }
}
