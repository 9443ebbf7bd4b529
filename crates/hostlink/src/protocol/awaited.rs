//! Which results a producer awaits, as its threads find out without a lock.

use crate::sync::{AtomicU64, Ordering, fence};

/// In place of a cell's position: there is no such cell.
pub(crate) const NO_CELL: u64 = u64::MAX;

/// Words in memory of the producer's process. A lock of the caller's is held by a thread that sets the first, and by one that takes results.
#[derive(Debug)]
pub(crate) struct AwaitedCells {
    /// The position of the oldest cell whose result is awaited, or [`NO_CELL`].
    first: AtomicU64,
    /// The position of the oldest cell whose result is known while its QP is being notified, or [`NO_CELL`].
    notifying: AtomicU64,
    /// The position of the cell whose answer the QP that is being notified may be reading, or [`NO_CELL`].
    reading: AtomicU64,
}

impl AwaitedCells {
    /// No cell.
    pub(crate) fn new() -> Self {
        let [first, notifying, reading] = [(); 3].map(|()| AtomicU64::new(NO_CELL));
        Self { first, notifying, reading }
    }

    /// The position of the oldest cell whose result is awaited, or [`NO_CELL`].
    #[inline]
    pub(crate) fn first(&self) -> u64 {
        self.first.load(Ordering::Acquire)
    }

    /// The position of the oldest cell whose result is awaited, or whose answer is being read, or [`NO_CELL`]: the results and answers of this
    /// cell and those after it may be unread.
    #[inline]
    pub(crate) fn oldest(&self) -> u64 {
        // SYNC: `first` pairs with `AwaitedCells::set_first`: a thread that finds that a cell isn't the first any more finds `reading` as it
        // was before, or later. `reading` pairs with `AwaitedCells::end_notifying`: an answer has been read when its cell is found to be
        // older. Model: `an_answer_is_read_before_its_room_is_used_again`.
        self.first().min(self.reading.load(Ordering::Acquire))
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
        self.notifying.store(self.first.load(Ordering::Relaxed), Ordering::Release);
    }

    /// The answer of the cell at `position` is going to be read in this notice: its room isn't free until that has ended. The lock is held, and
    /// the first is that cell or one before it.
    #[inline]
    pub(crate) fn begin_reading(&self, position: u64) {
        // SYNC: pairs with `AwaitedCells::oldest`: a thread that finds this finds that the notice before it has ended.
        self.reading.store(position, Ordering::Release);
    }

    /// They have been notified.
    #[inline]
    pub(crate) fn end_notifying(&self) {
        // SYNC: `notifying` pairs with `AwaitedCells::may_come_before`, `reading` with `AwaitedCells::oldest`: a thread that finds this finds
        // that the QPs have been notified.
        self.notifying.store(NO_CELL, Ordering::Release);
        self.reading.store(NO_CELL, Ordering::Release);
    }

    /// Results have been read, which has freed room. Precedes the look for QPs that wait for some.
    #[inline]
    pub(crate) fn have_freed_room(&self) {
        // SYNC: pairs with `RingWords::wait` (store buffering): either a QP that is about to wait finds the room, or this thread finds that
        // the QP waits. Model: `a_queue_pair_that_waits_is_found_by_the_thread_that_reads_results`.
        fence(Ordering::SeqCst);
    }

    /// The first cell is one before `position` and `has_result`, or a QP is being notified of the result of such a cell.
    pub(crate) fn may_come_before(&self, position: u64, has_result: impl FnOnce(u64) -> bool) -> bool {
        let first = self.first();
        first < position && has_result(first) || self.notifying.load(Ordering::Acquire) < position
    }
}
