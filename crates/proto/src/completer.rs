//! The completer of RC and XRC: what responses mean for the requests that wait for them (IBTA 9.7.5, 9.7.6).

use crate::rnr_delay;
use crate::state::{GapReport, charge};
use crate::{Cause, Data, Env, Payload, QpProtocol, SendOp, psn};
use ferroce_types::{Instant, WcStatus};
use ferroce_wire::{Headers, NakCode, Operation, Syndrome};

/// How a request ends that is refused for good.
const fn refusal(code: NakCode) -> Option<WcStatus> {
    match code {
        NakCode::InvalidRequest => Some(WcStatus::RemInvReqErr),
        NakCode::RemoteAccessError => Some(WcStatus::RemAccessErr),
        NakCode::RemoteOperationalError => Some(WcStatus::RemOpErr),
        // Sent again, and of reliable datagrams only.
        NakCode::PsnSequenceError | NakCode::InvalidRdRequest => None,
    }
}

impl<A: Clone> QpProtocol<A> {
    /// Takes an ACK, a NAK, a READ response or the result of an atomic.
    pub(crate) fn handle_response<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) {
        let number = psn::extend(self.req.una, headers.bth.psn);
        let syndrome = headers.aeth.map(|aeth| Syndrome::from_u8(aeth.syndrome));
        if number < self.req.una
            && headers.bth.opcode.operation == Operation::Acknowledge
            && let Some(Syndrome::Nak(code)) = syndrome
            && let Some(status) = refusal(code)
            && self.sq.front().is_some_and(|wqe| wqe.wants_data() && wqe.first <= number)
        {
            // NAK for a READ restarted by a duplicate request, at a PSN before `una`.
            if let Some(told) = self.told(number, payload) {
                self.fail_front(Cause::Refused { status, told }, env);
                self.settle(env);
            }
            return;
        }
        if number < self.req.una || number >= self.req.max {
            self.counters.stale_responses += 1;
            if matches!(syndrome, Some(Syndrome::Ack { .. })) {
                self.req.answered_again(number);
            }
            if number < self.req.una && syndrome == Some(Syndrome::Nak(NakCode::PsnSequenceError)) {
                self.req.asked_for = Some(headers.bth.psn);
            }
            return;
        }
        match (headers.bth.opcode.operation, syndrome) {
            (Operation::Acknowledge, Some(Syndrome::Ack { .. })) => {
                self.acknowledge(now, number + 1, env);
                if self.req.una <= number {
                    self.implied_nak(now);
                }
            }
            (Operation::Acknowledge, Some(Syndrome::RnrNak { timer })) => {
                let Some(told) = self.told(number, payload) else { return };
                if self.acknowledge_before(now, number, env) {
                    self.not_ready(now, timer, told, env);
                }
            }
            (Operation::Acknowledge, Some(Syndrome::Nak(NakCode::PsnSequenceError))) => {
                if self.acknowledge_before(now, number, env) {
                    self.sequence_error(now, GapReport::read(payload).as_ref(), env);
                }
            }
            (Operation::Acknowledge, Some(Syndrome::Nak(code))) => {
                let Some(told) = self.told(number, payload) else { return };
                self.handle_nak(now, number, (code, told), env);
            }
            (Operation::AtomicAcknowledge, Some(Syndrome::Ack { .. })) => {
                if self.acknowledge_before(now, number, env) {
                    self.take_atomic(now, headers.atomic_ack.unwrap_or(0), env);
                }
            }
            (
                Operation::ReadResponseFirst
                | Operation::ReadResponseMiddle
                | Operation::ReadResponseLast
                | Operation::ReadResponseOnly,
                None | Some(Syndrome::Ack { .. }),
            ) => {
                if self.acknowledge_before(now, number, env) {
                    self.take_read(now, headers, payload, env);
                }
            }
            _ => self.counters.malformed += 1,
        }
        self.settle(env);
    }

    /// Everything before `end` has arrived: retires requests up to there, but none whose data is still missing.
    pub(crate) fn acknowledge<E: Env<Address = A>>(&mut self, now: Instant, end: u64, env: &mut E) {
        let before = self.req.una;
        let mtu = self.mtu();
        // What the peer had kept counted when it was reported.
        let counted = if self.req.recovery.is_some() { self.bytes_off_network(end) } else { 0 };
        let mut bytes = 0;
        while self.sq.head() < self.req.started
            && let Some(wqe) = self.sq.front()
        {
            if wqe.wants_data() || end <= self.req.una {
                break;
            }
            let upto = wqe.end().min(end);
            bytes += charge(wqe, (self.req.una - wqe.first) as u32, (upto - wqe.first) as u32, mtu);
            self.req.una = upto;
            if upto < wqe.end() {
                break;
            }
            self.complete_front(WcStatus::Success, env);
        }
        if self.req.una > before {
            self.moved(now, bytes.saturating_sub(counted));
        }
    }

    /// `una` has moved over so many bytes that were in flight: timers, window, and the cursor if it lags behind.
    #[inline]
    pub(crate) fn moved(&mut self, now: Instant, bytes: u64) {
        self.req.progress(now, bytes, &self.params);
        if self.req.next < self.req.una {
            let back = self.req.went_back;
            self.go_back(now);
            self.req.went_back = back;
        }
    }

    /// As [`Self::acknowledge`]; returns whether `number` is now the oldest that isn't acknowledged. If it isn't, a
    /// READ or atomic before it was answered and the answer lost.
    pub(crate) fn acknowledge_before<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        number: u64,
        env: &mut E,
    ) -> bool {
        self.acknowledge(now, number, env);
        if self.req.una == number {
            return true;
        }
        if self.req.una < number {
            self.implied_nak(now);
        }
        false
    }

    /// A response jumped over an unanswered READ or atomic (IBTA 9.7.5): asks again, once per round trip. Only the timers count
    /// retries here: responses that arrive show that the peer lives.
    fn implied_nak(&mut self, now: Instant) {
        if self.went_back_within(now, 2) {
            return;
        }
        self.counters.implied_naks += 1;
        // The round trip of a READ includes the transfer of its answer, so it doesn't show a queue.
        self.req.window.congested(now, self.mtu());
        self.go_back(now);
    }

    /// Was the oldest unacknowledged packet sent again less than `halves` half round trips ago?
    pub(crate) fn went_back_within(&self, now: Instant, halves: u32) -> bool {
        self.req.went_back.is_some_and(|(una, at)| {
            una == self.req.una && now.since(at) < self.req.window.rtt() * halves / 2
        })
    }

    fn handle_nak<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        number: u64,
        (code, told): (NakCode, u16),
        env: &mut E,
    ) {
        let Some(status) = refusal(code) else {
            self.counters.malformed += 1;
            return;
        };
        let cause = Cause::Refused { status, told };
        self.acknowledge(now, number, env);
        // A READ may be refused in the middle of its answer, of which a part may have been lost.
        if self.sq.front().is_some_and(|wqe| wqe.first <= number && number < wqe.end()) {
            self.fail_front(cause, env);
        } else {
            self.remember_refusal(number, cause);
            self.implied_nak(now);
        }
    }

    /// A refusal has come, but not the answer to a READ or atomic before it: the answer was lost, or it was overtaken. A responder
    /// sends nothing more after a refusal, so the refusal is kept until the requests before it have ended.
    fn remember_refusal(&mut self, psn: u64, cause: Cause) {
        let refused = (self.sq.head()..self.req.started)
            .find(|&number| self.sq.get(number).is_some_and(|wqe| (wqe.first..wqe.end()).contains(&psn)));
        if let Some(number) = refused
            && self.req.error.is_none_or(|(earlier, _)| number < earlier)
        {
            self.req.error = Some((number, cause));
        }
    }

    /// The responder has no receive for the oldest unacknowledged packet.
    fn not_ready<E: Env<Address = A>>(&mut self, now: Instant, timer: u8, told: u16, env: &mut E) {
        self.counters.rnr_naks += 1;
        if self.req.rnr_until.is_some() {
            return;
        }
        if self.params.rnr_retry != 7 {
            if self.req.rnr_retries == 0 {
                let tries = self.params.rnr_retry + 1;
                self.fail_front(Cause::NotReady { tries, timer, told }, env);
                return;
            }
            self.req.rnr_retries -= 1;
        }
        self.note_not_ready(now, told, env);
        // The packet got through: what the other counter counts hasn't happened.
        self.req.retries = self.params.retry_cnt;
        self.go_back(now);
        self.req.suspend(now.after(rnr_delay(timer)));
    }

    fn take_atomic<E: Env<Address = A>>(&mut self, now: Instant, original: u64, env: &mut E) {
        let Some(wqe) = self.sq.front().filter(|wqe| wqe.is_atomic()) else {
            self.counters.malformed += 1;
            return;
        };
        if let Data::Sges(sges) = &wqe.wr.data
            && env.place_bytes(sges, 0, &original.to_ne_bytes()).is_err()
        {
            self.fail_front(Cause::LocalMemory, env);
            return;
        }
        self.finish_data(now, true, env);
    }

    fn take_read<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) {
        if self.sq.front().is_some_and(|wqe| wqe.wants_data() && !wqe.is_atomic()) {
            self.take_data(now, payload, headers.bth.opcode.is_last() || headers.bth.opcode.is_only(), env);
        } else {
            self.counters.malformed += 1;
        }
    }

    /// The oldest PSN, of a READ or an atomic, was answered with these bytes. `ends`: no more follow.
    pub(crate) fn take_data<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        payload: &E::Payload<'_>,
        ends: bool,
        env: &mut E,
    ) {
        let mtu = self.mtu();
        let Some(wqe) = self.sq.front() else { return };
        let packet = (self.req.una - wqe.first) as u32;
        // An atomic write or a flush is answered like a READ of nothing.
        let (offset, bytes) = match wqe.wr.op {
            SendOp::Read { .. } => wqe.slice(packet, mtu),
            _ if wqe.is_atomic() => (0, 8),
            _ => (0, 0),
        };
        let last = packet + 1 == wqe.packets;
        // A long READ was asked for in pieces, each of which has its own "last": only the end must be one.
        if payload.len() as u64 != u64::from(bytes) || (last && !ends) {
            self.fail_front(Cause::BadResponse, env);
            return;
        }
        if let Data::Sges(sges) = &wqe.wr.data
            && bytes > 0
            && env.place(wqe.buffer(), sges, offset, payload, 0).is_err()
        {
            self.fail_front(Cause::LocalMemory, env);
            return;
        }
        self.finish_data(now, last, env);
    }

    /// The oldest PSN, of a READ or an atomic, was answered.
    fn finish_data<E: Env<Address = A>>(&mut self, now: Instant, last: bool, env: &mut E) {
        let mtu = self.mtu();
        let Some(wqe) = self.sq.front() else { return };
        let packet = (self.req.una - wqe.first) as u32;
        let bytes = charge(wqe, packet, packet + 1, mtu);
        self.req.una += 1;
        if last {
            self.req.unfinished_reads = self.req.unfinished_reads.saturating_sub(1);
            self.complete_front(WcStatus::Success, env);
        }
        self.moved(now, bytes);
    }
}
