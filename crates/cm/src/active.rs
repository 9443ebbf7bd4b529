//! The side that asks for a connection.

use crate::cm::{Cm, MadWay};
use crate::connection::{CmState, ConnectionRecord, PeerKey};
use crate::time;
use crate::types::{CmError, Connect, ConnectionEvent, ConnectionRoute, Handle};
use ferroce_wire::cm::{
    ConnectPath, IP_HEADER_LEN, IpHeader, Mad, Message, Mra, Reject, RejectReason, Rejected, Reply, Request,
    ServiceId,
};
use std::time::Duration;

/// LIDs of RoCE, which has none.
const NO_LID: u16 = 0xffff;

/// Private data of `N` bytes: the header, if there is one, and the consumer's.
pub(crate) fn with_header<const N: usize>(
    header: Option<&IpHeader>,
    private_data: &[u8],
) -> Result<[u8; N], CmError> {
    let header = header.map(IpHeader::emit);
    let begin = if header.is_some() { IP_HEADER_LEN } else { 0 };
    let mut data = [0; N];
    let given = private_data.len();
    let Some(room) = data.get_mut(begin..begin + given) else {
        return Err(CmError::PrivateData { given, most: N - begin });
    };
    room.copy_from_slice(private_data);
    if let Some(header) = header {
        data[..IP_HEADER_LEN].copy_from_slice(&header);
    }
    Ok(data)
}

/// The port of a service ID; 0: it stands for none.
pub(crate) fn service_port(service_id: ServiceId) -> u16 {
    service_id.port().map_or(0, |(_, port)| port)
}

/// The ports of a requester and of the service that it asks for.
pub(crate) fn ports(header: Option<&IpHeader>, service_id: ServiceId) -> [u16; 2] {
    [header.map_or(0, |header| header.source.port()), service_port(service_id)]
}

impl Cm {
    /// Asks for a connection.
    ///
    /// # Errors
    /// Too much private data, or too many connections.
    pub fn connect(&mut self, now: Duration, wanted: &Connect<'_>) -> Result<Handle, CmError> {
        let private_data = with_header(wanted.header.as_ref(), wanted.private_data)?;
        let id = self.new_id()?;
        let Connect { route, qp, .. } = *wanted;
        let request = Request {
            local_comm_id: id,
            service_id: wanted.service_id,
            ca_guid: wanted.ca_guid,
            qkey: 0,
            qpn: qp.qpn,
            responder_resources: qp.responder_resources,
            initiator_depth: qp.initiator_depth,
            local_eecn: 0,
            remote_eecn: 0,
            remote_response_timeout: time::RESPONSE_TIMEOUT,
            transport: qp.transport,
            flow_control: qp.flow_control,
            starting_psn: qp.starting_psn,
            local_response_timeout: time::RESPONSE_TIMEOUT,
            retry_count: qp.retry_count,
            pkey: qp.pkey,
            path_mtu: qp.path_mtu,
            rdc_exists: false,
            rnr_retry_count: qp.rnr_retry_count,
            max_cm_retries: time::MAX_RETRIES,
            srq: qp.srq,
            primary: path(&route, qp.ack_timeout),
            alternate: ConnectPath::NONE,
            ece: wanted.ece,
            private_data,
        };
        let connection = ConnectionRecord {
            own_qpn: qp.qpn,
            own_guid: wanted.ca_guid,
            interval: time::round_trip(time::PACKET_LIFE, time::RESPONSE_TIMEOUT),
            retries: time::MAX_RETRIES,
            time_wait: time::of_code(qp.ack_timeout),
            ports: ports(wanted.header.as_ref(), wanted.service_id),
            ..ConnectionRecord::new(CmState::RequestSent, now, id, route, u64::from(id), wanted.service_id)
        };
        let mad = connection.mad(Message::Request(request));
        let handle = self.add(connection);
        self.send_repeatedly(now, id, mad);
        Ok(handle)
    }

    /// A REP has come.
    pub(crate) fn reply(&mut self, now: Duration, way: MadWay, mad: &Mad, reply: &Reply) {
        let id = reply.remote_comm_id;
        let Some(connection) = self.connections.get_mut(&id) else {
            return self.answer_stray(way, mad);
        };
        if connection.route.to != way.from {
            return;
        }
        let is_again = connection.remote == reply.local_comm_id;
        match connection.state {
            CmState::RequestSent => {
                let peer = PeerKey { address: way.from, ca_guid: reply.ca_guid };
                connection.remote = reply.local_comm_id;
                connection.peer_qpn = reply.qpn;
                connection.peer = Some(peer);
                connection.wait(CmState::ReplyReceived, now);
                self.answered(id);
                self.replace_stale(now, (peer, reply.qpn), id);
                self.raise_for(id, ConnectionEvent::Reply(Box::new(*reply)));
            }
            // The RTU was lost.
            CmState::Established if is_again => self.send_ready_to_use(id),
            CmState::ReplyReceived if is_again => self.ask_for_time(id, Rejected::Reply),
            CmState::Closed if is_again || connection.remote == 0 => self.answer_stray(way, mad),
            _ => {}
        }
    }

    /// The peer's QPN belongs to connection `id` from now on: one that had it is over, and the peer knows nothing of it.
    fn replace_stale(&mut self, now: Duration, qpn: (PeerKey, u32), id: u32) {
        if let Some(stale) = self.by_peer_qpn.insert(qpn, id) {
            let _ = self.disconnect(now, Handle(stale));
        }
    }

    /// This side is ready (RTU).
    ///
    /// # Errors
    /// There is no reply, or the peer has gone meanwhile.
    pub fn establish(&mut self, handle: Handle) -> Result<(), CmError> {
        let connection = self.of(handle)?;
        if connection.state != CmState::ReplyReceived {
            return Err(CmError::State { state: connection.state.name() });
        }
        connection.state = CmState::Established;
        self.send_ready_to_use(handle.0);
        Ok(())
    }

    fn send_ready_to_use(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        let mad = connection.mad(Message::ReadyToUse(connection.ids()));
        self.send(id, mad);
    }

    /// Answers a message with an MRA: the program needs time.
    pub(crate) fn ask_for_time(&mut self, id: u32, received: Rejected) {
        let Some(connection) = self.connections.get(&id) else { return };
        let mra = Mra { ids: connection.ids(), received, service_timeout: time::SERVICE_TIMEOUT };
        let mad = connection.mad(Message::Mra(mra));
        self.send(id, mad);
    }

    /// An MRA has come: the answer takes longer. The next repetition is deferred once.
    pub(crate) fn mra(&mut self, now: Duration, way: MadWay, mra: &Mra) {
        let id = mra.ids.remote;
        let Some(connection) = self.connections.get_mut(&id).filter(|c| c.route.to == way.from) else {
            return;
        };
        let is_of_state = match (connection.state, mra.received) {
            (CmState::RequestSent, Rejected::Request) => true,
            (CmState::ReplySent, Rejected::Reply) => connection.remote == mra.ids.local,
            _ => false,
        };
        let (Some(repeated), Some(due)) = (&mut connection.repeated, connection.timer) else { return };
        if is_of_state && !repeated.deferred {
            repeated.deferred = true;
            let at = due.max(now + time::deferred(mra.service_timeout)).min(repeated.until);
            self.set_timer(id, at);
        }
    }

    /// Gives up a request: the peer may forget it.
    pub(crate) fn send_timeout(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        let mut reject = Reject {
            rejected: Rejected::Other,
            info_length: 8,
            ..Reject::of_request(connection.ids(), RejectReason::TIMEOUT)
        };
        reject.info[..8].copy_from_slice(&connection.own_guid.to_be_bytes());
        let mad = connection.mad(Message::Reject(reject));
        self.send(id, mad);
    }
}

/// A route as the path of a REQ.
fn path(route: &ConnectionRoute, ack_timeout: u8) -> ConnectPath {
    ConnectPath {
        local_lid: NO_LID,
        remote_lid: NO_LID,
        local_gid: route.from.gid(),
        remote_gid: route.to.gid(),
        flow_label: route.flow_label,
        packet_rate: 0,
        traffic_class: route.traffic_class,
        hop_limit: route.hop_limit,
        sl: route.sl,
        subnet_local: route.hop_limit <= 1,
        ack_timeout,
    }
}
