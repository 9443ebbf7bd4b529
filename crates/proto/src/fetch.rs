//! The short way of a fetch: a READ of one packet or an atomic, which is one packet. Its answer is one packet too, or it is in the room of
//! the fetch when the peer has executed it.
//!
//! As with SENDs ([`crate::PlainSend`]), a function either does all that the general way would do, or nothing, and returns that.

use crate::state::{Issuer, charge};
use crate::{Data, Env, MAX_MESSAGE, QpProtocol, SendEnds, SendOp, SendRequest, psn};
use ferroce_types::{AtomicOp, Instant, QpState, Sge, WcStatus};
use ferroce_wire::{Aeth, AtomicEth, Bth, Headers, Operation, Reth, Syndrome};

/// A fetch that has come in one packet.
#[derive(Clone, Copy, Debug)]
pub enum FetchOp {
    /// READ.
    Read {
        /// Address.
        va: u64,
        /// Key.
        rkey: u32,
        /// Bytes.
        len: u32,
    },
    /// An atomic on eight bytes.
    Atomic {
        /// Address.
        va: u64,
        /// Key.
        rkey: u32,
        /// What is done.
        op: AtomicOp,
    },
}

impl FetchOp {
    /// What a READ request asks for.
    #[must_use]
    #[inline]
    pub const fn read(reth: &Reth) -> Self {
        let Reth { va, rkey, dma_len: len } = *reth;
        Self::Read { va, rkey, len }
    }

    /// What an atomic asks for; `None`: this operation isn't one on eight bytes.
    #[must_use]
    #[inline]
    pub const fn atomic(operation: Operation, atomic: &AtomicEth) -> Option<Self> {
        let AtomicEth { va, rkey, swap_or_add, compare } = *atomic;
        let op = match operation {
            Operation::CompareSwap => AtomicOp::CompareSwap { compare, swap: swap_or_add },
            Operation::FetchAdd => AtomicOp::FetchAdd { add: swap_or_add },
            _ => return None,
        };
        Some(Self::Atomic { va, rkey, op })
    }

    /// Bytes of the answer.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> u32 {
        match self {
            Self::Read { len, .. } => *len,
            Self::Atomic { .. } => 8,
        }
    }

    /// No byte at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<A: Clone> QpProtocol<A> {
    /// The PSN of a fetch if it may leave at once, after all that was posted before. While an answer that was sent as a packet is under way,
    /// the peer leaves the fetch to the general rules, so that its answer doesn't overtake that one. `window`: [`Env::window`].
    #[must_use]
    #[inline]
    pub fn fetch_psn(&self, fetch: &SendRequest<'_, A>, window: impl FnOnce() -> u32) -> Option<u32> {
        let req = &self.req;
        let len = fetch.fetches_to()?.length;
        let fits = if matches!(fetch.op, SendOp::Read { .. }) {
            (1..=self.mtu()).contains(&len)
        } else {
            (8..=MAX_MESSAGE).contains(&u64::from(len))
        };
        let ready = fits
            && self.may_send_at_once()
            && self.has_window_at_once(len.min(self.mtu()).into(), window)
            && req.reads_out() < usize::from(self.params.max_rd_atomic)
            && !(fetch.fence && req.unfinished_reads > 0);
        ready.then(|| psn::wire(req.next))
    }

    /// RDMA WRITEs and READs are outstanding, and nothing else: when they have ended, the next of them may be carried out without
    /// packets.
    #[must_use]
    #[inline]
    pub fn is_behind_one_sided(&self) -> bool {
        self.req.is_behind_one_sided()
    }

    /// The fetch for which [`QpProtocol::fetch_psn`] gave the PSN has left. Returns when [`QpProtocol::handle_timeout`] wants to be called for
    /// it, unless that was to be called earlier anyway. Where nothing is lost, `now` is asked only if no other request is waited for.
    #[inline]
    pub fn fetch_sent(
        &mut self,
        now: impl FnOnce() -> Instant,
        fetch: &SendRequest<'_, A>,
    ) -> Option<Instant> {
        let (mtu, psn) = (self.mtu(), self.req.next);
        let wqe = self.sq.push(fetch, (1, psn), Issuer::Program);
        let cost = charge(wqe, 0, 1, mtu);
        self.counters.requests_sent += 1;
        self.req.sent_fetch(cost, matches!(fetch.op, SendOp::Read { .. }));
        self.start_timers(now, psn)
    }

    /// Whether a fetch that has come with this PSN and partition key is as usual: it is the next, its QP permits it, and it may be
    /// executed and answered at once.
    #[must_use]
    #[inline]
    pub fn expects_fetch(&self, psn: u32, pkey: u16, op: &FetchOp) -> bool {
        let permitted = match *op {
            FetchOp::Read { len, .. } => self.params.access.remote_read && (1..=self.mtu()).contains(&len),
            FetchOp::Atomic { va, .. } => self.params.access.remote_atomic && va.is_multiple_of(8),
        };
        self.expects(psn, pkey)
            && permitted
            && self.answers.is_empty()
            && self.params.rate.is_none()
            && self.params.max_dest_rd_atomic > 0
    }

    /// The headers of the packet that answers a fetch that was expected, before [`QpProtocol::fetch_answered`]. `original`: what an atomic
    /// has found.
    #[must_use]
    #[inline]
    pub fn fetch_response(&self, op: &FetchOp, original: u64) -> Headers {
        let (operation, atomic_ack) = match op {
            FetchOp::Read { .. } => (Operation::ReadResponseOnly, None),
            FetchOp::Atomic { .. } => (Operation::AtomicAcknowledge, Some(original)),
        };
        let aeth = Aeth { syndrome: Syndrome::ACK_UNLIMITED.to_u8(), msn: self.resp.msn_after_next() };
        let bth = self.bth(operation, psn::wire(self.resp.expected));
        Headers { aeth: Some(aeth), atomic_ack, ..Headers::new(bth) }
    }

    /// A fetch that was expected has been executed, and its answer is there. `original`: what an atomic has found.
    #[inline]
    pub fn fetch_answered(&mut self, op: &FetchOp, original: u64) {
        self.counters.packets_received += 1;
        self.counters.responses_sent += 1;
        self.resp.count_message(u64::from(op.len()));
        if matches!(op, FetchOp::Atomic { .. }) {
            let keep = usize::from(self.params.max_dest_rd_atomic);
            self.answers.remember(self.resp.expected, original, keep);
        }
        self.accept(1, false);
    }

    /// The peer has executed the fetch with this PSN, for which [`QpProtocol::fetch_psn`] gave it, and everything before. If that is the oldest
    /// outstanding request, has `place` copy the answer of `len` bytes to the element, and gives the request to `ended`, with its completion if
    /// it is signaled. `now` is called only if other packets are outstanding. False, also if `place` returns that: call
    /// [`QpProtocol::fetched`].
    #[inline]
    pub fn take_fetched(
        &mut self,
        now: impl FnOnce() -> Instant,
        (psn, len): (u32, usize),
        place: impl FnOnce(&Sge) -> bool,
        ends: &mut impl SendEnds<Address = A>,
    ) -> bool {
        let (req, Some(wqe)) = (&self.req, self.sq.front()) else { return false };
        let fits = wqe.packets == 1
            && match wqe.wr.op {
                SendOp::Read { .. } => len == wqe.len as usize,
                _ => wqe.is_atomic(),
            };
        let awaited = self.state == QpState::Rts
            && fits
            && req.error.is_none()
            && req.recovery.is_none()
            && wqe.first == req.una
            && req.una < req.max
            && psn::wire(req.una) == psn
            && self.sq.head() < req.started
            && wqe.issuer == Issuer::Program;
        let Data::Sges(sges) = &wqe.wr.data else { return false };
        let [sge] = &sges[..] else { return false };
        if !awaited || !place(sge) {
            return false;
        }
        self.counters.packets_received += 1;
        let bytes = charge(wqe, 0, 1, self.params.path_mtu.max(1));
        self.req.una += 1;
        self.req.unfinished_reads = self.req.unfinished_reads.saturating_sub(1);
        self.end_front(WcStatus::Success, ends);
        // Without outstanding packets and without a sample, the time isn't used.
        let quiet = self.req.una == self.req.max && self.req.sample.is_none();
        self.moved(if quiet { Instant::default() } else { now() }, bytes);
        true
    }

    /// As [`QpProtocol::take_fetched`], for an answer that has come as a packet with this BTH, and that acknowledges. False: the caller
    /// takes the general way.
    #[inline]
    pub fn take_answer(
        &mut self,
        now: Instant,
        bth: &Bth,
        len: usize,
        place: impl FnOnce(&Sge) -> bool,
        ends: &mut impl SendEnds<Address = A>,
    ) -> bool {
        let is_result = bth.opcode.operation == Operation::AtomicAcknowledge;
        bth.pkey == self.params.pkey
            && self.sq.front().is_some_and(|wqe| wqe.is_atomic() == is_result)
            && self.take_fetched(|| now, (bth.psn, len), place, ends)
    }

    /// As [`QpProtocol::take_fetched`], whatever the state: as an answer that came as a packet.
    pub fn fetched<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        psn: u32,
        answer: &E::Payload<'_>,
        env: &mut E,
    ) {
        self.counters.packets_received += 1;
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.counters.wrong_state += 1;
            return;
        }
        let number = psn::extend(self.req.una, psn);
        if !(self.req.una..self.req.max).contains(&number) {
            self.counters.stale_responses += 1;
            return;
        }
        if self.acknowledge_before(now, number, env) {
            self.take_data(now, answer, true, env);
        }
        self.settle(env);
    }
}
