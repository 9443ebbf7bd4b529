//! REP: the reply to a request (IBTA 12.6.8).

use super::Ece;
use super::fields::{Data, bytes, put, put_u24, put_u32, put_u64, u24_at, u32_at, u64_at};

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

impl Reply {
    pub(super) fn parse(data: &Data, modifier: u32) -> Self {
        let (b26, b27) = (data[26], data[27]);
        Self {
            local_comm_id: u32_at(data, 0),
            remote_comm_id: u32_at(data, 4),
            qkey: u32_at(data, 8),
            qpn: u24_at(data, 12),
            eecn: u24_at(data, 16),
            starting_psn: u24_at(data, 20),
            responder_resources: data[24],
            initiator_depth: data[25],
            target_ack_delay: b26 >> 3,
            failover_accepted: b26 >> 1 & 3,
            flow_control: b26 & 1 != 0,
            rnr_retry_count: b27 >> 5,
            srq: b27 & 0x10 != 0,
            ca_guid: u64_at(data, 28),
            ece: Ece { vendor_id: u32::from_be_bytes([0, data[15], data[19], data[23]]), options: modifier },
            private_data: bytes(data, 36),
        }
    }

    /// Writes the message, and returns the attribute modifier.
    pub(super) fn emit(&self, data: &mut Data) -> u32 {
        let [_, high, middle, low] = self.ece.vendor_id.to_be_bytes();
        put_u32(data, 0, self.local_comm_id);
        put_u32(data, 4, self.remote_comm_id);
        put_u32(data, 8, self.qkey);
        put_u24(data, 12, self.qpn);
        data[15] = high;
        put_u24(data, 16, self.eecn);
        data[19] = middle;
        put_u24(data, 20, self.starting_psn);
        data[23] = low;
        data[24] = self.responder_resources;
        data[25] = self.initiator_depth;
        data[26] =
            self.target_ack_delay << 3 | (self.failover_accepted & 3) << 1 | u8::from(self.flow_control);
        data[27] = self.rnr_retry_count << 5 | u8::from(self.srq) << 4;
        put_u64(data, 28, self.ca_guid);
        put(data, 36, self.private_data);
        self.ece.options
    }
}
