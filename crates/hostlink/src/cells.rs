//! Where the cells of a ring are, their results, and their bulk.

use super::protocol::CELL;
use ferroce_access::{SharedMemory, SharedPlace, SharedWords, layout};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Cells of a ring.
pub(super) const CELLS: usize = 4096;
/// Bytes of bulk of a ring.
pub(super) const BULK: usize = 512 * 1024;
/// Where the bulk begins: after the cells and their results.
const BULK_AT: usize = size_of::<CellLines>();
/// Bytes of all together.
pub(super) const SPAN: usize = BULK_AT + BULK;

/// A cell in memory. The last word contains the position of its bulk, if it has any.
pub(super) type Cell = [AtomicU64; CELL / size_of::<u64>()];

/// The cells, each a line, and their results.
#[repr(C, align(128))]
struct CellLines {
    /// Written by the ring's producer; the bytes of an answer, by the consumer, until its result has been read.
    cells: [Cell; CELLS],
    /// Written by the ring's consumer. They aren't in the cells: eight share a line, and the producer reads only cells with answers again.
    results: [AtomicU64; CELLS],
}

ferroce_access::shared_words!(CellLines { cells, results });

/// Of all together.
pub(super) const LAYOUT: u64 =
    layout(SPAN, &[("cells", 0, CellLines::LAYOUT), ("bulk", BULK_AT, CELL as u64)]);

/// Cells, results and bulk of a ring in a link's memory.
#[derive(Debug)]
pub(super) struct RingPlace {
    words: SharedPlace<CellLines>,
    /// Where they begin in the link's memory.
    at: usize,
}

/// The number of the cell at a position.
#[inline]
const fn cell_number(position: u64) -> usize {
    position as usize & (CELLS - 1)
}

impl RingPlace {
    /// Those that begin at byte `at` of a link's memory.
    pub(super) fn new(memory: &Arc<SharedMemory>, at: usize) -> Self {
        Self { words: SharedPlace::new(memory, at), at }
    }

    /// The cell at a position.
    #[inline]
    pub(super) fn cell(&self, position: u64) -> &Cell {
        &self.words.cells[cell_number(position)]
    }

    /// Where the cell at a position begins in the link's memory.
    #[inline]
    pub(super) fn cell_at(&self, position: u64) -> usize {
        self.at + offset_of!(CellLines, cells) + cell_number(position) * CELL
    }

    /// The word with the result of the cell at a position.
    #[inline]
    pub(super) fn result(&self, position: u64) -> &AtomicU64 {
        &self.words.results[cell_number(position)]
    }

    /// Where the bulk at a position begins in the link's memory.
    #[inline]
    pub(super) fn bulk_at(&self, position: u64) -> usize {
        self.at + BULK_AT + (position as usize & (BULK - 1))
    }

    /// Bytes of bulk from a position on, in a row.
    #[inline]
    pub(super) fn bulk_left(position: u64) -> usize {
        BULK - (position as usize & (BULK - 1))
    }
}
