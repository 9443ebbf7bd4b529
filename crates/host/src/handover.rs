//! Passing the sockets of an address from a process that has them to one that joins.
//!
//! The request and its answer have one form: frame, GID, scope. The descriptors go with the answer. Both ends see to it that
//! the other is one of their user ([`User::check_peer`]). Frozen, like the names.

use super::error::HostError;
use super::full_queues::FullQueues;
use super::group::SocketGroup;
use super::names::Name;
use super::user::User;
use super::{frame, group, watch};
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::HostAddr;
use std::collections::HashSet;
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

/// What a process has of the sockets of an address.
pub(super) enum OwnSockets {
    Have(Vec<RawFd>),
    /// It is making them.
    Coming,
    Nothing,
}

/// Answers a request for the sockets of an address, which `find` knows, and refuses any other.
///
/// # Errors
/// The process that has asked is gone.
pub(super) fn answer(
    connection: &EngineFd,
    request: &[u8],
    find: &mut dyn FnMut(HostAddr) -> OwnSockets,
) -> io::Result<()> {
    let (status, address, fds) = match parse(request) {
        Some((KIND, address)) => match find(address) {
            OwnSockets::Have(fds) => (frame::GRANTED, address, fds),
            OwnSockets::Coming => (frame::COMING, address, Vec::new()),
            OwnSockets::Nothing => (frame::UNKNOWN, address, Vec::new()),
        },
        _ => (frame::REFUSED, HostAddr::from_gid([0; 16], 0), Vec::new()),
    };
    frame::send(connection.raw(), &mut message(status, address), &fds)
}

/// A process that was asked for the sockets of an address, and hasn't answered.
pub(super) struct AskedHolder {
    name: Name,
    connection: EngineFd,
}

/// The processes that haven't answered.
#[derive(Default)]
pub(super) struct UnansweredHolders {
    /// Those that were asked. A stopped process has room for few connections that it hasn't accepted, also when they are closed: it isn't
    /// asked once more, and its answer counts whenever it comes.
    asked: Vec<AskedHolder>,
    /// Those that couldn't be asked.
    full: FullQueues,
}

/// What a search for the sockets of an address has come to.
pub(super) enum SocketSearch {
    /// The group's sockets, in order.
    Group(Box<SocketGroup>),
    /// All processes that were asked answered that they don't have it, or are gone.
    Nobody,
    /// No process had it, and those that didn't answer in time are held up: stopped, or frozen.
    Stopped,
    /// No process had it, and one that runs didn't answer in time, or is about to have it.
    Silence,
}

/// Asks the holders of `names` for the sockets of `address`, one, then three, then seven … of them, until one has
/// them. A process that doesn't answer within [`HEDGE`] (because it is stopped) causes no further delay, and usually one process
/// is asked. After the last has been asked, `patience` remains for answers.
///
/// `unanswered` are those that didn't answer before. Those that don't answer now are added. A process whose queue of connections is full counts
/// as one that runs, unless `is_late`: then it is found out, at the cost of a look at all processes.
///
/// `idle` is called every few milliseconds: it serves requests that come to this process meanwhile, so that two joiners
/// can't wait for each other.
///
/// # Errors
/// No room for descriptors.
pub(super) fn ask(
    names: &[Name],
    unanswered: &mut UnansweredHolders,
    address: HostAddr,
    user: User,
    (patience, is_late): (Duration, bool),
    idle: &mut dyn FnMut(),
) -> Result<SocketSearch, HostError> {
    let UnansweredHolders { asked, full } = unanswered;
    let (mut stopped, mut silence) = (false, false);
    let mut unasked = Vec::new();
    let known: HashSet<Vec<u8>> = asked.iter().map(|asked| asked.name.address().text()).collect();
    let is_new = |name: &&Name| !known.contains(&name.address().text());
    let names: Vec<Name> = names.iter().filter(is_new).copied().collect();
    let mut left = &names[..];
    let mut wave = 1;
    loop {
        let (now, later) = left.split_at(wave.min(left.len()));
        left = later;
        wave = (2 * wave).min(CROWD);
        for &name in now {
            match request(&name, address, user) {
                Ok(connection) => asked.push(AskedHolder { name, connection }),
                // Its queue of connections is full: stopped, or very busy.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => unasked.push(name),
                Err(e) if e.raw_os_error() == Some(libc::EMFILE) => return Err(HostError::TooManyFiles),
                Err(_) => {}
            }
        }
        let deadline = Instant::now() + if left.is_empty() { patience } else { HEDGE };
        while !asked.is_empty() && Instant::now() < deadline {
            match answers(asked, address)? {
                HandoverReply::Group(group) => return Ok(SocketSearch::Group(group)),
                HandoverReply::Coming => silence = true,
                HandoverReply::Nothing => {}
            }
            idle();
        }
        if left.is_empty() || asked.len() > 4 * CROWD {
            if !asked.is_empty() {
                *if are_held_up(asked, idle) { &mut stopped } else { &mut silence } = true;
            }
            if left.is_empty() {
                break;
            }
            asked.clear();
        }
    }
    if !unasked.is_empty() {
        let is_held_up = is_late && !silence && full.are_held_up(&unasked, idle);
        *if is_held_up { &mut stopped } else { &mut silence } = true;
    }
    Ok(match (silence, stopped) {
        (true, _) => SocketSearch::Silence,
        (false, true) => SocketSearch::Stopped,
        (false, false) => SocketSearch::Nobody,
    })
}

/// None of the processes at the other ends answers soon: each is held up.
fn are_held_up(asked: &[AskedHolder], idle: &mut dyn FnMut()) -> bool {
    let pid_of =
        |holder: &AskedHolder| sys::peer_credentials(holder.connection.raw()).map_or(0, |peer| peer.pid);
    let has_answered =
        |holder: &AskedHolder| sys::wait_for(holder.connection.raw(), libc::POLLIN, Duration::ZERO);
    watch::are_held_up(asked.iter().map(pid_of).collect(), &mut || {
        idle();
        asked.iter().any(has_answered)
    })
}

/// What a process that was asked has answered.
enum HandoverReply {
    Group(Box<SocketGroup>),
    Coming,
    Nothing,
}

/// Waits a moment and takes out those that have answered.
fn answers(asked: &mut Vec<AskedHolder>, address: HostAddr) -> Result<HandoverReply, HostError> {
    let poll_of =
        |asked: &AskedHolder| libc::pollfd { fd: asked.connection.raw(), events: libc::POLLIN, revents: 0 };
    let mut polls: Vec<_> = asked.iter().map(poll_of).collect();
    sys::poll(&mut polls, Duration::from_millis(2)).map_err(HostError::system("ppoll"))?;
    let mut so_far = HandoverReply::Nothing;
    for index in (0..polls.len()).rev().filter(|&i| polls[i].revents != 0) {
        let AskedHolder { connection, .. } = asked.swap_remove(index);
        match read_reply(connection.raw(), address)? {
            HandoverReply::Nothing => {}
            HandoverReply::Coming => so_far = HandoverReply::Coming,
            group @ HandoverReply::Group(_) => return Ok(group),
        }
    }
    Ok(so_far)
}

fn request(name: &Name, address: HostAddr, user: User) -> io::Result<EngineFd> {
    let socket = user.dial(name)?;
    frame::send(socket.raw(), &mut message(KIND, address), &[])?;
    Ok(socket)
}

fn read_reply(fd: RawFd, address: HostAddr) -> Result<HandoverReply, HostError> {
    let mut bytes = [0; MESSAGE + 1];
    let (length, fds) = match frame::receive(fd, &mut bytes) {
        Ok(got) => got,
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => return Err(HostError::TooManyFiles),
        // The other end died or closed in the middle.
        Err(_) => return Ok(HandoverReply::Nothing),
    };
    Ok(match parse(&bytes[..length]) {
        Some((frame::GRANTED, of)) if of == address => {
            let are_members = fds.iter().all(|fd| group::is_member(fd.raw(), address));
            let group = if are_members { group::boxed(fds) } else { None };
            group.map_or(HandoverReply::Nothing, HandoverReply::Group)
        }
        Some((frame::COMING, of)) if of == address => HandoverReply::Coming,
        _ => HandoverReply::Nothing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU16, Ordering};

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

    /// What a holder of the port does with requests.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum HolderAnswer {
        Nothing,
        Coming,
        /// Of another address than was asked for.
        ComingElsewhere,
        /// Without a socket.
        Granted,
        Refused,
        HangsUp,
        Silent,
    }

    /// Asks holders with these answers, again and again with the same memory of those that haven't answered. Returns what the last search has come
    /// to, and how often each holder was asked.
    fn search(answers: &[HolderAnswer], times: usize) -> (SocketSearch, Vec<usize>) {
        static NEXT: AtomicU16 = AtomicU16::new(1);
        let [address, other] = ["10.0.0.1", "10.0.0.2"].map(|ip| HostAddr::new(ip.parse().unwrap(), 0));
        // Of a user without processes, so that nothing real is disturbed.
        let uid = 4_100_000_000 + std::process::id() % 1000;
        let name = |_: &HolderAnswer| Name::listed_slot(uid, NEXT.fetch_add(1, Ordering::Relaxed));
        let names: Vec<Name> = answers.iter().map(name).collect();
        let listeners: Vec<_> =
            names.iter().map(|name| name.listen().unwrap().expect("a free name")).collect();
        let (mut unanswered, mut found) = (UnansweredHolders::default(), SocketSearch::Nobody);
        let (mut counts, mut silent) = (vec![0; answers.len()], Vec::new());
        for _ in 0..times {
            let mut idle = || {
                for ((listener, answer), count) in listeners.iter().zip(answers).zip(&mut counts) {
                    let Ok(connection) = listener.accept() else { continue };
                    let connection = connection.proven(Ok(())).unwrap();
                    *count += 1;
                    let reply =
                        |status, of| frame::send(connection.raw(), &mut message(status, of), &[]).unwrap();
                    let mut bytes = [0; MESSAGE];
                    let (length, _) = frame::receive(connection.raw(), &mut bytes).unwrap();
                    let find = |own: OwnSockets| {
                        super::answer(&connection, &bytes[..length], &mut |of| {
                            assert_eq!(of, address);
                            match own {
                                OwnSockets::Coming => OwnSockets::Coming,
                                _ => OwnSockets::Nothing,
                            }
                        })
                        .unwrap()
                    };
                    match answer {
                        HolderAnswer::Nothing => find(OwnSockets::Nothing),
                        HolderAnswer::Coming => find(OwnSockets::Coming),
                        HolderAnswer::ComingElsewhere => reply(frame::COMING, other),
                        HolderAnswer::Granted => reply(frame::GRANTED, address),
                        HolderAnswer::Refused => reply(frame::REFUSED, address),
                        HolderAnswer::HangsUp => {}
                        HolderAnswer::Silent => silent.push(connection),
                    }
                }
            };
            let pace = (Duration::from_millis(100), false);
            found = ask(&names, &mut unanswered, address, User::current(), pace, &mut idle).unwrap();
        }
        (found, counts)
    }

    #[test]
    fn a_search_comes_to_nothing_only_if_all_have_answered_that_they_have_nothing() {
        use HolderAnswer::*;
        for answers in [&[][..], &[Nothing], &[Nothing, ComingElsewhere, Granted, Refused, HangsUp, Nothing]]
        {
            let (found, counts) = search(answers, 1);
            assert!(matches!(found, SocketSearch::Nobody), "{answers:?}");
            assert!(counts.iter().all(|&count| count == 1), "each is asked once");
        }
        for answers in [&[Coming][..], &[Nothing, Coming, Nothing], &[Silent, Nothing]] {
            // This process has the names, and runs.
            assert!(matches!(search(answers, 1).0, SocketSearch::Silence), "{answers:?}");
        }
    }

    #[test]
    fn a_holder_that_has_not_answered_is_not_asked_once_more() {
        use HolderAnswer::*;
        let (found, counts) = search(&[Nothing, Silent], 3);
        assert!(matches!(found, SocketSearch::Silence));
        assert_eq!(counts, [3, 1]);
    }
}
