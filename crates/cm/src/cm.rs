//! The communication manager: its tables, timers, and what comes to it.

use crate::connection::{CmState, ConnectionRecord, PeerKey, Repeated};
use crate::stray;
use crate::time;
use crate::types::{
    AddressedMad, AskedUser, CmError, ConnectionEvent, ConnectionRoute, Event, Handle, Listen, ListenerId,
    Status,
};
use ferroce_types::HostAddr;
use ferroce_wire::cm::{Mad, Message};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// What a communication manager is made with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The high bits of all communication IDs: the process is found by them.
    pub id_prefix: u32,
    /// How many low bits are the connection's.
    pub id_bits: u32,
    /// Where the numbers of connections begin: at random, so that those of a process that is gone don't come again soon, and lookups
    /// of different hosts are different.
    pub first_id: u32,
    /// So many connections and lookups may exist, those included that are over and not forgotten.
    pub max_connections: usize,
}

/// A listener and its backlog.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) listen: Listen,
    pub(crate) waiting: u32,
}

/// The connections and lookups of a process.
#[derive(Debug)]
pub struct Cm {
    config: Config,
    next_id: u32,
    next_listener: u64,
    pub(crate) connections: BTreeMap<u32, ConnectionRecord>,
    pub(crate) listeners: BTreeMap<ListenerId, Listener>,
    /// Requests of peers by what the peers call them.
    pub(crate) by_peer_id: BTreeMap<(PeerKey, u32), u32>,
    /// Connections by the peer's QPN.
    pub(crate) by_peer_qpn: BTreeMap<(PeerKey, u32), u32>,
    /// Lookups of peers that wait to be answered, by what the peers call them.
    pub(crate) lookups: BTreeMap<(HostAddr, u32), u32>,
    timers: BTreeSet<(Duration, u32)>,
    transmits: VecDeque<AddressedMad>,
    events: VecDeque<Event>,
}

impl Cm {
    /// One without connections.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            next_id: config.first_id,
            next_listener: 0,
            connections: BTreeMap::new(),
            listeners: BTreeMap::new(),
            by_peer_id: BTreeMap::new(),
            by_peer_qpn: BTreeMap::new(),
            lookups: BTreeMap::new(),
            timers: BTreeSet::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// A MAD to send, the oldest first.
    pub fn poll_transmit(&mut self) -> Option<AddressedMad> {
        self.transmits.pop_front()
    }

    /// Something that has happened, the oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// [`Cm::poll_event`] has something.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// When [`Cm::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// How many connections and lookups there are, those included that are over and not forgotten.
    #[must_use]
    pub fn count(&self) -> usize {
        self.connections.len()
    }

    /// The peer's address and port, and the time after which the request is given up, of a connection or lookup that waits for the answer
    /// to its request.
    #[must_use]
    pub fn unanswered(&self, now: Duration, handle: Handle) -> Option<(SocketAddr, Duration)> {
        let asks = |c: &&ConnectionRecord| matches!(c.state, CmState::RequestSent | CmState::LookupSent);
        let connection = self.connections.get(&handle.0).filter(asks)?;
        let (repeated, timer) = (connection.repeated.as_ref()?, connection.timer?);
        let rest = timer.saturating_sub(now) + u32::from(repeated.left) * repeated.interval;
        Some((connection.status().peer, rest.min(repeated.until.saturating_sub(now))))
    }

    /// The connections and lookups that aren't over.
    pub fn statuses(&self) -> impl Iterator<Item = Status> {
        self.connections.values().filter(|c| c.state != CmState::Closed).map(ConnectionRecord::status)
    }

    /// The listeners, each with the number of requests in its backlog.
    pub fn listeners(&self) -> impl Iterator<Item = (Listen, u32)> {
        self.listeners.values().map(|listener| (listener.listen, listener.waiting))
    }

    /// No event of a connection follows any more.
    #[must_use]
    pub fn is_over(&self, handle: Handle) -> bool {
        self.events.is_empty() && self.connections.get(&handle.0).is_none_or(|c| c.state == CmState::Closed)
    }

    /// Between which addresses a connection is.
    #[must_use]
    pub fn route(&self, handle: Handle) -> Option<ConnectionRoute> {
        self.connections.get(&handle.0).map(|connection| connection.route)
    }

    /// This side's QP of a connection.
    #[must_use]
    pub fn own_qpn(&self, handle: Handle) -> Option<u32> {
        self.connections.get(&handle.0).map(|connection| connection.own_qpn)
    }

    /// Requests that fit `listen` go to it from now on.
    pub fn listen(&mut self, listen: Listen) -> ListenerId {
        let id = ListenerId(self.next_listener);
        self.next_listener += 1;
        self.listeners.insert(id, Listener { listen, waiting: 0 });
        id
    }

    /// No requests go to a listener any more. Those that have come are left as they are.
    pub fn stop_listening(&mut self, id: ListenerId) {
        self.listeners.remove(&id);
    }

    /// The request of a connection or lookup has gone to a process of this user.
    pub fn note_asked(&mut self, request: &Message, user: AskedUser) {
        let id = match request {
            Message::Request(request) => request.local_comm_id,
            Message::SidrRequest(request) => request.request_id,
            _ => return,
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.asked = user;
        }
    }

    /// The user has taken notice of a request: it is out of its listener's backlog.
    pub fn take(&mut self, handle: Handle) {
        let listener = self.connections.get_mut(&handle.0).and_then(|c| c.backlog_of.take());
        if let Some(listener) = listener.and_then(|id| self.listeners.get_mut(&id)) {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }

    /// A MAD has come from the network, from `from` to the local address `to`. What it is for, this process has.
    pub fn handle(&mut self, now: Duration, from: HostAddr, to: HostAddr, mad: &Mad) {
        self.handle_by(now, MadWay { from, to, is_of_user: false }, mad);
    }

    /// As [`Cm::handle`], of one that may be of a process of this user.
    pub fn handle_arrived(&mut self, now: Duration, arrived: &AddressedMad) {
        let &AddressedMad { from, to, is_of_user, ref mad, .. } = arrived;
        self.handle_by(now, MadWay { from, to, is_of_user }, mad);
    }

    fn handle_by(&mut self, now: Duration, way: MadWay, mad: &Mad) {
        match &mad.message {
            Message::Request(request) => self.request(now, way, mad.transaction, request),
            Message::Mra(mra) => self.mra(now, way, mra),
            Message::Reject(reject) => self.rejected(way, reject),
            Message::Reply(reply) => self.reply(now, way, mad, reply),
            Message::ReadyToUse(ids) => self.ready_to_use(way, *ids),
            Message::DisconnectRequest(request) => self.disconnect_request(now, way, mad, request),
            Message::DisconnectReply(ids) => self.disconnect_reply(now, way, *ids),
            Message::SidrRequest(request) => self.sidr_request(now, way, mad.transaction, request),
            Message::SidrReply(reply) => self.sidr_reply(way, reply),
        }
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.timer = None;
                self.timer_is_due(now, id);
            }
        }
    }

    fn timer_is_due(&mut self, now: Duration, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match connection.repeated.as_mut().filter(|repeated| repeated.left > 0 && now < repeated.until) {
            Some(repeated) => {
                repeated.left -= 1;
                (repeated.deferred, repeated.hastened) = (false, false);
                let (mad, at) = (repeated.mad, (now + repeated.interval).min(repeated.until));
                self.set_timer(id, at);
                self.send(id, mad);
            }
            None => self.gave_up(now, id),
        }
    }

    /// The process whose connections have these IDs has died: its connections end as by its own message.
    pub fn peer_gone(&mut self, now: Duration, mut is_it: impl FnMut(u32, &ConnectionRoute) -> bool) {
        let gone: Vec<u32> = self
            .connections
            .values()
            .filter(|c| c.is_live() && c.remote != 0 && is_it(c.remote, &c.route))
            .map(|c| c.local)
            .collect();
        gone.into_iter().for_each(|id| self.is_gone(now, id));
    }

    /// A process that was asked may be gone, or just going: requests that wait for an answer by these routes are sent again soon, and
    /// find out. That counts as no repetition, and doesn't prolong the whole wait.
    pub fn ask_again(&mut self, now: Duration, mut is_it: impl FnMut(&ConnectionRoute) -> bool) {
        let asks = |c: &&ConnectionRecord| matches!(c.state, CmState::RequestSent | CmState::LookupSent);
        let asking = self.connections.values().filter(asks).filter(|c| is_it(&c.route));
        let ids: Vec<u32> = asking.map(|c| c.local).collect();
        for id in ids {
            let repeated = self.connections.get_mut(&id).and_then(|c| c.repeated.as_mut());
            if let Some(repeated) = repeated.filter(|repeated| !repeated.hastened) {
                repeated.hastened = true;
                repeated.left = repeated.left.saturating_add(1);
                let at = (now + time::LAST_BREATH).min(repeated.until);
                self.set_timer(id, at);
            }
        }
    }

    /// Makes room for a connection and gives it a number.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn new_id(&mut self) -> Result<u32, CmError> {
        let most = self.config.max_connections;
        if self.connections.len() >= most {
            // Those that only wait for their peers' last words.
            let orphans: Vec<u32> = self.connections.values().filter(|c| c.orphan).map(|c| c.local).collect();
            orphans.into_iter().for_each(|id| self.remove(id));
        }
        if self.connections.len() >= most {
            return Err(CmError::TooMany { most });
        }
        let mask = 1_u32.checked_shl(self.config.id_bits).map_or(u32::MAX, |beyond| beyond - 1);
        for _ in 0..=self.connections.len() {
            let id = self.config.id_prefix & !mask | self.next_id & mask;
            self.next_id = self.next_id.wrapping_add(1);
            // 0 stands for no connection.
            if id != 0 && !self.connections.contains_key(&id) {
                return Ok(id);
            }
        }
        Err(CmError::TooMany { most })
    }

    /// Keeps a connection, and counts it in the backlog of its listener until [`Cm::take`].
    pub(crate) fn add(&mut self, connection: ConnectionRecord) -> Handle {
        let id = connection.local;
        if let Some(listener) = connection.backlog_of.and_then(|id| self.listeners.get_mut(&id)) {
            listener.waiting += 1;
        }
        self.connections.insert(id, connection);
        Handle(id)
    }

    /// Forgets a connection.
    pub(crate) fn remove(&mut self, id: u32) {
        self.forget_peer(id);
        self.take(Handle(id));
        self.stop_timer(id);
        self.connections.remove(&id);
    }

    /// The peer may use its names for the connection anew.
    pub(crate) fn forget_peer(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        if let Some(peer) = connection.peer {
            let (by_id, by_qpn) = ((peer, connection.remote), (peer, connection.peer_qpn));
            if self.by_peer_id.get(&by_id) == Some(&id) {
                self.by_peer_id.remove(&by_id);
            }
            if self.by_peer_qpn.get(&by_qpn) == Some(&id) {
                self.by_peer_qpn.remove(&by_qpn);
            }
        }
        let lookup = (connection.route.to, connection.remote);
        if self.lookups.get(&lookup) == Some(&id) {
            self.lookups.remove(&lookup);
        }
    }

    pub(crate) fn set_timer(&mut self, id: u32, at: Duration) {
        self.stop_timer(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.timer = Some(at);
            self.timers.insert((at, id));
        }
    }

    pub(crate) fn stop_timer(&mut self, id: u32) {
        if let Some(at) = self.connections.get_mut(&id).and_then(|c| c.timer.take()) {
            self.timers.remove(&(at, id));
        }
    }

    /// Sends a message, and again until it is answered, within [`time::longest_wait`].
    pub(crate) fn send_repeatedly(&mut self, now: Duration, id: u32, mad: Mad) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (interval, left) = (connection.interval, connection.retries);
        let until = now + time::longest_wait(interval, left);
        connection.repeated = Some(Repeated { mad, interval, left, deferred: false, hastened: false, until });
        self.set_timer(id, now + interval);
        self.send(id, mad);
    }

    /// Nothing is sent again.
    pub(crate) fn answered(&mut self, id: u32) {
        self.stop_timer(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.repeated = None;
        }
    }

    /// Sends a MAD to the peer of a connection.
    pub(crate) fn send(&mut self, id: u32, mad: Mad) {
        if let Some(ConnectionRoute { from, to, traffic_class, .. }) =
            self.connections.get(&id).map(|c| c.route)
        {
            self.transmits.push_back(AddressedMad { from, to, traffic_class, is_of_user: true, mad });
        }
    }

    /// Answers a MAD that belongs to no connection.
    pub(crate) fn send_back(&mut self, way: MadWay, mad: Mad) {
        let MadWay { from: to, to: from, is_of_user } = way;
        self.transmits.push_back(AddressedMad { from, to, traffic_class: 0, is_of_user, mad });
    }

    /// Answers a MAD that is for a connection which doesn't exist.
    pub(crate) fn answer_stray(&mut self, way: MadWay, mad: &Mad) {
        if let Some(answer) = stray::answer_for_nobody(mad) {
            self.send_back(way, answer);
        }
    }

    pub(crate) fn raise(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Queues an event of a connection that has a user.
    pub(crate) fn raise_for(&mut self, id: u32, event: ConnectionEvent) {
        if self.connections.get(&id).is_some_and(|c| !c.orphan) {
            self.events.push_back(Event::Of(Handle(id), event));
        }
    }

    /// The connection of a handle.
    ///
    /// # Errors
    /// There is none: it is over.
    pub(crate) fn of(&mut self, handle: Handle) -> Result<&mut ConnectionRecord, CmError> {
        self.connections.get_mut(&handle.0).ok_or(CmError::State { state: CmState::Closed.name() })
    }
}

/// The addresses of a packet that has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MadWay {
    pub(crate) from: HostAddr,
    pub(crate) to: HostAddr,
    /// As [`AddressedMad::is_of_user`].
    pub(crate) is_of_user: bool,
}
