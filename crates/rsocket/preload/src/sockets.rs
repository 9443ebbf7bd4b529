//! Sockets and their numbers.

use std::ffi::{c_int, c_ulong, c_void};

use libc::{sockaddr, socklen_t};

use crate::config;
use crate::counterparts::counterparts;
use crate::forking::{self, settled};
use crate::inside::{inside, is_inside};
use crate::numbers::{self, rsocket};
use crate::real::{errno, real, set_errno};
use crate::rsocket as r;

/// Gives the program a number of the rsocket `new`; −1 stays −1.
fn known(new: c_int, flags: c_int) -> c_int {
    if new < 0 {
        return new;
    }
    if flags & libc::SOCK_NONBLOCK != 0 {
        // SAFETY: an rsocket.
        unsafe { r::rfcntl(new, libc::F_SETFL, libc::O_NONBLOCK) };
    }
    // SAFETY: no memory is passed.
    let number = unsafe { libc::fcntl(new, libc::F_DUPFD_CLOEXEC, 0) };
    if number >= 0 && numbers::set(number, new) {
        return number;
    }
    if number >= 0 {
        close_really(number);
        set_errno(libc::EMFILE);
    }
    let why = errno();
    // SAFETY: as above.
    unsafe { r::rclose(new) };
    set_errno(why);
    -1
}

#[unsafe(export_name = "ferroce_s_socket")]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let before = errno();
    if !is_inside() && inside(|| config::is_wanted(domain, kind & !flags, protocol)) {
        if inside(|| forking::is_wanted(domain, kind & !flags)) {
            let new = real!(c"socket", fn(c_int, c_int, c_int) -> c_int, (domain, kind, protocol));
            forking::begin(new);
            return new;
        }
        let new = inside(|| r::new(domain, kind & !flags, protocol));
        set_errno(before);
        if let Some(new) = new {
            return known(new, flags);
        }
    }
    real!(c"socket", fn(c_int, c_int, c_int) -> c_int, (domain, kind, protocol))
}

#[unsafe(export_name = "ferroce_s_accept")]
unsafe extern "C-unwind" fn accept(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    match rsocket(fd) {
        // SAFETY: the program's own arguments.
        Some(rs) => known(unsafe { r::raccept(rs, name, length) }, 0),
        None => {
            let is_to_be_replaced = forking::is_listening(fd);
            let new = real!(c"accept", fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int, (fd, name, length));
            if is_to_be_replaced { forking::accepted(new) } else { new }
        }
    }
}

#[unsafe(export_name = "ferroce_s_accept4")]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    name: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    match rsocket(fd) {
        // SAFETY: as above.
        Some(rs) => known(unsafe { r::raccept(rs, name, length) }, flags),
        None => {
            let is_to_be_replaced = forking::is_listening(fd);
            let new = real!(
                c"accept4",
                fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int,
                (fd, name, length, flags)
            );
            if is_to_be_replaced { forking::accepted(new) } else { new }
        }
    }
}

counterparts! {
    rsocket;
    c"bind" bind rbind(name: *const sockaddr, length: socklen_t) -> c_int;
    c"shutdown" shutdown rshutdown(how: c_int) -> c_int;
    c"getpeername" getpeername rgetpeername(name: *mut sockaddr, length: *mut socklen_t) -> c_int;
    c"getsockname" getsockname rgetsockname(name: *mut sockaddr, length: *mut socklen_t) -> c_int;
    c"setsockopt" setsockopt
        rsetsockopt(level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    c"getsockopt" getsockopt
        rgetsockopt(level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
}

#[unsafe(export_name = "ferroce_s_listen")]
unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if let Some(rs) = rsocket(fd) {
        // SAFETY: an rsocket.
        return unsafe { r::rlisten(rs, backlog) };
    }
    let result = real!(c"listen", fn(c_int, c_int) -> c_int, (fd, backlog));
    if result == 0 {
        forking::listens(fd);
    }
    result
}

#[unsafe(export_name = "ferroce_s_connect")]
unsafe extern "C-unwind" fn connect(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int {
    if let Some(rs) = rsocket(fd) {
        // SAFETY: the program's own arguments.
        let result = unsafe { r::rconnect(rs, name, length) };
        let before = errno();
        // One that has failed before shows a new socket.
        inside(|| numbers::follow(rs));
        set_errno(before);
        return result;
    }
    forking::connects(fd);
    real!(c"connect", fn(c_int, *const sockaddr, socklen_t) -> c_int, (fd, name, length))
}

fn close_really(fd: c_int) -> c_int {
    real!(c"close", fn(c_int) -> c_int, (fd))
}

/// A number that doesn't lead to this rsocket any more is taken away, and the rsocket is closed if it was the last.
fn leave(taken: Option<(c_int, bool)>) -> c_int {
    let Some((rs, false)) = taken else { return 0 };
    // SAFETY: an rsocket that has no number any more.
    match unsafe { r::rclose(rs) } {
        // Some versions return what others leave in errno.
        result if result > 0 => {
            set_errno(result);
            -1
        }
        result => result,
    }
}

#[unsafe(export_name = "ferroce_s_close")]
pub(crate) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_inside() || rsocket(fd).is_none() {
        forking::end(fd);
        return close_really(fd);
    }
    if !numbers::is_owner() {
        return close_really(fd);
    }
    let taken = numbers::take(fd);
    match close_really(fd) {
        0 => leave(taken),
        failed => failed,
    }
}

/// Closes the program's numbers of rsockets from `first` to `last`.
fn close_rsockets(first: u32, last: u32) {
    if is_inside() || !numbers::is_owner() {
        return;
    }
    let within: Vec<c_int> =
        numbers::all().map(|(number, _)| number).filter(|n| (first..=last).contains(&(*n as u32))).collect();
    for number in within {
        // SAFETY: a number of the program, which closes it.
        unsafe { close(number) };
    }
}

#[unsafe(export_name = "ferroce_s_close_range")]
unsafe extern "C-unwind" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    // Other flags leave them open, or the threads beside this one have them still.
    if flags == 0 {
        close_rsockets(first, last);
    }
    real!(c"close_range", fn(u32, u32, c_int) -> c_int, (first, last, flags))
}

#[unsafe(export_name = "ferroce_s_closefrom")]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    close_rsockets(u32::try_from(first).unwrap_or(0), u32::MAX);
    real!(c"closefrom", fn(c_int) -> (), (first));
}

/// Has `new` lead where `fd` does, once it is a copy of it, and `rs` its rsocket, if it has one; −1 stays −1.
fn also(fd: c_int, new: c_int, rs: Option<c_int>) -> c_int {
    let Some(rs) = rs else {
        forking::copied(fd, new);
        return new;
    };
    if new >= 0 && !numbers::set(new, rs) {
        close_really(new);
        set_errno(libc::EMFILE);
        return -1;
    }
    new
}

#[unsafe(export_name = "ferroce_s_dup")]
unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    let rs = settled(fd);
    let new = real!(c"dup", fn(c_int) -> c_int, (fd));
    also(fd, new, rs)
}

/// Has `really` replace `new` by a copy of `fd`. What `new` was is closed.
fn replace(fd: c_int, new: c_int, really: impl FnOnce() -> c_int) -> c_int {
    let rs = settled(fd);
    let before = rsocket(new);
    let result = really();
    if fd == new || result < 0 {
        return result;
    }
    let taken = before.filter(|_| numbers::is_owner()).and_then(|_| numbers::take(new));
    let result = also(fd, result, rs);
    let why = errno();
    leave(taken);
    set_errno(why);
    result
}

#[unsafe(export_name = "ferroce_s_dup2")]
unsafe extern "C-unwind" fn dup2(fd: c_int, new: c_int) -> c_int {
    replace(fd, new, || real!(c"dup2", fn(c_int, c_int) -> c_int, (fd, new)))
}

#[unsafe(export_name = "ferroce_s_dup3")]
unsafe extern "C-unwind" fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
    replace(fd, new, || real!(c"dup3", fn(c_int, c_int, c_int) -> c_int, (fd, new, flags)))
}

// Variadic in C, as is ioctl: a third argument comes the same way on the architectures that there are trampolines for.
fn control(
    fd: c_int,
    command: c_int,
    argument: usize,
    really: impl FnOnce(c_int, c_int, usize) -> c_int,
) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        let rs = settled(fd);
        return also(fd, really(fd, command, argument), rs);
    }
    let Some(rs) = rsocket(fd) else { return really(fd, command, argument) };
    match command {
        // SAFETY: an rsocket; flags.
        libc::F_GETFL | libc::F_SETFL => unsafe { r::rfcntl(rs, command, argument as c_int) },
        _ => really(fd, command, argument),
    }
}

#[unsafe(export_name = "ferroce_s_fcntl")]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    control(fd, command, argument, |fd, command, argument| {
        real!(c"fcntl", fn(c_int, c_int, usize) -> c_int, (fd, command, argument))
    })
}

#[unsafe(export_name = "ferroce_s_fcntl64")]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    control(fd, command, argument, |fd, command, argument| {
        real!(c"fcntl64", fn(c_int, c_int, usize) -> c_int, (fd, command, argument))
    })
}

#[unsafe(export_name = "ferroce_s_ioctl")]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int {
    let rs = rsocket(fd).filter(|_| !argument.is_null());
    match (rs, request) {
        (Some(rs), libc::FIONBIO) => {
            // SAFETY: the program passes an integer with this request.
            let flags = if unsafe { *argument } != 0 { libc::O_NONBLOCK } else { 0 };
            // SAFETY: an rsocket; flags.
            unsafe { r::rfcntl(rs, libc::F_SETFL, flags) }
        }
        (Some(rs), libc::FIONREAD) => {
            // Of a stream all that has come, and its errors stay; of datagrams the first.
            let there = r::unread(rs).unwrap_or_else(|| {
                let mut ahead = vec![0u8; 1 << 16];
                let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
                // SAFETY: a buffer of this length.
                let there = unsafe { r::rrecv(rs, ahead.as_mut_ptr().cast(), ahead.len(), flags) };
                c_int::try_from(there).unwrap_or(0).max(0)
            });
            // SAFETY: the program passes a place for an integer with this request.
            unsafe { *argument = there };
            0
        }
        _ => real!(c"ioctl", fn(c_int, c_ulong, *mut c_int) -> c_int, (fd, request, argument)),
    }
}
