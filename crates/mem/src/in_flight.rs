//! The program's memory that requests under way name, for `ferroce run --check=memory`: what the adapter places there is noted, so
//! that any other difference at the end of a request was written by the program.
//!
//! A copy is kept of each range, which costs what the range has in bytes, at most [`LOOKED_AT`]; requests that name the same
//! range share one.

use ferroce_access::{Fault, copy, poison};
use ferroce_os::fork::{self, InChild};
use ferroce_os::sync::{Mutex, class};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of an element of a list that are looked at, from the first on.
pub(crate) const LOOKED_AT: u32 = 64 * 1024;

/// What a range has in it, but for what the program writes.
#[derive(Debug)]
struct Shadow {
    /// Unlike that of any other of the process's life.
    serial: u64,
    bytes: Vec<u8>,
    requests: usize,
    /// Those of the requests that have the adapter write there: meanwhile the range is poisoned for AddressSanitizer.
    fillers: usize,
    /// How often the program was seen to have written, and where it did the last time.
    changes: u64,
    changed: Range<usize>,
}

/// A shadow has ever been made.
static USED: AtomicBool = AtomicBool::new(false);
/// By address and length.
static SHADOWS: Mutex<class::InFlight, BTreeMap<(u64, usize), Shadow>> = Mutex::new(BTreeMap::new());

/// A range of memory that a request under way names.
#[derive(Debug)]
pub struct InFlight {
    at: (u64, usize),
    /// Of the shadow; there may be another one when the region's registration has ended meanwhile.
    serial: u64,
    /// The request has the adapter write there.
    filled: bool,
    /// Changes that were seen before the request was posted.
    changes: u64,
}

impl Shadow {
    /// Looks for what the program has written since.
    fn look(&mut self, addr: u64) {
        let mut now = vec![0; self.bytes.len()];
        if copy::read(addr, &mut now).is_err() || now == self.bytes {
            return;
        }
        let differs = |at: &usize| now[*at] != self.bytes[*at];
        let mut all = 0..now.len();
        if let Some(first) = all.find(differs) {
            let last = all.rfind(differs).unwrap_or(first);
            self.changed = first..last + 1;
        }
        self.changes += 1;
        self.bytes = now;
    }
}

impl InFlight {
    /// Begins to look at `length` bytes at `addr`; `None` if they can't be read.
    pub(crate) fn at(addr: u64, length: usize, filled: bool) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        USED.store(true, Ordering::Relaxed);
        let at = (addr, length);
        let mut shadows = SHADOWS.lock();
        let shadow = match shadows.entry(at) {
            Entry::Occupied(entry) => {
                let shadow = entry.into_mut();
                shadow.look(addr);
                shadow
            }
            Entry::Vacant(entry) => {
                let mut bytes = vec![0; length];
                copy::read(addr, &mut bytes).ok()?;
                let serial = NEXT.fetch_add(1, Ordering::Relaxed);
                entry.insert(Shadow { serial, bytes, requests: 0, fillers: 0, changes: 0, changed: 0..0 })
            }
        };
        shadow.requests += 1;
        if filled {
            shadow.fillers += 1;
            poison::poison(addr, length);
        }
        Some(Self { at, serial: shadow.serial, filled, changes: shadow.changes })
    }

    /// The first address that the program has written to since the request was posted, and how many bytes from there on lie
    /// between the first and the last one written; `None` if it hasn't.
    #[must_use]
    pub fn written(&self) -> Option<(u64, usize)> {
        let mut shadows = SHADOWS.lock();
        let shadow = shadows.get_mut(&self.at).filter(|shadow| shadow.serial == self.serial)?;
        shadow.look(self.at.0);
        let Range { start, end } = shadow.changed;
        (shadow.changes != self.changes).then_some((self.at.0 + start as u64, end - start))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut shadows = SHADOWS.lock();
        let shadow = shadows.get_mut(&self.at).filter(|shadow| shadow.serial == self.serial);
        let Some(shadow) = shadow else { return };
        shadow.requests -= 1;
        shadow.fillers -= usize::from(self.filled);
        let is_last_filler = self.filled && shadow.fillers == 0;
        if shadow.requests == 0 {
            shadows.remove(&self.at);
        }
        if is_last_filler {
            let (addr, length) = self.at;
            poison::unpoison(addr, length);
            let others = overlapping(&mut shadows, addr, length).filter(|(_, other)| other.fillers > 0);
            others.for_each(|((addr, length), _)| poison::poison(addr, length));
        }
    }
}

/// The registration of the `length` bytes at `addr` has ended: no adapter writes there by it any more, and the program may have other
/// uses for them.
pub(crate) fn forget(addr: u64, length: u64) {
    if !USED.load(Ordering::Relaxed) {
        return;
    }
    let end = addr.saturating_add(length);
    let mut shadows = SHADOWS.lock();
    let within = shadows.range((addr, 0)..(end, 0)).map(|(at, _)| *at);
    let within: Vec<_> = within.filter(|(start, length)| start + *length as u64 <= end).collect();
    for at in within {
        if shadows.remove(&at).is_some_and(|shadow| shadow.fillers > 0) {
            poison::unpoison(at.0, at.1);
        }
    }
}

/// In the child of a fork no adapter writes to what its parent's requests name: the child may touch it.
pub fn forget_requests_after_fork(_: &InChild) {
    // Locked only if the forking thread is in a signal's handler and has the lock: the child's memory is then left as it is.
    let Some(mut shadows) = SHADOWS.try_lock() else { return };
    // The parent's requests don't find a shadow by it any more; the shadow goes with the next of the child's requests there.
    let serial = u64::MAX - u64::from(fork::generation());
    for (at, shadow) in shadows.iter_mut() {
        if shadow.fillers > 0 {
            poison::unpoison(at.0, at.1);
        }
        (shadow.serial, shadow.requests, shadow.fillers) = (serial, 0, 0);
    }
}

/// The ranges that have bytes in common with the `length` bytes at `addr`.
fn overlapping(
    shadows: &mut BTreeMap<(u64, usize), Shadow>,
    addr: u64,
    length: usize,
) -> impl Iterator<Item = ((u64, usize), &mut Shadow)> {
    let first = (addr.saturating_sub(LOOKED_AT.into()), 0);
    let near = shadows.range_mut(first..(addr + length as u64, 0));
    near.map(|(at, shadow)| (*at, shadow)).filter(move |((start, length), _)| start + *length as u64 > addr)
}

/// Copies `bytes` to the program's memory, and notes that this is what is to be there.
///
/// # Errors
/// As [`copy::write`].
pub fn place(addr: u64, bytes: &[u8]) -> Result<(), Fault> {
    // A comparison meanwhile would see half of the bytes.
    let mut shadows = SHADOWS.lock();
    copy::write(addr, bytes)?;
    note(&mut shadows, addr, bytes);
    Ok(())
}

/// Has `change` execute an atomic operation on eight bytes at `addr`, and notes what is there then.
///
/// # Errors
/// Those of `change`.
pub fn place_atomically<R>(addr: u64, change: impl FnOnce() -> Result<R, Fault>) -> Result<R, Fault> {
    let mut shadows = SHADOWS.lock();
    let result = change()?;
    let mut now = [0; 8];
    copy::read(addr, &mut now)?;
    note(&mut shadows, addr, &now);
    Ok(result)
}

/// Notes that the adapter has placed `bytes`.
fn note(shadows: &mut BTreeMap<(u64, usize), Shadow>, addr: u64, bytes: &[u8]) {
    let end = addr + bytes.len() as u64;
    for ((start, length), shadow) in overlapping(shadows, addr, bytes.len()) {
        let (from, to) = (addr.max(start), end.min(start + length as u64));
        let part = &bytes[(from - addr) as usize..(to - addr) as usize];
        shadow.bytes[(from - start) as usize..(to - start) as usize].copy_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_adapter_places_is_no_change_and_what_the_program_writes_is() {
        let mut memory = vec![7u8; 256];
        let addr = memory.as_mut_ptr() as u64;
        let whole = InFlight::at(addr, 256, false).expect("memory");
        let part = InFlight::at(addr + 100, 100, false).expect("memory");
        place(addr + 96, &[1; 8]).expect("memory");
        assert_eq!((whole.written(), part.written()), (None, None));
        copy::write(addr + 150, &[2, 3]).expect("memory");
        copy::write(addr + 160, &[2]).expect("memory");
        assert_eq!((whole.written(), part.written()), (Some((addr + 150, 11)), Some((addr + 150, 11))));
        // One that is posted now has nothing to do with it.
        let later = InFlight::at(addr, 256, false).expect("memory");
        assert_eq!(later.written(), None);
        copy::write(addr + 1, &[9]).expect("memory");
        assert_eq!(later.written(), Some((addr + 1, 1)));
        assert_eq!(part.written(), Some((addr + 150, 11)));
    }

    #[test]
    fn a_range_is_forgotten_with_its_registration() {
        let mut memory = [7u8; 256];
        let addr = memory.as_mut_ptr() as u64;
        let [inside, beyond] = [(addr + 8, 64), (addr + 100, 64)];
        let [old, other] =
            [inside, beyond].map(|(addr, length)| InFlight::at(addr, length, true).expect("memory"));
        forget(addr, 128);
        let new = InFlight::at(inside.0, inside.1, true).expect("memory");
        copy::write(inside.0, &[1]).expect("memory");
        copy::write(beyond.0, &[1]).expect("memory");
        assert_eq!((old.written(), new.written()), (None, Some((inside.0, 1))));
        assert_eq!(other.written(), Some((beyond.0, 1)));
        drop(old);
        assert_eq!(SHADOWS.lock()[&inside].fillers, 1);
    }

    #[test]
    fn a_range_is_forgotten_with_its_last_request() {
        let memory = [7u8; 64];
        let addr = memory.as_ptr() as u64;
        let two =
            [InFlight::at(addr, 64, false), InFlight::at(addr, 64, false)].map(|one| one.expect("memory"));
        let [first, second] = two;
        drop(first);
        assert_eq!(second.written(), None);
        drop(second);
        assert!(!SHADOWS.lock().contains_key(&(addr, 64)));
    }
}
