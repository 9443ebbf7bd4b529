//! The state of a stream socket: what it is doing, what happens to it, and what it is ready for.

use std::ffi::c_int;
use std::sync::Weak;
use std::time::Instant;

use crate::abi::*;
use crate::connection::StreamConnection;
use crate::core::SocketState;
use crate::options::{About, SocketOptions};
use crate::service;
use crate::verbs::{ConnectionId, IdEvent};
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal};
use ferroce_rsocket_calls::waiting::{Set, Waiters};

use super::StreamSocket;
use super::connecting::Connecting;
use super::listening::{LOOK_AT_REQUESTS, ListeningState};

#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) domain: c_int,
    pub(crate) options: SocketOptions,
    pub(super) phase: StreamPhase,
    /// Goes after the queue pair, which `phase` has.
    pub(super) id: Option<ConnectionId>,
    waiters: Waiters,
    /// The next value of SO_ERROR.
    pub(super) error: c_int,
    /// No rconnect has returned yet how the last attempt has ended: one that didn't wait, or was interrupted, hasn't.
    pub(super) connect_unreported: bool,
    /// The program has closed the socket with bytes unread.
    pub(super) leaves_unread: bool,
    /// The program has closed the socket, which goes on in the background until then at the latest.
    pub(super) farewell_until: Option<Instant>,
}

/// Where a connection comes from that the peer hasn't confirmed.
#[derive(Clone, Debug)]
pub(super) struct Requested {
    pub(super) listener: Weak<StreamSocket>,
    pub(super) at: Instant,
}

#[derive(Debug)]
pub(super) enum StreamPhase {
    Fresh,
    Listening(ListeningState),
    Connecting(Box<Connecting>),
    /// The peer hasn't confirmed; the listener gets the socket then.
    Accepting(Box<StreamConnection>, Requested),
    Open(Box<StreamConnection>),
    Failed(c_int),
    Closed,
}

impl SocketState for StreamState {
    fn progress(&mut self, set: &Set) {
        // What has arrived before the end of the connection counts.
        if let StreamPhase::Open(connection) | StreamPhase::Accepting(connection, _) = &mut self.phase {
            let before = connection.readable();
            if connection.progress() {
                if connection.readable() > before {
                    self.waiters.arrived();
                }
                // Waiting threads request a notification again: the last one has been taken.
                self.waiters.wake();
            }
        }
        while !self.is_full() {
            let Some(id) = &mut self.id else { break };
            match id.next_event() {
                Ok(Some(event)) => self.happened(&event, set),
                Ok(None) => break,
                Err(refusal) => self.fail(refusal.errno),
            }
            self.changed();
            if matches!(self.phase, StreamPhase::Failed(_)) {
                break;
            }
        }
    }

    fn arm(&mut self) -> bool {
        if let StreamPhase::Open(connection) | StreamPhase::Accepting(connection, _) = &mut self.phase {
            connection.arm();
        }
        true
    }

    fn is_armed(&self) -> bool {
        match &self.phase {
            StreamPhase::Open(connection) | StreamPhase::Accepting(connection, _) => connection.is_armed(),
            _ => true,
        }
    }

    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }

    fn ready_for(&self, events: libc::c_short) -> libc::c_short {
        let (read, write) =
            (events & (libc::POLLIN | libc::POLLRDNORM), events & (libc::POLLOUT | libc::POLLWRNORM));
        match &self.phase {
            StreamPhase::Listening(listening) if listening.has_ready() => read,
            StreamPhase::Listening(_) | StreamPhase::Connecting(_) | StreamPhase::Accepting(..) => 0,
            StreamPhase::Open(connection) => {
                let ends = &connection.ends;
                let mut ready = 0;
                if connection.readable() > 0 || !ends.is_readable() {
                    ready |= read;
                }
                if connection.can_send() || !ends.is_writable() {
                    ready |= write;
                }
                if !ends.is_readable() {
                    ready |= events & libc::POLLRDHUP;
                }
                // Programs of rsockets that look for these first would miss what has arrived before the end.
                if connection.readable() == 0 {
                    ready |= self.ended();
                }
                ready
            }
            StreamPhase::Fresh => write | libc::POLLHUP,
            StreamPhase::Failed(_) => read | write | events & libc::POLLRDHUP | self.ended(),
            StreamPhase::Closed => libc::POLLNVAL,
        }
    }

    fn ended(&self) -> libc::c_short {
        let (hung_up, error) = match &self.phase {
            StreamPhase::Open(connection) => {
                (connection.ends.has_hung_up(), connection.ends.error().is_some())
            }
            StreamPhase::Failed(_) => (true, self.error != 0),
            _ => (false, false),
        };
        let mut ended = 0;
        if hung_up {
            ended |= libc::POLLHUP;
        }
        if error {
            ended |= libc::POLLERR;
        }
        ended
    }
}

impl StreamState {
    pub(super) fn new(domain: c_int, options: SocketOptions, phase: StreamPhase, id: ConnectionId) -> Self {
        Self {
            domain,
            options,
            phase,
            id: Some(id),
            waiters: Waiters::default(),
            error: 0,
            connect_unreported: false,
            leaves_unread: false,
            farewell_until: None,
        }
    }

    fn happened(&mut self, event: &IdEvent, set: &Set) {
        if event.kind == RDMA_CM_EVENT_ADDR_CHANGE {
            // As with a socket: a call that needs the address fails by itself.
            return;
        }
        let (domain, options) = (self.domain, self.options.clone());
        match &mut self.phase {
            StreamPhase::Listening(listening) if event.kind == RDMA_CM_EVENT_CONNECT_REQUEST => {
                if let Err(refusal) = listening.requested(event, domain, &options) {
                    ferroce_rsocket_calls::log::refused("raccept", &refusal.why);
                }
                if let Some(id) = &self.id {
                    listening.take_requests(id, set);
                }
            }
            StreamPhase::Connecting(connecting) => {
                let Some(id) = &self.id else { return };
                match connecting.happened(id, event, &options, set) {
                    Ok(None) => {}
                    Ok(Some(mut connection)) => {
                        connection.give_credits();
                        self.phase = StreamPhase::Open(connection);
                    }
                    Err(refusal) => {
                        ferroce_rsocket_calls::log::refused("rconnect", &refusal.why);
                        self.fail(refusal.errno);
                    }
                }
            }
            StreamPhase::Accepting(..) => match event.kind {
                RDMA_CM_EVENT_ESTABLISHED => self.open(),
                _ => self.fail(event.errno()),
            },
            StreamPhase::Open(connection)
                if matches!(event.kind, RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_DEVICE_REMOVAL) =>
            {
                connection.progress();
                connection.ends.fail(libc::ECONNRESET);
            }
            _ => {}
        }
    }

    pub(super) fn id(&self) -> Outcome<&ConnectionId> {
        self.id.as_ref().ok_or_else(|| SocketRefusal::plain(libc::EBADF))
    }

    pub(super) fn changed(&mut self) {
        self.waiters.wake();
    }

    /// There is a connection to accept.
    pub(super) fn arrived(&mut self) {
        self.waiters.arrived();
    }

    /// A listener takes requests, or leaves them, as there is room now.
    pub(super) fn take_requests(&mut self, set: &Set) {
        if let (StreamPhase::Listening(listening), Some(id)) = (&mut self.phase, &self.id) {
            listening.take_requests(id, set);
        }
    }

    fn fail(&mut self, errno: c_int) {
        self.error = errno;
        self.phase = StreamPhase::Failed(errno);
    }

    fn open(&mut self) {
        self.phase = match std::mem::replace(&mut self.phase, StreamPhase::Closed) {
            StreamPhase::Accepting(mut connection, _) => {
                connection.give_credits();
                StreamPhase::Open(connection)
            }
            other => other,
        };
    }

    /// Closes the socket; the objects that it had.
    pub(super) fn end(&mut self, set: &Set) -> (StreamPhase, Option<ConnectionId>) {
        if let StreamPhase::Open(connection) | StreamPhase::Accepting(connection, _) = &self.phase {
            set.remove(connection.fd());
        }
        if let Some(id) = &self.id {
            set.remove(id.fd());
        }
        let ended = (std::mem::replace(&mut self.phase, StreamPhase::Closed), self.id.take());
        self.changed();
        ended
    }

    /// What options depend on.
    pub(crate) fn about(&self) -> About {
        let id = self.id.as_ref().filter(|_| matches!(self.phase, StreamPhase::Open(_)));
        About {
            kind: libc::SOCK_STREAM,
            domain: self.domain,
            connected: matches!(
                self.phase,
                StreamPhase::Connecting(_) | StreamPhase::Accepting(..) | StreamPhase::Open(_)
            ),
            listening: matches!(self.phase, StreamPhase::Listening(_)),
            segment: id.and_then(ConnectionId::path_mtu),
        }
    }

    /// Options that librdmacm must know before the socket has an address.
    pub(super) fn apply_options(&mut self) -> Outcome<()> {
        let id = self.id.as_ref().ok_or_else(|| SocketRefusal::plain(libc::EBADF))?;
        self.options.apply(id, self.domain)
    }

    /// The connection; none while it isn't there yet.
    pub(super) fn connection(&mut self) -> Outcome<Option<&mut StreamConnection>> {
        match &mut self.phase {
            StreamPhase::Open(connection) => Ok(Some(connection)),
            StreamPhase::Connecting(_) | StreamPhase::Accepting(..) => Ok(None),
            StreamPhase::Failed(errno) => Err(SocketRefusal::plain(*errno)),
            StreamPhase::Closed => Err(SocketRefusal::plain(libc::EBADF)),
            StreamPhase::Fresh | StreamPhase::Listening(_) => Err(SocketRefusal::plain(libc::ENOTCONN)),
        }
    }

    /// Whether no request is to be taken now.
    fn is_full(&self) -> bool {
        matches!(&self.phase, StreamPhase::Listening(listening) if listening.full)
    }

    /// Whether the service thread must look after the socket, and when. One that is shown has its events dealt with by the thread.
    pub(super) fn next_attention(&mut self, shown: bool) -> service::NextAttendance {
        match &mut self.phase {
            StreamPhase::Listening(_) | StreamPhase::Connecting(_) => service::NextAttendance::EVENT,
            StreamPhase::Accepting(..) => {
                service::NextAttendance::event_or(Instant::now() + LOOK_AT_REQUESTS)
            }
            StreamPhase::Open(connection) => {
                let due = match self.options.keep_alive_interval() {
                    Some(interval) if !connection.ends.is_over() => {
                        let now = Instant::now();
                        let due = self.options.keep_alive_due.get_or_insert(now + interval);
                        if now >= *due {
                            connection.keep_alive();
                            *due = now + interval;
                        }
                        Some(*due)
                    }
                    _ => None,
                };
                match (due, shown) {
                    (Some(due), true) => service::NextAttendance::event_or(due),
                    (Some(due), false) => service::NextAttendance::at(due),
                    (None, true) => service::NextAttendance::EVENT,
                    (None, false) => service::NextAttendance::NEVER,
                }
            }
            StreamPhase::Fresh | StreamPhase::Failed(_) | StreamPhase::Closed => {
                service::NextAttendance::NEVER
            }
        }
    }

    /// What broke the socket, once.
    pub(super) fn take_error(&mut self) -> c_int {
        match &mut self.phase {
            StreamPhase::Open(connection) => connection.ends.take_error().unwrap_or(0),
            _ => std::mem::take(&mut self.error),
        }
    }
}
