//! Deadlines of objects (QPs), by number. Each object has at most one live entry; a deadline that moves away costs nothing until the entry is due.

use crate::sync::{AtomicU64, Mutex, Ordering, class};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// All deadlines of the process.
#[derive(Debug)]
pub(crate) struct Deadlines {
    heap: Mutex<class::Deadlines, BinaryHeap<Reverse<(u64, u32)>>>,
    /// The earliest, to check without the lock whether one is due.
    next: AtomicU64,
}

/// The earliest entry of one object; `u64::MAX`: none.
#[derive(Debug)]
pub struct Deadline(AtomicU64);

impl Default for Deadline {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Deadline {
    /// Its entry has been taken. The object is looked at after this, under its lock, and scheduled anew.
    #[inline]
    pub fn taken(&self) {
        self.0.store(u64::MAX, Ordering::Relaxed);
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { heap: Mutex::new(BinaryHeap::new()), next: AtomicU64::new(u64::MAX) }
    }
}

impl Deadlines {
    /// The earliest deadline; `u64::MAX`: none.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Makes an entry for `number` at `at`, unless there is one at `at` or before. The caller holds the object's lock. True if it
    /// is the earliest entry of all.
    #[inline]
    pub(crate) fn schedule(&self, deadline: &Deadline, at: u64, number: u32) -> bool {
        if at >= deadline.0.load(Ordering::Relaxed) {
            return false;
        }
        deadline.0.store(at, Ordering::Relaxed);
        let mut heap = self.heap.lock();
        heap.push(Reverse((at, number)));
        self.next.fetch_min(at, Ordering::AcqRel) > at
    }

    /// Takes an entry that is due. Call [`Deadline::taken`] before looking at the object.
    #[inline]
    pub(crate) fn pop_due(&self, now: u64) -> Option<u32> {
        if self.next() > now {
            return None;
        }
        let mut heap = self.heap.lock();
        let due = heap.peek().is_some_and(|Reverse((at, _))| *at <= now);
        let number = if due { heap.pop().map(|Reverse((_, number))| number) } else { None };
        self.next.store(heap.peek().map_or(u64::MAX, |Reverse((at, _))| *at), Ordering::Release);
        number
    }
}
