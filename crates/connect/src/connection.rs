//! The calls of connections and lookups.

use crate::manager::{IN_DOUBT, manager};
use crate::state::{Connection, Sink, now, refused};
use crate::{Accept, Connect, Lookup, LookupReply, RejectReason};
use ferroce_cm::Handle;
use ferroce_types::Result;
use std::sync::Arc;

/// Asks for a connection: [`ConnectionEvent::Reply`](crate::ConnectionEvent::Reply),
/// [`ConnectionEvent::Rejected`](crate::ConnectionEvent::Rejected) or [`ConnectionEvent::Unreachable`](crate::ConnectionEvent::Unreachable) follows.
///
/// # Errors
/// EINVAL for too much private data, ENOMEM when there are too many connections, what kept the adapter from being made.
pub fn connect(wanted: &Connect<'_>, sink: Arc<dyn Sink>) -> Result<Connection> {
    begin(sink, |cm| cm.connect(now(), wanted))
}

/// Looks up a datagram service: [`ConnectionEvent::Answer`](crate::ConnectionEvent::Answer) or [`ConnectionEvent::Unreachable`](crate::ConnectionEvent::Unreachable)
/// follows.
///
/// # Errors
/// As [`connect`].
pub fn lookup(wanted: &Lookup<'_>, sink: Arc<dyn Sink>) -> Result<Connection> {
    begin(sink, |cm| cm.lookup(now(), wanted))
}

fn begin(
    sink: Arc<dyn Sink>,
    ask: impl FnOnce(&mut ferroce_cm::Cm) -> std::result::Result<Handle, ferroce_cm::CmError>,
) -> Result<Connection> {
    let manager = manager()?;
    let handle = manager.with(|state| {
        let handle = ask(&mut state.cm)?;
        state.sinks.insert(handle, sink);
        state.asked.push_back((now() + IN_DOUBT, handle));
        Ok(handle)
    })?;
    handle.map(|handle| Connection { manager, handle }).map_err(refused)
}

impl Connection {
    fn with_cm(
        &self,
        f: impl FnOnce(&mut ferroce_cm::Cm, Handle) -> std::result::Result<(), ferroce_cm::CmError>,
    ) -> Result<()> {
        self.manager.with(|state| f(&mut state.cm, self.handle))?.map_err(refused)
    }

    /// The number that stands for it in this side's messages.
    #[must_use]
    pub fn comm_id(&self) -> u32 {
        self.handle.0
    }

    /// The program has fetched the request (rdma_get_cm_event(3)): it doesn't count against the listener's backlog any more.
    pub fn take(&self) {
        let _ = self.manager.with(|state| state.cm.take(self.handle));
    }

    /// Accepts a request: [`ConnectionEvent::Established`](crate::ConnectionEvent::Established), [`ConnectionEvent::Rejected`](crate::ConnectionEvent::Rejected) or
    /// [`ConnectionEvent::Unreachable`](crate::ConnectionEvent::Unreachable) follows. `sink` gets all events of the connection.
    ///
    /// # Errors
    /// EINVAL when the peer has given up meanwhile, when it was accepted or rejected before, and for too much private data.
    pub fn accept(&self, answer: &Accept<'_>, sink: Arc<dyn Sink>) -> Result<()> {
        let accepted = self.manager.with(|state| {
            state.cm.accept(now(), self.handle, answer)?;
            state.sinks.insert(self.handle, sink);
            Ok(())
        })?;
        accepted.map_err(refused)
    }

    /// Rejects a request, or the peer's reply to this side's. A lookup is [answered](Connection::answer).
    ///
    /// # Errors
    /// As [`Connection::accept`].
    pub fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<()> {
        self.with_cm(|cm, handle| cm.reject(handle, reason, private_data))
    }

    /// Answers a lookup.
    ///
    /// # Errors
    /// EINVAL when it was answered before, and for too much private data.
    pub fn answer(&self, answer: &LookupReply<'_>) -> Result<()> {
        self.with_cm(|cm, handle| cm.answer(handle, answer))
    }

    /// This side is ready, after the peer's reply (RTU). No event follows.
    ///
    /// # Errors
    /// EINVAL without a reply.
    pub fn establish(&self) -> Result<()> {
        self.with_cm(|cm, handle| cm.establish(handle))
    }

    /// The peer's first message has come (`IBV_EVENT_COMM_EST`), perhaps before its RTU:
    /// [`ConnectionEvent::Established`](crate::ConnectionEvent::Established) follows.
    ///
    /// # Errors
    /// EISCONN when it is established, EINVAL in any other state but that of a request that was accepted.
    pub fn notify_established(&self) -> Result<()> {
        self.with_cm(|cm, handle| cm.notify_established(handle))
    }

    /// Asks for the end, or answers the peer who has asked: [`ConnectionEvent::Disconnected`](crate::ConnectionEvent::Disconnected) (of this side's
    /// question only) and [`ConnectionEvent::TimewaitExit`](crate::ConnectionEvent::TimewaitExit) follow. Nothing happens when it is over already.
    ///
    /// # Errors
    /// EINVAL when it has never been accepted.
    pub fn disconnect(&self) -> Result<()> {
        self.with_cm(|cm, handle| cm.disconnect(now(), handle))
    }

    /// Waits until each receive that the peer has an acknowledgement of is in its completion queue, for a second at most: the thread that has
    /// acknowledged it may not have completed it yet.
    pub fn wait_for_receives(&self) {
        if let Ok(Some(qpn)) = self.manager.with(|state| state.cm.own_qpn(self.handle)) {
            ferroce_nic::wait_for_work(qpn);
        }
    }

    /// No event comes any more, but for one that another thread is just telling.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.manager.with(|state| state.cm.is_over(self.handle)).unwrap_or(true)
    }
}
