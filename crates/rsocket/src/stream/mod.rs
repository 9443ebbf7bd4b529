//! Stream sockets: their life from rsocket(3) to rclose(3).
//!
//! A set ([`Set`]) has the descriptors that announce a socket's events, so one descriptor wakes the threads that wait for the socket. A
//! thread in a call makes progress; connections without a waiting thread are attended by the service thread ([`crate::service`]): requests
//! at listeners, what connects without blocking, and what the kernel polls ([`crate::front`]).

mod connecting;
mod farewell;
mod listening;
mod mapping;
mod state;
mod transfer;

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::abi::*;
use crate::core::{Core, SocketState, StateGuard};
use crate::options::SocketOptions;
use crate::service;
use crate::verbs::ConnectionId;
use ferroce_rsocket_calls::address;
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal, zero};
use ferroce_rsocket_calls::waiting::Set;

use state::{StreamPhase, StreamState};

/// A stream socket.
#[derive(Debug)]
pub(crate) struct StreamSocket {
    pub(crate) core: Core<StreamState>,
}

impl StreamSocket {
    pub(crate) fn new(domain: c_int, nonblocking: bool) -> Outcome<Arc<Self>> {
        let id = ConnectionId::new(RDMA_PS_TCP)?;
        Self::with(domain, nonblocking, id, SocketOptions::new(), StreamPhase::Fresh)
    }

    fn with(
        domain: c_int,
        nonblocking: bool,
        id: ConnectionId,
        options: SocketOptions,
        phase: StreamPhase,
    ) -> Outcome<Arc<Self>> {
        let set = Set::new()?;
        set.add(id.fd(), 0)?;
        if let StreamPhase::Accepting(connection, _) = &phase {
            set.add(connection.fd(), 0)?;
        }
        let state = StreamState::new(domain, options, phase, id);
        Ok(Arc::new(Self { core: Core::new(set, nonblocking, state)? }))
    }

    /// What the service thread waits for.
    fn attended_fd(&self) -> RawFd {
        self.core.set.fd()
    }

    pub(crate) fn lock(&self) -> Outcome<StateGuard<'_, StreamState>> {
        self.core.lock()
    }

    pub(crate) fn bind(&self, mut name: libc::sockaddr_storage) -> Outcome<()> {
        let mut state = self.lock()?;
        if !matches!(state.phase, StreamPhase::Fresh) {
            return Err(SocketRefusal::new(libc::EINVAL, "the socket is in use"));
        }
        state.apply_options()?;
        // SAFETY: a live id, an address.
        zero(unsafe { rdma_bind_addr(state.id()?.raw(), (&raw mut name).cast()) }, "rdma_bind_addr")
    }

    /// An option may want the service thread.
    pub(crate) fn options_have_changed(self: &Arc<Self>) {
        if self
            .lock()
            .is_ok_and(|state| state.options.keep_alive_interval().is_some() && state.about().connected)
        {
            self.watch();
        }
    }

    /// Has the service thread attend the socket from now on.
    fn watch(self: &Arc<Self>) {
        service::watch(self, self.attended_fd());
    }

    /// How many bytes can be received.
    pub(crate) fn unread(&self) -> Outcome<c_int> {
        let state = self.core.progress()?;
        let unread = if let StreamPhase::Open(connection) = &state.phase { connection.readable() } else { 0 };
        Ok(c_int::try_from(unread).unwrap_or(c_int::MAX))
    }

    /// The socket's number shows from now on what the socket is ready for.
    pub(crate) fn show(self: &Arc<Self>) -> Outcome<()> {
        let was_shown = self.lock()?.is_shown();
        self.core.show()?;
        if !was_shown {
            self.watch();
        }
        Ok(())
    }

    /// The value of SO_ERROR.
    pub(crate) fn take_error(&self) -> Outcome<c_int> {
        Ok(self.core.progress()?.take_error())
    }

    pub(crate) fn shutdown(&self, how: c_int) -> Outcome<()> {
        let (reading, writing) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(SocketRefusal::new(libc::EINVAL, "no such end")),
        };
        let mut state = self.core.progress()?;
        match &mut state.phase {
            StreamPhase::Open(connection) => connection.shut(reading, writing),
            // Threads that wait in raccept or rpoll return.
            StreamPhase::Listening(_) => state.phase = StreamPhase::Failed(libc::EINVAL),
            _ => return Err(SocketRefusal::plain(libc::ENOTCONN)),
        }
        state.changed();
        Ok(())
    }

    pub(crate) fn local_name(&self) -> Outcome<libc::sockaddr_storage> {
        let state = self.lock()?;
        let mut name = state.id()?.source();
        if name.ss_family == 0 {
            name = address::nothing(state.domain);
        }
        Ok(name)
    }

    pub(crate) fn peer_name(&self) -> Outcome<libc::sockaddr_storage> {
        let state = self.core.progress()?;
        match state.phase {
            StreamPhase::Open(_) => Ok(state.id()?.destination()),
            _ => Err(SocketRefusal::plain(libc::ENOTCONN)),
        }
    }
}

impl service::Attendee for StreamSocket {
    fn attend(self: Arc<Self>) -> service::NextAttendance {
        let (requested, works, next) = {
            let Ok(mut state) = self.lock() else { return service::NextAttendance::NEVER };
            let requested = match &state.phase {
                StreamPhase::Accepting(_, requested) => Some(requested.clone()),
                _ => None,
            };
            state.progress(&self.core.set);
            if let Some(until) = state.farewell_until {
                drop(state);
                return self.go_on_leaving(until);
            }
            let shown = state.is_shown();
            let next = state.next_attention(shown);
            match state.phase {
                StreamPhase::Open(_) => (requested, Some(true), next),
                StreamPhase::Failed(_) | StreamPhase::Closed => (requested, Some(false), next),
                StreamPhase::Accepting(..) => (requested, None, next),
                _ => return next,
            }
        };
        if let Some(requested) = requested
            && let Some(listener) = requested.listener.upgrade()
        {
            match works {
                Some(works) => listener.confirmed(&self, works),
                None => listener.unconfirmed_since(requested.at, &self),
            }
        }
        next
    }
}

impl Drop for StreamSocket {
    fn drop(&mut self) {
        service::forget(self.attended_fd());
    }
}
