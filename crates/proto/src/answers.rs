//! What the responder of RC and XRC owes its peer: READ responses and results of atomics in PSN order, then one ACK or NAK.
//!
//! READs are executed when their answer leaves, paced by the caller's budget; receiving goes on meanwhile. An
//! acknowledgement waits until all answers before it have left, so that none overtakes.

use crate::state::{Answer, Answers, NakReason, Owed, Read};
use crate::{Cause, Env, PayloadSource, QpProtocol, RequestedAccess, SrqPlace, TransmitError, psn};
use ferroce_types::{Instant, QpState, RemoteError};
use ferroce_wire::{Aeth, Bth, Headers, NakCode, Opcode, Operation, Reth, Service, Syndrome};

impl<A: Clone> QpProtocol<A> {
    /// Sends what is owed until `budget` bytes of payload or the fabric ends it; `true` for the budget.
    pub(crate) fn send_answers<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        env: &mut E,
        budget: &mut u32,
    ) -> bool {
        while let Some(answer) = self.answers.queue.front().copied() {
            if *budget == 0 {
                return true;
            }
            if matches!(answer, Answer::Read(_)) && self.req.is_throttled(now, &self.params) {
                return false;
            }
            match self.send_answer(answer, env) {
                Some(bytes) => {
                    self.req.note_sent(now, bytes, &self.params);
                    *budget = budget.saturating_sub(bytes.max(64));
                }
                None => return false,
            }
        }
        self.send_owed(env);
        false
    }

    /// Sends results of atomics, and the acknowledgement if no READ is before it.
    pub(crate) fn send_short_answers<E: Env<Address = A>>(&mut self, env: &mut E) {
        while let Some(answer) = self.answers.queue.front().copied() {
            if matches!(answer, Answer::Read(_)) || self.send_answer(answer, env).is_none() {
                return;
            }
        }
        self.send_owed(env);
    }

    /// Sends one packet and returns its bytes; `None` when the fabric takes nothing.
    fn send_answer<E: Env<Address = A>>(&mut self, answer: Answer, env: &mut E) -> Option<u32> {
        match answer {
            Answer::Read(read) => self.send_read_response(read, env),
            Answer::Atomic(atomic) => {
                let mut headers = Headers::new(self.bth(Operation::AtomicAcknowledge, psn::wire(atomic.psn)));
                headers.aeth = Some(Aeth { syndrome: Syndrome::ACK_UNLIMITED.to_u8(), msn: atomic.msn });
                headers.atomic_ack = Some(atomic.original);
                env.transmit(&headers, PayloadSource::None, None).ok()?;
                self.counters.responses_sent += 1;
                self.resp.note_acknowledged(atomic.psn + 1);
                self.answers.queue.pop_front();
                Some(8)
            }
        }
    }

    fn send_read_response<E: Env<Address = A>>(&mut self, mut read: Read, env: &mut E) -> Option<u32> {
        let len = read.range.rest.dma_len.min(self.mtu());
        let last = read.next + 1 == read.end;
        let operation = match (read.start, last) {
            (true, true) => Operation::ReadResponseOnly,
            (true, false) => Operation::ReadResponseFirst,
            (false, true) => Operation::ReadResponseLast,
            (false, false) => Operation::ReadResponseMiddle,
        };
        let mut headers = Headers::new(self.bth(operation, psn::wire(read.next)));
        if read.start || last {
            headers.aeth = Some(Aeth { syndrome: Syndrome::ACK_UNLIMITED.to_u8(), msn: read.msn });
        }
        let source = match len {
            0 => PayloadSource::None,
            _ => PayloadSource::Remote { rkey: read.range.rest.rkey, va: read.range.rest.va, len },
        };
        // The SRQ was there when the request came.
        let is_gone = read.range.srqn.is_some_and(|srqn| env.select_srq(srqn) == SrqPlace::Nowhere);
        let sent = match is_gone {
            true => Err(TransmitError::Remote(RemoteError::Operational)),
            false => env.transmit(&headers, source, None),
        };
        match sent {
            Ok(()) => {}
            Err(TransmitError::Blocked | TransmitError::AwaitsMemory | TransmitError::Later(_)) => {
                return None;
            }
            Err(TransmitError::Local | TransmitError::Remote(_)) if read.duplicate => {
                // The first answer has probably arrived, and the program has withdrawn the memory since.
                self.answers.queue.pop_front();
                return Some(0);
            }
            Err(error) => {
                self.answers.queue.clear();
                let refusal = match error {
                    TransmitError::Remote(error) => NakReason::from(error),
                    _ => NakReason::Operational,
                };
                let Reth { va, rkey, dma_len } = read.range.rest;
                let operation = Operation::ReadRequest;
                let asked = RequestedAccess { operation, va, rkey, len: u64::from(dma_len), packet: 0 };
                let cause = if is_gone { NakReason::NoSrq } else { refusal }.cause(asked);
                self.refuse(refusal, read.next, cause, env);
                return Some(0);
            }
        }
        self.counters.responses_sent += 1;
        self.resp.note_acknowledged(read.next + 1);
        if last {
            self.answers.queue.pop_front();
            if let Some(ends) = read.range.ends {
                env.was_read(read.bytes, ends);
            }
        } else {
            read.next += 1;
            read.start = false;
            read.range.rest.va = read.range.rest.va.wrapping_add(u64::from(len));
            read.range.rest.dma_len -= len;
            if let Some(front) = self.answers.queue.front_mut() {
                *front = Answer::Read(read);
            }
        }
        Some(len)
    }

    fn send_owed<E: Env<Address = A>>(&mut self, env: &mut E) {
        let Some(owed) = self.answers.owed else { return };
        let (syndrome, number, reason) = match owed {
            Owed::Ack => (Syndrome::ACK_UNLIMITED, self.resp.expected.wrapping_sub(1), 0),
            Owed::Again(psn) => (Syndrome::ACK_UNLIMITED, psn, 0),
            Owed::Nak { syndrome, psn, reason } => (syndrome, psn, reason),
        };
        let bth = self.bth(Operation::Acknowledge, psn::wire(number));
        let headers = self.acknowledgement(bth, syndrome);
        let is_sent = match (reason, syndrome) {
            (0, Syndrome::Nak(NakCode::PsnSequenceError)) => self.send_sequence_nak(&headers, env),
            (0, _) => env.transmit(&headers, PayloadSource::None, None).is_ok(),
            _ => self.send_nak(&headers, reason, env),
        };
        if is_sent {
            self.answers.owed = None;
            self.counters.responses_sent += 1;
        }
    }

    #[inline]
    fn acknowledgement(&self, bth: Bth, syndrome: Syndrome) -> Headers {
        let aeth = Aeth { syndrome: syndrome.to_u8(), msn: self.resp.msn() };
        Headers { aeth: Some(aeth), ..Headers::new(bth) }
    }

    /// The ACK of all that was executed, if it is all that an RC queue pair owes. It is owed no more: the caller sends it.
    #[inline(always)]
    pub fn take_ack(&mut self) -> Option<Headers> {
        let is_alone = self.service == Service::Rc && self.answers.queue.is_empty();
        if !(is_alone && matches!(self.answers.owed, Some(Owed::Ack))) {
            return None;
        }
        self.answers.owed = None;
        self.counters.responses_sent += 1;
        let opcode = Opcode { service: Service::Rc, operation: Operation::Acknowledge };
        let psn = psn::wire(self.resp.expected.wrapping_sub(1));
        let bth = Bth { pkey: self.params.pkey, ..Bth::new(opcode, self.params.dest_qpn, psn) };
        Some(self.acknowledgement(bth, Syndrome::ACK_UNLIMITED))
    }

    /// Refuses a request for good: the NAK follows the answers before it, and the QP goes to ERR.
    pub(crate) fn refuse<E: Env<Address = A>>(
        &mut self,
        refusal: NakReason,
        number: u64,
        cause: Cause,
        env: &mut E,
    ) {
        let failed = self.state == QpState::Err;
        if !failed {
            self.note_failure(cause, false, env);
        }
        self.answers.owe_nak(Syndrome::Nak(refusal.nak()), number, self.reason);
        if failed {
            return;
        }
        // The NAK acknowledges what is before it.
        env.flush_unacknowledged(number);
        self.report_refusal(refusal, env);
        self.enter_error(env);
    }

    /// Sends what it owes as far as that is possible at once, and nothing more: flushes the receives that haven't been acknowledged.
    pub(crate) fn end_answers<E: Env<Address = A>>(&mut self, env: &mut E) {
        self.flush_acks(env);
        if self.owes_acknowledgement() {
            self.answers = Answers::default();
            env.flush_unacknowledged(self.resp.acknowledged);
        }
    }
}
