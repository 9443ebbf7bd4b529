//! Wire formats: what the bytes of RoCEv2 packets and of Ethernet frames mean, and nothing else.
//!
//! In here: BTH and the extension headers, the ICRC; messages of the communication manager; the headers of frames, their
//! checksums and hashes. Parse and emit only.
//! Out of here: sockets, state, time, memory of queue pairs.
//! Nothing in this crate panics on any input; it is `no_std` and has no `unsafe`.
#![no_std]
#![forbid(unsafe_code)]

pub mod checksum;
pub mod cm;
pub mod crc;
pub mod frame;
mod headers;
pub mod icrc;
mod opcode;
mod packet;
mod parse;
mod syndrome;
mod tags;
pub mod toeplitz;

pub use headers::{Aeth, AtomicEth, Bth, Deth, Feth, Headers, Reth};
pub use opcode::{Opcode, Operation, Service};
pub use packet::{Packet, PacketError, ShortPacket};
pub use parse::{EmitError, ParseError};
pub use syndrome::{NakCode, Syndrome};
pub use tags::{Rvh, TagOperation, Tmh};

/// UDP destination port of RoCEv2 (annex A17.3.1).
pub const ROCE_V2_PORT: u16 = 4791;
/// Bytes of the invariant CRC that ends every packet.
pub const ICRC_LEN: usize = 4;
/// Bytes of a BTH, which begins every packet.
pub const BTH_LEN: usize = 12;
/// Bytes of the shortest packet: a BTH and an ICRC.
pub const MIN_PACKET_LEN: usize = BTH_LEN + ICRC_LEN;
/// Bytes of the longest headers any opcode has: BTH, XRCETH and AtomicETH.
pub const MAX_HEADERS_LEN: usize = BTH_LEN + 4 + 28;
/// Reserved bytes between the BTH and the ICRC of a CNP (annex A17.9.3). [`Packet`] gives them as the payload.
pub const CNP_RESERVED_LEN: usize = 16;
