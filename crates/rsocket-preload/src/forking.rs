//! Servers that fork for each connection, with RDMAV_FORK_SAFE as with rdma-core's library: a connection of RDMA can't be handed to a
//! child, so stream sockets begin as ordinary ones. When the program first sends or receives by one, it is replaced: the side that has
//! accepted it listens at the same port by an rsocket, and says so with four zero bytes; the other side connects an rsocket there.
//!
//! A socket that can't be replaced goes on as an ordinary one. A server that waits by poll(2) for the first bytes isn't covered, as
//! with rdma-core's.

use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use libc::{sockaddr_storage, socklen_t};

use crate::numbers::{self, MOST, inside, is_inside, rsocket};
use crate::real::errno;
use crate::rsocket as r;
use crate::sockets::set_sizes;

/// How long either side waits for the other, once a socket is to be replaced.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a port that another child listens at is waited for in between.
const PAUSE: Duration = Duration::from_millis(2);
/// What says that the side that has accepted listens.
const GO_AHEAD: [u8; 4] = [0; 4];

/// Nothing is to be replaced.
const ORDINARY: u8 = 0;
/// A new socket.
pub(crate) const FRESH: u8 = 1;
/// It listens.
pub(crate) const LISTENING: u8 = 2;
/// It has connected.
pub(crate) const CONNECTED: u8 = 3;
/// It was accepted.
pub(crate) const ACCEPTED: u8 = 4;
/// A thread is replacing it.
const BUSY: u8 = 5;

static STEPS: [AtomicU8; MOST] = [const { AtomicU8::new(ORDINARY) }; MOST];
/// There has been a socket that is to be replaced.
static ANY: AtomicBool = AtomicBool::new(false);

fn place(number: c_int) -> Option<&'static AtomicU8> {
    if !ANY.load(Ordering::Relaxed) || is_inside() {
        return None;
    }
    STEPS.get(usize::try_from(number).ok()?)
}

/// Whether a socket of the program begins as an ordinary one; `kind` is without flags.
pub(crate) fn is_wanted(domain: c_int, kind: c_int) -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    let asked = || {
        std::env::var("RDMAV_FORK_SAFE")
            .is_ok_and(|value| value.trim().parse::<i32>().is_ok_and(|value| value != 0))
    };
    matches!(domain, libc::AF_INET | libc::AF_INET6) && kind == libc::SOCK_STREAM && *ASKED.get_or_init(asked)
}

/// A new socket, which is to be replaced.
pub(crate) fn begin(number: c_int) {
    if let Some(place) = usize::try_from(number).ok().and_then(|number| STEPS.get(number)) {
        ANY.store(true, Ordering::Relaxed);
        place.store(FRESH, Ordering::Release);
    }
}

/// Takes a socket from one step to the next.
pub(crate) fn step(number: c_int, from: u8, to: u8) {
    if let Some(place) = place(number) {
        let _ = place.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }
}

pub(crate) fn is_listening(number: c_int) -> bool {
    place(number).is_some_and(|place| place.load(Ordering::Acquire) == LISTENING)
}

/// A socket that was accepted from one that is to be replaced; −1 stays −1.
pub(crate) fn accepted(number: c_int) -> c_int {
    if let Some(place) = place(number) {
        place.store(ACCEPTED, Ordering::Release);
    }
    number
}

/// It is closed.
pub(crate) fn end(number: c_int) {
    if let Some(place) = place(number) {
        place.store(ORDINARY, Ordering::Release);
    }
}

/// The rsocket behind a number by which the program is about to send or receive.
#[inline]
pub(crate) fn settled(number: c_int) -> Option<c_int> {
    if let Some(place) = place(number) {
        settle(number, place);
    }
    rsocket(number)
}

/// Replaces a socket whose turn has come. Another thread that is at it is waited for.
#[cold]
fn settle(number: c_int, place: &AtomicU8) {
    loop {
        let step = place.load(Ordering::Acquire);
        match step {
            CONNECTED | ACCEPTED => {}
            BUSY => {
                std::thread::sleep(PAUSE);
                continue;
            }
            _ => return,
        }
        if place.compare_exchange(step, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let before = errno();
            inside(|| replace(number, step));
            crate::real::set_errno(before);
            place.store(ORDINARY, Ordering::Release);
            return;
        }
    }
}

fn replace(number: c_int, step: u8) {
    let Some(new) = (if step == ACCEPTED { accept(number) } else { connect(number) }) else { return };
    set_sizes(new);
    // SAFETY: numbers of sockets, flags, and values of these lengths.
    unsafe {
        let flags = libc::fcntl(number, libc::F_GETFL) & libc::O_NONBLOCK;
        r::rfcntl(new, libc::F_SETFL, flags);
        let mut linger: libc::linger = zeroed();
        let mut length = size_of::<libc::linger>() as socklen_t;
        let value = (&raw mut linger).cast();
        if libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_LINGER, value, &raw mut length) == 0 {
            r::rsetsockopt(new, libc::SOL_SOCKET, libc::SO_LINGER, value, length);
        }
        libc::shutdown(number, libc::SHUT_RDWR);
        if libc::dup2(new, number) < 0 || !numbers::set(number, new) {
            r::rclose(new);
        }
    }
}

/// What is left until `deadline`, in milliseconds.
fn left(deadline: Instant) -> c_int {
    deadline.saturating_duration_since(Instant::now()).as_millis() as c_int
}

/// The address of one end of a socket, by `getsockname` or `getpeername`.
fn address(
    number: c_int,
    of: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut socklen_t) -> c_int,
) -> Option<(sockaddr_storage, socklen_t)> {
    // SAFETY: numbers only; room for any address.
    unsafe {
        let mut storage: sockaddr_storage = zeroed();
        let mut length = size_of::<sockaddr_storage>() as socklen_t;
        (of(number, (&raw mut storage).cast(), &raw mut length) == 0).then_some((storage, length))
    }
}

/// Listens for the peer of a socket that was accepted.
fn accept(number: c_int) -> Option<c_int> {
    let deadline = Instant::now() + LIMIT;
    let (mut here, length) = address(number, libc::getsockname)?;
    // At any address: the program's own listener has the port of sockets only.
    // SAFETY: an address of its family.
    unsafe {
        match c_int::from(here.ss_family) {
            libc::AF_INET => (*(&raw mut here).cast::<libc::sockaddr_in>()).sin_addr.s_addr = 0,
            libc::AF_INET6 => {
                let here = (&raw mut here).cast::<libc::sockaddr_in6>();
                *here = libc::sockaddr_in6 {
                    sin6_family: (*here).sin6_family,
                    sin6_port: (*here).sin6_port,
                    ..zeroed()
                };
            }
            _ => return None,
        }
    }
    let listener = loop {
        // SAFETY: an rsocket, and an address.
        unsafe {
            let listener = r::rsocket(c_int::from(here.ss_family), libc::SOCK_STREAM, 0);
            if listener < 0 {
                return None;
            }
            if r::rbind(listener, (&raw const here).cast(), length) == 0 && r::rlisten(listener, 1) == 0 {
                break listener;
            }
            let why = errno();
            r::rclose(listener);
            if !matches!(why, libc::EADDRINUSE | libc::EADDRNOTAVAIL) || left(deadline) == 0 {
                return None;
            }
        }
        // Another child has the port for its own peer.
        std::thread::sleep(PAUSE);
    };
    // SAFETY: a socket, an rsocket, and memory of these lengths.
    unsafe {
        let mut wanted = libc::pollfd { fd: listener, events: libc::POLLIN, revents: 0 };
        let flags = libc::MSG_NOSIGNAL;
        let told = libc::send(number, GO_AHEAD.as_ptr().cast(), GO_AHEAD.len(), flags);
        let comes = told == GO_AHEAD.len() as isize && r::rpoll(&raw mut wanted, 1, left(deadline)) == 1;
        let new = if comes { r::raccept(listener, std::ptr::null_mut(), std::ptr::null_mut()) } else { -1 };
        r::rclose(listener);
        (new >= 0).then_some(new)
    }
}

/// Connects to the peer of a socket that has connected, once it says that it listens.
fn connect(number: c_int) -> Option<c_int> {
    let deadline = Instant::now() + LIMIT;
    let mut said = [0xff; GO_AHEAD.len()];
    loop {
        let mut answer = libc::pollfd { fd: number, events: libc::POLLIN, revents: 0 };
        // SAFETY: a socket, and memory of these lengths.
        let there = unsafe {
            if libc::poll(&raw mut answer, 1, left(deadline)) != 1 {
                return None;
            }
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            libc::recv(number, said.as_mut_ptr().cast(), said.len(), flags)
        };
        match usize::try_from(there) {
            Ok(length) if length == GO_AHEAD.len() => break,
            // Part of it, which is there still.
            Ok(1..) if left(deadline) > 0 => std::thread::sleep(PAUSE),
            _ => return None,
        }
    }
    let (there, length) = address(number, libc::getpeername).filter(|_| said == GO_AHEAD)?;
    // SAFETY: an rsocket, and an address.
    unsafe {
        let new = r::rsocket(c_int::from(there.ss_family), libc::SOCK_STREAM, 0);
        if new >= 0 && r::rconnect(new, (&raw const there).cast(), length) != 0 {
            r::rclose(new);
            return None;
        }
        (new >= 0).then_some(new)
    }
}
