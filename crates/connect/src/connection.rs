//! Connections and lookups of this process.

use crate::{Accept, Answer, Connect, Lookup, RejectReason, Sink};
use ferroce_types::Result;
use std::sync::Arc;

/// A connection or lookup, from the request to the end. Dropped, it is over: a peer that is connected is told once (DREQ), one that
/// waits for an answer is rejected, and no event comes any more.
#[derive(Debug)]
pub struct Connection {
    comm_id: u32,
}

/// Asks for a connection: [`Event::Reply`](crate::Event::Reply), [`Event::Rejected`](crate::Event::Rejected) or
/// [`Event::Unreachable`](crate::Event::Unreachable) follows.
///
/// # Errors
/// EINVAL for too much private data, ENOMEM when there are too many connections, what kept the adapter from being made.
pub fn connect(wanted: &Connect<'_>, sink: Arc<dyn Sink>) -> Result<Connection> {
    let _ = (wanted, sink);
    unimplemented!()
}

/// Looks up a datagram service: [`Event::Answer`](crate::Event::Answer) or [`Event::Unreachable`](crate::Event::Unreachable)
/// follows.
///
/// # Errors
/// As [`connect`].
pub fn lookup(wanted: &Lookup<'_>, sink: Arc<dyn Sink>) -> Result<Connection> {
    let _ = (wanted, sink);
    unimplemented!()
}

impl Connection {
    /// The number that stands for it in this side's messages.
    #[must_use]
    pub fn comm_id(&self) -> u32 {
        self.comm_id
    }

    /// The program has fetched the request (rdma_get_cm_event(3)): it doesn't count against the listener's backlog any more.
    pub fn take(&self) {}

    /// Accepts a request: [`Event::Established`](crate::Event::Established), [`Event::Rejected`](crate::Event::Rejected) or
    /// [`Event::Unreachable`](crate::Event::Unreachable) follows. `sink` gets all events of the connection.
    ///
    /// # Errors
    /// EINVAL when the peer has given up meanwhile, when it was accepted or rejected before, and for too much private data.
    pub fn accept(&self, answer: &Accept<'_>, sink: Arc<dyn Sink>) -> Result<()> {
        let _ = (answer, sink);
        unimplemented!()
    }

    /// Rejects a request, or the peer's reply to this side's. A lookup is answered with
    /// [`SidrStatus::REJECT`](crate::SidrStatus::REJECT) then.
    ///
    /// # Errors
    /// As [`Connection::accept`].
    pub fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<()> {
        let _ = (reason, private_data);
        unimplemented!()
    }

    /// Answers a lookup.
    ///
    /// # Errors
    /// EINVAL when it was answered before, and for too much private data.
    pub fn answer(&self, answer: &Answer<'_>) -> Result<()> {
        let _ = answer;
        unimplemented!()
    }

    /// This side is ready, after the peer's reply (RTU). No event follows.
    ///
    /// # Errors
    /// EINVAL without a reply.
    pub fn establish(&self) -> Result<()> {
        unimplemented!()
    }

    /// The peer's first message has come (`IBV_EVENT_COMM_EST`), perhaps before its RTU:
    /// [`Event::Established`](crate::Event::Established) follows.
    ///
    /// # Errors
    /// EISCONN when it is established, EINVAL in any other state but that of a request that was accepted.
    pub fn notify_established(&self) -> Result<()> {
        unimplemented!()
    }

    /// Asks for the end, or answers the peer who has asked: [`Event::Disconnected`](crate::Event::Disconnected) (of this side's
    /// question only) and [`Event::TimewaitExit`](crate::Event::TimewaitExit) follow. Nothing happens when it is over already.
    ///
    /// # Errors
    /// EINVAL when it has never been accepted.
    pub fn disconnect(&self) -> Result<()> {
        unimplemented!()
    }
}
