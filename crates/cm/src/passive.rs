//! The side that is asked for a connection.

use crate::active::service_port;
use crate::cm::{Cm, MadWay};
use crate::connection::{CmState, ConnectionRecord, PeerKey};
use crate::stray::refusal;
use crate::time;
use crate::types::{Accept, CmError, ConnectionEvent, ConnectionRoute, Event, Handle, ListenerId};
use ferroce_types::HostAddr;
use ferroce_wire::cm::{
    CommIds, IpHeader, Mad, Message, Reject, RejectReason, Rejected, Reply, Request, ServiceId,
    TransportService,
};
use std::net::IpAddr;
use std::time::Duration;

/// The default partition, as a full or a limited member.
pub(crate) const DEFAULT_PKEY: u16 = 0x7fff;

/// Why a request finds no listener.
pub(crate) enum NoListener {
    /// No listener has the port.
    Port,
    /// The port's listener doesn't take such requests.
    Unfit,
}

/// `data` as private data of `N` bytes.
pub(crate) fn private_data<const N: usize>(data: &[u8]) -> Result<[u8; N], CmError> {
    let mut bytes = [0; N];
    let Some(room) = bytes.get_mut(..data.len()) else {
        return Err(CmError::PrivateData { given: data.len(), most: N });
    };
    room.copy_from_slice(data);
    Ok(bytes)
}

impl Cm {
    /// A REQ has come.
    pub(crate) fn request(&mut self, now: Duration, way: MadWay, transaction: u64, request: &Request) {
        let peer = PeerKey { address: way.from, ca_guid: request.ca_guid };
        let name = (peer, request.local_comm_id);
        if let Some(&known) = self.by_peer_id.get(&name) {
            if self.connections.get(&known).is_some_and(|c| c.state == CmState::RequestReceived) {
                self.ask_for_time(known, Rejected::Request);
            }
            // Otherwise the answer is under way, or comes again by itself.
            return;
        }
        let refuse = |cm: &mut Self, reason| {
            let message = Message::Reject(refusal(request, reason));
            cm.send_back(way, Mad { transaction, message });
        };
        if let Some(&stale) = self.by_peer_qpn.get(&(peer, request.qpn)) {
            // The peer's program has died, and another one has its number now.
            refuse(self, RejectReason::STALE_CONNECTION);
            let _ = self.disconnect(now, Handle(stale));
            return;
        }
        let header = IpHeader::parse(&request.private_data);
        let listener = match self.listener(request.service_id, header.as_ref(), Some(request.transport)) {
            Ok(listener) => listener,
            Err(NoListener::Port) => return refuse(self, RejectReason::INVALID_SERVICE_ID),
            Err(NoListener::Unfit) => return refuse(self, RejectReason::CONSUMER),
        };
        let Some(header) = header else { return refuse(self, RejectReason::CONSUMER) };
        if let Some(reason) = unusable_path(way, request) {
            return refuse(self, reason);
        }
        if !self.has_room(listener) {
            return;
        }
        let Ok(id) = self.new_id() else { return };
        let path = &request.primary;
        let route = ConnectionRoute {
            from: way.to,
            to: way.from,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            flow_label: path.flow_label,
            sl: path.sl,
        };
        let handle = self.add(ConnectionRecord {
            remote: request.local_comm_id,
            peer: Some(peer),
            peer_qpn: request.qpn,
            backlog_of: Some(listener),
            interval: time::granted(request.local_response_timeout),
            retries: request.max_cm_retries,
            time_wait: time::granted(path.ack_timeout),
            ports: [service_port(request.service_id), header.source.port()],
            ..ConnectionRecord::new(CmState::RequestReceived, now, id, route, transaction, request.service_id)
        });
        self.by_peer_id.insert(name, id);
        self.by_peer_qpn.insert((peer, request.qpn), id);
        self.raise(Event::Request { listener, handle, request: Box::new(*request), header, route });
    }

    /// The listener that a request is for.
    pub(crate) fn listener(
        &self,
        service_id: ServiceId,
        header: Option<&IpHeader>,
        transport: Option<TransportService>,
    ) -> Result<ListenerId, NoListener> {
        let Some((space, port)) = service_id.port() else { return Err(NoListener::Port) };
        let mut of_port = self
            .listeners
            .iter()
            .filter(|(_, l)| (l.listen.space, l.listen.port) == (space, port))
            .map(|(id, l)| (*id, &l.listen))
            .peekable();
        if of_port.peek().is_none() {
            return Err(NoListener::Port);
        }
        let Some(IpHeader { destination, .. }) = header else { return Err(NoListener::Unfit) };
        of_port
            .filter(|(_, listen)| listen.transport == transport)
            .filter(|(_, listen)| takes(listen.address, listen.v6_only, *destination))
            // One that is bound to the address comes before one that takes all.
            .max_by_key(|(_, listen)| listen.address == *destination)
            .map(|(id, _)| id)
            .ok_or(NoListener::Unfit)
    }

    /// One more request fits a listener's backlog.
    pub(crate) fn has_room(&self, listener: ListenerId) -> bool {
        self.listeners.get(&listener).is_some_and(|listener| listener.waiting < listener.listen.backlog)
    }

    /// Accepts a request (REP).
    ///
    /// # Errors
    /// Too much private data; the peer has given up meanwhile; it was accepted or rejected before.
    pub fn accept(&mut self, now: Duration, handle: Handle, answer: &Accept<'_>) -> Result<(), CmError> {
        let private_data = private_data(answer.private_data)?;
        let connection = self.of(handle)?;
        if connection.state != CmState::RequestReceived {
            return Err(CmError::State { state: connection.state.name() });
        }
        connection.wait(CmState::ReplySent, now);
        connection.own_qpn = answer.qpn;
        connection.own_guid = answer.ca_guid;
        let mad = connection.mad(Message::Reply(Reply {
            local_comm_id: connection.local,
            remote_comm_id: connection.remote,
            qkey: 0,
            qpn: answer.qpn,
            eecn: answer.eecn,
            starting_psn: answer.starting_psn,
            responder_resources: answer.responder_resources,
            initiator_depth: answer.initiator_depth,
            target_ack_delay: answer.target_ack_delay,
            failover_accepted: 0,
            flow_control: answer.flow_control,
            rnr_retry_count: answer.rnr_retry_count,
            srq: answer.srq,
            ca_guid: answer.ca_guid,
            ece: answer.ece,
            private_data,
        }));
        self.take(handle);
        self.send_repeatedly(now, handle.0, mad);
        Ok(())
    }

    /// Rejects a request, also one that was accepted and whose requester isn't ready yet, or the peer's reply to this side's.
    ///
    /// # Errors
    /// As [`Cm::accept`].
    pub fn reject(&mut self, handle: Handle, reason: RejectReason, data: &[u8]) -> Result<(), CmError> {
        let private_data = private_data(data)?;
        let connection = self.of(handle)?;
        let rejected = match connection.state {
            CmState::RequestReceived => Rejected::Request,
            CmState::ReplyReceived => Rejected::Reply,
            // The reply is taken back.
            CmState::ReplySent => Rejected::Other,
            state => return Err(CmError::State { state: state.name() }),
        };
        self.send_reject(
            handle.0,
            Reject { rejected, private_data, ..Reject::of_request(CommIds::NONE, reason) },
        );
        self.take(handle);
        self.close(handle.0);
        Ok(())
    }

    /// Rejects with the IDs of a connection.
    pub(crate) fn send_reject(&mut self, id: u32, reject: Reject) {
        let Some(connection) = self.connections.get(&id) else { return };
        let CommIds { local, remote } = connection.ids();
        let reject = Reject { local_comm_id: local, remote_comm_id: remote, ..reject };
        let mad = connection.mad(Message::Reject(reject));
        self.send(id, mad);
    }

    /// An RTU has come.
    pub(crate) fn ready_to_use(&mut self, way: MadWay, ids: CommIds) {
        let Some(connection) = self.connections.get(&ids.remote) else { return };
        if connection.state == CmState::ReplySent && connection.is_from(way.from, ids) {
            self.is_established(ids.remote);
        }
    }

    /// The peer's data has come, so that it is ready.
    ///
    /// # Errors
    /// The connection is established, or not accepted.
    pub fn notify_established(&mut self, handle: Handle) -> Result<(), CmError> {
        match self.of(handle)?.state {
            CmState::ReplySent => {
                self.is_established(handle.0);
                Ok(())
            }
            CmState::Established => Err(CmError::Established),
            state => Err(CmError::State { state: state.name() }),
        }
    }

    pub(crate) fn is_established(&mut self, id: u32) {
        self.answered(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = CmState::Established;
            self.raise_for(id, ConnectionEvent::Established);
        }
    }
}

/// Whether a listener at `own` takes requests for `destination`.
fn takes(own: IpAddr, v6_only: bool, destination: IpAddr) -> bool {
    let is_any = own.is_unspecified() || own.is_loopback();
    match (own, destination) {
        (IpAddr::V4(_), IpAddr::V6(_)) => false,
        (IpAddr::V6(own), IpAddr::V4(_)) => own.is_unspecified() && !v6_only,
        _ => is_any || own == destination,
    }
}

/// Why no connection can be made by the paths of a request.
fn unusable_path(way: MadWay, request: &Request) -> Option<RejectReason> {
    let is = |gid, address: HostAddr| HostAddr::from_gid(gid, address.scope_id()) == address;
    let path = &request.primary;
    if request.alternate.local_lid != 0 {
        return Some(RejectReason::INVALID_ALTERNATE_GID);
    }
    // Answers go to the requester's GID, again and again: it has to be who asks.
    let usable = is(path.remote_gid, way.to)
        && is(path.local_gid, way.from)
        && request.pkey & DEFAULT_PKEY == DEFAULT_PKEY;
    (!usable).then_some(RejectReason::INVALID_GID)
}
