//! System calls as the adapter needs them: raw, so that none is a cancellation point of the C library.
//!
//! A thread of the host program that is cancelled inside one of ours would leave locks held; `libc::syscall` isn't a
//! cancellation point, the C library's own `recvmsg`, `close`, `poll` … are. Every descriptor the adapter opens is
//! owned by an [`EngineFd`] and entered in a lock-free table, so that a forked child can close them all.
//! Out of here: addresses and names (`udp`, `rendezvous`), policy, retries.

pub mod control;
mod engine_fd;
mod rights;
mod shared;

pub use engine_fd::{
    EngineFd, close_all_after_fork, for_each_engine_fd, hold_openings, opening, resume_openings,
};

pub use rights::{CAP_NET_RAW, has_capability};
pub use shared::{
    add_seals, allow_copies_by_others, duplicate, duplicate_engine, file_size, map_shared, memfd, pidfd,
    seals, seek_end, unmap,
};

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Owns the descriptor that a system call makes.
fn fd_of(call: impl FnOnce() -> libc::c_long) -> io::Result<EngineFd> {
    opening(|| EngineFd::adopt(check(call())? as RawFd))
}

/// `close(2)`. The number must be the caller's; the result says nothing a caller could act on.
pub fn close(fd: RawFd) {
    // SAFETY: takes no pointer; the caller owns the descriptor.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// `socket(2)`, close-on-exec.
///
/// # Errors
/// That of the call.
pub fn socket(domain: i32, kind: i32) -> io::Result<EngineFd> {
    // SAFETY: takes no pointer.
    fd_of(|| unsafe { libc::syscall(libc::SYS_socket, domain, kind | libc::SOCK_CLOEXEC, 0) })
}

/// A socket address of any family the adapter uses, in the kernel's form.
///
/// # Safety
/// `pointer` must be readable for `length` bytes as long as the implementor is borrowed.
pub unsafe trait KernelAddress {
    /// First byte.
    fn pointer(&self) -> *const libc::sockaddr;
    /// Bytes that count.
    fn length(&self) -> libc::socklen_t;
}

/// `bind(2)`.
///
/// # Errors
/// That of the call.
pub fn bind(fd: RawFd, address: &impl KernelAddress) -> io::Result<()> {
    // SAFETY: KernelAddress guarantees `length` readable bytes.
    check(unsafe { libc::syscall(libc::SYS_bind, fd, address.pointer(), address.length()) }).map(drop)
}

/// `connect(2)`.
///
/// # Errors
/// That of the call.
pub fn connect(fd: RawFd, address: &impl KernelAddress) -> io::Result<()> {
    // SAFETY: KernelAddress guarantees `length` readable bytes.
    check(unsafe { libc::syscall(libc::SYS_connect, fd, address.pointer(), address.length()) }).map(drop)
}

/// `listen(2)`.
///
/// # Errors
/// That of the call.
pub fn listen(fd: RawFd, backlog: i32) -> io::Result<()> {
    // SAFETY: takes no pointer.
    check(unsafe { libc::syscall(libc::SYS_listen, fd, backlog) }).map(drop)
}

/// `accept4(2)` without the peer's address: close-on-exec, non-blocking.
///
/// # Errors
/// That of the call.
pub fn accept(fd: RawFd) -> io::Result<EngineFd> {
    let null = std::ptr::null_mut::<libc::sockaddr>();
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the address and its length may be null.
    fd_of(|| unsafe { libc::syscall(libc::SYS_accept4, fd, null, null, flags) })
}

/// Ends a connection for both sides, whoever holds duplicates of it (`shutdown(2)`).
pub fn shutdown(fd: RawFd) {
    // What has ended already is fine.
    // SAFETY: takes no pointer.
    unsafe { libc::syscall(libc::SYS_shutdown, fd, libc::SHUT_RDWR) };
}

/// `getsockname(2)` into `address`; returns the bytes the kernel has for it.
///
/// # Errors
/// That of the call.
pub fn socket_name<T: Copy>(fd: RawFd, address: &mut T) -> io::Result<libc::socklen_t> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `address`; callers use plain kernel structures.
    check(unsafe { libc::syscall(libc::SYS_getsockname, fd, std::ptr::from_mut(address), &mut length) })?;
    Ok(length)
}

/// `setsockopt(2)` with a plain value: an `int`, or the kernel's structure for the option.
///
/// # Errors
/// That of the call.
pub fn set_option<T: Copy>(fd: RawFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is readable for `length` bytes.
    check(unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, std::ptr::from_ref(value), length) })
        .map(drop)
}

/// Attaches a classic BPF program to a socket (`option` is `SO_ATTACH_FILTER` or a relative of it).
///
/// # Errors
/// That of the call.
pub fn attach_program(fd: RawFd, option: i32, program: &[libc::sock_filter]) -> io::Result<()> {
    /// `struct sock_fprog`, whose padding has a value here.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Program {
        len: u16,
        padding: [u16; 3],
        filter: *const libc::sock_filter,
    }
    const { assert!(size_of::<Program>() == size_of::<libc::sock_fprog>()) };
    let program = Program { len: program.len() as u16, padding: [0; 3], filter: program.as_ptr() };
    set_option(fd, libc::SOL_SOCKET, option, &program)
}

/// `getsockopt(2)` of an `int`.
///
/// # Errors
/// That of the call.
pub fn int_option(fd: RawFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0_i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `value`.
    check(unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, &mut value, &mut length) })?;
    Ok(value)
}

/// Bytes that wait in a socket, and how many may, both as the kernel counts them (SO_MEMINFO).
///
/// # Errors
/// That of `getsockopt(2)`.
pub fn queued_and_limit(fd: RawFd) -> io::Result<(u32, u32)> {
    /// `struct sk_meminfo` begins with SK_MEMINFO_RMEM_ALLOC and SK_MEMINFO_RCVBUF.
    const SO_MEMINFO: i32 = 55;
    let mut values = [0_u32; 9];
    let mut length = size_of_val(&values) as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, SO_MEMINFO);
    // SAFETY: the kernel writes at most `length` bytes into `values`.
    check(unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, values.as_mut_ptr(), &mut length) })?;
    Ok((values[0], values[1]))
}

/// The user and process at the other end of a connected UNIX socket, as this process's namespaces show them.
///
/// # Errors
/// That of `getsockopt(2)`.
pub fn peer_credentials(fd: RawFd) -> io::Result<libc::ucred> {
    let mut value = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the kernel writes at most `length` bytes into `value`, any bytes are a valid ucred.
    check(unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, &mut value, &mut length) })?;
    Ok(value)
}

/// `sendmsg(2)` with MSG_NOSIGNAL | MSG_DONTWAIT.
///
/// # Errors
/// That of the call.
///
/// # Safety
/// Every pointer in `message` is null or valid for the length beside it.
pub unsafe fn send_message(fd: RawFd, message: &libc::msghdr) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the caller's promise.
    check(unsafe { libc::syscall(libc::SYS_sendmsg, fd, std::ptr::from_ref(message), flags) })
}

/// `sendto(2)` with MSG_NOSIGNAL | MSG_DONTWAIT: for the kernel less work than a message with control data.
///
/// # Errors
/// That of the call.
pub fn send_to(fd: RawFd, bytes: &[u8], address: &impl KernelAddress) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let (pointer, length) = (address.pointer(), address.length());
    // SAFETY: `bytes` is readable for its length, and `address` for the length it says.
    check(unsafe {
        libc::syscall(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, pointer, length as usize)
    })
}

/// Sends one byte over a connection, if there is room; who is gone needs none.
pub fn send_byte(fd: RawFd) {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let (byte, nobody) = (0_u8, std::ptr::null::<libc::sockaddr>());
    // SAFETY: `byte` is readable; a connection needs no address.
    unsafe { libc::syscall(libc::SYS_sendto, fd, &raw const byte, 1usize, flags, nobody, 0usize) };
}

/// `recvmsg(2)` with MSG_DONTWAIT | MSG_CMSG_CLOEXEC.
///
/// # Errors
/// That of the call.
///
/// # Safety
/// Every pointer in `message` is null or writable for the length beside it.
pub unsafe fn receive_message(fd: RawFd, message: &mut libc::msghdr) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the caller's promise.
    check(unsafe { libc::syscall(libc::SYS_recvmsg, fd, std::ptr::from_mut(message), flags) })
}

/// `sendmmsg(2)` with MSG_NOSIGNAL | MSG_DONTWAIT; returns the messages sent.
///
/// # Errors
/// That of the call, about the first message.
///
/// # Safety
/// As [`send_message`], for each.
pub unsafe fn send_messages(fd: RawFd, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let count = messages.len() as libc::c_uint;
    // SAFETY: the caller's promise.
    check(unsafe { libc::syscall(libc::SYS_sendmmsg, fd, messages.as_mut_ptr(), count, flags) })
}

/// `recvmmsg(2)` with MSG_DONTWAIT and no timeout; returns the messages received.
///
/// # Errors
/// That of the call, about the first message.
///
/// # Safety
/// As [`receive_message`], for each.
pub unsafe fn receive_messages(fd: RawFd, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let count = messages.len() as libc::c_uint;
    let no_timeout = std::ptr::null_mut::<libc::timespec>();
    // SAFETY: the caller's promise; the timeout may be null.
    check(unsafe {
        libc::syscall(libc::SYS_recvmmsg, fd, messages.as_mut_ptr(), count, libc::MSG_DONTWAIT, no_timeout)
    })
}

/// `read(2)`.
///
/// # Errors
/// That of the call.
pub fn read(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: `buffer` is writable for its length.
    check(unsafe { libc::syscall(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len()) })
}

/// `write(2)`. Not for pipes and stream sockets: it could raise SIGPIPE.
///
/// # Errors
/// That of the call.
pub fn write(fd: RawFd, buffer: &[u8]) -> io::Result<usize> {
    // SAFETY: `buffer` is readable for its length.
    check(unsafe { libc::syscall(libc::SYS_write, fd, buffer.as_ptr(), buffer.len()) })
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
    let mut chunk = [0_u8; 16384];
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

/// `ppoll(2)` with the thread's own signal mask. An interruption counts as "nothing is ready".
///
/// # Errors
/// That of the call, but EINTR.
pub fn poll(fds: &mut [libc::pollfd], timeout: Duration) -> io::Result<usize> {
    let mut time = timespec(timeout);
    let no_mask = std::ptr::null::<libc::sigset_t>();
    let (pointer, count) = (fds.as_mut_ptr(), fds.len() as libc::c_ulong);
    // SAFETY: `fds` and `time` are writable; the mask may be null (its size then isn't looked at).
    match check(unsafe { libc::syscall(libc::SYS_ppoll, pointer, count, &mut time, no_mask, 8_usize) }) {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        result => result,
    }
}

/// Waits until `fd` has one of `events`; whether it came to that in time.
#[must_use]
pub fn wait_for(fd: RawFd, events: i16, timeout: Duration) -> bool {
    let mut one = [libc::pollfd { fd, events, revents: 0 }];
    matches!(poll(&mut one, timeout), Ok(n) if n > 0)
}

/// Sleeps, or less when a signal comes.
pub fn pause(time: Duration) {
    // An empty set of descriptors can't fail in a way that matters: at worst the pause is shorter.
    let _ = poll(&mut [], time);
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: libc::c_long::from(time.subsec_nanos() as i32),
    }
}

/// `sched_yield(2)`.
pub fn yield_processor() {
    // SAFETY: takes no pointer and can't fail.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// The MTU of an interface (netdevice(7)), asked over any socket.
///
/// # Errors
/// That of `ioctl(2)`.
pub fn interface_mtu(fd: RawFd, ifindex: u32) -> io::Result<u32> {
    // SAFETY: numbers only.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = ifindex as i32;
    for ask in [libc::SIOCGIFNAME, libc::SIOCGIFMTU] {
        // SAFETY: the kernel reads and writes a `struct ifreq`.
        check(unsafe { libc::syscall(libc::SYS_ioctl, fd, ask, &raw mut request) })?;
    }
    // SAFETY: SIOCGIFMTU sets this member.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).map_err(|_| io::Error::from_raw_os_error(libc::EIO))
}

/// `epoll_create1(2)`, close-on-exec.
///
/// # Errors
/// That of the call.
pub fn epoll_create() -> io::Result<EngineFd> {
    // SAFETY: takes no pointer.
    fd_of(|| unsafe { libc::syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) })
}

/// `epoll_ctl(2)`; `op` is EPOLL_CTL_ADD, _MOD or _DEL, `events` a set of EPOLL*.
///
/// # Errors
/// That of the call.
pub fn epoll_control(epoll: RawFd, op: i32, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: `event` is a valid epoll_event.
    check(unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, op, fd, &mut event) }).map(drop)
}

/// `epoll_pwait(2)` with the thread's own signal mask; `None` waits without an end.
///
/// # Errors
/// That of the call, EINTR too.
pub fn epoll_wait(
    epoll: RawFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> io::Result<usize> {
    // Rounded up: rounding down would turn the last millisecond before a timer into a busy loop.
    let ms = timeout.map_or(-1, |t| i32::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
    let no_mask = std::ptr::null::<libc::sigset_t>();
    let (pointer, count) = (events.as_mut_ptr(), i32::try_from(events.len()).unwrap_or(i32::MAX));
    // SAFETY: `events` is writable for `count` elements; the mask may be null.
    check(unsafe { libc::syscall(libc::SYS_epoll_pwait, epoll, pointer, count, ms, no_mask, 8_usize) })
}

/// An eventfd, close-on-exec; `flags` of `eventfd2(2)`.
///
/// # Errors
/// That of the call.
pub fn eventfd(initial: u32, flags: i32) -> io::Result<EngineFd> {
    // SAFETY: takes no pointer.
    fd_of(|| unsafe { libc::syscall(libc::SYS_eventfd2, initial, flags | libc::EFD_CLOEXEC) })
}

/// A CLOCK_MONOTONIC timerfd, close-on-exec and non-blocking, that is readable once a period until [`read`].
///
/// # Errors
/// That of `timerfd_create(2)` or `timerfd_settime(2)`.
pub fn periodic_timer(period: Duration) -> io::Result<EngineFd> {
    let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
    // SAFETY: takes no pointer.
    let timer = fd_of(|| unsafe { libc::syscall(libc::SYS_timerfd_create, libc::CLOCK_MONOTONIC, flags) })?;
    let times = libc::itimerspec { it_interval: timespec(period), it_value: timespec(period) };
    let no_old = std::ptr::null_mut::<libc::itimerspec>();
    // SAFETY: `times` is readable; the old times may be null.
    check(unsafe { libc::syscall(libc::SYS_timerfd_settime, timer.raw(), 0, &raw const times, no_old) })?;
    Ok(timer)
}

/// The real user id: rendezvous is among the processes of one user.
#[must_use]
pub fn user_id() -> u32 {
    // SAFETY: can't fail and takes no pointer.
    unsafe { libc::getuid() }
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

    #[test]
    fn a_poll_without_events_ends_in_time() {
        let fd = eventfd(0, libc::EFD_NONBLOCK).unwrap();
        assert!(!wait_for(fd.raw(), libc::POLLIN, Duration::from_millis(1)));
        write(fd.raw(), &1_u64.to_ne_bytes()).unwrap();
        assert!(wait_for(fd.raw(), libc::POLLIN, Duration::from_secs(5)));
    }
}
