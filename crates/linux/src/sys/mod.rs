//! System calls as the adapter needs them: raw, so that none is a cancellation point of the C library.
//!
//! A thread of the host program that is cancelled inside one of ours would leave locks held; `libc::syscall` isn't a
//! cancellation point, the C library's own `recvmsg`, `close`, `poll` … are. A descriptor that a
//! forked child has no use for is owned by an [`EngineFd`], which enters it in a lock-free table, so that the child can
//! close them all; one that a child keeps by a [`KeptFd`], and the pipe of events by its `Readiness`.
//! Out of here: whose addresses and names they are, policy, retries.

mod address;
mod buffer;
pub mod control;
mod discard;
mod ending;
mod engine_fd;
mod futex;
mod interface;
mod kept_fd;
mod messages;
mod rights;
mod shared;
mod signals;
mod socket;
mod thread;
mod user;
pub mod valgrind;
mod wait;

pub use address::{AbstractName, InetAddress, LinkAddress, NetlinkAddress};
pub use buffer::large_buffer;
pub use discard::{
    accept_descriptors, brings_descriptors, discard, discard_message, leave, refuse_descriptors,
};
pub use ending::{after_fork as forget_threads, thread_comes, thread_ends};
pub use ending::{
    at_exit, end_process, how_often_to_look, only_our_threads_are_left, own_number, tell_of_ends,
};
pub use engine_fd::{
    EngineFd, abandon_all, close_all_after_fork, close_if, descriptor_limit, device_and_inode, file_kind,
    find_lost, for_each_engine_fd, identity, with_forks_held,
};
pub use engine_fd::{hold_openings, is_engine_fd, out_of_the_way, resume_openings};
pub use futex::{sleep, wake};

pub use interface::{interface_mtu, interface_speed};
pub use kept_fd::KeptFd;
pub use messages::{
    BatchMessage, MessageInfo, Outgoing, ReceiveBatch, Returned, SendBatch, peek_message, receive_message,
    receive_returned, send_message,
};
pub use rights::{CAP_NET_RAW, has_capability};
pub use shared::{
    PAGE, add_seals, allow_copies_by_others, duplicate, duplicate_engine, file_size, map_page_anywhere,
    map_shared, memfd, page_size, pidfd, proc_entry, process_exists, read_at, seals, seek_end, unmap,
};
pub use signals::{CANCELS, HeldSignals, NEVER_HELD, SignalSet, block, signal_set, without_signals};

pub use socket::{
    KernelAddress, accept, attach_program, bind, connect, discard_messages, int_option, listen,
    netlink_socket, peer_credentials, queued_and_limit, receive_from, send_byte, send_to, set_option,
    shutdown, socket, socket_name, socket_pair,
};
pub use thread::{note_processors, start_thread};
pub use user::{
    group_named, own_credentials, peer_groups, peer_pidfd, process_of, read_link, read_link_at, real_user_id,
    user_id, user_named,
};
pub use wait::{
    epoll_control, epoll_create, epoll_wait, eventfd, pause, periodic_timer, poll, wait_for, yield_processor,
};

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a system call has returned, or its error.
///
/// # Errors
/// That of the call.
#[inline]
pub fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Owns the descriptor that a system call makes.
fn fd_of(call: impl FnOnce() -> libc::c_long) -> io::Result<EngineFd> {
    with_forks_held(|| EngineFd::adopt(check(call())? as RawFd))
}

/// `close(2)`. The number must be the caller's; the result is ignored, since no caller could act on it.
pub fn close(fd: RawFd) {
    // SAFETY: takes no pointer; the caller owns the descriptor.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// `read(2)`.
///
/// # Errors
/// That of the call.
pub fn read(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: `buffer` is writable for its length.
    check(unsafe { libc::syscall(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len()) })
}

/// `write(2)`.
///
/// # Errors
/// That of the call.
pub fn write(fd: RawFd, buffer: &[u8]) -> io::Result<usize> {
    // SAFETY: `buffer` is readable for its length.
    check(unsafe { libc::syscall(libc::SYS_write, fd, buffer.as_ptr(), buffer.len()) })
}

/// As [`write()`] to a pipe or socket, without a wait for room, whether the descriptor has O_NONBLOCK or not.
///
/// # Errors
/// That of `pwritev2(2)`: EAGAIN without room; EOPNOTSUPP, ESPIPE or ENOSYS where the kernel can't write to this file without a wait.
pub fn write_at_once(fd: RawFd, buffer: &[u8]) -> io::Result<usize> {
    /// The file's own position, of which pipes and sockets have none.
    const OWN_POSITION: libc::c_ulong = libc::c_ulong::MAX;
    let part = libc::iovec { iov_base: buffer.as_ptr().cast_mut().cast(), iov_len: buffer.len() };
    let (parts, flags) = (&raw const part, libc::RWF_NOWAIT);
    // SAFETY: `part` names `buffer`, which is readable for its length.
    check(unsafe { libc::syscall(libc::SYS_pwritev2, fd, parts, 1, OWN_POSITION, OWN_POSITION, flags) })
}

/// The bytes of a (pseudo-)file, at most `limit` of them. No C library `open` or `read`, which can be cancelled.
///
/// # Errors
/// That of `openat(2)` or `read(2)`.
pub fn read_file(path: &std::ffi::CStr, limit: usize) -> io::Result<Vec<u8>> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: `path` is a C string; no mode is needed without O_CREAT.
    let file = fd_of(|| unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) })?;
    let mut bytes = Vec::new();
    let mut chunk = vec![0_u8; 16384];
    while bytes.len() < limit {
        match read(file.raw(), &mut chunk) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&chunk[..n.min(limit - bytes.len())]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(bytes)
}

/// 64 bits that differ from process to process and from call to call. Not for secrets.
#[must_use]
pub fn random() -> u64 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0_u8; 8];
    // SAFETY: `bytes` is writable for its length.
    let got =
        unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), libc::GRND_NONBLOCK) };
    if got == 8 {
        return u64::from_ne_bytes(bytes);
    }
    // Early boot or a filter without getrandom: process, time and where the loader put things are enough here.
    let since =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let place = std::ptr::from_ref(&bytes) as u64;
    let mut x = since ^ place.rotate_left(24) ^ (u64::from(std::process::id()) << 40);
    x = x.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_differ() {
        assert_ne!(random(), random());
    }
}
