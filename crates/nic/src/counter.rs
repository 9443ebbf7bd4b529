//! Completion counters (ibv_create_comp_cntr(3)): how many requests of QPs, or bytes, have completed, with success or not.

use crate::error::{Error, Result, invalid};
use crate::{Context, Qp, engine};
use ferroce_proto::{SendOp, WcStatus};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Counters a process may have.
pub const MAX_COUNTERS: usize = 1 << 16;

static EXISTING: AtomicUsize = AtomicUsize::new(0);

/// What a counter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counts {
    /// Work requests.
    Requests,
    /// Bytes of those that succeed; one for each that fails.
    Bytes,
}

/// Which completions of a QP (IBV_QP_ATTACH_COMP_CNTR_OP_*); discriminants are bit numbers. A READ of a peer has completed
/// when its answer has left. One that comes as several READ requests counts once if only the last asks for an ACK, as
/// Ferroce's do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum CountedOp {
    Send = 0,
    Recv = 1,
    Read = 2,
    RemoteRead = 3,
    Write = 4,
    RemoteWrite = 5,
}

impl CountedOp {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Send, Self::Recv, Self::Read, Self::RemoteRead, Self::Write, Self::RemoteWrite];

    /// Its bit in a mask.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// That of a send request; atomics and what stays in the adapter aren't counted.
    pub(crate) fn of(op: &SendOp) -> Option<Self> {
        match op {
            SendOp::Send | SendOp::SendWithImmediate { .. } | SendOp::SendWithInvalidate { .. } => {
                Some(Self::Send)
            }
            SendOp::Write { .. } | SendOp::WriteWithImmediate { .. } => Some(Self::Write),
            SendOp::Read { .. } => Some(Self::Read),
            _ => None,
        }
    }
}

/// A completion counter: two numbers of 64 bits, which wrap around.
#[derive(Debug)]
pub struct CompCounter {
    counts: Counts,
    completed: AtomicU64,
    failed: AtomicU64,
    users: AtomicUsize,
}

/// One of the two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// What completed with success.
    Completed,
    /// What completed in error.
    Failed,
}

impl CompCounter {
    /// A counter at 0.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when there are [`MAX_COUNTERS`].
    pub fn create(_context: &Arc<Context>, counts: Counts) -> Result<Arc<Self>> {
        let one_more = |n: usize| (n < MAX_COUNTERS).then_some(n + 1);
        EXISTING
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .map_err(|n| Error::NoMemory(format!("{n} completion counters exist")))?;
        let (completed, failed, users) = Default::default();
        Ok(Arc::new(Self { counts, completed, failed, users }))
    }

    fn number(&self, entry: Entry) -> &AtomicU64 {
        match entry {
            Entry::Completed => &self.completed,
            Entry::Failed => &self.failed,
        }
    }

    /// The number now. Who reads it is waiting: it makes progress, as polling does.
    #[must_use]
    pub fn read(&self, entry: Entry) -> u64 {
        engine::progress_of_poller(true, false);
        self.number(entry).load(Ordering::Acquire)
    }

    /// Sets a number.
    pub fn set(&self, entry: Entry, value: u64) {
        self.number(entry).store(value, Ordering::Release);
    }

    /// Adds to a number.
    pub fn add(&self, entry: Entry, amount: u64) {
        self.number(entry).fetch_add(amount, Ordering::AcqRel);
    }

    fn count(&self, bytes: u64, status: WcStatus) {
        match (status, self.counts) {
            (WcStatus::Success, Counts::Requests) => self.add(Entry::Completed, 1),
            (WcStatus::Success, Counts::Bytes) => self.add(Entry::Completed, bytes),
            _ => self.add(Entry::Failed, 1),
        }
    }

    /// May it be destroyed?
    ///
    /// # Errors
    /// [`Error::Busy`] while it is attached to a QP.
    pub fn check_unused(&self) -> Result<()> {
        match self.users.load(Ordering::Acquire) {
            0 => Ok(()),
            n => Err(Error::Busy(format!("the counter is still attached to queue pairs, {n} times"))),
        }
    }
}

impl Drop for CompCounter {
    fn drop(&mut self) {
        EXISTING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The counters of a QP, by operation.
#[derive(Debug, Default)]
pub(crate) struct Attached([OnceLock<Arc<CompCounter>>; 6]);

impl Attached {
    /// Attaches a counter to operations; one caller at a time.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no operation, [`Error::NotSupported`] for one that isn't counted, [`Error::Busy`] for one
    /// that has a counter.
    pub(crate) fn attach(&self, counter: &Arc<CompCounter>, mask: u32) -> Result<()> {
        let known: u32 = CountedOp::ALL.iter().map(|op| op.bit()).sum();
        if mask == 0 {
            return invalid!("a counter of no operation");
        }
        if mask & !known != 0 {
            return Err(Error::NotSupported(format!("counters of operations {:#x}", mask & !known)));
        }
        let ops = || CountedOp::ALL.into_iter().filter(|op| mask & op.bit() != 0);
        if let Some(op) = ops().find(|&op| self.get(op).is_some()) {
            return Err(Error::Busy(format!("{op:?} requests of the queue pair have a counter already")));
        }
        for op in ops() {
            counter.users.fetch_add(1, Ordering::Relaxed);
            let _ = self.0[op as usize].set(counter.clone());
        }
        Ok(())
    }

    pub(crate) fn get(&self, op: CountedOp) -> Option<&Arc<CompCounter>> {
        self.0[op as usize].get()
    }

    /// Counts a completion, if it has a counter.
    pub(crate) fn count(&self, op: CountedOp, bytes: u64, status: WcStatus) {
        if let Some(counter) = self.get(op) {
            counter.count(bytes, status);
        }
    }

    /// Counts a READ of the peer, or a part that doesn't end it.
    pub(crate) fn count_read(&self, bytes: u64, ends: bool) {
        if let Some(counter) = self.get(CountedOp::RemoteRead)
            && (ends || counter.counts == Counts::Bytes)
        {
            counter.count(bytes, WcStatus::Success);
        }
    }

    /// What others do without this process would go uncounted.
    pub(crate) fn counts_remote(&self) -> bool {
        [CountedOp::RemoteRead, CountedOp::RemoteWrite].iter().any(|&op| self.get(op).is_some())
    }

    /// The QP is gone.
    pub(crate) fn detach(&self) {
        for counter in self.0.iter().filter_map(OnceLock::get) {
            counter.users.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Qp {
    /// Attaches a completion counter to the operations of `mask` (bits of [`CountedOp`]; ibv_qp_attach_comp_cntr(3)).
    ///
    /// # Errors
    /// [`Error::Invalid`] for no operation or a QP that has left INIT; [`Error::NotSupported`] for operations that aren't
    /// counted; [`Error::Busy`] for one that has a counter.
    pub fn attach_counter(&self, counter: &Arc<CompCounter>, mask: u32) -> Result<()> {
        self.before_use(|| self.counters_of_ops().attach(counter, mask))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(counts: Counts) -> Arc<CompCounter> {
        let (completed, failed, users) = Default::default();
        EXISTING.fetch_add(1, Ordering::Relaxed);
        Arc::new(CompCounter { counts, completed, failed, users })
    }

    #[test]
    fn an_operation_has_one_counter_and_a_counter_many_operations() {
        let (attached, first, second) =
            (Attached::default(), counter(Counts::Requests), counter(Counts::Bytes));
        let bits = |ops: &[CountedOp]| ops.iter().map(|op| op.bit()).sum::<u32>();
        attached.attach(&first, bits(&[CountedOp::Send, CountedOp::Write])).unwrap();
        let overlap = attached.attach(&second, bits(&[CountedOp::Recv, CountedOp::Send])).unwrap_err();
        assert_eq!(overlap.errno(), libc::EBUSY);
        attached.attach(&second, bits(&[CountedOp::Recv])).unwrap();
        assert_eq!(attached.attach(&second, 0).unwrap_err().errno(), libc::EINVAL);
        for unknown in [1 << 6, 1 << 7] {
            assert_eq!(attached.attach(&second, unknown).unwrap_err().errno(), libc::EOPNOTSUPP);
        }
        attached.count(CountedOp::Send, 100, WcStatus::Success);
        attached.count(CountedOp::Write, 100, WcStatus::Success);
        attached.count(CountedOp::Recv, 100, WcStatus::Success);
        attached.count(CountedOp::Recv, 100, WcStatus::WrFlushErr);
        attached.count(CountedOp::Read, 100, WcStatus::Success);
        attached.count_read(100, true);
        assert_eq!((first.read(Entry::Completed), first.read(Entry::Failed)), (2, 0));
        assert_eq!((second.read(Entry::Completed), second.read(Entry::Failed)), (100, 1));
        assert_eq!(first.check_unused().unwrap_err().errno(), libc::EBUSY);
        attached.detach();
        first.check_unused().unwrap();
        second.set(Entry::Completed, u64::MAX);
        second.add(Entry::Completed, 2);
        assert_eq!(second.read(Entry::Completed), 1);
    }
}
