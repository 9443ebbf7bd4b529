//! Sockets: making them, their options and addresses, and bytes over them. Nothing here waits that isn't asked to.

use super::{EngineFd, NetlinkAddress, check, fd_of, with_forks_held};
use std::io;
use std::os::fd::RawFd;

/// `socket(2)`, close-on-exec.
///
/// # Errors
/// That of the call.
pub fn socket(domain: i32, kind: i32) -> io::Result<EngineFd> {
    // SAFETY: takes no pointer.
    fd_of(|| unsafe { libc::syscall(libc::SYS_socket, domain, kind | libc::SOCK_CLOEXEC, 0) })
}

/// `socket(2)` of a netlink family, close-on-exec.
///
/// # Errors
/// That of the call.
pub fn netlink_socket(family: i32) -> io::Result<EngineFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointer.
    fd_of(|| unsafe { libc::syscall(libc::SYS_socket, libc::AF_NETLINK, kind, family) })
}

/// `socketpair(2)` of UNIX sockets, close-on-exec.
///
/// # Errors
/// That of the call.
pub fn socket_pair(kind: i32) -> io::Result<[EngineFd; 2]> {
    let mut fds = [-1; 2];
    with_forks_held(|| {
        let kind = kind | libc::SOCK_CLOEXEC;
        // SAFETY: the kernel writes two descriptors into `fds`.
        check(unsafe { libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
        // Each is adopted (or closed) before an error may end this.
        let [one, other] = fds.map(EngineFd::adopt);
        Ok([one?, other?])
    })
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

/// Ends a connection for both sides, whichever processes hold duplicates of it (`shutdown(2)`).
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

/// `sendto(2)` with MSG_NOSIGNAL | MSG_DONTWAIT: for the kernel less work than a message with control data.
///
/// # Errors
/// That of the call.
#[inline]
pub fn send_to(fd: RawFd, bytes: &[u8], address: &impl KernelAddress) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let (pointer, length) = (address.pointer(), address.length());
    // SAFETY: `bytes` and `address` are readable for their lengths.
    check(unsafe {
        libc::syscall(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, pointer, length as usize)
    })
}

/// Sends one byte over a connection, if there is room. Errors are ignored: a peer that is gone needs no byte.
pub fn send_byte(fd: RawFd) {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let (byte, nobody) = (0_u8, std::ptr::null::<libc::sockaddr>());
    // SAFETY: `byte` is readable; a connection needs no address.
    unsafe { libc::syscall(libc::SYS_sendto, fd, &raw const byte, 1usize, flags, nobody, 0usize) };
}

/// Discards up to four messages that have come over a connection (SOCK_SEQPACKET); `false` when it has ended.
///
/// # Errors
/// That of `recvmmsg(2)`.
pub fn discard_messages(fd: RawFd) -> io::Result<bool> {
    let mut byte = 0_u8;
    let mut place = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: numbers and null pointers.
    let mut messages: [libc::mmsghdr; 4] = unsafe { std::mem::zeroed() };
    for message in &mut messages {
        message.msg_hdr.msg_iov = &raw mut place;
        message.msg_hdr.msg_iovlen = 1;
    }
    let (first, limit) = (messages.as_mut_ptr(), std::ptr::null_mut::<libc::timespec>());
    // SAFETY: four messages, whose bytes all go to the same writable byte.
    let taken = check(unsafe {
        libc::syscall(libc::SYS_recvmmsg, fd, first, messages.len(), libc::MSG_DONTWAIT, limit)
    })?;
    Ok(messages[..taken].iter().all(|message| message.msg_len > 0))
}

/// `recvfrom(2)` with these flags: with MSG_DONTWAIT it doesn't wait, otherwise for as long as the socket's SO_RCVTIMEO.
/// Returns the bytes received, with MSG_TRUNC those that there were, and writes to `from` where they are from.
///
/// # Errors
/// That of the call.
pub fn receive_from(
    fd: RawFd,
    buffer: &mut [u8],
    flags: i32,
    from: &mut NetlinkAddress,
) -> io::Result<usize> {
    let (bytes, length) = (buffer.as_mut_ptr(), buffer.len());
    let mut from_length = size_of::<NetlinkAddress>() as libc::socklen_t;
    // SAFETY: `buffer` and `from` are writable for their lengths, and any bytes are a `sockaddr_nl`.
    check(unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            fd,
            bytes,
            length,
            flags,
            std::ptr::from_mut(from),
            &raw mut from_length,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_discarded_up_to_the_end_of_their_connection() {
        let [own, peer] = socket_pair(libc::SOCK_SEQPACKET).unwrap();
        let nothing = || discard_messages(own.raw()).unwrap_err().kind();
        assert_eq!(nothing(), io::ErrorKind::WouldBlock);
        for _ in 0..5 {
            send_byte(peer.raw());
        }
        assert!(discard_messages(own.raw()).unwrap(), "four of them");
        assert!(discard_messages(own.raw()).unwrap(), "the last");
        assert_eq!(nothing(), io::ErrorKind::WouldBlock);
        send_byte(peer.raw());
        drop(peer);
        assert!(!discard_messages(own.raw()).unwrap());
        assert!(!discard_messages(own.raw()).unwrap());
    }
}
