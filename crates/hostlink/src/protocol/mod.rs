//! The protocol of the words that two processes share: how far a ring is filled, what became of its cells, which threads sleep or watch,
//! which objects may be accessed.
//!
//! In here: the words and the orders in which they are written and read, on nothing but `crate::sync`, so that
//! `tests/shared` can run them in every order that threads and memory allow. Each word has one writing process, but those of a cell
//! that an answer may take have one at a time. The words of results that are awaited (`awaited`) are in one process alone.
//! Out of here: mappings, descriptors, packets.

mod attention;
mod awaited;
mod bell;
mod entry;
mod ring;

pub use attention::Attention;
pub(crate) use awaited::{AwaitedCells, NO_CELL};
pub use bell::Bell;
pub(crate) use entry::{AccessWord, DirectoryEntry, EndedFlag, RevokedObject};
pub(crate) use ring::{
    Broken, CELL, CellResult, CellSpace, Consumer, Producer, RingWords, fence_of_own_ring, is_published,
    published_end, result, set_result,
};
