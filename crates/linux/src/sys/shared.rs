//! System calls about memory and processes that others share.

use super::engine_fd::stat_of;
use super::{EngineFd, KeptFd, check, fd_of, read_file};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

/// A memfd of `len` bytes, close-on-exec, that may be sealed.
///
/// # Errors
/// That of `memfd_create(2)` or `ftruncate(2)`, or EFBIG where the process's limit on file sizes is lower.
pub fn memfd(name: &std::ffi::CStr, len: usize) -> io::Result<EngineFd> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // A file beyond the limit would bring a signal.
    // SAFETY: `limit` is writable.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } != 0 || limit.rlim_cur < len as u64 {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let make = |flags: libc::c_uint| {
        // SAFETY: a C string.
        fd_of(|| unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) })
    };
    // Kernels before 6.3 don't know the flag that keeps it from being executed.
    let fd = make(flags | libc::MFD_NOEXEC_SEAL).or_else(|_| make(flags))?;
    // SAFETY: takes no pointer.
    check(unsafe { libc::syscall(libc::SYS_ftruncate, fd.raw(), len) })?;
    Ok(fd)
}

/// Seals a memfd.
///
/// # Errors
/// That of `fcntl(2)`.
pub fn add_seals(fd: RawFd, seals: i32) -> io::Result<()> {
    // SAFETY: takes no pointer.
    check(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_ADD_SEALS, seals) }).map(drop)
}

/// A duplicate that a fork's child keeps, close-on-exec.
///
/// # Errors
/// That of `fcntl(2)`.
pub fn duplicate(fd: RawFd) -> io::Result<KeptFd> {
    // SAFETY: takes no pointer.
    let fd = check(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0) })?;
    // SAFETY: just made, and without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }.into())
}

/// A duplicate of the adapter's own, close-on-exec.
///
/// # Errors
/// That of `fcntl(2)`.
pub fn duplicate_engine(fd: RawFd) -> io::Result<EngineFd> {
    // SAFETY: takes no pointer.
    fd_of(|| unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0) })
}

/// The seals of a memfd.
///
/// # Errors
/// That of `fcntl(2)`: the descriptor may be anything.
pub fn seals(fd: RawFd) -> io::Result<i32> {
    // SAFETY: takes no pointer.
    check(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GET_SEALS) }).map(|seals| seals as i32)
}

/// Bytes of a file.
///
/// # Errors
/// That of `fstat(2)`.
pub fn file_size(fd: RawFd) -> io::Result<u64> {
    stat_of(fd).map(|stat| stat.st_size as u64)
}

/// Reads the bytes of a file from byte `at` on, as many as there are or `bytes` takes, and returns how many.
///
/// # Errors
/// That of `pread(2)`.
pub fn read_at(fd: RawFd, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        let rest = &mut bytes[read..];
        let offset = (at + read as u64) as libc::off_t;
        // SAFETY: `rest` is writable for its length.
        let n =
            check(unsafe { libc::syscall(libc::SYS_pread64, fd, rest.as_mut_ptr(), rest.len(), offset) })?;
        if n == 0 {
            break;
        }
        read += n as usize;
    }
    Ok(read)
}

/// Bytes of a file whose size `fstat(2)` doesn't report, a dma-buf: the position of its end (`lseek(2)`).
///
/// # Errors
/// That of `lseek(2)`.
pub fn seek_end(fd: RawFd) -> io::Result<u64> {
    // SAFETY: takes no pointer.
    check(unsafe { libc::syscall(libc::SYS_lseek, fd, 0, libc::SEEK_END) }).map(|size| size as u64)
}

/// Maps the first `len` bytes of a file, shared, at an address of the kernel's choice; children of a fork don't get
/// the mapping.
///
/// # Errors
/// That of `mmap(2)`.
pub fn map_shared(fd: RawFd, len: usize, writable: bool) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping replaces none; the length is that of the new mapping.
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0);
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::madvise(base, len, libc::MADV_DONTFORK);
        NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
    }
}

/// Bytes that [`map_page_anywhere`] maps: a page, where pages are small.
pub const PAGE: usize = 4096;

/// Bytes of a page of this machine's: kernels of aarch64 have such of 4, 16 or 64 KiB.
#[must_use]
pub fn page_size() -> u64 {
    // SAFETY: asks for a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// Maps a page of this process's own at a random address of its address space, so that another program has hardly one
/// at the same place. Children of a fork don't have it.
///
/// # Errors
/// That of `mmap(2)`.
pub fn map_page_anywhere() -> io::Result<NonNull<u8>> {
    /// The largest page of any machine.
    const ALIGNMENT: u64 = 1 << 16;
    const ATTEMPTS: u32 = 8;
    let map = |at: u64, flags: libc::c_int| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        // SAFETY: a new mapping, which takes the place of no other.
        let base =
            unsafe { libc::mmap(at as *mut _, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base) }
    };
    let local = 0_u8;
    let end = end_of_addresses(&raw const local as u64);
    let random =
        |_| map((super::random() % end).next_multiple_of(ALIGNMENT).max(1 << 32), libc::MAP_FIXED_NOREPLACE);
    // Where an address space is full: wherever there is room.
    let base = (0..ATTEMPTS).map(random).find_map(Result::ok).map_or_else(|| map(0, 0), Ok)?;
    // SAFETY: the mapping that was just made.
    unsafe { libc::madvise(base, PAGE, libc::MADV_DONTFORK) };
    NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Where the addresses of programs end, judging by one on a stack, which are near the end: how many bits addresses have
/// depends on the kernel.
fn end_of_addresses(on_stack: u64) -> u64 {
    on_stack.next_power_of_two().clamp(1 << 38, 1 << 47)
}

/// Unmaps what [`map_shared`] or [`map_page_anywhere`] has made. The caller owns the mapping, which is no longer used.
pub fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the caller owns the mapping.
    unsafe { libc::munmap(base.as_ptr().cast(), len) };
}

/// A descriptor of a process, readable when it has died.
///
/// # Errors
/// That of `pidfd_open(2)`.
pub fn pidfd(pid: i32) -> io::Result<EngineFd> {
    // SAFETY: takes no pointer.
    fd_of(|| unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// Whether a process of that number is there, in this process's PID namespace.
#[must_use]
pub fn process_exists(pid: i32) -> bool {
    // SAFETY: takes no pointer; nothing is sent.
    let asked = check(unsafe { libc::syscall(libc::SYS_kill, pid, 0) });
    asked.err().and_then(|error| error.raw_os_error()) != Some(libc::ESRCH)
}

/// The name of a process's entry in `/proc`.
///
/// # Errors
/// ESRCH: the mounted `/proc` isn't that of this process's PID namespace (`unshare --pid` without `--mount-proc`), so it has other
/// processes by these numbers. That of `openat(2)`: there is none.
pub fn proc_entry(pid: i32, entry: &str) -> io::Result<String> {
    let status = read_file(c"/proc/thread-self/status", 16 << 10)?;
    match numbers_in_proc(&status) {
        // Kernels without PID namespaces list none.
        None | Some(1) => Ok(format!("/proc/{pid}/{entry}")),
        Some(_) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// How many numbers a process has by its status: one in the PID namespace of `/proc`, and one in each that is inside of it.
fn numbers_in_proc(status: &[u8]) -> Option<usize> {
    let lines = std::str::from_utf8(status).unwrap_or_default().lines();
    lines
        .filter_map(|line| line.strip_prefix("NSpid:"))
        .map(|numbers| numbers.split_whitespace().count())
        .next()
}

/// Lets other processes of the user copy from and to this one where the Yama module asks for it (scope 1).
pub fn allow_copies_by_others() {
    if read_file(c"/proc/sys/kernel/yama/ptrace_scope", 16).is_ok_and(|scope| scope.first() == Some(&b'1')) {
        // SAFETY: takes no pointer.
        unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proc_of_another_pid_namespace_is_told_by_the_numbers_of_this_process() {
        let status = |numbers| format!("Name:\tNSpid: 1 2\nNSpid:{numbers}\nNSpgid:\t1\t2\n").into_bytes();
        assert_eq!(numbers_in_proc(&status("\t50")), Some(1));
        assert_eq!(numbers_in_proc(&status("\t50\t1")), Some(2));
        assert_eq!(numbers_in_proc(b"Name:\tx\n"), None);
        assert_eq!(proc_entry(7, "maps").unwrap(), "/proc/7/maps");
    }

    #[test]
    fn memory_is_mapped_in_pages() {
        let page = page_size();
        assert!(page.is_power_of_two() && (4096..=1 << 16).contains(&page), "{page}");
        let mapped = map_page_anywhere().unwrap();
        assert_eq!(mapped.as_ptr() as u64 % page, 0);
        unmap(mapped, PAGE);
    }

    #[test]
    fn addresses_end_where_the_kernel_has_it() {
        assert_eq!(end_of_addresses(0x7ffd_1234_5678), 1 << 47, "x86-64");
        assert_eq!(end_of_addresses(0xffff_f234_5678), 1 << 47, "aarch64 with 48 bits");
        assert_eq!(end_of_addresses(0x7f_f234_5678), 1 << 39, "aarch64 with 39 bits");
        assert_eq!(end_of_addresses(0x1234_5678), 1 << 38, "a stack of the program's making");
    }
}
