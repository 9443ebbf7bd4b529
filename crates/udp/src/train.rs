//! Trains: packets that leave by one message with `UDP_SEGMENT`.

use super::endpoint::Dest;
use std::sync::Arc;

/// Segments the kernel takes in a train (Linux 6.1; later ones take 128).
pub(super) const MAX_SEGMENTS: u16 = 64;
/// Bytes in a train, a little below the largest UDP length.
pub(super) const MAX_TRAIN: usize = 65_000;
/// Packets of equal size to one destination, the last perhaps shorter; they lie one after the other in the buffer.
pub(super) struct Train {
    pub(super) dest: Dest,
    pub(super) start: usize,
    pub(super) len: usize,
    /// Bytes of each packet but the last.
    pub(super) segment: usize,
    pub(super) count: u16,
}

impl Train {
    /// The socket that it leaves by: where its endpoint lies in memory, and its number there.
    #[inline]
    pub(super) fn socket(&self) -> (usize, u8) {
        (Arc::as_ptr(&self.dest.endpoint).addr(), self.dest.sender)
    }

    /// Whether a packet of this length may follow.
    pub(super) fn takes(&self, dest: &Dest, len: usize) -> bool {
        // A multiple: no shorter packet has ended the train yet.
        self.len == self.segment * usize::from(self.count)
            && len <= self.segment
            && self.count < MAX_SEGMENTS
            && self.len + len <= MAX_TRAIN
            && self.dest.same_train(dest)
            && dest.endpoint.segmentation()
    }
}

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flushed {
    /// Packets the kernel took.
    pub sent: usize,
    /// Packets it didn't; lost, as on a wire.
    pub dropped: usize,
}
