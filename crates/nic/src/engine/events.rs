//! Completion events that moderation has put off (ibv_modify_cq(3)).

use super::{Engine, current};
use crate::cq::Cq;
use crate::sync::{Mutex, class};
use ferroce_proto::Instant;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Completion queues by the time of their events.
#[derive(Debug)]
pub(super) struct Events {
    waiting: Mutex<class::LateEvents, BTreeMap<(u64, usize), Weak<Cq>>>,
    /// The earliest, for whoever only wants to know whether something is due.
    next: AtomicU64,
}

impl Default for Events {
    fn default() -> Self {
        Self { waiting: Mutex::default(), next: AtomicU64::new(u64::MAX) }
    }
}

impl Events {
    /// The earliest time; `u64::MAX`: none.
    pub(super) fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// True when this made it the earliest of all.
    fn schedule(&self, cq: &Arc<Cq>, at: u64) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.insert((at, Arc::as_ptr(cq) as usize), Arc::downgrade(cq));
        self.next.fetch_min(at, Ordering::AcqRel) > at
    }

    /// Takes a queue whose time has come.
    fn pop_due(&self, now: u64) -> Option<Weak<Cq>> {
        if self.next() > now {
            return None;
        }
        let mut waiting = self.waiting.lock();
        let due = waiting.first_key_value().is_some_and(|(&(at, _), _)| at <= now);
        let cq = if due { waiting.pop_first().map(|(_, cq)| cq) } else { None };
        self.next.store(waiting.first_key_value().map_or(u64::MAX, |(&(at, _), _)| at), Ordering::Release);
        cq
    }
}

/// Sees to it that `cq` is looked at when `at` has come.
pub(crate) fn schedule_event(cq: &Arc<Cq>, at: Instant) {
    let Some(engine) = current() else { return };
    if engine.events.schedule(cq, at.0) {
        engine.wake_for(at);
    }
}

impl Engine {
    /// Raises the events whose time has come.
    pub(super) fn run_events(&self, now: Instant) {
        while let Some(cq) = self.events.pop_due(now.0) {
            if let Some(cq) = cq.upgrade() {
                cq.event_is_due(now);
            }
        }
    }
}
