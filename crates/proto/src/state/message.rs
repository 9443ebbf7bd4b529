//! The message in progress, and where in one a packet is.

use ferroce_wire::Opcode;

/// The message of several packets that is in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum MessageProgress {
    #[default]
    None,
    /// A SEND; `done` bytes have been placed into the held receive.
    Send { done: u64 },
    /// A message that another process takes in.
    Delegated,
    /// An RDMA WRITE; `done` of `len` bytes have been written.
    Write { va: u64, rkey: u32, len: u32, done: u32 },
}

/// First or only packet of a message.
pub(crate) const fn begins(opcode: Opcode) -> bool {
    opcode.is_first() || opcode.is_only()
}

/// Last or only packet of a message.
pub(crate) const fn ends(opcode: Opcode) -> bool {
    opcode.is_last() || opcode.is_only()
}
