//! A connection or lookup as the communication manager knows it.

use crate::types::{AskedUser, ConnectionRoute, ListenerId, Status};
use ferroce_types::HostAddr;
use ferroce_wire::cm::{CommIds, Mad, Message, ServiceId};
use std::time::Duration;

/// Where a connection is between its request and its end (IBTA 12.9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CmState {
    /// This side has asked.
    RequestSent,
    /// The peer has accepted; this side isn't ready yet.
    ReplyReceived,
    /// The peer has asked.
    RequestReceived,
    /// This side has accepted; the peer isn't ready yet.
    ReplySent,
    /// Both are ready.
    Established,
    /// This side has asked for the end.
    DisconnectSent,
    /// The peer has asked for the end.
    DisconnectReceived,
    /// Over, but packets may still be under way.
    TimeWait,
    /// This side has looked up a service.
    LookupSent,
    /// The peer looks up a service.
    LookupReceived,
    /// Over.
    Closed,
}

impl CmState {
    /// As Linux names it (`enum ib_cm_state`).
    pub(crate) const fn short_name(self) -> &'static str {
        match self {
            Self::RequestSent => "REQ_SENT",
            Self::ReplyReceived => "REP_RCVD",
            Self::RequestReceived => "REQ_RCVD",
            Self::ReplySent => "REP_SENT",
            Self::Established => "ESTABLISHED",
            Self::DisconnectSent => "DREQ_SENT",
            Self::DisconnectReceived => "DREQ_RCVD",
            Self::TimeWait => "TIMEWAIT",
            Self::LookupSent => "SIDR_REQ_SENT",
            Self::LookupReceived => "SIDR_REQ_RCVD",
            Self::Closed => "IDLE",
        }
    }

    /// The peer or this side's program has to act.
    pub(crate) const fn waits(self) -> bool {
        !matches!(self, Self::Established | Self::TimeWait | Self::Closed)
    }

    /// For a program's log.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::RequestSent => "waiting for the peer's reply",
            Self::ReplyReceived => "waiting for this side to be ready",
            Self::RequestReceived => "waiting for an answer to the peer's request",
            Self::ReplySent => "waiting for the peer to be ready",
            Self::Established => "established",
            Self::DisconnectSent | Self::DisconnectReceived | Self::TimeWait => "being closed",
            Self::LookupSent => "a lookup that waits for its answer",
            Self::LookupReceived => "a lookup that waits to be answered",
            Self::Closed => "over",
        }
    }
}

/// By what a peer is known that calls itself so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PeerKey {
    pub(crate) address: HostAddr,
    pub(crate) ca_guid: u64,
}

/// A message that is sent again until it is answered.
#[derive(Clone, Debug)]
pub(crate) struct Repeated {
    pub(crate) mad: Mad,
    pub(crate) interval: Duration,
    /// So often again.
    pub(crate) left: u8,
    /// An MRA for it has come since it was sent last.
    pub(crate) deferred: bool,
    /// It is sent again soon, out of turn.
    pub(crate) hastened: bool,
    /// The end of the wait for an answer, whatever prolongs it.
    pub(crate) until: Duration,
}

/// A connection or lookup.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionRecord {
    pub(crate) state: CmState,
    pub(crate) local: u32,
    /// The peer's communication ID; 0: not known yet.
    pub(crate) remote: u32,
    pub(crate) route: ConnectionRoute,
    /// Of the request: all messages have it.
    pub(crate) transaction: u64,
    /// What it was asked for.
    pub(crate) service_id: ServiceId,
    /// The ports of this side and of the peer, as the programs know them; 0: unknown.
    pub(crate) ports: [u16; 2],
    /// When a state began that [waits](CmState::waits).
    pub(crate) since: Duration,
    /// The peer, once it is known.
    pub(crate) peer: Option<PeerKey>,
    pub(crate) peer_qpn: u32,
    pub(crate) own_qpn: u32,
    pub(crate) own_guid: u64,
    /// The user whose process gets this side's request.
    pub(crate) asked: AskedUser,
    /// The listener in whose backlog it is.
    pub(crate) backlog_of: Option<ListenerId>,
    pub(crate) repeated: Option<Repeated>,
    /// When its timer is due.
    pub(crate) timer: Option<Duration>,
    /// How long a message to the peer is given.
    pub(crate) interval: Duration,
    pub(crate) retries: u8,
    pub(crate) time_wait: Duration,
    /// Its user has gone: no events.
    pub(crate) orphan: bool,
}

impl ConnectionRecord {
    /// A connection in its first state, at `since`.
    pub(crate) const fn new(
        state: CmState,
        since: Duration,
        local: u32,
        route: ConnectionRoute,
        transaction: u64,
        service_id: ServiceId,
    ) -> Self {
        Self {
            state,
            local,
            remote: 0,
            route,
            transaction,
            service_id,
            ports: [0; 2],
            since,
            peer: None,
            peer_qpn: 0,
            own_qpn: 0,
            own_guid: 0,
            asked: AskedUser::Unknown,
            backlog_of: None,
            repeated: None,
            timer: None,
            interval: Duration::ZERO,
            retries: 0,
            time_wait: Duration::ZERO,
            orphan: false,
        }
    }

    /// Enters a state that [waits](CmState::waits).
    pub(crate) const fn wait(&mut self, state: CmState, now: Duration) {
        (self.state, self.since) = (state, now);
    }

    /// What is shown of it.
    pub(crate) fn status(&self) -> Status {
        let [own, peer] = self.ports;
        Status {
            id: self.local,
            state: self.state.short_name(),
            local: self.route.from.with_port(own),
            peer: self.route.to.with_port(peer),
            qpn: self.own_qpn,
            since: self.state.waits().then_some(self.since),
        }
    }

    /// The IDs as this side calls them.
    pub(crate) const fn ids(&self) -> CommIds {
        CommIds { local: self.local, remote: self.remote }
    }

    /// A message from the peer is of this connection.
    pub(crate) fn is_from(&self, from: HostAddr, ids: CommIds) -> bool {
        self.route.to == from && self.remote == ids.local
    }

    pub(crate) const fn mad(&self, message: Message) -> Mad {
        Mad { transaction: self.transaction, message }
    }

    /// Its peer may repeat or reuse what it calls it.
    pub(crate) const fn is_live(&self) -> bool {
        !matches!(self.state, CmState::TimeWait | CmState::Closed)
    }
}
