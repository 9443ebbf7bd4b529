//! The responder of RC and XRC: takes requests in PSN order, executes them and decides what is answered (IBTA 9.7.4,
//! 9.9.3, annex A14).

use crate::SrqPlace;
use crate::state::{MessageProgress, NakReason, Range};
use crate::{Cause, Env, Payload, PlaceError, QpEvent, QpProtocol, RequestedAccess, psn};
use ferroce_types::{Access, AtomicOp, Instant, Placement, RemoteAccess, WcStatus};
use ferroce_wire::{Feth, Headers, NakCode, Opcode, Operation, Reth, Syndrome};

impl<A: Clone> QpProtocol<A> {
    /// Takes a request packet of an RC QP or an XRC target.
    pub(crate) fn handle_request<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) {
        self.note_established(env);
        let before = self.resp.expected;
        self.take_request(now, headers, payload, env);
        if !self.resp.kept.numbers.is_empty() {
            self.take_kept(now, (before, payload.len()), env);
        }
    }

    /// Takes a request packet, which may be one that was kept.
    pub(crate) fn take_request<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) {
        let next = self.next_request();
        let number = psn::extend(next, headers.bth.psn);
        if number > next {
            self.note_gap((now, number), headers, payload, env);
            return;
        }
        if number < next {
            if !self.is_under_way(number, headers.bth.ack_request) {
                self.handle_duplicate(number, headers, env);
            }
            return;
        }
        if self.is_delegating() && !self.can_follow(headers) {
            // Its turn comes later: the caller keeps it, or it is sent again.
            return;
        }
        match self.execute_request(headers, payload, env) {
            Ok(psns) => self.accept(psns, headers.bth.ack_request && !wants_data(headers)),
            Err(NakReason::Delegated) => {}
            Err(_) if payload.is_lost() => self.lose_expected(),
            Err(NakReason::NotReady) => self.not_ready_for(number, env),
            // Dropped: the requests before it have to end first, and the initiator sends it again.
            Err(_) if self.is_delegating() => {}
            Err(refusal) => {
                let cause = refusal.cause(self.asked(headers, payload.len()));
                self.refuse(refusal, number, cause, env);
            }
        }
    }

    /// The expected request is done.
    pub(crate) fn accept(&mut self, psns: u32, acknowledge: bool) {
        self.resp.gap = None;
        self.resp.waits_for_receive = false;
        self.resp.expected += u64::from(psns);
        self.answers.withdraw_nak();
        if acknowledge {
            self.answers.owe_ack();
        }
    }

    /// The expected request has come without its payload, and nothing of it was executed: the peer sends it again, and all that follows.
    fn lose_expected(&mut self) {
        self.resp.gap = Some(self.resp.expected);
        self.resp.waits_for_receive = false;
        self.owe_sequence_nak();
    }

    /// The expected request has found no receive.
    pub(crate) fn not_ready_for<E: Env<Address = A>>(&mut self, number: u64, env: &mut E) {
        self.counters.rnr_naks_sent += 1;
        // After a pause the requester sends everything from here on again.
        self.forget_kept(env);
        self.resp.gap = Some(number);
        self.resp.waits_for_receive = true;
        let reason = self.remark(Cause::NoReceive { first: self.resp.msn() == 0 }, env);
        self.answers.owe_nak(Syndrome::RnrNak { timer: self.params.min_rnr_timer }, number, reason);
    }

    /// A packet beyond the expected one: one sequence NAK until the gap is filled (IBTA 9.7.5). When packets that
    /// were already seen beyond the gap come again and ask for an ACK, that NAK, or what it asked for, was lost: the
    /// NAK is repeated, where the specification would have the requester run into its timeout. Where packets are kept, the NAK with its
    /// report is also repeated when a packet shows another gap or asks for an ACK, and packets have come that are as long as both.
    fn note_gap<E: Env<Address = A>>(
        &mut self,
        (now, number): (Instant, u64),
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) {
        self.counters.out_of_order += 1;
        let ack_request = headers.bth.ack_request;
        let shows_another = self.keep((now, number), headers, payload, env);
        let kept = &mut self.resp.kept;
        kept.note_packet(payload.len());
        let reports = (shows_another || ack_request && !kept.numbers.is_empty()) && kept.may_report();
        match &mut self.resp.gap {
            Some(_) if reports => {}
            Some(highest) if number > *highest => {
                *highest = number;
                return;
            }
            Some(_) if !ack_request => return,
            gap => *gap = Some(number),
        }
        self.resp.waits_for_receive = false;
        self.owe_sequence_nak();
    }

    /// Everything before the expected packet is done, and it hasn't come: a sequence NAK is owed.
    pub(crate) fn owe_nak_of_gap(&mut self) {
        self.counters.seq_naks_sent += 1;
        self.answers.owe_nak(Syndrome::Nak(NakCode::PsnSequenceError), self.resp.expected, 0);
    }

    /// A packet that was executed before (IBTA 9.7.5). One from before the first PSN never was: an answer would have the
    /// peer take it for done, whose `sq_psn` is behind this side's `rq_psn`.
    fn handle_duplicate<E: Env<Address = A>>(&mut self, number: u64, headers: &Headers, env: &mut E) {
        self.counters.duplicates += 1;
        if number < self.resp.first {
            self.counters.never_executed += 1;
            if self.resp.expected == self.resp.first {
                self.remark_stranger(headers.bth.psn, env);
            }
            return;
        }
        let limit = 2 * usize::from(self.params.max_dest_rd_atomic);
        match (headers.bth.opcode.operation, headers.reth) {
            (Operation::ReadRequest, Some(reth)) => {
                let psns = reth.dma_len.div_ceil(self.mtu()).max(1);
                if self.params.access.remote_read && number + u64::from(psns) <= self.resp.expected {
                    let range = Range { rest: reth, srqn: headers.xrc_srqn, ends: None };
                    self.answers.read_again(number, psns, range, self.resp.msn(), limit);
                }
            }
            (Operation::CompareSwap | Operation::FetchAdd, _) => {
                self.answers.atomic_again(number, self.resp.msn(), limit);
            }
            (Operation::AtomicWrite | Operation::Flush, _) => {
                self.answers.read_again(number, 1, Range::NOTHING, self.resp.msn(), limit);
            }
            _ => self.answers.owe_ack_again(number),
        }
    }

    /// Executes the expected request and returns how many PSNs it takes.
    pub(crate) fn execute_request<E: Env<Address = A>>(
        &mut self,
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) -> Result<u32, NakReason> {
        let opcode = headers.bth.opcode;
        let place = self.select_srq(headers.xrc_srqn, env)?;
        if place == SrqPlace::OtherProcess && opcode.operation != Operation::ReadRequest {
            // The other process doesn't know what the program has changed of them.
            if !is_allowed(self.params.access, opcode) {
                return Err(NakReason::QpRights);
            }
            return Err(self.delegate(headers, payload, env));
        }
        if self.is_delegating() {
            // This is for the caller to see to.
            return Err(NakReason::Delegated);
        }
        if opcode.is_send() {
            self.execute_send(headers, payload, env)?;
            return Ok(1);
        }
        if opcode.is_write() {
            self.execute_write(headers, payload, env)?;
            return Ok(1);
        }
        if self.resp.message != MessageProgress::None || !(payload.is_empty() || opcode.has_payload()) {
            return Err(NakReason::Invalid);
        }
        if self.answers.outstanding() >= usize::from(self.params.max_dest_rd_atomic) {
            return Err(NakReason::Depth);
        }
        match (opcode.operation, headers.reth, headers.atomic) {
            (Operation::ReadRequest, Some(reth), _) => {
                self.execute_read(reth, headers.xrc_srqn, headers.bth.ack_request, env)
            }
            (Operation::CompareSwap, _, Some(atomic)) => {
                let op = AtomicOp::CompareSwap { compare: atomic.compare, swap: atomic.swap_or_add };
                self.execute_atomic(atomic.rkey, atomic.va, op, env)
            }
            (Operation::FetchAdd, _, Some(atomic)) => self.execute_atomic(
                atomic.rkey,
                atomic.va,
                AtomicOp::FetchAdd { add: atomic.swap_or_add },
                env,
            ),
            (Operation::AtomicWrite, Some(reth), _) => self.execute_atomic_write(reth, payload, env),
            (Operation::Flush, Some(reth), _) => self.execute_flush(reth, headers.flush, env),
            _ => Err(NakReason::Invalid),
        }
    }

    /// XRC: every request names an SRQ of the target's domain, and all packets of a message the same one.
    fn select_srq<E: Env<Address = A>>(
        &mut self,
        srqn: Option<u32>,
        env: &mut E,
    ) -> Result<SrqPlace, NakReason> {
        let Some(number) = srqn else { return Ok(SrqPlace::Here) };
        if self.is_midway() && srqn != self.resp.srqn {
            return Err(NakReason::Invalid);
        }
        let place = env.select_srq(number);
        if place == SrqPlace::Nowhere {
            return Err(NakReason::NoSrq);
        }
        self.resp.srqn = srqn;
        Ok(place)
    }

    fn execute_read<E: Env<Address = A>>(
        &mut self,
        reth: Reth,
        srqn: Option<u32>,
        ends: bool,
        env: &mut E,
    ) -> Result<u32, NakReason> {
        if !self.params.access.remote_read {
            return Err(NakReason::QpRights);
        }
        if u64::from(reth.dma_len) > crate::MAX_MESSAGE {
            return Err(NakReason::Invalid);
        }
        if reth.dma_len > 0 {
            env.check_remote(reth.rkey, reth.va, u64::from(reth.dma_len), RemoteAccess::Read)?;
        }
        let psns = reth.dma_len.div_ceil(self.mtu()).max(1);
        self.resp.count_message(u64::from(reth.dma_len));
        let range = Range { rest: reth, srqn, ends: Some(ends) };
        self.answers.read(self.resp.expected, psns, range, self.resp.msn());
        Ok(psns)
    }

    fn execute_atomic<E: Env<Address = A>>(
        &mut self,
        rkey: u32,
        va: u64,
        op: AtomicOp,
        env: &mut E,
    ) -> Result<u32, NakReason> {
        if !self.params.access.remote_atomic {
            return Err(NakReason::QpRights);
        }
        if !va.is_multiple_of(8) {
            return Err(NakReason::Misaligned);
        }
        let original = env.atomic_remote(rkey, va, op)?;
        self.resp.count_message(8);
        let keep = usize::from(self.params.max_dest_rd_atomic);
        self.answers.atomic(self.resp.expected, original, self.resp.msn(), keep);
        Ok(1)
    }

    /// Annex A19.4.2: exactly 8 bytes, aligned.
    fn execute_atomic_write<E: Env<Address = A>>(
        &mut self,
        reth: Reth,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) -> Result<u32, NakReason> {
        if !self.params.access.remote_write {
            return Err(NakReason::QpRights);
        }
        if reth.dma_len != 8 || payload.len() != 8 {
            return Err(NakReason::Invalid);
        }
        if !reth.va.is_multiple_of(8) {
            return Err(NakReason::Misaligned);
        }
        let mut bytes = [0; 8];
        payload.copy(&mut bytes).map_err(|PlaceError| NakReason::Invalid)?;
        env.atomic_remote(reth.rkey, reth.va, AtomicOp::Store { value: u64::from_ne_bytes(bytes) })?;
        Ok(self.answer_with_nothing(8))
    }

    /// Annex A19.4.1. What was written before has been placed before this packet is looked at.
    fn execute_flush<E: Env<Address = A>>(
        &mut self,
        reth: Reth,
        feth: Option<Feth>,
        env: &mut E,
    ) -> Result<u32, NakReason> {
        let feth = feth.ok_or(NakReason::Invalid)?;
        let placement = Placement::from_bits(feth.placement).ok_or(NakReason::Invalid)?;
        if !placement.is_within(self.params.access.flush) {
            return Err(NakReason::QpRights);
        }
        let range = match feth.selectivity {
            0 => Some((reth.va, u64::from(reth.dma_len))),
            1 => None,
            _ => return Err(NakReason::Invalid),
        };
        env.flush_remote(reth.rkey, range, placement)?;
        Ok(self.answer_with_nothing(0))
    }

    /// The expected request is answered with a READ response without bytes; it takes one PSN.
    fn answer_with_nothing(&mut self, bytes: u64) -> u32 {
        self.resp.count_message(bytes);
        self.answers.read(self.resp.expected, 1, Range::NOTHING, self.resp.msn());
        1
    }

    /// The fields of a request that is being refused: of a WRITE in several packets, address, key and length of its first packet.
    #[cold]
    fn asked(&self, headers: &Headers, payload: usize) -> RequestedAccess {
        let asked = RequestedAccess::of(headers, payload);
        match self.resp.message {
            MessageProgress::Write { va, rkey, len, .. } => {
                RequestedAccess { va, rkey, len: u64::from(len), ..asked }
            }
            MessageProgress::Send { done } => RequestedAccess { len: done + asked.len, ..asked },
            _ => asked,
        }
    }

    /// Reports to the program why its QP, which isn't in ERR, goes there: in the completion of the receive that the request used,
    /// else by an event (IBTA 9.9.3, classes A and C).
    pub(crate) fn report_refusal<E: Env<Address = A>>(&mut self, refusal: NakReason, env: &mut E) {
        let status = match refusal {
            NakReason::TooLong => WcStatus::LocLenErr,
            NakReason::BadReceive => WcStatus::LocProtErr,
            // Of an RDMA WRITE with immediate: the memory that isn't to be written is on this side (IBTA 11.6.2).
            NakReason::Access | NakReason::Operational => WcStatus::LocAccessErr,
            NakReason::Invalidation => WcStatus::RemAccessErr,
            _ => WcStatus::RemInvReqErr,
        };
        let remote_memory = matches!(refusal, NakReason::Access | NakReason::Operational);
        // A SEND in progress isn't affected by the memory access of a READ before it: its receive is flushed.
        let concerned = !(remote_memory && matches!(self.resp.message, MessageProgress::Send { .. }));
        if concerned && let Some(held) = self.resp.take_held() {
            self.complete_held(self.recv_completion(held.wr_id, status), env);
            return;
        }
        env.event(match refusal {
            NakReason::Access | NakReason::Invalidation | NakReason::Operational | NakReason::NoSrq => {
                QpEvent::AccessError
            }
            _ => QpEvent::RequestError,
        });
    }
}

/// The request is answered with data rather than an ACK.
const fn wants_data(headers: &Headers) -> bool {
    headers.bth.opcode.is_atomic()
        || matches!(
            headers.bth.opcode.operation,
            Operation::ReadRequest | Operation::AtomicWrite | Operation::Flush
        )
}

/// Whether a peer with these rights may have another process execute such a request.
const fn is_allowed(access: Access, opcode: Opcode) -> bool {
    match opcode.operation {
        Operation::AtomicWrite => access.remote_write,
        _ if opcode.is_write() => access.remote_write,
        _ if opcode.is_atomic() => access.remote_atomic,
        _ => true,
    }
}
