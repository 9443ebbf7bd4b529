//! RoCEv2 wire formats: what a packet's bytes mean, and nothing else.
//!
//! In here: BTH and the extension headers, the ICRC. Parse and emit only.
//! Out of here: sockets, state, time, memory of queue pairs.
//! Nothing in this crate panics on any input; it is `no_std` and has no `unsafe`.
#![no_std]
#![forbid(unsafe_code)]

mod headers;
mod opcode;

pub use headers::{Aeth, AtomicEth, Bth, Deth, Headers, Reth};
pub use opcode::{Opcode, Operation, Service};

/// UDP destination port of RoCEv2 (annex A17.3.1).
pub const ROCE_V2_PORT: u16 = 4791;
/// Bytes of the invariant CRC that ends every packet.
pub const ICRC_LEN: usize = 4;
