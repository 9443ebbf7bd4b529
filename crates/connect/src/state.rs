//! The state of the communication manager of a process, the connections that refer to it, and the receivers of their events.

use ferroce_cm::{AskedUser, Cm, ConnectionEvent, ConnectionRoute, Handle, ListenerId};
use ferroce_network::gsi::{self, SentMad};
use ferroce_nic::Adapter;
use ferroce_os::clock;
use ferroce_os::sync::{Mutex, MutexGuard, class};
use ferroce_types::{Error, Instant, Result};
use ferroce_wire::cm::{IpHeader, Request, SidrRequest};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// QP 1 of this process.
pub(crate) type Gsi = gsi::Gsi<Adapter>;

/// A receiver of events: an id of librdmacm. A method must not block, and may call back into this crate.
pub trait Sink: Send + Sync {
    /// The events of one connection come in order and one at a time, from the thread that makes progress.
    fn event(&self, event: CmEvent);

    /// The request hasn't been answered for two seconds, and the host of `peer` rejects its packets (ICMP). It is sent again until
    /// `rest` has passed.
    fn port_closed(&self, peer: SocketAddr, rest: Duration);
}

/// An event of a listener or a connection.
#[derive(Debug)]
pub enum CmEvent {
    /// Of a listener: a peer asks for a connection.
    Request(Incoming<Request>),
    /// Of a listener: a peer looks up a datagram service.
    Lookup(Incoming<SidrRequest>),
    /// Of a connection or lookup.
    Of(ConnectionEvent),
}

/// A peer's request for a connection, or its lookup of a datagram service.
#[derive(Debug)]
pub struct Incoming<R> {
    /// What is accepted, rejected or answered. Dropped, it is rejected with [`RejectReason::CONSUMER`](crate::RejectReason::CONSUMER)
    /// or answered with [`SidrStatus::REJECT`](crate::SidrStatus::REJECT).
    pub connection: Connection,
    /// The peer's message.
    pub request: Box<R>,
    /// Addresses as the programs know them. The destination's port is the listener's.
    pub header: IpHeader,
    /// From the address that the request came to (this side's GID) to the peer's.
    pub route: ConnectionRoute,
}

/// A connection or lookup, from the request to the end. A drop ends it: a DREQ goes to a connected peer, a REJ to one that waits for an
/// answer, and no event follows, except one that another thread is delivering.
///
/// The caller of a method, or of the drop, holds no lock of the adapter.
#[derive(Debug)]
pub struct Connection {
    pub(crate) manager: &'static Manager,
    pub(crate) handle: Handle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Fails in the child of a fork: the connection belongs to the parent.
        let sink = self.manager.with(|state| {
            state.cm.destroy(now(), self.handle);
            state.sinks.remove(&self.handle)
        });
        drop(sink);
    }
}

/// The communication manager of a process. It is never freed.
pub(crate) struct Manager {
    pub(crate) state: Mutex<class::Connections, ManagerState>,
    pub(crate) gsi: OnceLock<Gsi>,
    /// Numbers the ports that are only shown to peers.
    pub(crate) shown_ports: AtomicU32,
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manager").finish_non_exhaustive()
    }
}

/// The fields under the lock of [`Manager`].
pub(crate) struct ManagerState {
    pub(crate) cm: Cm,
    pub(crate) sinks: BTreeMap<Handle, Arc<dyn Sink>>,
    pub(crate) listeners: BTreeMap<ListenerId, Arc<dyn Sink>>,
    /// Requests of this side, the oldest first, and the time after which the network is asked why they aren't answered.
    pub(crate) asked: VecDeque<(Duration, Handle)>,
}

impl Manager {
    /// It is of this process.
    pub(crate) fn is_current(&self) -> bool {
        self.gsi.get().is_some_and(Gsi::is_current)
    }

    /// QP 1.
    ///
    /// # Errors
    /// It is of a process that this one was forked from.
    pub(crate) fn gsi(&self) -> Result<Gsi> {
        let gsi = self.gsi.get().copied().filter(Gsi::is_current);
        gsi.ok_or_else(|| Error::Dead("it belongs to the process that this one was forked from".into()))
    }

    /// Changes the state, and sends what follows from that. Events follow by a thread that makes progress.
    ///
    /// # Errors
    /// It is of a process that this one was forked from.
    pub(crate) fn with<R>(&'static self, f: impl FnOnce(&mut ManagerState) -> R) -> Result<R> {
        let gsi = self.gsi()?;
        let result = f(&mut self.state.lock());
        let has_events = self.send_all(gsi);
        if has_events {
            gsi.set_alarm(clock::now());
        }
        Ok(result)
    }

    /// Sends all MADs that there are, and sets the alarm. Whether events wait to be handed out.
    pub(crate) fn send_all(&self, gsi: Gsi) -> bool {
        loop {
            let mut state = self.state.lock();
            let Some(mad) = state.cm.poll_transmit() else { return self.set_alarm(gsi, state) };
            drop(state);
            let sent = gsi.send(&mad);
            let asked = match sent {
                SentMad::To(user) => user,
                SentMad::Own | SentMad::Answered(_) => AskedUser::Own,
                SentMad::Gone => AskedUser::Unknown,
            };
            self.state.lock().cm.note_asked(&mad.mad.message, asked);
            match sent {
                SentMad::Gone | SentMad::To(_) => {}
                SentMad::Own => self.take(gsi, &mad),
                SentMad::Answered(answer) => self.take(gsi, &answer),
            }
        }
    }

    fn set_alarm(&self, gsi: Gsi, state: MutexGuard<'_, class::Connections, ManagerState>) -> bool {
        let asked = state.asked.front().map(|&(at, _)| at);
        let next = state.cm.poll_timeout().into_iter().chain(asked).min();
        let has_events = state.cm.has_events();
        drop(state);
        if let Some(at) = next {
            gsi.set_alarm(Instant(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)));
        }
        has_events
    }
}

/// The present, as the communication manager has it.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(clock::now().0)
}

/// A refusal of the communication manager as an errno.
pub(crate) fn refused(error: ferroce_cm::CmError) -> Error {
    match error {
        ferroce_cm::CmError::PrivateData { .. } | ferroce_cm::CmError::State { .. } => {
            Error::Invalid(error.to_string())
        }
        ferroce_cm::CmError::Established => Error::Refused { errno: libc::EISCONN, why: error.to_string() },
        ferroce_cm::CmError::TooMany { .. } => Error::NoMemory(error.to_string()),
    }
}
