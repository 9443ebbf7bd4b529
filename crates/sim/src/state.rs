//! The state of a world, and how it moves from one event to the next.

use crate::adapter::{HostState, QpState};
use crate::capture::Capture;
use crate::env::QpEnv;
use crate::faults::Faults;
use crate::frame::Frame;
use crate::random::Random;
use crate::reasons;
use crate::trace::{Trace, TraceEvent, What};
use crate::wait::ProgramState;
use ferroce_buffers::{Ended, Stamp};
use ferroce_proto::{Completion, Instant, Qp, WcOpcode, WcStatus};
use ferroce_wire::cm::GSI_QPN;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of payload that a queue pair sends in one turn.
const BUDGET: u32 = 1 << 16;

/// How long a world waits for a completion, unless the test sets another time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A packet on its way.
#[derive(Debug)]
struct Transit {
    from: usize,
    to: usize,
    frame: Frame,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) now: Instant,
    pub(crate) random: Random,
    pub(crate) hosts: Vec<HostState>,
    pub(crate) faults: Faults,
    pub(crate) trace: Trace,
    pub(crate) capture: Option<Capture>,
    pub(crate) programs: Vec<ProgramState>,
    /// The program that runs.
    pub(crate) turn: usize,
    /// Nothing can happen any more, or the test has failed.
    pub(crate) ended: Option<Arc<str>>,
    /// When a request was last completed, or a program went on for another reason.
    pub(crate) progress: Instant,
    /// A world without progress for so long hangs.
    pub(crate) patience: Duration,
    /// Packets by time of arrival and number.
    wire: BTreeMap<(Instant, u64), Transit>,
    sent: u64,
    /// When the last packet between two hosts arrives.
    latest: BTreeMap<(usize, usize), Instant>,
    timers: BTreeSet<(Instant, usize, u32)>,
}

impl State {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            now: Instant(0),
            random: Random::new(seed),
            hosts: Vec::new(),
            faults: Faults::default(),
            trace: Trace::default(),
            capture: None,
            programs: vec![ProgramState::new("test".into())],
            turn: 0,
            ended: None,
            progress: Instant(0),
            patience: PATIENCE,
            wire: BTreeMap::new(),
            sent: 0,
            latest: BTreeMap::new(),
            timers: BTreeSet::new(),
        }
    }

    pub(crate) fn note(&mut self, what: What) {
        self.trace.0.push(TraceEvent { at: Duration::from_nanos(self.now.0), what });
    }

    /// When the next packet arrives or the next timer is due.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let arrival = self.wire.first_key_value().map(|((at, _), _)| *at);
        let timer = self.timers.first().map(|(at, ..)| *at);
        let manager = self.hosts.iter().filter_map(|host| host.manager.next_timeout()).min();
        [arrival, timer, manager].into_iter().flatten().min()
    }

    /// Packets on their way.
    pub(crate) fn in_transit(&self) -> usize {
        self.wire.len()
    }

    /// Lets the next event happen, which is due now.
    pub(crate) fn run_event(&mut self) {
        let due = self.wire.first_entry().filter(|entry| entry.key().0 <= self.now);
        if let Some(Transit { from, to, frame }) = due.map(|entry| entry.remove()) {
            return self.arrive(from, to, &frame);
        }
        if let Some((at, host, qpn)) = self.timers.first().copied()
            && at <= self.now
        {
            self.timers.pop_first();
            let now = self.now;
            let HostState { tables, qps, .. } = &mut self.hosts[host];
            if let Some(QpState { qp, side, timer }) = qps.get_mut(&qpn) {
                *timer = None;
                qp.handle_timeout(now, &mut QpEnv { tables, side });
            }
            self.work(host, qpn);
            return;
        }
        self.run_managers();
    }

    fn arrive(&mut self, from: usize, to: usize, frame: &Frame) {
        let bth = frame.headers.bth;
        let (at, source, now) = (self.hosts[to].name.clone(), self.hosts[from].ip, self.now);
        if !self.hosts[to].plugged {
            return;
        }
        self.note(What::Arrived { at, qpn: bth.dest_qp, operation: bth.opcode.operation, psn: bth.psn });
        if bth.dest_qp == GSI_QPN {
            return self.mad_arrives(to, source, &frame.payload);
        }
        let HostState { tables, qps, .. } = &mut self.hosts[to];
        if let Some(QpState { qp, side, .. }) = qps.get_mut(&bth.dest_qp)
            && (side.peer == Some(source) || side.is_for_datagrams)
        {
            side.grh = grh(source, frame.to, frame.payload.len());
            qp.handle_packet(now, &frame.headers, &frame.payload[..], &mut QpEnv { tables, side });
            self.work(to, bth.dest_qp);
        }
    }

    /// Calls `f` with a queue pair and its surroundings, and lets it work.
    pub(crate) fn with_qp<R>(
        &mut self,
        host: usize,
        qpn: u32,
        f: impl FnOnce(&mut Qp<Ipv4Addr>, &mut QpEnv<'_>) -> R,
    ) -> Option<R> {
        let HostState { tables, qps, .. } = &mut self.hosts[host];
        let QpState { qp, side, .. } = qps.get_mut(&qpn)?;
        let result = f(qp, &mut QpEnv { tables, side });
        self.work(host, qpn);
        Some(result)
    }

    /// Lets a queue pair send what it can, and publishes its completions after the acknowledgements.
    fn work(&mut self, host: usize, qpn: u32) {
        let now = self.now;
        let HostState { tables, qps, .. } = &mut self.hosts[host];
        let Some(QpState { qp, side, timer }) = qps.get_mut(&qpn) else { return };
        let env = &mut QpEnv { tables, side };
        qp.flush_acks(env);
        while qp.transmit(now, env, BUDGET) {}
        qp.flush_acks(env);
        let sends = std::mem::take(&mut side.sends_completed);
        let published = !qp.owes_acknowledgement() || qp.state() == ferroce_proto::QpState::Err;
        let receives = if published { std::mem::take(&mut side.unpublished) } else { Vec::new() };
        let (send_cq, recv_cq) = (side.send_cq, side.recv_cq);
        let out = std::mem::take(&mut side.out);
        let next = qp.next_timeout();
        if *timer != next {
            if let Some(before) = timer.take() {
                self.timers.remove(&(before, host, qpn));
            }
            if let Some(next) = next {
                self.timers.insert((next, host, qpn));
            }
            *timer = next;
        }
        out.into_iter().for_each(|frame| self.send(host, frame));
        sends.into_iter().for_each(|completion| self.publish(host, qpn, send_cq, completion));
        receives.into_iter().for_each(|completion| self.publish(host, qpn, recv_cq, completion));
    }

    fn publish(&mut self, host: usize, qpn: u32, cq: u32, inner: Completion) {
        let at = self.hosts[host].name.clone();
        self.note(What::Completed { at, qpn, wr_id: inner.wr_id, status: inner.status as u32 });
        self.progress = self.now;
        let HostState { qps, cqs, .. } = &mut self.hosts[host];
        let fault = (inner.status != WcStatus::Success).then(|| {
            let first = qps.get(&qpn).and_then(|qp| qp.side.first.clone()).map(|(_, first)| first);
            let flushed = inner.status == WcStatus::WrFlushErr;
            let reason = first.as_ref().filter(|_| !flushed).and_then(|first| first.reason()).map(Arc::from);
            reasons::fault(inner.status, inner.reason, reason, first.filter(|_| flushed))
        });
        if let Some(cq) = cqs.get_mut(&cq) {
            cq.empty_polls = 0;
            cq.entries.push_back(Ended {
                wr_id: inner.wr_id,
                qpn,
                is_write: inner.opcode == WcOpcode::RecvRdmaWithImm,
                byte_len: inner.byte_len,
                immediate: inner.immediate.map(u32::from_be_bytes),
                invalidated: inner.invalidated_rkey,
                source: inner.src_qp,
                has_grh: inner.grh,
                stamp: Stamp { clock: self.now.0, wall_clock: self.now.0 },
                fault,
            });
        }
    }

    /// Puts a packet on the wire, with the faults of the network.
    pub(crate) fn send(&mut self, from: usize, frame: Frame) {
        let Some(to) = self.hosts.iter().position(|host| host.ip == frame.to) else { return };
        let faults = self.faults.clone();
        let lost = self.random.chance(faults.loss) || !self.hosts[from].plugged;
        let copies = if self.random.chance(faults.duplicate) { 2 } else { 1 };
        let copies = if lost { 0 } else { copies };
        let bth = frame.headers.bth;
        self.note(What::Sent {
            from: self.hosts[from].name.clone(),
            to: self.hosts[to].name.clone(),
            qpn: bth.dest_qp,
            operation: bth.opcode.operation,
            psn: bth.psn,
            len: frame.payload.len(),
            copies,
        });
        if let Some(capture) = &mut self.capture {
            let added = capture.add(Duration::from_nanos(self.now.0), self.hosts[from].ip, &frame);
            added.unwrap_or_else(|error| panic!("the capture can't be written: {error}"));
        }
        for _ in 0..copies {
            let mut arrives = self.now.after(self.random.time(&faults.delay));
            if self.random.chance(faults.reorder) {
                // Overtaken by what is sent within the longest delay, and a little more.
                arrives = arrives.after(faults.delay.end + Duration::from_micros(1));
            } else {
                let latest = self.latest.entry((from, to)).or_insert(Instant(0));
                arrives = arrives.max(latest.after(Duration::from_nanos(1)));
                *latest = arrives;
            }
            self.sent += 1;
            self.wire.insert((arrives, self.sent), Transit { from, to, frame: frame.clone() });
        }
    }

    /// Removes a queue pair, and its completions. Nothing accesses memory for it after that.
    pub(crate) fn remove_qp(&mut self, host: usize, qpn: u32) {
        let HostState { qps, cqs, .. } = &mut self.hosts[host];
        let Some(removed) = qps.remove(&qpn) else { return };
        if let Some(at) = removed.timer {
            self.timers.remove(&(at, host, qpn));
        }
        for cq in [removed.side.send_cq, removed.side.recv_cq] {
            if let Some(cq) = cqs.get_mut(&cq) {
                cq.entries.retain(|entry| entry.qpn != qpn);
            }
        }
    }

    /// The last packets of the trace.
    pub(crate) fn last_packets(&self, count: usize) -> Vec<&TraceEvent> {
        let is_packet = |event: &&TraceEvent| matches!(event.what, What::Sent { .. } | What::Arrived { .. });
        let mut last: Vec<_> = self.trace.0.iter().rev().filter(is_packet).take(count).collect();
        last.reverse();
        last
    }
}

/// A GRH of RoCEv2: an IPv4 header after 20 bytes.
fn grh(from: Ipv4Addr, to: Ipv4Addr, payload: usize) -> [u8; 40] {
    /// Headers of UDP, of the transport (BTH, DETH), and the ICRC.
    const AROUND: usize = 8 + 12 + 8 + 4;
    let mut grh = [0; 40];
    grh[20] = 0x45;
    grh[22..24].copy_from_slice(&((20 + AROUND + payload) as u16).to_be_bytes());
    // TTL, UDP.
    (grh[28], grh[29]) = (64, 17);
    grh[32..36].copy_from_slice(&from.octets());
    grh[36..40].copy_from_slice(&to.octets());
    grh
}
