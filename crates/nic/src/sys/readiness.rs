//! A descriptor for programs to poll, which is readable while it is raised and never writable, as those of the kernel's
//! verbs devices are.
//!
//! It is the read end of a pipe. An eventfd is always ready for writing. An epoll descriptor that holds an eventfd is
//! not, but the kernel refuses EPOLLEXCLUSIVE for epoll descriptors, and lets programs nest them five deep only. A
//! timerfd becomes readable a moment after the call that asks for it, by an interrupt.

use super::engine_fd::out_of_the_way;
use super::{check, close, close_if, identity, opening};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};

/// See the module's description. One thread at a time calls `raise` and `lower`.
#[derive(Debug)]
pub struct Readiness {
    /// The program's end. Its flags are the program's affair.
    program: RawFd,
    /// Our end: the pipe once more, for reading and writing. It never blocks, whatever the flags of the program's end,
    /// and as it is a reader too, a write raises no SIGPIPE when the program has closed its end.
    own: AtomicI32,
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
            Ok(Self { program, own: AtomicI32::new(own), identity: identity(own).unwrap_or(0) })
        })
    }

    /// The program's descriptor.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.program
    }

    /// Makes the descriptor readable. Each call is news to an edge-triggered epoll.
    pub fn raise(&self) {
        let Some(own) = self.own() else { return };
        // A full pipe has to be emptied: only a byte that is written is news.
        if !write_byte(own) {
            read_all(own);
            write_byte(own);
        }
    }

    /// Makes the descriptor unreadable.
    pub fn lower(&self) {
        if let Some(own) = self.own() {
            read_all(own);
        }
    }

    /// Closes both descriptors, and wakes whoever sleeps on the program's.
    pub fn close(self) {
        close_if(self.own.into_inner(), self.identity);
        close_if(self.program, self.identity);
    }

    /// Our end. A program that closes descriptors which aren't its own may have closed it, and opened another file at
    /// that number since; where it has left its own end open, the pipe is opened again.
    fn own(&self) -> Option<RawFd> {
        let own = self.own.load(Ordering::Relaxed);
        if identity(own) == Some(self.identity) {
            return Some(own);
        }
        if identity(self.program) != Some(self.identity) {
            return None;
        }
        let own = opening(|| reopen(self.program)).ok()?;
        self.own.store(own, Ordering::Relaxed);
        Some(own)
    }
}

fn write_byte(own: RawFd) -> bool {
    // SAFETY: one readable byte; a raw system call is no cancellation point.
    unsafe { libc::syscall(libc::SYS_write, own, [0_u8].as_ptr(), 1) == 1 }
}

fn read_all(own: RawFd) {
    let mut bytes = [0_u8; 64];
    // SAFETY: `bytes` is writable for its length; a raw system call is no cancellation point.
    while unsafe { libc::syscall(libc::SYS_read, own, bytes.as_mut_ptr(), bytes.len()) } == 64 {}
}

/// The pipe of `fd` once more, for both directions, without blocking, at a number out of the program's way.
fn reopen(fd: RawFd) -> io::Result<RawFd> {
    let name = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).expect("no NUL in a number");
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated name; no mode is needed without O_CREAT.
    let own = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags) };
    check(own).map(|own| out_of_the_way(own as RawFd))
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
    fn an_end_that_the_program_has_closed_is_opened_again_and_its_file_there_left_alone() {
        let readiness = Readiness::new().unwrap();
        let file = super::super::memfd(c"of the program", 0).unwrap();
        let taken = readiness.own.load(Ordering::Relaxed);
        // SAFETY: no pointer; the number is that of our own descriptor.
        unsafe { libc::syscall(libc::SYS_dup3, file.raw(), taken, libc::O_CLOEXEC) };
        readiness.raise();
        assert!(is_ready(readiness.fd(), libc::POLLIN));
        readiness.lower();
        assert!(!is_ready(readiness.fd(), libc::POLLIN));
        // Without the program's end there is nobody to tell.
        let program = readiness.fd();
        close(readiness.own.load(Ordering::Relaxed));
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_dup3, file.raw(), program, libc::O_CLOEXEC) };
        readiness.raise();
        readiness.lower();
        readiness.close();
        for number in [taken, program] {
            assert_eq!(super::super::file_size(number).unwrap(), 0, "the program's is open and empty");
            close(number);
        }
    }
}
