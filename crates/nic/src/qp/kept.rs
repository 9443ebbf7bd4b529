//! Requests of an XRC target that another process executes, and those that wait meanwhile.

use super::target::{Away, Kept, Shared};
use super::{Qp, QpEnv, RxPayload};
use crate::adapter::Work;
use crate::ah::Ah;
use crate::mem::KeyUser;
use crate::packet::PacketMeta;
use crate::rendezvous::slot_of;
use crate::xrc::{DomainFile, Hello, Range, Reached, Unreached};
use ferroce_proto::{Access, DelegateError, Instant, Payload, QpState, RemoteError, SrqPlace, TransmitError};
use ferroce_wire::Headers;
use std::sync::Arc;

/// Packets that wait, at most, and their bytes. What is beyond is as good as lost.
const MAX_KEPT: usize = 8192;
const MAX_KEPT_BYTES: usize = 16 << 20;
/// Packets that another process has at a time, and their bytes: they fit into a socket's usual buffer.
const MAX_AWAY: usize = 64;
const MAX_AWAY_BYTES: usize = 128 << 10;

type Proto = ferroce_proto::Qp<Arc<Ah>>;

impl QpEnv<'_> {
    /// Must a request wait, for others or until its SRQ's process is reached? Then it is kept.
    pub(super) fn keeps(
        &mut self,
        proto: &Proto,
        headers: &Headers,
        payload: &RxPayload<'_>,
        meta: &PacketMeta,
    ) -> bool {
        let behind = !self.target.kept.is_empty() || !self.may_go(proto, headers, payload.len());
        if !behind && !self.must_reach(proto, headers) {
            return false;
        }
        let bytes = self.target.kept_bytes + payload.len();
        if self.target.kept.len() < MAX_KEPT && bytes <= MAX_KEPT_BYTES {
            let mut copy = vec![0; payload.len()];
            if payload.copy(&mut copy).is_ok() {
                self.target.kept_bytes = bytes;
                self.target.kept.push_back(Kept { headers: *headers, payload: copy, meta: *meta });
            }
        }
        true
    }

    /// Can a request be executed, here or elsewhere, although others are under way?
    fn may_go(&self, proto: &Proto, headers: &Headers, len: usize) -> bool {
        let away = &self.target.away;
        if away.lens.is_empty() {
            return !proto.is_delegating();
        }
        let slot = headers.xrc_srqn.map(slot_of);
        let same = |reached: &Reached| reached.number() == away.connection && Some(reached.slot) == slot;
        away.lens.len() < MAX_AWAY
            && away.bytes + len <= MAX_AWAY_BYTES
            && proto.can_follow(headers)
            && self.target.reached.iter().any(same)
    }

    /// Does a request name an SRQ of a process that isn't reached yet? It will be, when the QP isn't locked any more.
    fn must_reach(&mut self, proto: &Proto, headers: &Headers) -> bool {
        let Some(srqn) = headers.xrc_srqn else { return false };
        let slot = slot_of(srqn);
        let known = self.qp.adapter.owns(srqn)
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
        while let Some(kept) = self.target.kept.pop_front() {
            let waits = !self.may_go(proto, &kept.headers, kept.payload.len());
            if waits || self.must_reach(proto, &kept.headers) {
                self.target.kept.push_front(kept);
                return;
            }
            self.target.kept_bytes -= kept.payload.len();
            self.meta = Some(kept.meta);
            proto.handle_packet(now, &kept.headers, kept.payload.as_slice().into(), self);
            self.meta = None;
        }
    }

    /// Where an SRQ is, and from here on the one at hand.
    pub(super) fn place_of(&mut self, srqn: u32) -> SrqPlace {
        self.target.selected = self.qp.srq_of_domain(srqn);
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

    pub(super) fn give_away(
        &mut self,
        headers: &Headers,
        payload: &RxPayload<'_>,
        run: u32,
    ) -> Result<(), DelegateError> {
        let Shared { reached, elsewhere, away, .. } = &mut *self.target;
        let slot = elsewhere.map(slot_of);
        let reached = reached.iter().find(|reached| Some(reached.slot) == slot).ok_or(DelegateError::Gone)?;
        reached.execute(headers, payload, run)?;
        away.connection = reached.number();
        away.lens.push_back(payload.len());
        away.bytes += payload.len();
        Ok(())
    }

    /// So many requests have come back from a connection, or fewer: returns how many.
    pub(crate) fn came_back(&mut self, number: u64, count: u32) -> usize {
        let away = &mut self.target.away;
        if away.connection != number {
            return 0;
        }
        let count = away.lens.len().min(count as usize);
        away.bytes -= away.lens.drain(..count).sum::<usize>();
        count
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
        let given = self.target.away.connection == number;
        if given {
            self.target.away = Away::default();
        }
        given
    }
}

impl Qp {
    /// Connects with the process that has an SRQ which a packet has named, and goes on with what has waited for that.
    pub(crate) fn reach(self: &Arc<Self>, work: &mut Work, srqn: u32) {
        let slot = slot_of(srqn);
        let known = |inner: &super::Inner| inner.target.reached.iter().any(|reached| reached.slot == slot);
        let Some(domain) = self.domain.as_ref().filter(|_| !known(&self.inner.lock())) else { return };
        let reached = self.adapter.reach(self, domain, srqn);
        let now = crate::clock::now();
        self.work(work, now, |proto, env| {
            match reached {
                Ok(reached) => env.target.reached.push(reached),
                Err(Unreached::No) => env.target.tried = Some(slot),
                // What waits comes again, and then it is asked again.
                Err(Unreached::Silent) => env.target.forget_kept(),
            }
            env.handle_kept(proto, now);
            env.target.tried = None;
        });
    }

    /// Requests that wait are lost, as on a wire: the initiator sends them again.
    pub(crate) fn forget_kept(&self) {
        self.inner.lock().target.forget_kept();
    }

    /// The domain has a file, by which other processes may have it too.
    fn has_shared_domain(&self) -> bool {
        self.domain.as_ref().is_some_and(|domain| domain.file.is_some())
    }

    /// The SRQ of this process with a number, if it is of the target's domain.
    pub(crate) fn srq_of_domain(&self, srqn: u32) -> Option<Arc<crate::Srq>> {
        self.domain.as_ref().and_then(|domain| self.adapter.srq(srqn, domain))
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
        self.adapter.with_work(|work| {
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
        self.adapter.with_work(|work| {
            self.work(work, now, |proto, env| proto.set_state(QpState::Err, now, env));
        });
    }

    /// Forgets what waits and lets other processes go: the QP goes back to RESET, or away.
    pub(super) fn let_go(&self, inner: &mut super::Inner) {
        inner.target.forget_kept();
        inner.target.away = Away::default();
        (inner.target.fetching, inner.target.fetched) = (None, None);
        for reached in inner.target.reached.drain(..) {
            self.adapter.xrc.let_go(&reached);
        }
    }
}
