//! The objects of a simulated adapter, as the backend of `ferroce` uses them.

use crate::adapter::{CqState, Key, QpState, Side, SimCompletion};
use crate::wait::Wait;
use crate::world::Host;
use ferroce_buffers::{Error, Exposure, Kind, QpAttributes, Registration, Rights, Tap};
use ferroce_proto::{
    Access, PostError, Qp, QpParams, QpState as TransportState, RecvWqe, SendRequest, SgeList,
};
use ferroce_wire::Service;
use std::collections::VecDeque;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

/// What the first empty poll takes. Further ones take longer, so that a program that polls sees time pass.
const POLL: Duration = Duration::from_nanos(200);

/// A wait with a limit of at least this isn't taken for a hang.
const LONG: Duration = Duration::from_secs(1);

/// A protection domain of a host. Clones are handles of the same domain.
#[derive(Clone, Debug)]
pub struct SimDomain {
    host: Host,
    number: u32,
}

impl Host {
    /// Makes a protection domain.
    #[must_use]
    pub fn domain(&self) -> SimDomain {
        let number = self.world.lock().hosts[self.index].new_number();
        SimDomain { host: self.clone(), number }
    }
}

impl SimDomain {
    /// The host.
    #[must_use]
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// Registers memory for local use.
    ///
    /// # Errors
    /// It is empty.
    pub fn register(&self, tap: Tap) -> Result<Box<dyn Registration>, Error> {
        if tap.is_empty() {
            return Err(Error::invalid("register", "a region of 0 bytes"));
        }
        let mut state = self.host.world.lock();
        let host = &mut state.hosts[self.host.index];
        let address = host.addresses(&tap);
        let key = host.add_key(Key { tap, address, domain: self.number, remote: None });
        drop(state);
        Ok(Box::new(Registered { domain: self.clone(), key, address }))
    }

    /// Makes a completion queue.
    #[must_use]
    pub fn cq(&self, capacity: u32) -> SimCq {
        let mut state = self.host.world.lock();
        let host = &mut state.hosts[self.host.index];
        let number = host.new_number();
        host.cqs.insert(number, CqState { entries: VecDeque::new(), capacity, empty_polls: 0 });
        drop(state);
        SimCq(Arc::new(CqHandle { host: self.host.clone(), number }))
    }

    /// Makes an RC queue pair in INIT.
    #[must_use]
    pub fn rc(&self, send_cq: &SimCq, recv_cq: &SimCq, limits: &QpAttributes) -> SimQp {
        let mut state = self.host.world.lock();
        let psn = state.random.next() as u32 & 0xff_ffff;
        let host = &mut state.hosts[self.host.index];
        let qpn = host.new_number();
        let mut qp = Qp::new(Service::Rc, qpn, limits.send_depth);
        *qp.params_mut() = QpParams {
            access: Access {
                remote_write: true,
                remote_read: true,
                remote_atomic: true,
                ..Access::default()
            },
            sq_psn: psn,
            path_mtu: limits.mtu,
            max_rd_atomic: limits.reads,
            max_dest_rd_atomic: limits.peer_reads,
            min_rnr_timer: limits.rnr_timer,
            timeout: limits.timeout,
            retry_cnt: limits.retries,
            rnr_retry: limits.rnr_retries,
            ..QpParams::default()
        };
        let side = Side {
            domain: self.number,
            send_cq: send_cq.0.number,
            recv_cq: recv_cq.0.number,
            peer: None,
            recv_depth: limits.recv_depth,
            receives: VecDeque::new(),
            sends_completed: Vec::new(),
            unpublished: Vec::new(),
            out: Vec::new(),
            first: None,
        };
        host.qps.insert(qpn, QpState { qp, side, timer: None });
        drop(state);
        let qp = SimQp { host: self.host.clone(), qpn, psn, _cqs: [send_cq.clone(), recv_cq.clone()] };
        qp.go_to(TransportState::Init);
        qp
    }
}

/// A key that goes with its handle.
struct Registered {
    domain: SimDomain,
    key: u32,
    address: u64,
}

impl Registration for Registered {
    fn key(&self) -> u32 {
        self.key
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn expose(&self, part: Tap, address: u64, rights: Rights) -> Result<Box<dyn Exposure>, Error> {
        let host = &self.domain.host;
        let key = Key { tap: part, address, domain: self.domain.number, remote: Some(rights) };
        let key = host.world.lock().hosts[host.index].add_key(key);
        Ok(Box::new(Self { domain: self.domain.clone(), key, address }))
    }
}

impl Exposure for Registered {
    fn key(&self) -> u32 {
        self.key
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let host = &self.domain.host;
        let removed = host.world.lock().hosts[host.index].keys.remove(&self.key);
        // The memory may be released with its key: outside of the world's lock.
        drop(removed);
    }
}

struct CqHandle {
    host: Host,
    number: u32,
}

impl Drop for CqHandle {
    fn drop(&mut self) {
        self.host.world.lock().hosts[self.host.index].cqs.remove(&self.number);
    }
}

/// A completion queue. It exists as long as a handle or a queue pair that uses it.
#[derive(Clone)]
pub struct SimCq(Arc<CqHandle>);

impl SimCq {
    /// Moves completions to `into`, at most `most`. If there are none, a little time passes and other programs run.
    pub fn poll(&self, into: &mut VecDeque<SimCompletion>, most: usize) {
        if self.take(into, most) {
            return;
        }
        let until = {
            let mut state = self.0.host.world.lock();
            let now = state.now;
            let cq = state.hosts[self.0.host.index].cqs.get_mut(&self.0.number);
            let polls = cq.map_or(0, |cq| {
                cq.empty_polls = cq.empty_polls.saturating_add(1);
                cq.empty_polls
            });
            now.after(POLL * (1 << (polls / 16).min(9)))
        };
        self.block(Some(until), false);
        self.take(into, most);
    }

    fn take(&self, into: &mut VecDeque<SimCompletion>, most: usize) -> bool {
        let mut state = self.0.host.world.lock();
        let Some(cq) = state.hosts[self.0.host.index].cqs.get_mut(&self.0.number) else { return false };
        let count = cq.entries.len().min(most);
        into.extend(cq.entries.drain(..count));
        count > 0
    }

    fn block(&self, until: Option<ferroce_proto::Instant>, long: bool) -> bool {
        let (host, cq) = (self.0.host.index, self.0.number);
        self.0.host.world.block(Wait::Cq { host, cq, until, long })
    }

    /// Waits for a completion, at most for `limit`. False if none came.
    ///
    /// # Panics
    /// Without a limit: nothing will ever happen again.
    #[must_use]
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let until = limit.map(|limit| self.0.host.world.lock().now.after(limit));
        self.block(until, limit.is_some_and(|limit| limit >= LONG))
    }

    /// Completions that fit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        let state = self.0.host.world.lock();
        state.hosts[self.0.host.index].cqs.get(&self.0.number).map_or(0, |cq| cq.capacity)
    }
}

impl fmt::Debug for SimCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimCq({:#x})", self.0.number)
    }
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug)]
pub struct QpPeer {
    /// Its address.
    pub ip: Ipv4Addr,
    /// Its QPN.
    pub qpn: u32,
    /// The PSN of its first request.
    pub psn: u32,
    /// Bytes of payload that its packets may carry.
    pub mtu: u32,
    /// READs and atomics that it accepts at once.
    pub reads: u8,
}

/// An RC queue pair. It is destroyed with its handle.
pub struct SimQp {
    host: Host,
    qpn: u32,
    psn: u32,
    /// They exist for at least as long.
    _cqs: [SimCq; 2],
}

impl SimQp {
    /// Its number.
    #[must_use]
    pub const fn qpn(&self) -> u32 {
        self.qpn
    }

    fn go_to(&self, to: TransportState) {
        let changed =
            self.host.world.lock().with_qp(self.host.index, self.qpn, |qp, env| qp.set_state(to, env));
        debug_assert!(changed.is_some(), "the queue pair exists as long as its handle");
    }

    /// The PSN of its first request.
    #[must_use]
    pub const fn psn(&self) -> u32 {
        self.psn
    }

    /// The address of its host.
    #[must_use]
    pub const fn ip(&self) -> Ipv4Addr {
        self.host.ip
    }

    /// Connects it, and takes it to RTS. Its first request has the PSN `psn`, or that of [`SimQp::psn`].
    pub fn connect(&self, peer: &QpPeer, psn: Option<u32>) {
        let mut state = self.host.world.lock();
        if let Some(QpState { qp, side, .. }) = state.hosts[self.host.index].qps.get_mut(&self.qpn) {
            side.peer = Some(peer.ip);
            let params = qp.params_mut();
            (params.dest_qpn, params.rq_psn) = (peer.qpn, peer.psn);
            params.sq_psn = psn.unwrap_or(params.sq_psn);
            params.path_mtu = params.path_mtu.min(peer.mtu);
            params.max_rd_atomic = params.max_rd_atomic.min(peer.reads);
        }
        drop(state);
        self.go_to(TransportState::Rtr);
        self.go_to(TransportState::Rts);
    }

    /// Whether [`SimQp::post`] takes a request.
    ///
    /// # Errors
    /// It doesn't.
    pub fn check(&self, request: &SendRequest<'_, ()>) -> Result<(), Error> {
        let state = self.host.world.lock();
        let Some(found) = state.hosts[self.host.index].qps.get(&self.qpn) else {
            return Err(Error::new(Kind::Dead, "post", "the queue pair doesn't exist any more"));
        };
        found.qp.check_post(request, 0).map_err(|error| match error {
            PostError::QueueFull => Error::new(Kind::Full, "post", "the send queue is full"),
            PostError::State(state) => Error::invalid("post", format!("the queue pair is in {state}")),
            PostError::Operation => Error::new(Kind::Unsupported, "post", "the transport can't do this"),
            PostError::Length { len, most } => {
                Error::new(Kind::TooLong, "post", format!("{len} bytes, at most {most} fit a message"))
            }
        })
    }

    /// Posts a request that [`SimQp::check`] has accepted.
    pub fn post(&self, request: &SendRequest<'_, ()>) {
        let posted =
            self.host.world.lock().with_qp(self.host.index, self.qpn, |qp, _| qp.post_send(request).is_ok());
        debug_assert_eq!(posted, Some(true), "a request that was checked");
    }

    /// Posts a receive. The caller counts the receives.
    pub fn receive(&self, wr_id: u64, sges: SgeList) {
        let mut state = self.host.world.lock();
        let failed = state.with_qp(self.host.index, self.qpn, |qp, env| {
            debug_assert!(env.side.receives.len() < env.side.recv_depth as usize);
            env.side.receives.push_back(RecvWqe { wr_id, sges });
            // In ERR a receive is flushed at once.
            if qp.state() == TransportState::Err {
                qp.set_state(TransportState::Err, env);
            }
        });
        debug_assert!(failed.is_some(), "the queue pair exists as long as its handle");
    }

    /// Takes it to ERR: all requests are flushed.
    pub fn abort(&self) {
        self.go_to(TransportState::Err);
    }

    /// Whether it has failed, or was aborted.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        let state = self.host.world.lock();
        let found = state.hosts[self.host.index].qps.get(&self.qpn);
        found.is_none_or(|found| found.qp.state() == TransportState::Err)
    }
}

impl Drop for SimQp {
    fn drop(&mut self) {
        self.host.world.lock().remove_qp(self.host.index, self.qpn);
    }
}

impl fmt::Debug for SimQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimQp({:#x})", self.qpn)
    }
}
