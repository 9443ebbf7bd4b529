//! REP: the reply to a request (IBTA 12.6.8).

use super::Ece;

/// A responder's reply: it is ready to receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The responder's communication ID.
    pub local_comm_id: u32,
    /// The requester's.
    pub remote_comm_id: u32,
    /// The responder's Q_Key; connections have none.
    pub qkey: u32,
    /// The responder's QPN, 24 bits.
    pub qpn: u32,
    /// The responder's EECN, 24 bits; with XRC the QPN of its target.
    pub eecn: u32,
    /// The PSN from which the *requester* shall send, 24 bits.
    pub starting_psn: u32,
    /// RDMA READs and atomics that the responder answers at a time.
    pub responder_resources: u8,
    /// RDMA READs and atomics that the responder asks at a time.
    pub initiator_depth: u8,
    /// The responder's delay before it acknowledges, 5 bits: 4.096 µs · 2^n.
    pub target_ack_delay: u8,
    /// Whether path migration was accepted, 2 bits; 0 is yes.
    pub failover_accepted: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// RNR retry count of the connection, 3 bits.
    pub rnr_retry_count: u8,
    /// The responder's QP receives from an SRQ.
    pub srq: bool,
    /// The responder's CA GUID.
    pub ca_guid: u64,
    /// What the responder's adapter has chosen.
    pub ece: Ece,
    /// The consumer's.
    pub private_data: [u8; Reply::PRIVATE_DATA],
}

impl Reply {
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 196;
}
