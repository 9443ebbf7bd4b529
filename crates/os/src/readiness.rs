//! A descriptor for programs to poll, which is readable while it is raised and never writable, as those of the kernel's
//! verbs devices are.
//!
//! It is the read end of a pipe. An eventfd is always ready for writing. An epoll descriptor that holds an eventfd is
//! not, but the kernel refuses EPOLLEXCLUSIVE for epoll descriptors, and lets programs nest them five deep only. A
//! timerfd becomes readable a moment after the call that asks for it, by an interrupt.

use crate::sys::{check, close, close_if, identity, out_of_the_way, with_forks_held};
use std::io;
use std::os::fd::RawFd;

/// See the module's description.
#[derive(Debug)]
pub struct Readiness {
    /// The program's end. Its flags are the program's affair.
    program: RawFd,
    pipe: Pipe,
    /// The process that has made the pipe, and how many forks lie before it.
    maker: libc::pid_t,
    generation: u32,
}

/// Our side of a pipe. It never blocks, whatever the flags of the program's end, and as we are a reader too, a write raises no
/// SIGPIPE when the program has closed its end.
#[derive(Debug)]
struct Pipe {
    /// The pipe once more, for reading and writing; for writing only where there is a `reader`.
    own: RawFd,
    /// A duplicate of the program's end, whose flags it shares, where there is no `/proc` by which to open the pipe once more;
    /// otherwise −1.
    reader: RawFd,
    /// Distinguishes the pipe from a file of the program that has taken one of the numbers.
    identity: u64,
}

/// The smallest capacity of a pipe: a user's pipes share 64 MiB by default, and the bytes in here mean nothing.
const SIZE: libc::c_long = 4096;

impl Readiness {
    /// A new one, not raised.
    ///
    /// # Errors
    /// That of `pipe2(2)`, or of `fcntl(2)`.
    pub fn new() -> io::Result<Self> {
        let (program, pipe) = with_forks_held(Pipe::new)?;
        Ok(Self { program, pipe, maker: own_pid(), generation: crate::fork::generation() })
    }

    /// The program's descriptor.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.program
    }

    /// Makes the descriptor readable. Each call is news to an edge-triggered epoll.
    pub fn raise(&mut self) {
        if !self.is_usable() {
            return;
        }
        // A full pipe has to be emptied: only a byte that is written is news.
        if !write_byte(self.pipe.own) {
            self.pipe.read_all();
            write_byte(self.pipe.own);
        }
    }

    /// Makes the descriptor unreadable.
    pub fn lower(&mut self) {
        if self.is_usable() {
            self.pipe.read_all();
        }
    }

    /// Closes the descriptors, and wakes the threads that sleep on the program's.
    pub fn close(self) {
        self.pipe.close();
        close_if(self.program, self.pipe.identity);
    }

    /// Whether the pipe is this process's and whole. A program that closes descriptors which aren't its own may have closed
    /// ours, and opened other files at those numbers since; where it has left its own end open, the pipe is opened again.
    fn is_usable(&mut self) -> bool {
        if self.generation != crate::fork::generation() && !self.part_from_parent() {
            return false;
        }
        if self.pipe.is_intact(self.program) {
            return true;
        }
        if identity(self.program) != Some(self.pipe.identity) {
            return false;
        }
        let Ok(own) = with_forks_held(|| reopen(self.program)) else { return false };
        self.pipe.close();
        self.pipe = Pipe { own, reader: -1, identity: self.pipe.identity };
        true
    }

    /// In the child of a fork: a pipe of its own behind the program's number, since what is read from and written to the other
    /// one the parent's program sees. A daemon, whose parent has gone, keeps its pipe, and with it what epoll descriptors know
    /// of it. False when there is none.
    fn part_from_parent(&mut self) -> bool {
        if crate::sys::process_exists(self.maker) {
            if identity(self.program) != Some(self.pipe.identity) {
                return false;
            }
            let Ok(pipe) = with_forks_held(|| Pipe::behind(self.program)) else { return false };
            std::mem::replace(&mut self.pipe, pipe).close();
        }
        self.maker = own_pid();
        self.generation = crate::fork::generation();
        true
    }
}

fn own_pid() -> libc::pid_t {
    // SAFETY: takes nothing.
    unsafe { libc::getpid() }
}

impl Pipe {
    /// The program's end and ours. To be called in [`with_forks_held`].
    fn new() -> io::Result<(RawFd, Self)> {
        let mut ends = [-1_i32; 2];
        // SAFETY: room for two descriptors.
        check(unsafe { libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
        let [program, write] = ends;
        let pipe = match reopen(write) {
            Ok(own) => {
                close(write);
                Self { own, reader: -1, identity: identity(own).unwrap_or(0) }
            }
            Err(_) => Self::of_ends(ends).inspect_err(|_| ends.into_iter().for_each(close))?,
        };
        // SAFETY: no pointer. Where the kernel refuses it, the pipe keeps its size.
        unsafe { libc::syscall(libc::SYS_fcntl, pipe.own, libc::F_SETPIPE_SZ, SIZE) };
        Ok((program, pipe))
    }

    /// For where the pipe can't be opened once more: its write end, without blocking, and a duplicate of its read end.
    fn of_ends([read, write]: [RawFd; 2]) -> io::Result<Self> {
        let flags = libc::O_WRONLY | libc::O_NONBLOCK;
        // SAFETY: no pointer.
        check(unsafe { libc::syscall(libc::SYS_fcntl, write, libc::F_SETFL, flags) })?;
        // SAFETY: no pointer.
        let reader = check(unsafe { libc::syscall(libc::SYS_fcntl, read, libc::F_DUPFD_CLOEXEC, 0) })?;
        let [own, reader] = [write, reader as RawFd].map(out_of_the_way);
        Ok(Self { own, reader, identity: identity(own).unwrap_or(0) })
    }

    /// A new pipe behind a number of the program's, with the flags that the program has given it.
    fn behind(program: RawFd) -> io::Result<Self> {
        // SAFETY: no pointer.
        let flags =
            |command: libc::c_int| check(unsafe { libc::syscall(libc::SYS_fcntl, program, command, 0) });
        let (of_number, of_file) = (flags(libc::F_GETFD)?, flags(libc::F_GETFL)?);
        let (read, pipe) = Self::new()?;
        let cloexec = if of_number as i32 & libc::FD_CLOEXEC == 0 { 0 } else { libc::O_CLOEXEC };
        // SAFETY: no pointer; the number is that of our own descriptor.
        let moved = check(unsafe { libc::syscall(libc::SYS_fcntl, read, libc::F_SETFL, of_file) })
            // SAFETY: no pointer; behind `program` is our own file, of which the parent has a descriptor of its own.
            .and_then(|_| check(unsafe { libc::syscall(libc::SYS_dup3, read, program, cloexec) }));
        close(read);
        match moved {
            Ok(_) => Ok(pipe),
            Err(error) => {
                pipe.close();
                Err(error)
            }
        }
    }

    /// Whether our descriptors are still the pipe's, and the pipe has a reader.
    fn is_intact(&self, program: RawFd) -> bool {
        let is_ours = |fd| identity(fd) == Some(self.identity);
        is_ours(self.own) && (self.reader < 0 || is_ours(self.reader) || is_ours(program))
    }

    fn read_all(&self) {
        if self.reader < 0 {
            read(self.own, usize::MAX);
        } else if identity(self.reader) == Some(self.identity) {
            // That end may block: no more is read than is there.
            let mut count: libc::c_int = 0;
            // SAFETY: the kernel writes a number into `count`.
            if check(unsafe { libc::syscall(libc::SYS_ioctl, self.reader, libc::FIONREAD, &raw mut count) })
                .is_ok()
            {
                read(self.reader, count as usize);
            }
        }
    }

    fn close(&self) {
        close_if(self.own, self.identity);
        close_if(self.reader, self.identity);
    }
}

fn write_byte(own: RawFd) -> bool {
    // SAFETY: one readable byte; a raw system call isn't a cancellation point.
    unsafe { libc::syscall(libc::SYS_write, own, [0_u8].as_ptr(), 1) == 1 }
}

/// Reads `count` bytes, or as many as there are.
fn read(fd: RawFd, mut count: usize) {
    let mut bytes = [0_u8; 64];
    while count > 0 {
        let length = count.min(bytes.len());
        // SAFETY: `bytes` is writable for `length`; a raw system call isn't a cancellation point.
        let got =
            check(unsafe { libc::syscall(libc::SYS_read, fd, bytes.as_mut_ptr(), length) }).unwrap_or(0);
        if got < bytes.len() {
            return;
        }
        count -= got;
    }
}

/// The pipe of `fd` once more, for both directions, without blocking, at a number out of the program's way.
fn reopen(fd: RawFd) -> io::Result<RawFd> {
    let name = std::ffi::CString::new(format!("/proc/thread-self/fd/{fd}")).expect("no NUL in a number");
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated name; no mode is needed without O_CREAT.
    let own = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags) };
    check(own).map(|own| out_of_the_way(own as RawFd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::wait_for;
    use std::time::Duration;

    fn is_ready(fd: RawFd, events: libc::c_short) -> bool {
        wait_for(fd, events, Duration::ZERO)
    }

    #[test]
    fn readable_while_raised_and_never_writable() {
        check_readiness(Readiness::new().unwrap());
    }

    #[test]
    fn readable_while_raised_and_never_writable_without_proc() {
        let mut readiness = Readiness::new().unwrap();
        readiness.pipe.close();
        let mut ends = [-1_i32; 2];
        // SAFETY: room for two descriptors.
        check(unsafe { libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) }).unwrap();
        close(readiness.program);
        readiness.program = ends[0];
        readiness.pipe = Pipe::of_ends(ends).unwrap();
        check_readiness(readiness);
    }

    fn check_readiness(mut readiness: Readiness) {
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
        let mut readiness = Readiness::new().unwrap();
        let file = crate::sys::memfd(c"of the program", 0).unwrap();
        let taken = readiness.pipe.own;
        // SAFETY: no pointer; the number is that of our own descriptor.
        unsafe { libc::syscall(libc::SYS_dup3, file.raw(), taken, libc::O_CLOEXEC) };
        readiness.raise();
        assert!(is_ready(readiness.fd(), libc::POLLIN));
        readiness.lower();
        assert!(!is_ready(readiness.fd(), libc::POLLIN));
        // Without the program's end, raising has no effect.
        let program = readiness.fd();
        close(readiness.pipe.own);
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_dup3, file.raw(), program, libc::O_CLOEXEC) };
        readiness.raise();
        readiness.lower();
        readiness.close();
        for number in [taken, program] {
            assert_eq!(crate::sys::file_size(number).unwrap(), 0, "the program's is open and empty");
            close(number);
        }
    }
}
