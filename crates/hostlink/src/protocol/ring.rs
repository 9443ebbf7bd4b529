//! A ring of cells between one producer and one consumer, with a ring of bulk beside it.
//!
//! Positions count cells, or bytes of bulk, since the beginning and never wrap. A cell's first word contains the cell's *stamp* once the
//! cell is published; bytes of bulk belong to the cell that names them. The consumer writes the *result* of a cell into a word of its own,
//! and before that an *answer*, if the producer has asked for one, to the cell or its bulk: these bytes are the consumer's from the moment
//! that the cell is published, and the producer's again when it has read the answer ([`AwaitedCells::oldest`]).
//! Neither side believes the other: a word that can't be right is [`Broken`].

use super::AwaitedCells;
use crate::sync::{AtomicU64, Ordering, fence, shared_words};
use std::collections::VecDeque;

/// Bytes of a cell. Bulk of a cell begins at a multiple of this.
pub(crate) const CELL: usize = 64;

/// The words of a ring that belong to no cell.
#[derive(Default, Debug)]
#[repr(C)]
pub(crate) struct RingWords {
    producer: ProducerLine,
    consumer: ConsumerLine,
}

/// Written by the producer's process only.
#[derive(Default, Debug)]
#[repr(C, align(128))]
struct ProducerLine {
    /// 1: the producer waits for room.
    waits: AtomicU64,
}

/// Written by the consumer's process only.
#[derive(Default, Debug)]
#[repr(C, align(128))]
struct ConsumerLine {
    /// The cells before this position have been dealt with.
    head: AtomicU64,
}

shared_words!(RingWords { producer, consumer } ProducerLine { waits } ConsumerLine { head });

/// The other side has written something that can't be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken;

/// What the consumer has made of a cell whose producer waits for its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum CellResult {
    /// It was executed: that acknowledges it.
    Done = 1,
    /// It was left to the general rules: packets acknowledge, refuse or repeat it.
    Left = 2,
}

/// A cell for which there is room, and its bulk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CellSpace {
    /// The cell's position.
    pub(crate) position: u64,
    /// The position of the first byte of its bulk, and the position after the last one.
    pub(crate) bulk: (u64, u64),
}

/// What the first word of the cell at `position` contains in its lower half when the cell is published.
#[inline]
const fn stamp(position: u64) -> u32 {
    (position as u32).wrapping_add(1)
}

/// Whether the cell at `position` is published, by its first word.
#[inline]
pub(crate) fn is_published(first: &AtomicU64, position: u64) -> bool {
    // SYNC: pairs with `Producer::publish`.
    first.load(Ordering::Acquire) as u32 == stamp(position)
}

/// The end of the published cells of a ring of `cells` cells, at least that at the time of the call. Those before `taken` have been dealt
/// with, and `first` returns the first word of a cell. The consumer may take cells meanwhile, and the producer publish others.
pub(crate) fn published_end<'a>(
    cells: usize,
    taken: &AtomicU64,
    first: impl Fn(u64) -> &'a AtomicU64,
) -> u64 {
    // In the words of a cell that was taken, the producer may have published one of the next round. SYNC: the producer has found that
    // room by `head` (`Producer::look`), which the consumer's thread stores (`Consumer::release`) after `taken`.
    // Model: `a_look_beside_reader_and_producer_finds_all_that_was_published`.
    let is_before_end = |at| is_published(first(at), at) || taken.load(Ordering::Acquire) > at;
    let begin = taken.load(Ordering::Acquire);
    let (mut end, mut beyond) = (begin, begin + cells as u64);
    while end != beyond {
        let middle = end + (beyond - end) / 2;
        if is_before_end(middle) {
            end = middle + 1;
        } else {
            beyond = middle;
        }
    }
    end
}

/// Precedes the look for cells in a ring that threads of one process read, of which one at a time holds the consumer. A thread looks when it
/// has published a cell, which it then takes if no other thread holds the consumer; and when it has freed the consumer.
#[inline]
pub(crate) fn fence_of_own_ring() {
    // SYNC: pairs with itself in another thread (store buffering): either the thread that has published finds the consumer free, or the
    // thread that has freed the consumer finds the cell. Model: `a_cell_that_finds_the_consumer_held_is_taken`.
    fence(Ordering::SeqCst);
}

/// Writes the result of the cell at `position`, by its consumer.
#[inline]
pub(crate) fn set_result(word: &AtomicU64, position: u64, result: CellResult) {
    // SYNC: pairs with `result`.
    word.store(position << 2 | result as u64, Ordering::Release);
}

/// The result of the cell at `position`, if there is one.
///
/// # Errors
/// The word contains a result that doesn't exist.
#[inline]
pub(crate) fn result(word: &AtomicU64, position: u64) -> Result<Option<CellResult>, Broken> {
    // SYNC: pairs with `set_result`. The word may contain the result of an earlier cell.
    match word.load(Ordering::Acquire).wrapping_sub(position << 2) {
        1 => Ok(Some(CellResult::Done)),
        2 => Ok(Some(CellResult::Left)),
        3 => Err(Broken),
        _ => Ok(None),
    }
}

impl RingWords {
    /// Announces that a QP of the producer's process waits for room: the consumer rings for room that it frees from now on. Call
    /// [`Producer::has_room`] afterwards: it sees the room that was freed before.
    pub(crate) fn wait(&self) {
        self.producer.waits.store(1, Ordering::Release);
        // SYNC: pairs with `Consumer::release` (store buffering): either `has_room` sees the new head, or `release` sees the new `waits`.
        // Model: `a_producer_that_fills_the_ring_more_than_once_is_told_of_room`. Pairs with `AwaitedCells::have_freed_room`, too: the caller
        // has noted that a QP waits.
        fence(Ordering::SeqCst);
    }

    /// No QP waits for room any more.
    pub(crate) fn stop_waiting(&self) {
        self.producer.waits.store(0, Ordering::Relaxed);
    }

    /// The consumer has dealt with all cells before `position`.
    #[inline]
    pub(crate) fn is_consumed(&self, position: u64) -> bool {
        self.consumer.head.load(Ordering::Acquire) >= position
    }
}

/// The producer's side.
#[derive(Debug)]
pub(crate) struct Producer {
    /// How many cells there are, and how many bytes of bulk: powers of two.
    cells: u64,
    bulk: u64,
    tail: u64,
    /// The consumer has dealt with the cells before this position, as far as is known.
    head: u64,
    /// … and their results have been read.
    free: u64,
    bulk_tail: u64,
    bulk_head: u64,
    /// The cells with bulk that aren't known to be free, each with the end of its bulk.
    with_bulk: VecDeque<(u64, u64)>,
}

impl Producer {
    /// At the beginning of a ring of so many cells and bytes of bulk, powers of two.
    pub(crate) const fn new(cells: usize, bulk: usize) -> Self {
        assert!(cells.is_power_of_two() && bulk.is_power_of_two());
        let with_bulk = VecDeque::new();
        Self {
            cells: cells as u64,
            bulk: bulk as u64,
            tail: 0,
            head: 0,
            free: 0,
            bulk_tail: 0,
            bulk_head: 0,
            with_bulk,
        }
    }

    /// Finds room for a cell with `len` bytes of bulk in a row, at most a quarter of the bulk; `None` when there isn't any now. Room is free
    /// when the consumer has dealt with its cell, and the result of the cell, if it is `awaited`, has been read.
    #[inline]
    pub(crate) fn reserve(
        &mut self,
        lines: &RingWords,
        awaited: &AwaitedCells,
        len: usize,
    ) -> Result<Option<CellSpace>, Broken> {
        let len = len as u64;
        let rest = self.bulk - (self.bulk_tail & (self.bulk - 1));
        let begin = if rest < len { self.bulk_tail + rest } else { self.bulk_tail };
        let end = (begin + len).next_multiple_of(CELL as u64);
        let is_full = |this: &Self| this.tail - this.free >= this.cells || end - this.bulk_head > this.bulk;
        if is_full(self) {
            self.look(lines, awaited)?;
            if is_full(self) {
                return Ok(None);
            }
        }
        Ok(Some(CellSpace { position: self.tail, bulk: (begin, end) }))
    }

    /// Looks how far the consumer is, and the readers of results.
    fn look(&mut self, lines: &RingWords, awaited: &AwaitedCells) -> Result<(), Broken> {
        let head = lines.consumer.head.load(Ordering::Acquire);
        if head < self.head || head > self.tail {
            return Err(Broken);
        }
        self.head = head;
        let free = head.min(awaited.oldest());
        self.free = free;
        while let Some(&(position, end)) = self.with_bulk.front().filter(|(position, _)| *position < free) {
            debug_assert!(position < self.tail);
            self.bulk_head = end;
            self.with_bulk.pop_front();
        }
        Ok(())
    }

    /// Gives the cell to the consumer: `first` is its first word, whose upper half becomes that of `word`. Returns the position after the
    /// cell.
    #[inline]
    pub(crate) fn publish(&mut self, space: CellSpace, first: &AtomicU64, word: u64) -> u64 {
        let CellSpace { position, bulk: (_, end) } = space;
        if end != self.bulk_tail {
            self.bulk_tail = end;
            self.with_bulk.push_back((position, end));
        }
        self.tail = position + 1;
        // SYNC: pairs with `is_published`. Model: `every_cell_arrives_whole_and_in_order_while_the_ring_wraps`.
        first.store(word & !u64::from(u32::MAX) | u64::from(stamp(position)), Ordering::Release);
        self.tail
    }

    /// At least half of the cells are free, and half of the bulk.
    pub(crate) fn has_room(&mut self, lines: &RingWords, awaited: &AwaitedCells) -> Result<bool, Broken> {
        self.look(lines, awaited)?;
        Ok(self.tail - self.free <= self.cells / 2 && self.bulk_tail - self.bulk_head <= self.bulk / 2)
    }
}

/// The consumer's side.
#[derive(Debug)]
pub(crate) struct Consumer {
    cells: u64,
    bulk: u64,
    head: u64,
    /// The end of the bulk of the last cell that had any, as the producer has written it.
    bulk_head: u64,
    /// Both when it was last asked whether the producer waits.
    asked: (u64, u64),
}

impl Consumer {
    /// At the beginning of a ring of so many cells and bytes of bulk.
    pub(crate) const fn new(cells: usize, bulk: usize) -> Self {
        Self { cells: cells as u64, bulk: bulk as u64, head: 0, bulk_head: 0, asked: (0, 0) }
    }

    /// The position of the next cell.
    #[inline]
    pub(crate) const fn head(&self) -> u64 {
        self.head
    }

    /// The next cell has been dealt with. `bulk_end`: where its bulk ends, if it has any.
    #[inline]
    pub(crate) fn advance(&mut self, bulk_end: Option<u64>) {
        self.head += 1;
        if let Some(end) = bulk_end {
            self.bulk_head = end;
        }
    }

    /// Returns the room of what has been dealt with to the producer. True if the producer waits for room and must be woken: it then finds
    /// out whether there is enough.
    #[inline]
    pub(crate) fn release(&mut self, lines: &RingWords) -> bool {
        // SYNC: pairs with `Producer::look` and `RingWords::is_consumed`.
        lines.consumer.head.store(self.head, Ordering::Release);
        // Looks at `waits` once per quarter of the ring, since that costs a fence. No wakeup is lost: a producer that waits saw more than
        // half of the cells in use, or of the bulk. So this consumer passes another quarter of these when more than half are free. Those
        // in use whose results are unread don't need it: a thread of the producer's that reads results looks for room.
        let (cells, bulk) = self.asked;
        if self.head - cells < self.cells / 4 && self.bulk_head.wrapping_sub(bulk) < self.bulk / 4 {
            return false;
        }
        self.asked = (self.head, self.bulk_head);
        // SYNC: pairs with `RingWords::wait`.
        fence(Ordering::SeqCst);
        lines.producer.waits.load(Ordering::Acquire) != 0
    }
}
