//! The requester of RC and XRC: turns send work requests into packets, in order, inside the window, and again when one is lost.

use crate::rate::Throttle;
use crate::sendq::Wqe;
use crate::window::Window;
use crate::{Data, Env, Instant, Qp, QpParams, QpState, SendOp, Source, TransmitError, WcStatus, psn};
use ferroce_wire::{AtomicEth, Feth, Headers, Operation, Reth};
use std::collections::VecDeque;

/// PSNs that may be outstanding at once: far below the half circle, so that "behind" stays unmistakable.
const MAX_OUTSTANDING: u64 = 1 << 22;
/// What a small packet costs of a receiver's socket buffer.
const SMALLEST_CHARGE: u64 = 512;
/// Packets of one READ request's answer, at least: the loss of one shows by the others.
const SHORTEST_READ: u32 = 4;
/// Bytes of one READ request's answer, at most.
const LONGEST_READ: u64 = 1 << 20;

/// Everything the requester and the completer remember besides the send queue.
#[derive(Debug)]
pub(crate) struct Requester {
    /// Oldest unacknowledged PSN (extended, like all here).
    pub(crate) una: u64,
    /// Next PSN to send; behind `max` while packets are sent again.
    pub(crate) next: u64,
    /// The PSN after the last one ever sent.
    pub(crate) max: u64,
    /// Number of the work request that the next packet belongs to, and that packet's index in it.
    pub(crate) cursor: u64,
    pub(crate) packet: u32,
    /// Number of the first work request that was never started.
    pub(crate) started: u64,
    /// PSNs after the last of each READ request and atomic that was ever sent and is unanswered, in order.
    reads: VecDeque<u64>,
    /// READ and atomic work requests started and not ended: a fence waits for them.
    pub(crate) unfinished_reads: u32,
    /// Bytes sent and neither acknowledged nor given up.
    pub(crate) in_flight: u64,
    /// Bytes sent since the last packet with AckReq.
    pub(crate) since_ack_request: u64,
    pub(crate) window: Window,
    /// A limit that the program has set.
    throttle: Throttle,
    /// Nothing may leave before then: the limit, or the pace of UC and UD.
    pub(crate) paced_until: Option<Instant>,
    /// Retries left after timeouts and sequence NAKs.
    pub(crate) retries: u8,
    /// Retries left after RNR NAKs.
    pub(crate) rnr_retries: u8,
    pub(crate) rnr_until: Option<Instant>,
    pub(crate) ack_deadline: Option<Instant>,
    pub(crate) probe_at: Option<Instant>,
    pub(crate) probe_backoff: u8,
    pub(crate) probe_due: bool,
    /// When a sequence NAK was last counted as a retry.
    pub(crate) nak_counted: Option<Instant>,
    /// Where and when it last went back.
    pub(crate) went_back: Option<(u64, Instant)>,
    /// A work request that failed here; it is reported when all before it have ended.
    pub(crate) local_error: Option<(u64, WcStatus)>,
    /// A packet with AckReq whose round trip is being measured.
    pub(crate) sample: Option<(u64, Instant)>,
    /// In SQD, with the event not yet raised.
    pub(crate) draining: bool,
    /// Bytes of the oldest work request that were carried out without packets.
    direct: u64,
}

impl Default for Requester {
    fn default() -> Self {
        Self::at(0, 0, &QpParams::default())
    }
}

impl Requester {
    /// Ready to send work request number `head` with `first_psn`.
    pub(crate) fn at(first_psn: u32, head: u64, params: &QpParams) -> Self {
        let first = psn::first(first_psn);
        Self {
            una: first,
            next: first,
            max: first,
            cursor: head,
            packet: 0,
            started: head,
            reads: VecDeque::new(),
            unfinished_reads: 0,
            in_flight: 0,
            since_ack_request: 0,
            window: Window::new(),
            throttle: Throttle::default(),
            paced_until: None,
            retries: params.retry_cnt,
            rnr_retries: params.rnr_retry,
            rnr_until: None,
            ack_deadline: None,
            probe_at: None,
            probe_backoff: 0,
            probe_due: false,
            nak_counted: None,
            went_back: None,
            local_error: None,
            sample: None,
            draining: false,
            direct: 0,
        }
    }

    pub(crate) const fn next_new_psn(&self) -> u32 {
        psn::wire(self.max)
    }

    /// Nothing may leave before a timer has run out.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.rnr_until.is_some() || self.paced_until.is_some()
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        [self.rnr_until, self.ack_deadline, self.probe_at, self.paced_until].into_iter().flatten().min()
    }

    /// READ requests and atomics that are with the peer: sent since the last return to `una`, and unanswered.
    fn reads_out(&self) -> usize {
        self.reads.partition_point(|end| *end <= self.next)
    }

    /// Work requests before `head` are gone.
    pub(crate) fn forget_before(&mut self, head: u64) {
        self.started = self.started.max(head);
        if self.cursor < head {
            self.cursor = head;
            self.packet = 0;
        }
    }

    /// Nothing started is unfinished.
    pub(crate) const fn is_quiet(&self, head: u64) -> bool {
        self.una == self.max && self.started == head && self.packet == 0
    }

    /// Stops all timers; the queue was flushed.
    pub(crate) fn halt(&mut self, head: u64) {
        self.forget_before(head);
        self.una = self.max;
        self.next = self.max;
        self.reads.clear();
        self.unfinished_reads = 0;
        self.in_flight = 0;
        self.rnr_until = None;
        self.ack_deadline = None;
        self.probe_at = None;
        self.paced_until = None;
        self.probe_due = false;
        self.local_error = None;
        self.sample = None;
        self.draining = false;
        self.direct = 0;
    }

    /// The peer asked for silence until `until`.
    pub(crate) fn suspend(&mut self, until: Instant) {
        self.rnr_until = Some(until);
        self.ack_deadline = None;
        self.probe_at = None;
        self.probe_due = false;
    }

    /// Does the program's limit keep everything back? If it does, [`Self::next_timeout`] says for how long.
    pub(crate) fn is_throttled(&mut self, now: Instant, params: &QpParams) -> bool {
        self.paced_until = self.throttle.ask(now, params.rate).err();
        self.paced_until.is_some()
    }

    /// Something has left that counts towards the program's limit.
    pub(crate) fn note_sent(&mut self, now: Instant, bytes: u32, params: &QpParams) {
        let packets = bytes.div_ceil(params.path_mtu.max(1)).max(1);
        self.throttle.sent(now, bytes, packets, params.rate);
    }

    /// UC and UD: a packet has left and needs no answer. Returns whether it was the last of `packets`.
    pub(crate) fn sent_unacknowledged(&mut self, packets: u32) -> bool {
        self.paced_until = None;
        self.next += 1;
        self.max = self.next;
        self.una = self.next;
        self.packet += 1;
        self.packet >= packets
    }

    /// The work request at `cursor` failed here.
    fn fail_at_cursor(&mut self, status: WcStatus) {
        self.local_error = Some((self.cursor, status));
    }

    /// The acknowledged part of the queue has grown: `una` has been moved by the caller.
    pub(crate) fn progress(&mut self, now: Instant, bytes: u64, params: &QpParams) {
        self.retries = params.retry_cnt;
        self.rnr_retries = params.rnr_retry;
        self.rnr_until = None;
        self.probe_backoff = 0;
        self.probe_due = false;
        while self.reads.front().is_some_and(|end| *end <= self.una) {
            self.reads.pop_front();
        }
        if let Some((sample, at)) = self.sample
            && sample < self.una
        {
            self.sample = None;
            self.window.sample(now.since(at));
        }
        if !params.lossless {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            let in_flight = u32::try_from(self.in_flight).unwrap_or(u32::MAX);
            self.window.acknowledged(bytes, in_flight, params.path_mtu);
        }
        self.in_flight = self.in_flight.saturating_sub(bytes);
        if self.next <= self.una {
            self.in_flight = 0;
        }
        self.ack_deadline = None;
        self.probe_at = None;
        if self.una != self.max {
            self.arm(now, params);
        }
    }
}

/// What packets `from..to` of a work request cost of the window.
pub(crate) fn charge<A>(wqe: &Wqe<A>, from: u32, to: u32, mtu: u32) -> u64 {
    let full = u64::from(to.saturating_sub(from));
    if to < wqe.packets {
        return full * u64::from(mtu).max(SMALLEST_CHARGE);
    }
    let (_, last) = wqe.slice(wqe.packets.saturating_sub(1), mtu);
    full.saturating_sub(1) * u64::from(mtu).max(SMALLEST_CHARGE) + u64::from(last).max(SMALLEST_CHARGE)
}

/// What the next request packet is.
pub(crate) struct Request<'a> {
    pub(crate) headers: Headers,
    pub(crate) source: Source<'a>,
    /// Bytes of payload.
    pub(crate) bytes: u32,
}

impl<A: Clone> Qp<A> {
    /// Sends requests until the budget, the window, the fabric, a fence or the queue ends it; `true` for the budget.
    pub(crate) fn send_requests<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        env: &mut E,
        budget: &mut u32,
    ) -> bool {
        if self.req.rnr_until.is_some() {
            return false;
        }
        if self.req.probe_due {
            self.send_probe(now, env);
        }
        let mtu = self.mtu();
        let window =
            if self.params.lossless { u64::MAX } else { u64::from(self.req.window.size().min(env.window())) };
        let chunk = self.read_chunk(window);
        while self.admit(env) {
            if *budget == 0 {
                return true;
            }
            if self.req.is_throttled(now, &self.params) {
                return false;
            }
            if self.execute_directly(now, env, budget) {
                continue;
            }
            let packet = self.req.packet;
            let psns = self.take_psns(chunk);
            let Some(wqe) = self.sq.get(self.req.cursor) else { return false };
            let cost = charge(wqe, packet, packet + psns, mtu);
            let full = self.req.in_flight + cost > window && self.req.in_flight > 0;
            if full
                || self.req.next + u64::from(psns) - self.req.una > MAX_OUTSTANDING
                    && self.req.next > self.req.una
            {
                return false;
            }
            let mut request = self.request(wqe, packet, psns);
            let ends = packet + psns == wqe.packets;
            let due = self.req.since_ack_request + cost > window / 4;
            request.headers.bth.ack_request = ends || due;
            let acked = request.headers.bth.ack_request;
            let bytes = request.bytes;
            match env.transmit(&request.headers, request.source, None) {
                Ok(()) => {}
                Err(TransmitError::Blocked | TransmitError::Later(_)) => return false,
                Err(TransmitError::Local | TransmitError::Remote(_)) => {
                    self.req.fail_at_cursor(WcStatus::LocProtErr);
                    continue;
                }
            }
            *budget = budget.saturating_sub(bytes.max(64));
            self.req.note_sent(now, bytes, &self.params);
            self.req.since_ack_request = if acked { 0 } else { self.req.since_ack_request + cost };
            self.advance(now, psns, cost, acked);
        }
        false
    }

    /// May the request at the cursor be sent? Ends or stops what needs no packet.
    fn admit<E: Env<Address = A>>(&mut self, env: &mut E) -> bool {
        loop {
            if !matches!(self.state, QpState::Rts | QpState::Sqd) {
                return false;
            }
            self.settle(env);
            let cursor = self.req.cursor;
            if self.req.local_error.is_some_and(|(number, _)| number <= cursor) {
                return false;
            }
            let Some(wqe) = self.sq.get(cursor) else { return false };
            let reads = wqe.wants_data();
            let limit = usize::from(self.params.max_rd_atomic);
            if cursor == self.req.started {
                if self.state == QpState::Sqd || (wqe.wr.fence && self.req.unfinished_reads > 0) {
                    return false;
                }
                if wqe.wr.op.is_local() {
                    // What the peer is asked before may still reach memory by way of the key as it is.
                    if cursor != self.sq.head() {
                        return false;
                    }
                    self.execute_locally(env);
                    continue;
                }
                if reads && limit == 0 {
                    self.req.fail_at_cursor(WcStatus::LocQpOpErr);
                    continue;
                }
                if wqe.is_atomic() && wqe.len < 8 {
                    self.req.fail_at_cursor(WcStatus::LocLenErr);
                    continue;
                }
                let first = self.req.next;
                if let Some(wqe) = self.sq.get_mut(cursor) {
                    wqe.first = first;
                }
            }
            return !reads || self.req.reads_out() < limit;
        }
    }

    /// Carries out (more of) the work request at the cursor without packets, if nothing else is under way.
    fn execute_directly<E: Env<Address = A>>(&mut self, now: Instant, env: &mut E, budget: &mut u32) -> bool {
        let cursor = self.req.cursor;
        let alone = self.req.una == self.req.max && cursor == self.req.started && cursor == self.sq.head();
        if !alone {
            return false;
        }
        let Some(wqe) = self.sq.get(cursor) else { return false };
        if wqe.len == 0 || !matches!(wqe.wr.op, SendOp::Write { .. } | SendOp::Read { .. }) {
            return false;
        }
        let done = self.req.direct;
        let Some(bytes) = env.execute_directly(self.params.dest_qpn, &wqe.wr, done, *budget) else {
            self.req.direct = 0;
            return false;
        };
        *budget = budget.saturating_sub(bytes.max(64));
        self.req.note_sent(now, bytes, &self.params);
        self.req.direct = done + u64::from(bytes);
        if self.req.direct >= u64::from(wqe.len) {
            self.req.direct = 0;
            self.complete_front(WcStatus::Success, env);
        }
        true
    }

    /// Reports the local error if its turn has come, and SQD's end.
    pub(crate) fn settle<E: Env<Address = A>>(&mut self, env: &mut E) {
        if let Some((number, status)) = self.req.local_error
            && number == self.sq.head()
        {
            self.req.local_error = None;
            self.fail_front(status, env);
        }
        self.report_drained(env);
    }

    /// PSNs per READ request. A long READ goes out as several requests: only the requester knows how much may be in
    /// flight towards it, and the responder can't tell them from separate READs.
    fn read_chunk(&self, window: u64) -> u32 {
        if self.params.lossless {
            return u32::MAX;
        }
        let at_once = u64::from(self.params.max_rd_atomic).clamp(1, 4);
        let packets = (window / at_once).min(LONGEST_READ) / u64::from(self.mtu());
        (packets as u32).max(SHORTEST_READ)
    }

    /// How many PSNs the request at the cursor takes. A READ request that is sent again ends where it ended the first
    /// time, however little may be in flight by now: over that end the responder would take one half for a duplicate and
    /// the other for new, and a shorter one can make it forget the rest (rdma_rxe does: after a repetition from the
    /// middle it refuses all that comes before).
    fn take_psns(&self, chunk: u32) -> u32 {
        let (next, packet) = (self.req.next, self.req.packet);
        match self.sq.get(self.req.cursor) {
            Some(wqe) if matches!(wqe.wr.op, SendOp::Read { .. }) => {
                match self.req.reads.get(self.req.reads_out()) {
                    Some(end) => (end - next) as u32,
                    None => chunk.min(wqe.packets - packet),
                }
            }
            _ => 1,
        }
    }

    /// Builds packet `packet` of a work request (for a READ: the request for `psns` response packets from there).
    pub(crate) fn request<'a>(&self, wqe: &'a Wqe<A>, packet: u32, psns: u32) -> Request<'a> {
        let mtu = self.mtu();
        let (offset, bytes) = wqe.slice(packet, mtu);
        let operation = operation(&wqe.wr.op, packet == 0, packet + 1 == wqe.packets);
        let number = psn::wire(wqe.first + u64::from(packet));
        let mut headers = Headers::new(self.bth(operation, number));
        let last = packet + psns == wqe.packets;
        headers.bth.solicited = last && wqe.wr.solicited;
        headers.xrc_srqn = headers.bth.opcode.carries_xrceth().then_some(wqe.wr.remote_srqn);
        let mut source = Source::None;
        let mut sent = 0;
        match wqe.wr.op {
            SendOp::Read { va, rkey } => {
                let end = u64::from(packet + psns) * u64::from(mtu);
                let dma_len = (end.min(u64::from(wqe.len)) - offset) as u32;
                headers.reth = Some(Reth { va: va.wrapping_add(offset), rkey, dma_len });
            }
            SendOp::CompareSwap { va, rkey, compare, swap } => {
                headers.atomic = Some(AtomicEth { va, rkey, swap_or_add: swap, compare });
            }
            SendOp::FetchAdd { va, rkey, add } => {
                headers.atomic = Some(AtomicEth { va, rkey, swap_or_add: add, compare: 0 });
            }
            SendOp::Write { va, rkey } | SendOp::WriteWithImmediate { va, rkey, .. } => {
                if packet == 0 {
                    headers.reth = Some(Reth { va, rkey, dma_len: wqe.len });
                }
                (source, sent) = (payload(wqe, offset, bytes), bytes);
            }
            SendOp::AtomicWrite { va, rkey } => {
                headers.reth = Some(Reth { va, rkey, dma_len: wqe.len });
                (source, sent) = (payload(wqe, offset, bytes), bytes);
            }
            SendOp::Flush { va, rkey, len, placement, whole_region } => {
                headers.reth = Some(Reth { va, rkey, dma_len: len });
                headers.flush =
                    Some(Feth { placement: placement.bits(), selectivity: u8::from(whole_region) });
            }
            _ => (source, sent) = (payload(wqe, offset, bytes), bytes),
        }
        if last {
            match wqe.wr.op {
                SendOp::SendWithImmediate { immediate } | SendOp::WriteWithImmediate { immediate, .. } => {
                    headers.immediate = Some(immediate);
                }
                SendOp::SendWithInvalidate { rkey } => headers.invalidate_rkey = Some(rkey),
                _ => {}
            }
        }
        Request { headers, source, bytes: sent }
    }

    /// Moves the cursor over a packet that has left.
    fn advance(&mut self, now: Instant, psns: u32, cost: u64, acked: bool) {
        let Some(wqe) = self.sq.get(self.req.cursor) else { return };
        let (reads, packets) = (wqe.wants_data(), wqe.packets);
        let req = &mut self.req;
        self.counters.requests_sent += 1;
        if req.next < req.max {
            self.counters.retransmissions += 1;
        } else if acked && req.sample.is_none() {
            req.sample = Some((req.next + u64::from(psns) - 1, now));
        }
        if req.cursor == req.started {
            req.started += 1;
            req.unfinished_reads += u32::from(reads);
        }
        req.next += u64::from(psns);
        req.max = req.max.max(req.next);
        if reads && req.reads.back().is_none_or(|end| *end < req.next) {
            req.reads.push_back(req.next);
        }
        req.in_flight += cost;
        req.packet += psns;
        if req.packet >= packets {
            req.cursor += 1;
            req.packet = 0;
        }
        req.arm(now, &self.params);
    }
}

/// `bytes` of a work request's message from `offset`.
fn payload<A>(wqe: &Wqe<A>, offset: u64, bytes: u32) -> Source<'_> {
    match &wqe.wr.data {
        _ if bytes == 0 => Source::None,
        Data::Sges(sges) => Source::Local { sges, offset, len: bytes },
        Data::Inline(data) => {
            let from = offset as usize;
            data.get(from..from + bytes as usize).map_or(Source::None, Source::Bytes)
        }
    }
}

/// The opcode of a request packet.
const fn operation(op: &SendOp, first: bool, last: bool) -> Operation {
    use Operation as O;
    match (op, first, last) {
        (SendOp::Read { .. }, ..) => O::ReadRequest,
        (SendOp::CompareSwap { .. }, ..) => O::CompareSwap,
        (SendOp::FetchAdd { .. }, ..) => O::FetchAdd,
        (SendOp::AtomicWrite { .. }, ..) => O::AtomicWrite,
        (SendOp::Flush { .. }, ..) => O::Flush,
        (SendOp::Write { .. } | SendOp::WriteWithImmediate { .. }, true, false) => O::WriteFirst,
        (SendOp::Write { .. } | SendOp::WriteWithImmediate { .. }, false, false) => O::WriteMiddle,
        (SendOp::Write { .. }, true, true) => O::WriteOnly,
        (SendOp::Write { .. }, false, true) => O::WriteLast,
        (SendOp::WriteWithImmediate { .. }, true, true) => O::WriteOnlyWithImmediate,
        (SendOp::WriteWithImmediate { .. }, false, true) => O::WriteLastWithImmediate,
        (_, true, false) => O::SendFirst,
        (_, false, false) => O::SendMiddle,
        (SendOp::SendWithImmediate { .. }, true, true) => O::SendOnlyWithImmediate,
        (SendOp::SendWithImmediate { .. }, false, true) => O::SendLastWithImmediate,
        (SendOp::SendWithInvalidate { .. }, true, true) => O::SendOnlyWithInvalidate,
        (SendOp::SendWithInvalidate { .. }, false, true) => O::SendLastWithInvalidate,
        (_, true, true) => O::SendOnly,
        (_, false, true) => O::SendLast,
    }
}
