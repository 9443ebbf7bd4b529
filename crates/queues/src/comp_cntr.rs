//! Completion counters (ibv_create_comp_cntr(3)): how many requests of QPs, or bytes, have completed, with success or not.

use ferroce_proto::SendOp;
use ferroce_types::{Error, Quota, QuotaPlace, Result, Users, WcStatus, invalid};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Counters a process may have.
pub const MAX_COMP_CNTR: u32 = 1 << 16;
static COUNTERS: Quota = Quota::new("completion counters", MAX_COMP_CNTR);

/// What a counter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompCntrType {
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

    /// The operation of a send request; atomics and what stays in the adapter aren't counted.
    #[must_use]
    pub fn of(op: &SendOp) -> Option<Self> {
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
pub struct CompCntr {
    counts: CompCntrType,
    completed: AtomicU64,
    failed: AtomicU64,
    users: Users,
    _held: QuotaPlace,
}

/// One of the two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CntrValue {
    /// What completed with success.
    Completed,
    /// What completed in error.
    Failed,
}

impl CompCntr {
    /// A counter at 0.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when there are [`MAX_COMP_CNTR`].
    pub fn create(counts: CompCntrType) -> Result<Arc<Self>> {
        let held = COUNTERS.take()?;
        let (completed, failed, users) = Default::default();
        Ok(Arc::new(Self { counts, completed, failed, users, _held: held }))
    }

    fn number(&self, which: CntrValue) -> &AtomicU64 {
        match which {
            CntrValue::Completed => &self.completed,
            CntrValue::Failed => &self.failed,
        }
    }

    /// The number now.
    #[must_use]
    pub fn value(&self, which: CntrValue) -> u64 {
        self.number(which).load(Ordering::Acquire)
    }

    /// Sets a number.
    pub fn set(&self, which: CntrValue, value: u64) {
        self.number(which).store(value, Ordering::Release);
    }

    /// Adds to a number.
    pub fn add(&self, which: CntrValue, amount: u64) {
        self.number(which).fetch_add(amount, Ordering::AcqRel);
    }

    fn count(&self, bytes: u64, status: WcStatus) {
        match (status, self.counts) {
            (WcStatus::Success, CompCntrType::Requests) => self.add(CntrValue::Completed, 1),
            (WcStatus::Success, CompCntrType::Bytes) => self.add(CntrValue::Completed, bytes),
            _ => self.add(CntrValue::Failed, 1),
        }
    }

    /// May it be destroyed?
    ///
    /// # Errors
    /// [`Error::Busy`] while it is attached to a QP.
    pub fn check_unused(&self) -> Result<()> {
        self.users.check_none("the counter still counts operations of queue pairs")
    }
}

/// The counters of a QP, by operation.
#[derive(Debug, Default)]
pub struct QpCntrs([OnceLock<Arc<CompCntr>>; 6]);

impl QpCntrs {
    /// Attaches a counter to operations; one caller at a time.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no operation, [`Error::NotSupported`] for one that isn't counted, [`Error::Busy`] for one
    /// that has a counter.
    pub fn attach(&self, counter: &Arc<CompCntr>, mask: u32) -> Result<()> {
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
            counter.users.hold();
            let _ = self.0[op as usize].set(counter.clone());
        }
        Ok(())
    }

    /// The counter of an operation.
    #[inline]
    #[must_use]
    pub fn get(&self, op: CountedOp) -> Option<&Arc<CompCntr>> {
        self.0[op as usize].get()
    }

    /// Counts a completion, if it has a counter.
    #[inline]
    pub fn count(&self, op: CountedOp, bytes: u64, status: WcStatus) {
        if let Some(counter) = self.get(op) {
            counter.count(bytes, status);
        }
    }

    /// Counts a READ of the peer, or a part that doesn't end it.
    pub fn count_read(&self, bytes: u64, ends: bool) {
        if let Some(counter) = self.get(CountedOp::RemoteRead)
            && (ends || counter.counts == CompCntrType::Bytes)
        {
            counter.count(bytes, WcStatus::Success);
        }
    }

    /// What others do without this process would go uncounted.
    #[must_use]
    pub fn counts_remote(&self) -> bool {
        [CountedOp::RemoteRead, CountedOp::RemoteWrite].iter().any(|&op| self.get(op).is_some())
    }

    /// The QP is gone.
    pub fn detach(&self) {
        for counter in self.0.iter().filter_map(OnceLock::get) {
            counter.users.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_has_one_counter_and_a_counter_many_operations() {
        let (attached, first, second) = (
            QpCntrs::default(),
            CompCntr::create(CompCntrType::Requests).unwrap(),
            CompCntr::create(CompCntrType::Bytes).unwrap(),
        );
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
        assert_eq!((first.value(CntrValue::Completed), first.value(CntrValue::Failed)), (2, 0));
        assert_eq!((second.value(CntrValue::Completed), second.value(CntrValue::Failed)), (100, 1));
        assert_eq!(first.check_unused().unwrap_err().errno(), libc::EBUSY);
        attached.detach();
        first.check_unused().unwrap();
        second.set(CntrValue::Completed, u64::MAX);
        second.add(CntrValue::Completed, 2);
        assert_eq!(second.value(CntrValue::Completed), 1);
    }
}
