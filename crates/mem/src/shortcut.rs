//! Regions of plain memory as data paths find them: by local key, without a lock.
//!
//! An entry is a copy of the region's registration for plain accesses. It is written before the registration is known, and emptied by the
//! thread that changes or ends it, which then waits for the threads that use this very region.

use super::indices::{MAX_MR, MAX_MW};
use super::rights::{MrInit, translate_in};
use ferroce_os::sync::{InUse, wait_for_users};
use ferroce_types::{Error, Result, Sge};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries that are allocated at once.
const IN_CHUNK: usize = 1024;
/// As many chunks as there may be indices of keys.
const CHUNKS: usize = (MAX_MR + MAX_MW) / IN_CHUNK;

/// A region.
#[derive(Default)]
#[repr(align(64))]
struct ShortcutEntry {
    /// [`name_of`] its protection domain and key; 0: nothing.
    name: AtomicU64,
    addr: AtomicU64,
    iova: AtomicU64,
    length: AtomicU64,
    /// 1: requests may write to it.
    writable: AtomicU64,
}

type Chunk = OnceLock<Box<[ShortcutEntry]>>;

/// All of them, by the index of the key.
pub(crate) struct Shortcuts([Chunk; CHUNKS]);

/// Those of this process.
pub(crate) static SHORTCUTS: Shortcuts = Shortcuts([const { OnceLock::new() }; CHUNKS]);

const fn name_of(pd: u32, key: u32) -> u64 {
    (pd as u64) << 32 | key as u64
}

impl Shortcuts {
    #[inline]
    fn entry(&self, key: u32) -> Option<&ShortcutEntry> {
        let index = (key >> 8).checked_sub(1)? as usize;
        self.0.get(index / IN_CHUNK)?.get()?.get(index % IN_CHUNK)
    }

    /// Enters a region with this key and this `init`, of the domain `pd`. It has no entry yet.
    pub(crate) fn publish(&self, key: u32, pd: u32, init: &MrInit) {
        let Some(index) = (key >> 8).checked_sub(1) else { return };
        if let Some(chunk) = self.0.get(index as usize / IN_CHUNK) {
            chunk.get_or_init(|| (0..IN_CHUNK).map(|_| ShortcutEntry::default()).collect());
        }
        if let Some(entry) = self.entry(key) {
            entry.addr.store(init.addr, Ordering::Relaxed);
            entry.iova.store(init.iova, Ordering::Relaxed);
            entry.length.store(init.length, Ordering::Relaxed);
            entry.writable.store(init.access.local_write.into(), Ordering::Relaxed);
            entry.name.store(name_of(pd, key), Ordering::Release);
        }
    }

    /// No thread touches the region by its entry when this returns. Called without a lock, as it may wait.
    ///
    /// # Errors
    /// [`Error::Busy`] when a thread is in the middle of an access and doesn't end it within a second.
    pub(crate) fn withdraw(&self, key: u32) -> Result<()> {
        match self.entry(key) {
            Some(entry) if entry.name.swap(0, Ordering::AcqRel) != 0 && !wait_for_users(key) => {
                Err(Error::Busy(
                    "a thread of this process is held up in the middle of an access to memory".into(),
                ))
            }
            _ => Ok(()),
        }
    }

    /// The program address of `sge` if it lies in a region of `pd` that has an entry and allows this. It is good while the use, of the
    /// key in `sge`, lives.
    #[inline]
    pub(crate) fn find(&self, _in_use: &InUse, pd: u32, sge: &Sge, write: bool) -> Option<u64> {
        let entry = self.entry(sge.lkey)?;
        if entry.name.load(Ordering::Acquire) != name_of(pd, sge.lkey)
            || (write && entry.writable.load(Ordering::Relaxed) == 0)
        {
            return None;
        }
        let [addr, iova, length] =
            [&entry.addr, &entry.iova, &entry.length].map(|word| word.load(Ordering::Relaxed));
        translate_in((addr, iova, length), sge.addr, u64::from(sge.length))
    }
}
