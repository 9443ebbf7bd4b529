//! What the responder of RC and XRC owes its peer: READ responses and results of atomics in PSN order, then one ACK or NAK.
//!
//! READs are executed when their answer leaves, paced by the caller's budget; receiving goes on meanwhile. An
//! acknowledgement waits until all answers before it have left, so that none overtakes.

use crate::responder::Refusal;
use crate::{Asked, Cause, Env, PayloadSource, Qp, SrqPlace, TransmitError, psn};
use ferroce_types::{Instant, QpState, RemoteError};
use ferroce_wire::{Aeth, Headers, Operation, Reth, Syndrome};
use std::collections::VecDeque;

/// What a READ asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// What is left of it.
    pub(crate) rest: Reth,
    /// XRC: whose protection domain the key is of.
    pub(crate) srqn: Option<u32>,
    /// A READ rather than something else that is answered as one: does the peer's work request end with it? A request of
    /// several READs asks for no ACK before the last.
    pub(crate) ends: Option<bool>,
}

impl Range {
    /// What an atomic write and a flush are answered with.
    pub(crate) const NOTHING: Self =
        Self { rest: Reth { va: 0, rkey: 0, dma_len: 0 }, srqn: None, ends: None };
}

/// A READ being answered.
#[derive(Clone, Copy, Debug)]
struct Read {
    /// Its first PSN (extended).
    first: u64,
    /// The PSN of the next response packet.
    next: u64,
    /// The PSN after the last one.
    end: u64,
    range: Range,
    /// All bytes that were asked for.
    bytes: u32,
    /// The next packet is the first of this answer.
    start: bool,
    msn: u32,
    duplicate: bool,
}

/// The result of an atomic.
#[derive(Clone, Copy, Debug)]
struct Atomic {
    psn: u64,
    original: u64,
    msn: u32,
    duplicate: bool,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Read(Read),
    Atomic(Atomic),
}

impl Answer {
    /// The PSN of the next packet.
    const fn next(&self) -> u64 {
        match self {
            Answer::Read(read) => read.next,
            Answer::Atomic(atomic) => atomic.psn,
        }
    }

    const fn is_duplicate(&self) -> bool {
        match self {
            Answer::Read(read) => read.duplicate,
            Answer::Atomic(atomic) => atomic.duplicate,
        }
    }
}

/// The answers of one QP.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    queue: VecDeque<Answer>,
    /// The acknowledgement that is owed; a later one takes the place of an earlier one.
    owed: Option<Owed>,
    /// Executed atomics by PSN, oldest first, for duplicates.
    results: VecDeque<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
enum Owed {
    /// Everything before the expected PSN is done.
    Ack,
    /// This packet, which came again, and everything before it is done.
    Again(u64),
    Nak {
        syndrome: Syndrome,
        psn: u64,
        /// The number of the reason, as the payload; 0: none.
        reason: u16,
    },
}

impl Answers {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.owed.is_none()
    }

    /// READs and atomics that were asked for the first time and aren't answered yet.
    pub(crate) fn outstanding(&self) -> usize {
        self.queue.iter().filter(|answer| !answer.is_duplicate()).count()
    }

    /// An ACK is owed. No NAK is: the packet that it was about has come.
    pub(crate) fn owe_ack(&mut self) {
        debug_assert!(!matches!(self.owed, Some(Owed::Nak { .. })), "a NAK is withdrawn first");
        self.owed = Some(Owed::Ack);
    }

    /// A SEND or WRITE packet came again. An ACK up to here and no further: the answer to a READ or atomic after it may
    /// have been lost too, and rdma_rxe takes an ACK with the PSN of one for its answer.
    pub(crate) fn owe_ack_again(&mut self, psn: u64) {
        if matches!(self.owed, None | Some(Owed::Again(_))) {
            self.owed = Some(Owed::Again(psn));
        }
    }

    pub(crate) fn owe_nak(&mut self, syndrome: Syndrome, psn: u64, reason: u16) {
        self.owed = Some(Owed::Nak { syndrome, psn, reason });
    }

    /// The expected packet has come: the NAK that reports its absence is void. It would have acknowledged what is before it, so an ACK is
    /// owed instead.
    pub(crate) fn withdraw_nak(&mut self) {
        if matches!(self.owed, Some(Owed::Nak { .. })) {
            self.owed = Some(Owed::Ack);
        }
    }

    /// A new READ of `psns` response packets.
    pub(crate) fn read(&mut self, psn: u64, psns: u32, range: Range, msn: u32) {
        // Its answer acknowledges everything before it.
        self.owed = None;
        let end = psn + u64::from(psns);
        self.queue.push_back(Answer::Read(Read {
            first: psn,
            next: psn,
            end,
            range,
            bytes: range.rest.dma_len,
            start: true,
            msn,
            duplicate: false,
        }));
    }

    /// Remembers the result of an atomic that was executed, and the last `keep` of them at most.
    pub(crate) fn remember(&mut self, psn: u64, original: u64, keep: usize) {
        if self.results.len() >= keep {
            self.results.pop_front();
        }
        self.results.push_back((psn, original));
    }

    /// A new atomic was executed; the last `keep` results are remembered.
    pub(crate) fn atomic(&mut self, psn: u64, original: u64, msn: u32, keep: usize) {
        self.owed = None;
        self.remember(psn, original, keep);
        self.queue.push_back(Answer::Atomic(Atomic { psn, original, msn, duplicate: false }));
    }

    /// Takes back the result of the atomic that was just executed; 0 when there is none.
    pub(crate) fn take_atomic(&mut self) -> u64 {
        self.queue.clear();
        self.results.pop_back().map_or(0, |(_, original)| original)
    }

    /// A READ was asked for again, from its beginning or from a later PSN. Nothing is done if its answer is still to
    /// leave. At most `limit` answers are queued.
    pub(crate) fn read_again(&mut self, psn: u64, psns: u32, range: Range, msn: u32, limit: usize) {
        let again = Read {
            first: psn,
            next: psn,
            end: psn + u64::from(psns),
            range,
            bytes: range.rest.dma_len,
            start: true,
            msn,
            duplicate: true,
        };
        for answer in &mut self.queue {
            if let Answer::Read(read) = answer
                && (read.first..read.end).contains(&psn)
            {
                if psn < read.next {
                    let range = Range { ends: read.range.ends, ..again.range };
                    *read = Read { duplicate: read.duplicate, bytes: read.bytes, range, ..again };
                }
                return;
            }
        }
        self.insert(Answer::Read(again), limit);
    }

    /// An atomic was asked for again: its result is sent again, if it is remembered.
    pub(crate) fn atomic_again(&mut self, psn: u64, msn: u32, limit: usize) {
        let Some((_, original)) = self.results.iter().find(|(number, _)| *number == psn).copied() else {
            return;
        };
        if !self.queue.iter().any(|answer| matches!(answer, Answer::Atomic(a) if a.psn == psn)) {
            self.insert(Answer::Atomic(Atomic { psn, original, msn, duplicate: true }), limit);
        }
    }

    fn insert(&mut self, answer: Answer, limit: usize) {
        if self.queue.len() < limit {
            let at =
                self.queue.iter().position(|other| other.next() > answer.next()).unwrap_or(self.queue.len());
            self.queue.insert(at, answer);
        }
    }
}

impl<A: Clone> Qp<A> {
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
        let sent = match read.range.srqn {
            Some(srqn) if env.select_srq(srqn) == SrqPlace::Nowhere => {
                Err(TransmitError::Remote(RemoteError::Access))
            }
            _ => env.transmit(&headers, source, None),
        };
        match sent {
            Ok(()) => {}
            Err(TransmitError::Blocked | TransmitError::Later(_)) => return None,
            Err(TransmitError::Local | TransmitError::Remote(_)) if read.duplicate => {
                // The first answer has probably arrived, and the program has withdrawn the memory since.
                self.answers.queue.pop_front();
                return Some(0);
            }
            Err(error) => {
                self.answers.queue.clear();
                let refusal = match error {
                    TransmitError::Remote(error) => Refusal::from(error),
                    _ => Refusal::Operational,
                };
                let Reth { va, rkey, dma_len } = read.range.rest;
                let operation = Operation::ReadRequest;
                let asked = Asked { operation, va, rkey, len: u64::from(dma_len), packet: 0 };
                self.refuse(refusal, read.next, refusal.cause(asked), env);
                return Some(0);
            }
        }
        self.counters.responses_sent += 1;
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
        let mut headers = Headers::new(self.bth(Operation::Acknowledge, psn::wire(number)));
        headers.aeth = Some(Aeth { syndrome: syndrome.to_u8(), msn: self.resp.msn() });
        let is_sent = match reason {
            0 => env.transmit(&headers, PayloadSource::None, None).is_ok(),
            _ => self.send_nak(&headers, reason, env),
        };
        if is_sent {
            self.answers.owed = None;
            self.counters.responses_sent += 1;
        }
    }

    /// Refuses a request for good: the NAK follows the answers before it, and the QP goes to ERR.
    pub(crate) fn refuse<E: Env<Address = A>>(
        &mut self,
        refusal: Refusal,
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
        self.report_refusal(refusal, env);
        self.enter_error(env);
    }
}
