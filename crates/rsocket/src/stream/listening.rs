//! Listeners: rlisten(3), raccept(3), and the requests between them.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::abi::*;
use crate::connection::{Prepared, StreamConnection};
use crate::options::SocketOptions;
use crate::verbs::{ConnectionId, IdEvent};
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal, zero};
use ferroce_rsocket_calls::waiting::Set;
use ferroce_rsocket_protocol::wire::ConnectionData;

use super::StreamSocket;
use super::connecting::parameters;
use super::state::{Requested, StreamPhase};

/// Requests that may wait for raccept, as listen(2) has it.
const LONGEST_BACKLOG: usize = 4096;

/// Connections that peers needn't have confirmed, however short the backlog is.
const FEWEST_UNCONFIRMED: usize = 16;
/// How often a connection that isn't confirmed is looked at. It makes room for others then if there are many.
pub(super) const LOOK_AT_REQUESTS: Duration = Duration::from_secs(1);
/// How long a peer has to confirm a connection.
const CONFIRMATION: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct ListeningState {
    listener: Weak<StreamSocket>,
    backlog: usize,
    /// Connections that the peer hasn't confirmed.
    unconfirmed: Vec<Arc<StreamSocket>>,
    ready: VecDeque<Arc<StreamSocket>>,
    /// The channel isn't looked at because there are enough connections: a waiting thread would be woken again and again.
    pub(super) full: bool,
}

impl ListeningState {
    /// Whether raccept has a connection to give.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    fn has_many_unconfirmed(&self) -> bool {
        self.unconfirmed.len() >= self.backlog.max(FEWEST_UNCONFIRMED)
    }

    /// Takes requests, or leaves them in the channel, as there is room now.
    pub(super) fn take_requests(&mut self, id: &ConnectionId, set: &Set) {
        let full = self.ready.len() >= self.backlog || self.has_many_unconfirmed();
        if full == self.full {
            return;
        }
        if full {
            set.remove(id.fd());
            self.full = true;
        } else {
            // If it fails, the next change tries again.
            self.full = set.add(id.fd(), 0).is_err();
        }
    }

    /// Accepts a request.
    pub(super) fn requested(
        &mut self,
        event: &IdEvent,
        domain: c_int,
        options: &SocketOptions,
    ) -> Outcome<()> {
        // SAFETY: the id of a request that has been acknowledged, which is owned here.
        let id = unsafe { ConnectionId::of_request(event.id) }?;
        let stream = self.accept_request(id, event, domain, options)?;
        self.unconfirmed.push(stream);
        Ok(())
    }

    fn take_unconfirmed(&mut self, stream: &Arc<StreamSocket>) -> Option<Arc<StreamSocket>> {
        let at = self.unconfirmed.iter().position(|s| Arc::ptr_eq(s, stream))?;
        Some(self.unconfirmed.swap_remove(at))
    }

    fn accept_request(
        &self,
        id: ConnectionId,
        event: &IdEvent,
        domain: c_int,
        options: &SocketOptions,
    ) -> Outcome<Arc<StreamSocket>> {
        let Some(peer) = ConnectionData::parse(event.data()) else {
            // SAFETY: a live id.
            unsafe { rdma_reject(id.raw(), std::ptr::null(), 0) };
            return Err(SocketRefusal::new(libc::EPROTO, "a peer that isn't an rsocket wants to connect"));
        };
        let prepared = Prepared::new(&id, &options.choices)?;
        let data = prepared.data();
        let mut parameters = parameters(&data);
        parameters.flow_control = event.flow_control;
        parameters.retry_count = event.retry_count;
        parameters.rnr_retry_count = event.rnr_retry_count;
        let connection = Box::new(StreamConnection::new(prepared, peer));
        // SAFETY: a live id with a queue pair; data that is copied.
        zero(unsafe { rdma_accept(id.raw(), &mut parameters) }, "a request can't be accepted")?;
        let requested = Requested { listener: self.listener.clone(), at: Instant::now() };
        let phase = StreamPhase::Accepting(connection, requested);
        let stream = StreamSocket::with(domain, false, id, options.clone(), phase)?;
        stream.watch();
        Ok(stream)
    }
}

impl StreamSocket {
    pub(crate) fn listen(self: &Arc<Self>, backlog: c_int) -> Outcome<()> {
        let mut state = self.lock()?;
        let backlog = usize::try_from(backlog).unwrap_or(0).clamp(1, LONGEST_BACKLOG);
        match &mut state.phase {
            StreamPhase::Listening(listening) => {
                listening.backlog = backlog;
                state.take_requests(&self.core.set);
                return Ok(());
            }
            StreamPhase::Fresh => {}
            _ => return Err(SocketRefusal::new(libc::EINVAL, "the socket is in use")),
        }
        state.apply_options()?;
        let id = state.id()?.raw();
        // Requests that come together, as repetitions do, wait in the channel's backlog: one that has no room there comes again after seconds.
        let waiting = c_int::try_from(backlog.max(FEWEST_UNCONFIRMED)).unwrap_or(c_int::MAX);
        // SAFETY: a live id.
        zero(unsafe { rdma_listen(id, waiting) }, "rdma_listen")?;
        state.phase = StreamPhase::Listening(ListeningState {
            listener: Arc::downgrade(self),
            backlog,
            unconfirmed: Vec::new(),
            ready: VecDeque::new(),
            full: false,
        });
        drop(state);
        self.watch();
        Ok(())
    }

    pub(crate) fn accept(&self) -> Outcome<Arc<Self>> {
        let until = self.lock()?.options.receive_deadline();
        self.core.wait(self.core.is_nonblocking(), until, |state| {
            let StreamPhase::Listening(listening) = &mut state.phase else {
                return Some(Err(SocketRefusal::new(libc::EINVAL, "the socket doesn't listen")));
            };
            let stream = listening.ready.pop_front()?;
            state.take_requests(&self.core.set);
            Some(Ok(stream))
        })
    }

    /// A connection of this listener is confirmed, or has failed.
    pub(super) fn confirmed(&self, stream: &Arc<StreamSocket>, works: bool) {
        let Ok(mut state) = self.lock() else { return };
        let StreamPhase::Listening(listening) = &mut state.phase else { return };
        let Some(stream) = listening.take_unconfirmed(stream) else { return };
        if works {
            listening.ready.push_back(stream);
            state.arrived();
        }
        state.take_requests(&self.core.set);
        state.changed();
    }

    /// A connection of this listener hasn't been confirmed since `at`. It is given up after a long time, or if there are many.
    pub(super) fn unconfirmed_since(&self, at: Instant, stream: &Arc<StreamSocket>) {
        let Ok(mut state) = self.lock() else { return };
        let StreamPhase::Listening(listening) = &mut state.phase else { return };
        let age = at.elapsed();
        if age < CONFIRMATION && (age < LOOK_AT_REQUESTS || !listening.has_many_unconfirmed()) {
            return;
        }
        // The caller has another handle: it doesn't end under this lock.
        listening.take_unconfirmed(stream);
        state.take_requests(&self.core.set);
    }
}
