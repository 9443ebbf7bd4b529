//! The adapter's descriptors: out of the program's way, recognised before a mistake could do harm, and closed in the
//! child of a fork.
//!
//! A program may close every descriptor it finds, ours among them, and then be given our numbers for files of its own.
//! So the adapter's descriptors have high numbers, which the kernel hands out last, and each is known by the file behind
//! it ([`EngineFd::is_intact`]). The copies of the data path use no descriptor at all (`ferroce_access::copy`).

use super::{check, close, pause};
use crate::clock;
use ferroce_types::Instant as Present;
use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Descriptors at or above this can't be entered in the table and are refused with EMFILE.
const MAX_FD: usize = 1 << 16;
/// Where the adapter's descriptors begin if the process may have that many. The kernel's table of descriptors grows by
/// powers of two up to the highest number, and a fork copies it: the table then has 4,096 entries (32 KiB), of which
/// 1,024 are ours, and the numbers that select(2) can take stay the program's.
const BASE: RawFd = 3072;
/// Limits below this leave no room for [`BASE`].
const ROOMY: u64 = 4096;

static ENGINE_FDS: [AtomicU64; MAX_FD / 64] = [const { AtomicU64::new(0) }; MAX_FD / 64];
/// The [`identity`] of each.
static IDENTITIES: [AtomicU64; MAX_FD] = [const { AtomicU64::new(0) }; MAX_FD];
/// Counts forks on the child's side, and losses: an [`EngineFd`] of an earlier generation isn't to be used.
static GENERATION: AtomicU32 = AtomicU32::new(0);

fn bit_of(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let index = usize::try_from(fd).ok().filter(|&i| i < MAX_FD)?;
    Some((&ENGINE_FDS[index / 64], 1 << (index % 64)))
}

/// System calls under way that make descriptors.
static OPENING: AtomicU32 = AtomicU32::new(0);
/// A fork is in progress: threads make no new ones.
static FORKING: AtomicBool = AtomicBool::new(false);
/// How long a fork and threads that open descriptors wait for one another. Opening one waits for nothing, so only a thread that is
/// stopped in the middle takes longer than some system calls.
const PATIENCE: Duration = Duration::from_secs(2);
const ROUND: Duration = Duration::from_micros(50);
/// For how long [`EngineFd::checked_lately`] trusts its last look.
const GOOD_FOR: Duration = Duration::from_micros(500);

thread_local! {
    /// Calls of [`with_forks_held`] that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Counts a thread out, also when it unwinds.
struct Opening;

impl Opening {
    fn begin() -> Self {
        OPENING.fetch_add(1, Ordering::SeqCst);
        DEPTH.set(DEPTH.get() + 1);
        Self
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
        // In a child that forked from within (a signal handler's fork) the count has begun anew: never below zero.
        let _ = OPENING.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
    }
}

/// Whether `done` came true in time.
fn wait_until(done: impl Fn() -> bool) -> bool {
    if done() {
        return true;
    }
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        pause(ROUND);
        if done() {
            return true;
        }
    }
    false
}

/// Runs `f`, which makes descriptors and [adopts](EngineFd::adopt) them and waits for nothing. A fork in the middle of it would
/// give the child descriptors that no table contains, and a UDP socket left open there keeps the port taken: a fork waits for this,
/// and this waits for forks. A fork that finds no thread in the library needn't wait; one from a signal's handler in the middle of
/// a call can't wait until other threads leave the library, whose locks it doesn't know, but it waits for this.
pub fn with_forks_held<R>(f: impl FnOnce() -> R) -> R {
    let mut opening = Opening::begin();
    // A call from within such a function doesn't wait: the fork waits for the outer one.
    while DEPTH.get() == 1 && FORKING.load(Ordering::SeqCst) {
        drop(opening);
        let over = wait_until(|| !FORKING.load(Ordering::SeqCst));
        opening = Opening::begin();
        if !over {
            break;
        }
    }
    let result = f();
    drop(opening);
    result
}

/// For the handler that runs before a fork. True: no other thread is making descriptors any more; false: one took too long. Takes
/// no lock. [`resume_openings`] undoes it in the parent, [`close_all_after_fork`] in the child.
pub fn hold_openings() -> bool {
    FORKING.store(true, Ordering::SeqCst);
    // A signal handler may fork in the middle of this thread's own.
    let own = DEPTH.get();
    wait_until(|| OPENING.load(Ordering::SeqCst) <= own)
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

/// Whether the number is one of the adapter's. Takes no lock.
pub fn is_engine_fd(fd: RawFd) -> bool {
    bit_of(fd).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
}

/// A number that distinguishes the file behind a descriptor from others, as long as that file is open; `None` where there is none.
/// Files of the kernel's anonymous inode (epoll, eventfd, timerfd) differ from everything else, but not from one another.
#[must_use]
pub fn identity(fd: RawFd) -> Option<u64> {
    let stat = stat_of(fd).ok()?;
    Some(stat.st_ino ^ stat.st_dev.rotate_left(40) ^ u64::from(stat.st_mode & libc::S_IFMT).rotate_left(20))
}

/// Device and inode of the file behind a descriptor.
///
/// # Errors
/// That of `fstat(2)`.
pub fn device_and_inode(fd: RawFd) -> io::Result<(u64, u64)> {
    stat_of(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

/// The kind of the file behind a descriptor: one of the `S_IF` constants.
///
/// # Errors
/// That of `fstat(2)`.
pub fn file_kind(fd: RawFd) -> io::Result<libc::mode_t> {
    stat_of(fd).map(|stat| stat.st_mode & libc::S_IFMT)
}

pub(super) fn stat_of(fd: RawFd) -> io::Result<libc::stat> {
    // SAFETY: all-zero bytes are a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes a stat into `stat`.
    check(unsafe { libc::syscall(libc::SYS_fstat, fd, &raw mut stat) })?;
    Ok(stat)
}

/// Closes the number if the file of this identity is behind it still.
pub fn close_if(fd: RawFd, is: u64) {
    if identity(fd) == Some(is) {
        close(fd);
    }
}

/// One of the adapter's descriptors that no longer refers to the adapter's file, if there is one among the next `count`: the
/// program has closed it, and perhaps opened something else. Each call goes on where the last one has stopped.
pub fn find_lost(count: usize) -> Option<RawFd> {
    static NEXT: AtomicI32 = AtomicI32::new(BASE);
    for _ in 0..count {
        let from = NEXT.load(Ordering::Relaxed);
        let fd = next_engine_fd(from + 1).or_else(|| next_engine_fd(0))?;
        NEXT.store(fd, Ordering::Relaxed);
        if is_lost(fd) {
            return Some(fd);
        }
    }
    None
}

/// The lowest of the adapter's descriptors from `from` on.
fn next_engine_fd(from: RawFd) -> Option<RawFd> {
    let from = usize::try_from(from).ok().filter(|&from| from < MAX_FD)?;
    let mut mask = !0 << (from % 64);
    for (index, word) in ENGINE_FDS.iter().enumerate().skip(from / 64) {
        let bits = word.load(Ordering::Acquire) & mask;
        if bits != 0 {
            return Some((index * 64) as RawFd + bits.trailing_zeros() as RawFd);
        }
        mask = !0;
    }
    None
}

fn is_lost(fd: RawFd) -> bool {
    // Meanwhile its owner may have closed it and another owner have taken the number, which is correct: only a descriptor that
    // stays wrong is lost.
    (0..4).all(|round| {
        if round > 0 {
            pause(ROUND);
        }
        let before = IDENTITIES[fd as usize].load(Ordering::Acquire);
        is_engine_fd(fd) && identity(fd) != Some(before) && is_engine_fd(fd)
    })
}

/// No descriptor made before this call is used any more: not one of them is read, written or closed.
pub fn abandon_all() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Closes every descriptor that the parent's adapter had open and makes all [`EngineFd`]s of before the fork inert.
/// For the atfork child handler and nothing else; async-signal-safe. The parent keeps its own.
pub fn close_all_after_fork() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
    for_each_engine_fd(&mut |fd| close_if(fd, IDENTITIES[fd as usize].load(Ordering::Acquire)));
    for word in &ENGINE_FDS {
        word.store(0, Ordering::Release);
    }
    // Threads that were opening descriptors in the parent don't exist here.
    OPENING.store(0, Ordering::SeqCst);
    DEPTH.set(0);
    FORKING.store(false, Ordering::SeqCst);
}

/// An owned descriptor of the adapter: close-on-exec, with a high number, entered in the fork table, closed on drop.
///
/// In a child of `fork`, and once descriptors have been [lost](abandon_all), its [`raw`](Self::raw) is -1 (so that calls
/// fail with EBADF) and dropping it does nothing.
#[derive(Debug)]
pub struct EngineFd {
    fd: RawFd,
    generation: u32,
    identity: u64,
    /// When [`Self::checked_lately`] last found the file intact.
    looked: AtomicU64,
}

impl EngineFd {
    /// Takes ownership of `fd`, which has no other owner, and gives it a high number.
    ///
    /// # Errors
    /// EMFILE for a number beyond the fork table (65,536); `fd` is closed then. EBADF for a number that isn't open.
    pub fn adopt(fd: RawFd) -> io::Result<Self> {
        let Some(identity) = identity(fd) else { return Err(io::Error::from_raw_os_error(libc::EBADF)) };
        let fd = out_of_the_way(fd);
        let Some((word, bit)) = bit_of(fd) else {
            close(fd);
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        };
        IDENTITIES[fd as usize].store(identity, Ordering::Release);
        word.fetch_or(bit, Ordering::AcqRel);
        let looked = AtomicU64::new(clock::now().0);
        Ok(Self { fd, generation: GENERATION.load(Ordering::Acquire), identity, looked })
    }

    /// The number, or -1 where it isn't to be used any more.
    #[must_use]
    #[inline]
    pub fn raw(&self) -> RawFd {
        if self.generation == GENERATION.load(Ordering::Relaxed) { self.fd } else { -1 }
    }

    /// As [`raw`](Self::raw), and -1 where the adapter's file isn't behind the number: for handing the file to others.
    /// A system call.
    #[must_use]
    pub fn checked(&self) -> RawFd {
        if self.is_intact() { self.fd } else { -1 }
    }

    /// As [`checked`](Self::checked), for calls that come often: the last look is good for half a millisecond, and is repeated
    /// after that. `now` is the present, at most half a millisecond ago, which spares a look at the clock.
    #[must_use]
    #[inline]
    pub fn checked_lately(&self, now: Present) -> RawFd {
        if now.since(Present(self.looked.load(Ordering::Relaxed))) < GOOD_FOR {
            return self.raw();
        }
        self.look_again(now)
    }

    #[cold]
    fn look_again(&self, now: Present) -> RawFd {
        let fd = self.checked();
        if fd >= 0 {
            self.looked.store(now.0, Ordering::Relaxed);
        }
        fd
    }

    /// Takes note of a [`super::periodic_timer`]'s expiration: it is readable again after the next one.
    pub fn end_period(&self) {
        // Nothing is read from a file of the program's that has the number now.
        let _ = super::read(self.checked(), &mut [0; 8]);
    }

    /// The adapter's file is behind the number still. A system call.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        identity(self.raw()) == Some(self.identity)
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
        close_if(self.fd, self.identity);
    }
}

/// How many descriptors this process may have (`RLIMIT_NOFILE`).
#[must_use]
pub fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable. The call fails for no other reason.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

/// Moves a descriptor to a high number if there is one to be had.
pub fn out_of_the_way(fd: RawFd) -> RawFd {
    if fd >= BASE {
        return fd;
    }
    let limit = descriptor_limit();
    let bases = if limit >= ROOMY {
        [BASE; 2]
    } else {
        // The upper quarter, or the upper half where that is full.
        [limit - limit / 4, limit / 2].map(|base| base as RawFd)
    };
    for base in bases {
        if fd >= base {
            return fd;
        }
        // SAFETY: takes no pointer.
        if let Ok(high) = check(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, base) }) {
            close(fd);
            return high as RawFd;
        }
    }
    fd
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
    fn another_file_behind_the_number_is_found_within_a_millisecond() {
        let fd = eventfd(0, libc::EFD_NONBLOCK).unwrap();
        let (raw, other) = (fd.raw(), std::fs::File::open("/proc/self/stat").unwrap());
        assert_eq!(fd.checked_lately(clock::now()), raw);
        // SAFETY: the program's file takes the number.
        assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&other), raw) }, raw);
        pause(Duration::from_millis(1));
        assert_eq!(fd.checked_lately(clock::now()), -1);
        assert_eq!(fd.checked_lately(clock::now()), -1, "not only once");
        drop(fd);
        // The number is the program's, and is closed by the program alone.
        assert_eq!(identity(raw), identity(std::os::fd::AsRawFd::as_raw_fd(&other)));
        close(raw);
    }

    #[test]
    fn a_fork_waits_for_descriptors_being_made_and_they_for_the_fork() {
        let (begun, may_end) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(|| {
                with_forks_held(|| {
                    begun.store(true, Ordering::SeqCst);
                    pause(Duration::from_millis(1));
                    may_end.store(true, Ordering::SeqCst);
                });
            });
            while !begun.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            let in_time = hold_openings();
            // Under heavy load the time may not have been enough for the other: then nothing was promised.
            assert!(!in_time || may_end.load(Ordering::SeqCst));
            resume_openings();
        });
        assert_eq!(with_forks_held(|| 7), 7);
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
