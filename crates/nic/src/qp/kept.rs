//! Requests of an XRC target that another process executes, and those that wait meanwhile.

use super::target::Kept;
use super::{Qp, QpEnv, RxPayload};
use crate::ah::Ah;
use crate::engine::Work;
use crate::mem::KeyUser;
use crate::packet::PacketMeta;
use crate::rendezvous::slot_of;
use crate::xrc::{DomainFile, Hello, Range, Reached};
use ferroce_proto::{Access, Instant, Payload, QpState, RemoteError, SrqPlace, TransmitError};
use ferroce_wire::Headers;
use std::sync::Arc;

/// Packets that wait, at most, and their bytes. What is beyond is as good as lost.
const MAX_KEPT: usize = 1024;
const MAX_KEPT_BYTES: usize = 16 << 20;

type Proto = ferroce_proto::Qp<Arc<Ah>>;

impl QpEnv<'_> {
    /// Must a request wait, for another one or until its SRQ's process is reached? Then it is kept.
    pub(super) fn keeps(
        &mut self,
        proto: &Proto,
        headers: &Headers,
        payload: &RxPayload<'_>,
        meta: &PacketMeta,
    ) -> bool {
        let behind = proto.is_delegating() || !self.target.kept.is_empty();
        if !behind && !self.must_reach(proto, headers) {
            return false;
        }
        let bytes: usize = self.target.kept.iter().map(|kept| kept.payload.len()).sum();
        if self.target.kept.len() < MAX_KEPT && bytes + payload.len() <= MAX_KEPT_BYTES {
            let mut copy = vec![0; payload.len()];
            if payload.copy(&mut copy).is_ok() {
                self.target.kept.push_back(Kept { headers: *headers, payload: copy, meta: *meta });
            }
        }
        true
    }

    /// Does a request name an SRQ of a process that isn't reached yet? It will be, when the QP isn't locked any more.
    fn must_reach(&mut self, proto: &Proto, headers: &Headers) -> bool {
        let Some(srqn) = headers.xrc_srqn else { return false };
        let slot = slot_of(srqn);
        let known = self.qp.engine.owns(srqn)
            || self.target.tried == Some(slot)
            || self.target.reached.iter().any(|reached| reached.slot == slot);
        let runs = matches!(proto.state(), QpState::Rtr | QpState::Rts | QpState::Sqd);
        if known || !runs || !self.qp.has_shared_domain() {
            return false;
        }
        self.work.wanted.push((self.qp.clone(), srqn));
        true
    }

    /// Gives the transport what has waited.
    pub(crate) fn handle_kept(&mut self, proto: &mut Proto, now: Instant) {
        while !proto.is_delegating()
            && let Some(kept) = self.target.kept.pop_front()
        {
            if self.must_reach(proto, &kept.headers) {
                self.target.kept.push_front(kept);
                return;
            }
            self.meta = Some(kept.meta);
            proto.handle_packet(now, &kept.headers, kept.payload.as_slice().into(), self);
            self.meta = None;
        }
    }

    /// Where an SRQ is, and from here on the one at hand.
    pub(super) fn place_of(&mut self, srqn: u32) -> SrqPlace {
        let here = self.qp.engine.srq(srqn);
        let of_domain = |srq: &Arc<crate::Srq>| srq.xrcd().is_some_and(|d| self.qp.is_target_of(d.domain()));
        self.target.selected = here.filter(of_domain);
        self.target.elsewhere = None;
        if self.target.selected.is_some() {
            return SrqPlace::Here;
        }
        if self.target.reached.iter().any(|reached| reached.slot == slot_of(srqn)) {
            self.target.elsewhere = Some(srqn);
            return SrqPlace::Elsewhere;
        }
        SrqPlace::Nowhere
    }

    pub(super) fn give_away(&mut self, headers: &Headers, payload: &RxPayload<'_>) -> bool {
        let slot = self.target.elsewhere.map(slot_of);
        let reached = self.target.reached.iter().find(|reached| Some(reached.slot) == slot);
        self.target.given_to = reached.map(Reached::number);
        reached.is_some_and(|reached| reached.execute(headers, payload))
    }

    /// The bytes of a READ response that are in another process's memory; blocked until they have come.
    pub(super) fn bytes_elsewhere(&mut self, range: Range) -> Result<Vec<u8>, TransmitError> {
        let target = &mut *self.target;
        if let Some((fetched, result)) = target.fetched.take()
            && fetched == range
        {
            let bytes = result.map_err(TransmitError::Remote)?;
            let whole = bytes.len() == range.len as usize;
            return if whole { Ok(bytes) } else { Err(TransmitError::Remote(RemoteError::Operational)) };
        }
        if target.fetching.is_none() {
            let slot = slot_of(range.srqn);
            if !target.reached.iter().any(|r| r.slot == slot && r.fetch(&range)) {
                return Err(TransmitError::Remote(RemoteError::Operational));
            }
            target.fetching = Some(range);
        }
        Err(TransmitError::Blocked)
    }

    /// Such bytes have come.
    pub(crate) fn fetched(&mut self, result: Result<Vec<u8>, RemoteError>) {
        self.target.fetched = self.target.fetching.take().map(|range| (range, result));
    }

    /// The connection with this number has ended. Whether a request may have been given to it.
    pub(crate) fn unreach(&mut self, number: u64) -> bool {
        self.target.reached.retain(|reached| reached.number() != number);
        let place = self.target.fetching.map(|range| slot_of(range.srqn));
        if place.is_some_and(|slot| self.target.reached.iter().all(|reached| reached.slot != slot)) {
            self.fetched(Err(RemoteError::Operational));
        }
        self.target.given_to == Some(number)
    }
}

impl Qp {
    /// Connects with the process that has an SRQ which a packet has named, and goes on with what has waited for that.
    pub(crate) fn reach(self: &Arc<Self>, work: &mut Work, srqn: u32) {
        let slot = slot_of(srqn);
        let known = |inner: &super::Inner| inner.target.reached.iter().any(|reached| reached.slot == slot);
        let Some(domain) = self.domain.as_ref().filter(|_| !known(&self.inner.lock())) else { return };
        let reached = self.engine.reach(self, domain, srqn);
        let now = crate::clock::now();
        self.work(work, now, |proto, env| {
            match reached {
                Some(reached) => env.target.reached.push(reached),
                None => env.target.tried = Some(slot),
            }
            env.handle_kept(proto, now);
            env.target.tried = None;
        });
    }

    /// The domain has a file, by which other processes may have it too.
    fn has_shared_domain(&self) -> bool {
        self.domain.as_ref().is_some_and(|domain| domain.file.is_some())
    }

    /// Who uses keys in the name of an SRQ.
    pub(crate) fn user_of(&self, srq: &crate::Srq) -> KeyUser {
        KeyUser { pd: srq.pd().id(), qp: self.serial }
    }

    /// What another process has to know of this target.
    pub(crate) fn hello(&self, srqn: u32, file: DomainFile) -> Hello {
        let inner = self.inner.lock();
        let params = inner.proto.params();
        let (dest_qpn, path_mtu, access) = (params.dest_qpn, params.path_mtu, params.access);
        Hello { srqn, qpn: self.qpn, dest_qpn, path_mtu, access, file }
    }

    /// Executes another process's requests from here on.
    pub(crate) fn run_as_proxy(self: &Arc<Self>, dest_qpn: u32, path_mtu: u32, access: Access) {
        self.engine.with_work(|work| {
            let now = crate::clock::now();
            self.work(work, now, |proto, env| {
                let params = proto.params_mut();
                (params.dest_qpn, params.path_mtu, params.access) = (dest_qpn, path_mtu, access);
                (params.lossless, params.srq, params.max_dest_rd_atomic) = (true, true, 1);
                for state in [QpState::Init, QpState::Rtr] {
                    proto.set_state(state, now, env);
                }
            });
        });
    }

    /// No request comes any more: flushes the receive of a message in progress.
    pub(crate) fn fail_proxy(self: &Arc<Self>) {
        let now = crate::clock::now();
        self.engine.with_work(|work| {
            self.work(work, now, |proto, env| proto.set_state(QpState::Err, now, env));
        });
    }

    /// Forgets what waits and lets other processes go: the QP goes back to RESET, or away.
    pub(super) fn let_go(&self, inner: &mut super::Inner) {
        inner.target.kept.clear();
        (inner.target.fetching, inner.target.fetched) = (None, None);
        for reached in inner.target.reached.drain(..) {
            self.engine.elsewhere().let_go(&reached);
        }
    }
}
