//! The importing side: contexts, domains, regions and device memory of another context, in this process or another.

use super::ledger::{EntryKind, LedgerRegion, OthersLedger};
use super::{Handles, INDEX_BITS, consent, no_such};
use crate::{Context, adapter, devices};
use ferroce_access::{Fault, PeerMemory};
use ferroce_mem::{Backing, Dm, Mr, MrAccess, MrInit, Pd};
use ferroce_os::{
    sync::{Mutex, class},
    sys::{self, KeptFd},
};
use ferroce_types::{Error, Result, invalid};
use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

/// Where the objects of an imported context are.
#[derive(Debug, Clone)]
pub(crate) enum ImportOrigin {
    /// In another context of this process.
    Here(Weak<Context>),
    /// In another process.
    Process(Arc<Exporter>),
}

/// A context of another process.
#[derive(Debug)]
pub(crate) struct Exporter {
    ledger: OthersLedger,
    /// The domains of it that are imported here: importing one twice gives the same domain.
    pds: Mutex<class::ImportedPds, BTreeMap<u32, Weak<Pd>>>,
}

fn index(handle: u32) -> u32 {
    handle & ((1 << INDEX_BITS) - 1)
}

impl Exporter {
    /// The memory of the process, while it lives and lets this one copy.
    fn memory(&self) -> Option<PeerMemory> {
        let (pid, at, cookie) = self.ledger.process();
        PeerMemory::probe(pid, at, cookie)
    }

    /// The same; asks the process for leave where the kernel wants it.
    fn asked_memory(&self) -> Option<PeerMemory> {
        self.memory().or_else(|| {
            consent::ask(self.ledger.process().0);
            self.memory()
        })
    }

    fn find(&self, handle: u32, kind: EntryKind, what: &'static str) -> Result<(u64, [u64; 4])> {
        self.ledger.find(index(handle), handle, kind).ok_or_else(|| no_such(what))
    }

    /// This process's domain for the one behind a handle, in `context`.
    fn pd(&self, context: &Arc<Context>, handle: u32) -> Result<Arc<Pd>> {
        self.find(handle, EntryKind::Pd, "importing a protection domain")?;
        let mut pds = self.pds.lock();
        if let Some(pd) = pds.get(&handle).and_then(Weak::upgrade) {
            return Ok(pd);
        }
        let pd = Pd::of_another(context, handle)?;
        pds.insert(handle, Arc::downgrade(&pd));
        Ok(pd)
    }

    /// The device memory behind a handle.
    fn dm(&self, context: &Arc<Context>, handle: u32) -> Result<Arc<Dm>> {
        const WHAT: &str = "importing device memory";
        let (name, [fd, len, ..]) = self.find(handle, EntryKind::Dm, WHAT)?;
        let (pid, ..) = self.ledger.process();
        let path = sys::proc_entry(pid, &format!("fd/{fd}")).map_err(Error::os(WHAT))?;
        let dm = Dm::of_another(context, &path, len, handle)?;
        // Still listed: so the descriptor was that of the device memory.
        if !self.ledger.is_listed(index(handle), name) || self.asked_memory().is_none() {
            return Err(no_such(WHAT));
        }
        Ok(dm)
    }
}

/// The memory of a region of another process.
#[derive(Debug)]
struct Foreign {
    exporter: Arc<Exporter>,
    index: u32,
    name: u64,
}

impl Backing for Foreign {
    /// Fails also when the region isn't what it was when it was imported, or when the other process has ended.
    fn accessed(
        &self,
        addr: u64,
        len: u64,
        write: bool,
        f: &mut dyn FnMut(u64) -> std::result::Result<(), Fault>,
    ) -> std::result::Result<(), Fault> {
        let peer = self.exporter.memory().ok_or(Fault)?;
        if !self.exporter.ledger.is_listed(self.index, self.name) {
            return Err(Fault);
        }
        let mut copy = vec![0u8; len as usize];
        let here = copy.as_mut_ptr() as u64;
        // Also for a write: `f` that only checks writes nothing.
        if !peer.read(addr, here, copy.len()) {
            return Err(Fault);
        }
        f(here)?;
        let written = !write
            || (self.exporter.ledger.is_listed(self.index, self.name) && peer.write(addr, here, copy.len()));
        if written { Ok(()) } else { Err(Fault) }
    }
}

const RIGHTS: usize = 4;

/// Rights as bits of a ledger.
pub(super) fn to_bits(access: MrAccess) -> u16 {
    let all: [bool; RIGHTS] =
        [access.local_write, access.remote_write, access.remote_read, access.remote_atomic];
    all.iter().enumerate().map(|(i, &has)| u16::from(has) << i).sum()
}

fn of_bits(bits: u16) -> MrAccess {
    let has = |i: u32| bits >> i & 1 == 1;
    MrAccess {
        local_write: has(0),
        remote_write: has(1),
        remote_read: has(2),
        remote_atomic: has(3),
        ..MrAccess::default()
    }
}

impl Context {
    /// Imports the context behind `cmd_fd`, a duplicate of a context's (ibv_import_device(3)): a context of its own, by
    /// which objects of the other can be imported. It takes `cmd_fd` over if it succeeds.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a descriptor that isn't a context's; ENODEV when this process hasn't the device.
    pub fn import(cmd_fd: RawFd) -> Result<Arc<Self>> {
        let ledger = sys::duplicate_engine(cmd_fd).and_then(OthersLedger::open);
        let Ok(ledger) = ledger else { return invalid!("descriptor {cmd_fd} isn't the cmd_fd of a context") };
        let name = ledger.device();
        let device = devices()?.into_iter().find(|device| device.info().name == name).ok_or(Error::Os {
            what: "importing a context",
            source: io::Error::from_raw_os_error(libc::ENODEV),
        })?;
        let of_this_process =
            |context: &Arc<Self>| context.handles().with_ledger(|own| own.id() == ledger.id()) == Some(true);
        let origin = match adapter::contexts().iter().find(|context| of_this_process(context)) {
            Some(context) => ImportOrigin::Here(Arc::downgrade(context)),
            None => ImportOrigin::Process(Arc::new(Exporter { ledger, pds: Mutex::default() })),
        };
        device.open_as(Some(origin), || Handles::imported(KeptFd::adopt(cmd_fd)))
    }

    /// Is it this very context of the process that it was imported from?
    pub(crate) fn is_import_of(&self, context: &Self) -> bool {
        matches!(self.origin(), Some(ImportOrigin::Here(origin)) if std::ptr::eq(origin.as_ptr(), context))
    }

    /// The object behind a handle of this context, or of the one of this process that it was imported from.
    fn object<T: Any + Send + Sync>(&self, handle: u32, what: &'static str) -> Result<Arc<T>> {
        let object = match self.origin() {
            Some(ImportOrigin::Here(context)) => {
                context.upgrade().and_then(|context| context.handles().get(handle))
            }
            _ => self.handles().get(handle),
        };
        object.ok_or_else(|| no_such(what))
    }

    /// The domain behind a handle (ibv_import_pd(3)).
    ///
    /// # Errors
    /// ENOENT for a handle that isn't a domain's.
    pub fn import_pd(self: &Arc<Self>, handle: u32) -> Result<Arc<Pd>> {
        const WHAT: &str = "importing a protection domain";
        if let Some(ImportOrigin::Process(exporter)) = self.origin() {
            return exporter.pd(self, handle);
        }
        Pd::shared(&self.object(handle, WHAT)?, self)
    }

    /// The device memory behind a handle (ibv_import_dm(3)).
    ///
    /// # Errors
    /// ENOENT for a handle that isn't one's; the errno of open(2) when the memory of another process can't be opened.
    pub fn import_dm(self: &Arc<Self>, handle: u32) -> Result<Arc<Dm>> {
        const WHAT: &str = "importing device memory";
        if let Some(ImportOrigin::Process(exporter)) = self.origin() {
            return exporter.dm(self, handle);
        }
        self.object(handle, WHAT)
    }

    /// The region behind a handle (ibv_import_mr(3)). That of another process gets a key of this one; it can be used while
    /// it stays what it is and its process lives. Atomics on plain memory of another
    /// process are refused: they can't be made atomic with those of its own queue pairs.
    ///
    /// # Errors
    /// ENOENT for a handle that isn't a region's; [`Error::Permission`] when this process may not copy from and to the
    /// other's memory.
    pub fn import_mr(self: &Arc<Self>, handle: u32) -> Result<Arc<Mr>> {
        const WHAT: &str = "importing a memory region";
        let Some(ImportOrigin::Process(exporter)) = self.origin() else {
            return self.object(handle, WHAT);
        };
        let (name, words) = exporter.find(handle, EntryKind::Mr, WHAT)?;
        let LedgerRegion { pd, dm, rights, addr, iova, length } = LedgerRegion::of_words(words);
        let pd = exporter.pd(self, pd)?;
        let init = MrInit { addr, length, iova, access: of_bits(rights) };
        if dm != 0 {
            let dm = exporter.dm(self, dm)?;
            return Mr::import_dm(&pd, &dm, init, handle);
        }
        if exporter.asked_memory().is_none() {
            return Err(Error::Permission(
                "this process may not copy from and to the memory of the region's process".into(),
            ));
        }
        let foreign = Foreign { exporter: exporter.clone(), index: index(handle), name };
        Mr::import_backed(&pd, Box::new(foreign), init, handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_survive_the_ledger() {
        for bits in 0..1 << RIGHTS {
            assert_eq!(to_bits(of_bits(bits)), bits);
        }
    }
}
