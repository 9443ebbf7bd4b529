//! Passing the sockets of an address from a process that has them to one that joins.
//!
//! One SEQPACKET connection per request: a [`Request`] one way, a [`Reply`] the other, the descriptors as SCM_RIGHTS of
//! the reply. Both ends see to it that the other is one of their user ([`User::check_peer`]). Frozen, like the names.

use super::error::Error;
use super::group;
use super::names::{Name, VERSION};
use super::user::User;
use crate::sys::{self, EngineFd, control};
use crate::udp::{GROUP_SIZE, HostAddr};
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

const MAGIC: [u8; 4] = *b"FRCE";
/// What a request can ask for: the sockets of an address,
const KIND_GROUP: u8 = 1;
/// … or shared memory between the two processes, which a [`Greeter`] sees to.
pub(crate) const KIND_LINK: u8 = 2;
/// … or the GID table of an interface.
const KIND_GIDS: u8 = 3;
/// … or the execution of an XRC target's requests, which a [`Greeter`] sees to.
pub(crate) const KIND_XRC: u8 = 4;
/// … or a handle of an XRC target, likewise.
pub(crate) const KIND_TARGET: u8 = 5;
/// Answers, to each.
pub(crate) const GRANTED: u8 = Reply::Granted as u8;
pub(crate) const REFUSED: u8 = Reply::Refused as u8;
/// What all messages begin with: magic, version, kind or status, two reserved bytes.
const FRAME: usize = 8;
/// No message is longer.
const LONGEST: usize = 128;
/// No answer about a GID table is longer.
const LONGEST_TABLE: usize = 2048;
const MESSAGE: usize = 4 + 4 + 16 + 4;
/// How long a client that has connected may take to ask.
const REQUEST_PATIENCE: Duration = Duration::from_millis(2);
/// How long those asked have before more are asked.
const HEDGE: Duration = Duration::from_millis(5);
/// Holders asked in one go.
const CROWD: usize = 32;

type Rights = control::Control<{ control::space(4 * GROUP_SIZE) }>;

/// Answers to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Reply {
    /// The descriptors come with it.
    Granted = 0,
    /// This process doesn't have that address.
    Unknown = 1,
    /// The request makes no sense to this version.
    Refused = 2,
}

/// Who takes the requests that aren't for sockets.
pub(crate) trait Greeter: Send + Sync {
    /// Answers a request for shared memory, at once, and keeps the connection if it likes.
    fn greet(&self, connection: EngineFd, message: &[u8], fds: Vec<EngineFd>);

    /// The GID table of an interface, if this process has one, as its bytes.
    fn gids(&self, interface: u32) -> Option<Vec<u8>>;
}

/// The beginning of a message.
pub(crate) fn frame(kind: u8) -> [u8; FRAME] {
    let [m0, m1, m2, m3] = MAGIC;
    [m0, m1, m2, m3, VERSION as u8, kind, 0, 0]
}

/// The kind or status of a message of this version.
pub(crate) fn framed(bytes: &[u8]) -> Option<u8> {
    let &[m0, m1, m2, m3, version, kind, ..] = bytes else { return None };
    ([m0, m1, m2, m3] == MAGIC && u32::from(version) == VERSION).then_some(kind)
}

/// Frame, GID, scope.
fn message(kind: u8, address: HostAddr) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    bytes[..FRAME].copy_from_slice(&frame(kind));
    bytes[8..24].copy_from_slice(&address.gid());
    bytes[24..].copy_from_slice(&address.scope_id().to_ne_bytes());
    bytes
}

fn parse(bytes: &[u8]) -> Option<(u8, HostAddr)> {
    let bytes: &[u8; MESSAGE] = bytes.try_into().ok()?;
    let scope = u32::from_ne_bytes(*bytes[24..].first_chunk()?);
    let address = HostAddr::from_gid(*bytes[8..].first_chunk()?, scope);
    framed(bytes).map(|kind| (kind, address))
}

/// Sends one message with descriptors.
pub(crate) fn send_with(fd: RawFd, bytes: &mut [u8], fds: &[RawFd]) -> io::Result<()> {
    let mut rights = Rights::new();
    if !fds.is_empty() {
        let payload: Vec<u8> = fds.iter().flat_map(|fd| fd.to_ne_bytes()).collect();
        rights.push(libc::SOL_SOCKET, libc::SCM_RIGHTS, &payload);
    }
    send(fd, bytes, &mut rights)
}

fn send(fd: RawFd, bytes: &mut [u8], rights: &mut Rights) -> io::Result<()> {
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &mut vector;
    header.msg_iovlen = 1;
    header.msg_controllen = rights.len();
    header.msg_control = rights.for_sending();
    // SAFETY: the pointers were set just above, to locals.
    unsafe { sys::send_message(fd, &header) }.map(drop)
}

/// Receives one message; the descriptors that came with it are owned from here on.
pub(crate) fn receive(fd: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<EngineFd>)> {
    sys::opening(|| receive_and_adopt(fd, bytes))
}

fn receive_and_adopt(fd: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<EngineFd>)> {
    let mut rights = Rights::new();
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &mut vector;
    header.msg_iovlen = 1;
    (header.msg_control, header.msg_controllen) = rights.for_receiving();
    // SAFETY: the pointers were set just above, to locals.
    let length = unsafe { sys::receive_message(fd, &mut header) }?;
    let mut fds = Vec::with_capacity(GROUP_SIZE);
    for message in rights.received(header.msg_controllen) {
        if (message.level, message.kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // Each is adopted (or closed) before an error may end this.
            fds.extend(message.descriptors().map(EngineFd::adopt));
        }
    }
    let fds = fds.into_iter().collect::<io::Result<Vec<_>>>()?;
    if header.msg_flags & libc::MSG_CTRUNC != 0 {
        // The kernel installs as many as there is room for.
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok((length, fds))
}

/// Serves the connections waiting at a listener: at most 16, each given two milliseconds to say what it wants, and not
/// more than four in all.
pub(super) fn serve(
    listener: RawFd,
    user: User,
    greeter: Option<&dyn Greeter>,
    find: &mut dyn FnMut(HostAddr) -> Option<Vec<RawFd>>,
) {
    let deadline = Instant::now() + 2 * REQUEST_PATIENCE;
    for _ in 0..16 {
        let connection = match sys::accept(listener) {
            Ok(connection) => connection,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => {
                // No descriptor left: the listener stays readable, and the caller would spin on it.
                sys::pause(Duration::from_millis(1));
                return;
            }
        };
        let left = deadline.saturating_duration_since(Instant::now()).min(REQUEST_PATIENCE);
        if let Err(error) = serve_one(connection, user, left, greeter, find) {
            tracing::debug!(%error, "a rendezvous request was not answered");
        }
        if left.is_zero() {
            return;
        }
    }
}

fn serve_one(
    connection: EngineFd,
    user: User,
    patience: Duration,
    greeter: Option<&dyn Greeter>,
    find: &mut dyn FnMut(HostAddr) -> Option<Vec<RawFd>>,
) -> io::Result<()> {
    let fd = connection.raw();
    user.check_peer(fd)?;
    if !sys::wait_for(fd, libc::POLLIN, patience) {
        return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
    }
    let mut bytes = [0; LONGEST];
    let (length, received) = receive(fd, &mut bytes)?;
    let bytes = &bytes[..length];
    if matches!(framed(bytes), Some(KIND_LINK | KIND_XRC | KIND_TARGET))
        && let Some(greeter) = greeter
    {
        greeter.greet(connection, bytes, received);
        return Ok(());
    }
    if framed(bytes) == Some(KIND_GIDS)
        && let Some(greeter) = greeter
        && let Some(&interface) = bytes.get(FRAME..).and_then(<[u8]>::first_chunk)
    {
        let table = greeter.gids(u32::from_ne_bytes(interface));
        let status = if table.is_some() { GRANTED } else { Reply::Unknown as u8 };
        return send_with(fd, &mut [&frame(status)[..], &table.unwrap_or_default()].concat(), &[]);
    }
    match parse(bytes) {
        Some((KIND_GROUP, address)) => match find(address) {
            Some(fds) => send_with(fd, &mut message(GRANTED, address), &fds),
            None => send_with(fd, &mut message(Reply::Unknown as u8, address), &[]),
        },
        _ => send_with(fd, &mut message(REFUSED, HostAddr::from_gid([0; 16], 0)), &[]),
    }
}

/// What asking around came to.
pub(super) enum Answer {
    /// The group's sockets, in order.
    Group(Box<[EngineFd; GROUP_SIZE]>),
    /// All who were asked said that they haven't got it, or are gone.
    Nobody,
    /// Somebody didn't answer in time, and nobody had it.
    Silence,
}

/// Asks the holders of `names` for the sockets of `address`, one, then three, then seven … of them, until one has
/// them: who doesn't answer within [`HEDGE`] (stopped, say) delays nobody, and a crowd isn't asked for what one can
/// give. After the last has been asked, `patience` remains for answers.
///
/// `idle` is called every few milliseconds: it serves requests that come to this process meanwhile, so that two joiners
/// can't wait for each other.
///
/// # Errors
/// No room for descriptors.
pub(super) fn ask(
    names: &[Name],
    address: HostAddr,
    user: User,
    patience: Duration,
    idle: &mut dyn FnMut(),
) -> Result<Answer, Error> {
    let mut silence = false;
    let mut asked: Vec<EngineFd> = Vec::new();
    let mut left = names;
    let mut wave = 1;
    while !left.is_empty() || !asked.is_empty() {
        let (now, later) = left.split_at(wave.min(left.len()));
        left = later;
        wave = (2 * wave).min(CROWD);
        for name in now {
            match request(name, address, user) {
                Ok(socket) => asked.push(socket),
                // Its queue of connections is full: stopped, or very busy.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => silence = true,
                Err(e) if e.raw_os_error() == Some(libc::EMFILE) => return Err(Error::TooManyFiles),
                Err(_) => {}
            }
        }
        let deadline = Instant::now() + if left.is_empty() { patience } else { HEDGE };
        while !asked.is_empty() && Instant::now() < deadline {
            if let Some(group) = answers(&mut asked, address)? {
                return Ok(Answer::Group(group));
            }
            idle();
        }
        if left.is_empty() || asked.len() > 4 * CROWD {
            silence |= !asked.is_empty();
            asked.clear();
        }
    }
    Ok(if silence { Answer::Silence } else { Answer::Nobody })
}

/// Waits a moment and takes out those who have answered.
fn answers(
    asked: &mut Vec<EngineFd>,
    address: HostAddr,
) -> Result<Option<Box<[EngineFd; GROUP_SIZE]>>, Error> {
    let poll_of = |socket: &EngineFd| libc::pollfd { fd: socket.raw(), events: libc::POLLIN, revents: 0 };
    let mut polls: Vec<_> = asked.iter().map(poll_of).collect();
    sys::poll(&mut polls, Duration::from_millis(2)).map_err(Error::system("ppoll"))?;
    for index in (0..polls.len()).rev().filter(|&i| polls[i].revents != 0) {
        let socket = asked.swap_remove(index);
        if let Some(group) = read_reply(socket.raw(), address)? {
            return Ok(Some(group));
        }
    }
    Ok(None)
}

/// A connection to the holder of a name, if it is a process of this user.
pub(super) fn dial(name: &Name, user: User) -> io::Result<EngineFd> {
    let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK)?;
    sys::connect(socket.raw(), name)?;
    user.check_peer(socket.raw())?;
    Ok(socket)
}

fn request(name: &Name, address: HostAddr, user: User) -> io::Result<EngineFd> {
    let socket = dial(name, user)?;
    send_with(socket.raw(), &mut message(KIND_GROUP, address), &[])?;
    Ok(socket)
}

/// Processes that have been asked for the GID table of an interface.
pub(super) struct GidQuestion {
    request: [u8; FRAME + 4],
    user: User,
    asked: Vec<EngineFd>,
}

impl GidQuestion {
    pub(super) fn new(interface: u32, user: User) -> Self {
        let mut request = [0; FRAME + 4];
        request[..FRAME].copy_from_slice(&frame(KIND_GIDS));
        request[FRAME..].copy_from_slice(&interface.to_ne_bytes());
        Self { request, user, asked: Vec::new() }
    }

    /// Asks the holder of a name.
    ///
    /// # Errors
    /// Nobody holds it, or its holder is very busy.
    pub(super) fn ask(&mut self, name: &Name) -> io::Result<()> {
        let socket = dial(name, self.user)?;
        send_with(socket.raw(), &mut self.request, &[])?;
        self.asked.push(socket);
        Ok(())
    }

    /// The first table that comes, if one does before all have answered and within `patience`.
    pub(super) fn answer(&mut self, patience: Duration) -> Option<Vec<u8>> {
        let deadline = Instant::now() + patience;
        while !self.asked.is_empty() {
            let poll_of =
                |socket: &EngineFd| libc::pollfd { fd: socket.raw(), events: libc::POLLIN, revents: 0 };
            let mut polls: Vec<_> = self.asked.iter().map(poll_of).collect();
            let left = deadline.saturating_duration_since(Instant::now());
            if sys::poll(&mut polls, left).is_err() || left.is_zero() {
                return None;
            }
            for index in (0..polls.len()).rev().filter(|&i| polls[i].revents != 0) {
                let socket = self.asked.swap_remove(index);
                let mut reply = [0; LONGEST_TABLE];
                let Ok((length, _)) = receive(socket.raw(), &mut reply) else { continue };
                let reply = &reply[..length];
                if let Some(table) = reply.get(FRAME..).filter(|_| framed(reply) == Some(GRANTED)) {
                    return Some(table.to_vec());
                }
            }
        }
        None
    }
}

fn read_reply(fd: RawFd, address: HostAddr) -> Result<Option<Box<[EngineFd; GROUP_SIZE]>>, Error> {
    let mut bytes = [0; MESSAGE + 1];
    let (length, fds) = match receive(fd, &mut bytes) {
        Ok(got) => got,
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => return Err(Error::TooManyFiles),
        // The other end died or closed in the middle.
        Err(_) => return Ok(None),
    };
    let granted = parse(&bytes[..length]) == Some((Reply::Granted as u8, address));
    Ok(if granted && fds.iter().all(|fd| group::is_member(fd.raw(), address)) {
        group::boxed(fds)
    } else {
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_others_are_refused() {
        let address = HostAddr::new("fe80::1".parse().unwrap(), 9);
        let good = message(KIND_GROUP, address);
        assert_eq!(parse(&good), Some((KIND_GROUP, address)));
        assert_eq!(parse(&good[..MESSAGE - 1]), None);
        for index in 0..5 {
            let mut bad = good;
            bad[index] ^= 1;
            assert_eq!(parse(&bad), None, "byte {index}");
        }
    }
}
