//! Deadlines of QPs. Each QP has at most one live entry; a deadline that moves away costs nothing until the entry is due.

use super::Engine;
use crate::qp::Qp;
use ferroce_proto::Instant;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

/// All deadlines of the process.
#[derive(Debug)]
pub(super) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(u64, u32)>>>,
    /// The earliest, for whoever only wants to know whether something is due.
    next: AtomicU64,
}

impl Default for Timers {
    fn default() -> Self {
        Self { heap: Mutex::default(), next: AtomicU64::new(u64::MAX) }
    }
}

impl Timers {
    /// The earliest deadline; `u64::MAX`: none.
    pub(super) fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// True when the entry became the earliest one.
    fn add(&self, at: u64, qpn: u32) -> bool {
        let mut heap = self.heap.lock();
        heap.push(Reverse((at, qpn)));
        self.next.fetch_min(at, Ordering::AcqRel) > at
    }

    fn pop_due(&self, now: u64) -> Option<u32> {
        if self.next() > now {
            return None;
        }
        let mut heap = self.heap.lock();
        let due = heap.peek().is_some_and(|Reverse((at, _))| *at <= now);
        let qpn = if due { heap.pop().map(|Reverse((_, qpn))| qpn) } else { None };
        self.next.store(heap.peek().map_or(u64::MAX, |Reverse((at, _))| *at), Ordering::Release);
        qpn
    }
}

impl Engine {
    /// Sees to it that `qp` is looked at when `at` has come.
    pub(crate) fn schedule(&self, qp: &Qp, at: Instant) {
        if at.0 >= qp.timer.load(Ordering::Relaxed) {
            return;
        }
        qp.timer.store(at.0, Ordering::Relaxed);
        if self.timers.add(at.0, qp.qpn()) {
            self.wake_for(at);
        }
    }

    /// Lets the QPs work whose deadline has come.
    pub(super) fn run_timers(&'static self, now: Instant) -> usize {
        let mut count = 0;
        while let Some(qpn) = self.timers.pop_due(now.0) {
            let Some(qp) = self.qp(qpn) else { continue };
            qp.timer.store(u64::MAX, Ordering::Relaxed);
            self.with_work(|work| {
                qp.work(work, now, |proto, env| {
                    if proto.next_timeout().is_some_and(|at| at <= now) {
                        proto.handle_timeout(now, env);
                    }
                });
            });
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_in_order_and_not_early() {
        let timers = Timers::default();
        assert!(timers.add(30, 3));
        assert!(timers.add(10, 1));
        assert!(!timers.add(20, 2));
        assert_eq!(timers.pop_due(9), None);
        assert_eq!(timers.pop_due(25), Some(1));
        assert_eq!(timers.pop_due(25), Some(2));
        assert_eq!(timers.pop_due(25), None);
        assert_eq!(timers.next(), 30);
        assert_eq!(timers.pop_due(30), Some(3));
        assert_eq!(timers.next(), u64::MAX);
    }
}
