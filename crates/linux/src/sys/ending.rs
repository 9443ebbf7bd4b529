//! Whether the program has ended thread by thread, and only threads of ours are left of the process.
//!
//! A process ends with its last thread as by `exit(0)` (pthread_exit(3)), and threads of ours would prevent that. A thread that has
//! been in the library reports its end; only from then on is the list of threads read. In here also: what is done when a process
//! ends by exit(3).

use super::{check, fd_of, read_file};
use std::ffi::{CString, c_int, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The most threads of ours that can be distinguished from the program's at a time.
const MAX_OURS: usize = 16;
/// How often to look once the main thread ends.
const OFTEN: Duration = Duration::from_millis(100);
/// How often to look when it isn't known whether the main thread ends.
const SELDOM: Duration = Duration::from_secs(1);
/// Of a set of signals, as the kernel has it.
const SET: usize = size_of::<u64>();

/// The main thread hasn't been in the library, and neither has a thread that has ended.
const UNKNOWN: u8 = 0;
/// The main thread will report its end.
const WILL_TELL: u8 = 1;
/// A thread has ended, and the main thread, which hasn't been in the library, may have.
const PERHAPS: u8 = 2;
/// The main thread ends.
const ENDS: u8 = 3;

static MAIN: AtomicU8 = AtomicU8::new(UNKNOWN);
/// The signals that were blocked in the thread that reported last.
static BLOCKED: AtomicU64 = AtomicU64::new(0);
/// A `fn()`, or null.
static TOLD: AtomicPtr<()> = AtomicPtr::new(null_mut());
/// The numbers of our threads; 0: free entry. Without a lock: the child of a fork could find it held.
static OURS: [AtomicI32; MAX_OURS] = [const { AtomicI32::new(0) }; MAX_OURS];
/// Where the vector of thread-local storage begins that the C library has allocated for each of them. Nothing reads it but memory
/// checkers: the C library keeps the address of the second entry, and a block to whose beginning no pointer leads is "possibly lost" to
/// valgrind, which would report each of our threads that is alive when the process exits.
#[used]
static VECTORS: [AtomicUsize; MAX_OURS] = [const { AtomicUsize::new(0) }; MAX_OURS];

unsafe extern "C" {
    fn __cxa_atexit(f: extern "C" fn(*mut c_void), argument: *mut c_void, module: *mut c_void) -> c_int;
}

/// Registers `f`, which is called when the process ends by exit(3), before the functions that were registered earlier.
pub fn at_exit(f: extern "C" fn(*mut c_void)) {
    // SAFETY: the function stays, since the library is never unloaded. Without memory for it, it isn't called.
    unsafe { __cxa_atexit(f, null_mut(), null_mut()) };
}

/// The number of this thread.
#[must_use]
pub fn own_number() -> i32 {
    // SAFETY: takes no pointer and can't fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

fn main_number() -> i32 {
    // SAFETY: takes no pointer and can't fail.
    unsafe { libc::getpid() }
}

/// One of our threads, until it is dropped.
pub(super) struct Ours(Option<&'static AtomicI32>);

impl Ours {
    /// Lists this thread as ours. Without a free entry, it counts as the program's.
    pub(super) fn begin() -> Self {
        let number = own_number();
        let free = |place: &AtomicI32| {
            place.compare_exchange(0, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let place = OURS.iter().position(free);
        if let Some(at) = place {
            VECTORS[at].store(own_vector(), Ordering::Relaxed);
        }
        Self(place.map(|at| &OURS[at]))
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(0, Ordering::Release);
        }
    }
}

/// Where this thread's vector of thread-local storage begins.
fn own_vector() -> usize {
    /// An entry is a pointer, and what is to be freed with it.
    const ENTRY: usize = 2 * size_of::<usize>();
    let second: usize;
    // SAFETY: reads a word of this thread's control block, whose place the ABI of thread-local storage lays down.
    unsafe {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        std::arch::asm!("mov {}, qword ptr fs:[8]", out(reg) second, options(pure, readonly, nostack, preserves_flags));
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        std::arch::asm!(
            "mrs {second}, tpidr_el0",
            "ldr {second}, [{second}]",
            second = out(reg) second,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    #[cfg(miri)]
    {
        second = ENTRY;
    }
    second.wrapping_sub(ENTRY)
}

/// This thread comes into the library for the first time; [`thread_ends`] will be called.
pub fn thread_comes() {
    if own_number() == main_number() {
        for before in [UNKNOWN, PERHAPS] {
            let _ = MAIN.compare_exchange(before, WILL_TELL, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// This thread has been in the library and ends.
pub fn thread_ends() {
    let (how, none) = (libc::SIG_BLOCK, std::ptr::null::<u64>());
    let mut blocked = 0_u64;
    // SAFETY: the kernel writes a set into `blocked` and changes nothing.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, none, &raw mut blocked, SET) };
    if own_number() == main_number() {
        BLOCKED.store(blocked, Ordering::Relaxed);
        MAIN.store(ENDS, Ordering::Release);
    } else if MAIN.load(Ordering::Acquire) != WILL_TELL {
        BLOCKED.store(blocked, Ordering::Relaxed);
        let _ = MAIN.compare_exchange(UNKNOWN, PERHAPS, Ordering::AcqRel, Ordering::Relaxed);
    } else {
        return;
    }
    let told = TOLD.load(Ordering::Acquire);
    if !told.is_null() {
        // SAFETY: what `tell_of_ends` has stored.
        let told: fn() = unsafe { std::mem::transmute(told) };
        told();
    }
}

/// Sets the function to call when a thread ends and [`how_often_to_look`] may have changed. The ending thread calls it: it must
/// take no lock.
pub fn tell_of_ends(told: fn()) {
    TOLD.store(told as *mut (), Ordering::Release);
}

/// In the child of a fork, whose main thread is the one that has forked. `known`: it has been in the library.
pub fn after_fork(known: bool) {
    MAIN.store(if known { WILL_TELL } else { UNKNOWN }, Ordering::Relaxed);
    for place in &OURS {
        place.store(0, Ordering::Relaxed);
    }
}

/// How often to ask whether [`only_our_threads_are_left`]; `None` as long as they can't be.
#[must_use]
pub fn how_often_to_look() -> Option<Duration> {
    match MAIN.load(Ordering::Acquire) {
        ENDS => Some(OFTEN),
        PERHAPS => Some(SELDOM),
        _ => None,
    }
}

/// Whether all threads of the program have ended. Not without `/proc`.
#[must_use]
pub fn only_our_threads_are_left() -> bool {
    threads_but_ours().is_ok_and(|threads| match threads[..] {
        // The first thread stays in the list as long as the process has others.
        [number] => number == main_number() && has_ended(number),
        _ => false,
    })
}

/// Those of the process's threads that aren't in our list.
fn threads_but_ours() -> io::Result<Vec<i32>> {
    const NAME_AT: usize = 19;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let path = c"/proc/self/task".as_ptr();
    // SAFETY: a C string; no mode is needed without O_CREAT.
    let directory = fd_of(|| unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags) })?;
    let mut numbers = Vec::new();
    let mut bytes = [0_u8; 4096];
    loop {
        // SAFETY: `bytes` is writable for its length.
        let length = check(unsafe {
            libc::syscall(libc::SYS_getdents64, directory.raw(), bytes.as_mut_ptr(), bytes.len())
        })?;
        if length == 0 {
            break;
        }
        let mut rest = &bytes[..length];
        // linux_dirent64: inode, offset, length of the entry, type, name.
        while rest.len() > NAME_AT {
            let (entry, next) = rest.split_at(usize::from(u16::from_ne_bytes([rest[16], rest[17]])));
            let name = entry[NAME_AT..].split(|&byte| byte == 0).next().unwrap_or_default();
            numbers.extend(std::str::from_utf8(name).ok().and_then(|name| name.parse::<i32>().ok()));
            rest = next;
        }
    }
    numbers.retain(|&number| OURS.iter().all(|ours| ours.load(Ordering::Acquire) != number));
    Ok(numbers)
}

fn has_ended(number: i32) -> bool {
    let path = CString::new(format!("/proc/self/task/{number}/stat")).expect("no NUL in a number");
    read_file(&path, 4096).is_ok_and(|stat| state(&stat) == Some(b'Z'))
}

/// The state in proc_pid_stat(5), behind the name, which may have any bytes in it.
fn state(stat: &[u8]) -> Option<u8> {
    let end_of_name = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end_of_name + 2).copied()
}

/// Ends the process as its last thread would have: by `exit(0)`, with the signals blocked that the program's thread had
/// blocked. Signals that have come meanwhile come now.
pub fn end_process() -> ! {
    let (how, none) = (libc::SIG_SETMASK, std::ptr::null_mut::<u64>());
    let blocked = BLOCKED.load(Ordering::Relaxed);
    // SAFETY: the kernel reads a set.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const blocked, none, SET) };
    std::process::exit(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_found_behind_any_name() {
        assert_eq!(state(b"12 (a) Z 1 2 3"), Some(b'Z'));
        assert_eq!(state(b"12 (a) Z) S 1 2 3"), Some(b'S'));
        assert_eq!(state(b"12 (a)"), None);
        assert_eq!(state(b""), None);
    }

    #[test]
    fn threads_of_ours_are_left_out_of_the_list_while_they_run() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let ours = Ours::begin();
            tell.send(own_number()).unwrap();
            ended.recv().unwrap();
            drop(ours);
            tell.send(0).unwrap();
            ended.recv().unwrap();
        });
        let number = told.recv().unwrap();
        assert!(!threads_but_ours().unwrap().contains(&number));
        assert!(threads_but_ours().unwrap().contains(&own_number()));
        end.send(()).unwrap();
        told.recv().unwrap();
        assert!(threads_but_ours().unwrap().contains(&number));
        end.send(()).unwrap();
        thread.join().unwrap();
        assert!(!has_ended(main_number()) && !only_our_threads_are_left());
    }
}
