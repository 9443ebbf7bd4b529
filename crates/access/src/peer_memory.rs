//! Copies between this process's memory and another's, by the kernel (`process_vm_readv` and `process_vm_writev`).
//!
//! The kernel takes a process by its number, and looks up its memory once for each call. A process that executes another
//! program keeps the number; one that has ended leaves it to others. So each call begins at the other process's cookie
//! (`cookie`): the kernel ends a copy where it finds nothing, and no byte of another program is touched.

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

    /// Copies `len` bytes at `from` in this process to `to` in the other. False unless all were; nothing is written if the
    /// process has ended or has become another program.
    ///
    /// The kernel checks both ranges. The caller makes sure that the range of this process is the program's registered
    /// memory, or bytes that no other thread writes.
    #[must_use]
    pub fn write(&self, to: u64, from: u64, len: usize) -> bool {
        // The cookie is overwritten with itself.
        self.copy(libc::SYS_process_vm_writev, &raw const self.cookie as u64, (from, to, len))
    }

    /// Copies `len` bytes at `from` in the other process to `to` in this one. False unless all were, and of this very
    /// process; `to` must be registered memory of the program, or bytes that belong to the caller.
    #[must_use]
    pub fn read(&self, from: u64, to: u64, len: usize) -> bool {
        let mut seen = 0u64;
        self.copy(libc::SYS_process_vm_readv, &raw mut seen as u64, (to, from, len)) && seen == self.cookie
    }

    /// Copies the cookie between `word` and its place, then `len` bytes.
    fn copy(&self, call: libc::c_long, word: u64, (here, there, len): (u64, u64, usize)) -> bool {
        let range = |at: u64, len: usize| libc::iovec { iov_base: at as *mut _, iov_len: len };
        let local = [range(word, size_of::<u64>()), range(here, len)];
        let remote = [range(self.at, size_of::<u64>()), range(there, len)];
        // SAFETY: the vectors are valid for the call, and the kernel checks their ranges. It writes to a word of the functions
        // above and, by the promise of their callers, to the program's own memory or the caller's.
        let done =
            unsafe { libc::syscall(call, self.pid, local.as_ptr(), 2usize, remote.as_ptr(), 2usize, 0usize) };
        done == (size_of::<u64>() + len) as libc::c_long
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cookie;

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
