//! The list of a context's objects for processes that import it: a sealed memfd that its process writes and others map read-only.

use ferroce_access::{Cookie, SharedMemory};
use ferroce_mem::MrAccess;
use ferroce_os::sys;
use ferroce_types::Error;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A handle is an index (22 bits) and a tag that changes at each reuse of the index.
pub(super) const INDEX_BITS: u32 = 22;

/// The index in a handle.
pub(super) fn index(handle: u32) -> u32 {
    handle & ((1 << INDEX_BITS) - 1)
}

/// ENOENT, the errno of the kernel for a handle of no object of this kind.
#[must_use]
pub fn no_such(what: &'static str) -> Error {
    Error::Os { what, source: io::Error::from_raw_os_error(libc::ENOENT) }
}

/// "Ferroce ledger" and its version.
const MAGIC: u64 = 0x4665_724c_6467_0002;
/// Objects that can be imported by other processes.
const ENTRIES: usize = 1 << 16;
const ENTRIES_AT: usize = 4096;
/// Bytes of a ledger; pages come with their first use.
pub(super) const LEN: usize = ENTRIES_AT + ENTRIES * size_of::<LedgerEntry>();
const NAME_WORDS: usize = 8;

/// The first words.
#[repr(C)]
struct LedgerHeader {
    magic: AtomicU64,
    /// Unique among the host's ledgers.
    id: AtomicU64,
    pid: AtomicU64,
    /// Where in the process [`COOKIE`] is, and its value.
    cookie_at: AtomicU64,
    cookie: AtomicU64,
    device: [AtomicU64; NAME_WORDS],
}

/// One object. `name` is written last; it changes whenever the words do.
#[repr(C)]
#[derive(Default)]
struct LedgerEntry {
    name: AtomicU64,
    words: [AtomicU64; 4],
}

ferroce_access::shared_words! {
    LedgerHeader { magic, id, pid, cookie_at, cookie, device }
    LedgerEntry { name, words }
}

/// What is listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(super) enum EntryKind {
    Pd = 1,
    Mr = 2,
    Dm = 3,
}

/// Bits of a name: the handle, the kind, and how often the entry was written.
const KIND_AT: u32 = 32;
const VERSION_AT: u32 = 36;
const VERSION: u64 = !0 << VERSION_AT;

/// A region as a ledger lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LedgerRegion {
    /// Handle of its domain.
    pub(super) pd: u32,
    /// Handle of the device memory it is on; 0: plain memory.
    pub(super) dm: u32,
    /// Rights, as bits.
    pub(super) rights: u16,
    /// Address of its first byte, in its process or in the device memory.
    pub(super) addr: u64,
    pub(super) iova: u64,
    pub(super) length: u64,
}

const RIGHTS_AT: u32 = 48;

impl LedgerRegion {
    /// A length takes 48 bits, which is more than an address space has.
    pub(super) fn to_words(self) -> [u64; 4] {
        let tail = self.length & ((1 << RIGHTS_AT) - 1) | u64::from(self.rights) << RIGHTS_AT;
        [self.addr, self.iova, tail, u64::from(self.pd) | u64::from(self.dm) << 32]
    }

    pub(super) fn of_words([addr, iova, tail, objects]: [u64; 4]) -> Self {
        let length = tail & ((1 << RIGHTS_AT) - 1);
        let (pd, dm) = (objects as u32, (objects >> 32) as u32);
        Self { pd, dm, rights: (tail >> RIGHTS_AT) as u16, addr, iova, length }
    }
}

const RIGHTS: usize = 4;

/// Rights as bits of a ledger.
pub(super) fn to_bits(access: MrAccess) -> u16 {
    let all: [bool; RIGHTS] =
        [access.local_write, access.remote_write, access.remote_read, access.remote_atomic];
    all.iter().enumerate().map(|(i, &has)| u16::from(has) << i).sum()
}

pub(super) fn of_bits(bits: u16) -> MrAccess {
    let has = |i: u32| bits >> i & 1 == 1;
    MrAccess {
        local_write: has(0),
        remote_write: has(1),
        remote_read: has(2),
        remote_atomic: has(3),
        ..MrAccess::default()
    }
}

/// This context's own.
#[derive(Debug)]
pub(super) struct Ledger {
    memory: SharedMemory,
    /// Proves that a PID is still this process: checked by every `process_vm_*` call.
    _cookie: Cookie,
}

impl Ledger {
    /// An empty ledger of a context of device `name`.
    ///
    /// # Errors
    /// The system refused, or the name is too long.
    pub(super) fn create(name: &str) -> io::Result<Self> {
        let mut device = [0u8; NAME_WORDS * 8];
        let Some(to) = device.get_mut(..name.len()) else {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        };
        to.copy_from_slice(name.as_bytes());
        let memory = SharedMemory::create(LEN, true)?;
        let header: &LedgerHeader = memory.words(0);
        let cookie = Cookie::new()?;
        header.id.store(sys::random(), Ordering::Relaxed);
        header.pid.store(u64::from(std::process::id()), Ordering::Relaxed);
        header.cookie_at.store(cookie.at(), Ordering::Relaxed);
        header.cookie.store(cookie.value(), Ordering::Relaxed);
        for (to, word) in header.device.iter().zip(device.as_chunks::<8>().0) {
            to.store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
        header.magic.store(MAGIC, Ordering::Release);
        Ok(Self { memory, _cookie: cookie })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.memory.fd()
    }

    pub(super) fn id(&self) -> u64 {
        self.memory.words::<LedgerHeader>(0).id.load(Ordering::Relaxed)
    }

    pub(super) fn is_inherited(&self) -> bool {
        self.memory.is_inherited()
    }

    fn entry(&self, index: u32) -> Option<&LedgerEntry> {
        entry(&self.memory, index)
    }

    /// Lists an object, or replaces its entry. The caller excludes other calls for the same object.
    pub(super) fn publish(&self, index: u32, handle: u32, kind: EntryKind, words: [u64; 4]) {
        let Some(entry) = self.entry(index) else { return };
        let version = (entry.name.load(Ordering::Relaxed) & VERSION).wrapping_add(1 << VERSION_AT);
        entry.name.store(version, Ordering::Relaxed);
        // SYNC: pairs with the fence in `OthersLedger::find` (seqlock): a reader that sees a new word sees that the name has changed.
        fence(Ordering::Release);
        for (to, word) in entry.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        let name = version | (kind as u64) << KIND_AT | u64::from(handle);
        entry.name.store(name, Ordering::Release);
    }

    /// Takes an object out of the list.
    pub(super) fn withdraw(&self, index: u32) {
        if let Some(entry) = self.entry(index) {
            let version = entry.name.load(Ordering::Relaxed) & VERSION;
            entry.name.store(version, Ordering::SeqCst);
        }
    }
}

fn entry(memory: &SharedMemory, index: u32) -> Option<&LedgerEntry> {
    ((index as usize) < ENTRIES).then(|| memory.words(ENTRIES_AT + index as usize * size_of::<LedgerEntry>()))
}

/// Another context's.
#[derive(Debug)]
pub(super) struct OthersLedger(SharedMemory);

impl OthersLedger {
    /// # Errors
    /// It isn't a ledger, or the system refused.
    pub(super) fn open(fd: sys::EngineFd) -> io::Result<Self> {
        let this = Self(SharedMemory::open(fd, LEN, false)?);
        if this.header().magic.load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        Ok(this)
    }

    fn header(&self) -> &LedgerHeader {
        self.0.words(0)
    }

    pub(super) fn id(&self) -> u64 {
        self.header().id.load(Ordering::Relaxed)
    }

    /// The process, and where its cookie is, with its value.
    pub(super) fn process(&self) -> (i32, u64, u64) {
        let header = self.header();
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        (word(&header.pid) as i32, word(&header.cookie_at), word(&header.cookie))
    }

    /// The device's name.
    pub(super) fn device(&self) -> String {
        let bytes: Vec<u8> =
            self.header().device.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }

    /// What is listed under a handle, and the name it has there.
    pub(super) fn find(&self, index: u32, handle: u32, kind: EntryKind) -> Option<(u64, [u64; 4])> {
        let entry = entry(&self.0, index)?;
        let name = entry.name.load(Ordering::Acquire);
        let words = std::array::from_fn(|i| entry.words[i].load(Ordering::Relaxed));
        // SYNC: pairs with the fence in `Ledger::publish`.
        fence(Ordering::Acquire);
        let wanted = (kind as u64) << KIND_AT | u64::from(handle);
        (name & !VERSION == wanted && entry.name.load(Ordering::Relaxed) == name).then_some((name, words))
    }

    /// The entry still has this name: nothing has changed.
    pub(super) fn is_listed(&self, index: u32, name: u64) -> bool {
        entry(&self.0, index).is_some_and(|entry| entry.name.load(Ordering::SeqCst) == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(own: &Ledger) -> OthersLedger {
        OthersLedger::open(sys::duplicate_engine(own.fd()).unwrap()).unwrap()
    }

    #[test]
    fn what_is_listed_is_found_until_it_changes() {
        let own = Ledger::create("ferroce7").unwrap();
        let other = opened(&own);
        assert_eq!((other.device().as_str(), other.id()), ("ferroce7", own.id()));
        let region = LedgerRegion { pd: 7, dm: 9, rights: 0x8001, addr: !0, iova: 5, length: (1 << 48) - 1 };
        own.publish(3, 0x40_0003, EntryKind::Mr, region.to_words());
        let (name, words) = other.find(3, 0x40_0003, EntryKind::Mr).unwrap();
        assert_eq!(LedgerRegion::of_words(words), region);
        assert!(other.is_listed(3, name));
        for (index, handle, kind) in [
            (3, 0x40_0003, EntryKind::Pd),
            (3, 0x80_0003, EntryKind::Mr),
            (4, 0x40_0003, EntryKind::Mr),
            (!0, 0x40_0003, EntryKind::Mr),
        ] {
            assert_eq!(other.find(index, handle, kind), None);
        }
        own.publish(3, 0x40_0003, EntryKind::Mr, [0; 4]);
        assert!(!other.is_listed(3, name) && other.find(3, 0x40_0003, EntryKind::Mr).is_some());
        own.withdraw(3);
        assert_eq!(other.find(3, 0x40_0003, EntryKind::Mr), None);
    }

    #[test]
    fn other_files_are_no_ledgers() {
        assert!(OthersLedger::open(sys::eventfd(0, 0).unwrap()).is_err());
        let same_size = SharedMemory::create(LEN, true).unwrap();
        let fd = sys::duplicate_engine(same_size.fd()).unwrap();
        assert!(OthersLedger::open(fd).is_err());
    }

    #[test]
    fn rights_survive_the_ledger() {
        for bits in 0..1 << RIGHTS {
            assert_eq!(to_bits(of_bits(bits)), bits);
        }
    }
}
