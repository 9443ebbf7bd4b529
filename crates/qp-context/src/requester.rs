//! What a requester remembers, and what packets cost of the window.

use crate::Throttle;
use crate::Window;
use crate::Wqe;
use crate::{Cause, QpParams, psn};
use crate::{KEPT_RANGE, LastRepeat, Recovery};
use core::time::Duration;
use ferroce_types::Instant;
use std::collections::VecDeque;

/// PSNs that may be outstanding at once: far below the half circle, so that "behind" stays unmistakable.
const MAX_OUTSTANDING: u64 = 1 << 22;
/// What a small packet costs of a receiver's socket buffer.
pub const SMALLEST_CHARGE: u64 = 512;

/// A packet with AckReq whose round trip is being measured.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Its PSN.
    pub psn: u64,
    /// When it left.
    pub at: Instant,
    /// Bytes that were in flight then, its own included.
    pub in_flight: u64,
    /// The PSN of a probe that has asked for the same acknowledgement.
    pub probe: Option<u64>,
}

/// A measured round trip whose acknowledgement may have answered a probe.
#[derive(Clone, Copy, Debug)]
pub struct UnsureSample {
    probe: u64,
    rtt: Duration,
    in_flight: u64,
}

/// Everything the requester and the completer remember besides the send queue.
#[derive(Debug)]
pub struct Requester {
    /// Oldest unacknowledged PSN (extended, like all here).
    pub una: u64,
    /// Next PSN to send; behind `max` while packets are sent again.
    pub next: u64,
    /// The PSN after the last one ever sent.
    pub max: u64,
    /// Number of the work request that the next packet belongs to, and that packet's index in it.
    pub cursor: u64,
    /// The cursor's next packet of that request.
    pub packet: u32,
    /// Number of the first work request that was never started.
    pub started: u64,
    /// PSNs after the last of each READ request and atomic that was ever sent and is unanswered, in order.
    pub reads: VecDeque<u64>,
    /// READ and atomic work requests started and not ended: a fence waits for them.
    pub unfinished_reads: u32,
    /// Bytes sent and neither acknowledged nor given up.
    pub in_flight: u64,
    /// Bytes sent since the last packet with AckReq.
    pub since_ack_request: u64,
    /// How much may be in flight.
    pub window: Window,
    /// A limit that the program has set.
    pub throttle: Throttle,
    /// Nothing may leave before then: the limit, or the pace of UC and UD.
    pub paced_until: Option<Instant>,
    /// Retries left after timeouts (sequence NAKs where there are none).
    pub retries: u8,
    /// Retries left after RNR NAKs.
    pub rnr_retries: u8,
    /// Nothing is sent before.
    pub rnr_until: Option<Instant>,
    /// When the first RNR NAK of the oldest packet came.
    pub not_ready_since: Option<Instant>,
    /// [`crate::Cause::StillNotReady`] has been reported.
    pub told_not_ready: bool,
    /// When the local ACK timer runs out.
    pub ack_deadline: Option<Instant>,
    /// When a lost tail is probed for.
    pub probe_at: Option<Instant>,
    /// How often that time was doubled.
    pub probe_backoff: u8,
    /// A probe has to leave.
    pub probe_due: bool,
    /// What has to leave next needs memory of this side that isn't there.
    pub awaits_memory: bool,
    /// When a sequence NAK was last counted as a retry, without a local ACK timer.
    pub nak_counted: Option<Instant>,
    /// Where and when it last went back.
    pub went_back: Option<(u64, Instant)>,
    /// PSNs before this one have left again since then, or are about to.
    pub again_until: u64,
    /// The peer sends reports of what it keeps beyond a gap, and one was among so many of its last sequence NAKs.
    pub reports: u8,
    /// What it misses and what it keeps, while it misses something.
    pub recovery: Option<Box<Recovery>>,
    /// A work request that failed here or was refused; it is reported when all before it have ended.
    pub error: Option<(u64, Cause)>,
    /// The round trip that is being measured.
    pub sample: Option<Sample>,
    /// The one before, if a probe has left meanwhile.
    pub unsure: Option<UnsureSample>,
    /// In SQD, with the event not yet raised.
    pub draining: bool,
    /// Bytes of the oldest work request that were carried out without packets.
    pub direct: u64,
    /// The PSN after the last request that isn't an RDMA WRITE or READ.
    pub two_sided: u64,
    /// The peer expects this PSN, which is before all that may be outstanding. It was never sent if the peer has answered nothing.
    pub asked_for: Option<u32>,
    /// The PSN of a NAK that the peer is about to send, and the number of its reason.
    pub told_ahead: Option<(u64, u16)>,
    /// The peer has answered a packet: it expects the PSNs that are sent.
    pub answered: bool,
}

impl Default for Requester {
    fn default() -> Self {
        Self::at(0, 0, &QpParams::default())
    }
}

impl Requester {
    /// Ready to send work request number `head` with `first_psn`.
    pub fn at(first_psn: u32, head: u64, params: &QpParams) -> Self {
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
            window: Window::default(),
            throttle: Throttle::default(),
            paced_until: None,
            retries: params.retry_cnt,
            rnr_retries: params.rnr_retry,
            rnr_until: None,
            not_ready_since: None,
            told_not_ready: false,
            ack_deadline: None,
            probe_at: None,
            probe_backoff: 0,
            probe_due: false,
            awaits_memory: false,
            nak_counted: None,
            went_back: None,
            again_until: first,
            reports: 0,
            recovery: None,
            error: None,
            sample: None,
            unsure: None,
            draining: false,
            direct: 0,
            two_sided: first,
            asked_for: None,
            told_ahead: None,
            answered: false,
        }
    }

    /// The PSN of the next new packet on the wire.
    pub const fn next_new_psn(&self) -> u32 {
        psn::wire(self.max)
    }

    /// Nothing may leave before a timer has run out.
    pub const fn is_waiting(&self) -> bool {
        self.rnr_until.is_some() || self.paced_until.is_some()
    }

    /// When a timer runs out.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        const NEVER: u64 = u64::MAX;
        // Whether a timer runs is looked at before its time is compared. The compiler may do it the other way round, to no harm
        // but that valgrind reports the comparison.
        let at = |timer: Option<Instant>| core::hint::black_box(timer.map_or(NEVER, |at| at.0));
        let mut next = at(self.ack_deadline).min(at(self.probe_at));
        if self.is_waiting() {
            next = next.min(at(self.rnr_until)).min(at(self.paced_until));
        }
        (next != NEVER).then_some(Instant(next))
    }

    /// All requests before the one with the number `tail` have left, none is to be sent again, and nothing keeps the next one
    /// back.
    #[inline]
    pub fn has_sent_all(&self, tail: u64) -> bool {
        self.cursor == tail
            && self.started == tail
            && self.next == self.max
            && self.max - self.una < MAX_OUTSTANDING
            && !self.is_waiting()
            && !self.probe_due
            && self.recovery.is_none()
            && self.error.is_none()
            && !self.draining
    }

    /// The send window, or what the environment's `window` leaves of it, has room for a packet with `len` bytes of data.
    #[inline]
    pub fn has_window(&self, len: u64, window: u32) -> bool {
        let window = u64::from(self.window.size().min(window));
        self.in_flight == 0 || self.in_flight + len.max(SMALLEST_CHARGE) <= window
    }

    /// A SEND of one packet, or a WRITE (`one_sided`), has left, after all others, and asks for an acknowledgement: the timers have to be
    /// armed.
    #[inline]
    pub fn sent_plain(&mut self, bytes: u64, one_sided: bool) {
        self.next += 1;
        self.max = self.next;
        if !one_sided {
            self.two_sided = self.next;
        }
        self.cursor += 1;
        self.started = self.cursor;
        self.in_flight += bytes.max(SMALLEST_CHARGE);
        self.since_ack_request = 0;
    }

    /// A READ of one packet (`reads`) or an atomic, which costs so much of the window, has left after all others: the timers have to be
    /// armed.
    #[inline]
    pub fn sent_fetch(&mut self, cost: u64, reads: bool) {
        self.next += 1;
        self.max = self.next;
        if !reads {
            self.two_sided = self.next;
        }
        self.reads.push_back(self.next);
        self.unfinished_reads += 1;
        self.cursor += 1;
        self.started = self.cursor;
        self.in_flight += cost;
        self.since_ack_request = 0;
    }

    /// RDMA WRITEs and READs are under way, and nothing else.
    #[inline]
    pub const fn is_behind_one_sided(&self) -> bool {
        self.two_sided <= self.una && self.una < self.next
    }

    /// READ requests and atomics that are with the peer: sent since the last return to `una`, and unanswered.
    pub fn reads_out(&self) -> usize {
        self.reads.partition_point(|end| *end <= self.next)
    }

    /// When a packet left again because the requester went back to it or to one before it.
    pub fn again_since(&self, psn: u64) -> Option<LastRepeat> {
        let (_, at) = self.went_back.filter(|_| psn < self.again_until)?;
        Some(LastRepeat { at, next: u64::MAX })
    }

    /// PSNs that may be outstanding: while something is missing, no more than the peer keeps.
    pub fn most_outstanding(&self) -> u64 {
        if self.recovery.is_some() { KEPT_RANGE } else { MAX_OUTSTANDING }
    }

    /// The peer misses packets that haven't left again.
    #[inline]
    pub fn has_missing(&self) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| recovery.is_due())
    }

    /// Work requests before `head` are gone.
    #[inline]
    pub fn forget_before(&mut self, head: u64) {
        self.started = self.started.max(head);
        if self.cursor < head {
            self.cursor = head;
            self.packet = 0;
        }
    }

    /// Nothing started is unfinished.
    pub const fn is_quiet(&self, head: u64) -> bool {
        self.una == self.max && self.started == head && self.packet == 0
    }

    /// Stops all timers; the queue was flushed.
    pub fn halt(&mut self, head: u64) {
        self.forget_before(head);
        self.una = self.max;
        self.next = self.max;
        self.reads.clear();
        self.unfinished_reads = 0;
        self.in_flight = 0;
        self.recovery = None;
        self.rnr_until = None;
        self.not_ready_since = None;
        self.ack_deadline = None;
        self.probe_at = None;
        self.paced_until = None;
        self.probe_due = false;
        self.awaits_memory = false;
        self.error = None;
        self.sample = None;
        self.draining = false;
        self.direct = 0;
    }

    /// The peer asked for silence until `until`.
    pub fn suspend(&mut self, until: Instant) {
        self.rnr_until = Some(until);
        self.ack_deadline = None;
        self.probe_at = None;
        self.probe_due = false;
    }

    /// Does the program's limit keep everything back? If it does, [`Self::next_timeout`] returns the end.
    pub fn is_throttled(&mut self, now: Instant, params: &QpParams) -> bool {
        self.paced_until = self.throttle.ask(now, params.rate).err();
        self.paced_until.is_some()
    }

    /// Something has left that counts towards the program's limit.
    pub fn note_sent(&mut self, now: Instant, bytes: u32, params: &QpParams) {
        let packets = bytes.div_ceil(params.path_mtu.max(1)).max(1);
        self.throttle.sent(now, bytes, packets, params.rate);
    }

    /// UC and UD: a packet has left and needs no answer. Returns whether it was the last of `packets`.
    pub fn sent_unacknowledged(&mut self, packets: u32) -> bool {
        self.paced_until = None;
        self.next += 1;
        self.max = self.next;
        self.una = self.next;
        self.packet += 1;
        self.packet >= packets
    }

    /// The peer has answered a packet.
    pub const fn has_been_answered(&self) -> bool {
        self.answered
    }

    /// The work request at `cursor` failed here.
    pub fn fail_at_cursor(&mut self, cause: Cause) {
        self.error = Some((self.cursor, cause));
    }

    /// A round trip has ended.
    pub fn measured(&mut self, now: Instant, sample: Sample) {
        let (rtt, in_flight) = (now.since(sample.at), sample.in_flight);
        match sample.probe {
            None => self.window.sample(rtt, in_flight),
            Some(probe) => self.unsure = Some(UnsureSample { probe, rtt, in_flight }),
        }
    }

    /// An acknowledgement of this PSN has come again. If that was a probe's, the first one answered the packet and not the probe.
    pub fn answered_again(&mut self, psn: u64) {
        if let Some(unsure) = self.unsure.take_if(|unsure| unsure.probe == psn) {
            self.window.sample(unsure.rtt, unsure.in_flight);
        }
    }

    /// The peer has so many bytes more, of those that were in flight.
    pub fn grow_window(&mut self, bytes: u64, in_flight: u64, mtu: u32) {
        let [bytes, in_flight] = [bytes, in_flight].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        self.window.acknowledged(bytes, in_flight, mtu);
    }

    /// The acknowledged part of the queue has grown by so many bytes that were in flight: `una` has been moved by the caller.
    #[inline]
    pub fn progress(&mut self, now: Instant, bytes: u64, params: &QpParams) {
        self.answered = true;
        self.retries = params.retry_cnt;
        self.rnr_retries = params.rnr_retry;
        self.rnr_until = None;
        self.not_ready_since = None;
        self.probe_backoff = 0;
        self.probe_due = false;
        while self.reads.front().is_some_and(|end| *end <= self.una) {
            self.reads.pop_front();
        }
        let una = self.una;
        if let Some(sample) = self.sample.take_if(|sample| sample.psn < una) {
            // While something is missing, an acknowledgement comes late: a report ends the measurement.
            if self.recovery.is_none() {
                self.measured(now, sample);
            }
        }
        self.recovery.take_if(|recovery| {
            recovery.acknowledge(una);
            recovery.is_over()
        });
        if !params.lossless {
            self.grow_window(bytes, self.in_flight, params.path_mtu);
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
pub fn charge<A>(wqe: &Wqe<A>, from: u32, to: u32, mtu: u32) -> u64 {
    let full = u64::from(to.saturating_sub(from));
    if to < wqe.packets {
        return full * u64::from(mtu).max(SMALLEST_CHARGE);
    }
    let (_, last) = wqe.slice(wqe.packets.saturating_sub(1), mtu);
    full.saturating_sub(1) * u64::from(mtu).max(SMALLEST_CHARGE) + u64::from(last).max(SMALLEST_CHARGE)
}
