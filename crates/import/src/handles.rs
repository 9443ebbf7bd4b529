//! The objects of a context by handle, and those of them that others may import.

use super::exporter::Exporter;
use super::ledger::{self, EntryKind, INDEX_BITS, Ledger, LedgerRegion};
use ferroce_mem::{ListedObject, MrInit};
use ferroce_os::{
    sync::{Mutex, RwLock, class},
    sys::{self, KeptFd},
};
use std::any::Any;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Weak};

/// Of the tag in a handle, which changes at each reuse of the index.
const MAX_TAG: u32 = (1 << (32 - INDEX_BITS)) - 1;

/// Objects of a context by handle.
#[derive(Debug)]
pub struct Handles {
    /// What others see of them; not there where the system has no memfd for it, or in an imported context.
    ledger: RwLock<class::Ledger, Option<Ledger>>,
    /// The ledger's descriptor, as the program knows it. A fork's child keeps it: it leads to the parent's objects.
    cmd_fd: Mutex<class::CommandFd, Option<KeptFd>>,
    table: Mutex<class::Handles, HandleTable>,
}

#[derive(Debug, Default)]
struct HandleTable {
    all: Vec<HandleSlot>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct HandleSlot {
    tag: u32,
    object: Option<Weak<dyn Any + Send + Sync>>,
}

impl Handles {
    /// The handles of a new context of device `name`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let ledger = Ledger::create(name)
            .inspect_err(|why| tracing::debug!(%why, "the context can't be imported by others"))
            .ok();
        let cmd_fd = ledger.as_ref().and_then(|ledger| sys::duplicate(ledger.fd()).ok());
        Self { ledger: RwLock::new(ledger), cmd_fd: Mutex::new(cmd_fd), table: Mutex::default() }
    }

    /// Those of a context that was imported through `cmd_fd`, which they take over.
    #[must_use]
    pub fn imported(cmd_fd: RawFd) -> Self {
        let cmd_fd = Mutex::new(Some(KeptFd::adopt(cmd_fd)));
        Self { ledger: RwLock::default(), cmd_fd, table: Mutex::default() }
    }

    /// Whether `exporter` is the context of these.
    #[must_use]
    pub fn are_of(&self, exporter: &Exporter) -> bool {
        self.with_ledger(|own| own.id() == exporter.id()) == Some(true)
    }

    /// The descriptor by which others import the context; −1: there is none.
    pub fn cmd_fd(&self) -> RawFd {
        self.cmd_fd.lock().as_ref().map_or(-1, |fd| fd.as_raw_fd())
    }

    /// From here on other processes can't import objects.
    pub fn close(&self) {
        drop(self.cmd_fd.lock().take());
        drop(self.ledger.write().take());
    }

    fn with_ledger<R>(&self, f: impl FnOnce(&Ledger) -> R) -> Option<R> {
        self.ledger.read().as_ref().filter(|ledger| !ledger.is_inherited()).map(f)
    }

    /// Gives an object its handle. Other processes find it after [`Handles::list`].
    pub fn add(&self, object: Weak<dyn Any + Send + Sync>) -> u32 {
        let mut table = self.table.lock();
        let index = table.free.pop().unwrap_or_else(|| {
            table.all.push(HandleSlot { tag: 0, object: None });
            table.all.len() as u32 - 1
        });
        let slot = &mut table.all[index as usize];
        slot.tag = slot.tag % MAX_TAG + 1;
        slot.object = Some(object);
        slot.tag << INDEX_BITS | index
    }

    /// Lists an object, or its changes, for other processes.
    pub fn list(&self, handle: u32, object: ListedObject) {
        let (kind, words) = match object {
            ListedObject::Pd => (EntryKind::Pd, [0; 4]),
            ListedObject::Dm { fd, len } => (EntryKind::Dm, [fd as u64, len, 0, 0]),
            ListedObject::Mr { pd, dm, init: MrInit { addr, length, iova, access } } => {
                let region = LedgerRegion { pd, dm, rights: ledger::to_bits(access), addr, iova, length };
                (EntryKind::Mr, region.to_words())
            }
        };
        self.with_ledger(|own| own.publish(ledger::index(handle), handle, kind, words));
    }

    /// Ends a handle: from here on the object can't be imported.
    pub fn remove(&self, handle: u32) {
        let index = ledger::index(handle);
        let mut table = self.table.lock();
        let Some(slot) = table.all.get_mut(index as usize).filter(|slot| slot.tag == handle >> INDEX_BITS)
        else {
            return;
        };
        if slot.object.take().is_some() {
            self.with_ledger(|ledger| ledger.withdraw(index));
            table.free.push(index);
        }
    }

    /// The object behind a handle, if it is a `T` and still exists.
    #[must_use]
    pub fn get<T: Any + Send + Sync>(&self, handle: u32) -> Option<Arc<T>> {
        let table = self.table.lock();
        let slot = table.all.get(ledger::index(handle) as usize)?;
        let object = slot.object.as_ref().filter(|_| slot.tag == handle >> INDEX_BITS)?.upgrade();
        drop(table);
        object?.downcast().ok()
    }
}
