//! Selective repeat: where the peer keeps what comes beyond a gap, the requester sends only what the peer misses.
//!
//! A report before a sequence NAK shows what the peer keeps ([`GapReport`]). A packet that is missing below a kept one is lost and leaves again, before
//! anything new. It leaves once more when a packet has come that left after it, or when its answer is overdue. READs, atomics and timeouts
//! go back to the oldest packet, as does every loss of a peer that has sent no report.

use crate::state::{GapReport, KEPT_RANGE, LastRepeat, Recovery, charge};
use crate::{Cause, Env, QpProtocol};
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
        // A peer that keeps packets repeats the NAK for each packet beyond the gap that asks for an ACK.
        let halves = if self.req.reports > 0 { 2 } else { 1 };
        // The peer keeps nothing that is farther from a gap.
        let is_near = self.req.next - self.req.una <= KEPT_RANGE;
        if keeps && is_near && self.req.reads.is_empty() {
            self.repeat_missing(now, report, env);
        } else if !self.went_back_within(now, halves) && self.count_nak(now, env) {
            // It was sent after the last repetition can have arrived.
            self.req.window.lost(now, self.mtu());
            self.go_back(now);
        }
    }

    /// The local ACK timer, which only progress restarts, counts the retries (without a timer, one NAK per [`NAKS_COUNTED`] does). If each
    /// NAK counted, some packets of any PSN from a forged peer address could end the connection, and so could a receiver whose socket is full
    /// for some round trips. Where nothing is lost on the way, a peer that misses packets had no room for them, and no NAK counts. False: there is no
    /// retry left.
    fn count_nak<E: Env<Address = A>>(&mut self, now: Instant, env: &mut E) -> bool {
        let uncounted = self.req.nak_counted.is_none_or(|at| now.since(at) >= NAKS_COUNTED);
        if self.params.timeout & 31 == 0 && uncounted && !self.params.lossless {
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
        let mut recovery = self.req.recovery.take().unwrap_or_else(|| Box::new(Recovery::at(una)));
        let (mut arrived, mut dropped, mut near) = (0, Vec::new(), self.sq.head());
        let mut top = None;
        for (first, word) in report.into_iter().flat_map(|report| report.words(una).rev()) {
            let (word, known) = (word & low_bits(next.saturating_sub(first)), recovery.kept.word(first));
            for psn in numbers(first, word & !known) {
                let cost = self.cost_of(psn, &mut near);
                arrived += if recovery.keeps(psn) { cost } else { 0 };
            }
            // The report shows all that is kept below the highest packet that it shows.
            let below = match top {
                Some(_) => u64::MAX,
                None => word.checked_ilog2().map_or(0, |highest| low_bits(highest.into())),
            };
            dropped.extend(numbers(first, known & !word & below));
            top = top.or(word.checked_ilog2().map(|highest| first + u64::from(highest)));
        }
        let end = recovery.top.max(top.map_or(0, |top| top + 1));
        self.req.in_flight = before.saturating_sub(arrived);
        self.take_sample_of_report(now, &recovery, end);
        self.req.grow_window(arrived, before, mtu);
        let (mut lost, req) = (0, &self.req);
        let is_overdue = |it: &LastRepeat| req.window.is_overdue(now.since(it.at), end > it.next);
        let again = |psn| req.again_since(psn).filter(|it| !is_overdue(it));
        recovery.note_lost(end, again, is_overdue, |psn| lost += self.cost_of(psn, &mut near));
        // It may also be an older report that has come late: what is missing by it counts as on its way.
        recovery.forget(&dropped, LastRepeat { at: now, next });
        let back: u64 = dropped.iter().map(|psn| self.cost_of(*psn, &mut near)).sum();
        self.req.in_flight = self.req.in_flight.saturating_sub(lost) + back;
        let is_oldest_due = recovery.due().is_some_and(|(psn, _)| psn == una);
        self.req.recovery = Some(recovery);
        if lost > 0 {
            self.req.window.lost_bytes(now, lost, mtu);
            // The peer answers.
            self.req.probe_backoff = 0;
        }
        if is_oldest_due {
            self.count_nak(now, env);
        }
    }

    /// The round trip that is being measured ends when the peer has the packet, though others before it are missing.
    fn take_sample_of_report(&mut self, now: Instant, recovery: &Recovery, end: u64) {
        let Some(sample) = self.req.sample else { return };
        if sample.psn < end {
            self.req.sample = None;
            if recovery.kept.contains(sample.psn) {
                self.req.measured(now, sample);
            }
        }
    }

    /// The number of the request that has this PSN, which has left. `near`: perhaps its number.
    pub(crate) fn request_of(&self, psn: u64, near: u64) -> u64 {
        if self.sq.get(near).is_some_and(|wqe| (wqe.first..wqe.end()).contains(&psn)) {
            return near;
        }
        let (mut from, mut to) = (self.sq.head(), self.req.started);
        while from < to {
            let middle = from.midpoint(to);
            match self.sq.get(middle) {
                Some(wqe) if wqe.end() <= psn => from = middle + 1,
                _ => to = middle,
            }
        }
        from
    }

    /// What a packet that has left costs of the window. `near`: perhaps the number of its request, which it then contains.
    fn cost_of(&self, psn: u64, near: &mut u64) -> u64 {
        *near = self.request_of(psn, *near);
        self.sq.get(*near).map_or(0, |wqe| {
            let packet = psn.saturating_sub(wqe.first) as u32;
            charge(wqe, packet, packet + 1, self.mtu())
        })
    }

    /// What packets before `end` cost of the window that aren't in the network and aren't acknowledged yet.
    pub(crate) fn bytes_off_network(&self, end: u64) -> u64 {
        let mut near = self.sq.head();
        let packets = self.req.recovery.iter().flat_map(|recovery| recovery.left_network(end));
        packets.map(|psn| self.cost_of(psn, &mut near)).sum()
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
        while let Some((psn, others)) = self.req.recovery.as_ref().and_then(|recovery| recovery.due()) {
            if !matches!(self.state, QpState::Rts | QpState::Sqd) {
                return Some(false);
            }
            if *budget == 0 {
                return Some(true);
            }
            if self.req.is_throttled(now, &self.params) {
                return Some(false);
            }
            number = self.request_of(psn, number);
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
            let ack_request = !others || packet + 1 == wqe.packets;
            if !self.offer(now, env, budget, (number, packet, 1), ack_request) {
                return Some(false);
            }
            self.counters.retransmissions += 1;
            let req = &mut self.req;
            req.in_flight += cost;
            let again = LastRepeat { at: now, next: req.next };
            if let Some(recovery) = &mut req.recovery {
                recovery.sent_again(psn, again);
            }
            req.arm(now, &self.params);
        }
        None
    }
}

/// The lowest `count` bits.
const fn low_bits(count: u64) -> u64 {
    if count < 64 { (1 << count) - 1 } else { u64::MAX }
}

/// The PSNs whose bits a word has, of 64 from `first` on.
fn numbers(first: u64, mut word: u64) -> impl Iterator<Item = u64> {
    core::iter::from_fn(move || {
        let bit = (word != 0).then_some(word.trailing_zeros())?;
        word &= word - 1;
        Some(first + u64::from(bit))
    })
}
