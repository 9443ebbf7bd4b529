//! What a key stands for while it is registered: a range, rights, a domain, and what the bytes are.

use crate::backing::Backing;
use crate::dm::Dm;
use crate::dmabuf::DmaBuf;
use crate::listing::listing;
use crate::owner::{ListedObject, Owner};
use crate::pd::Pd;
use crate::rights::MrInit;
use crate::shortcut::SHORTCUTS;
use ferroce_access::{Fault, NotedRanges};
use ferroce_os::sys;
use ferroce_types::RemoteAccess;
use std::sync::{Arc, Weak};

/// What a key stands for.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) init: MrInit,
    pub(crate) pd: Arc<Pd>,
    /// Kept when the range or the rights change.
    pub(crate) bytes: Arc<Bytes>,
    /// Of another process.
    pub(crate) imported: bool,
    /// All of it is memory that processes can share.
    pub(crate) shared: bool,
    /// As long as it is registered.
    pub(crate) _noted: NotedRanges,
}

/// What a region's bytes are, besides memory at an address.
#[derive(Debug)]
pub(crate) enum Bytes {
    Program,
    Dm {
        dm: Arc<Dm>,
        offset: u64,
    },
    DmaBuf(DmaBuf),
    /// Memory of another process.
    Backed(Box<dyn Backing>),
    /// Zeros, which stay what they are.
    Null,
}

impl Registered {
    /// Other processes may reach the memory at its address, as far as the rights go.
    pub(crate) fn is_listed(&self) -> bool {
        matches!(*self.bytes, Bytes::Program | Bytes::Dm { .. }) && !self.imported
    }

    /// Lists the region for other processes: those with a QP that reaches it, and those that may import it.
    pub(crate) fn publish(&self, key: u32, handle: u32, home: Option<&Weak<dyn Owner>>) {
        let (dm, addr) = match &*self.bytes {
            Bytes::Dm { dm, offset } => (dm.handle(), *offset),
            _ => (0, self.init.addr),
        };
        if matches!(*self.bytes, Bytes::Program) {
            sys::valgrind::leave_alone(self.init.addr, self.init.length);
        }
        if let Some(home) = home.and_then(Weak::upgrade).filter(|_| self.is_listed()) {
            let init = MrInit { addr, ..self.init };
            home.list(handle, ListedObject::Mr { pd: self.pd.handle(), dm, init });
        }
        self.publish_to_data_paths(key);
        self.publish_to_peers(key);
    }

    /// Has requests find the region without a lock, if there is nothing to be done before and after its memory is touched.
    pub(crate) fn publish_to_data_paths(&self, key: u32) {
        if matches!(*self.bytes, Bytes::Program | Bytes::Dm { .. }) {
            SHORTCUTS.publish(key, self.pd.id(), &self.init);
        }
    }

    pub(crate) fn publish_to_peers(&self, key: u32) {
        if let Some(listing) = listing().filter(|_| self.is_listed()) {
            listing.publish(key, self.pd.id(), &self.init, self.shared);
        }
    }

    /// Runs `f`, which touches the memory.
    pub(crate) fn accessed<R>(
        &self,
        addr: u64,
        len: u64,
        write: bool,
        f: impl FnOnce(u64) -> std::result::Result<R, Fault>,
    ) -> std::result::Result<R, Fault> {
        match &*self.bytes {
            Bytes::DmaBuf(buffer) => buffer.accessed(write, || f(addr)),
            Bytes::Backed(backing) => {
                let (mut f, mut result) = (Some(f), Err(Fault));
                backing.accessed(addr, len, write, &mut |addr| {
                    // It is called once.
                    result = f.take().ok_or(Fault)?(addr);
                    result.as_ref().map(drop).map_err(|&fault| fault)
                })?;
                result
            }
            Bytes::Program | Bytes::Dm { .. } | Bytes::Null => f(addr),
        }
    }

    /// As [`Registered::accessed`], for a peer.
    #[inline]
    pub(crate) fn accessed_by_peer<R>(
        &self,
        addr: u64,
        len: u64,
        access: RemoteAccess,
        f: impl FnOnce(u64) -> std::result::Result<R, Fault>,
    ) -> std::result::Result<R, Fault> {
        match (&*self.bytes, access) {
            // A copy there and back isn't atomic with the instructions of the process that has the memory.
            (Bytes::Backed(_), RemoteAccess::Atomic | RemoteAccess::Store) => Err(Fault),
            // Nothing is copied; imported regions don't have the right.
            (_, RemoteAccess::Flush(_)) => f(addr),
            _ => self.accessed(addr, len, access != RemoteAccess::Read, f),
        }
    }

    /// The address of the program's pages that an access to `addr` touches, if there are any. Memory of another process is reached by a copy,
    /// and that of a dma-buf never comes late.
    pub(crate) fn pages_at(&self, addr: u64) -> Option<u64> {
        matches!(*self.bytes, Bytes::Program | Bytes::Dm { .. }).then_some(addr)
    }

    /// The region isn't registered any more.
    pub(crate) fn end(&self) {
        match &*self.bytes {
            Bytes::Null => return,
            Bytes::Dm { dm, .. } => dm.release(),
            Bytes::Program | Bytes::DmaBuf(_) | Bytes::Backed(_) => {}
        }
        self.pd.release();
    }
}
