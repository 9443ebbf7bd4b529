//! The C functions: the table of `librdmacm.so.1` gives each its name and version.

use std::ffi::{c_int, c_void};
use std::slice;

use libc::{epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, timeval};

use crate::datagram::DatagramSocket;
use crate::options;
use crate::poll::{self, Sets};
use crate::repoll;
use crate::stream::StreamSocket;
use crate::table::{self, Socket};
use ferroce_rsocket_calls::address;
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal, minus_one};
use ferroce_rsocket_calls::signals;
use ferroce_rsocket_calls::waiting::deadline;

/// Defines the function behind an export. One that is `waiting` is a cancellation point.
macro_rules! entry {
    (waiting $($function:tt)*) => { entry! { @ true, $($function)* } };
    (fn $($function:tt)*) => { entry! { @ false, fn $($function)* } };
    (@ $waits:literal, fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block) => {
        #[unsafe(export_name = concat!("ferroce_c_", stringify!($name)))]
        unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
            minus_one(stringify!($name), $waits, || -> Outcome<$ret> { $body })
        }
    };
}

/// An option of ours: the kernel's poll, select and epoll find the number ready for what the rsocket is ready for. Setting it, to whatever
/// value, lasts. libferroce_rsocket_preload.so sets it.
const SHOWN: (c_int, c_int) = (options::SOL_RDMA, 0x4652);
/// A function that marks the threads that are in a call, of all sockets: as [`signals::set_mark`] has it. Of the preload library, too.
const MARK: (c_int, c_int) = (options::SOL_RDMA, 0x4654);
/// How many bytes of a stream can be received: FIONREAD of the kernel's sockets. Of the preload library, too.
const UNREAD: (c_int, c_int) = (options::SOL_RDMA, 0x4653);

/// An array that a program passes.
///
/// # Safety
/// `first` is null or points to `count` elements.
unsafe fn array<'a, T>(first: *const T, count: usize, what: &'static str) -> Outcome<&'a [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(SocketRefusal::new(libc::EFAULT, what)),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { slice::from_raw_parts(first, count) }),
    }
}

/// Pieces of memory that a program passes.
///
/// # Safety
/// As for [`array`].
unsafe fn pieces<'a>(first: *const iovec, count: usize) -> Outcome<&'a [iovec]> {
    const MOST: usize = 1024;
    if count > MOST {
        return Err(SocketRefusal::new(libc::EINVAL, "too many pieces of memory"));
    }
    // SAFETY: the caller's promise.
    let pieces = unsafe { array(first, count, "no pieces of memory") }?;
    let total = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.iov_len));
    match total.map(isize::try_from) {
        Some(Ok(_)) => Ok(pieces),
        _ => Err(SocketRefusal::new(libc::EINVAL, "the pieces of memory are too long together")),
    }
}

/// Whether pieces have no bytes: the kernel doesn't ask a socket then.
fn have_nothing(pieces: &[iovec]) -> bool {
    pieces.iter().all(|piece| piece.iov_len == 0)
}

fn piece(buffer: *const c_void, length: usize) -> [iovec; 1] {
    [iovec { iov_base: buffer.cast_mut(), iov_len: length.min(isize::MAX as usize) }]
}

fn done(bytes: usize) -> isize {
    bytes as isize
}

entry! { fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
    let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    if !matches!(domain, libc::AF_INET | libc::AF_INET6 | address::AF_IB) {
        return Err(SocketRefusal::new(libc::ENOTSUP, "rsockets are of AF_INET, AF_INET6 or AF_IB"));
    }
    match (kind, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
            Ok(table::add(Socket::Stream(StreamSocket::new(domain, nonblocking)?)))
        }
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) if domain != address::AF_IB => {
            Ok(table::add(Socket::Datagram(DatagramSocket::new(domain, nonblocking)?)))
        }
        _ => Err(SocketRefusal::new(libc::ENOTSUP, "rsockets are SOCK_STREAM or SOCK_DGRAM, with the usual protocol")),
    }
} }

entry! { fn rbind(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int {
    let socket = table::get(fd)?;
    // SAFETY: the program's promise.
    let name = unsafe { address::read(name, length) }?;
    match socket {
        Socket::Stream(stream) => stream.bind(name)?,
        Socket::Datagram(datagram) => datagram.bind(name)?,
    }
    Ok(0)
} }

entry! { fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    table::get_stream(fd)?.listen(backlog)?;
    Ok(0)
} }

entry! { waiting fn raccept(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let stream = table::get_stream(fd)?.accept()?;
    if let Ok(peer) = stream.peer_name() {
        // SAFETY: the program's promise.
        unsafe { address::write(&peer, name, length) };
    }
    Ok(table::add(Socket::Stream(stream)))
} }

entry! { waiting fn rconnect(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int {
    let socket = table::get(fd)?;
    match socket {
        Socket::Stream(stream) => {
            // SAFETY: the program's promise.
            stream.connect(unsafe { address::read(name, length) }?)?;
        }
        Socket::Datagram(datagram) => {
            // SAFETY: as above.
            let unspecific = !name.is_null() && unsafe { (*name).sa_family } == libc::AF_UNSPEC as u16;
            // SAFETY: as above.
            let name = if unspecific { address::nothing(0) } else { unsafe { address::read(name, length) }? };
            datagram.connect(name)?;
        }
    }
    Ok(0)
} }

entry! { fn rshutdown(fd: c_int, how: c_int) -> c_int {
    match table::get(fd)? {
        Socket::Stream(stream) => stream.shutdown(how)?,
        Socket::Datagram(datagram) => {
            datagram.peer_name()?;
        }
    }
    Ok(0)
} }

entry! { fn rclose(fd: c_int) -> c_int {
    if repoll::close(fd) {
        return Ok(0);
    }
    match table::remove(fd)? {
        Socket::Stream(stream) => stream.close(),
        Socket::Datagram(datagram) => datagram.close(),
    }
    Ok(0)
} }

/// # Safety
/// The pieces are writable; name and length are as for [`address::write`].
unsafe fn receive(
    fd: c_int,
    pieces: &[iovec],
    flags: c_int,
    name: *mut sockaddr,
    length: *mut socklen_t,
) -> Outcome<(usize, bool)> {
    match table::get(fd)? {
        Socket::Stream(stream) => {
            // SAFETY: the caller's promise.
            let received = unsafe { stream.receive(pieces, flags) }?;
            if !name.is_null()
                && received > 0
                && let Ok(peer) = stream.peer_name()
            {
                // SAFETY: as above.
                unsafe { address::write(&peer, name, length) };
            }
            Ok((received, false))
        }
        Socket::Datagram(datagram) => {
            // SAFETY: as above.
            let (received, truncated, from) = unsafe { datagram.receive(pieces, flags) }?;
            // SAFETY: as above.
            unsafe { address::write(&from, name, length) };
            Ok((received, truncated))
        }
    }
}

/// # Safety
/// The pieces are readable; the name is null or readable for `length` bytes.
unsafe fn send(
    fd: c_int,
    pieces: &[iovec],
    flags: c_int,
    name: *const sockaddr,
    length: socklen_t,
) -> Outcome<usize> {
    match table::get(fd)? {
        // SAFETY: the caller's promise.
        Socket::Stream(stream) => unsafe { stream.send(pieces, flags) },
        Socket::Datagram(datagram) => {
            // SAFETY: as above.
            let to = if name.is_null() { None } else { Some(unsafe { address::read(name, length) }?) };
            // SAFETY: as above.
            unsafe { datagram.send(pieces, flags, to) }
        }
    }
}

entry! { waiting fn rrecv(fd: c_int, buffer: *mut c_void, length: usize, flags: c_int) -> isize {
    // SAFETY: the program's promise.
    Ok(done(unsafe { receive(fd, &piece(buffer, length), flags, std::ptr::null_mut(), std::ptr::null_mut()) }?.0))
} }

entry! { waiting fn rrecvfrom(
    fd: c_int, buffer: *mut c_void, length: usize, flags: c_int, name: *mut sockaddr, name_length: *mut socklen_t,
) -> isize {
    // SAFETY: the program's promise.
    Ok(done(unsafe { receive(fd, &piece(buffer, length), flags, name, name_length) }?.0))
} }

entry! { waiting fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: the program's promise, here and below.
    let message = unsafe { message.as_mut() }.ok_or_else(|| SocketRefusal::new(libc::EFAULT, "no message"))?;
    // SAFETY: as above.
    let pieces = unsafe { pieces(message.msg_iov, message.msg_iovlen) }?;
    // SAFETY: as above.
    let (bytes, truncated) =
        unsafe { receive(fd, pieces, flags, message.msg_name.cast(), &mut message.msg_namelen) }?;
    message.msg_controllen = 0;
    message.msg_flags = if truncated { libc::MSG_TRUNC } else { 0 };
    Ok(done(bytes))
} }

entry! { waiting fn rsend(fd: c_int, buffer: *const c_void, length: usize, flags: c_int) -> isize {
    // SAFETY: the program's promise.
    Ok(done(unsafe { send(fd, &piece(buffer, length), flags, std::ptr::null(), 0) }?))
} }

entry! { waiting fn rsendto(
    fd: c_int, buffer: *const c_void, length: usize, flags: c_int, name: *const sockaddr, name_length: socklen_t,
) -> isize {
    // SAFETY: the program's promise.
    Ok(done(unsafe { send(fd, &piece(buffer, length), flags, name, name_length) }?))
} }

entry! { waiting fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    // SAFETY: the program's promise, here and below.
    let message = unsafe { message.as_ref() }.ok_or_else(|| SocketRefusal::new(libc::EFAULT, "no message"))?;
    if message.msg_controllen != 0 && !message.msg_control.is_null() {
        return Err(SocketRefusal::new(libc::ENOTSUP, "rsockets carry no control messages"));
    }
    // SAFETY: as above.
    let pieces = unsafe { pieces(message.msg_iov, message.msg_iovlen) }?;
    // SAFETY: as above.
    Ok(done(unsafe { send(fd, pieces, flags, message.msg_name.cast(), message.msg_namelen) }?))
} }

entry! { waiting fn rread(fd: c_int, buffer: *mut c_void, length: usize) -> isize {
    // SAFETY: the program's promise.
    Ok(done(unsafe { receive(fd, &piece(buffer, length), 0, std::ptr::null_mut(), std::ptr::null_mut()) }?.0))
} }

fn count(number: c_int) -> Outcome<usize> {
    usize::try_from(number).map_err(|_| SocketRefusal::new(libc::EINVAL, "a negative number"))
}

entry! { waiting fn rreadv(fd: c_int, first: *const iovec, number: c_int) -> isize {
    // SAFETY: the program's promise.
    let pieces = unsafe { pieces(first, count(number)?) }?;
    if have_nothing(pieces) {
        return Ok(0);
    }
    // SAFETY: as above.
    Ok(done(unsafe { receive(fd, pieces, 0, std::ptr::null_mut(), std::ptr::null_mut()) }?.0))
} }

entry! { waiting fn rwrite(fd: c_int, buffer: *const c_void, length: usize) -> isize {
    // SAFETY: the program's promise.
    Ok(done(unsafe { send(fd, &piece(buffer, length), 0, std::ptr::null(), 0) }?))
} }

entry! { waiting fn rwritev(fd: c_int, first: *const iovec, number: c_int) -> isize {
    // SAFETY: the program's promise.
    let pieces = unsafe { pieces(first, count(number)?) }?;
    if have_nothing(pieces) {
        return Ok(0);
    }
    // SAFETY: as above.
    Ok(done(unsafe { send(fd, pieces, 0, std::ptr::null(), 0) }?))
} }

entry! { waiting fn rpoll(first: *mut pollfd, number: nfds_t, timeout: c_int) -> c_int {
    let number = number as usize;
    if first.is_null() && number > 0 {
        return Err(SocketRefusal::new(libc::EFAULT, "no descriptors"));
    }
    let until = deadline(timeout);
    // SAFETY: the program's promise.
    let fds = if number == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(first, number) } };
    poll::poll(fds, until)
} }

entry! { waiting fn rselect(
    numbers: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval,
) -> c_int {
    // SAFETY: the program's promise.
    let (sets, timeout) = unsafe {
        (Sets { read: read.as_mut(), write: write.as_mut(), except: except.as_mut() }, timeout.as_ref())
    };
    let until = match timeout {
        None => None,
        Some(timeout) => {
            let (seconds, micros) = (u64::try_from(timeout.tv_sec), u64::try_from(timeout.tv_usec));
            let (Ok(seconds), Ok(micros)) = (seconds, micros) else {
                return Err(SocketRefusal::new(libc::EINVAL, "a negative time"));
            };
            let whole = std::time::Duration::from_secs(seconds) + std::time::Duration::from_micros(micros);
            std::time::Instant::now().checked_add(whole)
        }
    };
    poll::select(numbers, sets, until)
} }

entry! { fn rgetpeername(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let peer = match table::get(fd)? {
        Socket::Stream(stream) => stream.peer_name()?,
        Socket::Datagram(datagram) => datagram.peer_name()?,
    };
    // SAFETY: the program's promise.
    unsafe { address::write(&peer, name, length) };
    Ok(0)
} }

entry! { fn rgetsockname(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let own = match table::get(fd)? {
        Socket::Stream(stream) => stream.local_name()?,
        Socket::Datagram(datagram) => datagram.local_name()?,
    };
    // SAFETY: the program's promise.
    unsafe { address::write(&own, name, length) };
    Ok(0)
} }

entry! { fn rsetsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int {
    match table::get(fd)? {
        socket if (level, name) == SHOWN => socket.show()?,
        _ if (level, name) == MARK && length as usize == size_of::<*mut ()>() && !value.is_null() => {
            // SAFETY: the program's promise.
            signals::set_mark(unsafe { value.cast::<*mut ()>().read_unaligned() });
        }
        Socket::Stream(stream) => {
            let mut inner = stream.lock()?;
            let about = inner.about();
            // SAFETY: the program's promise.
            unsafe { inner.options.set(&about, level, name, value, length) }?;
            drop(inner);
            stream.options_have_changed();
        }
        Socket::Datagram(datagram) => {
            let mut inner = datagram.lock()?;
            let about = inner.about();
            // SAFETY: as above.
            unsafe { inner.options.set(&about, level, name, value, length) }?;
            if about.is_of_udp_too(level, name) {
                // SAFETY: as above. The option is kept, whatever UDP thinks of it.
                unsafe { libc::setsockopt(inner.udp(), level, name, value, length) };
            }
        }
    }
    Ok(0)
} }

entry! { fn rgetsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int {
    let told = match table::get(fd)? {
        socket if (level, name) == SHOWN => c_int::from(socket.core().lock()?.is_shown()).to_ne_bytes().to_vec(),
        Socket::Stream(stream) if (level, name) == UNREAD => stream.unread()?.to_ne_bytes().to_vec(),
        Socket::Stream(stream) if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) => {
            stream.take_error()?.to_ne_bytes().to_vec()
        }
        Socket::Stream(stream) => {
            let inner = stream.lock()?;
            inner.options.get(&inner.about(), level, name)?
        }
        Socket::Datagram(_) if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) => {
            (0 as c_int).to_ne_bytes().to_vec()
        }
        Socket::Datagram(datagram) => {
            let inner = datagram.lock()?;
            inner.options.get(&inner.about(), level, name)?
        }
    };
    // SAFETY: the program's promise.
    unsafe { options::tell(&told, value, length) }?;
    Ok(0)
} }

// Variadic in C: on the architectures that there are trampolines for, a third argument comes the same way.
entry! { fn rfcntl(fd: c_int, command: c_int, argument: c_int) -> c_int {
    let socket = table::get(fd)?;
    match command {
        libc::F_GETFL => Ok(libc::O_RDWR | if socket.core().is_nonblocking() { libc::O_NONBLOCK } else { 0 }),
        libc::F_SETFL => {
            socket.core().set_nonblocking(argument & libc::O_NONBLOCK != 0);
            Ok(0)
        }
        libc::F_GETFD | libc::F_SETFD => {
            // SAFETY: no memory is passed.
            match unsafe { libc::fcntl(fd, command, argument) } {
                -1 => Err(SocketRefusal::last("fcntl")),
                flags => Ok(flags),
            }
        }
        _ => Err(SocketRefusal::new(libc::ENOTSUP, "rfcntl has F_GETFL, F_SETFL, F_GETFD and F_SETFD")),
    }
} }

entry! { fn riomap(fd: c_int, buffer: *mut c_void, length: usize, protection: c_int, flags: c_int, offset: off_t) -> off_t {
    if flags != 0 || !matches!(protection, libc::PROT_WRITE | libc::PROT_NONE) {
        return Err(SocketRefusal::new(libc::EINVAL, "riomap has PROT_WRITE and PROT_NONE, and no flags"));
    }
    let offset = u64::try_from(offset).ok();
    let write = protection == libc::PROT_WRITE;
    Ok(table::get_stream(fd)?.map((buffer as usize, length), write, offset)?.cast_signed())
} }

entry! { fn riounmap(fd: c_int, buffer: *mut c_void, length: usize) -> c_int {
    table::get_stream(fd)?.unmap((buffer as usize, length))?;
    Ok(0)
} }

// In C it returns a `size_t`, and (size_t) -1 when it fails.
entry! { fn riowrite(fd: c_int, buffer: *const c_void, count: usize, offset: off_t, flags: c_int) -> isize {
    let stream = table::get_stream(fd)?;
    // SAFETY: the program's promise.
    Ok(done(unsafe { stream.write_mapped(buffer.cast(), count, offset.cast_unsigned(), flags) }?))
} }

entry! { fn repoll_create(flags: c_int) -> c_int {
    repoll::create(flags)
} }

entry! { fn repoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the program's promise.
    unsafe { repoll::control(set, operation, fd, event) }?;
    Ok(0)
} }

entry! { waiting fn repoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    // SAFETY: the program's promise.
    unsafe { repoll::wait(set, events, most, deadline(timeout)) }
} }
