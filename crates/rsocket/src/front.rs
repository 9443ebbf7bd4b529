//! What the kernel shows of a socket. A socket's number is one end of a pair of connected sockets, of which the library has the other.
//! The pair is kept so that poll, select and epoll of the kernel find the number ready for what the rsocket is ready for:
//!
//! | the rsocket | the pair |
//! |---|---|
//! | has something to read | a byte lies at the number; each arrival puts one there, so each is an edge |
//! | has no room to send | the number's sending buffer is full |
//! | has read the end of the stream | the other end has shut its sending side |
//! | is closed in both directions | the other end is shut |
//! | has failed | the other end is closed with a byte unread, which is a reset |
//!
//! The last two are final, as they are for a socket.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::c_short;

/// Bytes that lie at the number before they are taken away for a new one.
const MOST_BYTES: usize = 8;
/// Bytes that fill the number's sending buffer, at most.
const MOST_TO_FILL: usize = 64;
const ENDED: c_short = libc::POLLRDHUP | libc::POLLHUP;

/// The library's end of the pair, and what the number shows.
#[derive(Debug)]
pub(crate) struct FrontSocket {
    /// None once the number shows that the socket has failed, or is closed.
    other: Option<OwnedFd>,
    /// The number shows an error that hasn't been reported to the program.
    error: bool,
    /// Bytes that lie at the number.
    bytes: usize,
    /// The count of arrivals that is shown.
    arrivals: u64,
    full: bool,
    /// POLLRDHUP and POLLHUP, as far as they are shown.
    ended: c_short,
}

impl FrontSocket {
    /// A new pair: the number and the other end.
    pub(crate) fn new() -> io::Result<(OwnedFd, Self)> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a place for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: new descriptors.
        let [number, other] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let smallest: libc::c_int = 1;
        // SAFETY: a value of this length. If it fails, filling takes more bytes.
        unsafe {
            libc::setsockopt(
                number.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_SNDBUF,
                (&raw const smallest).cast(),
                size_of_val(&smallest) as libc::socklen_t,
            );
        }
        Ok((number, Self { other: Some(other), error: false, bytes: 0, arrivals: 0, full: false, ended: 0 }))
    }

    /// Has `number` show that the socket is `ready`, after so many arrivals.
    pub(crate) fn show(&mut self, number: RawFd, ready: c_short, arrivals: u64) {
        let Some(other) = self.other.as_ref().map(AsRawFd::as_raw_fd) else {
            if self.error && ready & libc::POLLERR == 0 {
                self.error = false;
                clear_error(number);
            }
            return;
        };
        if ready & libc::POLLERR != 0 {
            put(number);
            self.other = None;
            self.error = true;
            // A child of a fork may have the other end open for longer.
            // SAFETY: no memory is passed.
            unsafe { libc::shutdown(number, libc::SHUT_RDWR) };
            return;
        }
        let is_full = ready & libc::POLLOUT == 0;
        if is_full && !self.full {
            fill(number);
        } else if !is_full && self.full {
            while take(other) {}
        }
        self.full = is_full;
        // Before what makes the number readable: a waiting thread sees both at once.
        // A socket that was never connected hangs up for now, which a pair can't show.
        let ended = if ready & libc::POLLRDHUP == 0 { 0 } else { ready & ENDED };
        if ended & !self.ended != 0 {
            let how = if ended & libc::POLLHUP != 0 { libc::SHUT_RDWR } else { libc::SHUT_WR };
            // SAFETY: no memory is passed.
            unsafe { libc::shutdown(other, how) };
            self.ended |= ended;
        }
        if ready & libc::POLLIN == 0 {
            self.empty(number);
        } else if self.ended == 0 && (self.bytes == 0 || self.arrivals != arrivals) {
            if self.bytes == MOST_BYTES {
                self.empty(number);
            }
            self.bytes += usize::from(put(other));
        }
        self.arrivals = arrivals;
    }

    fn empty(&mut self, number: RawFd) {
        while self.bytes > 0 && take(number) {}
        self.bytes = 0;
    }

    /// Shows nothing more: the socket is being closed.
    pub(crate) fn end(&mut self) {
        self.other = None;
    }
}

/// Sends a byte; whether there was room.
fn put(from: RawFd) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: a byte.
    unsafe { libc::send(from, [0u8].as_ptr().cast(), 1, flags) == 1 }
}

/// Takes the bytes that lie at a socket, or some; whether there were any.
fn take(at: RawFd) -> bool {
    let mut bytes = [0u8; MOST_TO_FILL];
    // SAFETY: room for so many bytes.
    unsafe { libc::recv(at, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) > 0 }
}

/// Takes the kernel's error of a socket.
fn clear_error(number: RawFd) {
    let (mut error, mut length) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: places of these lengths.
    unsafe {
        let error = (&raw mut error).cast();
        libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_ERROR, error, &raw mut length);
    }
}

/// Sends until the kernel finds no room. Each byte takes as much of the buffer as a large piece.
fn fill(number: RawFd) {
    for _ in 0..MOST_TO_FILL {
        let mut asked = libc::pollfd { fd: number, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one descriptor; it doesn't wait.
        let found = unsafe { libc::poll(&raw mut asked, 1, 0) };
        if found != 1 || asked.revents & libc::POLLOUT == 0 || !put(number) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: c_short = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;

    fn polled(number: &OwnedFd) -> c_short {
        let mut asked = libc::pollfd { fd: number.as_raw_fd(), events: ALL, revents: 0 };
        // SAFETY: one descriptor.
        assert!(unsafe { libc::poll(&raw mut asked, 1, 0) } >= 0);
        asked.revents
    }

    #[test]
    fn a_failed_socket_shows_what_tcp_does() {
        let (number, mut front) = FrontSocket::new().unwrap();
        front.show(number.as_raw_fd(), libc::POLLIN, 1);
        front.show(number.as_raw_fd(), libc::POLLIN | libc::POLLOUT | libc::POLLERR, 1);
        assert_eq!(polled(&number), ALL | libc::POLLHUP | libc::POLLERR);
        front.show(number.as_raw_fd(), libc::POLLERR, 2);
        assert_eq!(polled(&number), ALL | libc::POLLHUP | libc::POLLERR);
        // The error has been reported.
        front.show(number.as_raw_fd(), ALL | libc::POLLHUP, 2);
        assert_eq!(polled(&number), ALL | libc::POLLHUP);
    }

    #[test]
    fn each_arrival_is_an_edge() {
        let (number, mut front) = FrontSocket::new().unwrap();
        // SAFETY: no memory is passed; a valid event and room for one.
        unsafe {
            let set = OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC));
            let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 1 };
            let (set, number) = (set.as_raw_fd(), number.as_raw_fd());
            assert_eq!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, number, &raw mut event), 0);
            assert_eq!(libc::epoll_wait(set, &raw mut event, 1, 0), 0);
            for arrivals in 1..100 {
                front.show(number, ALL & !libc::POLLRDHUP, arrivals);
                assert_eq!(libc::epoll_wait(set, &raw mut event, 1, 0), 1, "{arrivals}");
                front.show(number, ALL & !libc::POLLRDHUP, arrivals);
                assert_eq!(libc::epoll_wait(set, &raw mut event, 1, 0), 0, "{arrivals}");
            }
        }
    }

    proptest! {
        #[test]
        fn the_kernel_finds_what_is_shown(steps in proptest::collection::vec((any::<bool>(), any::<bool>(), 0..3u64), 1..60), end in 0..3) {
            let (number, mut front) = FrontSocket::new().unwrap();
            let mut arrivals = 0;
            for (readable, writable, more) in steps {
                arrivals += more;
                let ready = if readable { libc::POLLIN } else { 0 } | if writable { libc::POLLOUT } else { 0 };
                front.show(number.as_raw_fd(), ready, arrivals);
                prop_assert_eq!(polled(&number), ready);
            }
            let ended = libc::POLLIN | libc::POLLRDHUP;
            let last = match end {
                0 => ended,
                1 => ended | libc::POLLOUT,
                _ => ended | libc::POLLOUT | libc::POLLHUP,
            };
            front.show(number.as_raw_fd(), last, arrivals);
            prop_assert_eq!(polled(&number), last);
            front.show(number.as_raw_fd(), last, arrivals + 1);
            prop_assert_eq!(polled(&number), last);
        }
    }
}
