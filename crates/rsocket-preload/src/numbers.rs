//! The numbers by which the program knows its rsockets.
//!
//! Usually the rsocket's own; after dup(2) there are others. Reading is one load of an atomic, since each read(2) of the program
//! comes by here.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Numbers from this on stay ordinary sockets.
pub(crate) const MOST: usize = 1 << 16;

/// The rsocket behind a number, plus one; 0 for none.
static RSOCKETS: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];
/// One more than the highest number that has ever been an rsocket's.
static UPTO: AtomicU32 = AtomicU32::new(0);
/// Held while numbers change.
static CHANGING: Mutex<()> = Mutex::new(());

thread_local! {
    /// Whether this thread is in librdmacm, whose own sockets are ordinary ones.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call of librdmacm.
pub(crate) fn inside<R>(call: impl FnOnce() -> R) -> R {
    let before = INSIDE.replace(true);
    let result = call();
    INSIDE.set(before);
    result
}

pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// All that the thread does is librdmacm's.
pub(crate) fn belongs_to_librdmacm() {
    INSIDE.set(true);
}

fn place(number: c_int) -> Option<&'static AtomicI32> {
    RSOCKETS.get(usize::try_from(number).ok()?)
}

/// The rsocket behind a number of the program.
#[inline]
pub(crate) fn rsocket(number: c_int) -> Option<c_int> {
    match place(number)?.load(Ordering::Acquire) {
        0 => None,
        _ if is_inside() => None,
        rsocket => Some(rsocket - 1),
    }
}

/// Gives an rsocket a number; whether it can have it.
pub(crate) fn set(number: c_int, rsocket: c_int) -> bool {
    let Some(place) = place(number) else { return false };
    place.store(rsocket + 1, Ordering::Release);
    UPTO.fetch_max(number as u32 + 1, Ordering::Relaxed);
    true
}

/// Takes a number away. Returns its rsocket, and whether that has another number.
pub(crate) fn take(number: c_int) -> Option<(c_int, bool)> {
    let _changing = CHANGING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let rsocket = match place(number)?.swap(0, Ordering::AcqRel) {
        0 => return None,
        rsocket => rsocket - 1,
    };
    Some((rsocket, all().any(|(_, other)| other == rsocket)))
}

/// Whether the rsocket's own number is needed, though the program may have closed it.
pub(crate) fn is_kept(number: c_int) -> bool {
    all().any(|(_, rsocket)| rsocket == number)
}

/// Numbers and their rsockets.
pub(crate) fn all() -> impl Iterator<Item = (c_int, c_int)> {
    let upto = UPTO.load(Ordering::Relaxed) as usize;
    RSOCKETS[..upto].iter().enumerate().filter_map(|(number, rsocket)| {
        match rsocket.load(Ordering::Acquire) {
            0 => None,
            rsocket => Some((number as c_int, rsocket - 1)),
        }
    })
}

/// In a child of a fork: the parent's rsockets are the parent's.
pub(crate) fn forget_all() {
    let upto = UPTO.load(Ordering::Relaxed) as usize;
    for place in &RSOCKETS[..upto] {
        place.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_ends_an_rsocket() {
        assert!(set(60_000, 60_000) && set(60_001, 60_000));
        assert_eq!((rsocket(60_000), rsocket(60_001), rsocket(60_002)), (Some(60_000), Some(60_000), None));
        assert_eq!(inside(|| rsocket(60_000)), None);
        assert_eq!(take(60_000), Some((60_000, true)));
        assert!(is_kept(60_000));
        assert_eq!(take(60_001), Some((60_000, false)));
        assert_eq!((take(60_001), is_kept(60_000)), (None, false));
        assert!(!set(MOST as c_int, 1) && rsocket(-1).is_none());
    }
}
