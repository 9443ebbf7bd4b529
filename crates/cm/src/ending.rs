//! How connections end: on request, by a rejection, when a peer is silent or gone, or with their user.

use crate::cm::{Cm, Way};
use crate::connection::{Connection, Peer, State};
use crate::types::{Error, Handle, Happening};
use ferroce_wire::cm::{
    CommIds, DisconnectRequest, Mad, Message, Reject, RejectReason, Rejected, SidrStatus,
};
use std::time::Duration;

impl Cm {
    /// Asks for the end of a connection (DREQ), or agrees to it (DREP). Nothing happens when it is over, or not made yet.
    ///
    /// # Errors
    /// It hasn't been accepted or rejected.
    pub fn disconnect(&mut self, now: Duration, handle: Handle) -> Result<(), Error> {
        let Some(connection) = self.connections.get_mut(&handle.0) else { return Ok(()) };
        match connection.state {
            State::RequestReceived | State::LookupReceived => {
                return Err(Error::State { state: connection.state.name() });
            }
            State::ReplySent | State::Established => {
                connection.wait(State::DisconnectSent, now);
                let mad = disconnect_request(connection);
                self.send_repeatedly(now, handle.0, mad);
            }
            State::DisconnectReceived => {
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
        way: Way,
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
            State::ReplySent | State::Established | State::ReplyReceived => {
                if request.remote_qpn != connection.own_qpn {
                    return;
                }
                if connection.state == State::ReplySent {
                    // Its RTU is lost, or was overtaken: only who has sent one asks for the end.
                    self.is_established(id);
                }
                let Some(connection) = self.connections.get_mut(&id) else { return };
                connection.transaction = mad.transaction;
                connection.wait(State::DisconnectReceived, now);
                self.answered(id);
                self.tell(id, Happening::Disconnected { timed_out: false });
                if self.connections.get(&id).is_some_and(|c| c.orphan) {
                    self.send_disconnect_reply(id);
                    self.remove(id);
                }
            }
            // Both have asked. Each has what it wanted.
            State::DisconnectSent => {
                connection.transaction = mad.transaction;
                self.send_disconnect_reply(id);
                self.is_disconnected(now, id, false);
            }
            State::TimeWait | State::Closed => self.answer_stray(way, mad),
            _ => {}
        }
    }

    /// A DREP has come.
    pub(crate) fn disconnect_reply(&mut self, now: Duration, way: Way, ids: CommIds) {
        let Some(connection) = self.connections.get(&ids.remote) else { return };
        if connection.state == State::DisconnectSent && connection.is_from(way.from, ids) {
            self.is_disconnected(now, ids.remote, false);
        }
    }

    /// A connection has ended, as its user is told.
    fn is_disconnected(&mut self, now: Duration, id: u32, timed_out: bool) {
        self.tell(id, Happening::Disconnected { timed_out });
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
        connection.state = State::TimeWait;
        let at = now + connection.time_wait;
        self.set_timer(id, at);
    }

    fn send_disconnect_reply(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        let mad = connection.mad(Message::DisconnectReply(connection.ids()));
        self.send(id, mad);
    }

    /// A REJ has come.
    pub(crate) fn rejected(&mut self, way: Way, reject: &Reject) {
        let id = match reject.remote_comm_id {
            // Who gives up a request knows no number for it but its own.
            0 => {
                let [guid, ..] = reject.info.as_chunks::<8>().0 else { return };
                let peer = Peer { address: way.from, ca_guid: u64::from_be_bytes(*guid) };
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
            State::RequestSent => {}
            State::RequestReceived if is_of_peer => return self.close(id),
            State::ReplySent | State::ReplyReceived if is_of_peer => {}
            // The RTU of this side is under way or lost, and the peer has gone.
            State::Established | State::DisconnectSent if is_of_peer => {}
            _ => return,
        }
        self.close(id);
        self.tell(id, Happening::Rejected(Box::new(*reject)));
        self.remove_orphan(id);
    }

    /// A connection is over, without time-wait: its QPs have exchanged nothing, its peer has rejected it, or its user wants nothing any more.
    /// A request that its user hasn't fetched stays in the backlog: its event is kept.
    pub(crate) fn close(&mut self, id: u32) {
        self.answered(id);
        self.forget_peer(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = State::Closed;
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
            State::RequestSent | State::ReplySent => {
                self.send_timeout(id);
                self.close(id);
                self.tell(id, Happening::Unreachable);
            }
            State::LookupSent => {
                self.close(id);
                self.tell(id, Happening::Unreachable);
            }
            State::DisconnectSent => self.is_disconnected(now, id, true),
            State::TimeWait => {
                self.close(id);
                self.tell(id, Happening::TimewaitExit);
            }
            _ => {}
        }
        self.remove_orphan(id);
    }

    /// The peer is gone, and can't say so.
    pub(crate) fn is_gone(&mut self, now: Duration, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        match connection.state {
            State::RequestReceived | State::LookupReceived => self.close(id),
            State::ReplyReceived | State::ReplySent => {
                let CommIds { local, remote } = connection.ids();
                // As the peer would have said it.
                let reject =
                    Reject::of_request(CommIds { local: remote, remote: local }, RejectReason::TIMEOUT);
                self.close(id);
                self.tell(id, Happening::Rejected(Box::new(Reject { rejected: Rejected::Other, ..reject })));
                self.remove_orphan(id);
            }
            State::Established | State::DisconnectSent => self.is_disconnected(now, id, false),
            State::DisconnectReceived => self.wait_for_stragglers(now, id),
            _ => {}
        }
    }

    /// All users have gone, as by [`Cm::destroy`], and nobody listens any more.
    pub fn destroy_all(&mut self, now: Duration) {
        self.listeners.clear();
        let all: Vec<u32> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|id| self.destroy(now, Handle(id)));
    }

    /// The user of a connection or lookup has gone: the peer is told, and no event comes any more.
    pub fn destroy(&mut self, now: Duration, handle: Handle) {
        let id = handle.0;
        self.take(handle);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.orphan = true;
        match connection.state {
            State::RequestSent => self.send_timeout(id),
            State::RequestReceived | State::ReplySent => {
                self.send_reject(id, Reject::of_request(CommIds::NONE, RejectReason::CONSUMER));
            }
            State::ReplyReceived => {
                let reject = Reject::of_request(CommIds::NONE, RejectReason::CONSUMER);
                self.send_reject(id, Reject { rejected: Rejected::Reply, ..reject });
            }
            // Stays until the peer has agreed.
            State::Established => {
                let _ = self.disconnect(now, handle);
                return;
            }
            State::DisconnectSent => return,
            State::DisconnectReceived => self.send_disconnect_reply(id),
            State::LookupReceived => self.send_lookup_answer(id, SidrStatus::REJECT),
            State::LookupSent | State::TimeWait | State::Closed => {}
        }
        self.remove(id);
    }
}

fn disconnect_request(connection: &Connection) -> [u8; ferroce_wire::cm::MAD_LEN] {
    let ids = connection.ids();
    connection.mad(Message::DisconnectRequest(DisconnectRequest { ids, remote_qpn: connection.peer_qpn }))
}
