//! Servers that fork for each connection, with RDMAV_FORK_SAFE as with rdma-core's library: a connection of RDMA can't be handed to a
//! child, so stream sockets begin as ordinary ones. When the program first sends or receives by one, it is replaced: the side that has
//! accepted it listens at the same port by an rsocket, and gives the word; the other side connects an rsocket there.
//!
//! The word is an urgent byte of TCP, which isn't part of the stream: a side that doesn't know it, or is too late for it, reads what
//! the program has sent and nothing else. rdma-core's word is four zero bytes of the stream. They are understood here, and never sent.
//!
//! A socket that can't be replaced goes on as an ordinary one.

use std::ffi::c_int;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libc::{pollfd, sockaddr_storage, socklen_t};

use crate::inside::{handlers_held, is_inside, marked};
use crate::numbers::{self, identity, rsocket};
use crate::real::errno;
use crate::rsocket::{self as r, MOST};

/// How long either side waits for the other, once a socket is to be replaced.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a port that another child listens at is waited for in between.
const PAUSE: Duration = Duration::from_millis(2);
/// The word of rdma-core's library.
const RDMA_CORES_WORD: [u8; 4] = [0; 4];
/// Options of a socket that its rsocket gets. Sizes of buffers aren't among them: TCP's own differ from what the program asked for.
const OPTIONS: [(c_int, c_int); 8] = [
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
];

/// Nothing is to be replaced.
const ORDINARY: u8 = 0;
/// A new socket.
const FRESH: u8 = 1;
/// It listens, or is fit for nothing else.
const LISTENING: u8 = 2;
/// It has connected.
const CONNECTED: u8 = 3;
/// It was accepted.
const ACCEPTED: u8 = 4;
/// A thread is replacing it.
const BUSY: u8 = 5;

/// What is known of a number.
struct DescriptorState {
    step: AtomicU8,
    /// The socket that this was known of. A number may lead to another one since: not all ways to close it come by here.
    socket: AtomicU64,
}

static PLACES: [DescriptorState; MOST] =
    [const { DescriptorState { step: AtomicU8::new(ORDINARY), socket: AtomicU64::new(0) } }; MOST];
/// One more than the highest number that has ever had a step.
static UPTO: AtomicUsize = AtomicUsize::new(0);
/// There has been a socket that is to be replaced.
static ANY: AtomicBool = AtomicBool::new(false);

impl DescriptorState {
    fn step(&self) -> u8 {
        self.step.load(Ordering::Acquire)
    }

    /// Goes from one step to another; whether it was at that one.
    fn go(&self, from: u8, to: u8) -> bool {
        self.step.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

fn place(number: c_int) -> Option<&'static DescriptorState> {
    if !ANY.load(Ordering::Relaxed) || is_inside() {
        return None;
    }
    PLACES.get(usize::try_from(number).ok()?)
}

/// Places of numbers that have had a step.
fn used() -> &'static [DescriptorState] {
    &PLACES[..UPTO.load(Ordering::Relaxed)]
}

/// A number's place, if one of `steps` is known of the socket that it leads to.
fn at(number: c_int, steps: &[u8]) -> Option<&'static DescriptorState> {
    let place = place(number).filter(|place| steps.contains(&place.step()))?;
    let before = errno();
    let is_same = identity(number) == place.socket.load(Ordering::Relaxed);
    crate::real::set_errno(before);
    is_same.then_some(place)
}

/// Knows a step of the socket that a number leads to.
fn know(number: c_int, step: u8) {
    let Some(index) = usize::try_from(number).ok().filter(|index| *index < MOST) else { return };
    PLACES[index].socket.store(identity(number), Ordering::Relaxed);
    PLACES[index].step.store(step, Ordering::Release);
    UPTO.fetch_max(index + 1, Ordering::Relaxed);
    ANY.store(true, Ordering::Relaxed);
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

/// A new socket, which is to be replaced; −1 is none.
pub(crate) fn begin(number: c_int) {
    if number >= 0 {
        know(number, FRESH);
    }
}

/// A socket listens.
pub(crate) fn listens(number: c_int) {
    if let Some(place) = at(number, &[FRESH]) {
        place.go(FRESH, LISTENING);
    }
}

/// A socket connects. One that has several numbers stays an ordinary one.
pub(crate) fn connects(number: c_int) {
    let Some(place) = at(number, &[FRESH]) else { return };
    let socket = place.socket.load(Ordering::Relaxed);
    let others =
        used().iter().filter(|other| other.step() == FRESH && other.socket.load(Ordering::Relaxed) == socket);
    let others: Vec<&DescriptorState> = others.collect();
    // A number that leads elsewhere since may be among them: the socket is an ordinary one then too.
    let step = if others.len() > 1 { ORDINARY } else { CONNECTED };
    for place in others {
        place.go(FRESH, step);
    }
}

/// Whether sockets that are accepted from this one are to be replaced. One that doesn't listen has none.
pub(crate) fn is_listening(number: c_int) -> bool {
    at(number, &[FRESH, LISTENING]).is_some()
}

/// A socket that was accepted from one that is to be replaced; −1 stays −1.
pub(crate) fn accepted(number: c_int) -> c_int {
    if number >= 0 && !is_inside() {
        know(number, ACCEPTED);
    }
    number
}

/// `new` leads to the same socket; −1 is none.
pub(crate) fn copied(number: c_int, new: c_int) {
    if number != new
        && new >= 0
        && let Some(place) = at(number, &[FRESH, LISTENING])
    {
        know(new, place.step());
    }
}

/// A socket comes into an epoll set, which an rsocket in its place wouldn't be in: it stays an ordinary one. If it is yet to listen,
/// that is nothing to those that it accepts.
pub(crate) fn stays(number: c_int) {
    if let Some(place) = at(number, &[FRESH, CONNECTED, ACCEPTED]) {
        let _ = place.go(FRESH, LISTENING) || place.go(CONNECTED, ORDINARY) || place.go(ACCEPTED, ORDINARY);
    }
}

/// Whether an rsocket may come in the place of a socket.
pub(crate) fn may_be_replaced(number: c_int) -> bool {
    at(number, &[FRESH, CONNECTED, ACCEPTED, BUSY]).is_some()
}

/// Whether the word of the other side is yet to come to a socket, and lets the program receive.
pub(crate) fn awaits_word(number: c_int) -> bool {
    at(number, &[CONNECTED]).is_some()
}

/// It is closed.
pub(crate) fn end(number: c_int) {
    if let Some(place) = place(number) {
        place.step.store(ORDINARY, Ordering::Release);
    }
}

/// In a child of a fork: what threads of the parent are replacing is the parent's.
pub(crate) fn forget_others() {
    for place in used() {
        place.go(BUSY, ORDINARY);
    }
}

/// The rsocket behind a number by which the program is about to send or receive.
#[inline]
pub(crate) fn settled(number: c_int) -> Option<c_int> {
    if let Some(place) = place(number)
        && matches!(place.step(), CONNECTED | ACCEPTED | BUSY)
    {
        handlers_held(|| marked(|| settle(number, place)));
    }
    rsocket(number)
}

/// Replaces a socket whose turn has come. Another thread that is at it is waited for.
#[cold]
fn settle(number: c_int, place: &DescriptorState) {
    let before = errno();
    loop {
        let step = place.step();
        if step == BUSY {
            std::thread::sleep(PAUSE);
            continue;
        }
        if !matches!(step, CONNECTED | ACCEPTED) {
            break;
        }
        if place.go(step, BUSY) {
            if identity(number) == place.socket.load(Ordering::Relaxed) {
                replace(number, step, place);
            }
            place.go(BUSY, ORDINARY);
            break;
        }
    }
    crate::real::set_errno(before);
}

fn replace(number: c_int, step: u8, place: &DescriptorState) {
    let Some(new) = (if step == ACCEPTED { accept(number) } else { connect(number) }) else { return };
    // SAFETY: numbers of sockets, and flags.
    unsafe {
        // Another thread may have closed it.
        if place.step() != BUSY {
            r::rclose(new);
            return;
        }
        let flags = libc::fcntl(number, libc::F_GETFL) & libc::O_NONBLOCK;
        r::rfcntl(new, libc::F_SETFL, flags);
        let closes_on_exec = libc::fcntl(number, libc::F_GETFD) & libc::FD_CLOEXEC != 0;
        libc::shutdown(number, libc::SHUT_RDWR);
        if libc::dup3(new, number, if closes_on_exec { libc::O_CLOEXEC } else { 0 }) < 0
            || !numbers::set(number, new)
        {
            r::rclose(new);
        }
    }
}

/// A new rsocket with the options of a socket, of which no call waits.
fn make(family: c_int, number: c_int) -> Option<c_int> {
    // SAFETY: an rsocket, a socket, and values of these lengths.
    unsafe {
        // Before the peer is given the word, and TCP is shut: with librdmacm of rdma-core sockets stay ordinary ones.
        let new = r::new(family, libc::SOCK_STREAM, 0)?;
        for (level, name) in OPTIONS {
            let mut value = [0u64; 2];
            let mut length = size_of_val(&value) as socklen_t;
            if libc::getsockopt(number, level, name, value.as_mut_ptr().cast(), &raw mut length) == 0 {
                r::rsetsockopt(new, level, name, value.as_ptr().cast(), length);
            }
        }
        r::rfcntl(new, libc::F_SETFL, libc::O_NONBLOCK);
        Some(new)
    }
}

/// Ends an rsocket, and leaves `errno`.
fn close(rs: c_int) {
    let why = errno();
    // SAFETY: an rsocket that the program doesn't know.
    unsafe { r::rclose(rs) };
    crate::real::set_errno(why);
}

/// What is left until `deadline`, in milliseconds.
fn left(deadline: Instant) -> c_int {
    deadline.saturating_duration_since(Instant::now()).as_millis() as c_int
}

/// Waits by `poll` or `rpoll`, whatever signals come; whether something happened.
fn wait(
    fds: &mut [pollfd],
    deadline: Instant,
    poll: impl Fn(*mut pollfd, libc::nfds_t, c_int) -> c_int,
) -> bool {
    loop {
        let ready = poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, left(deadline));
        if ready >= 0 || errno() != libc::EINTR {
            return ready > 0;
        }
    }
}

fn rpoll(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    // SAFETY: called by `wait`, with what it has.
    unsafe { r::rpoll(fds, count, timeout) }
}

/// The address of one end, by `getsockname`, `getpeername` or `rgetpeername`.
fn address(
    number: c_int,
    of: impl FnOnce(c_int, *mut libc::sockaddr, *mut socklen_t) -> c_int,
) -> Option<(sockaddr_storage, socklen_t)> {
    // SAFETY: zeros are valid.
    let mut storage: sockaddr_storage = unsafe { zeroed() };
    let mut length = size_of::<sockaddr_storage>() as socklen_t;
    (of(number, (&raw mut storage).cast(), &raw mut length) == 0).then_some((storage, length))
}

fn local_name(number: c_int) -> Option<(sockaddr_storage, socklen_t)> {
    // SAFETY: `address` has room for any.
    address(number, |number, name, length| unsafe { libc::getsockname(number, name, length) })
}

fn peer_name(number: c_int) -> Option<(sockaddr_storage, socklen_t)> {
    // SAFETY: as above.
    address(number, |number, name, length| unsafe { libc::getpeername(number, name, length) })
}

/// The IP address in a name of a socket.
fn ip(name: &sockaddr_storage) -> Option<IpAddr> {
    // SAFETY: a name of its family.
    unsafe {
        match c_int::from(name.ss_family) {
            libc::AF_INET => {
                let name = &*(&raw const *name).cast::<libc::sockaddr_in>();
                Some(Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let name = &*(&raw const *name).cast::<libc::sockaddr_in6>();
                Some(Ipv6Addr::from(name.sin6_addr.s6_addr).to_canonical())
            }
            _ => None,
        }
    }
}

/// Looks at what has come to a socket without taking it: so many bytes, 0 at the end, or None if nothing has, or it has failed.
fn look(number: c_int, bytes: &mut [u8]) -> Option<usize> {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: a socket, and memory of this length.
    let there = unsafe { libc::recv(number, bytes.as_mut_ptr().cast(), bytes.len(), flags) };
    usize::try_from(there).ok()
}

/// Listens for the peer of a socket that was accepted.
fn accept(number: c_int) -> Option<c_int> {
    let deadline = Instant::now() + LIMIT;
    let peer = ip(&peer_name(number)?.0)?;
    let (mut here, length) = local_name(number)?;
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
    // A peer that has sent by TCP goes on so, without a delay.
    while look(number, &mut [0]).is_none() {
        let listener = make(c_int::from(here.ss_family), number)?;
        // SAFETY: an rsocket, and an address.
        let listens = unsafe {
            r::rbind(listener, (&raw const here).cast(), length) == 0 && r::rlisten(listener, 1) == 0
        };
        if listens {
            let new = accept_from(peer, number, listener, deadline);
            close(listener);
            return new;
        }
        close(listener);
        if !matches!(errno(), libc::EADDRINUSE | libc::EADDRNOTAVAIL) || left(deadline) == 0 {
            return None;
        }
        // Another child has the port for its own peer.
        std::thread::sleep(PAUSE);
    }
    None
}

/// Gives the word, and waits for the rsocket of the peer.
fn accept_from(peer: IpAddr, number: c_int, listener: c_int, deadline: Instant) -> Option<c_int> {
    // SAFETY: a socket, and a byte.
    let told = unsafe { libc::send(number, [0u8].as_ptr().cast(), 1, libc::MSG_OOB | libc::MSG_NOSIGNAL) };
    if told != 1 {
        return None;
    }
    let wanted = |fd| pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [wanted(listener), wanted(number)];
    let mut count = fds.len();
    while wait(&mut fds[..count], deadline, rpoll) {
        if count == fds.len() && fds[1].revents != 0 {
            // It goes on by TCP.
            if look(number, &mut [0]).is_some_and(|bytes| bytes > 0) {
                return None;
            }
            // It has closed its socket, since it has an rsocket, or for good.
            count = 1;
        }
        if fds[0].revents == 0 {
            continue;
        }
        // SAFETY: an rsocket.
        let new = unsafe { r::raccept(listener, std::ptr::null_mut(), std::ptr::null_mut()) };
        if new < 0 {
            if !matches!(errno(), libc::EAGAIN | libc::EINTR) {
                return None;
            }
            continue;
        }
        // SAFETY: `address` has room for any.
        let name = address(new, |new, name, length| unsafe { r::rgetpeername(new, name, length) });
        if name.and_then(|(name, _)| ip(&name)) == Some(peer) {
            return Some(new);
        }
        // A stranger.
        close(new);
    }
    None
}

/// Waits for the word of the side that has accepted.
fn is_told(number: c_int) -> bool {
    let deadline = Instant::now() + LIMIT;
    let mut fds = [pollfd { fd: number, events: libc::POLLIN | libc::POLLPRI, revents: 0 }];
    // SAFETY: called by `wait`, with what it has.
    if !wait(&mut fds, deadline, |fds, count, timeout| unsafe { libc::poll(fds, count, timeout) }) {
        return false;
    }
    let mut said = [0xff; RDMA_CORES_WORD.len()];
    match look(number, &mut said) {
        // It stays in the stream: a server of TCP may mean it.
        Some(_) => said == RDMA_CORES_WORD,
        None if fds[0].revents & libc::POLLPRI != 0 => {
            let flags = libc::MSG_OOB | libc::MSG_DONTWAIT;
            // SAFETY: a socket, and room for a byte.
            unsafe { libc::recv(number, said.as_mut_ptr().cast(), 1, flags) == 1 }
        }
        None => false,
    }
}

/// Connects to the peer of a socket that has connected, once it has given the word.
fn connect(number: c_int) -> Option<c_int> {
    if !is_told(number) {
        return None;
    }
    let deadline = Instant::now() + LIMIT;
    let (there, length) = peer_name(number)?;
    // From the same address, by which it is known there; the port is another.
    let (mut here, here_length) = local_name(number)?;
    // SAFETY: a name of its family.
    unsafe {
        match c_int::from(here.ss_family) {
            libc::AF_INET => (*(&raw mut here).cast::<libc::sockaddr_in>()).sin_port = 0,
            libc::AF_INET6 => (*(&raw mut here).cast::<libc::sockaddr_in6>()).sin6_port = 0,
            _ => return None,
        }
    }
    let new = make(c_int::from(there.ss_family), number)?;
    // SAFETY: an rsocket, addresses, and a value of this length.
    let connected = unsafe {
        let mut failure: c_int = 0;
        let mut size = size_of::<c_int>() as socklen_t;
        r::rbind(new, (&raw const here).cast(), here_length) == 0
            && (r::rconnect(new, (&raw const there).cast(), length) == 0 || errno() == libc::EINPROGRESS)
            && wait(&mut [pollfd { fd: new, events: libc::POLLOUT, revents: 0 }], deadline, rpoll)
            && r::rgetsockopt(new, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut failure).cast(), &raw mut size)
                == 0
            && failure == 0
    };
    if !connected {
        close(new);
        return None;
    }
    Some(new)
}
