//! Which pages of another process's memory are there. A copy by this process to or from a page that isn't there stands until the page has
//! come, as one by the other process does ([`pages`](crate::pages)). So this process looks first, and leaves the copy to the other.
//!
//! `/proc/PID/pagemap` contains that. A page that the other process hasn't mapped counts as absent, though its file may have it: the first
//! copy by the other process maps it.

use crate::PeerMemory;
use crate::pagemap::mapped_by;
use crate::seen::{self, PLACES, Registration, SeenPages};
use crate::userfaultfd::{FoundUserfaultfd, is_among};
use ferroce_os::sys::{self, EngineFd};
use std::fs::{File, read_dir};
use std::os::fd::IntoRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A registered region of another process.
#[derive(Clone, Copy, Debug)]
pub struct PeerRegion {
    /// It may have pages of a file.
    pub of_file: bool,
    /// The number of its registration, which is higher than that of earlier ones.
    pub registration: u64,
}

/// The pages of another process, as far as they were seen.
#[derive(Debug, Default)]
pub struct PeerPages {
    seen: OnceLock<Box<SeenPages<PLACES>>>,
    pagemap: OnceLock<EngineFd>,
    /// The last [generation](seen::generation) in which it was to be opened.
    opened: AtomicU64,
    userfaultfd: FoundUserfaultfd,
    /// The number of the latest registration that was seen.
    registration: AtomicU64,
}

impl PeerPages {
    /// Whether all pages of `len` bytes at `addr` of a process, which are in `region`, are there or come at once, as far as can be known. Where
    /// that can't be known, the pages of a region count as absent that can come late.
    #[must_use]
    #[inline]
    pub fn are_present(&self, memory: &PeerMemory, region: PeerRegion, addr: u64, len: usize) -> bool {
        let by = Registration::of(region.registration);
        self.seen.get().is_some_and(|seen| seen.have_seen(by, addr, len))
            || self.are_all_present(memory, region, addr, len)
    }

    #[inline(never)]
    fn are_all_present(&self, memory: &PeerMemory, region: PeerRegion, addr: u64, len: usize) -> bool {
        let seen = self.seen.get_or_init(SeenPages::boxed);
        let by = Registration::of(region.registration);
        seen.are_all_present(by, addr, len, |at, units| self.look(memory, region, at, units))
    }

    /// The units of a chunk at `at` that are there, or come at once.
    fn look(&self, memory: &PeerMemory, region: PeerRegion, at: u64, units: u64) -> u64 {
        let there = self.resident(memory, at);
        if there & units != units && !self.may_come_late(memory, region) { there | units } else { there }
    }

    /// The units of a chunk at `at` that are there.
    fn resident(&self, memory: &PeerMemory, at: u64) -> u64 {
        let pagemap = self.pagemap.get().or_else(|| self.open_again(memory));
        pagemap.and_then(|pagemap| mapped_by(pagemap.checked(), at)).unwrap_or(0)
    }

    /// Opens the pagemap, about once in a second: a process may have had no descriptor left.
    #[cold]
    fn open_again(&self, memory: &PeerMemory) -> Option<&EngineFd> {
        let now = seen::generation();
        let opened = (self.opened.swap(now, Ordering::Relaxed) != now).then(|| open(memory))??;
        Some(self.pagemap.get_or_init(|| opened))
    }

    /// A page of a region that isn't there may take long.
    #[cold]
    fn may_come_late(&self, memory: &PeerMemory, region: PeerRegion) -> bool {
        let latest = self.registration.fetch_max(region.registration, Ordering::Relaxed);
        let find = || is_among(sys::proc_entry(memory.pid(), "fd").and_then(read_dir));
        region.of_file || self.userfaultfd.look(latest.max(region.registration), find)
    }
}

/// Opens the pagemap of a process. A process that has ended, or that executes another program, has no page by it.
fn open(memory: &PeerMemory) -> Option<EngineFd> {
    let opened = sys::proc_entry(memory.pid(), "pagemap").and_then(File::open);
    let adopted = opened.and_then(|file| EngineFd::adopt(file.into_raw_fd()));
    let adopted = adopted.inspect_err(|error| {
        tracing::debug!(%error, pid = memory.pid(), "the pages of a process can't be looked at: it copies itself what can come late");
    });
    // It may have been another process's when it was opened.
    adopted.ok().filter(|_| memory.is_there())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::tests::{Fresh, page_len};
    use crate::seen::forget;
    use crate::{Cookie, copy};

    const OF_FILE: PeerRegion = PeerRegion { of_file: true, registration: 1 };
    const PLAIN: PeerRegion = PeerRegion { of_file: false, registration: 2 };

    fn own() -> (Cookie, PeerMemory) {
        let cookie = Cookie::new().unwrap();
        let own = PeerMemory::probe(std::process::id() as i32, cookie.at(), cookie.value()).unwrap();
        (cookie, own)
    }

    #[test]
    fn pages_of_a_file_are_present_when_the_other_process_has_them() {
        let (_cookie, own) = own();
        let (fresh, pages) = (Fresh::new(64), PeerPages::default());
        let present = |at, len| pages.are_present(&own, OF_FILE, at, len);
        assert!((0..64).all(|number| !present(fresh.page(number), 1)));
        for number in [5, 40, 41, 63] {
            copy::write(fresh.page(number) + 100, &[1]).unwrap();
        }
        let expected = |number| [5, 40, 41, 63].contains(&number);
        assert!((0..64).all(|number| present(fresh.page(number), page_len()) == expected(number)));
        assert!(present(fresh.page(40), 2 * page_len()) && !present(fresh.page(40) - 1, 2));
        assert!(!present(fresh.page(41), page_len() + 1) && present(fresh.page(7), 0));
        // Addresses that no process has are the other process's affair.
        assert!(!present(u64::MAX - 10, 100) && !present(0x10, 8));
    }

    #[test]
    fn plain_memory_comes_at_once_unless_the_other_process_serves_its_faults() {
        let (_cookie, own) = own();
        let (fresh, pages) = (Fresh::new(64), PeerPages::default());
        assert!(pages.are_present(&own, PLAIN, fresh.page(1), 8));
        // SAFETY: a new descriptor, which is closed.
        let handler = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) } as i32;
        if handler < 0 {
            return;
        }
        let later = PeerRegion { registration: 3, ..PLAIN };
        assert!(!pages.are_present(&own, later, fresh.page(20), 8));
        // The look is repeated for later regions only.
        assert!(!pages.are_present(&own, PLAIN, fresh.page(20), 8));
        sys::close(handler);
        assert!(pages.are_present(&own, PeerRegion { registration: 4, ..PLAIN }, fresh.page(20), 8));
    }

    #[test]
    fn a_page_that_has_gone_is_noticed_when_the_look_is_repeated() {
        let (_cookie, own) = own();
        let (fresh, pages) = (Fresh::new(16), PeerPages::default());
        copy::write(fresh.page(3), &[1]).unwrap();
        assert!(pages.are_present(&own, OF_FILE, fresh.page(3), 8));
        // SAFETY: a page of the test's mapping.
        unsafe { libc::madvise(fresh.page(3) as *mut _, page_len(), libc::MADV_DONTNEED) };
        forget();
        assert!(!pages.are_present(&own, OF_FILE, fresh.page(3), 8));
    }

    #[test]
    fn a_pagemap_is_opened_when_there_is_a_descriptor_again() {
        std::thread::spawn(|| {
            let (_cookie, own) = own();
            let (fresh, pages) = (Fresh::new(16), PeerPages::default());
            copy::write(fresh.page(3), &[1]).unwrap();
            let present = || pages.are_present(&own, OF_FILE, fresh.page(3), 8);
            // SAFETY: the thread's descriptors become its own.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            // SAFETY: takes no pointer.
            let taken: Vec<_> =
                std::iter::repeat_with(|| unsafe { libc::dup(0) }).take_while(|&fd| fd >= 0).collect();
            assert!(!present());
            taken.into_iter().for_each(sys::close);
            assert!(!present(), "it isn't tried each time");
            forget();
            assert!(present());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn without_a_pagemap_memory_that_can_come_late_counts_as_absent() {
        let (cookie, memory) = own();
        let (fresh, pages) = (Fresh::new(16), PeerPages::default());
        copy::write(fresh.page(3), &[1]).unwrap();
        // Another process has the number.
        drop(cookie);
        assert!(!pages.are_present(&memory, OF_FILE, fresh.page(3), 8));
        assert!(pages.are_present(&memory, PLAIN, fresh.page(3), 8));
    }
}
