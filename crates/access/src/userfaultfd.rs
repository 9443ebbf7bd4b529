//! Whether a process has a userfaultfd(2): then a page of any of its memory can come late.

use ferroce_os::clock;
use std::fs::{DirEntry, ReadDir, read_link};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// How long what was found is believed, in milliseconds.
const BELIEVED: u64 = 10;

/// What was found last: the time of the look in milliseconds and the registrations by then (both in part), and whether there was one.
#[derive(Debug, Default)]
pub(crate) struct FoundUserfaultfd(AtomicU64);

impl FoundUserfaultfd {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether there is one among the `descriptors` of the process. What was found is believed for some milliseconds, unless the process has
    /// registered memory since.
    pub(crate) fn look(&self, registrations: u64, descriptors: impl FnOnce() -> io::Result<ReadDir>) -> bool {
        let now = clock::now().0 / 1_000_000 % (1 << 30);
        let registrations = registrations % (1 << 32);
        let found = self.0.load(Ordering::Relaxed);
        let (at, seen_of) = (found >> 33, found >> 1 & 0xffff_ffff);
        if seen_of == registrations && now.wrapping_sub(at) < BELIEVED && found != 0 {
            return found & 1 == 1;
        }
        let is_one = |entry: io::Result<DirEntry>| {
            let link = entry.and_then(|entry| read_link(entry.path()));
            link.is_ok_and(|to| to.as_os_str() == "anon_inode:[userfaultfd]")
        };
        // Where the descriptors can't be listed, there may be one.
        let has = descriptors().map_or(true, |mut entries| entries.any(is_one));
        self.0.store(now << 33 | registrations << 1 | u64::from(has), Ordering::Relaxed);
        has
    }
}
