//! A round: each source, deadline, alarm and job has its turn.

use super::{Handler, Job, Loop, Source};
use ferroce_os::clock;
use ferroce_types::Instant;

impl<H: Handler> Loop<H> {
    /// One round of everything. Returns whether anything was done.
    pub(super) fn progress(handler: &'static H, now: Instant) -> bool {
        let engine = handler.engine();
        engine.look_at_a_descriptor(handler, now);
        let mut done = handler.sources().poll(now);
        done |= engine.run_deadlines(handler, now) > 0;
        engine.run_alarms(handler, now);
        done |= engine.run_queued();
        done
    }

    /// Lets those objects work whose deadline has come.
    #[inline]
    fn run_deadlines(&self, handler: &'static H, now: Instant) -> usize {
        let mut count = 0;
        while let Some(number) = self.deadlines.pop_due(now.0) {
            count += usize::from(handler.due(number, now));
        }
        count
    }

    /// Rings the alarms whose time has come.
    #[inline]
    fn run_alarms(&self, handler: &'static H, now: Instant) {
        while let Some(alarm) = self.alarms.pop_due(now.0) {
            if let Some(alarm) = alarm.upgrade() {
                handler.ring(alarm, now);
            }
        }
    }

    /// Gives each job in the run queue a turn.
    fn run_queued(&self) -> bool {
        let mut done = false;
        for _ in 0..self.run_queue.len() {
            let Some(job) = self.run_queue.pop() else { break };
            done = true;
            job.run(clock::now());
        }
        done
    }

    /// When something is to be done next, without anybody's doing; `u64::MAX`: never.
    pub(super) fn next(&self, sources: &impl Source) -> u64 {
        self.deadlines.next().min(self.alarms.next()).min(sources.next())
    }
}

#[cfg(test)]
mod tests {
    use super::super::handoff::{Deadline, Deadlines};

    #[test]
    fn deadlines_come_in_order_and_not_early() {
        let deadlines = Deadlines::default();
        let add = |at, number| deadlines.schedule(&Deadline::default(), at, number);
        assert!(add(30, 3));
        assert!(add(10, 1));
        assert!(!add(20, 2));
        assert_eq!(deadlines.pop_due(9), None);
        assert_eq!(deadlines.pop_due(25), Some(1));
        assert_eq!(deadlines.pop_due(25), Some(2));
        assert_eq!(deadlines.pop_due(25), None);
        assert_eq!(deadlines.next(), 30);
        assert_eq!(deadlines.pop_due(30), Some(3));
        assert_eq!(deadlines.next(), u64::MAX);
    }
}
