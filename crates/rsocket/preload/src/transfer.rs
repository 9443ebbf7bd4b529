//! Sending and receiving.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;

use libc::{iovec, msghdr, off_t, sockaddr, socklen_t};

use crate::counterparts::{counterparts, signalled};
use crate::forking::settled;
use crate::real::real;
use crate::rsocket as r;

counterparts! {
    settled;
    c"recv" recv rrecv(buffer: *mut c_void, length: usize, flags: c_int) -> isize;
    c"recvfrom" recvfrom rrecvfrom(
        buffer: *mut c_void, length: usize, flags: c_int, name: *mut sockaddr, name_length: *mut socklen_t
    ) -> isize;
    c"recvmsg" recvmsg rrecvmsg(message: *mut msghdr, flags: c_int) -> isize;
    c"read" read rread(buffer: *mut c_void, length: usize) -> isize;
    c"readv" readv rreadv(pieces: *const iovec, count: c_int) -> isize;
    c"send" send rsend(buffer: *const c_void, length: usize, flags: c_int) -> isize, signals(flags);
    c"sendto" sendto rsendto(
        buffer: *const c_void, length: usize, flags: c_int, name: *const sockaddr, name_length: socklen_t
    ) -> isize, signals(flags);
    c"sendmsg" sendmsg rsendmsg(message: *const msghdr, flags: c_int) -> isize, signals(flags);
    c"write" write rwrite(buffer: *const c_void, length: usize) -> isize, signals(0);
    c"writev" writev rwritev(pieces: *const iovec, count: c_int) -> isize, signals(0);
}

unsafe extern "C-unwind" {
    fn __chk_fail() -> !;
}

/// Ends the program, as the C library does, when a call would write past its buffer.
pub(crate) fn check(length: usize, room: usize) {
    if length > room {
        // SAFETY: the C library's function for this.
        unsafe { __chk_fail() };
    }
}

#[unsafe(export_name = "ferroce_s___recv_chk")]
unsafe extern "C-unwind" fn recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    room: usize,
    flags: c_int,
) -> isize {
    check(length, room);
    // SAFETY: the program's own arguments.
    unsafe { recv(fd, buffer, length, flags) }
}

#[unsafe(export_name = "ferroce_s___recvfrom_chk")]
unsafe extern "C-unwind" fn recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    room: usize,
    flags: c_int,
    name: *mut sockaddr,
    name_length: *mut socklen_t,
) -> isize {
    check(length, room);
    // SAFETY: the program's own arguments.
    unsafe { recvfrom(fd, buffer, length, flags, name, name_length) }
}

#[unsafe(export_name = "ferroce_s___read_chk")]
unsafe extern "C-unwind" fn read_chk(fd: c_int, buffer: *mut c_void, length: usize, room: usize) -> isize {
    check(length, room);
    // SAFETY: the program's own arguments.
    unsafe { read(fd, buffer, length) }
}

/// Sends from a file to an rsocket.
///
/// # Safety
/// `offset` is NULL or valid.
unsafe fn send_file(rs: c_int, file: c_int, offset: *mut off_t, count: usize) -> isize {
    // A handler may leave the call, or end its thread: nothing is to be dropped while it waits.
    let mut buffer = ManuallyDrop::new(vec![0u8; count.min(1 << 16)]);
    // SAFETY: as the caller's.
    let done = unsafe { send_pieces(rs, file, offset, count, &mut buffer) };
    drop(ManuallyDrop::into_inner(buffer));
    done
}

/// Sends from a file to an rsocket, by way of `buffer`.
///
/// # Safety
/// As for [`send_file`].
unsafe fn send_pieces(rs: c_int, file: c_int, offset: *mut off_t, count: usize, buffer: &mut [u8]) -> isize {
    let mut done = 0;
    while done < count {
        let wanted = buffer.len().min(count - done);
        // SAFETY: a buffer of this length.
        let there = unsafe {
            match offset.as_ref() {
                Some(offset) => libc::pread(file, buffer.as_mut_ptr().cast(), wanted, *offset),
                None => libc::read(file, buffer.as_mut_ptr().cast(), wanted),
            }
        };
        let Ok(there) = usize::try_from(there) else { return if done > 0 { done as isize } else { -1 } };
        if there == 0 {
            break;
        }
        // SAFETY: bytes of the buffer.
        let sent = signalled(unsafe { r::rsend(rs, buffer.as_ptr().cast(), there, 0) }, 0);
        let failed = sent < 0;
        let sent = usize::try_from(sent).unwrap_or(0);
        // SAFETY: the program's own offset.
        match unsafe { offset.as_mut() } {
            Some(offset) => *offset += sent as off_t,
            // What wasn't sent is read again.
            // SAFETY: no memory is passed.
            None => unsafe {
                libc::lseek(file, sent as off_t - there as off_t, libc::SEEK_CUR);
            },
        }
        done += sent;
        if failed && done == 0 {
            return -1;
        }
        if sent < there {
            break;
        }
    }
    done as isize
}

#[unsafe(export_name = "ferroce_s_sendfile")]
unsafe extern "C-unwind" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: usize) -> isize {
    match settled(to) {
        // SAFETY: the program's own arguments.
        Some(rs) => unsafe { send_file(rs, from, offset, count) },
        None => {
            real!(c"sendfile", fn(c_int, c_int, *mut off_t, usize) -> isize, (to, from, offset, count))
        }
    }
}

#[unsafe(export_name = "ferroce_s_sendfile64")]
unsafe extern "C-unwind" fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: usize) -> isize {
    match settled(to) {
        // SAFETY: as above.
        Some(rs) => unsafe { send_file(rs, from, offset, count) },
        None => {
            real!(c"sendfile64", fn(c_int, c_int, *mut off_t, usize) -> isize, (to, from, offset, count))
        }
    }
}
