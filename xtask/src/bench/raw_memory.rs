//! What one or two processes of one host can do without any library: a copy, the kernel's copy from one into the other, a cache
//! line that both poll, and eventfds by which they wake each other.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{hint, process, ptr};

/// Silence after which either side gives up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Round trips between two looks at the clock, which would cost more than one of them.
const BATCH: u64 = 100;

/// A word with its cache line, and the line beside it, which processors fetch as well.
#[repr(C, align(128))]
struct Line(AtomicU64);

/// What both processes see.
struct Shared {
    ping: &'static Line,
    pong: &'static Line,
}

impl Shared {
    fn new() -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, of at least the size of two lines, aligned to a page and zeroed.
        let base = unsafe { libc::mmap(ptr::null_mut(), 2 * size_of::<Line>(), protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let line = base.cast::<Line>();
        // SAFETY: both lines lie in the mapping, which is never unmapped; zero is a valid `Line`.
        Ok(unsafe { Self { ping: &*line, pong: &*line.add(1) } })
    }
}

/// Polls until a word has a value.
fn wait_for(line: &Line, value: u64) -> io::Result<()> {
    let mut start = None;
    loop {
        for _ in 0..1 << 16 {
            if line.0.load(Ordering::Acquire) == value {
                return Ok(());
            }
            hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Starts a process that does `work`; it dies with this one.
fn fork(work: impl FnOnce() -> io::Result<()>) -> io::Result<libc::pid_t> {
    // SAFETY: this process has one thread, so its child may do everything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: PR_SET_PDEATHSIG takes one integer.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            process::exit(i32::from(work().is_err()))
        }
        child => Ok(child),
    }
}

/// Copies `size` bytes at a time with process_vm_writev into a process that has touched its pages; prints `copied BYTES
/// bytes in SECONDS seconds`.
///
/// # Errors
/// A system call fails.
pub fn copy(size: usize, seconds: u64) -> io::Result<()> {
    let shared = Shared::new()?;
    let mut buffer = vec![0x5a_u8; size];
    let own: &mut [u8] = &mut buffer;
    let iov = libc::iovec { iov_base: own.as_mut_ptr().cast(), iov_len: size };
    let child = fork(|| {
        // The pages are shared until they are written to.
        own.fill(0xa5);
        hint::black_box(&*own);
        shared.ping.0.store(1, Ordering::Release);
        loop {
            std::thread::sleep(PATIENCE);
        }
    })?;
    wait_for(shared.ping, 1)?;
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        // SAFETY: `iov` is our own live buffer, and the child's copy of it at the same address.
        let copied = unsafe { libc::process_vm_writev(child, &raw const iov, 1, &raw const iov, 1, 0) };
        if copied != size as isize {
            return Err(io::Error::last_os_error());
        }
        bytes += size;
    }
    println!("copied {bytes} bytes in {} seconds", start.elapsed().as_secs_f64());
    Ok(())
}

/// Copies `size` bytes at a time with memcpy within this process; prints as [`copy`] does.
pub fn memcpy(size: usize, seconds: u64) {
    let (from, mut to) = (vec![0x5a_u8; size], vec![0xa5_u8; size]);
    let times = (1 << 20) / size.max(1) + 1;
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..times {
            hint::black_box(&mut to).copy_from_slice(hint::black_box(&from));
        }
        bytes += times * size;
    }
    println!("copied {bytes} bytes in {} seconds", start.elapsed().as_secs_f64());
}

/// Passes a word to and fro between two polling processes; prints `median MICROSECONDS usec` of half a round trip.
///
/// # Errors
/// A system call fails, or an answer doesn't come within ten seconds.
pub fn ping_pong(iterations: u64) -> io::Result<()> {
    let shared = Shared::new()?;
    let batches = iterations.div_ceil(BATCH);
    fork(|| {
        for turn in 1..=batches * BATCH {
            wait_for(shared.ping, turn)?;
            shared.pong.0.store(turn, Ordering::Release);
        }
        Ok(())
    })?;
    print_median(batches, |turn| {
        shared.ping.0.store(turn, Ordering::Release);
        wait_for(shared.pong, turn)
    })
}

/// Has `round_trip` carried out in batches, with its number, and prints the median of half of one.
fn print_median(batches: u64, mut round_trip: impl FnMut(u64) -> io::Result<()>) -> io::Result<()> {
    let mut times = Vec::new();
    for batch in 0..batches {
        let start = Instant::now();
        for turn in 1..=BATCH {
            round_trip(batch * BATCH + turn)?;
        }
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let round_trip = times[times.len() / 2].as_secs_f64() * 1e6 / BATCH as f64;
    println!("median {} usec", round_trip / 2.0);
    Ok(())
}

/// An eventfd, and an epoll that watches it.
struct Sleeper {
    event: OwnedFd,
    epoll: OwnedFd,
}

impl Sleeper {
    fn new() -> io::Result<Self> {
        // SAFETY: new descriptors, owned here.
        let (event, epoll) = unsafe {
            let descriptors = [libc::eventfd(0, 0), libc::epoll_create1(0)];
            if descriptors.contains(&-1) {
                return Err(io::Error::last_os_error());
            }
            (OwnedFd::from_raw_fd(descriptors[0]), OwnedFd::from_raw_fd(descriptors[1]))
        };
        let mut wanted = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let (watcher, watched) = (epoll.as_raw_fd(), event.as_raw_fd());
        // SAFETY: two descriptors, and a structure that the kernel reads.
        if unsafe { libc::epoll_ctl(watcher, libc::EPOLL_CTL_ADD, watched, &raw mut wanted) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { event, epoll })
    }

    fn wake(&self) -> io::Result<()> {
        let one = 1u64.to_ne_bytes();
        // SAFETY: a descriptor, and a word that is read.
        match unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Sleeps until it is woken.
    fn sleep(&self) -> io::Result<()> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let mut value = [0; size_of::<u64>()];
        // SAFETY: a descriptor, and room for one structure and one word.
        let woken = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), &raw mut event, 1, PATIENCE.as_millis() as i32) == 1
                && libc::read(self.event.as_raw_fd(), value.as_mut_ptr().cast(), value.len()) > 0
        };
        if woken { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

/// Has two processes wake each other by eventfds that each watches with an epoll; prints `median MICROSECONDS usec` of half a
/// round trip.
///
/// # Errors
/// A system call fails, or an answer doesn't come within ten seconds.
pub fn events(iterations: u64) -> io::Result<()> {
    let (ping, pong) = (Sleeper::new()?, Sleeper::new()?);
    let batches = iterations.div_ceil(BATCH);
    fork(|| {
        for _ in 0..batches * BATCH {
            ping.sleep()?;
            pong.wake()?;
        }
        Ok(())
    })?;
    print_median(batches, |_| {
        ping.wake()?;
        pong.sleep()
    })
}
