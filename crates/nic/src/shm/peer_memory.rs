//! Copies between this process's memory and another's, by the kernel (`process_vm_readv` and `process_vm_writev`).

/// The memory of another process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerMemory {
    pid: i32,
}

impl PeerMemory {
    /// The memory of process `pid`, if this process may copy there and it is the one that has `cookie` at `at`: in
    /// another PID namespace, or after a while, the number can be somebody else's.
    pub(crate) fn probe(pid: i32, at: u64, cookie: u64) -> Option<Self> {
        let this = (pid > 0).then_some(Self { pid })?;
        let mut bytes = [0u8; 8];
        (this.read(at, bytes.as_mut_ptr() as u64, 8) && u64::from_ne_bytes(bytes) == cookie).then_some(this)
    }

    /// Copies `len` bytes at `from` in this process to `to` in the other. False unless all were.
    ///
    /// The kernel checks both ranges. The caller sees to it that those of this process are the program's registered
    /// memory, or bytes nobody else writes.
    pub(crate) fn write(&self, to: u64, from: u64, len: usize) -> bool {
        self.copy(libc::SYS_process_vm_writev, from, to, len)
    }

    /// Copies `len` bytes at `from` in the other process to `to` in this one. False unless all were; `to` must be
    /// registered memory of the program, or bytes that belong to the caller.
    pub(crate) fn read(&self, from: u64, to: u64, len: usize) -> bool {
        self.copy(libc::SYS_process_vm_readv, to, from, len)
    }

    fn copy(&self, call: libc::c_long, here: u64, there: u64, len: usize) -> bool {
        let here = libc::iovec { iov_base: here as *mut _, iov_len: len };
        let there = libc::iovec { iov_base: there as *mut _, iov_len: len };
        // SAFETY: both vectors are valid for the call, and the kernel checks what they name; what is written to is the
        // program's own memory or the caller's, say the callers.
        let done = unsafe {
            libc::syscall(call, self.pid, &raw const here, 1usize, &raw const there, 1usize, 0usize)
        };
        done == len as libc::c_long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_process_with_the_cookie_is_taken_for_the_peer() {
        let own = std::process::id() as i32;
        let cookie = Box::new(crate::sys::random());
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
        let own = PeerMemory { pid: std::process::id() as i32 };
        let (from, mut to) = ([7u8; 16], [0u8; 16]);
        assert!(own.write(to.as_mut_ptr() as u64, from.as_ptr() as u64, 16));
        assert_eq!(to, from);
        assert!(!own.read(0x10, to.as_mut_ptr() as u64, 16));
        assert!(!own.write(0x10, from.as_ptr() as u64, 16));
    }
}
