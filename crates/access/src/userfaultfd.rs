//! Whether a process has a userfaultfd(2): then a page of any of its memory can come late.

use ferroce_os::{clock, sys};
use ferroce_types::Instant;
use std::fs::{DirEntry, ReadDir, read_link};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long what was found is believed, at least, …
const BELIEVED: Duration = Duration::from_millis(10);
/// … and as a multiple of the time that the look has taken, so that looks take a small part of a thread's time.
const TIMES_ITS_COST: u32 = 20;

/// What was found last: until when it is believed (in milliseconds), the registrations by then (in part), and whether there was one.
#[derive(Debug, Default)]
pub(crate) struct FoundUserfaultfd(AtomicU64);

/// Bits for registrations.
const REGISTRATIONS: u32 = 24;
const IN_PART: u64 = (1 << REGISTRATIONS) - 1;

impl FoundUserfaultfd {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether the process has one; `find` finds out. What was found is believed for a while, unless the process has registered memory since.
    pub(crate) fn look(&self, registrations: u64, find: impl FnOnce() -> bool) -> bool {
        let now = clock::now();
        self.believed(registrations, now).flatten().unwrap_or_else(|| self.look_now(registrations, now, find))
    }

    /// As [`FoundUserfaultfd::look`], for what can be found out otherwise too: a registration alone doesn't cause a look. `None`: memory was registered since.
    pub(crate) fn look_if_due(&self, registrations: u64, find: impl FnOnce() -> bool) -> Option<bool> {
        let now = clock::now();
        self.believed(registrations, now).unwrap_or_else(|| Some(self.look_now(registrations, now, find)))
    }

    /// What was found lately; `Some(None)`: memory was registered since. `None`: that was too long ago.
    fn believed(&self, registrations: u64, now: Instant) -> Option<Option<bool>> {
        let found = self.0.load(Ordering::Relaxed);
        let (until, seen_of) = (found >> (REGISTRATIONS + 1), found >> 1 & IN_PART);
        let is_of_now = seen_of == registrations & IN_PART;
        (now.0 / 1_000_000 < until).then(|| is_of_now.then_some(found & 1 == 1))
    }

    fn look_now(&self, registrations: u64, begun: Instant, find: impl FnOnce() -> bool) -> bool {
        let has = find();
        let ended = clock::now();
        let until = ended.after(BELIEVED.max(ended.since(begun) * TIMES_ITS_COST)).0 / 1_000_000;
        let found = until << (REGISTRATIONS + 1) | (registrations & IN_PART) << 1 | u64::from(has);
        self.0.store(found, Ordering::Relaxed);
        has
    }
}

/// Of this process.
static OWN: FoundUserfaultfd = FoundUserfaultfd::new();
/// How often memory was registered.
static OWN_REGISTRATIONS: AtomicU64 = AtomicU64::new(0);

/// Memory is being registered: the program may have got a userfaultfd before.
pub(crate) fn note_registration() {
    OWN_REGISTRATIONS.fetch_add(1, Ordering::Relaxed);
}

/// How often memory was registered.
pub(crate) fn registrations() -> u64 {
    OWN_REGISTRATIONS.load(Ordering::Relaxed)
}

/// This process has one.
pub(crate) fn is_here() -> bool {
    OWN.look(registrations(), find_own)
}

/// This process has none, as far as that was found out lately.
pub(crate) fn is_absent() -> bool {
    OWN.look_if_due(registrations(), find_own) == Some(false)
}

/// Looks for one among the descriptors of this process: those of the calling thread, which are all threads' unless it has given that up.
/// Where /proc can't be read, none is found.
fn find_own() -> bool {
    (0..descriptors()).any(|fd| is_anonymous(fd) && is_userfaultfd(fd))
}

/// The numbers of descriptors are below this.
fn descriptors() -> i32 {
    let of_status = || {
        let status = sys::read_file(c"/proc/thread-self/status", 16 << 10).ok()?;
        let mut lines = std::str::from_utf8(&status).ok()?.lines();
        lines.find_map(|line| line.strip_prefix("FDSize:"))?.trim().parse().ok()
    };
    of_status().unwrap_or_else(limit)
}

/// The limit of their numbers: all of it is in use where there is no descriptor left for reading a file.
fn limit() -> i32 {
    /// Where there is no /proc, the limit shows nothing.
    const MOST: u64 = 1 << 16;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes a limit.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur.min(MOST) as i32
}

/// It is of no file system: it has no type of a file. This takes less time than reading its name.
fn is_anonymous(fd: i32) -> bool {
    // SAFETY: all-zero bytes are a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes a stat into `stat`.
    let done = unsafe { libc::syscall(libc::SYS_fstat, fd, &raw mut stat) };
    done == 0 && stat.st_mode & libc::S_IFMT == 0
}

fn is_userfaultfd(fd: i32) -> bool {
    is_named_so(read_link(format!("/proc/thread-self/fd/{fd}")))
}

/// Whether one is among the descriptors of another process. Where they can't be listed, there may be one.
pub(crate) fn is_among(descriptors: io::Result<ReadDir>) -> bool {
    let is_one = |entry: io::Result<DirEntry>| is_named_so(entry.and_then(|entry| read_link(entry.path())));
    descriptors.map_or(true, |mut entries| entries.any(is_one))
}

fn is_named_so(link: io::Result<PathBuf>) -> bool {
    link.is_ok_and(|to| to.as_os_str() == "anon_inode:[userfaultfd]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A new userfaultfd; `None` where there are none for this user.
    fn handler() -> Option<i32> {
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) } as i32;
        (fd >= 0).then_some(fd)
    }

    #[test]
    fn what_was_found_is_believed_longer_than_it_took() {
        let (found, looks) = (FoundUserfaultfd::new(), Cell::new(0));
        let look = |registrations, takes| {
            found.look(registrations, || {
                looks.set(looks.get() + 1);
                std::thread::sleep(Duration::from_millis(takes));
                true
            })
        };
        assert!(look(1, 100) && looks.get() == 1);
        std::thread::sleep(Duration::from_millis(100));
        assert!(look(1, 100) && looks.get() == 1, "100 ms are believed for 2 s");
        assert!(look(2, 0) && looks.get() == 2, "memory was registered");
        std::thread::sleep(Duration::from_millis(100));
        assert!(look(2, 0) && looks.get() == 3);
    }

    #[test]
    fn a_registration_alone_does_not_cause_a_look() {
        let (found, looks) = (FoundUserfaultfd::new(), Cell::new(0));
        let find = || {
            looks.set(looks.get() + 1);
            std::thread::sleep(Duration::from_millis(100));
            false
        };
        assert_eq!((found.look_if_due(1, find), looks.get()), (Some(false), 1));
        assert_eq!((found.look_if_due(1, find), looks.get()), (Some(false), 1));
        assert_eq!((found.look_if_due(2, find), looks.get()), (None, 1));
        assert_eq!((found.look(2, find), looks.get()), (false, 2));
        assert_eq!((found.look_if_due(2, find), looks.get()), (Some(false), 2));
    }

    #[test]
    fn the_descriptors_are_those_of_the_calling_thread() {
        std::thread::spawn(|| {
            // SAFETY: the thread's descriptors become its own.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            assert!(!find_own());
            let Some(handler) = handler() else { return };
            assert!(find_own());
            sys::close(handler);
            assert!(!find_own());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn one_is_found_where_no_descriptor_is_left() {
        std::thread::spawn(|| {
            // SAFETY: the thread's descriptors become its own.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            let Some(_handler) = handler() else { return };
            // SAFETY: takes no pointer.
            while unsafe { libc::dup(0) } >= 0 {}
            assert!(find_own());
        })
        .join()
        .unwrap();
    }
}
