//! Which pages of memory are there. A copy to or from a page that isn't there stands until the page has come: from a slow disk, or from a
//! handler of the program's (userfaultfd(2)) for any time. So a thread that others wait for looks first, and has another thread
//! [bring] the pages.
//!
//! A page of plain memory comes at once, so it counts as there: only registered files (`late`) and processes with a userfaultfd
//! have pages that don't.
//!
//! What was seen is remembered for a second or two ([`forget`]): so long a page that has gone again can hold a copy up.

use crate::late::noted;
use crate::pagemap::{CHUNK, UNIT, UNITS, mapped_by};
use crate::proc_file::ProcFile;
use crate::{copy, mappings, userfaultfd};
use ferroce_os::sys;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Units of a process's memory that are remembered: 256 MiB of it.
pub(crate) const PLACES: usize = 1 << 16;

/// Bits of the number of a unit.
const UNIT_BITS: u32 = u64::BITS - UNIT.trailing_zeros();

/// Counts how often all was forgotten.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// The pages of a process that were seen: for each place the unit that was seen last there, with the generation.
#[derive(Debug)]
pub(crate) struct SeenPages<const PLACES: usize>([AtomicU64; PLACES]);

impl<const PLACES: usize> SeenPages<PLACES> {
    pub(crate) const fn new() -> Self {
        assert!(PLACES.is_power_of_two());
        Self([const { AtomicU64::new(0) }; PLACES])
    }

    /// As [`SeenPages::new`]. The system gives a page of it when that is written first.
    pub(crate) fn boxed() -> Box<Self> {
        let words: Box<[u64]> = vec![0; PLACES].into_boxed_slice();
        // SAFETY: as many words as there are places; atomics have the size, the alignment and the values of words.
        unsafe { Box::from_raw(Box::into_raw(words).cast::<Self>()) }
    }

    /// The generation is in the bits that the number of a unit doesn't have, without those that its place shows.
    const GENERATION_AT: u32 = UNIT_BITS - PLACES.trailing_zeros();

    /// The place of a unit, and its word if the unit was seen lately.
    #[inline]
    fn place(&self, unit: u64) -> (&AtomicU64, u64) {
        let generation = GENERATION.load(Ordering::Relaxed) << Self::GENERATION_AT;
        (&self.0[unit as usize % PLACES], (unit / PLACES as u64) | generation)
    }

    #[inline]
    fn contains(&self, unit: u64) -> bool {
        let (place, word) = self.place(unit);
        place.load(Ordering::Relaxed) == word
    }

    /// Whether these bytes were seen lately: all of their pages. Otherwise `look` looks, at one chunk after the other: it gets an address at the
    /// beginning of a chunk and the units that are asked for, as bits, and returns those that are there.
    #[inline]
    pub(crate) fn are_present(&self, addr: u64, len: usize, look: impl Fn(u64, u64) -> u64) -> bool {
        self.have_seen(addr, len) || self.are_all_present(addr, len, look)
    }

    /// Whether these bytes are of one page or two, which were seen lately.
    #[inline]
    pub(crate) fn have_seen(&self, addr: u64, len: usize) -> bool {
        let (first, last) = (addr / UNIT, addr.wrapping_add(len as u64).wrapping_sub(1) / UNIT);
        // A payload may cross a page.
        let are_seen = || first == last || last == first + 1 && self.contains(last);
        self.contains(first) && are_seen()
    }

    #[inline(never)]
    pub(crate) fn are_all_present(&self, addr: u64, len: usize, look: impl Fn(u64, u64) -> u64) -> bool {
        let mut chunks = chunks(addr, len);
        chunks.all(|(chunk, units)| {
            let mut numbers = numbers(chunk, units);
            numbers.all(|unit| self.contains(unit)) || {
                let there = look(chunk * CHUNK, units);
                self.note(chunk, there);
                there & units == units
            }
        })
    }

    /// These units of a chunk are there.
    fn note(&self, chunk: u64, units: u64) {
        for unit in numbers(chunk, units) {
            let (place, word) = self.place(unit);
            place.store(word, Ordering::Relaxed);
        }
    }
}

/// The numbers of these units of a chunk.
#[inline]
fn numbers(chunk: u64, units: u64) -> impl Iterator<Item = u64> {
    (0..UNITS).filter(move |unit| units >> unit & 1 == 1).map(move |unit| chunk * UNITS + unit)
}

/// The chunks of a range, each with the units that are in the range. A range that goes beyond the end of the address space has an end there.
#[inline]
fn chunks(addr: u64, len: usize) -> impl Iterator<Item = (u64, u64)> {
    let first = addr / UNIT;
    let end = if len == 0 { first } else { addr.saturating_add(len as u64 - 1) / UNIT + 1 };
    let mut at = first;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let (chunk, from) = (at / UNITS, at % UNITS);
            let to = (end - chunk * UNITS).min(UNITS);
            at = chunk * UNITS + to;
            (chunk, (1 << to) - (1 << from))
        })
    })
}

/// Those of this process.
static SEEN: SeenPages<PLACES> = SeenPages::new();
/// The kernel doesn't return which pages are there.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether all pages of `len` bytes of this process's memory at `addr` are there, as far as can be known: where the kernel doesn't return that,
/// or no memory is mapped, they count as there.
#[inline]
#[must_use]
pub fn are_present(addr: u64, len: usize) -> bool {
    SEEN.are_present(addr, len, look_here)
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
    let end = addr.saturating_add(len as u64);
    let mut at = addr;
    while at < end {
        // A page that can't be read isn't waited for: a copy finds the fault.
        let _ = copy::read(at, &mut [0]);
        at = (at / UNIT * UNIT).saturating_add(UNIT);
    }
    assume_present(addr, len);
}

/// Notes pages as present: a copy brings those in that aren't.
pub fn assume_present(addr: u64, len: usize) {
    for (chunk, units) in chunks(addr, len) {
        SEEN.note(chunk, units);
    }
}

/// Forgets which pages were seen. To be called about once in a second.
pub fn forget() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::late::{Coming, NotedRanges};

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
    fn a_range_is_cut_into_chunks() {
        let cut = |addr, len| chunks(addr, len).collect::<Vec<_>>();
        assert_eq!(cut(0x1_2000, 0), []);
        assert_eq!(cut(0x1_2fff, 1), [(1, 1 << 2)]);
        assert_eq!(cut(0x1_2fff, 2), [(1, 3 << 2)]);
        assert_eq!(cut(0x1_f000, 0x1_2000), [(1, 1 << 15), (2, 0xffff), (3, 1)]);
        assert_eq!(cut(u64::MAX, 100), [(u64::MAX / CHUNK, 1 << 15)]);
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
    fn what_was_forgotten_is_looked_at_again() {
        let seen = SeenPages::<16>::new();
        let looks = std::cell::Cell::new(0);
        let look = |_, units| {
            looks.set(looks.get() + 1);
            units
        };
        let present = |addr, len| seen.are_present(addr, len, look);
        assert!(present(0x1_0000, 1) && present(0x1_0fff, 1) && looks.get() == 1);
        assert!(present(0x1_0fff, 2) && present(0x1_1000, 1) && looks.get() == 2);
        // The same place as the first.
        assert!(present(0x2_0000, 1) && present(0x1_1000, 1) && looks.get() == 3);
        assert!(present(0x1_0000, 1) && looks.get() == 4);
        forget();
        assert!(present(0x1_0000, 1) && looks.get() == 5);
        // An hour later.
        for _ in 0..4096 {
            forget();
        }
        assert!(present(0x1_0000, 1) && looks.get() == 6);
    }
}
