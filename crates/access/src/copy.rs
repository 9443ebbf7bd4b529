//! Copies to and from the program's memory that fail instead of faulting.
//!
//! The program may have unmapped, protected or truncated what it registered. Copies are guarded instructions (`guard`),
//! whose faults are errors. Where the guard doesn't stand, and where such a copy faults, the kernel copies
//! (`process_vm_readv` on the own process): a bad page is an error there too, and never a signal. So the kernel has the last
//! word about memory, also where it may do what an instruction of this thread may not (protection keys, alignment).
//! [`CopyMethod::Kernel`] leaves all copies to the kernel. The program's memory is the local side of its copies wherever that works:
//! the kernel then copies device mappings too.
//! No descriptor takes part: a program may close any, and a copy through its number would then go to or from whatever
//! file the program has opened since. Where `process_vm_readv` is refused (a seccomp profile), the bytes take the way
//! through a pair of sockets, which is looked at before each use; nothing but a socket takes what is sent.

use crate::{Fault, guard};
use ferroce_os::sync::{Mutex, class};
use ferroce_os::{fork, sys};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The environment variable with the [`CopyMethod`] of copies.
pub const VARIABLE: &str = "FERROCE_COPIES";

/// How payloads are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyMethod {
    /// The processor, by guarded instructions, wherever the guard can be had.
    Guarded,
    /// The kernel, always.
    Kernel,
}

/// The value is none of [`VARIABLE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoWay;

impl std::fmt::Display for NoWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the values are guarded and kernel; unset it for guarded")
    }
}

impl FromStr for CopyMethod {
    type Err = NoWay;

    fn from_str(value: &str) -> Result<Self, NoWay> {
        match value {
            "guarded" => Ok(Self::Guarded),
            "kernel" => Ok(Self::Kernel),
            _ => Err(NoWay),
        }
    }
}

/// The way is [`CopyMethod::Kernel`].
static BY_KERNEL: AtomicBool = AtomicBool::new(false);

/// Has all copies of this process go this way; the way is [`CopyMethod::Guarded`] otherwise.
pub fn choose(way: CopyMethod) {
    BY_KERNEL.store(way == CopyMethod::Kernel, Ordering::Relaxed);
}

/// The kernel is to touch memory wherever it can.
#[inline]
#[must_use]
pub fn by_kernel() -> bool {
    BY_KERNEL.load(Ordering::Relaxed)
}

/// Copies by guarded instructions. False when it didn't happen in full: the kernel is to be asked.
///
/// # Safety
/// As [`guard::copy`].
#[inline]
unsafe fn guarded(to: u64, from: u64, len: usize) -> bool {
    // SAFETY: the caller's.
    !by_kernel() && unsafe { guard::copy(to, from, len) }.is_ok()
}

static REFUSED: AtomicBool = AtomicBool::new(false);

/// The process ID, which is asked for once in each process.
fn pid() -> i32 {
    /// The fork generation of a process, and its process ID; no process has the ID 0.
    static PID: AtomicU64 = AtomicU64::new(0);
    let generation = fork::generation();
    let known = PID.load(Ordering::Relaxed);
    if known as u32 != 0 && (known >> 32) as u32 == generation {
        return known as i32;
    }
    // SAFETY: getpid has no preconditions.
    let pid = unsafe { libc::getpid() };
    PID.store(u64::from(generation) << 32 | u64::from(pid.cast_unsigned()), Ordering::Relaxed);
    pid
}

/// Copies from the program's memory at `addr`.
///
/// # Errors
/// [`Fault`] when a byte can't be read; `dst` may then be partly written.
#[inline]
pub fn read(addr: u64, dst: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: `dst` is exclusively ours for the call.
    unsafe { read_to_shared(addr, dst.as_mut_ptr(), dst.len()) }
}

/// Copies to the program's memory at `addr`.
///
/// # Errors
/// [`Fault`] when a byte can't be written; a part may have been.
#[inline]
pub fn write(addr: u64, src: &[u8]) -> Result<(), Fault> {
    // SAFETY: `src` is only read.
    unsafe { write_from_shared(addr, src.as_ptr(), src.len()) }
}

/// Copies `len` bytes from the program's memory at `addr` to memory that other processes share, mapped at `shared`.
///
/// # Errors
/// [`Fault`] when a byte can't be read; a part may have been copied.
///
/// # Safety
/// `shared` is valid for writes of `len` bytes, and no reference to them exists.
#[inline]
pub unsafe fn read_to_shared(addr: u64, shared: *mut u8, len: usize) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    if unsafe { guarded(shared as u64, addr, len) } {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { read_by_kernel(addr, shared, len) }
}

/// Copies `len` bytes from memory that other processes share, mapped at `shared`, to the program's memory at `addr`.
///
/// # Errors
/// [`Fault`] when a byte can't be written; a part may have been.
///
/// # Safety
/// `shared` is valid for reads of `len` bytes.
#[inline]
pub unsafe fn write_from_shared(addr: u64, shared: *const u8, len: usize) -> Result<(), Fault> {
    // SAFETY: the caller's promise; there are no references to the program's memory.
    if unsafe { guarded(addr, shared as u64, len) } {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { write_by_kernel(addr, shared, len) }
}

/// [`read_to_shared`] by the kernel.
///
/// # Safety
/// As that.
#[cold]
unsafe fn read_by_kernel(addr: u64, to: *mut u8, len: usize) -> Result<(), Fault> {
    if len == 0 {
        return Ok(());
    }
    let ours = libc::iovec { iov_base: to.cast(), iov_len: len };
    let theirs = libc::iovec { iov_base: addr as *mut _, iov_len: len };
    // SAFETY: the caller's promise; the kernel checks the other side's range.
    if unsafe { vm_copy(&[ours], &[theirs], false) } || unsafe { vm_copy(&[theirs], &[ours], true) } {
        return Ok(());
    }
    // SAFETY: as above.
    unsafe { through_sockets(theirs, ours) }
}

/// [`write_from_shared`] by the kernel.
///
/// # Safety
/// As that.
#[cold]
unsafe fn write_by_kernel(addr: u64, from: *const u8, len: usize) -> Result<(), Fault> {
    if len == 0 {
        return Ok(());
    }
    let ours = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
    let theirs = libc::iovec { iov_base: addr as *mut _, iov_len: len };
    // SAFETY: the caller's promise; the kernel checks the program's side, which is registered memory.
    if unsafe { vm_copy(&[theirs], &[ours], false) } {
        return Ok(());
    }
    // SAFETY: as above.
    unsafe { through_sockets(ours, theirs) }
}

/// Has the kernel read the byte at `addr`, by a call that changes nothing and takes no lock.
///
/// # Errors
/// [`Fault`] when it can't be read.
pub(crate) fn touch_by_kernel(addr: u64) -> Result<(), Fault> {
    /// The size of the kernel's signal sets, and of the word that is read.
    const SET: usize = size_of::<u64>();
    /// None of SIG_BLOCK, SIG_UNBLOCK and SIG_SETMASK: it is refused when the set has been read.
    const NO_ACTION: i32 = -1;
    let word = addr & !(SET as u64 - 1);
    // SAFETY: the kernel checks the set's address. It changes no mask.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_ACTION, word, 0usize, SET) };
    let errno = std::io::Error::last_os_error().raw_os_error();
    if errno == Some(libc::EINVAL) { Ok(()) } else { Err(Fault) }
}

/// Can the 4-byte aligned word at `addr` be written? The kernel adds 0 to it, atomically.
///
/// # Errors
/// [`Fault`] when it can't.
pub fn probe_writable(addr: u64) -> Result<(), Fault> {
    // FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_LT, -2048): a comparison that is nearly always false, and then wakes no waiter.
    const ADD_NOTHING: u32 = 1 << 28 | 2 << 24 | 0x800;
    let unused = 0u32;
    // SAFETY: the first word is ours; the second is checked by the kernel, which changes no bit of it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_futex,
            &raw const unused,
            libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
            0,
            0usize,
            addr,
            ADD_NOTHING,
        )
    };
    if done < 0 { Err(Fault) } else { Ok(()) }
}

/// One whole copy by the kernel: local ← remote, or local → remote with `outward`. False when it didn't happen in full.
///
/// # Safety
/// What is written to must not be borrowed by anybody else in this process's Rust code.
unsafe fn vm_copy(local: &[libc::iovec], remote: &[libc::iovec], outward: bool) -> bool {
    if REFUSED.load(Ordering::Relaxed) {
        return false;
    }
    let call = if outward { libc::SYS_process_vm_writev } else { libc::SYS_process_vm_readv };
    let want: usize = local.iter().map(|v| v.iov_len).sum();
    // SAFETY: both arrays are valid for the call; a raw system call isn't a cancellation point.
    let copy = |number: i32| unsafe {
        libc::syscall(call, number, local.as_ptr(), local.len(), remote.as_ptr(), remote.len(), 0usize)
    };
    let errno = || std::io::Error::last_os_error().raw_os_error();
    let mut done = copy(pid());
    if done < 0 && errno() == Some(libc::ESRCH) {
        // The main thread has ended, and its number has no memory any more.
        done = copy(sys::own_number());
    }
    if done < 0 {
        let errno = errno();
        if matches!(errno, Some(libc::EPERM | libc::ENOSYS)) && !REFUSED.swap(true, Ordering::Relaxed) {
            tracing::debug!("process_vm_readv is refused here: copies go through sockets");
        }
    }
    done == want as libc::c_long
}

/// The slow way for where `process_vm_readv` is refused: sending gives EFAULT instead of a signal, and so does receiving.
///
/// # Safety
/// As [`vm_copy`].
unsafe fn through_sockets(src: libc::iovec, dst: libc::iovec) -> Result<(), Fault> {
    static PAIR: Mutex<class::CopyPair, Option<[sys::EngineFd; 2]>> = Mutex::new(None);
    const CHUNK: usize = 32 * 1024;
    if !REFUSED.load(Ordering::Relaxed) {
        return Err(Fault);
    }
    let mut pair = PAIR.lock();
    let mut done = 0;
    while done < src.iov_len {
        let n = CHUNK.min(src.iov_len - done);
        // In the child of a fork, and where the program has closed them, new ones are made.
        let [from, to] = match pair.take_if(|pair| pair.iter().all(sys::EngineFd::is_intact)) {
            Some(pair) => pair,
            None => sys::socket_pair(libc::SOCK_DGRAM).map_err(|_| Fault)?,
        };
        let (source, target) =
            (src.iov_base.cast::<u8>().wrapping_add(done), dst.iov_base.cast::<u8>().wrapping_add(done));
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let nobody = std::ptr::null_mut::<libc::sockaddr>();
        // SAFETY: the kernel checks both ranges; raw calls aren't cancellation points.
        let ok = unsafe {
            libc::syscall(libc::SYS_sendto, from.raw(), source, n, flags, nobody, 0usize) == n as i64
                && libc::syscall(libc::SYS_recvfrom, to.raw(), target, n, flags, nobody, nobody) == n as i64
        };
        if !ok {
            // Something may be left in the pair, which is closed.
            return Err(Fault);
        }
        *pair = Some([from, to]);
        done += n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unmapped_page() -> u64 {
        // SAFETY: an anonymous private mapping, unmapped again.
        unsafe {
            let p = libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(p, libc::MAP_FAILED);
            p as u64
        }
    }

    #[test]
    fn copies_arrive_and_bad_pages_are_errors() {
        let ways = [
            (CopyMethod::Guarded, false),
            (CopyMethod::Guarded, true),
            (CopyMethod::Kernel, false),
            (CopyMethod::Kernel, true),
        ];
        for (way, refused) in ways {
            choose(way);
            REFUSED.store(refused, Ordering::Relaxed);
            let src: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
            let mut dst = vec![0; src.len()];
            read(src.as_ptr() as u64, &mut dst).unwrap();
            assert_eq!(src, dst);
            let mut dst = vec![0; src.len()];
            write(dst.as_mut_ptr() as u64, &src).unwrap();
            assert_eq!(src, dst);
            let mut staging = vec![0; 100_000];
            read(src.as_ptr() as u64, &mut staging[..9_000]).unwrap();
            read(src.as_ptr() as u64 + 9_000, &mut staging[9_000..]).unwrap();
            assert_eq!(src[..100_000], staging[..]);
            dst.fill(0);
            write(dst.as_mut_ptr() as u64, &staging[7..]).unwrap();
            assert_eq!(src[7..100_000], dst[..99_993]);
            assert_eq!(read(unmapped_page(), &mut staging[..16]), Err(Fault));
            assert_eq!(write(unmapped_page(), &staging[..16]), Err(Fault));
            let bad = unmapped_page();
            assert_eq!(read(bad, &mut dst[..16]), Err(Fault));
            assert_eq!(write(bad, &src[..16]), Err(Fault));
            assert_eq!(probe_writable(bad), Err(Fault));
            assert_eq!(probe_writable(unmapped_page as fn() -> u64 as usize as u64 & !3), Err(Fault));
            let word = 7u32;
            probe_writable(&raw const word as u64).unwrap();
            assert_eq!(word, 7);
        }
        REFUSED.store(false, Ordering::Relaxed);
        choose(CopyMethod::Guarded);
    }

    #[test]
    fn a_thread_that_blocks_all_signals_copies() {
        std::thread::spawn(|| {
            // SAFETY: a mask of this thread.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
            }
            let (from, mut to) = ([7u8; 100], [0u8; 100]);
            for _ in 0..1000 {
                read(from.as_ptr() as u64, &mut to).unwrap();
                assert_eq!(read(unmapped_page(), &mut to), Err(Fault));
            }
            assert_eq!(from, to);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn ways_are_named() {
        assert_eq!("guarded".parse(), Ok(CopyMethod::Guarded));
        assert_eq!("kernel".parse(), Ok(CopyMethod::Kernel));
        for wrong in ["", "Guarded", "cpu", "kernel "] {
            assert_eq!(wrong.parse::<CopyMethod>(), Err(NoWay));
        }
    }
}
