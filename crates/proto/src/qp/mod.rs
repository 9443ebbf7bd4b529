//! One queue pair: its state machine (IBTA 10.3.1) and the entry points of the caller.

mod complete;
mod post;

use crate::state::{Answers, Requester, Responder, SendQueue, Wqe};
use crate::{Counters, Env, QpParams, QpProtocol, RateLimit, SendWr, Violation};
use ferroce_ring::EntryRing;
use ferroce_types::{Instant, QpState};
use ferroce_wire::{Bth, Headers, Opcode, Operation, Service};
use post::packets;

/// The oldest send request that hasn't ended.
#[derive(Clone, Copy, Debug)]
pub struct Oldest<'a, A> {
    /// As it was posted.
    pub wr: &'a SendWr<A>,
    /// Bytes of its message.
    pub len: u32,
    /// It has begun to leave.
    pub started: bool,
    /// When the peer first had no receive for it, if it waits for one.
    pub not_ready_since: Option<Instant>,
}

impl<A: Clone> QpProtocol<A> {
    /// A QP in RESET. `service` is RC, XRC, UC or UD; `max_send_wr` bounds the send queue, whose memory grows with its use.
    #[must_use]
    pub fn new(service: Service, qpn: u32, max_send_wr: u32) -> Self {
        Self {
            service,
            qpn,
            state: QpState::Reset,
            params: QpParams::default(),
            counters: Counters::default(),
            sq: SendQueue::new(max_send_wr),
            req: Requester::default(),
            resp: Responder::default(),
            answers: Answers::default(),
            reason: 0,
            told_posted_after: false,
            is_reconnected: false,
        }
    }

    /// Uses this ring for the send queue, which is empty.
    pub fn place_send_queue(&mut self, ring: EntryRing<Wqe<A>>) {
        self.sq.place(ring);
    }

    /// Ends the send queue of a QP that is in RESET and won't be used again, and returns its ring.
    #[must_use]
    pub fn end_send_queue(&mut self) -> EntryRing<Wqe<A>> {
        self.sq.end()
    }

    /// QP number.
    #[must_use]
    pub const fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Transport service.
    #[must_use]
    pub const fn service(&self) -> Service {
        self.service
    }

    /// Current state. Packets and timers move it to ERR or SQE on their own.
    #[must_use]
    pub const fn state(&self) -> QpState {
        self.state
    }

    /// Attributes.
    #[must_use]
    pub const fn params(&self) -> &QpParams {
        &self.params
    }

    /// Attributes, to be changed before the change of state that takes them. The caller has validated them.
    pub const fn params_mut(&mut self) -> &mut QpParams {
        &mut self.params
    }

    /// Sets the limit of what is sent. What waits for the one that was asks anew.
    pub const fn limit_rate(&mut self, rate: Option<RateLimit>) {
        self.params.rate = rate;
        self.req.paced_until = None;
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters;
        self.resp.add_to(&mut counters);
        counters.requests_ended = self.sq.ended();
        counters.bytes_posted = self.sq.bytes();
        counters
    }

    /// Send work requests that haven't ended.
    #[must_use]
    pub fn sq_len(&self) -> u32 {
        self.sq.len()
    }

    /// Those of them that ask for a completion.
    #[must_use]
    #[inline]
    pub const fn signaled_len(&self) -> u32 {
        self.sq.signaled()
    }

    /// The oldest send request that hasn't ended.
    #[must_use]
    pub fn oldest(&self) -> Option<Oldest<'_, A>> {
        let wqe = self.sq.front()?;
        Some(Oldest {
            wr: &wqe.wr,
            len: wqe.len,
            started: self.sq.head() < self.req.started,
            not_ready_since: self.req.not_ready_since,
        })
    }

    /// The PSN that the next new request will have.
    #[must_use]
    pub const fn sq_psn(&self) -> u32 {
        self.req.next_new_psn()
    }

    /// The PSN expected of the next request.
    #[must_use]
    pub const fn rq_psn(&self) -> u32 {
        self.resp.expected_psn()
    }

    /// Puts the QP into `state`; the caller has checked that the transition exists and has set the attributes.
    ///
    /// RESET drops everything silently. ERR flushes: receives whose acknowledgement can't leave, the send queue, the receive that was
    /// taken for a message in progress, then the environment's receive queue. RTR begins with `rq_psn`, RTS (from RTR) with `sq_psn`. SQD lets
    /// started requests end and raises [`crate::QpEvent::SqDrained`]. A transition to the same state does nothing, but ERR
    /// flushes again.
    pub fn set_state<E: Env<Address = A>>(&mut self, state: QpState, env: &mut E) {
        let before = self.state;
        match state {
            QpState::Reset => {
                self.sq.reset();
                self.reason = 0;
                self.told_posted_after = false;
                self.req = Requester::at(0, self.sq.head(), &self.params);
                self.forget_kept(env);
                self.is_reconnected |= !matches!(before, QpState::Reset | QpState::Init);
                self.begin_responder(Responder::default());
            }
            QpState::Rtr if before != QpState::Rtr => {
                self.forget_kept(env);
                self.begin_responder(Responder::at(self.params.rq_psn));
            }
            QpState::Rts if matches!(before, QpState::Rtr | QpState::Init | QpState::Reset) => {
                self.req = Requester::at(self.params.sq_psn, self.sq.head(), &self.params);
            }
            QpState::Rts => {
                self.reason = 0;
                self.req.draining = false;
            }
            QpState::Err => {
                if before != QpState::Err {
                    self.end_answers(env);
                }
                self.enter_error(env);
            }
            _ => {}
        }
        self.state = state;
        if state == QpState::Sqd && before != QpState::Sqd {
            self.req.draining = true;
            self.report_drained(env);
        }
    }

    /// Receives from the beginning. What was counted stays.
    fn begin_responder(&mut self, responder: Responder) {
        self.resp.add_to(&mut self.counters);
        self.resp = responder;
        self.answers = Answers::default();
    }

    /// Goes over to another fabric, where packets carry `path_mtu` bytes, because nothing has got through on the one so
    /// far: what was sent is sent again. The caller knows that the peer has answered nothing and asked nothing.
    pub fn change_fabric(&mut self, path_mtu: u32, lossless: bool) {
        self.params.path_mtu = path_mtu;
        self.params.lossless = lossless;
        let mtu = self.mtu();
        for number in self.sq.head()..self.sq.tail() {
            if let Some(wqe) = self.sq.get_mut(number) {
                wqe.packets = packets(&wqe.wr.op, wqe.len, mtu);
            }
        }
        if self.is_reliable() {
            let draining = self.req.draining;
            self.req = Requester::at(self.params.sq_psn, self.sq.head(), &self.params);
            self.req.draining = draining;
        } else {
            // The message in progress begins anew.
            self.req.packet = 0;
        }
    }

    /// Sends what may be sent now: answers first, then requests, together about `budget` bytes of payload. Returns
    /// whether more could go at once, that is, whether the budget and nothing else ended it.
    pub fn transmit<E: Env<Address = A>>(&mut self, now: Instant, env: &mut E, budget: u32) -> bool {
        let mut left = budget;
        match self.state {
            QpState::Reset | QpState::Init => return false,
            QpState::Err => {
                if !self.sq.is_empty() {
                    self.remark_posted_after(env);
                }
                self.flush_send_queue(env);
                return self.is_reliable() && self.send_answers(now, env, &mut left);
            }
            QpState::Sqe => {
                self.flush_send_queue(env);
                return false;
            }
            QpState::Rtr | QpState::Rts | QpState::Sqd => {}
        }
        let requests = self.state != QpState::Rtr;
        match self.service {
            Service::Rc | Service::Xrc => {
                // Answers must not starve requests that wait: each side gets half.
                let mut share = if requests && self.has_unsent() { left.div_ceil(2) } else { left };
                let before = share;
                let more = self.send_answers(now, env, &mut share);
                left -= before - share;
                self.req.awaits_memory = false;
                let sends = requests && (self.has_unsent() || self.req.probe_due);
                let more_requests = sends && self.send_requests(now, env, &mut left);
                more || more_requests
            }
            _ => requests && self.send_unacknowledged(now, env, &mut left),
        }
    }

    /// Whether [`QpProtocol::transmit`] may have something to send, regardless of the window and of the fabric, which may still forbid it.
    #[must_use]
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        match self.state {
            QpState::Reset | QpState::Init => false,
            QpState::Err | QpState::Sqe => !self.sq.is_empty() || !self.answers.is_empty(),
            QpState::Rtr => !self.answers.is_empty(),
            QpState::Rts | QpState::Sqd => {
                !self.answers.is_empty()
                    || self.req.probe_due
                    || (self.has_unsent() && !self.req.is_waiting())
            }
        }
    }

    /// Something that was executed isn't acknowledged: an answer, an ACK or a NAK hasn't left.
    #[must_use]
    #[inline]
    pub fn owes_acknowledgement(&self) -> bool {
        !self.answers.is_empty()
    }

    /// The number of the first packet that has been executed and that an answer still to leave will acknowledge, or of an earlier one.
    /// [`u64::MAX`]: there is none.
    #[must_use]
    #[inline]
    pub fn unacknowledged_from(&self) -> u64 {
        if self.owes_acknowledgement() { self.resp.acknowledged } else { u64::MAX }
    }

    /// A request of the peer is still to be answered.
    #[must_use]
    #[inline]
    pub fn owes_answers(&self) -> bool {
        self.owes_acknowledgement() || self.is_delegating()
    }

    fn has_unsent(&self) -> bool {
        self.req.cursor < self.sq.tail() || self.req.has_missing()
    }

    /// Takes a packet whose destination QPN is this QP's. The caller has checked its integrity and, unless it is a datagram, its
    /// addresses. All other fields are checked here.
    pub fn handle_packet<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        headers: &Headers,
        payload: E::Payload<'_>,
        env: &mut E,
    ) {
        self.counters.packets_received += 1;
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Err) {
            self.counters.wrong_state += 1;
            return;
        }
        let opcode = headers.bth.opcode;
        if opcode.service == Service::Cnp {
            self.counters.cnps += 1;
            if env.is_ecn_capable() {
                self.note_congestion(now);
            }
            return;
        }
        if opcode.service != self.service || !headers.has_extensions() {
            self.counters.malformed += 1;
            return;
        }
        if !pkey_matches(headers.bth.pkey, self.params.pkey) {
            self.counters.pkey_violations += 1;
            env.violation(Violation::PKey);
            return;
        }
        match self.service {
            Service::Rc | Service::Xrc if opcode.is_response() => {
                if matches!(self.state, QpState::Rts | QpState::Sqd) {
                    self.handle_response(now, headers, &payload, env);
                } else {
                    self.counters.wrong_state += 1;
                }
            }
            Service::Xrc if !self.params.srq => self.counters.malformed += 1,
            Service::Rc | Service::Xrc => self.handle_request(now, headers, &payload, env),
            Service::Uc => self.handle_unacknowledged(headers, &payload, env),
            _ => self.handle_datagram(headers, &payload, env),
        }
    }

    /// The network is congested (an ECN mark, or a notification of one): reduces the window.
    pub fn note_congestion(&mut self, now: Instant) {
        self.req.window.congested(now, self.mtu());
    }

    /// After a batch of packets: sends the one coalesced ACK (or the NAK) that is owed, and results of atomics before
    /// it. What the fabric doesn't take now follows from [`QpProtocol::transmit`].
    pub fn flush_acks<E: Env<Address = A>>(&mut self, env: &mut E) {
        if self.is_reliable() {
            self.send_short_answers(env);
        }
    }

    /// Lets timers that are due run out. The caller calls [`QpProtocol::transmit`] afterwards.
    pub fn handle_timeout<E: Env<Address = A>>(&mut self, now: Instant, env: &mut E) {
        if self.req.paced_until.is_some_and(|at| at <= now) {
            self.req.paced_until = None;
        }
        if self.resp.kept.expires.is_some_and(|at| at <= now) {
            self.forget_kept(env);
        }
        if self.is_reliable() && matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.run_timers(now, env);
        }
    }

    /// When [`QpProtocol::handle_timeout`] wants to be called; earlier calls do no harm.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let next = self.req.next_timeout();
        self.resp.kept.expires.map_or(next, |at| Some(next.map_or(at, |next| next.min(at))))
    }

    /// Requests are acknowledged.
    pub(crate) const fn is_reliable(&self) -> bool {
        matches!(self.service, Service::Rc | Service::Xrc)
    }

    /// Bytes of payload in a full packet.
    pub(crate) fn mtu(&self) -> u32 {
        self.params.path_mtu.max(1)
    }

    /// A BTH towards the connected peer.
    pub(crate) fn bth(&self, operation: Operation, psn: u32) -> Bth {
        Bth {
            pkey: self.params.pkey,
            ..Bth::new(Opcode { service: self.service, operation }, self.params.dest_qpn, psn)
        }
    }
}

/// IBTA 10.9.3: the low 15 bits are equal and at least one side is a full member.
pub(crate) fn pkey_matches(theirs: u16, ours: u16) -> bool {
    (theirs ^ ours) & 0x7fff == 0 && (theirs | ours) & 0x8000 != 0
}
