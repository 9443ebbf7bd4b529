//! Which pages a process has mapped, by its pagemap in /proc.

use ferroce_os::sys;
use std::os::fd::RawFd;

/// Bytes that are remembered together: the smallest page of all processors.
pub(crate) const UNIT: u64 = 4096;
/// Units that are looked at together: they begin at a multiple of the largest page without huge pages.
pub(crate) const UNITS: u64 = 16;
pub(crate) const CHUNK: u64 = UNIT * UNITS;

/// A word of pagemap has this bit if the page is there.
const PRESENT: u64 = 1 << 63;
const WORD: usize = size_of::<u64>();

/// The units of a chunk at `at` that are mapped, by this pagemap. `None`: that can't be read.
pub(crate) fn mapped_by(pagemap: RawFd, at: u64) -> Option<u64> {
    let page = sys::page_size();
    if page > CHUNK {
        return None;
    }
    // Words that aren't read are those of addresses that no process has.
    let mut bytes = [0; WORD * UNITS as usize];
    sys::read_at(pagemap, &mut bytes[..(CHUNK / page) as usize * WORD], at / page * WORD as u64).ok()?;
    let (words, _) = bytes.as_chunks::<WORD>();
    let is_there = |unit: &u64| u64::from_ne_bytes(words[(unit * UNIT / page) as usize]) & PRESENT != 0;
    Some((0..UNITS).filter(is_there).fold(0, |units, unit| units | 1 << unit))
}
