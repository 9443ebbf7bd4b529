//! The state of a world, and how it moves from one event to the next.

use crate::adapter::{CompletedRequest, HostState, QpState};
use crate::capture::Capture;
use crate::chances::{Allowed, Chances};
use crate::env::QpEnv;
use crate::faults::Faults;
use crate::frame::Frame;
use crate::planned::{Due, Planned};
use crate::reasons;
use crate::trace::{Trace, TraceEvent, What};
use crate::wait::{Boot, ProgramState};
use ferroce_buffers::Stamp;
use ferroce_proto::QpProtocol;
use ferroce_types::{Completion, Instant, QpState as TransportState, WcStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// Bytes of payload that a queue pair sends in one turn.
const BUDGET: u32 = 1 << 16;

/// How long a world waits for a completion, unless the test sets another time.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long an adapter takes between two pieces of a message that it places in any order.
const PLACING: Range<Duration> = Duration::from_nanos(20)..Duration::from_nanos(400);

/// A packet on its way.
#[derive(Debug)]
pub(crate) struct Transit {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Its checksum is wrong.
    pub(crate) damaged: bool,
    pub(crate) frame: Frame,
}

/// What is special about the link between two hosts.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    pub(crate) faults: Option<Faults>,
    pub(crate) down: bool,
}

/// A clock that isn't the world's: it is asked for the time since the world began.
pub(crate) struct Clock(pub(crate) Box<dyn Fn() -> Duration + Send>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// What a world has whose time is another clock's.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) clock: Clock,
    /// The task that lets packets arrive and timers run out.
    pub(crate) driver: Option<Waker>,
    /// Tasks that wait for a completion.
    pub(crate) waiting: Vec<Waker>,
    /// Tasks that go on. They are woken when the world is unlocked.
    pub(crate) woken: Vec<Waker>,
    /// Completions so far.
    pub(crate) completions: u64,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) now: Instant,
    pub(crate) chances: Chances,
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
    pub(crate) wire: BTreeMap<(Instant, u64), Transit>,
    /// What else happens, by time and number.
    pub(crate) due: BTreeMap<(Instant, u64), Due>,
    /// Packets and other events so far.
    pub(crate) numbers: u64,
    /// When the last packet between two hosts arrives.
    pub(crate) latest: BTreeMap<(usize, usize), Instant>,
    pub(crate) timers: BTreeSet<(Instant, usize, u32)>,
    /// Links between hosts that differ from the rest of the network.
    pub(crate) links: BTreeMap<(usize, usize), LinkState>,
    /// Pairs of hosts between which the network is partitioned.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// When the queue before each host is empty.
    pub(crate) queues: BTreeMap<usize, Instant>,
    /// Programs whose threads aren't made yet.
    pub(crate) unstarted: Vec<(usize, Boot)>,
    /// `None`: time moves on when all programs wait.
    pub(crate) driven: Option<Driven>,
    /// Panics print nothing.
    pub(crate) quiet: bool,
    /// What each program and each queue pair waited for when a panic began.
    pub(crate) at_panic: Option<String>,
}

impl State {
    pub(crate) fn new(seed: u64, allowed: Allowed) -> Self {
        Self {
            now: Instant(0),
            chances: Chances::new(seed, allowed),
            hosts: Vec::new(),
            faults: Faults::default(),
            trace: Trace::default(),
            capture: None,
            programs: vec![ProgramState::new("test".into(), None)],
            turn: 0,
            ended: None,
            progress: Instant(0),
            patience: PATIENCE,
            wire: BTreeMap::new(),
            due: BTreeMap::new(),
            numbers: 0,
            latest: BTreeMap::new(),
            timers: BTreeSet::new(),
            links: BTreeMap::new(),
            cut: BTreeSet::new(),
            queues: BTreeMap::new(),
            unstarted: Vec::new(),
            driven: None,
            quiet: false,
            at_panic: None,
        }
    }

    pub(crate) fn note(&mut self, what: What) {
        if self.ended.is_some() {
            // Programs unwind, in any order.
            return;
        }
        self.note_faults();
        self.trace.0.push(TraceEvent { at: Duration::from_nanos(self.now.0), what });
    }

    /// Adds the faults that were chosen since the last note to the trace.
    pub(crate) fn note_faults(&mut self) {
        let at = Duration::from_nanos(self.now.0);
        for (number, what) in self.chances.take_unnoted() {
            self.trace.0.push(TraceEvent { at, what: What::Fault { number, what } });
        }
    }

    pub(crate) const fn new_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Has something happen at a moment.
    pub(crate) fn plan(&mut self, at: Instant, due: Due) {
        let number = self.new_number();
        self.due.insert((at, number), due);
    }

    /// A queue pair, with its surroundings and its timer.
    pub(crate) fn qp(
        &mut self,
        host: usize,
        qpn: u32,
    ) -> Option<(&mut QpProtocol<Ipv4Addr>, QpEnv<'_>, &mut Option<Instant>)> {
        let marks = |faults: &Faults| faults.marks_from.is_some();
        let of_a_link = |link: &LinkState| link.faults.as_ref().is_some_and(marks);
        let ecn = marks(&self.faults) || self.links.values().any(of_a_link);
        let HostState { name, tables, qps, licences, .. } = &mut self.hosts[host];
        let QpState { qp, side, timer } = qps.get_mut(&qpn)?;
        Some((qp, QpEnv { name, tables, side, licences, chances: &mut self.chances, ecn }, timer))
    }

    /// When the next packet arrives, the next timer is due, or something else happens.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let arrival = self.wire.first_key_value().map(|((at, _), _)| *at);
        let due = self.due.first_key_value().map(|((at, _), _)| *at);
        let timer = self.timers.first().map(|(at, ..)| *at);
        let manager = self.hosts.iter().filter_map(|host| host.manager.next_timeout()).min();
        [arrival, due, timer, manager].into_iter().flatten().min()
    }

    /// Packets on their way.
    pub(crate) fn in_transit(&self) -> usize {
        self.wire.len()
    }

    /// Lets the next event happen, which is due now.
    pub(crate) fn run_event(&mut self) {
        let arrived = self.wire.first_entry().filter(|entry| entry.key().0 <= self.now);
        if let Some(transit) = arrived.map(|entry| entry.remove()) {
            return self.arrive(&transit);
        }
        let due = self.due.first_entry().filter(|entry| entry.key().0 <= self.now);
        if let Some(due) = due.map(|entry| entry.remove()) {
            return self.happen(due);
        }
        if let Some((at, host, qpn)) = self.timers.first().copied()
            && at <= self.now
        {
            self.timers.pop_first();
            let now = self.now;
            if let Some((qp, mut env, timer)) = self.qp(host, qpn) {
                *timer = None;
                qp.handle_timeout(now, &mut env);
            }
            self.work(host, qpn);
            return;
        }
        self.run_managers();
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Place { host, qpn } => {
                if let Some((_, mut env, _)) = self.qp(host, qpn) {
                    env.side.places_later = false;
                    env.place_one();
                    self.hosts[host].looks = 0;
                }
                self.work(host, qpn);
            }
            Due::Turn { host, qpn } => {
                if let Some((_, env, _)) = self.qp(host, qpn) {
                    env.side.pauses = false;
                }
                self.work(host, qpn);
            }
            Due::Completion { host, cq, ended } => self.complete(host, cq, ended),
            Due::Planned(planned) => {
                let hosts = &self.hosts;
                if self.chances.choose(|| describe(hosts, &planned)) {
                    self.upset(&planned);
                }
            }
        }
    }

    /// Calls `f` with a queue pair and its surroundings, and lets it work.
    pub(crate) fn with_qp<R>(
        &mut self,
        host: usize,
        qpn: u32,
        f: impl FnOnce(&mut QpProtocol<Ipv4Addr>, &mut QpEnv<'_>) -> R,
    ) -> Option<R> {
        let (qp, mut env, _) = self.qp(host, qpn)?;
        let result = f(qp, &mut env);
        self.work(host, qpn);
        Some(result)
    }

    /// Lets a queue pair send what it can, and publishes its completions after the acknowledgements.
    pub(crate) fn work(&mut self, host: usize, qpn: u32) {
        let now = self.now;
        let Some((qp, mut env, _)) = self.qp(host, qpn) else { return };
        if qp.state() == TransportState::Err {
            env.place_all();
        }
        // What follows a message waits until its bytes are placed: acknowledgements, answers and completions.
        if !env.side.placing.is_empty() {
            if !std::mem::replace(&mut env.side.places_later, true) {
                let at = now.after(env.chances.time(&PLACING));
                self.plan(at, Due::Place { host, qpn });
            }
            return self.set_timer(host, qpn);
        }
        qp.flush_acks(&mut env);
        let pauses = env.licences.pauses.clone();
        let budget = if pauses.end.is_zero() { BUDGET } else { 1 };
        let mut pause = None;
        while pause.is_none() && !env.side.pauses && qp.transmit(now, &mut env, budget) {
            let name = env.name;
            pause = env
                .chances
                .late(&pauses, |time| format!("QP {qpn:#x} of {name} pauses for {time:?} between packets"));
        }
        env.side.pauses |= pause.is_some();
        qp.flush_acks(&mut env);
        let side = env.side;
        let sends = std::mem::take(&mut side.sends_completed);
        let from = if qp.state() == TransportState::Err { u64::MAX } else { qp.unacknowledged_from() };
        let acknowledged = side.unpublished.iter().take_while(|(_, number)| *number < from).count();
        let receives: Vec<_> = side.unpublished.drain(..acknowledged).collect();
        let (send_cq, recv_cq) = (side.send_cq, side.recv_cq);
        let out = std::mem::take(&mut side.out);
        if let Some(pause) = pause {
            self.plan(now.after(pause), Due::Turn { host, qpn });
        }
        self.set_timer(host, qpn);
        out.into_iter().for_each(|frame| self.send(host, frame));
        sends.into_iter().for_each(|completion| self.publish(host, qpn, (0, send_cq), completion));
        receives.into_iter().for_each(|(completion, _)| self.publish(host, qpn, (1, recv_cq), completion));
        if let Some(driven) = &mut self.driven {
            driven.woken.extend(driven.driver.take());
        }
    }

    fn set_timer(&mut self, host: usize, qpn: u32) {
        let Some((qp, _, timer)) = self.qp(host, qpn) else { return };
        let next = qp.next_timeout();
        let before = std::mem::replace(timer, next);
        if before != next {
            if let Some(before) = before {
                self.timers.remove(&(before, host, qpn));
            }
            if let Some(next) = next {
                self.timers.insert((next, host, qpn));
            }
        }
    }

    /// Reports a completion, at once or late.
    fn publish(&mut self, host: usize, qpn: u32, (queue, cq): (usize, u32), inner: Completion) {
        let now = self.now;
        let Some((_, env, _)) = self.qp(host, qpn) else { return };
        let late = env.licences.late_completions.clone();
        let name = env.name;
        let late = env.chances.late(&late, |time| {
            format!("completion {:#x} of QP {qpn:#x} of {name} is {time:?} late", inner.wr_id)
        });
        let at = env.side.completed[queue].max(now.after(late.unwrap_or_default()));
        env.side.completed[queue] = at;
        let fault = (inner.status != WcStatus::Success).then(|| {
            let first = env.side.first.clone().map(|(_, first)| first);
            let flushed = inner.status == WcStatus::WrFlushErr;
            let reason = first.as_ref().filter(|_| !flushed).and_then(|first| first.reason()).map(Arc::from);
            reasons::fault(inner.status, inner.reason(), reason, first.filter(|_| flushed))
        });
        let stamp = Stamp { clock: at.0, wall_clock: at.0 };
        let ended = CompletedRequest { completion: Completion { qp_num: qpn, ..inner }, stamp, fault };
        if at > now {
            return self.plan(at, Due::Completion { host, cq, ended });
        }
        self.complete(host, cq, ended);
    }

    /// Adds a completion to its queue.
    fn complete(&mut self, host: usize, cq: u32, ended: CompletedRequest) {
        let Completion { qp_num: qpn, wr_id, status, .. } = ended.completion;
        let status = status as u32;
        if !self.hosts[host].qps.contains_key(&qpn) {
            return;
        }
        let at = self.hosts[host].name.clone();
        self.note(What::Completed { at, qpn, wr_id, status });
        self.progress = self.now;
        let HostState { cqs, looks, .. } = &mut self.hosts[host];
        *looks = 0;
        if let Some(cq) = cqs.get_mut(&cq) {
            cq.empty_polls = 0;
            cq.entries.push_back(ended);
            assert!(cq.entries.len() <= cq.capacity as usize, "a completion queue overruns");
        }
        if let Some(driven) = &mut self.driven {
            driven.completions += 1;
            driven.woken.append(&mut driven.waiting);
        }
    }

    /// Removes a queue pair, and its completions. Nothing accesses memory for it after that.
    pub(crate) fn remove_qp(&mut self, host: usize, qpn: u32) {
        if let Some((_, mut env, _)) = self.qp(host, qpn) {
            env.place_all();
        }
        let HostState { qps, cqs, .. } = &mut self.hosts[host];
        let Some(removed) = qps.remove(&qpn) else { return };
        if let Some(at) = removed.timer {
            self.timers.remove(&(at, host, qpn));
        }
        for cq in [removed.side.send_cq, removed.side.recv_cq] {
            if let Some(cq) = cqs.get_mut(&cq) {
                cq.entries.retain(|entry| entry.completion.qp_num != qpn);
            }
        }
    }

    /// Places all bytes that were received: memory is about to be taken back.
    pub(crate) fn place_all(&mut self, host: usize) {
        let all: Vec<u32> = self.hosts[host].qps.keys().copied().collect();
        for qpn in all {
            if let Some((_, mut env, _)) = self.qp(host, qpn) {
                env.place_all();
            }
        }
    }

    /// The last packets of the trace.
    pub(crate) fn last_packets(&self, count: usize) -> Vec<&TraceEvent> {
        let is_packet =
            |event: &&TraceEvent| !matches!(event.what, What::Completed { .. } | What::Runs { .. });
        let mut last: Vec<_> = self.trace.0.iter().rev().filter(is_packet).take(count).collect();
        last.reverse();
        last
    }
}

fn describe(hosts: &[HostState], planned: &Planned) -> String {
    let name = |host: &usize| hosts[*host].name.clone();
    let names = |some: &[usize]| some.iter().map(name).collect::<Vec<_>>().join(", ");
    match planned {
        Planned::Crash(host) => format!("{} crashes", name(host)),
        Planned::Restart(host) => format!("{} restarts", name(host)),
        Planned::Pause(host) => format!("{} is paused", name(host)),
        Planned::Resume(host) => format!("{} goes on", name(host)),
        Planned::Partition(some, others) => {
            format!("a partition between {} and {}", names(some), names(others))
        }
        Planned::Heal => "the partition ends".into(),
    }
}
