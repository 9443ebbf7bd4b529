//! Lets QPs work when their deadlines have come.

use super::Engine;
use crate::qp::Qp;
use ferroce_proto::Instant;

impl Engine {
    /// Sees to it that `qp` is looked at when `at` has come.
    pub(crate) fn schedule(&self, qp: &Qp, at: Instant) {
        if self.timers.schedule(&qp.deadline, at.0, qp.qpn()) {
            self.wake_for(at);
        }
    }

    /// Lets the QPs work whose deadline has come.
    pub(super) fn run_timers(&'static self, now: Instant) -> usize {
        let mut count = 0;
        while let Some(qpn) = self.timers.pop_due(now.0) {
            let Some(qp) = self.qp(qpn) else {
                count += usize::from(self.resume_raw(qpn));
                continue;
            };
            qp.deadline.taken();
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
    use super::super::handoff::{Deadline, Deadlines};

    #[test]
    fn deadlines_come_in_order_and_not_early() {
        let timers = Deadlines::default();
        let add = |at, qpn| timers.schedule(&Deadline::default(), at, qpn);
        assert!(add(30, 3));
        assert!(add(10, 1));
        assert!(!add(20, 2));
        assert_eq!(timers.pop_due(9), None);
        assert_eq!(timers.pop_due(25), Some(1));
        assert_eq!(timers.pop_due(25), Some(2));
        assert_eq!(timers.pop_due(25), None);
        assert_eq!(timers.next(), 30);
        assert_eq!(timers.pop_due(30), Some(3));
        assert_eq!(timers.next(), u64::MAX);
    }
}
