//! The adapter's descriptors, and what a fork does to them.

use super::{close, pause};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Descriptors at or above this can't be entered in the table and are refused with EMFILE.
const MAX_FD: usize = 1 << 16;

static ENGINE_FDS: [AtomicU64; MAX_FD / 64] = [const { AtomicU64::new(0) }; MAX_FD / 64];
/// Counts forks on the child's side: an [`EngineFd`] of an earlier generation is somebody else's.
static GENERATION: AtomicU32 = AtomicU32::new(0);

fn bit_of(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let index = usize::try_from(fd).ok().filter(|&i| i < MAX_FD)?;
    Some((&ENGINE_FDS[index / 64], 1 << (index % 64)))
}

/// System calls under way that make descriptors.
static OPENING: AtomicU32 = AtomicU32::new(0);
/// A fork is under way: no new ones, please.
static FORKING: AtomicBool = AtomicBool::new(false);
/// How often, and how long each time, a fork and those who open descriptors wait for one another: 5 ms in all.
const ROUNDS: u32 = 100;
const ROUND: Duration = Duration::from_micros(50);

/// Runs `f`, which makes descriptors and [adopts](EngineFd::adopt) them and waits for nothing. A fork in the middle of
/// it would give the child descriptors that no table knows, and a UDP socket left open there keeps the port taken:
/// forks wait for this, and this waits for forks, a few milliseconds at most.
pub fn opening<R>(f: impl FnOnce() -> R) -> R {
    let mut rounds = 0;
    OPENING.fetch_add(1, Ordering::SeqCst);
    while FORKING.load(Ordering::SeqCst) && rounds < ROUNDS {
        opened();
        pause(ROUND);
        rounds += 1;
        OPENING.fetch_add(1, Ordering::SeqCst);
    }
    let result = f();
    opened();
    result
}

fn opened() {
    // In a child that forked from within (a signal handler's fork) the count has begun anew: never below zero.
    let _ = OPENING.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
}

/// For the handler that runs before a fork: no descriptor is being made any more when this returns (in five
/// milliseconds at most). Takes no lock. [`resume_openings`] undoes it in the parent, [`close_all_after_fork`] in the child.
pub fn hold_openings() {
    FORKING.store(true, Ordering::SeqCst);
    for _ in 0..ROUNDS {
        if OPENING.load(Ordering::SeqCst) == 0 {
            return;
        }
        pause(ROUND);
    }
}

/// For the parent's handler after a fork.
pub fn resume_openings() {
    FORKING.store(false, Ordering::SeqCst);
}

/// Calls `f` with every descriptor the adapter holds in this process. Takes no lock and allocates nothing: usable in
/// an atfork child handler.
pub fn for_each_engine_fd(f: &mut dyn FnMut(RawFd)) {
    for (index, word) in ENGINE_FDS.iter().enumerate() {
        let mut bits = word.load(Ordering::Acquire);
        while bits != 0 {
            let fd = index * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            f(fd as RawFd);
        }
    }
}

/// Closes every descriptor that the parent's adapter had open and makes all [`EngineFd`]s of before the fork inert.
/// For the atfork child handler and nothing else; async-signal-safe. The parent keeps its own.
pub fn close_all_after_fork() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
    for_each_engine_fd(&mut |fd| close(fd));
    for word in &ENGINE_FDS {
        word.store(0, Ordering::Release);
    }
    // Who was opening something in the parent isn't here.
    OPENING.store(0, Ordering::SeqCst);
    FORKING.store(false, Ordering::SeqCst);
}

/// An owned descriptor of the adapter: close-on-exec, entered in the fork table, closed on drop.
///
/// In a child of `fork` its [`raw`](Self::raw) is -1 (so that calls fail with EBADF) and dropping it does nothing.
#[derive(Debug)]
pub struct EngineFd {
    fd: RawFd,
    generation: u32,
}

impl EngineFd {
    /// Takes ownership of `fd`, which nobody else may close.
    ///
    /// # Errors
    /// EMFILE for a number beyond the fork table (65,536); `fd` is closed then. EBADF for a negative number.
    pub fn adopt(fd: RawFd) -> io::Result<Self> {
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let Some((word, bit)) = bit_of(fd) else {
            close(fd);
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        };
        word.fetch_or(bit, Ordering::AcqRel);
        Ok(Self { fd, generation: GENERATION.load(Ordering::Acquire) })
    }

    /// The number, or -1 in a child of the process that made it.
    #[must_use]
    pub fn raw(&self) -> RawFd {
        if self.generation == GENERATION.load(Ordering::Relaxed) { self.fd } else { -1 }
    }
}

impl Drop for EngineFd {
    fn drop(&mut self) {
        if self.raw() < 0 {
            return;
        }
        // Out of the table first: once closed, the number can become the program's, and a fork would close that.
        if let Some((word, bit)) = bit_of(self.fd) {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
        close(self.fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{eventfd, read, write};

    #[test]
    fn an_engine_fd_is_in_the_fork_table_until_dropped() {
        let fd = eventfd(0, libc::EFD_NONBLOCK).unwrap();
        let raw = fd.raw();
        let listed = || {
            let mut found = false;
            for_each_engine_fd(&mut |f| found |= f == raw);
            found
        };
        assert!(listed());
        drop(fd);
        // Another test's thread may have taken the number since; then it is listed rightly.
        let mut buffer = [0; 8];
        let gone = read(raw, &mut buffer).is_err_and(|e| e.raw_os_error() == Some(libc::EBADF));
        assert!(!gone || !listed());
    }

    #[test]
    fn a_fork_waits_for_descriptors_being_made_and_they_for_the_fork() {
        let (begun, may_end) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(|| {
                opening(|| {
                    begun.store(true, Ordering::SeqCst);
                    pause(Duration::from_millis(1));
                    may_end.store(true, Ordering::SeqCst);
                });
            });
            while !begun.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            hold_openings();
            // Under heavy load five milliseconds may not have been enough for the other: then nothing was promised.
            assert!(may_end.load(Ordering::SeqCst) || OPENING.load(Ordering::SeqCst) > 0);
            resume_openings();
        });
        assert_eq!(opening(|| 7), 7);
    }

    #[test]
    fn a_forked_child_closes_what_the_parent_had_and_drops_nothing_of_its_own() {
        let fd = eventfd(0, libc::EFD_NONBLOCK).unwrap();
        let raw = fd.raw();
        // SAFETY: the child calls async-signal-safe code only and leaves by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            close_all_after_fork();
            let mut buffer = [0; 8];
            let closed = read(raw, &mut buffer).is_err_and(|e| e.raw_os_error() == Some(libc::EBADF));
            let inert = fd.raw() == -1;
            // The number is free again: what takes it now must survive the drop of the parent's object.
            // SAFETY: plain system call.
            let again = unsafe { libc::syscall(libc::SYS_dup3, 2, raw, libc::O_CLOEXEC) } >= 0;
            drop(fd);
            // SAFETY: plain system call.
            let survives = unsafe { libc::syscall(libc::SYS_fcntl, raw, libc::F_GETFD) } >= 0;
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!(closed && inert && again && survives))) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child found something wrong");
        assert_eq!(write(raw, &1_u64.to_ne_bytes()).unwrap(), 8, "the parent's is untouched");
    }
}
