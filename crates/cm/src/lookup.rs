//! Lookups of datagram services (SIDR, IBTA 12.11).

use crate::active::{ports, service_port, with_header};
use crate::cm::{Cm, MadWay};
use crate::connection::{CmState, ConnectionRecord};
use crate::passive::{DEFAULT_PKEY, NoListener, private_data};
use crate::time;
use crate::types::{CmError, ConnectionEvent, ConnectionRoute, Event, Handle, Lookup, LookupReply};
use ferroce_wire::cm::{IpHeader, Mad, Message, SidrReply, SidrRequest, SidrStatus};
use std::time::Duration;

impl Cm {
    /// Looks up a datagram service.
    ///
    /// # Errors
    /// Too much private data, or too many connections.
    pub fn lookup(&mut self, now: Duration, wanted: &Lookup<'_>) -> Result<Handle, CmError> {
        let private_data = with_header(wanted.header.as_ref(), wanted.private_data)?;
        let id = self.new_id()?;
        let connection = ConnectionRecord {
            interval: time::of_code(time::RESPONSE_TIMEOUT),
            retries: time::MAX_RETRIES,
            ports: ports(wanted.header.as_ref(), wanted.service_id),
            ..ConnectionRecord::new(
                CmState::LookupSent,
                now,
                id,
                wanted.route,
                u64::from(id),
                wanted.service_id,
            )
        };
        let request =
            SidrRequest { request_id: id, pkey: wanted.pkey, service_id: wanted.service_id, private_data };
        let mad = connection.mad(Message::SidrRequest(request));
        let handle = self.add(connection);
        self.send_repeatedly(now, id, mad);
        Ok(handle)
    }

    /// A SIDR_REQ has come.
    pub(crate) fn sidr_request(
        &mut self,
        now: Duration,
        way: MadWay,
        transaction: u64,
        request: &SidrRequest,
    ) {
        let name = (way.from, request.request_id);
        if self.lookups.contains_key(&name) {
            return;
        }
        let header = IpHeader::parse(&request.private_data);
        let found = self.listener(request.service_id, header.as_ref(), None);
        let fits = request.pkey & DEFAULT_PKEY == DEFAULT_PKEY;
        let (listener, header) = match (found, header) {
            (Ok(listener), Some(header)) if fits => (listener, header),
            (Err(NoListener::Port), _) => {
                let mad = Mad { transaction, message: Message::SidrRequest(*request) };
                return self.answer_stray(way, &mad);
            }
            _ => {
                let reply = SidrReply::without_qp(request.request_id, SidrStatus::REJECT, request.service_id);
                return self.send_back(way, Mad { transaction, message: Message::SidrReply(reply) });
            }
        };
        if !self.has_room(listener) {
            return;
        }
        let Ok(id) = self.new_id() else { return };
        let route = ConnectionRoute {
            from: way.to,
            to: way.from,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            sl: 0,
        };
        let handle = self.add(ConnectionRecord {
            remote: request.request_id,
            backlog_of: Some(listener),
            ports: [service_port(request.service_id), header.source.port()],
            ..ConnectionRecord::new(CmState::LookupReceived, now, id, route, transaction, request.service_id)
        });
        self.lookups.insert(name, id);
        self.raise(Event::Lookup { listener, handle, request: Box::new(*request), header, route });
    }

    /// Answers a lookup.
    ///
    /// # Errors
    /// Too much private data, or it was answered before.
    pub fn answer(&mut self, handle: Handle, given: &LookupReply<'_>) -> Result<(), CmError> {
        let private_data = private_data(given.private_data)?;
        let connection = self.of(handle)?;
        if connection.state != CmState::LookupReceived {
            return Err(CmError::State { state: connection.state.name() });
        }
        let reply = SidrReply {
            qpn: given.qpn,
            qkey: given.qkey,
            ece: given.ece,
            private_data,
            ..SidrReply::without_qp(connection.remote, given.status, connection.service_id)
        };
        let mad = connection.mad(Message::SidrReply(reply));
        self.send(handle.0, mad);
        self.take(handle);
        self.close(handle.0);
        Ok(())
    }

    /// Answers a lookup without a QP.
    pub(crate) fn send_lookup_answer(&mut self, id: u32, status: SidrStatus) {
        let Some(connection) = self.connections.get(&id) else { return };
        let reply = SidrReply::without_qp(connection.remote, status, connection.service_id);
        let mad = connection.mad(Message::SidrReply(reply));
        self.send(id, mad);
    }

    /// A SIDR_REP has come.
    pub(crate) fn sidr_reply(&mut self, way: MadWay, reply: &SidrReply) {
        let id = reply.request_id;
        let connection = self.connections.get(&id).filter(|c| c.route.to == way.from);
        if connection.is_some_and(|c| c.state == CmState::LookupSent) {
            self.close(id);
            self.raise_for(id, ConnectionEvent::Answer(Box::new(*reply)));
        }
    }
}
