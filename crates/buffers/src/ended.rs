//! Completions, as each backend reports them.

use crate::Fault;

/// When a request ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamp {
    /// By the device's clock, in its units.
    pub clock: u64,
    /// In nanoseconds since 1970.
    pub wall_clock: u64,
}

/// What of a [`Stamp`] a completion queue is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamped {
    /// [`Stamp::clock`].
    pub clock: bool,
    /// [`Stamp::wall_clock`].
    pub wall_clock: bool,
}

/// A completion of an adapter.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// The number that the request was posted with.
    pub wr_id: u64,
    /// The QPN of the queue pair.
    pub qpn: u32,
    /// A receive was taken by a peer's WRITE.
    pub is_write: bool,
    /// Bytes that were received, with the GRH of a datagram.
    pub byte_len: u32,
    /// The 32 bits that came with the message.
    pub immediate: Option<u32>,
    /// The key that the message has invalidated.
    pub invalidated: Option<u32>,
    /// The QPN that a datagram came from.
    pub source: u32,
    /// A datagram's memory begins with its GRH.
    pub has_grh: bool,
    /// When the request ended, if the completion queue was made for that.
    pub stamp: Stamp,
    /// Why the request has failed, if it has.
    pub fault: Option<Fault>,
}
