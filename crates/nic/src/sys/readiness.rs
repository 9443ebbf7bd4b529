//! A descriptor for programs to poll, which is readable while it is raised and never writable, as those of the kernel's
//! verbs devices are.
//!
//! It is the read end of a pipe. An eventfd is always ready for writing. An epoll descriptor that holds an eventfd is
//! not, but the kernel refuses EPOLLEXCLUSIVE for epoll descriptors, and lets programs nest them five deep only. A
//! timerfd becomes readable a moment after the call that asks for it, by an interrupt.

use super::{check, close, close_if, identity, opening};
use std::io;
use std::os::fd::RawFd;

/// See the module's description. One thread at a time calls `raise` and `lower`.
#[derive(Debug)]
pub struct Readiness {
    /// The program's end. Its flags are the program's affair.
    program: RawFd,
    /// Our end: the pipe once more, for reading and writing. It never blocks, whatever the flags of the program's end,
    /// and as it is a reader too, a write raises no SIGPIPE when the program has closed its end.
    own: RawFd,
    /// The pipe's, by which a file of the program's that has taken one of the numbers is told from it.
    identity: u64,
}

/// The least that a pipe can have: a user's pipes have 64 MiB in all by default, and the bytes in here say nothing.
const SIZE: libc::c_long = 4096;

impl Readiness {
    /// A new one, not raised.
    ///
    /// # Errors
    /// That of `pipe2(2)`, or of `openat(2)` for the pipe's name in `/proc/self/fd`.
    pub fn new() -> io::Result<Self> {
        opening(|| {
            let mut ends = [-1_i32; 2];
            // SAFETY: room for two descriptors.
            check(unsafe { libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
            let [program, write] = ends;
            let own = reopen(write);
            close(write);
            let own = own.inspect_err(|_| close(program))?;
            // SAFETY: no pointer. Where the kernel refuses it, the pipe keeps its size.
            unsafe { libc::syscall(libc::SYS_fcntl, own, libc::F_SETPIPE_SZ, SIZE) };
            Ok(Self { program, own, identity: identity(own).unwrap_or(0) })
        })
    }

    /// The program's descriptor.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.program
    }

    /// Makes the descriptor readable. Each call is news to an edge-triggered epoll.
    pub fn raise(&self) {
        if !self.is_ours() {
            return;
        }
        // A full pipe has to be emptied: only a byte that is written is news.
        if !self.write_byte() {
            self.read_all();
            self.write_byte();
        }
    }

    /// Makes the descriptor unreadable.
    pub fn lower(&self) {
        if self.is_ours() {
            self.read_all();
        }
    }

    /// Closes both descriptors, and wakes whoever sleeps on the program's.
    pub fn close(self) {
        close_if(self.own, self.identity);
        close_if(self.program, self.identity);
    }

    /// A program that closes descriptors which aren't its own may have opened another file at that number since.
    fn is_ours(&self) -> bool {
        identity(self.own) == Some(self.identity)
    }

    fn write_byte(&self) -> bool {
        // SAFETY: one readable byte; a raw system call is no cancellation point.
        unsafe { libc::syscall(libc::SYS_write, self.own, [0_u8].as_ptr(), 1) == 1 }
    }

    fn read_all(&self) {
        let mut bytes = [0_u8; 64];
        // SAFETY: `bytes` is writable for its length; a raw system call is no cancellation point.
        let mut read = || unsafe { libc::syscall(libc::SYS_read, self.own, bytes.as_mut_ptr(), bytes.len()) };
        while read() == 64 {}
    }
}

/// The pipe of `fd` once more, for both directions, without blocking.
fn reopen(fd: RawFd) -> io::Result<RawFd> {
    let name = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).expect("no NUL in a number");
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated name; no mode is needed without O_CREAT.
    let own = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags) };
    check(own).map(|own| own as RawFd)
}

#[cfg(test)]
mod tests {
    use super::super::wait_for;
    use super::*;
    use std::time::Duration;

    fn is_ready(fd: RawFd, events: libc::c_short) -> bool {
        wait_for(fd, events, Duration::ZERO)
    }

    #[test]
    fn readable_while_raised_and_never_writable() {
        let readiness = Readiness::new().unwrap();
        let fd = readiness.fd();
        for raised in [1, 2, 63, 64, 65, 3 * SIZE] {
            assert!(!is_ready(fd, libc::POLLIN | libc::POLLOUT), "before {raised}");
            for _ in 0..raised {
                readiness.raise();
                assert!(is_ready(fd, libc::POLLIN) && !is_ready(fd, libc::POLLOUT), "{raised}");
            }
            readiness.lower();
        }
        readiness.lower();
        assert!(!is_ready(fd, libc::POLLIN | libc::POLLOUT));
        readiness.close();
    }

    #[test]
    fn nothing_is_written_into_a_file_that_has_taken_the_number() {
        let readiness = Readiness::new().unwrap();
        let file = super::super::memfd(c"of the program", 0).unwrap();
        // SAFETY: no pointer; the number is that of our own descriptor.
        unsafe { libc::syscall(libc::SYS_dup3, file.raw(), readiness.own, libc::O_CLOEXEC) };
        readiness.raise();
        assert_eq!(super::super::file_size(file.raw()).unwrap(), 0);
        readiness.lower();
        let taken = readiness.own;
        readiness.close();
        assert_eq!(super::super::file_size(taken).unwrap(), 0, "the program's is still open");
        close(taken);
    }
}
