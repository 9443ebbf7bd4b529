//! Copies between this process's memory and another's, by the kernel (`process_vm_readv` and `process_vm_writev`).
//!
//! The kernel takes a process by its number, and looks up its memory once for each call. A process that executes another
//! program keeps the number; one that has ended leaves it to others. So each call begins at the other process's cookie
//! (`cookie`): the kernel ends a copy where it finds nothing, and no byte of another program is touched.

/// Bytes of a word.
const WORD: u64 = 8;

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
    pub fn write(&self, to: u64, from: u64, len: usize) -> bool {
        // The end of the bytes, from the last aligned word on, is a range of its own: a program may poll it. The kernel copies range after
        // range. It gives the pages of each back before the next one, by atomics that order all stores.
        let end = to.wrapping_add(len as u64);
        let last = len.min((end.wrapping_sub(1) % WORD) as usize + 1);
        let there = [(to, len - last), (end.wrapping_sub(last as u64), last)];
        // The cookie is overwritten with itself.
        self.copy(libc::SYS_process_vm_writev, &raw const self.cookie as u64, (from, len), there)
    }

    /// Copies `len` bytes at `from` in the other process to `to` in this one. False unless all were, and of this very
    /// process; `to` must be registered memory of the program, or bytes that belong to the caller.
    #[must_use]
    #[inline]
    pub fn read(&self, from: u64, to: u64, len: usize) -> bool {
        let mut seen = 0u64;
        self.copy(libc::SYS_process_vm_readv, &raw mut seen as u64, (to, len), [(from, len), (0, 0)])
            && seen == self.cookie
    }

    /// Copies the cookie between `word` and its place, then the bytes of `here`, which are as many as those of `there`.
    fn copy(&self, call: libc::c_long, word: u64, here: (u64, usize), there: [(u64, usize); 2]) -> bool {
        let range = |(at, len): (u64, usize)| libc::iovec { iov_base: at as *mut _, iov_len: len };
        let local = [(word, size_of::<u64>()), here].map(range);
        let remote = [(self.at, size_of::<u64>()), there[0], there[1]].map(range);
        // SAFETY: the vectors are valid for the call, and the kernel checks their ranges. It writes to a word of the functions
        // above and, by the promise of their callers, to the program's own memory or the caller's.
        let done = unsafe {
            libc::syscall(call, self.pid, local.as_ptr(), local.len(), remote.as_ptr(), remote.len(), 0usize)
        };
        done == (size_of::<u64>() + here.1) as libc::c_long
    }
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
