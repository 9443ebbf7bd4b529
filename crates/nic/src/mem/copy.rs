//! Copies to and from the program's memory that fail instead of faulting.
//!
//! The program may have unmapped, protected or truncated what it registered. The kernel does these copies
//! (`process_vm_readv` on the own process), so that a bad page is an error here and never a signal. The program's
//! memory is the local side wherever that works: the kernel then copies device mappings too. Bytes that lie in the
//! [`arena`] take a shorter way.
//! Where `process_vm_readv` is refused (a seccomp profile), the bytes take the way through a memfd.

use super::arena;
use crate::sync::Mutex;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// The program's memory isn't there (any more), or not with the rights the copy needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault;

/// Up to this many bytes `pwrite` beats `process_vm_readv`.
const SMALL: usize = 16 << 10;

static PID: AtomicI32 = AtomicI32::new(0);
static REFUSED: AtomicBool = AtomicBool::new(false);

fn pid() -> i32 {
    match PID.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: getpid has no preconditions.
            let pid = unsafe { libc::getpid() };
            PID.store(pid, Ordering::Relaxed);
            pid
        }
        pid => pid,
    }
}

/// Forgets the process ID, in the child of a fork.
pub(crate) fn after_fork() {
    PID.store(0, Ordering::Relaxed);
}

/// Copies from the program's memory at `addr`.
///
/// # Errors
/// [`Fault`] when a byte can't be read; `dst` may then be partly written.
pub fn read(addr: u64, dst: &mut [u8]) -> Result<(), Fault> {
    if dst.is_empty() {
        return Ok(());
    }
    if dst.len() <= SMALL
        && let Some((fd, at)) = arena::locate(dst)
    {
        // SAFETY: the file's bytes at `at` are `dst`, exclusively ours; the kernel checks the program's side.
        let done = unsafe { libc::syscall(libc::SYS_pwrite64, fd, addr, dst.len(), at) };
        if done == dst.len() as libc::c_long {
            return Ok(());
        }
    }
    let ours = libc::iovec { iov_base: dst.as_mut_ptr().cast(), iov_len: dst.len() };
    let theirs = libc::iovec { iov_base: addr as *mut _, iov_len: dst.len() };
    // SAFETY: `dst` is exclusively ours for the call; the kernel checks the other side's range.
    if unsafe { vm_copy(&[ours], &[theirs], false) } || unsafe { vm_copy(&[theirs], &[ours], true) } {
        return Ok(());
    }
    // SAFETY: as above.
    unsafe { through_memfd(theirs, ours) }
}

/// Copies to the program's memory at `addr`.
///
/// # Errors
/// [`Fault`] when a byte can't be written; a part may have been.
pub fn write(addr: u64, src: &[u8]) -> Result<(), Fault> {
    if src.is_empty() {
        return Ok(());
    }
    if let Some((fd, at)) = arena::locate(src) {
        // SAFETY: the file's bytes at `at` are `src`, which is only read; the kernel checks the program's side.
        let done = unsafe { libc::syscall(libc::SYS_pread64, fd, addr, src.len(), at) };
        return if done == src.len() as libc::c_long { Ok(()) } else { Err(Fault) };
    }
    let ours = libc::iovec { iov_base: src.as_ptr().cast_mut().cast(), iov_len: src.len() };
    let theirs = libc::iovec { iov_base: addr as *mut _, iov_len: src.len() };
    // SAFETY: `src` is only read; the kernel checks the other side's range.
    if unsafe { vm_copy(&[theirs], &[ours], false) } {
        return Ok(());
    }
    // SAFETY: as above.
    unsafe { through_memfd(ours, theirs) }
}

/// Copies `len` bytes from the program's memory at `addr` to a file of shared memory, at byte `at`, which is mapped at
/// `mapped`.
///
/// # Errors
/// [`Fault`] when a byte can't be read; a part may have been copied.
pub(crate) fn read_to_file(
    addr: u64,
    file: RawFd,
    at: usize,
    mapped: *mut u8,
    len: usize,
) -> Result<(), Fault> {
    if len > SMALL {
        let ours = libc::iovec { iov_base: mapped.cast(), iov_len: len };
        let theirs = libc::iovec { iov_base: addr as *mut _, iov_len: len };
        // SAFETY: no reference exists to shared memory; the kernel checks the other side's range.
        if unsafe { vm_copy(&[ours], &[theirs], false) } {
            return Ok(());
        }
    }
    // SAFETY: the kernel checks the program's side; nothing of ours is written but the file.
    let done = unsafe { libc::syscall(libc::SYS_pwrite64, file, addr, len, at) };
    if done == len as libc::c_long { Ok(()) } else { Err(Fault) }
}

/// Copies `len` bytes from a file of shared memory, at byte `at`, to the program's memory at `addr`.
///
/// # Errors
/// [`Fault`] when a byte can't be written; a part may have been.
pub(crate) fn write_from_file(addr: u64, file: RawFd, at: usize, len: usize) -> Result<(), Fault> {
    // SAFETY: the kernel checks the program's side, which is registered memory.
    let done = unsafe { libc::syscall(libc::SYS_pread64, file, addr, len, at) };
    if done == len as libc::c_long { Ok(()) } else { Err(Fault) }
}

/// Can the 4-byte aligned word at `addr` be written? The kernel adds 0 to it, atomically.
///
/// # Errors
/// [`Fault`] when it can't.
pub fn probe_writable(addr: u64) -> Result<(), Fault> {
    // FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_LT, -2048): a comparison that wakes next to nobody.
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
    // SAFETY: both arrays are valid for the call; a raw system call is no cancellation point.
    let done = unsafe {
        libc::syscall(call, pid(), local.as_ptr(), local.len(), remote.as_ptr(), remote.len(), 0usize)
    };
    if done < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error();
        if matches!(errno, Some(libc::EPERM | libc::ENOSYS)) && !REFUSED.swap(true, Ordering::Relaxed) {
            tracing::debug!("process_vm_readv is refused here: copies go through a memfd");
        }
    }
    done == want as libc::c_long
}

/// The slow way for where `process_vm_readv` is refused: `pwrite` and `pread` give EFAULT instead of a signal.
///
/// # Safety
/// As [`vm_copy`].
unsafe fn through_memfd(src: libc::iovec, dst: libc::iovec) -> Result<(), Fault> {
    static MEMFD: Mutex<Option<OwnedFd>> = Mutex::new(None);
    const CHUNK: usize = 64 * 1024;
    if !REFUSED.load(Ordering::Relaxed) {
        return Err(Fault);
    }
    let mut memfd = MEMFD.lock();
    let fd = match &*memfd {
        Some(fd) => fd.as_raw_fd(),
        None => {
            // SAFETY: a valid C string; the result is checked.
            let fd = unsafe { libc::memfd_create(c"ferroce-copy".as_ptr(), libc::MFD_CLOEXEC) };
            if fd < 0 {
                return Err(Fault);
            }
            // SAFETY: just made and owned by nobody else.
            memfd.insert(unsafe { OwnedFd::from_raw_fd(fd) }).as_raw_fd()
        }
    };
    let mut done = 0;
    while done < src.iov_len {
        let n = CHUNK.min(src.iov_len - done);
        // SAFETY: the kernel checks both ranges; raw calls are no cancellation points.
        let ok = unsafe {
            libc::syscall(libc::SYS_pwrite64, fd, src.iov_base.cast::<u8>().wrapping_add(done), n, 0)
                == n as i64
                && libc::syscall(libc::SYS_pread64, fd, dst.iov_base.cast::<u8>().wrapping_add(done), n, 0)
                    == n as i64
        };
        if !ok {
            return Err(Fault);
        }
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
        for refused in [false, true] {
            REFUSED.store(refused, Ordering::Relaxed);
            let src: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
            let mut dst = vec![0; src.len()];
            read(src.as_ptr() as u64, &mut dst).unwrap();
            assert_eq!(src, dst);
            let mut dst = vec![0; src.len()];
            write(dst.as_mut_ptr() as u64, &src).unwrap();
            assert_eq!(src, dst);
            let mut staging = arena::Staging::new(100_000);
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
    }
}
