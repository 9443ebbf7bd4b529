//! Domains, regions and device memory of a context of another process.

use super::consent;
use super::ledger::{EntryKind, LedgerRegion, OthersLedger, index, no_such, of_bits};
use ferroce_access::{Fault, PeerMemory};
use ferroce_host::Host;
use ferroce_mem::{Backing, Dm, Mr, MrInit, Owner, Pd};
use ferroce_os::{
    sync::{Mutex, class},
    sys,
};
use ferroce_types::{Error, Result};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

/// A context of another process.
#[derive(Debug)]
pub struct Exporter {
    ledger: OthersLedger,
    /// The domains of it that are imported here: importing one twice gives the same domain.
    pds: Mutex<class::ImportedPds, BTreeMap<u32, Weak<Pd>>>,
}

impl Exporter {
    /// The context behind `cmd_fd`, which stays the caller's.
    ///
    /// # Errors
    /// It isn't the descriptor of a context, or the system refused.
    pub fn open(cmd_fd: RawFd) -> io::Result<Self> {
        let ledger = OthersLedger::open(sys::duplicate_engine(cmd_fd)?)?;
        Ok(Self { ledger, pds: Mutex::default() })
    }

    /// The name of its device.
    #[must_use]
    pub fn device(&self) -> String {
        self.ledger.device()
    }

    pub(super) fn id(&self) -> u64 {
        self.ledger.id()
    }

    /// The memory of the process, while it lives and lets this one copy.
    fn memory(&self) -> Option<PeerMemory> {
        let (pid, at, cookie) = self.ledger.process();
        PeerMemory::probe(pid, at, cookie)
    }

    /// The same; asks the process for leave where the kernel wants it.
    fn asked_memory(&self, host: Option<&Host>) -> Option<PeerMemory> {
        self.memory().or_else(|| {
            consent::ask(host?, self.ledger.process().0);
            self.memory()
        })
    }

    fn find(&self, handle: u32, kind: EntryKind, what: &'static str) -> Result<(u64, [u64; 4])> {
        self.ledger.find(index(handle), handle, kind).ok_or_else(|| no_such(what))
    }

    /// This process's domain for the one behind a handle, in `context`.
    ///
    /// # Errors
    /// ENOENT for a handle that isn't a domain's.
    pub fn pd<O: Owner>(&self, context: &Arc<O>, handle: u32) -> Result<Arc<Pd>> {
        self.find(handle, EntryKind::Pd, "importing a protection domain")?;
        let mut pds = self.pds.lock();
        if let Some(pd) = pds.get(&handle).and_then(Weak::upgrade) {
            return Ok(pd);
        }
        let pd = Pd::of_another(context, handle)?;
        pds.insert(handle, Arc::downgrade(&pd));
        Ok(pd)
    }

    /// The device memory behind a handle. `host`: for asking the other process for leave to copy.
    ///
    /// # Errors
    /// ENOENT for a handle that isn't one's; the errno of open(2) when it can't be opened.
    pub fn dm<O: Owner>(&self, context: &Arc<O>, handle: u32, host: Option<&Host>) -> Result<Arc<Dm>> {
        const WHAT: &str = "importing device memory";
        let (name, [fd, len, ..]) = self.find(handle, EntryKind::Dm, WHAT)?;
        let (pid, ..) = self.ledger.process();
        let path = sys::proc_entry(pid, &format!("fd/{fd}")).map_err(Error::os(WHAT))?;
        let dm = Dm::of_another(context, &path, len, handle)?;
        // Still listed: so the descriptor was that of the device memory.
        if !self.ledger.is_listed(index(handle), name) || self.asked_memory(host).is_none() {
            return Err(no_such(WHAT));
        }
        Ok(dm)
    }

    /// The region behind a handle. `host`: for asking the other process for leave to copy.
    ///
    /// # Errors
    /// ENOENT for a handle that isn't a region's; [`Error::Permission`] when this process may not copy from and to the
    /// other's memory.
    pub fn mr<O: Owner>(
        self: &Arc<Self>,
        context: &Arc<O>,
        handle: u32,
        host: Option<&Host>,
    ) -> Result<Arc<Mr>> {
        const WHAT: &str = "importing a memory region";
        let (name, words) = self.find(handle, EntryKind::Mr, WHAT)?;
        let LedgerRegion { pd, dm, rights, addr, iova, length } = LedgerRegion::of_words(words);
        let pd = self.pd(context, pd)?;
        let init = MrInit { addr, length, iova, access: of_bits(rights) };
        if dm != 0 {
            let dm = self.dm(context, dm, host)?;
            return Mr::import_dm(&pd, &dm, init, handle);
        }
        if self.asked_memory(host).is_none() {
            return Err(Error::Permission(
                "this process may not copy from and to the memory of the region's process".into(),
            ));
        }
        let foreign = Foreign { exporter: self.clone(), index: index(handle), name };
        Mr::import_backed(&pd, Box::new(foreign), init, handle)
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
