//! Copies between this process's memory and another's, by the kernel (`process_vm_readv` and `process_vm_writev`).
//!
//! The kernel takes a process by its number, and looks up its memory once for each call. A process that executes another
//! program keeps the number; one that has ended leaves it to others. So each call begins at the other process's cookie
//! (`cookie`): the kernel ends a copy where it finds nothing, and no byte of another program is touched.

use smallvec::SmallVec;

/// Bytes of a word.
const WORD: u64 = 8;

/// Ranges of this process that one copy fills, at most: the kernel takes 1,024 (`UIO_MAXIOV`), and the cookie is one of them.
pub const MOST_RANGES: usize = 1023;

/// As many need no allocation: the cookie, and the elements of most receives.
const SOME_RANGES: usize = 5;

/// How a copy from another process's memory to several ranges has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerRead {
    /// All bytes were copied.
    Whole,
    /// A part of the ranges, or of the other process's memory, isn't mapped, or may not be accessed that way.
    Partial,
    /// The kernel refuses all copies from the process, or it has another program by now.
    Refused,
}

/// The memory of another process.
#[derive(Clone, Copy, Debug)]
pub struct PeerMemory {
    pid: i32,
    /// Where its cookie is.
    at: u64,
    cookie: u64,
}

impl PeerMemory {
    /// The memory of process `pid`, if this process may copy there and it has `cookie` at `at`: in
    /// another PID namespace, or after a while, another process can have the number.
    #[must_use]
    pub fn probe(pid: i32, at: u64, cookie: u64) -> Option<Self> {
        let this = (pid > 0).then_some(Self { pid, at, cookie })?;
        this.is_there().then_some(this)
    }

    /// Its number.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// The process is still the one that has the cookie.
    pub(crate) fn is_there(&self) -> bool {
        self.read(self.at, 0, 0)
    }

    /// Copies `len` bytes at `from` in this process to `to` in the other, the last byte last. False unless all were; nothing is written if
    /// the process has ended or has become another program.
    ///
    /// The kernel checks both ranges. The caller makes sure that the range of this process is the program's registered
    /// memory, or bytes that no other thread writes.
    #[must_use]
    #[inline]
    pub fn write(&self, to: u64, from: u64, len: usize) -> bool {
        // The end of the bytes, from the last aligned word on, is a range of its own: a program may poll it. The kernel copies range after
        // range. It gives the pages of each back before the next one, by atomics that order all stores.
        let end = to.wrapping_add(len as u64);
        let last = len.min((end.wrapping_sub(1) % WORD) as usize + 1);
        let there = [(to, len - last), (end.wrapping_sub(last as u64), last)];
        // The cookie is overwritten with itself.
        let local = [(&raw const self.cookie as u64, WORD as usize), (from, len)].map(range);
        self.copy(libc::SYS_process_vm_writev, &local, there) == done(len)
    }

    /// Copies `len` bytes at `from` in the other process to `to` in this one. False unless all were, and of this very
    /// process; `to` must be registered memory of the program, or bytes that belong to the caller.
    #[must_use]
    #[inline]
    pub fn read(&self, from: u64, to: u64, len: usize) -> bool {
        let mut seen = 0u64;
        let local = [(&raw mut seen as u64, WORD as usize), (to, len)].map(range);
        self.copy(libc::SYS_process_vm_readv, &local, [(from, len), (0, 0)]) == done(len)
            && seen == self.cookie
    }

    /// As [`PeerMemory::read`], to several ranges (address and length) of this process one after the other, at most
    /// [`MOST_RANGES`].
    #[must_use]
    pub fn read_to(&self, from: u64, to: &[(u64, usize)]) -> PeerRead {
        let (mut seen, len) = (0u64, to.iter().map(|(_, len)| len).sum());
        let word = (&raw mut seen as u64, WORD as usize);
        let local: SmallVec<[_; SOME_RANGES]> =
            std::iter::once(word).chain(to.iter().copied()).map(range).collect();
        let copied = self.copy(libc::SYS_process_vm_readv, &local, [(from, len), (0, 0)]);
        match copied {
            _ if copied < done(0) || seen != self.cookie => PeerRead::Refused,
            _ if copied == done(len) => PeerRead::Whole,
            _ => PeerRead::Partial,
        }
    }

    /// Copies the cookie between its place and the first range of `here`, then as many bytes as the other ranges and `there` have. Returns how
    /// many bytes were copied; a negative number: none.
    #[inline]
    fn copy(&self, call: libc::c_long, here: &[libc::iovec], there: [(u64, usize); 2]) -> libc::c_long {
        let remote = [(self.at, WORD as usize), there[0], there[1]].map(range);
        // SAFETY: the vectors are valid for the call, and the kernel checks their ranges. It writes to a word of the functions
        // above and, by the promise of their callers, to the program's own memory or the caller's.
        unsafe {
            libc::syscall(call, self.pid, here.as_ptr(), here.len(), remote.as_ptr(), remote.len(), 0usize)
        }
    }
}

fn range((at, len): (u64, usize)) -> libc::iovec {
    libc::iovec { iov_base: at as *mut _, iov_len: len }
}

/// What the kernel returns when it has copied the cookie and `len` bytes.
fn done(len: usize) -> libc::c_long {
    (WORD as usize + len) as libc::c_long
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cookie;
    use std::sync::atomic::{AtomicU8, Ordering};

    #[test]
    fn only_the_process_with_the_cookie_is_taken_for_the_peer() {
        let own = std::process::id() as i32;
        let cookie = Box::new(ferroce_os::sys::random());
        let at = &raw const *cookie as u64;
        assert!(PeerMemory::probe(own, at, *cookie).is_some());
        assert!(PeerMemory::probe(own, at, !*cookie).is_none());
        assert!(PeerMemory::probe(own, at + 8, *cookie).is_none());
        assert!(PeerMemory::probe(own, 0x10, *cookie).is_none());
        for pid in [0, -1, i32::MIN] {
            assert!(PeerMemory::probe(pid, at, *cookie).is_none(), "pid {pid}");
        }
    }

    #[test]
    fn a_copy_that_is_not_whole_is_none() {
        let cookie = Cookie::new().unwrap();
        let own = PeerMemory::probe(std::process::id() as i32, cookie.at(), cookie.value()).unwrap();
        let (from, mut to) = ([7u8; 16], [0u8; 16]);
        assert!(own.write(to.as_mut_ptr() as u64, from.as_ptr() as u64, 16));
        assert_eq!(to, from);
        assert!(!own.read(0x10, to.as_mut_ptr() as u64, 16));
        assert!(!own.write(0x10, from.as_ptr() as u64, 16));
    }

    #[test]
    fn several_ranges_are_filled_one_after_the_other_by_one_call() {
        let cookie = Cookie::new().unwrap();
        let own = PeerMemory::probe(std::process::id() as i32, cookie.at(), cookie.value()).unwrap();
        let from: Vec<u8> = (1..=40).collect();
        let mut to = [0u8; 64];
        let at = to.as_mut_ptr() as u64;
        let read = |ranges: &[(u64, usize)]| own.read_to(from.as_ptr() as u64, ranges);
        assert_eq!(read(&[(at + 50, 3), (at, 10), (at + 30, 0), (at + 20, 1)]), PeerRead::Whole);
        assert_eq!((&to[..10], &to[20..22], &to[50..54]), (&from[3..13], &[14, 0][..], &[1, 2, 3, 0][..]));
        assert_eq!(read(&[]), PeerRead::Whole);
        // Of memory that isn't mapped: what is before it is filled.
        assert_eq!(read(&[(at, 5), (0x10, 5)]), PeerRead::Partial);
        assert_eq!(own.read_to(0x10, &[(at, 5)]), PeerRead::Partial);
        drop(cookie);
        assert_eq!(read(&[(at, 5)]), PeerRead::Refused);
    }

    #[test]
    fn all_bytes_are_written_wherever_they_begin_and_end() {
        let cookie = Cookie::new().unwrap();
        let own = PeerMemory::probe(std::process::id() as i32, cookie.at(), cookie.value()).unwrap();
        let from: Vec<u8> = (1..=40).collect();
        for (begin, len) in (0..16).flat_map(|begin| (0..=40).map(move |len| (begin, len))) {
            let mut to = [0u64; 8];
            assert!(own.write(to.as_mut_ptr() as u64 + begin as u64, from.as_ptr() as u64, len));
            let mut expected = [0; 64];
            expected[begin..begin + len].copy_from_slice(&from[..len]);
            assert_eq!(to.map(u64::to_ne_bytes).as_flattened(), expected, "{len} bytes at {begin}");
        }
    }

    #[test]
    fn a_thread_that_sees_the_last_byte_sees_all_others() {
        const LEN: usize = 64 * 1024;
        let cookie = Cookie::new().unwrap();
        let own = PeerMemory::probe(std::process::id() as i32, cookie.at(), cookie.value()).unwrap();
        let to: Vec<AtomicU8> = (0..LEN).map(|_| AtomicU8::new(0)).collect();
        let seen = AtomicU8::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rounds_with_old_bytes = Vec::new();
                for round in 1..=200 {
                    while to[LEN - 1].load(Ordering::Acquire) != round {
                        std::hint::spin_loop();
                    }
                    if to.iter().any(|byte| byte.load(Ordering::Relaxed) != round) {
                        rounds_with_old_bytes.push(round);
                    }
                    seen.store(round, Ordering::Release);
                }
                assert_eq!(rounds_with_old_bytes, []);
            });
            for round in 1..=200 {
                let from = vec![round; LEN];
                assert!(own.write(to.as_ptr() as u64, from.as_ptr() as u64, LEN));
                while seen.load(Ordering::Acquire) != round {
                    std::thread::yield_now();
                }
            }
        });
    }

    #[test]
    fn nothing_is_copied_to_or_from_a_process_without_the_cookie() {
        let cookie = Cookie::new().unwrap();
        let own = PeerMemory::probe(std::process::id() as i32, cookie.at(), cookie.value()).unwrap();
        let (ours, mut theirs, mut back) = ([7u8; 16], [0u8; 16], [1u8; 16]);
        drop(cookie);
        assert!(!own.write(theirs.as_mut_ptr() as u64, ours.as_ptr() as u64, 16));
        assert!(!own.read(ours.as_ptr() as u64, back.as_mut_ptr() as u64, 16));
        assert_eq!((theirs, back), ([0; 16], [1; 16]));
    }
}
