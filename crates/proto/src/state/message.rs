//! The message in progress, and where in one a packet is.

use ferroce_wire::{Headers, Opcode};

/// The message of several packets that is in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Message {
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

/// Are the extension headers there that the opcode promises?
pub(crate) fn has_extensions(h: &Headers) -> bool {
    let op = h.bth.opcode;
    (!op.carries_xrceth() || h.xrc_srqn.is_some())
        && (!op.carries_reth() || h.reth.is_some())
        && (!op.carries_feth() || h.flush.is_some())
        && (!op.is_atomic() || h.atomic.is_some())
        && (!op.carries_aeth() || h.aeth.is_some())
        && (!op.carries_atomic_ack() || h.atomic_ack.is_some())
        && (!op.carries_immediate() || h.immediate.is_some())
        && (!op.carries_invalidate() || h.invalidate_rkey.is_some())
        && (!op.carries_deth() || h.deth.is_some())
}
