//! Passing the sockets of an address from a process that has them to one that joins.
//!
//! The request and its answer have one form: frame, GID, scope. The descriptors go with the answer. Both ends see to it that
//! the other is one of their user ([`User::check_peer`]). Frozen, like the names.

use super::error::Error;
use super::names::Name;
use super::user::User;
use super::{SocketGroup, frame, group};
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::HostAddr;
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// The kind of a request for the sockets of an address.
const KIND: u8 = 1;
/// Frame, GID, scope.
const MESSAGE: usize = frame::HEADER + 16 + 4;
/// How long those asked have before more are asked.
const HEDGE: Duration = Duration::from_millis(5);
/// Holders asked in one go.
const CROWD: usize = 32;

fn message(kind: u8, address: HostAddr) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    bytes[..frame::HEADER].copy_from_slice(&frame::header(kind));
    bytes[8..24].copy_from_slice(&address.gid());
    bytes[24..].copy_from_slice(&address.scope_id().to_ne_bytes());
    bytes
}

fn parse(bytes: &[u8]) -> Option<(u8, HostAddr)> {
    let bytes: &[u8; MESSAGE] = bytes.try_into().ok()?;
    let scope = u32::from_ne_bytes(*bytes[24..].first_chunk()?);
    let address = HostAddr::from_gid(*bytes[8..].first_chunk()?, scope);
    frame::kind_of(bytes).map(|kind| (kind, address))
}

/// Answers a request for the sockets of an address, which `find` knows, and refuses any other.
///
/// # Errors
/// The process that has asked is gone.
pub(super) fn answer(
    connection: &EngineFd,
    request: &[u8],
    find: &mut dyn FnMut(HostAddr) -> Option<Vec<RawFd>>,
) -> io::Result<()> {
    let (status, address, fds) = match parse(request) {
        Some((KIND, address)) => match find(address) {
            Some(fds) => (frame::GRANTED, address, fds),
            None => (frame::UNKNOWN, address, Vec::new()),
        },
        _ => (frame::REFUSED, HostAddr::from_gid([0; 16], 0), Vec::new()),
    };
    frame::send(connection.raw(), &mut message(status, address), &fds)
}

/// What a search for the sockets of an address has come to.
pub(super) enum SocketSearch {
    /// The group's sockets, in order.
    Group(Box<SocketGroup>),
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
) -> Result<SocketSearch, Error> {
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
                return Ok(SocketSearch::Group(group));
            }
            idle();
        }
        if left.is_empty() || asked.len() > 4 * CROWD {
            silence |= !asked.is_empty();
            asked.clear();
        }
    }
    Ok(if silence { SocketSearch::Silence } else { SocketSearch::Nobody })
}

/// Waits a moment and takes out those who have answered.
fn answers(asked: &mut Vec<EngineFd>, address: HostAddr) -> Result<Option<Box<SocketGroup>>, Error> {
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
    let socket = connect(name)?;
    user.check_peer(socket.raw())?;
    Ok(socket)
}

/// A connection to the holder of a name, of whichever user.
pub(super) fn connect(name: &Name) -> io::Result<EngineFd> {
    let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK)?;
    sys::connect(socket.raw(), name.address())?;
    Ok(socket)
}

fn request(name: &Name, address: HostAddr, user: User) -> io::Result<EngineFd> {
    let socket = dial(name, user)?;
    frame::send(socket.raw(), &mut message(KIND, address), &[])?;
    Ok(socket)
}

fn read_reply(fd: RawFd, address: HostAddr) -> Result<Option<Box<SocketGroup>>, Error> {
    let mut bytes = [0; MESSAGE + 1];
    let (length, fds) = match frame::receive(fd, &mut bytes) {
        Ok(got) => got,
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => return Err(Error::TooManyFiles),
        // The other end died or closed in the middle.
        Err(_) => return Ok(None),
    };
    let granted = parse(&bytes[..length]) == Some((frame::GRANTED, address));
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
        let good = message(KIND, address);
        assert_eq!(parse(&good), Some((KIND, address)));
        assert_eq!(parse(&good[..MESSAGE - 1]), None);
        for index in 0..5 {
            let mut bad = good;
            bad[index] ^= 1;
            assert_eq!(parse(&bad), None, "byte {index}");
        }
    }
}
