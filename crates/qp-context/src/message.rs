//! The message in progress, and where in one a packet is.

use ferroce_wire::Opcode;

/// The message of several packets that is in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MessageProgress {
    /// There is none.
    #[default]
    None,
    /// A SEND.
    Send {
        /// Bytes that have been placed into the held receive.
        done: u64,
    },
    /// A message that another process takes in.
    Delegated,
    /// An RDMA WRITE.
    Write {
        /// Its address.
        va: u64,
        /// Its key.
        rkey: u32,
        /// All of its bytes.
        len: u32,
        /// Bytes that have been written.
        done: u32,
    },
}

/// First or only packet of a message.
pub const fn begins(opcode: Opcode) -> bool {
    opcode.is_first() || opcode.is_only()
}

/// Last or only packet of a message.
pub const fn ends(opcode: Opcode) -> bool {
    opcode.is_last() || opcode.is_only()
}
