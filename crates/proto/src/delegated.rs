//! An XRC target whose SRQ belongs to another process: requests are executed there, many outstanding at a time, and answered here
//! in order.
//!
//! The requests that are delegated between two refusals are a *run*. When the other process refuses a request, it drops the rest of
//! the run: the initiator sends those again.
//!
//! A process that gives no result for long may be stopped. On a wire the initiator is asked for time then, by an RNR NAK: its QP doesn't fail
//! as if no peer were there. What the process has been given stays with it, so a request that comes again is executed once.

use crate::state::{Answer, DelegatedRequest, MessageProgress, NakReason, ends};
use crate::{Cause, DelegateError, Env, Executed, Payload, PayloadSource, QpProtocol, psn};
use core::time::Duration;
use ferroce_types::{Instant, QpState};
use ferroce_wire::{Aeth, Headers, NakCode, Operation, Syndrome};

/// A process without a result for this long counts as silent. Eight timeouts of an initiator, as `retry_cnt` 7 allows, take longer, however
/// short they are.
const SILENCE: Duration = Duration::from_millis(50);
/// The shortest time between two RNR NAKs: the first may have been lost.
const BETWEEN: Duration = Duration::from_millis(10);
/// Code 0 is the longest pause, 0.66 s: an initiator that repeats a request n times only gives up after n of them.
const PAUSE: Syndrome = Syndrome::RnrNak { timer: 0 };

impl<A: Clone> QpProtocol<A> {
    /// Another process is executing requests. Until [`QpProtocol::executed`] was called for all of them, the caller holds back requests
    /// that can't follow ([`QpProtocol::can_follow`]), and requests for an SRQ of a third process.
    #[must_use]
    pub fn is_delegating(&self) -> bool {
        !self.resp.delegated.is_empty()
    }

    /// May this request be delegated while another process is executing others? Not a READ, which is answered here, nor a request
    /// that is refused here, since a refusal acknowledges everything before it.
    #[must_use]
    pub fn can_follow(&self, headers: &Headers) -> bool {
        let opcode = headers.bth.opcode;
        let atomics = self.answers.outstanding() + self.resp.delegated.atomics();
        (opcode.is_send()
            || opcode.is_write()
            || opcode.is_atomic() && atomics < usize::from(self.params.max_dest_rd_atomic))
            && headers.xrc_srqn.is_some()
            && (headers.xrc_srqn == self.resp.srqn || !self.is_midway())
    }

    /// A message has begun and isn't complete.
    pub(crate) fn is_midway(&self) -> bool {
        let last = self.resp.delegated.requests.back();
        last.map_or(self.resp.message != MessageProgress::None || self.resp.held.is_some(), |last| !last.ends)
    }

    /// How many requests are being executed by another process, and the bytes of their payloads.
    #[must_use]
    pub fn delegated(&self) -> (usize, usize) {
        (self.resp.delegated.requests.len(), self.resp.delegated.bytes)
    }

    /// The extended PSN of the next request that hasn't come.
    pub(crate) fn next_request(&self) -> u64 {
        self.resp.expected + self.resp.delegated.len()
    }

    /// Delegates the expected request.
    pub(crate) fn delegate<E: Env<Address = A>>(
        &mut self,
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) -> NakReason {
        let opcode = headers.bth.opcode;
        let atomic = opcode.is_atomic();
        if atomic && !self.can_follow(headers) {
            return NakReason::Invalid;
        }
        match env.delegate(headers, payload, self.resp.delegated.run) {
            Ok(()) => {}
            Err(DelegateError::Full) => return NakReason::Delegated,
            Err(DelegateError::Gone) => return NakReason::Operational,
        }
        let bytes = payload.len();
        let request = DelegatedRequest {
            ack_request: headers.bth.ack_request,
            atomic,
            ends: atomic || ends(opcode),
            bytes,
        };
        self.resp.delegated.requests.push_back(request);
        self.resp.delegated.bytes += bytes;
        self.found_next();
        NakReason::Delegated
    }

    /// The packet that was missing has come.
    fn found_next(&mut self) {
        self.resp.gap = None;
        self.resp.delegated.nak = false;
        self.answers.withdraw_nak();
    }

    /// Packets after the next one have come. The sequence NAK leaves when everything before the gap is done.
    pub(crate) fn owe_sequence_nak(&mut self) {
        self.resp.delegated.nak = self.is_delegating();
        if !self.resp.delegated.nak {
            self.owe_nak_of_gap();
        }
    }

    /// A request that another process is executing has come again: it is answered when that process is done.
    pub(crate) fn is_under_way(&mut self, number: u64, ack_request: bool) -> bool {
        let Some(ahead) = number.checked_sub(self.resp.expected) else { return false };
        let Some(request) = self.resp.delegated.requests.get_mut(ahead as usize) else { return false };
        request.ack_request |= ack_request;
        true
    }

    /// A request packet with this PSN has come. If another process has been silent for long, and the initiator repeats its requests, asks it to
    /// pause, and to send again what isn't acknowledged. `waits`: a packet that the caller keeps, or an answer, needs something of that process.
    /// Returns whether it asks: then what the caller keeps comes again.
    pub fn ask_for_time<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        psn: u32,
        waits: bool,
        env: &mut E,
    ) -> bool {
        let runs = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if !runs || self.params.lossless || !(waits || self.is_delegating()) {
            self.note_result();
            return false;
        }
        let number = psn::extend(self.next_request(), psn);
        // The timer of a packet that comes for the first time has just begun.
        let comes_again = number < self.resp.delegated.come;
        self.resp.delegated.come = self.resp.delegated.come.max(number + 1).max(self.next_request());
        if now < *self.resp.delegated.patient_until.get_or_insert(now.after(SILENCE)) || !comes_again {
            return false;
        }
        // Everything before is acknowledged by that.
        let number = self.answers.queue.front().map_or(self.resp.expected, Answer::next);
        let mut headers = Headers::new(self.bth(Operation::Acknowledge, psn::wire(number)));
        headers.aeth = Some(Aeth { syndrome: PAUSE.to_u8(), msn: self.resp.msn() });
        let asks = env.transmit(&headers, PayloadSource::None, None).is_ok();
        if asks {
            self.resp.note_acknowledged(number);
            self.resp.delegated.patient_until = Some(now.after(BETWEEN));
            self.counters.rnr_naks_sent += 1;
            self.counters.responses_sent += 1;
        }
        asks
    }

    /// The other process has given a result, or nothing waits for it any more.
    pub fn note_result(&mut self) {
        self.resp.delegated.patient_until = None;
    }

    /// The number of the next request to be executed, as [`Env::complete_recv`] counts.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.resp.expected
    }

    /// The oldest delegated request has ended.
    pub fn executed<E: Env<Address = A>>(&mut self, executed: Executed, env: &mut E) {
        let Some(request) = self.resp.delegated.requests.pop_front() else { return };
        self.resp.delegated.bytes -= request.bytes;
        self.note_result();
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return;
        }
        let number = self.resp.expected;
        match executed {
            Executed::Done { original } => {
                self.resp.message =
                    if request.ends { MessageProgress::None } else { MessageProgress::Delegated };
                if request.ends {
                    self.resp.count_message(0);
                }
                if request.atomic {
                    let keep = usize::from(self.params.max_dest_rd_atomic);
                    self.answers.atomic(number, original, self.resp.msn(), keep);
                }
                self.resp.expected += 1;
                if request.ack_request && !request.atomic {
                    self.answers.owe_ack();
                }
                if self.resp.delegated.nak && !self.is_delegating() {
                    self.resp.delegated.nak = false;
                    self.owe_nak_of_gap();
                }
            }
            Executed::NotReady => {
                self.resp.delegated.end_run();
                self.not_ready_for(number, env);
            }
            Executed::Refused(code) => {
                self.resp.delegated.end_run();
                self.refuse(NakReason::of(code), number, Cause::RefusedElsewhere, env);
            }
        }
    }

    /// Executes a request of another process's target, whatever its PSN. Sends no answer: the other process answers with the
    /// result; `None` if an earlier request of this run was refused. A refusal other than "not ready" takes the QP to ERR. Each call counts one
    /// packet.
    pub fn execute_for<E: Env<Address = A>>(
        &mut self,
        headers: &Headers,
        payload: &E::Payload<'_>,
        run: u32,
        env: &mut E,
    ) -> Option<Executed> {
        let executed = (self.resp.ended_run != Some(run)).then(|| self.execute_in_run(headers, payload, env));
        if executed.is_some_and(|executed| !matches!(executed, Executed::Done { .. })) {
            self.resp.ended_run = Some(run);
        }
        self.resp.expected += 1;
        executed
    }

    fn execute_in_run<E: Env<Address = A>>(
        &mut self,
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) -> Executed {
        if !matches!(self.state, QpState::Rtr | QpState::Rts) || !headers.has_extensions() {
            return Executed::Refused(NakCode::RemoteOperationalError);
        }
        match self.execute_request(headers, payload, env) {
            Ok(_) => Executed::Done { original: self.answers.take_atomic() },
            Err(NakReason::NotReady) => Executed::NotReady,
            Err(refusal) => {
                self.report_refusal(refusal, env);
                self.enter_error(env);
                Executed::Refused(refusal.nak())
            }
        }
    }
}
