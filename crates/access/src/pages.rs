//! Which pages of memory are there. A copy to or from a page that isn't there stands until the page has come: from a slow disk, or from a
//! handler of the program's (userfaultfd(2)) for any time. So a thread that others wait for looks first, and has another thread
//! [bring] the pages.
//!
//! A page of plain memory comes at once, so it counts as there: only registered files (`late`) and processes with a userfaultfd
//! have pages that don't.
//!
//! What was seen is remembered for a second or two ([`forget`]): so long a page that has gone again can hold a copy up.

use crate::guard::FaultGuard;
use crate::late::noted;
use crate::pagemap::{CHUNK, UNIT, UNITS, mapped_by};
use crate::proc_file::ProcFile;
use crate::seen::{Registration, SEEN, chunks, numbers};
use crate::{Fault, copy, mappings, userfaultfd};
use ferroce_os::sys;
use std::sync::atomic::{AtomicBool, Ordering};

pub use crate::seen::forget;

/// The kernel doesn't return which pages are there.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether all pages of `len` bytes of this process's memory at `addr` are there, as far as can be known: where the kernel doesn't return that,
/// or no memory is mapped, they count as there.
#[inline]
#[must_use]
pub fn are_present(addr: u64, len: usize) -> bool {
    SEEN.are_present(Registration::ANY, addr, len, look_here)
}

/// The units of a chunk at `at` that are there, or come at once.
fn look_here(at: u64, units: u64) -> u64 {
    look(at, units, look_at_pages)
}

/// As [`look_here`]. The kernel is asked (by `ask`) only about pages that may come late.
fn look(at: u64, units: u64, ask: impl FnOnce(u64, u64) -> u64) -> u64 {
    let end = at.saturating_add(CHUNK);
    let noted = noted(at, end);
    if !noted.any() && userfaultfd::is_absent() {
        return units;
    }
    let there = ask(at, units) & if noted.unshown { mapped_units(at) } else { u64::MAX };
    let come_late =
        || noted.late || noted.on_demand && mappings::may_be_of_disk(at, end) || userfaultfd::is_here();
    if there & units != units && !come_late() { there | units } else { there }
}

fn look_at_pages(at: u64, units: u64) -> u64 {
    let asked = || {
        // The chunk is mapped in part: the pages that are asked for.
        let units_of_page = sys::page_size() / UNIT;
        let from = u64::from(units.trailing_zeros()) / units_of_page * units_of_page;
        let to = u64::from(u64::BITS - units.leading_zeros()).next_multiple_of(units_of_page);
        resident(at + from * UNIT, (to - from) * UNIT).map(|there| there << from)
    };
    // Where nothing is mapped, a copy finds that out.
    resident(at, CHUNK).or_else(asked).unwrap_or(units)
}

/// The units of a range, of at most a chunk, that are there, from its first page on. `None`: a part of it isn't mapped.
fn resident(at: u64, len: u64) -> Option<u64> {
    let page = sys::page_size();
    if REFUSED.load(Ordering::Relaxed) || page > CHUNK {
        return Some(u64::MAX >> (64 - UNITS));
    }
    let mut pages = [0u8; UNITS as usize];
    // SAFETY: the vector has a byte for each page of at most a chunk.
    let done = unsafe { libc::syscall(libc::SYS_mincore, at, len, pages.as_mut_ptr()) };
    if done < 0 {
        let error = std::io::Error::last_os_error().raw_os_error();
        if matches!(error, Some(libc::ENOSYS | libc::EPERM)) {
            REFUSED.store(true, Ordering::Relaxed);
            tracing::debug!(?error, "mincore is refused here: pages count as present");
        }
        return None;
    }
    let units_of_page = page / UNIT;
    let there = |unit: &u64| pages[(unit / units_of_page) as usize] & 1 == 1;
    Some((0..len / UNIT).filter(there).fold(0, |units, unit| units | 1 << unit))
}

/// Whether a range may have pages of a file, as far as registrations have found.
#[must_use]
pub fn may_be_of_file(from: u64, to: u64) -> bool {
    noted(from, to).any()
}

/// The units of a chunk that this process has mapped, by /proc/thread-self/pagemap. Where that can't be read: all of them.
fn mapped_units(at: u64) -> u64 {
    let pagemap = ProcFile::open(c"/proc/thread-self/pagemap");
    pagemap.and_then(|pagemap| mapped_by(pagemap.fd(), at)).unwrap_or(u64::MAX)
}

/// Brings the pages of a range of this process's memory in, and notes them. Takes as long as they do.
pub fn bring(addr: u64, len: usize) {
    for (chunk, units) in chunks(addr, len) {
        for unit in numbers(chunk, units) {
            let registrations = userfaultfd::registrations();
            // A page that can't be read isn't waited for: a copy finds the fault.
            let _ = touch(unit * UNIT);
            // Otherwise other memory may be registered at its address by now, whose page is looked at.
            if userfaultfd::registrations() == registrations {
                SEEN.note(Registration::ANY, chunk, 1 << (unit % UNITS));
            }
        }
    }
}

/// Waits for the page of a byte. No lock is held meanwhile.
fn touch(at: u64) -> Result<(), Fault> {
    copy::touch_by_kernel(at).or_else(|Fault| {
        // A userfaultfd for faults of user mode (UFFD_USER_MODE_ONLY) serves none of the kernel's.
        let guard = FaultGuard::hold().filter(|_| !copy::by_kernel());
        guard.ok_or(Fault)?.touch(at)
    })
}

/// Notes pages as present: a copy brings those in that aren't.
pub fn assume_present(addr: u64, len: usize) {
    for (chunk, units) in chunks(addr, len) {
        SEEN.note(Registration::ANY, chunk, units);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::late::{Coming, NotedRanges};
    use crate::seen::note_registration;
    use std::time::Duration;

    pub(crate) fn page_len() -> usize {
        sys::page_size() as usize
    }

    /// Pages of anonymous memory that weren't touched.
    pub(crate) struct Fresh {
        pub(crate) addr: u64,
        len: usize,
        /// It counts as a file's.
        noted: NotedRanges,
    }

    impl Fresh {
        pub(crate) fn new(pages: usize) -> Self {
            let len = pages * page_len();
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a new mapping.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            // SAFETY: the mapping is this one's.
            unsafe { libc::madvise(at, len, libc::MADV_NOHUGEPAGE) };
            let (addr, mut noted) = (at as u64, NotedRanges::default());
            noted.add(addr, addr + len as u64, Coming::Late);
            Self { addr, len, noted }
        }

        pub(crate) fn page(&self, number: usize) -> u64 {
            self.addr + (number * page_len()) as u64
        }
    }

    impl Drop for Fresh {
        fn drop(&mut self) {
            // SAFETY: the mapping is this one's.
            unsafe { libc::munmap(self.addr as *mut _, self.len) };
        }
    }

    #[test]
    fn pages_are_present_when_they_were_touched_or_brought() {
        let fresh = Fresh::new(64);
        let all = || (0..64).map(|number| are_present(fresh.page(number), 1)).collect::<Vec<_>>();
        assert!(all().iter().all(|is_there| !is_there), "{:?}", all());
        copy::write(fresh.page(5), &[1]).unwrap();
        bring(fresh.page(40) + 100, 2 * page_len());
        let present = |number| number == 5 || (40..43).contains(&number);
        assert_eq!(all(), (0..64).map(present).collect::<Vec<_>>());
        assert!(are_present(fresh.page(40), 3 * page_len()));
        assert!(!are_present(fresh.page(40) - 1, 2) && !are_present(fresh.page(42), page_len() + 1));
        assert!(are_present(fresh.page(7), 0));
    }

    #[test]
    fn plain_memory_comes_at_once_unless_the_program_serves_its_faults() {
        let plain = vec![0u8; 64 * CHUNK as usize];
        let at = |number: usize| plain.as_ptr() as u64 + (number * 2 * CHUNK as usize) as u64;
        assert!(are_present(at(1), 8));
        // SAFETY: a new descriptor, which is closed.
        let handler = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) } as i32;
        if handler < 0 {
            return;
        }
        userfaultfd::note_registration();
        assert!(!are_present(at(2), 8));
        sys::close(handler);
        userfaultfd::note_registration();
        assert!(are_present(at(3), 8));
    }

    #[test]
    fn pages_that_the_kernel_does_not_show_are_those_that_are_mapped() {
        let mut fresh = Fresh::new(64);
        let at = fresh.addr.next_multiple_of(CHUNK);
        copy::write(at + UNIT * UNITS / 2, &[1]).unwrap();
        // As for a file of another user.
        let ask = |_, units| units;
        assert_eq!(look(at, 0xffff, ask), 0xffff);
        fresh.noted.add(at, at + CHUNK, Coming::Unshown);
        let in_page = (1 << (page_len() as u64 / UNIT)) - 1;
        assert_eq!(look(at, 0xffff, ask), in_page << (UNITS / 2));
    }

    #[test]
    fn the_kernel_is_not_asked_about_plain_memory() {
        let plain = vec![0u8; 2 * CHUNK as usize];
        let at = (plain.as_ptr() as u64).next_multiple_of(CHUNK);
        let asked = std::cell::Cell::new(0);
        let ask = |_, units| {
            asked.set(asked.get() + 1);
            units & 1
        };
        assert_eq!((look(at, 3, ask), asked.get()), (3, 0));
        let fresh = Fresh::new(16);
        assert_eq!((look(fresh.addr, 3, ask), asked.get()), (1, 1));
    }

    #[test]
    fn memory_that_is_not_mapped_is_not_waited_for() {
        let fresh = Fresh::new(32);
        let (addr, len) = (fresh.addr, fresh.len);
        drop(fresh);
        assert!(are_present(addr, len) && are_present(u64::MAX - 10, 100));
        bring(addr, len);
        bring(u64::MAX - 10, 100);
    }

    #[test]
    fn the_last_page_of_a_mapping_is_looked_at() {
        let fresh = Fresh::new(33);
        // SAFETY: a part of the mapping.
        unsafe { libc::munmap(fresh.page(32) as *mut _, page_len()) };
        assert!(!are_present(fresh.page(31), 8));
        copy::write(fresh.page(31), &[1]).unwrap();
        assert!(are_present(fresh.page(31), 8));
    }

    #[test]
    fn a_page_that_comes_after_a_registration_is_looked_at() {
        // A handler of the faults of user mode, which any user may have.
        // SAFETY: a new descriptor, which is closed.
        let handler = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) } as i32;
        if handler < 0 {
            return;
        }
        const API: libc::c_ulong = 0xc018_aa3f;
        const REGISTER: libc::c_ulong = 0xc020_aa00;
        const ZERO_PAGE: libc::c_ulong = 0xc020_aa04;
        let fresh = Fresh::new(3);
        let (addr, len) = (fresh.addr, fresh.len);
        let ask = |what, mut argument: [u64; 4]| {
            // SAFETY: the structures of these requests are no longer than this.
            assert_eq!(unsafe { libc::ioctl(handler, what, argument.as_mut_ptr()) }, 0, "{what:x}");
        };
        ask(API, [0xaa, 0, 0, 0]);
        ask(REGISTER, [addr, len as u64, 1, 0]);
        let bringing = std::thread::spawn(move || {
            // As the threads of the adapter.
            // SAFETY: a mask of this thread.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
            }
            bring(addr, len);
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(
            !bringing.is_finished(),
            "it waits for a page whose faults the kernel's calls don't wait for"
        );
        ask(ZERO_PAGE, [fresh.page(0), page_len() as u64, 0, 0]);
        std::thread::sleep(Duration::from_millis(100));
        note_registration(addr, len as u64);
        // Other memory has the address of the first page by now.
        // SAFETY: the mapping is this test's.
        unsafe { libc::madvise(addr as *mut _, page_len(), libc::MADV_DONTNEED) };
        for page in 1..3 {
            ask(ZERO_PAGE, [fresh.page(page), page_len() as u64, 0, 0]);
        }
        bringing.join().unwrap();
        assert!(!are_present(addr, 1) && are_present(fresh.page(1), 2 * page_len()));
        sys::close(handler);
    }

    #[test]
    fn a_registration_forgets_what_was_at_its_addresses() {
        let (fresh, other) = (Fresh::new(64), Fresh::new(2));
        bring(fresh.addr, 64 * page_len());
        bring(other.addr, 1);
        // SAFETY: the mapping is this test's.
        unsafe { libc::madvise(fresh.addr as *mut _, fresh.len, libc::MADV_DONTNEED) };
        // SAFETY: as above.
        unsafe { libc::madvise(other.addr as *mut _, other.len, libc::MADV_DONTNEED) };
        note_registration(fresh.page(8) + 100, 2 * page_len() as u64);
        let present = |number| are_present(fresh.page(number), page_len());
        assert_eq!((7..12).map(present).collect::<Vec<_>>(), [true, false, false, false, true]);
        assert!(are_present(other.addr, 1));
        note_registration(0, u64::MAX);
        assert!(!present(7) && !are_present(other.addr, 1));
        note_registration(u64::MAX, 0);
    }
}
