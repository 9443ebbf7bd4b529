//! What a message claims about its sender.

use crate::cm::Cm;
use crate::connection::CmState;
use crate::types::AskedUser;
use ferroce_wire::cm::{Message, RejectReason, ServiceId, SidrStatus};

/// What a message claims: by these facts the sender is one of those that may send it. Any user of a host can send from the host's addresses, so
/// the receiver compares the users that have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// The sender's process has given this communication ID, and its user has the QPN, if there is one.
    Sender {
        /// The sender's communication ID.
        comm_id: u32,
        /// Its QPN.
        qpn: Option<u32>,
    },
    /// The sender is the process that has given the communication ID of a connection's peer. It may have ended since.
    Peer(u32),
    /// The sender's user is the one that was asked for a service; it has the communication ID and QPN, if there are any.
    Service {
        /// The user, if it is known.
        asked: AskedUser,
        /// The service.
        service_id: ServiceId,
        /// The sender's communication ID.
        comm_id: Option<u32>,
        /// Its QPN.
        qpn: Option<u32>,
    },
}

impl Cm {
    /// What a message claims about its sender. `None`: it changes no connection.
    #[must_use]
    pub fn claim(&self, message: &Message) -> Option<Claim> {
        let (id, comm_id, qpn) = match message {
            Message::Request(m) => {
                return Some(Claim::Sender { comm_id: m.local_comm_id, qpn: Some(m.qpn) });
            }
            Message::SidrRequest(m) => return Some(Claim::Sender { comm_id: m.request_id, qpn: None }),
            // A requester that gives up knows its own ID only.
            Message::Reject(m) if m.remote_comm_id == 0 && m.reason == RejectReason::TIMEOUT => {
                return Some(Claim::Sender { comm_id: m.local_comm_id, qpn: None });
            }
            Message::Reply(m) => (m.remote_comm_id, Some(m.local_comm_id), Some(m.qpn)),
            Message::SidrReply(m) => (m.request_id, None, (m.status == SidrStatus::SUCCESS).then_some(m.qpn)),
            Message::Reject(m) => (m.remote_comm_id, None, None),
            Message::Mra(m) => (m.ids.remote, None, None),
            Message::ReadyToUse(ids) | Message::DisconnectReply(ids) => (ids.remote, None, None),
            Message::DisconnectRequest(m) => (m.ids.remote, None, None),
        };
        let connection = self.connections.get(&id)?;
        Some(match connection.state {
            CmState::RequestSent | CmState::LookupSent => {
                Claim::Service { asked: connection.asked, service_id: connection.service_id, comm_id, qpn }
            }
            _ => Claim::Peer(connection.remote),
        })
    }
}
