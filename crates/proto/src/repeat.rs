//! Selective repeat: where the peer keeps what comes beyond a gap, the requester sends only what the peer misses.
//!
//! A report before a sequence NAK shows what the peer keeps ([`GapReport`]). A packet that is missing below a kept one is lost and leaves again, before
//! anything new. It leaves once more when a packet has come that left after it, or when its answer is overdue. READs, atomics and timeouts
//! go back to the oldest packet, as does every loss of a peer that has sent no report.

use crate::state::{GapReport, KEPT_RANGE, LastRepeat, LostPacket, Recovery, charge};
use crate::{Cause, Env, QpProtocol, TransmitError};
use core::time::Duration;
use ferroce_types::{Instant, QpState};

/// Sequence NAKs within this time count as one retry, where there is no local ACK timer that counts.
const NAKS_COUNTED: Duration = Duration::from_millis(10);

/// Sequence NAKs without a report, one after another, until the peer counts as one that keeps nothing. Reports may be lost.
const PATIENCE: u8 = 4;

impl<A: Clone> QpProtocol<A> {
    /// The responder misses the oldest unacknowledged packet.
    pub(crate) fn sequence_error<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        report: Option<&GapReport>,
        env: &mut E,
    ) {
        self.counters.seq_naks += u64::from(report.is_none());
        self.req.reports = if report.is_some() { PATIENCE } else { self.req.reports.saturating_sub(1) };
        let keeps = self.req.reports > 0 && report.is_none_or(|report| !report.is_empty());
        // The peer keeps nothing that is farther from a gap.
        let is_near = self.req.next - self.req.una <= KEPT_RANGE;
        if keeps && is_near && self.req.reads.is_empty() {
            self.repeat_missing(now, report, env);
        } else if !self.went_back_within(now, 1) && self.count_nak(now, env) {
            // It was sent after the last repetition can have arrived.
            self.req.window.lost(now, self.mtu());
            self.go_back(now);
        }
    }

    /// The local ACK timer, which only progress restarts, counts the retries (without a timer, one NAK per [`NAKS_COUNTED`] does). If each
    /// NAK counted, some packets of any PSN from a forged peer address could end the connection, and so could a receiver whose socket is full
    /// for some round trips. False: there is no retry left.
    fn count_nak<E: Env<Address = A>>(&mut self, now: Instant, env: &mut E) -> bool {
        let uncounted = self.req.nak_counted.is_none_or(|at| now.since(at) >= NAKS_COUNTED);
        if self.params.timeout & 31 == 0 && uncounted {
            if self.req.retries == 0 {
                self.fail_front(Cause::SequenceErrors, env);
                return false;
            }
            self.req.retries -= 1;
            self.req.nak_counted = Some(now);
        }
        true
    }

    /// Notes what the peer misses and what it keeps. Without a report, which may have been lost, only the oldest packet is known to be missing.
    fn repeat_missing<E: Env<Address = A>>(&mut self, now: Instant, report: Option<&GapReport>, env: &mut E) {
        let (una, next) = (self.req.una, self.req.next);
        if next == una {
            // It is about to leave anyway.
            return;
        }
        let (mtu, before) = (self.mtu(), self.req.in_flight);
        let recovery = self.req.recovery.get_or_insert_with(|| Box::new(Recovery::at(una)));
        for psn in report.into_iter().flat_map(|report| report.numbers(una)).filter(|psn| *psn < next) {
            recovery.kept.insert(psn);
            recovery.top = recovery.top.max(psn + 1);
        }
        self.take_sample_of_report(now);
        self.recount();
        let unkept = self.req.in_flight;
        self.req.grow_window(before.saturating_sub(unkept), before, mtu);
        self.note_lost(now);
        self.recount();
        let lost = unkept.saturating_sub(self.req.in_flight);
        if lost > 0 {
            self.req.window.lost_bytes(now, lost, mtu);
            // The peer answers.
            self.req.probe_backoff = 0;
        }
        let is_oldest_due = self.req.recovery.as_ref().is_some_and(|recovery| recovery.due() == Some(0));
        if is_oldest_due {
            self.count_nak(now, env);
        }
    }

    /// What is missing below a kept packet was lost, unless it has left again and is still on its way.
    fn note_lost(&mut self, now: Instant) {
        let Some(mut recovery) = self.req.recovery.take() else { return };
        let (una, top) = (self.req.una, recovery.top.max(self.req.una + 1));
        let mut known = std::mem::take(&mut recovery.lost).into_iter().peekable();
        for psn in (una..top).filter(|psn| *psn == una || !recovery.kept.contains(*psn)) {
            while known.next_if(|packet| packet.psn < psn).is_some() {}
            let again = match known.next_if(|packet| packet.psn == psn) {
                Some(packet) => packet.again,
                None => self.req.again_since(psn),
            };
            let window = &self.req.window;
            let is_on_its_way = |it: &LastRepeat| !window.is_overdue(now.since(it.at), top > it.next);
            recovery.lost.push_back(LostPacket { psn, again: again.filter(is_on_its_way) });
        }
        self.req.recovery = Some(recovery);
    }

    /// The round trip that is being measured ends when the peer has the packet, though others before it are missing.
    fn take_sample_of_report(&mut self, now: Instant) {
        let (Some(sample), Some(recovery)) = (self.req.sample, &self.req.recovery) else { return };
        if sample.psn < recovery.top {
            self.req.sample = None;
            if recovery.kept.contains(sample.psn) {
                self.req.measured(now, sample);
            }
        }
    }

    /// Counts again what is in flight, while the peer keeps and misses packets.
    pub(crate) fn recount(&mut self) {
        let (req, mtu) = (&self.req, self.mtu());
        let mut bytes = 0;
        for wqe in (self.sq.head()..=req.cursor).filter_map(|number| self.sq.get(number)) {
            let (from, to) = (wqe.first.max(req.una), wqe.end().min(req.next));
            if from >= to {
                continue;
            }
            let cost = |from, to| charge(wqe, (from - wqe.first) as u32, (to - wqe.first) as u32, mtu);
            bytes += cost(from, to);
            if let Some(recovery) = &req.recovery {
                let is_gone = |psn: &u64| recovery.has_left_network(*psn);
                bytes -= (from..to.min(recovery.top.max(req.una + 1)))
                    .filter(is_gone)
                    .map(|psn| cost(psn, psn + 1))
                    .sum::<u64>();
            }
        }
        self.req.in_flight = bytes;
    }

    /// Sends what the peer misses again, the oldest first. `Some`: nothing else may leave now; `Some(true)` for the budget.
    pub(crate) fn send_missing<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        env: &mut E,
        budget: &mut u32,
        window: u64,
    ) -> Option<bool> {
        let mtu = self.mtu();
        let mut number = self.sq.head();
        while let Some(recovery) = &self.req.recovery
            && let Some(at) = recovery.due()
        {
            if !matches!(self.state, QpState::Rts | QpState::Sqd) {
                return Some(false);
            }
            if *budget == 0 {
                return Some(true);
            }
            if self.req.is_throttled(now, &self.params) {
                return Some(false);
            }
            let Some(recovery) = &self.req.recovery else { return None };
            let psn = recovery.lost[at].psn;
            let is_last = recovery.lost.iter().skip(at + 1).all(|lost| lost.again.is_some());
            while self.sq.get(number)?.end() <= psn {
                number += 1;
            }
            if self.req.error.is_some_and(|(failed, _)| failed <= number) {
                return Some(false);
            }
            let wqe = self.sq.get(number)?;
            let packet = (psn - wqe.first) as u32;
            let cost = charge(wqe, packet, packet + 1, mtu);
            // The oldest leaves whatever the window: a report may not show all that has come, so packets that have left the network may
            // count as in flight until the oldest one arrives. It leaves once per half a round trip at most.
            if psn > self.req.una && self.req.in_flight + cost > window && self.req.in_flight > 0 {
                return Some(false);
            }
            let mut request = self.request(wqe, packet, 1);
            request.headers.bth.ack_request = is_last || packet + 1 == wqe.packets;
            let bytes = request.bytes;
            match env.transmit(&request.headers, request.source, None) {
                Ok(()) => {}
                Err(TransmitError::Blocked | TransmitError::Later(_)) => return Some(false),
                Err(TransmitError::Local | TransmitError::Remote(_)) => {
                    self.req.error = Some((number, Cause::LocalMemory));
                    return Some(false);
                }
            }
            *budget = budget.saturating_sub(bytes.max(64));
            self.counters.requests_sent += 1;
            self.counters.retransmissions += 1;
            let req = &mut self.req;
            req.note_sent(now, bytes, &self.params);
            req.in_flight += cost;
            let again = Some(LastRepeat { at: now, next: req.next });
            if let Some(lost) = req.recovery.as_mut().and_then(|recovery| recovery.lost.get_mut(at)) {
                lost.again = again;
            }
            req.arm(now, &self.params);
        }
        None
    }
}
