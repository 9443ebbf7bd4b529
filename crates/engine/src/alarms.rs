//! Alarms: objects to notify at a time, if they still exist then.

use ferroce_os::sync::{Mutex, class};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Objects by the time of their alarms.
#[derive(Debug)]
pub(super) struct Alarms<T> {
    waiting: Mutex<class::Alarms, BTreeMap<(u64, usize), Weak<T>>>,
    /// The earliest, to check without the lock whether one is due.
    next: AtomicU64,
}

impl<T> Default for Alarms<T> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), next: AtomicU64::new(u64::MAX) }
    }
}

impl<T> Alarms<T> {
    /// The earliest time; `u64::MAX`: none.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// True if it is the earliest alarm now.
    pub(super) fn schedule(&self, object: &Arc<T>, at: u64) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.insert((at, Arc::as_ptr(object) as usize), Arc::downgrade(object));
        self.next.fetch_min(at, Ordering::AcqRel) > at
    }

    /// Takes an object whose time has come.
    #[inline]
    pub(super) fn pop_due(&self, now: u64) -> Option<Weak<T>> {
        if self.next() > now { None } else { self.pop(now) }
    }

    fn pop(&self, now: u64) -> Option<Weak<T>> {
        let mut waiting = self.waiting.lock();
        let due = waiting.first_key_value().is_some_and(|(&(at, _), _)| at <= now);
        let object = if due { waiting.pop_first().map(|(_, object)| object) } else { None };
        self.next.store(waiting.first_key_value().map_or(u64::MAX, |(&(at, _), _)| at), Ordering::Release);
        object
    }
}
