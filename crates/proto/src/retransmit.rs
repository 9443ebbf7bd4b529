//! Sending again: the local ACK timer, the RNR timer, going back to a lost packet and probing for a lost tail.

use crate::{Cause, Env, QpProtocol, Unanswered};
use ferroce_types::Instant;

impl<A: Clone> QpProtocol<A> {
    /// Starts again at the oldest unacknowledged packet.
    pub(crate) fn go_back(&mut self, now: Instant) {
        let head = self.sq.head();
        let first = self.sq.front().map_or(self.req.una, |wqe| wqe.first);
        let req = &mut self.req;
        req.went_back = Some((req.una, now));
        req.again_until = req.max;
        req.recovery = None;
        req.next = req.una;
        req.cursor = head;
        req.packet = if head < req.started { (req.una - first) as u32 } else { 0 };
        req.in_flight = 0;
        req.since_ack_request = 0;
        req.sample = None;
        req.probe_due = false;
    }

    /// Runs the RNR timer, the local ACK timer and the probe timer.
    pub(crate) fn run_timers<E: Env<Address = A>>(&mut self, now: Instant, env: &mut E) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.req.rnr_until) {
            self.req.rnr_until = None;
        }
        if due(self.req.ack_deadline) {
            self.req.ack_deadline = None;
            let oldest = self.unanswered();
            if self.is_front_leaving()
                || self.is_oldest_leaving()
                || env.answer_may_come(self.params.dest_qpn, oldest)
            {
                self.req.arm(now, &self.params);
                return;
            }
            self.counters.timeouts += 1;
            if self.req.retries == 0 {
                self.fail_front(self.no_answer(), env);
                return;
            }
            self.req.retries -= 1;
            self.req.window.congested(now, self.mtu());
            self.go_back(now);
            self.req.arm(now, &self.params);
        }
        if due(self.req.probe_at) {
            // A probe would need memory too, or ask for answers that have come.
            let is_needless =
                self.req.awaits_memory || env.answer_may_come(self.params.dest_qpn, self.unanswered());
            if !is_needless {
                self.req.probe_due = true;
                self.req.probe_backoff = self.req.probe_backoff.saturating_add(1);
            }
            self.req.probe_at = Some(self.req.probe_after(now));
        }
    }

    /// Some packets of the oldest request haven't been sent yet. Where nothing is lost, and so no window ends, the peer acknowledges a
    /// request after its last packet: no answer is due.
    fn is_front_leaving(&self) -> bool {
        self.params.lossless && self.sq.front().is_some_and(|front| self.req.next < front.end())
    }

    /// The oldest packet has to leave again, and waits for memory of this side: no answer is due, and none of what it waits for is lost.
    fn is_oldest_leaving(&self) -> bool {
        let (req, recovery) = (&self.req, self.req.recovery.as_ref());
        let is_due = || recovery.and_then(|recovery| recovery.due()).is_some_and(|(psn, _)| psn == req.una);
        req.awaits_memory && (req.next == req.una || is_due())
    }

    const fn unanswered(&self) -> Unanswered {
        Unanswered { una: self.req.una, went_back: self.req.went_back }
    }

    /// The cause of the failure when no answer has come for too long.
    fn no_answer(&self) -> Cause {
        let (tries, answered) = (self.params.retry_cnt + 1, self.req.has_been_answered());
        // A NAK that a network repeats or delays asks for a PSN that the peer has acknowledged since.
        let asked_for = self.req.asked_for.filter(|_| !answered);
        Cause::NoAnswer { tries, asked_for, answered }
    }

    /// Sends the last packet once more, with AckReq: the peer repeats its ACK, or sends a NAK for the gap. It doesn't count as a
    /// retry, because it isn't known that a packet was lost. An unanswered READ or atomic is asked for again from where its answer
    /// stopped.
    ///
    /// The answer may be that to the packet or to the probe, so it measures a round trip only if the other answer comes too. Before the first
    /// measurement at least a round trip has passed since the packet left.
    pub(crate) fn send_probe<E: Env<Address = A>>(&mut self, now: Instant, env: &mut E) {
        self.req.probe_due = false;
        if self.req.una == self.req.max || self.req.next == self.req.una {
            return;
        }
        let (number, packet) = match (self.req.packet, self.req.cursor.checked_sub(1)) {
            (0, Some(previous)) => match self.sq.get(previous) {
                Some(wqe) => (previous, wqe.packets.saturating_sub(1)),
                None => return,
            },
            (0, None) => return,
            (packet, _) => (self.req.cursor, packet - 1),
        };
        let Some(wqe) = self.sq.get(number) else { return };
        self.counters.probes += 1;
        let is_measured = self.req.window.is_measured();
        if wqe.wants_data() {
            let sample = self.req.sample.filter(|_| !is_measured);
            self.go_back(now);
            self.req.sample = sample;
            return;
        }
        let psn = wqe.first + u64::from(packet);
        let mut request = self.request(wqe, packet, 1);
        request.headers.bth.ack_request = true;
        // A packet that the fabric doesn't take now, or whose memory is gone, is the next timer's affair.
        if env.transmit(&request.headers, request.source, None).is_ok() {
            self.counters.requests_sent += 1;
            self.counters.retransmissions += 1;
            if let Some(sample) = self.req.sample.as_mut().filter(|_| is_measured) {
                sample.probe = Some(psn);
            }
        }
    }
}
