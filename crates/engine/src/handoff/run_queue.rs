//! Jobs that used up their budget before they finished, or that another thread had locked.

use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, class};
use std::collections::VecDeque;
use std::sync::Arc;

/// Something that has a place in a run queue, once.
pub trait Runnable {
    /// Its place.
    fn queued(&self) -> &Queued;
}

/// Whether a job waits in the run queue.
#[derive(Debug)]
pub struct Queued(AtomicBool);

impl Default for Queued {
    fn default() -> Self {
        Self(AtomicBool::new(false))
    }
}

/// The queue.
#[derive(Debug)]
pub(crate) struct RunQueue<T: ?Sized> {
    entries: Mutex<class::RunQueue, VecDeque<Arc<T>>>,
    len: AtomicUsize,
}

impl<T: ?Sized> Default for RunQueue<T> {
    fn default() -> Self {
        Self { entries: Mutex::new(VecDeque::new()), len: AtomicUsize::new(0) }
    }
}

impl<T: Runnable + ?Sized> RunQueue<T> {
    /// Appends an entry that isn't there yet. True when the queue was empty.
    pub(crate) fn push(&self, entry: &Arc<T>) -> bool {
        if entry.queued().0.swap(true, Ordering::AcqRel) {
            return false;
        }
        let mut entries = self.entries.lock();
        entries.push_back(entry.clone());
        self.len.store(entries.len(), Ordering::Release);
        entries.len() == 1
    }

    /// Takes the oldest entry.
    pub(crate) fn pop(&self) -> Option<Arc<T>> {
        if self.is_empty() {
            return None;
        }
        let mut entries = self.entries.lock();
        let entry = entries.pop_front()?;
        self.len.store(entries.len(), Ordering::Release);
        // Acquires what the threads have written whose `push` found the entry queued: the caller works on that as well.
        entry.queued().0.swap(false, Ordering::AcqRel);
        Some(entry)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }
}
