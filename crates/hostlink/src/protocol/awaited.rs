//! Which results a producer awaits, as its threads find out without a lock.

use crate::sync::{AtomicU64, Ordering};

/// In place of a cell's position: there is no such cell.
pub(crate) const NO_CELL: u64 = u64::MAX;

/// Words in memory of the producer's process. A lock of the caller's is held by a thread that sets the first, and by one that takes results.
#[derive(Debug)]
pub(crate) struct AwaitedCells {
    /// The position of the oldest cell whose result is awaited, or [`NO_CELL`].
    first: AtomicU64,
    /// The position of the oldest cell whose result is known while its QP is being notified, or [`NO_CELL`].
    notifying: AtomicU64,
}

impl AwaitedCells {
    /// No cell.
    pub(crate) fn new() -> Self {
        Self { first: AtomicU64::new(NO_CELL), notifying: AtomicU64::new(NO_CELL) }
    }

    /// The position of the oldest cell whose result is awaited, or [`NO_CELL`].
    #[inline]
    pub(crate) fn first(&self) -> u64 {
        self.first.load(Ordering::Acquire)
    }

    /// The position of the oldest cell whose result is awaited, or whose QP is being notified, or [`NO_CELL`]: the answers in this cell and
    /// those after it may be unread.
    #[inline]
    pub(crate) fn oldest(&self) -> u64 {
        // SYNC: `first` pairs with `AwaitedCells::set_first` as in `may_come_before`, `notifying` with `AwaitedCells::end_notifying`: an
        // answer has been read when its cell is found to be older. Model: `an_answer_is_read_before_its_room_is_used_again`.
        self.first().min(self.notifying.load(Ordering::Acquire))
    }

    /// Another cell is the oldest, or the first. The lock is held.
    #[inline]
    pub(crate) fn set_first(&self, position: u64) {
        // SYNC: pairs with `AwaitedCells::may_come_before`: a thread that finds this position finds `notifying` as it was before, or later.
        // Model: `a_result_is_to_come_until_its_qp_has_been_notified`.
        self.first.store(position, Ordering::Release);
    }

    /// The QPs are being notified of results from that of the first on. The lock is held.
    #[inline]
    pub(crate) fn begin_notifying(&self) {
        // SYNC: pairs with `AwaitedCells::oldest`: a thread that finds this finds that the notice before it has ended.
        self.notifying.store(self.first.load(Ordering::Relaxed), Ordering::Release);
    }

    /// They have been notified.
    #[inline]
    pub(crate) fn end_notifying(&self) {
        // SYNC: pairs with `AwaitedCells::may_come_before` and `AwaitedCells::oldest`: a thread that finds this finds that the QPs have been
        // notified.
        self.notifying.store(NO_CELL, Ordering::Release);
    }

    /// The first cell is one before `position` and `has_result`, or a QP is being notified of the result of such a cell.
    pub(crate) fn may_come_before(&self, position: u64, has_result: impl FnOnce(u64) -> bool) -> bool {
        let first = self.first();
        first < position && has_result(first) || self.notifying.load(Ordering::Acquire) < position
    }
}
