//! What the engine does with the hand-offs, as far as their promises depend on it.

use crate::alarm::Alarm;
use crate::handoff::{Deadline, Deadlines, Queued, RunQueue, Runnable, Sleep};
use crate::sync::{AtomicUsize, Mutex, Ordering, class};
use loom::thread;
use std::sync::Arc;

/// Switches of threads at places where none has to wait: bugs with more are rare, and the search is short.
const PREEMPTIONS: usize = 3;
/// What is left for the QP by as many threads.
const PACKETS: usize = 2;
const NOW: u64 = 10;
const LONG: u64 = 1000;

pub(crate) fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// A QP: its lock holds how much it has worked on.
#[derive(Default)]
struct Qp {
    left: Left,
    queued: Queued,
    deadline: Deadline,
    worked: Worked,
}

/// How much is left for it to work on.
struct Left(AtomicUsize);

impl Default for Left {
    fn default() -> Self {
        Self(AtomicUsize::new(0))
    }
}

struct Worked(Mutex<class::Qp, usize>);

impl Default for Worked {
    fn default() -> Self {
        Self(Mutex::new(0))
    }
}

impl Runnable for Qp {
    fn queued(&self) -> &Queued {
        &self.queued
    }
}

/// What the threads of a process share.
struct Engine {
    qp: Arc<Qp>,
    run_queue: RunQueue<Qp>,
    timers: Deadlines,
    sleep: Sleep,
    alarm: Alarm,
}

impl Engine {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            qp: Arc::default(),
            run_queue: RunQueue::default(),
            timers: Deadlines::default(),
            sleep: Sleep::default(),
            alarm: Alarm::new(),
        })
    }

    fn wake_for(&self, at: u64) {
        if self.sleep.interrupt(at) {
            self.alarm.ring();
        }
    }

    fn enqueue(&self) {
        if self.run_queue.push(&self.qp) {
            self.wake_for(NOW);
        }
    }

    /// Leaves something for the QP.
    fn leave(&self) {
        self.qp.left.0.fetch_add(1, Ordering::Relaxed);
        self.enqueue();
    }

    fn run_queued(&self) -> bool {
        let Some(qp) = self.run_queue.pop() else { return false };
        let mut worked = qp.worked.0.lock();
        *worked += qp.left.0.swap(0, Ordering::Relaxed);
        if *worked == PACKETS {
            // Nothing is left to do, and the test may end.
            self.alarm.ring();
        }
        true
    }

    /// The background thread, until `done`.
    fn background(&self, done: impl Fn() -> bool, progress: impl Fn()) {
        while !done() {
            progress();
            if done() {
                return;
            }
            let due = || if self.run_queue.is_empty() { self.timers.next() } else { NOW };
            if self.sleep.begin(LONG, due) > NOW {
                self.alarm.wait();
            }
            self.sleep.end();
        }
    }
}

#[test]
fn what_is_left_while_the_background_thread_falls_asleep_is_worked_on() {
    explore(|| {
        let engine = Engine::new();
        let senders = [(); PACKETS].map(|()| {
            let engine = engine.clone();
            thread::spawn(move || engine.leave())
        });
        let done = || *engine.qp.worked.0.lock() == PACKETS;
        engine.background(done, || while engine.run_queued() {});
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

#[test]
fn a_qp_enqueued_while_it_is_popped_runs_again() {
    explore(|| {
        let engine = Engine::new();
        let other = engine.clone();
        let other = thread::spawn(move || other.leave());
        // Its budget has ended: nothing is left for it.
        engine.enqueue();
        while engine.run_queued() {}
        other.join().unwrap();
        while engine.run_queued() {}
        assert_eq!(engine.run_queue.len(), 0);
        assert_eq!(*engine.qp.worked.0.lock(), 1);
    });
}

#[test]
fn a_deadline_set_while_the_background_thread_falls_asleep_is_kept() {
    explore(|| {
        let engine = Engine::new();
        let fired = Arc::new(Mutex::<class::Qp, _>::new(0));
        let setters = [(NOW, 1), (NOW - 5, 2)].map(|(at, qpn)| {
            let engine = engine.clone();
            thread::spawn(move || {
                if engine.timers.schedule(&Deadline::default(), at, qpn) {
                    engine.wake_for(at);
                }
            })
        });
        let progress = || {
            while let Some(qpn) = engine.timers.pop_due(NOW) {
                *fired.lock() += qpn;
            }
        };
        engine.background(|| *fired.lock() == 3, progress);
        for setter in setters {
            setter.join().unwrap();
        }
        assert_eq!(engine.timers.next(), u64::MAX);
    });
}

#[test]
fn a_deadline_that_moves_while_its_entry_is_taken_stays_set() {
    explore(|| {
        let engine = Engine::new();
        engine.timers.schedule(&engine.qp.deadline, NOW, 1);
        let other = engine.clone();
        // The QP's next deadline becomes 20, whichever thread looks first.
        let look = |engine: &Engine| {
            let _worked = engine.qp.worked.0.lock();
            engine.timers.schedule(&engine.qp.deadline, 20, 1);
        };
        let other = thread::spawn(move || look(&other));
        if engine.timers.pop_due(NOW).is_some() {
            engine.qp.deadline.taken();
            look(&engine);
        }
        other.join().unwrap();
        assert_eq!(engine.timers.next(), 20);
        assert_eq!(engine.timers.pop_due(20), Some(1));
    });
}
