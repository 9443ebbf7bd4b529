//! The transport headers of a packet (IBTA 9.2, 9.3).

use crate::Opcode;

/// Base transport header, 12 bytes (IBTA 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Solicited event: the responder's completion raises an event.
    pub solicited: bool,
    /// Migration state bit; `true` ("migrated") on every packet that doesn't take part in path migration.
    pub migrated: bool,
    /// Pad bytes after the payload, 0 to 3.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// Destination QPN, 24 bits.
    pub dest_qp: u32,
    /// The requester wants an acknowledgement for this packet.
    pub ack_request: bool,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
}

/// RDMA extended transport header, 16 bytes (IBTA 9.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// Virtual address of the target buffer.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length of the whole message in bytes.
    pub dma_len: u32,
}

/// Flush extended transport header, 4 bytes (annex A19.4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feth {
    /// Placement type, 4 bits: 1 is global visibility, 2 persistence.
    pub placement: u8,
    /// Selectivity level, 2 bits: 0 is the range in the RETH, 1 the whole region.
    pub selectivity: u8,
}

/// ACK extended transport header, 4 bytes (IBTA 9.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// Syndrome as it is on the wire (IBTA 9.7.5.2.1, tables 44 to 46).
    pub syndrome: u8,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

/// Atomic extended transport header, 28 bytes (IBTA 9.3.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// Virtual address of the target, 8-byte aligned.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Swap value, or the number to add.
    pub swap_or_add: u64,
    /// Compare value.
    pub compare: u64,
}

/// Datagram extended transport header, 8 bytes (IBTA 9.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// Q_Key.
    pub qkey: u32,
    /// QPN of the sender, 24 bits.
    pub src_qp: u32,
}

/// Every transport header of one packet. Which of the optional ones are there follows from the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// XRC SRQ number (XRCETH), 24 bits.
    pub xrc_srqn: Option<u32>,
    /// Datagram header.
    pub deth: Option<Deth>,
    /// Flush header.
    pub flush: Option<Feth>,
    /// RDMA header.
    pub reth: Option<Reth>,
    /// Atomic request header.
    pub atomic: Option<AtomicEth>,
    /// Acknowledge header.
    pub aeth: Option<Aeth>,
    /// Original value of an atomic's target (AtomicAckETH).
    pub atomic_ack: Option<u64>,
    /// Immediate data (ImmDt), the four bytes as they are on the wire.
    pub immediate: Option<[u8; 4]>,
    /// Rkey to invalidate (IETH).
    pub invalidate_rkey: Option<u32>,
}

impl Bth {
    /// A packet of the default partition that asks for nothing.
    #[must_use]
    pub const fn new(opcode: Opcode, dest_qp: u32, psn: u32) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: true,
            pad: 0,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            dest_qp,
            ack_request: false,
            psn,
        }
    }
}

impl Headers {
    /// A packet with a BTH alone; the caller adds what the opcode asks for.
    #[must_use]
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            xrc_srqn: None,
            deth: None,
            flush: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            immediate: None,
            invalidate_rkey: None,
        }
    }
}
