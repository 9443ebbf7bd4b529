//! Ports of the communication manager: which process has which, and the way of MADs to it.
//!
//! The *number* of a port is one user's: the processes of this user that have the port at some address all hold the listener
//! of the number's name, whose first holder has handed it to the others. So no other user gets the number while any of them
//! lives. At each address the process that has the port has one more listener, whose name carries the address. A MAD goes
//! over a connection to that listener, and only if its user is the sender's own, or the one who has the number.
//!
//! Two addresses may overlap; the process that binds the second one sees the first in the table of names, and gives its own
//! up.

mod delivery;

pub use delivery::{AtPort, Delivery, Destination, NameHolder};

use super::epoll::{PORT, PORT_CLIENT, PORT_REQUESTS};
use super::exposed::ExposedSocket;
use super::forward::{ForwardReceiver, INBOX_BURST, expect_credentials};
use super::names::{self, Name};
use super::port_address::{PortAddress, PortError};
use super::port_table::{Client, NumberListener, OwnPort};
use super::process::Host;
use super::{frame, watch};
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::Datagram;
use ferroce_wire::cm::GSI_QPN;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The kind of a request for the listener of a port's number.
const KIND: u8 = 10;
/// Frame, port space, port.
const REQUEST: usize = frame::HEADER + 4;
/// How long the processes that have a port's number have to hand its listener over, if none of them is stopped …
const PATIENCE: Duration = Duration::from_secs(5);
/// … and if the one that is asked is, or doesn't run for [`watch::ASLEEP`] more.
const PATIENCE_WITH_STOPPED: Duration = Duration::from_millis(200);
/// … and where none can be asked yet: too many wait at the name.
const PATIENCE_WITH_CROWD: Duration = Duration::from_secs(1);
/// How long the name of a number may be taken although no process listens there: its holder may be between two calls.
const PATIENCE_WITH_SILENT: Duration = Duration::from_millis(20);
/// Between two looks.
const ROUND: Duration = Duration::from_millis(1);
/// Connections at ports over which nothing has come yet, at most, and those whose messages have been handed on: the oldest is ended for
/// one more.
const MOST_CLIENTS: usize = 64;
/// Between the address and the suffix of a shared port.
const SHARED: char = '~';

/// A port as the table of names has it.
struct ListedPort {
    address: PortAddress,
    /// The suffix of one that may be shared.
    share: Option<String>,
}

/// The ports that the table of names shows.
fn listed() -> Vec<ListedPort> {
    let Some(names) = names::taken_ports() else {
        tracing::debug!("the table of names can't be read: ports whose addresses overlap aren't noticed");
        return Vec::new();
    };
    let parse = |name: String| {
        let (address, share) = match name.split_once(SHARED) {
            Some((address, share)) => (address, Some(share.to_owned())),
            None => (name.as_str(), None),
        };
        Some(ListedPort { address: address.parse().ok()?, share })
    };
    names.into_iter().filter_map(parse).collect()
}

fn name_of(address: PortAddress, share: Option<&str>) -> Name {
    match share {
        Some(share) => Name::port(&format!("{address}{SHARED}{share}")),
        None => Name::port(&address.to_string()),
    }
}

/// A port that this process has until this is dropped.
#[derive(Debug)]
pub struct HeldPort {
    // Before the number: while another user could have that, no name of the port may be this process's.
    kind: PortHold,
    #[expect(dead_code, reason = "it holds the number")]
    number: Arc<NumberListener>,
    address: PortAddress,
    host: Arc<Host>,
}

#[derive(Debug)]
enum PortHold {
    /// Shared with others of whom none listens.
    Shared(Share),
    /// MADs come to it.
    Alone(u16),
}

/// The listener and the name of one that shares a port.
#[derive(Debug)]
struct Share {
    listener: Arc<NumberListener>,
    name: String,
}

impl Drop for Share {
    fn drop(&mut self) {
        // A thread that answers a request may keep the listener for a moment. From now on no process reaches it.
        sys::shutdown(self.listener.listener.checked());
    }
}

impl HeldPort {
    /// The port and its address.
    #[must_use]
    pub const fn address(&self) -> PortAddress {
        self.address
    }

    /// MADs come to a port that was shared until now.
    ///
    /// # Errors
    /// [`PortError::Taken`] while others have it as well.
    pub fn stop_sharing(&mut self) -> Result<(), PortError> {
        let PortHold::Shared(share) = &self.kind else { return Ok(()) };
        let id = self.host.hold_port(self.address, Some(&share.name))?;
        self.kind = PortHold::Alone(id);
        Ok(())
    }
}

impl Drop for HeldPort {
    fn drop(&mut self) {
        if let PortHold::Alone(id) = self.kind {
            let mut known = self.host.ports.all.write();
            let at = known.ports.iter().position(|port| port.id == id);
            let port = at.map(|at| known.ports.swap_remove(at));
            drop(known);
            // As for a `Share`.
            if let Some(port) = port {
                sys::shutdown(port.listener.checked());
            }
        }
    }
}

/// The port space and the port of a request for the listener of a port's number.
pub(super) fn parse_request(message: &[u8]) -> Option<(u16, u16)> {
    let message: &[u8; REQUEST] = message.try_into().ok()?;
    let [space0, space1, port0, port1] = *message[frame::HEADER..].first_chunk()?;
    let both = (u16::from_ne_bytes([space0, space1]), u16::from_ne_bytes([port0, port1]));
    (frame::kind_of(message) == Some(KIND)).then_some(both)
}

/// What a search for the listener of a port's number has come to.
enum NumberSearch {
    Listener(EngineFd),
    /// The process that was asked has just given it up, or was about to have it.
    Nobody,
    OtherUsers(Option<u32>),
    Unanswered,
}

impl Host {
    /// Takes a port. `shared`: others that share it may have it as well. Takes seconds only if the processes that have
    /// its number don't answer.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn take_port(self: &Arc<Self>, address: PortAddress, shared: bool) -> Result<HeldPort, PortError> {
        let number = self.number(address.space, address.port)?;
        self.take_port_of(number, address, shared)
    }

    /// Takes a port whose number no process has, at once.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn take_free_port(
        self: &Arc<Self>,
        address: PortAddress,
        shared: bool,
    ) -> Result<HeldPort, PortError> {
        let PortAddress { space, port, .. } = address;
        let listener = Name::port_number(space, port).listen().map_err(PortError::System)?;
        let number = self.take_requests(listener.ok_or(PortError::Taken)?, Some((space, port)))?;
        self.take_port_of(number, address, shared)
    }

    fn take_port_of(
        self: &Arc<Self>,
        number: Arc<NumberListener>,
        address: PortAddress,
        shared: bool,
    ) -> Result<HeldPort, PortError> {
        static SHARES: AtomicU64 = AtomicU64::new(0);
        let kind = if shared {
            let slot = self.slots().first().copied().unwrap_or_default();
            let name = format!("{slot}.{}", SHARES.fetch_add(1, Ordering::Relaxed));
            let listener = self.listen_at(address, Some(&name))?;
            let share = Share { listener: self.take_requests(listener, None)?, name };
            self.check_port(address, Some(&share.name), true)?;
            PortHold::Shared(share)
        } else {
            PortHold::Alone(self.hold_port(address, None)?)
        };
        Ok(HeldPort { kind, number, address, host: self.clone() })
    }

    /// A listener with the name of a port.
    fn listen_at(&self, address: PortAddress, share: Option<&str>) -> Result<ExposedSocket, PortError> {
        let name = name_of(address, share);
        if let Some(listener) = name.listen().map_err(PortError::System)? {
            return Ok(listener);
        }
        // Only processes of this user have the number, so any other user's process has nothing but this name.
        Err(match name.connect() {
            Ok(connection) if self.user.check_peer(connection.raw()).is_ok() => PortError::Taken,
            Ok(connection) => PortError::OtherUsers(uid_of(connection.raw())),
            // Full queue of connections, or a holder between two calls.
            Err(_) => match self.other_user_of(&name) {
                Some(uid) => PortError::OtherUsers(Some(uid)),
                None => PortError::Taken,
            },
        })
    }

    /// The user of a name's socket, if the kernel lists another one than this process's.
    fn other_user_of(&self, name: &Name) -> Option<u32> {
        names::user_of(name).filter(|&uid| uid != self.user.uid())
    }

    /// Takes a port's name and lets MADs come to it. `own_share` is this process's among those that share the port.
    fn hold_port(&self, address: PortAddress, own_share: Option<&str>) -> Result<u16, PortError> {
        let listener = self.listen_at(address, None)?;
        self.check_port(address, own_share, false)?;
        let mut known = self.ports.all.write();
        let id = known.free_id()?;
        // A port is kept once it is watched: where that fails, its name is free again.
        self.watch_port(listener.raw(), PORT | u64::from(id))?;
        known.ports.push(Arc::new(OwnPort { id, address, listener }));
        Ok(id)
    }

    /// Answers requests at a listener.
    fn take_requests(
        &self,
        listener: ExposedSocket,
        number: Option<(u16, u16)>,
    ) -> Result<Arc<NumberListener>, PortError> {
        let listener = if number.is_some() { listener.share() } else { listener };
        let fd = listener.raw();
        let mut known = self.ports.all.write();
        let id = known.free_id()?;
        let requested = Arc::new(NumberListener { id, number, listener, epoll: self.epoll.raw() });
        known.requested.retain(|one| one.strong_count() > 0);
        known.requested.push(Arc::downgrade(&requested));
        drop(known);
        self.watch_port(fd, PORT_REQUESTS | u64::from(id))?;
        Ok(requested)
    }

    fn watch_port(&self, fd: RawFd, data: u64) -> Result<(), PortError> {
        self.epoll
            .watch(fd, data)
            .map_err(|error| PortError::System(io::Error::from_raw_os_error(error.errno())))
    }

    /// The number of a port, which is this user's from now on.
    fn number(&self, space: u16, port: u16) -> Result<Arc<NumberListener>, PortError> {
        let name = Name::port_number(space, port);
        let begun = Instant::now();
        loop {
            if let Some(number) = self.own_number(space, port) {
                return Ok(number);
            }
            if let Some(listener) = name.listen().map_err(PortError::System)? {
                return self.take_requests(listener, Some((space, port)));
            }
            match self.ask_for_number(&name, space, port)? {
                NumberSearch::Listener(listener) => {
                    return self.take_requests(ExposedSocket::new(listener), Some((space, port)));
                }
                NumberSearch::OtherUsers(None) if begun.elapsed() < PATIENCE_WITH_SILENT => {}
                NumberSearch::Nobody if begun.elapsed() < PATIENCE => {}
                NumberSearch::OtherUsers(uid) => return Err(PortError::OtherUsers(uid)),
                NumberSearch::Nobody | NumberSearch::Unanswered => return Err(PortError::Unanswered),
            }
            self.answer_requests();
            sys::pause(ROUND);
        }
    }

    fn own_number(&self, space: u16, port: u16) -> Option<Arc<NumberListener>> {
        let known = self.ports.all.read();
        let mut all = known.requested.iter().filter_map(Weak::upgrade);
        all.find(|one| one.number == Some((space, port)))
    }

    /// Asks the process that has a port's number for the listener, if it is one of this user.
    fn ask_for_number(&self, name: &Name, space: u16, port: u16) -> Result<NumberSearch, PortError> {
        let begun = Instant::now();
        let connection = match name.connect_within(PATIENCE_WITH_CROWD, &mut || self.answer_requests()) {
            Ok(connection) => connection,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(match self.other_user_of(name) {
                    Some(uid) => NumberSearch::OtherUsers(Some(uid)),
                    None => NumberSearch::Unanswered,
                });
            }
            // It is free by now, or its holder doesn't listen.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Ok(NumberSearch::OtherUsers(self.other_user_of(name)));
            }
            Err(error) => return Err(PortError::System(error)),
        };
        let fd = connection.raw();
        if self.user.check_peer(fd).is_err() {
            return Ok(NumberSearch::OtherUsers(uid_of(fd)));
        }
        let mut request = [0; REQUEST];
        request[..frame::HEADER].copy_from_slice(&frame::header(KIND));
        request[frame::HEADER..frame::HEADER + 2].copy_from_slice(&space.to_ne_bytes());
        request[frame::HEADER + 2..].copy_from_slice(&port.to_ne_bytes());
        if frame::send(fd, &mut request, &[]).is_err() {
            return Ok(NumberSearch::Nobody);
        }
        let pid = sys::peer_credentials(fd).map_or(0, |peer| peer.pid);
        let mut ran = begun;
        while !sys::wait_for(fd, libc::POLLIN, 2 * ROUND) {
            let waited = begun.elapsed();
            let is_late = waited >= PATIENCE_WITH_STOPPED;
            if !is_late || watch::may_run(pid) {
                ran = Instant::now();
            }
            let is_held_up = is_late && (ran.elapsed() >= watch::ASLEEP || watch::is_stopped(pid));
            if waited >= PATIENCE || is_held_up {
                return Ok(NumberSearch::Unanswered);
            }
            self.answer_requests();
        }
        let mut answer = [0; frame::HEADER];
        match frame::receive(fd, &mut answer) {
            Ok((length, mut fds)) if frame::kind_of(&answer[..length]) == Some(frame::GRANTED) => {
                Ok(fds.pop().map_or(NumberSearch::Nobody, NumberSearch::Listener))
            }
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => Err(PortError::System(error)),
            Ok(_) | Err(_) => Ok(NumberSearch::Nobody),
        }
    }

    /// Hands the listener of a port's number to a process of this user, which asks for it.
    pub(super) fn answer_for_number(&self, connection: &EngineFd, space: u16, port: u16) -> io::Result<()> {
        match self.own_number(space, port) {
            Some(number) => {
                let fds = [number.listener.checked()];
                frame::send(connection.raw(), &mut frame::header(frame::GRANTED), &fds)
            }
            None => frame::send(connection.raw(), &mut frame::header(frame::UNKNOWN), &[]),
        }
    }

    /// Answers the requests at a listener that only requests come to.
    pub(super) fn serve_port_requests(&self, id: u16) {
        let requested = {
            let known = self.ports.all.read();
            known.requested.iter().filter_map(Weak::upgrade).find(|one| one.id == id)
        };
        if let Some(requested) = requested {
            self.serve(&requested.listener);
        }
    }

    /// Answers the requests at all listeners that only requests come to.
    pub(super) fn serve_all_port_requests(&self) {
        let requested: Vec<_> = self.ports.all.read().requested.iter().filter_map(Weak::upgrade).collect();
        for one in requested {
            self.serve(&one.listener);
        }
    }

    /// Whether no other process of this user has a port, now that this process has its name. Names of other users' processes
    /// don't count: they don't have the number.
    fn check_port(
        &self,
        address: PortAddress,
        own_share: Option<&str>,
        shared: bool,
    ) -> Result<(), PortError> {
        let is_own = |listed: &ListedPort| {
            listed.address == address && listed.share.as_deref() == if shared { own_share } else { None }
                || own_share.is_some() && listed.share.as_deref() == own_share
        };
        let is_this_users = |listed: &ListedPort| {
            let name = name_of(listed.address, listed.share.as_deref());
            match self.user.dial(&name) {
                // Any user can fill its queue of connections.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.other_user_of(&name).is_none()
                }
                dialled => dialled.is_ok(),
            }
        };
        let may_rival = |listed: &ListedPort| !(is_own(listed) || shared && listed.share.is_some());
        let rivals = listed().into_iter().filter(may_rival);
        let mut collisions =
            rivals.filter_map(|listed| listed.address.collision(&address).filter(|_| is_this_users(&listed)));
        collisions.next().map_or(Ok(()), Err)
    }

    /// Takes MADs for a port of this process from those who have connected.
    pub(super) fn recv_for_port(&self, id: u16, f: &mut dyn FnMut(&[Datagram<'_>])) {
        let port = self.ports.all.read().ports.iter().find(|port| port.id == id).map(Arc::clone);
        let (Some(port), Some(mut inbox)) = (port, self.inbox.try_lock()) else { return };
        for _ in 0..INBOX_BURST {
            let Ok(connection) = port.listener.accept() else { break };
            // Credentials fill the room for ancillary data, so that a look at a message takes no descriptors.
            if expect_credentials(connection.raw()).is_err() {
                continue;
            }
            let is_own = self.user.check_peer(connection.raw()).is_ok();
            let Some(uid) = uid_of(connection.raw()).filter(|_| is_own || self.guests.are_some()) else {
                continue;
            };
            let client = Client { connection, uid, is_own };
            if self.hear(&mut inbox, &client, f) {
                self.keep_heard(client);
            } else {
                self.keep_silent(client);
            }
        }
    }

    /// Hands on the MADs that a client has sent, which stay where they are; false if nothing has come yet.
    fn hear(&self, inbox: &mut ForwardReceiver, client: &Client, f: &mut dyn FnMut(&[Datagram<'_>])) -> bool {
        match inbox.peek(&client.connection) {
            Ok(None) => false,
            Ok(Some(received)) => {
                let mut is_mine = |packet: &Datagram<'_>| {
                    packet.dest_qpn() == GSI_QPN && self.is_believed(client.is_own, Some(client.uid), packet)
                };
                inbox.hand_on(&received, self.stats(), client.is_own, &mut is_mine, f);
                true
            }
            Err(_) => true,
        }
    }

    /// Keeps a client until it has sent something: it may have lost its processor after it has connected.
    fn keep_silent(&self, client: Client) {
        let fd = client.connection.raw();
        let mut clients = self.ports.clients.lock();
        let silent = &mut clients.silent;
        let oldest = if silent.len() < MOST_CLIENTS { None } else { silent.pop_front() };
        silent.push_back(client);
        let unwatched = if self.epoll.watch(fd, PORT_CLIENT).is_err() { silent.pop_back() } else { None };
        drop(clients);
        drop((oldest, unwatched));
    }

    /// Keeps a client whose messages have been handed on: if this process dies before it has asked the client for a lifeline, the kernel
    /// reports to the client that they lie unread.
    fn keep_heard(&self, client: Client) {
        let mut clients = self.ports.clients.lock();
        clients.heard.push_back(client);
        let too_many = clients.heard.len().saturating_sub(MOST_CLIENTS);
        let upto = clients.ended + too_many as u64;
        self.ports.heard.store(clients.heard.len(), Ordering::Relaxed);
        drop(clients);
        if too_many > 0 {
            self.end_heard(upto);
        }
    }

    /// How many clients' messages have been handed on so far.
    pub fn heard_so_far(&self) -> u64 {
        let clients = self.ports.clients.lock();
        clients.ended + clients.heard.len() as u64
    }

    /// Messages have been handed on whose connections haven't ended.
    pub fn has_heard(&self) -> bool {
        self.ports.heard.load(Ordering::Relaxed) > 0
    }

    /// Ends the connections of so many of the clients whose messages have been handed on: they have been asked for lifelines.
    pub fn end_heard(&self, upto: u64) {
        let mut clients = self.ports.clients.lock();
        let count = usize::try_from(upto.saturating_sub(clients.ended)).unwrap_or(usize::MAX);
        let count = count.min(clients.heard.len());
        let ended: Vec<Client> = clients.heard.drain(..count).collect();
        clients.ended += ended.len() as u64;
        self.ports.heard.store(clients.heard.len(), Ordering::Relaxed);
        drop(clients);
        ended.iter().for_each(|client| client.connection.take_message());
    }

    /// Takes the MADs of clients that had connected and have sent since.
    pub(super) fn recv_from_port_clients(&self, f: &mut dyn FnMut(&[Datagram<'_>])) {
        let Some(mut inbox) = self.inbox.try_lock() else { return };
        let clients = std::mem::take(&mut self.ports.clients.lock().silent);
        let (heard, silent): (VecDeque<_>, VecDeque<_>) =
            clients.into_iter().partition(|client| self.hear(&mut inbox, client, f));
        for client in heard {
            // A child of this process may have the connection too until it execs, so closing it doesn't take it out.
            let fd = client.connection.raw();
            let _ = self.epoll.unwatch(fd);
            self.keep_heard(client);
        }
        let mut clients = self.ports.clients.lock();
        silent.into_iter().rev().for_each(|client| clients.silent.push_front(client));
    }
}

/// The user of the process at the other end of a connection.
fn uid_of(connection: RawFd) -> Option<u32> {
    sys::peer_credentials(connection).ok().map(|peer| peer.uid)
}
