//! What a key stands for while it is registered: a range, rights, a domain, and what the bytes are.

use super::MrInit;
use crate::mem::dmabuf::DmaBuf;
use crate::mem::{Dm, KeyTable, ListedMr, Owner, Pd, copy};
use crate::share::Foreign;
use std::sync::{Arc, Weak};

/// What a key stands for.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) init: MrInit,
    pub(super) pd: Arc<Pd>,
    pub(super) backing: Backing,
    /// Of another process.
    pub(super) imported: bool,
}

/// What a region's bytes are, besides memory at an address.
#[derive(Debug)]
pub(super) enum Backing {
    Program,
    Dm {
        dm: Arc<Dm>,
        offset: u64,
    },
    DmaBuf(DmaBuf),
    /// Memory of another process.
    Foreign(Foreign),
    /// Zeros, which stay what they are.
    Null,
}

impl Registered {
    /// Other processes may reach the memory at its address, as far as the rights go.
    pub(super) fn is_listed(&self) -> bool {
        matches!(self.backing, Backing::Program | Backing::Dm { .. }) && !self.imported
    }

    /// Tells other processes what the region is: those with a QP that reaches it, and those that may import it.
    pub(super) fn publish(&self, key: u32, handle: u32, home: Option<&Weak<dyn Owner>>) {
        let (dm, addr) = match &self.backing {
            Backing::Dm { dm, offset } => (dm.handle(), *offset),
            _ => (0, self.init.addr),
        };
        if let Some(home) = home.and_then(Weak::upgrade).filter(|_| self.is_listed()) {
            home.list_mr(handle, ListedMr { pd: self.pd.handle(), dm, init: MrInit { addr, ..self.init } });
        }
        self.publish_to_peers(key);
    }

    pub(super) fn publish_to_peers(&self, key: u32) {
        if let Some(listing) = KeyTable::global().listing().filter(|_| self.is_listed()) {
            listing.publish(key, self.pd.id(), &self.init);
        }
    }

    /// Runs `f`, which touches the memory.
    pub(super) fn accessed<R>(
        &self,
        addr: u64,
        len: u64,
        write: bool,
        f: impl FnOnce(u64) -> std::result::Result<R, copy::Fault>,
    ) -> std::result::Result<R, copy::Fault> {
        match &self.backing {
            Backing::DmaBuf(buffer) => buffer.accessed(write, || f(addr)),
            Backing::Foreign(foreign) => foreign.accessed(addr, len, write, f),
            Backing::Program | Backing::Dm { .. } | Backing::Null => f(addr),
        }
    }

    pub(super) fn end(self) {
        match &self.backing {
            Backing::Null => return,
            Backing::Dm { dm, .. } => dm.release(),
            Backing::Program | Backing::DmaBuf(_) | Backing::Foreign(_) => {}
        }
        self.pd.release();
    }
}
