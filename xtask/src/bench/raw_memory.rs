//! What one or two processes of one host can do without any library: a copy, the kernel's copy from one into the other, a copy
//! through a ring, a cache line that both poll, and eventfds by which they wake each other.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{hint, process, ptr};

/// Silence after which either side gives up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Round trips between two looks at the clock, which would cost more than one of them.
const BATCH: u64 = 100;
/// Bytes that a pipelined copy hands over at a time, and how many of these its ring contains.
const SLOT: usize = 16 << 10;
const SLOTS: usize = 16;

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
        let line = shared_pages(2 * size_of::<Line>())?.cast::<Line>();
        // SAFETY: both lines lie in the mapping, which is aligned to a page and never unmapped; zero is a valid `Line`.
        Ok(unsafe { Self { ping: &*line, pong: &*line.add(1) } })
    }
}

/// Maps zeroed memory that this process's children share.
fn shared_pages(size: usize) -> io::Result<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    match unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, -1, 0) } {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        base => Ok(base.cast()),
    }
}

/// Polls until a word has a value.
fn wait_for(line: &Line, value: u64) -> io::Result<()> {
    wait_until(line, |found| found == value).map(|_| ())
}

/// Polls until a word has a value that will do, and returns it.
fn wait_until(line: &Line, will_do: impl Fn(u64) -> bool) -> io::Result<u64> {
    let mut start = None;
    loop {
        for _ in 0..1 << 16 {
            let value = line.0.load(Ordering::Acquire);
            if will_do(value) {
                return Ok(value);
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
        pin(1)?;
        // The pages are shared until they are written to.
        own.fill(0xa5);
        hint::black_box(&*own);
        shared.ping.0.store(1, Ordering::Release);
        loop {
            std::thread::sleep(PATIENCE);
        }
    })?;
    wait_for(shared.ping, 1)?;
    pin(0)?;
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

/// Copies `size` bytes at a time into a ring in shared memory, from which another process copies them; prints as [`copy`] does.
///
/// # Errors
/// A system call fails, or the other process doesn't read for ten seconds.
pub fn pipeline(size: usize, seconds: u64) -> io::Result<()> {
    /// The first word of a message that isn't copied: the end.
    const END: u64 = u64::MAX;
    let shared = Shared::new()?;
    let ring = shared_pages(SLOTS * SLOT)?;
    let mut from = vec![0x5a_u8; size];
    let slot = |number: u64| ring.wrapping_add(number as usize % SLOTS * SLOT);
    fork(|| {
        pin(1)?;
        let (mut to, mut at, mut read) = (vec![0xa5_u8; size], 0, 0);
        loop {
            let written = wait_until(shared.ping, |written| written != read)?;
            if written == END {
                return Ok(());
            }
            while read < written {
                let length = SLOT.min(size - at);
                // SAFETY: the slot is in the ring, and the writer leaves it alone until `pong` has passed its number.
                unsafe { ptr::copy_nonoverlapping(slot(read), to[at..].as_mut_ptr(), length) };
                hint::black_box(&mut to);
                at = (at + length) % size;
                read += 1;
                shared.pong.0.store(read, Ordering::Release);
            }
        }
    })?;
    pin(0)?;
    let (start, mut bytes, mut written) = (Instant::now(), 0, 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        for at in (0..size).step_by(SLOT) {
            wait_until(shared.pong, |read| written - read < SLOTS as u64)?;
            let piece = &hint::black_box(&mut from)[at..size.min(at + SLOT)];
            // SAFETY: the slot is in the ring, and the reader has read what it contained.
            unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), slot(written), piece.len()) };
            written += 1;
            shared.ping.0.store(written, Ordering::Release);
        }
        bytes += size;
    }
    wait_until(shared.pong, |read| read == written)?;
    println!("copied {bytes} bytes in {} seconds", start.elapsed().as_secs_f64());
    shared.ping.0.store(END, Ordering::Release);
    Ok(())
}

/// Has this process run on one core only.
fn pin(core: usize) -> io::Result<()> {
    // SAFETY: zero is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `core` is below the set's size.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: a set and its size.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Passes a word to and fro between two polling processes, each on a core of its own; prints `median MICROSECONDS usec` of half a round trip.
///
/// # Errors
/// A system call fails, or an answer doesn't come within ten seconds.
pub fn ping_pong(iterations: u64) -> io::Result<()> {
    let shared = Shared::new()?;
    let batches = iterations.div_ceil(BATCH);
    fork(|| {
        pin(1)?;
        for turn in 1..=batches * BATCH {
            wait_for(shared.ping, turn)?;
            shared.pong.0.store(turn, Ordering::Release);
        }
        Ok(())
    })?;
    pin(0)?;
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
