//! What has been sent to an object (a QP) of this process and not yet been looked at.

use crate::sync::{AtomicUsize, Mutex, Ordering, class};
use std::collections::VecDeque;

/// What counts towards the fill of an [`Inbox`].
pub trait PayloadBytes {
    /// Bytes of payload.
    fn bytes(&self) -> usize;
}

/// Packets that wait for whoever locks the object next. A sender that finds it locked puts it into the run queue.
#[derive(Debug)]
pub struct Inbox<R> {
    records: Mutex<class::Inbox, VecDeque<R>>,
    bytes: AtomicUsize,
    len: AtomicUsize,
    /// Records that have been taken out so far.
    taken: AtomicUsize,
}

impl<R> Default for Inbox<R> {
    fn default() -> Self {
        Self {
            records: Mutex::new(VecDeque::new()),
            bytes: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        }
    }
}

impl<R: PayloadBytes> Inbox<R> {
    /// Payload bytes above which senders wait.
    const BYTES: usize = 1 << 20;
    /// Records above which senders wait.
    const RECORDS: usize = 1024;

    /// A sender has to wait.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len.load(Ordering::Relaxed) >= Self::RECORDS || self.bytes.load(Ordering::Relaxed) >= Self::BYTES
    }

    /// Something has been sent that nobody has looked at.
    #[inline]
    pub fn has_records(&self) -> bool {
        self.len.load(Ordering::Acquire) > 0
    }

    /// Appends a packet, whatever the fill.
    pub fn push(&self, record: R) {
        let mut records = self.records.lock();
        self.bytes.fetch_add(record.bytes(), Ordering::Relaxed);
        records.push_back(record);
        self.len.store(records.len(), Ordering::Release);
    }

    /// Takes the oldest packet.
    pub fn pop(&self) -> Option<R> {
        let mut records = self.records.lock();
        let record = records.pop_front()?;
        self.bytes.fetch_sub(record.bytes(), Ordering::Relaxed);
        self.len.store(records.len(), Ordering::Release);
        self.taken.store(self.taken().wrapping_add(1), Ordering::Relaxed);
        Some(record)
    }

    /// How many packets have been taken so far.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// How many packets have been sent so far.
    pub fn sent(&self) -> usize {
        let records = self.records.lock();
        self.taken().wrapping_add(records.len())
    }
}
