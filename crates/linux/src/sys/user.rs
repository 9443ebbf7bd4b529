//! System calls about users, and about the processes at the other end of a connection.

use super::{EngineFd, check, fd_of, read_file};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::RawFd;

/// The effective user id, which the kernel reports to the other end of a connection: the processes of one user find one another by
/// it.
#[must_use]
pub fn user_id() -> u32 {
    // SAFETY: can't fail and takes no pointer.
    unsafe { libc::geteuid() }
}

/// The real user id, which the kernel attaches to messages that don't name one.
#[must_use]
pub fn real_user_id() -> u32 {
    // SAFETY: can't fail and takes no pointer.
    unsafe { libc::getuid() }
}

/// The sender's credentials in a message, which the kernel checks: this process, and `uid`, which must be one of its user ids.
#[must_use]
pub fn own_credentials(uid: u32) -> libc::ucred {
    // SAFETY: neither call can fail or takes a pointer.
    let (pid, gid) = unsafe { (libc::getpid(), libc::getegid()) };
    libc::ucred { pid, uid, gid }
}

/// The groups of the process at the other end of a connected UNIX socket, beside the one in `SO_PEERCRED`.
///
/// # Errors
/// That of `getsockopt(2)`: ENOPROTOOPT before Linux 4.13.
pub fn peer_groups(fd: RawFd) -> io::Result<Vec<libc::gid_t>> {
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERGROUPS);
    // As many as a process may have (NGROUPS_MAX).
    let mut groups: Vec<libc::gid_t> = vec![0; 65536];
    let mut length = (groups.len() * size_of::<libc::gid_t>()) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `groups`.
    check(unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, groups.as_mut_ptr(), &mut length) })?;
    groups.truncate(length as usize / size_of::<libc::gid_t>());
    Ok(groups)
}

/// The number of the user of this name, if the machine knows one.
#[must_use]
pub fn user_named(name: &CStr) -> Option<libc::uid_t> {
    // SAFETY: numbers and null pointers only.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: each pointer is to as much as the function may write there.
    let is_found = find_named(|room, found: &mut *mut libc::passwd| unsafe {
        libc::getpwnam_r(name.as_ptr(), &mut entry, room.as_mut_ptr().cast(), room.len(), found)
    });
    is_found.then_some(entry.pw_uid)
}

/// The number of the group of this name, if the machine knows one.
#[must_use]
pub fn group_named(name: &CStr) -> Option<libc::gid_t> {
    // SAFETY: numbers and null pointers only.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    // SAFETY: each pointer is to as much as the function may write there.
    let is_found = find_named(|room, found: &mut *mut libc::group| unsafe {
        libc::getgrnam_r(name.as_ptr(), &mut entry, room.as_mut_ptr().cast(), room.len(), found)
    });
    is_found.then_some(entry.gr_gid)
}

/// Whether a look-up finds an entry, given as much room for its strings as it asks for.
fn find_named<T>(mut look_up: impl FnMut(&mut [u8], &mut *mut T) -> i32) -> bool {
    let mut room = vec![0; 4 << 10];
    loop {
        let mut found = std::ptr::null_mut();
        let error = look_up(&mut room, &mut found);
        if error == libc::ERANGE && room.len() < 16 << 20 {
            room.resize(2 * room.len(), 0);
        } else if error != libc::EINTR {
            return error == 0 && !found.is_null();
        }
    }
}

/// A descriptor of the process at the other end of a connected UNIX socket.
///
/// # Errors
/// That of `getsockopt(2)`: ENOPROTOOPT before Linux 6.5.
pub fn peer_pidfd(fd: RawFd) -> io::Result<EngineFd> {
    /// Of the kernel's asm-generic/socket.h.
    const SO_PEERPIDFD: i32 = 77;
    fd_of(|| {
        let mut pidfd: RawFd = -1;
        let mut length = size_of::<RawFd>() as libc::socklen_t;
        let (level, name) = (libc::SOL_SOCKET, SO_PEERPIDFD);
        // SAFETY: the kernel writes at most `length` bytes into `pidfd`.
        let result = unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, &mut pidfd, &mut length) };
        if result < 0 { result } else { libc::c_long::from(pidfd) }
    })
}

/// The number that the mounted `/proc` has for the process of a process descriptor.
///
/// # Errors
/// ESRCH when the process has ended, or isn't there in `/proc`.
pub fn process_of(pidfd: RawFd) -> io::Result<u32> {
    let info = read_file(&CString::new(format!("/proc/thread-self/fdinfo/{pidfd}"))?, 4096)?;
    let lines = std::str::from_utf8(&info).unwrap_or_default().lines();
    let number = lines.filter_map(|line| line.strip_prefix("Pid:")).find_map(|n| n.trim().parse().ok());
    // Ended: -1; of another PID namespace: 0.
    number.filter(|&pid| pid != 0).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}

/// The target of a symbolic link.
///
/// # Errors
/// That of `readlinkat(2)`.
pub fn read_link(path: &CStr) -> io::Result<Vec<u8>> {
    read_link_at(libc::AT_FDCWD, path)
}

/// The target of a symbolic link in a directory; with an empty name, of the link that the descriptor stands for (`O_PATH`).
///
/// # Errors
/// That of `readlinkat(2)`.
pub fn read_link_at(directory: RawFd, name: &CStr) -> io::Result<Vec<u8>> {
    let mut target = vec![0_u8; libc::PATH_MAX as usize];
    // SAFETY: a C string, and a buffer that is writable for its length.
    let length = check(unsafe {
        libc::syscall(libc::SYS_readlinkat, directory, name.as_ptr(), target.as_mut_ptr(), target.len())
    })?;
    target.truncate(length);
    Ok(target)
}
