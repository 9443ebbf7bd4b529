//! REJ: why there is no connection (IBTA 12.6.7).

use super::CommIds;
use super::fields::{Data, bytes, put, put_u16, put_u32, u16_at, u32_at};

/// Why a message was rejected (IBTA table 112). The numbers are what programs see as an event's status.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RejectReason(pub u16);

#[allow(missing_docs)] // The names are the specification's.
impl RejectReason {
    pub const NO_QP: Self = Self(1);
    pub const NO_RESOURCES: Self = Self(3);
    pub const TIMEOUT: Self = Self(4);
    pub const UNSUPPORTED: Self = Self(5);
    pub const INVALID_COMM_ID: Self = Self(6);
    pub const INVALID_SERVICE_ID: Self = Self(8);
    pub const INVALID_TRANSPORT: Self = Self(9);
    pub const STALE_CONNECTION: Self = Self(10);
    pub const INVALID_GID: Self = Self(12);
    pub const INVALID_ALTERNATE_GID: Self = Self(18);
    pub const INVALID_MTU: Self = Self(26);
    pub const INSUFFICIENT_RESPONDER_RESOURCES: Self = Self(27);
    pub const CONSUMER: Self = Self(28);
    pub const DUPLICATE_LOCAL_COMM_ID: Self = Self(30);
    pub const VENDOR_OPTION: Self = Self(35);
}

/// Which message was rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejected {
    /// REQ.
    Request,
    /// REP.
    Reply,
    /// Something else, or none: a timeout.
    Other,
}

/// A rejection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reject {
    /// The sender's communication ID; 0 when it has none.
    pub local_comm_id: u32,
    /// The receiver's; 0 when the sender doesn't know it.
    pub remote_comm_id: u32,
    /// What was rejected.
    pub rejected: Rejected,
    /// Bytes of `info` that count.
    pub info_length: u8,
    /// Why.
    pub reason: RejectReason,
    /// Additional information, by reason.
    pub info: [u8; Reject::INFO],
    /// The consumer's.
    pub private_data: [u8; Reject::PRIVATE_DATA],
}

impl Reject {
    /// Bytes of additional information.
    pub const INFO: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 148;
}

impl Rejected {
    /// Of the two bits of a REJ or MRA.
    pub(super) const fn of(code: u8) -> Self {
        match code & 3 {
            0 => Self::Request,
            1 => Self::Reply,
            _ => Self::Other,
        }
    }

    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Reply => 1,
            Self::Other => 2,
        }
    }
}

impl Reject {
    /// A rejection of a request, without additional information.
    #[must_use]
    pub const fn of_request(ids: CommIds, reason: RejectReason) -> Self {
        Self {
            local_comm_id: ids.local,
            remote_comm_id: ids.remote,
            rejected: Rejected::Request,
            info_length: 0,
            reason,
            info: [0; Self::INFO],
            private_data: [0; Self::PRIVATE_DATA],
        }
    }

    pub(super) fn parse(data: &Data) -> Self {
        Self {
            local_comm_id: u32_at(data, 0),
            remote_comm_id: u32_at(data, 4),
            rejected: Rejected::of(data[8] >> 6),
            info_length: data[9] >> 1,
            reason: RejectReason(u16_at(data, 10)),
            info: bytes(data, 12),
            private_data: bytes(data, 84),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put_u32(data, 0, self.local_comm_id);
        put_u32(data, 4, self.remote_comm_id);
        data[8] = self.rejected.code() << 6;
        data[9] = self.info_length << 1;
        put_u16(data, 10, self.reason.0);
        put(data, 12, self.info);
        put(data, 84, self.private_data);
    }
}
