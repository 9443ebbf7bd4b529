//! Copies between this process's memory and another's, by the kernel (`process_vm_readv` and `process_vm_writev`).

/// The memory of another process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerMemory {
    pid: i32,
}

impl PeerMemory {
    /// The memory of process `pid`, if this process may copy there and it is the one that has `cookie` at `at`: in
    /// another PID namespace, or after a while, the number can be somebody else's.
    pub(super) fn probe(pid: i32, at: u64, cookie: u64) -> Option<Self> {
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
