//! The working directory, when it is one of ours.
//!
//! The kernel keeps the working directory of a process and hands it on over `fork` and `exec`, so one of ours needs a
//! directory of the kernel's that stands for it. It is made where every user may, with the entry's path in its name and a
//! number that no other user can guess, entered, and removed at once: nameless and empty it lives as long as a process works in it. Paths relative to it are
//! answered before the kernel sees them, for `..` would lead to where it was made.

use std::ffi::{CStr, CString, c_int};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::AT_FDCWD;

use crate::fds;
use crate::real::errno;

/// What the name of such a directory begins with; a number and the entry's path follow.
const MARK: &str = "ferroce:";
/// In the name instead of `/`.
const SLASH: u8 = b'\\';
/// Where one can be made: a sandbox may have one of them only.
const PLACES: [&str; 4] = ["/tmp", "/dev/shm", "/var/tmp", "/run"];

/// What is known of the working directory: one of the states below, and in the upper bits how often it has changed.
static KNOWN: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
const ELSEWHERE: u32 = 1;
const OURS: u32 = 2;
const STATES: u32 = 3;

/// The entry that the process works in, if it is one of ours.
#[inline]
pub fn ours() -> Option<Vec<u8>> {
    if KNOWN.load(Ordering::Relaxed) & STATES == ELSEWHERE { None } else { look() }
}

/// It is another one now, or will be looked at for nothing.
pub fn forget() {
    let changed = |known: u32| Some((known & !STATES).wrapping_add(STATES + 1) | UNKNOWN);
    // Every value is changed.
    let _ = KNOWN.fetch_update(Ordering::AcqRel, Ordering::Relaxed, changed);
}

/// Notes what was found by a look that began when `before` was known, unless another thread has changed the directory.
fn note(before: u32, state: u32) {
    let found = before & !STATES | state;
    let _ = KNOWN.compare_exchange(before, found, Ordering::Release, Ordering::Relaxed);
}

#[cold]
fn look() -> Option<Vec<u8>> {
    let error = errno();
    let before = KNOWN.load(Ordering::Acquire);
    let found = fds::link_text(c"/proc/self/cwd").and_then(|name| {
        let name = name.strip_suffix(b" (deleted)")?.rsplit(|&byte| byte == b'/').next()?;
        let mut parts = name.strip_prefix(MARK.as_bytes())?.splitn(2, |&byte| byte == b':');
        let path = parts.nth(1)?.iter().map(|&byte| if byte == SLASH { b'/' } else { byte });
        Some(path.collect())
    });
    note(before, if found.is_some() { OURS } else { ELSEWHERE });
    crate::real::set_errno(error);
    found
}

/// Goes to the directory that stands for an entry.
pub fn enter(path: &[u8]) -> Result<c_int, c_int> {
    let text: Vec<u8> = path.iter().map(|&byte| if byte == b'/' { SLASH } else { byte }).collect();
    let number = number();
    let mut result = Err(libc::ENOENT);
    for place in PLACES {
        let head = format!("{place}/{MARK}{number}:").into_bytes();
        let name = CString::new([&head[..], &text].concat()).map_err(|_| libc::ENOENT)?;
        result = enter_by(&name);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// A unique suffix for each directory: another user who knew it could make the directory first.
fn number() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut random = [0_u8; 8];
    // SAFETY: the kernel writes at most this many bytes into `random`. Where it has none yet, the rest has to do.
    unsafe { libc::syscall(libc::SYS_getrandom, random.as_mut_ptr(), random.len(), libc::GRND_NONBLOCK) };
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}.{next}.{:016x}", std::process::id(), u64::from_ne_bytes(random))
}

/// Makes the directory, goes there, and removes it.
fn enter_by(name: &CStr) -> Result<c_int, c_int> {
    let check = |result: libc::c_long| if result == 0 { Ok(0) } else { Err(errno()) };
    // SAFETY: a NUL-terminated path, in this call and the two below.
    check(unsafe { libc::syscall(libc::SYS_mkdirat, AT_FDCWD, name.as_ptr(), 0o500) })?;
    // SAFETY: as above.
    let entered = check(unsafe { libc::syscall(libc::SYS_chdir, name.as_ptr()) });
    // SAFETY: as above. It was made here and is empty.
    unsafe { libc::syscall(libc::SYS_unlinkat, AT_FDCWD, name.as_ptr(), libc::AT_REMOVEDIR) };
    entered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_stands_for_an_entry_has_a_name_that_cannot_be_guessed() {
        let random = || number().rsplit('.').next().map(str::to_owned);
        let [one, other] = [random(), random()];
        assert!(one.as_ref().is_some_and(|one| one.len() == 16) && one != other, "{one:?} {other:?}");
    }

    #[test]
    fn what_was_seen_before_a_change_is_not_kept() {
        let known = || KNOWN.load(Ordering::Relaxed) & STATES;
        let before = KNOWN.load(Ordering::Acquire);
        forget();
        note(before, ELSEWHERE);
        assert_eq!(known(), UNKNOWN);
        note(KNOWN.load(Ordering::Acquire), ELSEWHERE);
        assert_eq!(known(), ELSEWHERE);
        forget();
        assert_eq!(known(), UNKNOWN);
    }
}
