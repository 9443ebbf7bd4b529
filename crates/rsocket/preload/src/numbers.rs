//! The numbers by which the program knows its rsockets: copies of the rsocket's own, which is librdmacm's.
//!
//! An ordinary number takes one load of an atomic, since each read(2) of the program comes by here. A number is an rsocket's only as
//! long as the kernel's descriptor leads there: not all ways to close or replace one come by here.

use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::inside::{held, inside, is_inside};
use crate::rsocket::{MOST, rclose};

/// The rsocket behind a number, plus one, and above it what the kernel knows its descriptor by; 0 for none.
static RSOCKETS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// One more than the highest number that has ever been an rsocket's.
static UPTO: AtomicU32 = AtomicU32::new(0);
/// Held while numbers change.
static CHANGING: Mutex<()> = Mutex::new(());

/// Changes numbers. A handler that changes some as well comes before or after it.
fn change<R>(change: impl FnOnce() -> R) -> R {
    held(|| {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        change()
    })
}

/// The kernel's number of a socket, whatever descriptors lead to it; 0 for anything else.
pub(crate) fn identity(number: c_int) -> u64 {
    // SAFETY: zeros are valid, and room for the answer.
    unsafe {
        let mut about: libc::stat = zeroed();
        let is_socket =
            libc::fstat(number, &raw mut about) == 0 && about.st_mode & libc::S_IFMT == libc::S_IFSOCK;
        if is_socket { about.st_ino } else { 0 }
    }
}

fn rsocket_of(place: u64) -> c_int {
    place as u32 as c_int - 1
}

static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Whether this is the process that has the rsockets, and not a child of vfork(2), which shares its memory.
pub(crate) fn is_owner() -> bool {
    // SAFETY: it can't fail.
    PROCESS.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

/// Makes this process the owner.
pub(crate) fn own() {
    // SAFETY: as in `is_owner`.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

fn place(number: c_int) -> Option<&'static AtomicU64> {
    RSOCKETS.get(usize::try_from(number).ok()?)
}

/// What is known of a number that is, or was, an rsocket's: the rsocket while the number leads there.
#[inline]
fn found(number: c_int) -> Option<Result<c_int, u64>> {
    match place(number)?.load(Ordering::Acquire) {
        0 => None,
        _ if is_inside() => None,
        known if identity(number) as u32 == (known >> 32) as u32 => Some(Ok(rsocket_of(known))),
        known => Some(Err(known)),
    }
}

/// The rsocket behind a number of the program.
#[inline]
pub(crate) fn rsocket(number: c_int) -> Option<c_int> {
    match found(number)? {
        Ok(rsocket) => Some(rsocket),
        Err(known) => {
            stale(number, known);
            None
        }
    }
}

/// The number leads elsewhere. If it was the last one, its rsocket is closed as the kernel would have done it: the caller doesn't wait.
#[cold]
fn stale(number: c_int, known: u64) {
    let Some(place) = place(number) else { return };
    let is_last = change(|| {
        let ours = place.compare_exchange(known, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        ours && is_owner() && !all().any(|(_, other)| other == rsocket_of(known))
    });
    if is_last {
        inside(|| {
            let close = move || {
                // SAFETY: an rsocket that has no number any more.
                unsafe { rclose(rsocket_of(known)) };
            };
            // If it fails, the peer learns of it at the end of the process.
            let _ = std::thread::Builder::new().name("rsocket-close".into()).spawn(close);
        });
    }
}

/// Gives an rsocket a number, which leads to it; whether it can have it.
pub(crate) fn set(number: c_int, rsocket: c_int) -> bool {
    let Some(place) = place(number) else { return false };
    place.store(identity(number) << 32 | (rsocket + 1) as u64, Ordering::Release);
    UPTO.fetch_max(number as u32 + 1, Ordering::Relaxed);
    true
}

/// Has the numbers of an rsocket lead to what it shows now: one that has failed and connects again shows a new socket. To be called
/// [inside], where dup3(2) is the kernel's.
pub(crate) fn follow(rsocket: c_int) {
    change(|| have_follow(rsocket));
}

fn have_follow(rsocket: c_int) {
    let shown = identity(rsocket);
    for (number, _) in all().filter(|&(_, other)| other == rsocket) {
        let leads_there = place(number).is_some_and(|place| {
            identity(number) as u32 == (place.load(Ordering::Acquire) >> 32) as u32
                && identity(number) != shown
        });
        if !leads_there {
            continue;
        }
        // SAFETY: numbers; no memory is passed.
        unsafe {
            let closes_on_exec = libc::fcntl(number, libc::F_GETFD) & libc::FD_CLOEXEC != 0;
            if libc::dup3(rsocket, number, if closes_on_exec { libc::O_CLOEXEC } else { 0 }) >= 0 {
                set(number, rsocket);
            }
        }
    }
}

/// Takes a number away. Returns its rsocket, and whether that has another number.
pub(crate) fn take(number: c_int) -> Option<(c_int, bool)> {
    let place = place(number)?;
    change(|| {
        let rsocket = match place.swap(0, Ordering::AcqRel) {
            0 => return None,
            known => rsocket_of(known),
        };
        Some((rsocket, all().any(|(_, other)| other == rsocket)))
    })
}

/// Numbers and their rsockets.
pub(crate) fn all() -> impl Iterator<Item = (c_int, c_int)> {
    let upto = UPTO.load(Ordering::Relaxed) as usize;
    RSOCKETS[..upto].iter().enumerate().filter_map(|(number, place)| match place.load(Ordering::Acquire) {
        0 => None,
        known => Some((number as c_int, rsocket_of(known))),
    })
}

/// In a child of a fork: the parent's rsockets are the parent's. The child's descriptors lead nowhere, so that it can't change what the
/// kernel shows of them, and don't keep them in the parent's sets of epoll.
pub(crate) fn forget_all() {
    inside(|| {
        // SAFETY: no memory is passed; calls that a child may make.
        unsafe {
            let nowhere = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            for (number, rsocket) in all() {
                libc::dup3(nowhere, number, libc::O_CLOEXEC);
                libc::dup3(nowhere, rsocket, libc::O_CLOEXEC);
            }
            libc::close(nowhere);
        }
    });
    let upto = UPTO.load(Ordering::Relaxed) as usize;
    for place in &RSOCKETS[..upto] {
        place.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_last_number_ends_an_rsocket() {
        let (one, _peer) = UnixStream::pair().unwrap();
        let copy = one.try_clone().unwrap();
        let (first, second) = (one.as_raw_fd(), copy.as_raw_fd());
        assert!(set(first, 60_000) && set(second, 60_000));
        assert_eq!((found(first), found(second)), (Some(Ok(60_000)), Some(Ok(60_000))));
        assert_eq!(inside(|| found(first)), None);
        assert_eq!(take(first), Some((60_000, true)));
        assert_eq!(take(second), Some((60_000, false)));
        assert_eq!((take(second), found(second)), (None, None));
        assert!(!set(MOST as c_int, 1) && found(-1).is_none());
    }

    #[test]
    fn a_number_that_leads_elsewhere_is_no_rsocket() {
        let (one, other) = UnixStream::pair().unwrap();
        assert!(set(one.as_raw_fd(), 60_001));
        // SAFETY: descriptors of this test.
        assert!(unsafe { libc::dup2(other.as_raw_fd(), one.as_raw_fd()) } >= 0);
        assert!(matches!(found(one.as_raw_fd()), Some(Err(_))));
        assert_eq!(take(one.as_raw_fd()), Some((60_001, false)));
    }
}
