//! Pages of a process that were seen, for a second or two ([`forget`]), by their addresses.

use crate::pagemap::{CHUNK, UNIT, UNITS};
use crate::userfaultfd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Units of a process's memory that are remembered: 256 MiB of it.
pub(crate) const PLACES: usize = 1 << 16;

/// Bits of the number of a unit.
const UNIT_BITS: u32 = u64::BITS - UNIT.trailing_zeros();

/// Counts how often all was forgotten.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// The pages of a process that were seen: for each place the unit that was seen last there, with generation and registration.
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

    /// The place of a unit, and its word if the unit was seen lately by this registration.
    #[inline]
    fn place(&self, by: Registration, unit: u64) -> (&AtomicU64, u64) {
        let generation = GENERATION.load(Ordering::Relaxed).wrapping_add(by.0) << Self::GENERATION_AT;
        (&self.0[unit as usize % PLACES], (unit / PLACES as u64) | generation)
    }

    #[inline]
    fn contains(&self, by: Registration, unit: u64) -> bool {
        let (place, word) = self.place(by, unit);
        place.load(Ordering::Relaxed) == word
    }

    /// Whether these bytes were seen lately: all of their pages. Otherwise `look` looks, at one chunk after the other: it gets an address at the
    /// beginning of a chunk and the units that are asked for, as bits, and returns those that are there.
    #[inline]
    pub(crate) fn are_present(
        &self,
        by: Registration,
        addr: u64,
        len: usize,
        look: impl Fn(u64, u64) -> u64,
    ) -> bool {
        self.have_seen(by, addr, len) || self.are_all_present(by, addr, len, look)
    }

    /// Whether these bytes are of one page or two, which were seen lately.
    #[inline]
    pub(crate) fn have_seen(&self, by: Registration, addr: u64, len: usize) -> bool {
        let (first, last) = (addr / UNIT, addr.wrapping_add(len as u64).wrapping_sub(1) / UNIT);
        // A payload may cross a page.
        let are_seen = || first == last || last == first + 1 && self.contains(by, last);
        self.contains(by, first) && are_seen()
    }

    #[inline(never)]
    pub(crate) fn are_all_present(
        &self,
        by: Registration,
        addr: u64,
        len: usize,
        look: impl Fn(u64, u64) -> u64,
    ) -> bool {
        let mut chunks = chunks(addr, len);
        chunks.all(|(chunk, units)| {
            let mut numbers = numbers(chunk, units);
            numbers.all(|unit| self.contains(by, unit)) || {
                let there = look(chunk * CHUNK, units);
                self.note(by, chunk, there);
                there & units == units
            }
        })
    }

    /// These units of a chunk are there.
    pub(crate) fn note(&self, by: Registration, chunk: u64, units: u64) {
        for unit in numbers(chunk, units) {
            let (place, word) = self.place(by, unit);
            place.store(word, Ordering::Relaxed);
        }
    }

    /// Nothing is known of these bytes any more.
    fn forget(&self, addr: u64, len: u64) {
        let units = addr / UNIT..=addr.saturating_add(len.saturating_sub(1)) / UNIT;
        for unit in units.take(PLACES) {
            let place = &self.0[unit as usize % PLACES];
            if place.load(Ordering::Relaxed) != 0 {
                place.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// By which registration pages were seen: the program may have other memory at the same addresses when it registers them anew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registration(u64);

impl Registration {
    /// Of this process, which [forgets](note_registration) its pages when it registers memory.
    pub(crate) const ANY: Self = Self(0);

    /// The one with this number.
    #[inline]
    pub(crate) const fn of(number: u64) -> Self {
        // Neighbouring numbers are far apart, also where generations are added.
        Self(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32)
    }
}

/// The numbers of these units of a chunk.
#[inline]
pub(crate) fn numbers(chunk: u64, units: u64) -> impl Iterator<Item = u64> {
    (0..UNITS).filter(move |unit| units >> unit & 1 == 1).map(move |unit| chunk * UNITS + unit)
}

/// The chunks of a range, each with the units that are in the range. A range that goes beyond the end of the address space has an end there.
#[inline]
pub(crate) fn chunks(addr: u64, len: usize) -> impl Iterator<Item = (u64, u64)> {
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

/// The pages of this process.
pub(crate) static SEEN: SeenPages<PLACES> = SeenPages::new();

/// Memory is being registered: other memory may have been seen at its addresses, and the program may have got a userfaultfd before.
pub(crate) fn note_registration(addr: u64, len: u64) {
    SEEN.forget(addr, len);
    userfaultfd::note_registration();
}

/// Another one after [`forget`].
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Forgets which pages were seen. To be called about once in a second.
pub fn forget() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_was_forgotten_is_looked_at_again() {
        let seen = SeenPages::<16>::new();
        let looks = std::cell::Cell::new(0);
        let look = |_, units| {
            looks.set(looks.get() + 1);
            units
        };
        let present = |addr, len| seen.are_present(Registration::ANY, addr, len, look);
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

    #[test]
    fn pages_are_seen_by_one_registration() {
        let seen = SeenPages::<PLACES>::boxed();
        let present = |number, there| seen.are_present(Registration::of(number), 0x1_0000, 1, |_, _| there);
        for number in 1..100 {
            assert!(!present(number, 0) && present(number, 1) && present(number, 0), "{number}");
        }
        // The generations of half an hour.
        for _ in 0..2000 {
            forget();
            assert!((1..100).all(|number| !present(number, 0)));
        }
    }
}
