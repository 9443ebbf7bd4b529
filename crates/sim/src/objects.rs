//! The objects of a simulated adapter, as the backend of `ferroce` uses them.

use crate::adapter::{CompletedRequest, CqState, HostState, Key, QpState, Side, SrqState, User, WindowState};
use crate::state::State;
use crate::wait::Wait;
use crate::world::Host;
use ferroce_buffers::{
    ConnectedTo, Ended, Error, Event, Exposure, Kind, Polled, QpAttributes, QpService, Registration, Rights,
    Tap,
};
use ferroce_proto::{QpParams, QpProtocol, SendRequest, UdTarget};
use ferroce_types::{Access, QpState as TransportState, RecvWqe, Sge, sge_list};
use ferroce_wire::Service;
use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

/// What the first empty poll takes. Further ones take longer, so that a program that polls sees time pass.
const POLL: Duration = Duration::from_nanos(200);

/// What the first look at exposed memory takes. Many looks without a change take longer.
const LOOK: Duration = Duration::from_nanos(100);

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
    ///
    /// # Errors
    /// The host has crashed.
    pub fn domain(&self) -> Result<SimDomain, Error> {
        let mut state = self.world.lock();
        let host = &mut state.hosts[self.index];
        if !host.up {
            return Err(dead("open"));
        }
        let number = host.new_number();
        host.domains.insert(number);
        drop(state);
        Ok(SimDomain { host: self.clone(), number })
    }
}

/// The host of an object has crashed.
pub(crate) fn dead(verb: &'static str) -> Error {
    Error::new(Kind::Dead, verb, "the host has crashed since")
}

impl SimDomain {
    /// The host.
    #[must_use]
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// The adapter with this domain, for a call that may fail for lack of memory.
    fn adapter<'s>(&self, state: &'s mut State, verb: &'static str) -> Result<&'s mut HostState, Error> {
        let State { hosts, chances, .. } = state;
        let host = &mut hosts[self.host.index];
        if !host.domains.contains(&self.number) {
            return Err(dead(verb));
        }
        let fails = host.licences.registration_fails;
        if chances.fault(fails, || format!("{} of {} fails for lack of memory", verb, host.name)) {
            return Err(Error::new(Kind::NoMemory, verb, "the adapter has no memory for another key"));
        }
        Ok(host)
    }

    /// Registers memory for local use.
    ///
    /// # Errors
    /// It is empty, the adapter has no memory for it, or the host has crashed.
    pub fn register(&self, tap: Tap) -> Result<Box<dyn Registration>, Error> {
        if tap.is_empty() {
            return Err(Error::invalid("register", "a region of 0 bytes"));
        }
        let mut state = self.host.world.lock();
        let host = self.adapter(&mut state, "register")?;
        let address = host.addresses(&tap);
        let key = host.add_key(Key { tap, address, domain: self.number, remote: None, of_qp: None });
        drop(state);
        Ok(Box::new(Registered { domain: self.clone(), key, address }))
    }

    /// Makes a completion queue.
    ///
    /// # Errors
    /// It is larger than the adapter's largest, or the host has crashed.
    pub fn cq(&self, capacity: u32) -> Result<SimCq, Error> {
        let mut state = self.host.world.lock();
        let host = &mut state.hosts[self.host.index];
        if !host.domains.contains(&self.number) {
            return Err(dead("cq"));
        }
        if let Some(most) = host.licences.most_cq_entries.filter(|most| capacity > *most) {
            let why = format!("{capacity} entries; a completion queue of this adapter has at most {most}");
            return Err(Error::invalid("cq", why));
        }
        let number = host.new_number();
        host.cqs.insert(number, CqState { entries: VecDeque::new(), capacity, empty_polls: 0 });
        drop(state);
        Ok(SimCq(Arc::new(CqHandle { host: self.host.clone(), number })))
    }

    /// Makes a queue pair in INIT.
    ///
    /// # Errors
    /// A completion queue is of another host, the shared receive queue is of another domain, or the host has crashed.
    pub fn qp(
        &self,
        [send_cq, recv_cq]: [&SimCq; 2],
        srq: Option<&SimSrq>,
        limits: &QpAttributes,
    ) -> Result<SimQp, Error> {
        if ![send_cq, recv_cq].iter().all(|cq| self.host.is_same(&cq.0.host)) {
            return Err(Error::invalid("build", "the completion queue is of another device"));
        }
        let is_here =
            |srq: &SimSrq| self.host.is_same(&srq.0.domain.host) && srq.0.domain.number == self.number;
        if !srq.is_none_or(is_here) {
            return Err(Error::invalid("build", "the shared receive queue is of another domain"));
        }
        let mut state = self.host.world.lock();
        let psn = state.chances.next() as u32 & 0xff_ffff;
        let host = &mut state.hosts[self.host.index];
        if !host.domains.contains(&self.number) {
            return Err(dead("build"));
        }
        let qpn = host.new_number();
        let service = match limits.service {
            QpService::Reliable => Service::Rc,
            QpService::Unreliable => Service::Uc,
            QpService::Datagram => Service::Ud,
        };
        let mut qp = QpProtocol::new(service, qpn, limits.send_depth);
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
            srq: srq.is_some(),
            ..QpParams::default()
        };
        let cqs = (send_cq.0.number, recv_cq.0.number);
        let user = User { domain: self.number, qpn };
        let side = Side::new(user, cqs, srq.map(|srq| srq.0.number), limits);
        host.qps.insert(qpn, QpState { qp, side, timer: None });
        drop(state);
        let (host, _cqs, _srq) = (self.host.clone(), [send_cq.clone(), recv_cq.clone()], srq.cloned());
        let qp = SimQp { host, qpn, psn, mtu: limits.mtu, _cqs, _srq };
        qp.go_to(TransportState::Init);
        Ok(qp)
    }

    /// Makes a shared receive queue, with its number in events.
    #[must_use]
    pub fn srq(&self, depth: u32, parts: u32, in_events: u32) -> SimSrq {
        let mut state = self.host.world.lock();
        let host = &mut state.hosts[self.host.index];
        let number = host.new_number();
        host.tables.srqs.insert(number, SrqState { number: in_events, ..SrqState::default() });
        drop(state);
        SimSrq(Arc::new(SrqHandle { domain: self.clone(), number, depth, parts }))
    }
}

impl SimDomain {
    /// Makes a memory window.
    #[must_use]
    pub fn window(&self) -> SimWindow {
        let mut state = self.host.world.lock();
        let host = &mut state.hosts[self.host.index];
        let number = u64::from(host.new_number());
        let key = host.tables.free_windows.pop().unwrap_or_else(|| host.new_key());
        host.tables.windows.insert(number, WindowState { domain: self.number, key: None });
        drop(state);
        SimWindow { domain: self.clone(), number, key }
    }
}

/// A memory window. Nothing is reached through it once it is dropped.
pub struct SimWindow {
    domain: SimDomain,
    number: u64,
    key: u32,
}

impl SimWindow {
    /// A key of which a request that binds the window may change the low 8 bits.
    #[must_use]
    pub const fn key(&self) -> u32 {
        self.key
    }

    /// Its number in requests.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for SimWindow {
    fn drop(&mut self) {
        let host = &self.domain.host;
        let mut state = host.world.lock();
        state.place_all(host.index);
        let tables = &mut state.hosts[host.index].tables;
        let key = tables.windows.remove(&self.number).and_then(|window| window.key);
        tables.free_windows.push(self.key);
        let removed = key.and_then(|key| tables.keys.remove(&key));
        drop(state);
        // As above.
        drop(removed);
    }
}

struct SrqHandle {
    domain: SimDomain,
    number: u32,
    depth: u32,
    parts: u32,
}

impl SrqHandle {
    fn with<R>(&self, f: impl FnOnce(&mut SrqState) -> R) -> Option<R> {
        let host = &self.domain.host;
        host.world.lock().hosts[host.index].tables.srqs.get_mut(&self.number).map(f)
    }
}

impl Drop for SrqHandle {
    fn drop(&mut self) {
        let host = &self.domain.host;
        host.world.lock().hosts[host.index].tables.srqs.remove(&self.number);
    }
}

/// A shared receive queue. It exists as long as a handle or a queue pair that uses it.
#[derive(Clone)]
pub struct SimSrq(Arc<SrqHandle>);

impl SimSrq {
    /// Posts a receive. The caller counts the receives.
    ///
    /// # Errors
    /// There is none.
    pub fn receive(&self, wr_id: u64, sges: &[Sge]) -> Result<(), Error> {
        self.0.with(|srq| {
            debug_assert!(srq.receives.len() < self.0.depth as usize);
            debug_assert!(sges.len() <= self.0.parts as usize);
            srq.receives.push_back(RecvWqe { wr_id, sges: sge_list(sges) });
        });
        Ok(())
    }

    /// Asks for an event when fewer receives are left.
    ///
    /// # Errors
    /// There is none.
    pub fn low_water(&self, limit: u32) -> Result<(), Error> {
        self.0.with(|srq| srq.limit = limit);
        Ok(())
    }
}

impl fmt::Debug for SimSrq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimSrq({:#x})", self.0.number)
    }
}

/// The way to a queue pair that receives datagrams.
#[derive(Clone, Copy, Debug)]
pub struct SimAddress {
    ip: Ipv4Addr,
    qpn: u32,
    qkey: u32,
}

impl SimAddress {
    /// The way to a queue pair of the host with this address.
    ///
    /// # Errors
    /// It isn't that of a simulated host.
    pub fn new(gid: [u8; 16], qpn: u32, qkey: u32) -> Result<Self, Error> {
        Ok(Self { ip: ip_of(gid, "address")?, qpn, qkey })
    }
}

fn ip_of(gid: [u8; 16], verb: &'static str) -> Result<Ipv4Addr, Error> {
    match Ipv6Addr::from(gid).to_canonical() {
        IpAddr::V4(ip) => Ok(ip),
        IpAddr::V6(ip) => Err(Error::invalid(verb, format!("{ip} isn't a simulated host"))),
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
        let key = Key { tap: part, address, domain: self.domain.number, remote: Some(rights), of_qp: None };
        let key = self.domain.adapter(&mut host.world.lock(), "expose")?.add_key(key);
        Ok(Box::new(Self { domain: self.domain.clone(), key, address }))
    }
}

impl Exposure for Registered {
    fn key(&self) -> u32 {
        self.key
    }

    /// A little time passes, and other programs run: a program that polls memory sees it change.
    fn look(&self) {
        let Host { world, index, .. } = &self.domain.host;
        let mut state = world.lock();
        if state.driven.is_some() || state.ended.is_some() {
            return;
        }
        let host = &mut state.hosts[*index];
        host.looks = host.looks.saturating_add(1);
        let time = LOOK * (1 << (host.looks / 64).min(7));
        let until = state.now.after(time);
        drop(state);
        world.block(Wait::Look(until));
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let host = &self.domain.host;
        let mut state = host.world.lock();
        state.place_all(host.index);
        let removed = state.hosts[host.index].tables.keys.remove(&self.key);
        drop(state);
        // The memory may be released with its key: outside of the world's lock.
        drop(removed);
    }
}

impl SimDomain {
    /// What has happened to the adapter, at most after `limit`.
    #[must_use]
    pub fn next_event(&self, limit: Option<Duration>) -> Option<Event> {
        let host = self.host.index;
        let until = limit.map(|limit| self.host.world.lock().now.after(limit));
        let long = limit.is_some_and(|limit| limit >= LONG);
        if !self.host.world.block(Wait::Event { host, until, long }) {
            return None;
        }
        self.host.world.lock().hosts[host].tables.events.pop_front()
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
    /// Moves completions to `into`, which is empty. If there are none, a little time passes and other programs run.
    ///
    /// # Errors
    /// The host has crashed.
    pub fn poll(&self, into: &mut Polled) -> Result<(), Error> {
        if self.take("poll", into)? {
            return Ok(());
        }
        let until = {
            let mut state = self.0.host.world.lock();
            if state.driven.is_some() {
                return Ok(());
            }
            let now = state.now;
            let cq = state.hosts[self.0.host.index].cqs.get_mut(&self.0.number);
            let polls = cq.map_or(0, |cq| {
                cq.empty_polls = cq.empty_polls.saturating_add(1);
                cq.empty_polls
            });
            now.after(POLL * (1 << (polls / 16).min(9)))
        };
        self.block(Some(until), false);
        self.take("poll", into).map(drop)
    }

    fn take(&self, verb: &'static str, into: &mut Polled) -> Result<bool, Error> {
        let mut state = self.0.host.world.lock();
        let cq = state.hosts[self.0.host.index].cqs.get_mut(&self.0.number);
        let cq = cq.ok_or_else(|| dead(verb))?;
        let count = cq.entries.len().min(Polled::MOST);
        for CompletedRequest { completion, stamp, fault } in cq.entries.drain(..count) {
            into.push(Ended::of(&completion));
            into.stamp(stamp);
            fault.into_iter().for_each(|fault| into.fail(fault));
        }
        Ok(count > 0)
    }

    fn block(&self, until: Option<ferroce_types::Instant>, long: bool) -> bool {
        let (host, cq) = (self.0.host.index, self.0.number);
        self.0.host.world.block(Wait::Cq { host, cq, until, long })
    }

    /// Waits until completions have come, and moves them to `into`, which is empty. At most for `limit`: false if none came.
    ///
    /// # Errors
    /// The host has crashed.
    ///
    /// # Panics
    /// Without a limit: nothing will ever happen again.
    pub fn wait(&self, into: &mut Polled, limit: Option<Duration>) -> Result<bool, Error> {
        let until = limit.map(|limit| self.0.host.world.lock().now.after(limit));
        self.block(until, limit.is_some_and(|limit| limit >= LONG));
        self.take("wait", into)
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

/// A queue pair. It is destroyed with its handle.
pub struct SimQp {
    host: Host,
    qpn: u32,
    psn: u32,
    mtu: u32,
    /// They exist for at least as long.
    _cqs: [SimCq; 2],
    _srq: Option<SimSrq>,
}

impl SimQp {
    /// Its number.
    #[must_use]
    pub const fn qpn(&self) -> u32 {
        self.qpn
    }

    fn go_to(&self, to: TransportState) {
        // It exists as long as its handle, unless the host crashes.
        self.host.world.lock().with_qp(self.host.index, self.qpn, |qp, env| qp.set_state(to, env));
    }

    /// The PSN of its first request.
    #[must_use]
    pub const fn psn(&self) -> u32 {
        self.psn
    }

    /// The address of its host.
    #[must_use]
    pub const fn gid(&self) -> [u8; 16] {
        self.host.ip.to_ipv6_mapped().octets()
    }

    /// Bytes of payload that its packets may carry.
    #[must_use]
    pub const fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Connects it, and takes it to RTS. Its first request has the PSN `first`, or that of [`SimQp::psn`].
    ///
    /// # Errors
    /// The peer isn't simulated.
    pub fn connect(&self, peer: &ConnectedTo, first: Option<u32>) -> Result<(), Error> {
        let ip = ip_of(peer.gid, "connect")?;
        let mut state = self.host.world.lock();
        if let Some(QpState { qp, side, .. }) = state.hosts[self.host.index].qps.get_mut(&self.qpn) {
            side.peer = Some(ip);
            let params = qp.params_mut();
            (params.dest_qpn, params.rq_psn) = (peer.qpn, peer.psn);
            params.sq_psn = first.unwrap_or(params.sq_psn);
            params.path_mtu = params.path_mtu.min(peer.mtu);
            params.max_rd_atomic = params.max_rd_atomic.min(peer.reads);
        }
        drop(state);
        self.go_to(TransportState::Rtr);
        self.go_to(TransportState::Rts);
        Ok(())
    }

    /// Lets it send and receive datagrams.
    ///
    /// # Errors
    /// There is none.
    pub fn activate(&self, qkey: u32) -> Result<(), Error> {
        let mut state = self.host.world.lock();
        if let Some(found) = state.hosts[self.host.index].qps.get_mut(&self.qpn) {
            found.qp.params_mut().qkey = qkey;
        }
        drop(state);
        self.go_to(TransportState::Rtr);
        self.go_to(TransportState::Rts);
        Ok(())
    }

    /// Posts a request for which the queue has room. A host that has crashed takes none.
    pub fn post(&self, request: &SendRequest<'_, ()>, to: Option<&SimAddress>) {
        let ud = to.map(|to| UdTarget { address: to.ip, qpn: to.qpn, qkey: to.qkey });
        let &SendRequest { wr_id, op, data, signaled, solicited, fence, remote_srqn, .. } = request;
        let ud = ud.as_ref();
        let request = SendRequest { wr_id, op, data, signaled, solicited, fence, ud, remote_srqn };
        let posted =
            self.host.world.lock().with_qp(self.host.index, self.qpn, |qp, _| qp.post_send(&request).is_ok());
        debug_assert_ne!(posted, Some(false), "a request that was checked");
    }

    /// Posts a receive. The caller counts the receives. A host that has crashed takes none.
    pub fn receive(&self, wr_id: u64, sges: &[Sge]) {
        let mut state = self.host.world.lock();
        state.with_qp(self.host.index, self.qpn, |qp, env| {
            debug_assert!(env.side.receives.len() < env.side.recv_depth as usize);
            env.side.receives.push_back(RecvWqe { wr_id, sges: sge_list(sges) });
            // In ERR a receive is flushed at once.
            if qp.state() == TransportState::Err {
                qp.set_state(TransportState::Err, env);
            }
        });
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
