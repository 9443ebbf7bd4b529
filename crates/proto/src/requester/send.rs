//! Which request leaves next, and when: budget, window, limits, fences, READs in flight.

use crate::state::{Sample, charge};
use crate::{Cause, Env, QpProtocol, SendOp, TransmitError};
use ferroce_types::{Instant, QpState, WcStatus};

/// Bytes that may be carried out without packets at once, however little of the budget is left: where the kernel copies, each copy
/// begins with the same work.
const DIRECTLY: u32 = 256 * 1024;

/// Packets of one READ request's answer, at least: the loss of one shows by the others.
const SHORTEST_READ: u32 = 4;
/// Bytes of one READ request's answer, at most.
const LONGEST_READ: u64 = 1 << 20;

impl<A: Clone> QpProtocol<A> {
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
        if let Some(more) = self.send_missing(now, env, budget, window) {
            return more;
        }
        while self.admit(env) {
            if *budget == 0 {
                return true;
            }
            if self.req.is_throttled(now, &self.params) {
                return false;
            }
            match self.execute_directly(now, env, budget) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    self.req.awaits_memory = error == TransmitError::AwaitsMemory;
                    return false;
                }
            }
            if self.waits_to_be_executed(env) {
                // The answers to what is under way bring the next turn.
                return false;
            }
            let packet = self.req.packet;
            let psns = self.take_psns(window);
            let Some(wqe) = self.sq.get(self.req.cursor) else { return false };
            let cost = charge(wqe, packet, packet + psns, mtu);
            let full = self.req.in_flight + cost > window && self.req.in_flight > 0;
            if full
                || self.req.next + u64::from(psns) - self.req.una > self.req.most_outstanding()
                    && self.req.next > self.req.una
            {
                return false;
            }
            let ends = packet + psns == wqe.packets;
            let due = self.req.since_ack_request + cost > window / 4;
            // A READ is answered anyway: its AckReq bit marks the last request of its work request.
            let ack_request = ends || due && !wqe.wants_data();
            if !self.offer(now, env, budget, (self.req.cursor, packet, psns), ack_request) {
                return false;
            }
            self.req.since_ack_request = if ends || due { 0 } else { self.req.since_ack_request + cost };
            // The first packets after a loss show too little of what the path carries.
            let is_filled = self.req.in_flight + cost >= window / 2;
            // Reports come in bursts, and so does what they let go: on average the window is in flight. What is lost of it is known.
            let in_flight =
                if self.req.reports > 0 && is_filled { window } else { self.req.in_flight + cost };
            self.advance(now, psns, cost, (ends || due && is_filled).then_some(in_flight));
        }
        false
    }

    /// Offers a packet to the fabric: of the work request with this number, from this packet on so many PSNs. Returns whether it has left.
    /// If its memory is wrong, the work request fails in its turn.
    #[inline]
    pub(crate) fn offer<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        env: &mut E,
        budget: &mut u32,
        (number, packet, psns): (u64, u32, u32),
        ack_request: bool,
    ) -> bool {
        let Some(wqe) = self.sq.get(number) else { return false };
        let mut request = self.request(wqe, packet, psns);
        request.headers.bth.ack_request = ack_request;
        let bytes = request.bytes;
        match env.transmit(&request.headers, request.source, None) {
            Ok(()) => {}
            Err(error @ (TransmitError::Blocked | TransmitError::AwaitsMemory | TransmitError::Later(_))) => {
                self.req.awaits_memory = error == TransmitError::AwaitsMemory;
                return false;
            }
            Err(TransmitError::Local | TransmitError::Remote(_)) => {
                self.req.error = Some((number, Cause::LocalMemory));
                self.settle(env);
                return false;
            }
        }
        *budget = budget.saturating_sub(bytes.max(64));
        self.req.note_sent(now, bytes, &self.params);
        self.counters.requests_sent += 1;
        true
    }

    /// May the request at the cursor be sent? Ends or stops what needs no packet.
    fn admit<E: Env<Address = A>>(&mut self, env: &mut E) -> bool {
        loop {
            if !matches!(self.state, QpState::Rts | QpState::Sqd) {
                return false;
            }
            self.settle(env);
            let cursor = self.req.cursor;
            if self.req.error.is_some_and(|(number, _)| number <= cursor) {
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
                    self.req.fail_at_cursor(Cause::NoReadDepth);
                    continue;
                }
                if wqe.is_atomic() && wqe.len < 8 {
                    self.req.fail_at_cursor(Cause::ShortResult);
                    continue;
                }
                let first = self.req.next;
                if let Some(wqe) = self.sq.get_mut(cursor) {
                    wqe.first = first;
                }
            }
            // The peer doesn't keep what it answers with data.
            return !reads || self.req.recovery.is_none() && self.req.reads_out() < limit;
        }
    }

    /// The work request at the cursor could be carried out without packets as soon as nothing else is under way, and that is better.
    fn waits_to_be_executed<E: Env<Address = A>>(&self, env: &E) -> bool {
        let cursor = self.req.cursor;
        if !self.req.is_behind_one_sided() || cursor != self.req.started || !self.req.answered {
            return false;
        }
        self.sq.get(cursor).is_some_and(|wqe| wqe.may_be_executed() && env.prefers_to_execute(&wqe.wr))
    }

    /// Carries out (more of) the work request at the cursor without packets, if nothing else is under way.
    fn execute_directly<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        env: &mut E,
        budget: &mut u32,
    ) -> Result<bool, TransmitError> {
        let cursor = self.req.cursor;
        let alone = self.req.una == self.req.max && cursor == self.req.started && cursor == self.sq.head();
        if !alone || !self.req.answered {
            return Ok(false);
        }
        let Some(wqe) = self.sq.get(cursor) else { return Ok(false) };
        if !wqe.may_be_executed() {
            return Ok(false);
        }
        let done = self.req.direct;
        // A limit of the program's isn't to be exceeded.
        let max = if self.params.rate.is_some() { *budget } else { DIRECTLY.max(*budget) };
        let Some(bytes) = env.execute_directly(self.params.dest_qpn, &wqe.wr, wqe.buffer(), done, max)?
        else {
            self.req.direct = 0;
            return Ok(false);
        };
        *budget = budget.saturating_sub(bytes.max(64));
        self.req.note_sent(now, bytes, &self.params);
        self.req.direct = done + u64::from(bytes);
        if self.req.direct >= u64::from(wqe.len) {
            self.req.direct = 0;
            self.complete_front(WcStatus::Success, env);
        }
        Ok(true)
    }

    /// Reports the error if its turn has come, and SQD's end.
    pub(crate) fn settle<E: Env<Address = A>>(&mut self, env: &mut E) {
        if let Some((number, cause)) = self.req.error
            && number == self.sq.head()
        {
            self.req.error = None;
            self.fail_front(cause, env);
        }
        self.report_drained(env);
    }

    /// PSNs per READ request. A long READ goes out as several requests: only the requester knows how much may be in flight towards
    /// it, and for the responder they are separate READs.
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
    fn take_psns(&self, window: u64) -> u32 {
        let (next, packet) = (self.req.next, self.req.packet);
        match self.sq.get(self.req.cursor) {
            Some(wqe) if matches!(wqe.wr.op, SendOp::Read { .. }) => {
                match self.req.reads.get(self.req.reads_out()) {
                    Some(end) => (end - next) as u32,
                    None => self.read_chunk(window).min(wqe.packets - packet),
                }
            }
            _ => 1,
        }
    }

    /// Moves the cursor over a packet that has left. `sample`: the packet may measure the round trip with so many bytes in flight.
    fn advance(&mut self, now: Instant, psns: u32, cost: u64, sample: Option<u64>) {
        let Some(wqe) = self.sq.get(self.req.cursor) else { return };
        let (reads, packets, one_sided) = (wqe.wants_data(), wqe.packets, wqe.may_be_executed());
        let req = &mut self.req;
        if req.next < req.max {
            self.counters.retransmissions += 1;
        } else if let Some(in_flight) = sample
            && req.sample.is_none()
            && !self.params.lossless
        {
            let psn = req.next + u64::from(psns) - 1;
            req.sample = Some(Sample { psn, at: now, in_flight, probe: None });
        }
        if req.cursor == req.started {
            req.started += 1;
            req.unfinished_reads += u32::from(reads);
        }
        req.next += u64::from(psns);
        req.max = req.max.max(req.next);
        if !one_sided {
            req.two_sided = req.two_sided.max(req.next);
        }
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
