//! How connections end: on request, by a rejection, when a peer is silent or gone, or with their user.

use crate::cm::{Cm, MadWay};
use crate::connection::{CmState, ConnectionRecord, PeerKey};
use crate::types::{CmError, ConnectionEvent, Handle};
use ferroce_wire::cm::{
    CommIds, DisconnectRequest, Mad, Message, Reject, RejectReason, Rejected, SidrStatus,
};
use std::time::Duration;

impl Cm {
    /// Asks for the end of a connection (DREQ), or agrees to it (DREP). Nothing happens when it is over, or not made yet.
    ///
    /// # Errors
    /// It hasn't been accepted or rejected.
    pub fn disconnect(&mut self, now: Duration, handle: Handle) -> Result<(), CmError> {
        let Some(connection) = self.connections.get_mut(&handle.0) else { return Ok(()) };
        match connection.state {
            CmState::RequestReceived | CmState::LookupReceived => {
                return Err(CmError::State { state: connection.state.name() });
            }
            CmState::ReplySent | CmState::Established => {
                connection.wait(CmState::DisconnectSent, now);
                let mad = disconnect_request(connection);
                self.send_repeatedly(now, handle.0, mad);
            }
            CmState::DisconnectReceived => {
                self.send_disconnect_reply(handle.0);
                self.wait_for_stragglers(now, handle.0);
            }
            _ => {}
        }
        Ok(())
    }

    /// A DREQ has come.
    pub(crate) fn disconnect_request(
        &mut self,
        now: Duration,
        way: MadWay,
        mad: &Mad,
        request: &DisconnectRequest,
    ) {
        let id = request.ids.remote;
        let Some(connection) = self.connections.get_mut(&id).filter(|c| c.remote == request.ids.local) else {
            return self.answer_stray(way, mad);
        };
        if connection.route.to != way.from {
            return;
        }
        // The answer has the question's number.
        match connection.state {
            CmState::ReplySent | CmState::Established | CmState::ReplyReceived => {
                if request.remote_qpn != connection.own_qpn {
                    return;
                }
                if connection.state == CmState::ReplySent {
                    // Its RTU is lost, or was overtaken: only who has sent one asks for the end.
                    self.is_established(id);
                }
                let Some(connection) = self.connections.get_mut(&id) else { return };
                connection.transaction = mad.transaction;
                connection.wait(CmState::DisconnectReceived, now);
                self.answered(id);
                self.raise_for(id, ConnectionEvent::Disconnected { timed_out: false });
                if self.connections.get(&id).is_some_and(|c| c.orphan) {
                    self.send_disconnect_reply(id);
                    self.remove(id);
                }
            }
            // Both have asked. Each has what it wanted.
            CmState::DisconnectSent => {
                connection.transaction = mad.transaction;
                self.send_disconnect_reply(id);
                self.is_disconnected(now, id, false);
            }
            CmState::TimeWait | CmState::Closed => self.answer_stray(way, mad),
            _ => {}
        }
    }

    /// A DREP has come.
    pub(crate) fn disconnect_reply(&mut self, now: Duration, way: MadWay, ids: CommIds) {
        let Some(connection) = self.connections.get(&ids.remote) else { return };
        if connection.state == CmState::DisconnectSent && connection.is_from(way.from, ids) {
            self.is_disconnected(now, ids.remote, false);
        }
    }

    /// A connection has ended, with an event.
    fn is_disconnected(&mut self, now: Duration, id: u32, timed_out: bool) {
        self.raise_for(id, ConnectionEvent::Disconnected { timed_out });
        self.wait_for_stragglers(now, id);
    }

    /// Packets of an ended connection may still be under way.
    fn wait_for_stragglers(&mut self, now: Duration, id: u32) {
        self.answered(id);
        self.forget_peer(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.orphan {
            return self.remove(id);
        }
        connection.state = CmState::TimeWait;
        let at = now + connection.time_wait;
        self.set_timer(id, at);
    }

    fn send_disconnect_reply(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        let mad = connection.mad(Message::DisconnectReply(connection.ids()));
        self.send(id, mad);
    }

    /// A REJ has come.
    pub(crate) fn rejected(&mut self, way: MadWay, reject: &Reject) {
        let id = match reject.remote_comm_id {
            // A requester that gives up knows its own ID only.
            0 => {
                let [guid, ..] = reject.info.as_chunks::<8>().0 else { return };
                let peer = PeerKey { address: way.from, ca_guid: u64::from_be_bytes(*guid) };
                match self.by_peer_id.get(&(peer, reject.local_comm_id)) {
                    Some(&id) if reject.reason == RejectReason::TIMEOUT => id,
                    _ => return,
                }
            }
            id => id,
        };
        let Some(connection) = self.connections.get(&id).filter(|c| c.route.to == way.from) else { return };
        let is_of_peer = reject.local_comm_id == connection.remote;
        match connection.state {
            CmState::RequestSent => {}
            CmState::RequestReceived if is_of_peer => return self.close(id),
            CmState::ReplySent | CmState::ReplyReceived if is_of_peer => {}
            // The RTU of this side is under way or lost, and the peer has gone.
            CmState::Established | CmState::DisconnectSent if is_of_peer => {}
            _ => return,
        }
        self.close(id);
        self.raise_for(id, ConnectionEvent::Rejected(Box::new(*reject)));
        self.remove_orphan(id);
    }

    /// A connection is over, without time-wait: its QPs have exchanged nothing, its peer has rejected it, or its user wants nothing any more.
    /// A request that its user hasn't fetched stays in the backlog: its event is kept.
    pub(crate) fn close(&mut self, id: u32) {
        self.answered(id);
        self.forget_peer(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = CmState::Closed;
        }
    }

    fn remove_orphan(&mut self, id: u32) {
        if self.connections.get(&id).is_some_and(|c| c.orphan) {
            self.remove(id);
        }
    }

    /// The last repetition of a message was not answered, or time-wait has ended.
    pub(crate) fn gave_up(&mut self, now: Duration, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        match connection.state {
            CmState::RequestSent | CmState::ReplySent => {
                self.send_timeout(id);
                self.close(id);
                self.raise_for(id, ConnectionEvent::Unreachable);
            }
            CmState::LookupSent => {
                self.close(id);
                self.raise_for(id, ConnectionEvent::Unreachable);
            }
            CmState::DisconnectSent => self.is_disconnected(now, id, true),
            CmState::TimeWait => {
                self.close(id);
                self.raise_for(id, ConnectionEvent::TimewaitExit);
            }
            _ => {}
        }
        self.remove_orphan(id);
    }

    /// The process of the peer has died.
    pub(crate) fn is_gone(&mut self, now: Duration, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        match connection.state {
            CmState::RequestReceived | CmState::LookupReceived => self.close(id),
            CmState::ReplyReceived | CmState::ReplySent => {
                let CommIds { local, remote } = connection.ids();
                // The peer's REJ, which the process can't send.
                let reject =
                    Reject::of_request(CommIds { local: remote, remote: local }, RejectReason::TIMEOUT);
                self.close(id);
                self.raise_for(
                    id,
                    ConnectionEvent::Rejected(Box::new(Reject { rejected: Rejected::Other, ..reject })),
                );
                self.remove_orphan(id);
            }
            CmState::Established | CmState::DisconnectSent => self.is_disconnected(now, id, false),
            CmState::DisconnectReceived => self.wait_for_stragglers(now, id),
            _ => {}
        }
    }

    /// All users have gone, as by [`Cm::destroy`], and all listeners.
    pub fn destroy_all(&mut self, now: Duration) {
        self.listeners.clear();
        let all: Vec<u32> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|id| self.destroy(now, Handle(id)));
    }

    /// The user of a connection or lookup has gone: the peer gets a message, and no event follows.
    pub fn destroy(&mut self, now: Duration, handle: Handle) {
        let id = handle.0;
        self.take(handle);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.orphan = true;
        match connection.state {
            CmState::RequestSent => self.send_timeout(id),
            CmState::RequestReceived | CmState::ReplySent => {
                self.send_reject(id, Reject::of_request(CommIds::NONE, RejectReason::CONSUMER));
            }
            CmState::ReplyReceived => {
                let reject = Reject::of_request(CommIds::NONE, RejectReason::CONSUMER);
                self.send_reject(id, Reject { rejected: Rejected::Reply, ..reject });
            }
            // Stays until the peer has agreed.
            CmState::Established => {
                let _ = self.disconnect(now, handle);
                return;
            }
            CmState::DisconnectSent => return,
            CmState::DisconnectReceived => self.send_disconnect_reply(id),
            CmState::LookupReceived => self.send_lookup_answer(id, SidrStatus::REJECT),
            CmState::LookupSent | CmState::TimeWait | CmState::Closed => {}
        }
        self.remove(id);
    }
}

fn disconnect_request(connection: &ConnectionRecord) -> Mad {
    let ids = connection.ids();
    connection.mad(Message::DisconnectRequest(DisconnectRequest { ids, remote_qpn: connection.peer_qpn }))
}
