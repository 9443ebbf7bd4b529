//! The bell: a thread that falls asleep while a record is being published is woken.

use crate::alarm::Alarm;
use crate::explore;
use crate::protocol::{Bell, Consumer};
use crate::ring::Ring;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use std::sync::Arc;

/// Records that are left.
const RECORDS: usize = 2;

/// What a process that sends and one that sleeps share. Each thread that sleeps has an alarm, since each polls the
/// doorbell, which wakes all of them.
struct Shared {
    ring: Ring,
    bell: Bell,
    background: Alarm,
    waiter: Alarm,
    /// Records that have been dealt with.
    done: AtomicUsize,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            ring: Ring::new(),
            bell: Bell::default(),
            background: Alarm::new(),
            waiter: Alarm::new(),
            done: AtomicUsize::new(0),
        })
    }

    fn wake_all(&self) {
        self.background.ring();
        self.waiter.ring();
    }

    fn leave(&self) {
        let mut producer = Ring::producer();
        for id in 0..RECORDS {
            self.ring.try_send(&mut producer, id, 1).unwrap();
            if self.bell.is_wanted() {
                self.wake_all();
            }
        }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst) == RECORDS
    }

    /// Deals with what is there, if no other thread is at it.
    fn progress(&self, consumer: &Mutex<Consumer>) {
        let Some(mut consumer) = consumer.try_lock().ok() else { return };
        while let Some((ids, _)) = self.ring.receive(&mut consumer, RECORDS) {
            if self.done.fetch_add(ids.len(), Ordering::SeqCst) + ids.len() == RECORDS {
                // The test may end.
                self.wake_all();
            }
        }
    }
}

fn consumer() -> Mutex<Consumer> {
    Mutex::new(Ring::consumer())
}

/// The background thread, until all is done.
fn background(shared: &Shared, consumer: &Mutex<Consumer>, forget: bool) {
    while !shared.is_done() {
        shared.progress(consumer);
        if shared.is_done() {
            return;
        }
        if forget {
            shared.bell.forget_waiters();
        }
        shared.bell.background_sleeps();
        assert!(shared.bell.wakes_background());
        if shared.ring.has_cells() {
            // Perhaps the other is at it.
            thread::yield_now();
        } else {
            shared.background.wait();
        }
        shared.bell.background_wakes();
        assert!(!shared.bell.wakes_background());
    }
}

/// A thread that waits for an event, until all is done.
fn waiter(shared: &Shared, consumer: &Mutex<Consumer>) {
    while !shared.is_done() {
        shared.progress(consumer);
        if shared.is_done() {
            return;
        }
        shared.bell.waiter_sleeps();
        if shared.ring.has_cells() {
            thread::yield_now();
        } else {
            shared.waiter.wait();
        }
        shared.bell.waiter_wakes();
    }
}

#[test]
fn the_background_thread_that_falls_asleep_is_woken() {
    explore(3, || {
        let shared = Shared::new();
        let other = shared.clone();
        let sender = thread::spawn(move || other.leave());
        background(&shared, &consumer(), false);
        sender.join().unwrap();
        assert!(!shared.bell.is_wanted());
    });
}

#[test]
fn a_waiter_that_falls_asleep_is_woken() {
    explore(3, || {
        let shared = Shared::new();
        let other = shared.clone();
        let sender = thread::spawn(move || other.leave());
        waiter(&shared, &consumer());
        sender.join().unwrap();
        assert!(!shared.bell.is_wanted());
    });
}

#[test]
fn who_forgets_cancelled_waiters_is_woken_itself() {
    explore(2, || {
        let shared = Shared::new();
        let others = [shared.clone(), shared.clone()];
        let [sender, cancelled] = others;
        let sender = thread::spawn(move || sender.leave());
        // It announces its sleep, is cancelled in it, and never calls `waiter_wakes`.
        let cancelled = thread::spawn(move || cancelled.bell.waiter_sleeps());
        background(&shared, &consumer(), true);
        sender.join().unwrap();
        cancelled.join().unwrap();
        shared.bell.forget_waiters();
        assert!(!shared.bell.is_wanted());
    });
}

#[test]
fn a_waiter_taken_for_a_cancelled_one_loses_nothing_and_counts_right_afterwards() {
    explore(2, || {
        let shared = Shared::new();
        let consumer = Arc::new(consumer());
        let sleeper = (shared.clone(), consumer.clone());
        let sender = shared.clone();
        let sender = thread::spawn(move || sender.leave());
        let sleeper = thread::spawn(move || waiter(&sleeper.0, &sleeper.1));
        background(&shared, &consumer, true);
        sender.join().unwrap();
        sleeper.join().unwrap();
        assert!(!shared.bell.is_wanted());
    });
}
