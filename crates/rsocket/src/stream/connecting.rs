//! Connecting: rconnect(3), and its way from the address to the confirmed connection.

use std::ffi::c_int;
use std::sync::Arc;

use crate::abi::*;
use crate::connection::{Prepared, StreamConnection};
use crate::options::SocketOptions;
use crate::verbs::{ConnectionId, IdEvent};
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal, zero};
use ferroce_rsocket_calls::waiting::{Set, is_interruption};
use ferroce_rsocket_protocol::wire::ConnectionData;

use super::StreamSocket;
use super::state::{StreamPhase, StreamState};

/// How often addresses and routes are asked for again, each time with twice the time.
const RETRIES: u32 = 6;
/// How long the first attempt may take, in milliseconds.
const FIRST_ATTEMPT: c_int = 1000;
#[derive(Debug)]
pub(super) struct Connecting {
    destination: libc::sockaddr_storage,
    attempt: u32,
    prepared: Option<Prepared>,
}

impl Connecting {
    fn timeout(&self) -> c_int {
        FIRST_ATTEMPT << self.attempt
    }

    fn resolve(&mut self, id: &ConnectionId) -> Outcome<()> {
        // SAFETY: a live id, an address.
        zero(
            unsafe {
                rdma_resolve_addr(
                    id.raw(),
                    std::ptr::null_mut(),
                    (&raw mut self.destination).cast(),
                    self.timeout(),
                )
            },
            "rdma_resolve_addr",
        )
    }

    fn resolve_route(&self, id: &ConnectionId) -> Outcome<()> {
        // SAFETY: a live id.
        zero(unsafe { rdma_resolve_route(id.raw(), self.timeout()) }, "rdma_resolve_route")
    }

    /// The next step, and the connection after the last.
    pub(super) fn happened(
        &mut self,
        id: &ConnectionId,
        event: &IdEvent,
        options: &SocketOptions,
        set: &Set,
    ) -> Outcome<Option<Box<StreamConnection>>> {
        match event.kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => {
                self.attempt = 0;
                if options.set_route(id)? {
                    self.request(id, options, set)?;
                } else {
                    self.resolve_route(id)?;
                }
            }
            RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR
                if event.errno() == libc::ETIMEDOUT && self.attempt < RETRIES =>
            {
                self.attempt += 1;
                if event.kind == RDMA_CM_EVENT_ADDR_ERROR {
                    self.resolve(id)?;
                } else {
                    self.resolve_route(id)?;
                }
            }
            RDMA_CM_EVENT_ROUTE_RESOLVED => self.request(id, options, set)?,
            RDMA_CM_EVENT_ESTABLISHED => {
                let peer = ConnectionData::parse(event.data()).ok_or_else(|| {
                    SocketRefusal::new(libc::ENOTSUP, "the peer isn't an rsocket of version 1")
                })?;
                let prepared = self.prepared.take().ok_or_else(|| SocketRefusal::plain(libc::EIO))?;
                return Ok(Some(Box::new(StreamConnection::new(prepared, peer))));
            }
            _ => return Err(SocketRefusal::plain(event.errno())),
        }
        Ok(None)
    }

    fn request(&mut self, id: &ConnectionId, options: &SocketOptions, set: &Set) -> Outcome<()> {
        let prepared = Prepared::new(id, &options.choices)?;
        set.add(prepared.fd(), 0)?;
        let data = prepared.data();
        self.prepared = Some(prepared);
        // SAFETY: a live id with a queue pair; data that is copied.
        zero(unsafe { rdma_connect(id.raw(), &mut parameters(&data)) }, "rdma_connect")
    }
}

impl StreamSocket {
    pub(crate) fn connect(self: &Arc<Self>, destination: libc::sockaddr_storage) -> Outcome<()> {
        let shown = {
            let mut state = self.lock()?;
            // As connect(2), whatever the address is: the end of an attempt is the result of one call.
            let unreported = state.connect_unreported;
            match state.phase {
                StreamPhase::Fresh => self.begin_to_connect(&mut state, destination)?,
                StreamPhase::Connecting(_) if self.core.is_nonblocking() => {
                    return Err(SocketRefusal::plain(libc::EALREADY));
                }
                StreamPhase::Connecting(_) => {}
                StreamPhase::Open(_) if unreported => {
                    state.connect_unreported = false;
                    return Ok(());
                }
                StreamPhase::Failed(errno) if unreported && state.error != 0 => {
                    state.connect_unreported = false;
                    state.error = 0;
                    return Err(SocketRefusal::plain(errno));
                }
                StreamPhase::Open(_) | StreamPhase::Accepting(..) => {
                    return Err(SocketRefusal::plain(libc::EISCONN));
                }
                StreamPhase::Failed(_) => {
                    // An id that has failed is spent.
                    if let Some(old) = &state.id {
                        self.core.set.remove(old.fd());
                    }
                    let id = ConnectionId::new(RDMA_PS_TCP)?;
                    self.core.set.add(id.fd(), 0)?;
                    state.phase = StreamPhase::Fresh;
                    state.id = Some(id);
                    self.core.show_anew(&mut state)?;
                    self.begin_to_connect(&mut state, destination)?;
                }
                StreamPhase::Listening(_) | StreamPhase::Closed => {
                    return Err(SocketRefusal::plain(libc::EINVAL));
                }
            }
            state.is_shown()
        };
        if shown || self.core.is_nonblocking() {
            self.watch();
        }
        if self.core.is_nonblocking() {
            return Err(SocketRefusal::plain(libc::EINPROGRESS));
        }
        let until = self.lock()?.options.send_deadline();
        let connected = self.core.wait(false, until, |state| match state.phase {
            StreamPhase::Connecting(_) => None,
            StreamPhase::Open(_) => {
                state.connect_unreported = false;
                Some(Ok(()))
            }
            StreamPhase::Failed(errno) => {
                state.connect_unreported = false;
                state.error = 0;
                Some(Err(SocketRefusal::plain(errno)))
            }
            _ => Some(Err(SocketRefusal::plain(libc::EBADF))),
        });
        self.options_have_changed();
        if let Err(refusal) = &connected
            && (refusal.errno == libc::EAGAIN || is_interruption(refusal))
        {
            // It goes on without the caller.
            self.watch();
        }
        connected.map_err(|refusal| match refusal.errno {
            libc::EAGAIN => SocketRefusal::plain(libc::EINPROGRESS),
            _ => refusal,
        })
    }

    fn begin_to_connect(&self, state: &mut StreamState, destination: libc::sockaddr_storage) -> Outcome<()> {
        state.apply_options()?;
        let mut connecting = Box::new(Connecting { destination, attempt: 0, prepared: None });
        connecting.resolve(state.id()?)?;
        state.phase = StreamPhase::Connecting(connecting);
        state.connect_unreported = true;
        Ok(())
    }
}

/// The parameters of both sides' queue pairs.
pub(super) fn parameters(data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: data.as_ptr().cast(),
        private_data_len: data.len() as u8,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}
