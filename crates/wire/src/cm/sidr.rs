//! SIDR: the lookup of a datagram service (IBTA 12.11).

use super::fields::{Data, bytes, put, put_u16, put_u24, put_u32, put_u64, u16_at, u24_at, u32_at, u64_at};
use super::{Ece, ServiceId};

/// A question for the QPN and Q_Key of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrRequest {
    /// The requester's number of this lookup.
    pub request_id: u32,
    /// Partition key.
    pub pkey: u16,
    /// What it is for.
    pub service_id: ServiceId,
    /// The consumer's; with IP port spaces the first 36 bytes are an [`IpHeader`](super::IpHeader).
    pub private_data: [u8; SidrRequest::PRIVATE_DATA],
}

impl SidrRequest {
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 216;
}

/// How a lookup ended. The numbers are what programs see as an event's status.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SidrStatus(pub u8);

#[allow(missing_docs)] // The names are the specification's.
impl SidrStatus {
    pub const SUCCESS: Self = Self(0);
    pub const UNSUPPORTED: Self = Self(1);
    pub const REJECT: Self = Self(2);
    pub const NO_QP: Self = Self(3);
    pub const REDIRECT: Self = Self(4);
    pub const UNSUPPORTED_VERSION: Self = Self(5);
}

/// The answer to a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrReply {
    /// The requester's number of the lookup.
    pub request_id: u32,
    /// How it ended.
    pub status: SidrStatus,
    /// The QPN, 24 bits.
    pub qpn: u32,
    /// The service ID that was asked for.
    pub service_id: ServiceId,
    /// The QP's Q_Key.
    pub qkey: u32,
    /// What the responder's adapter has chosen.
    pub ece: Ece,
    /// Bytes of `info` that count.
    pub info_length: u8,
    /// Additional information, by status.
    pub info: [u8; SidrReply::INFO],
    /// The consumer's.
    pub private_data: [u8; SidrReply::PRIVATE_DATA],
}

impl SidrReply {
    /// Bytes of additional information.
    pub const INFO: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 136;
}

impl SidrRequest {
    pub(super) fn parse(data: &Data) -> Self {
        Self {
            request_id: u32_at(data, 0),
            pkey: u16_at(data, 4),
            service_id: ServiceId(u64_at(data, 8)),
            private_data: bytes(data, 16),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put_u32(data, 0, self.request_id);
        put_u16(data, 4, self.pkey);
        put_u64(data, 8, self.service_id.0);
        put(data, 16, self.private_data);
    }
}

impl SidrReply {
    /// An answer without a QP.
    #[must_use]
    pub const fn without_qp(request_id: u32, status: SidrStatus, service_id: ServiceId) -> Self {
        Self {
            request_id,
            status,
            qpn: 0,
            service_id,
            qkey: 0,
            ece: Ece { vendor_id: 0, options: 0 },
            info_length: 0,
            info: [0; Self::INFO],
            private_data: [0; Self::PRIVATE_DATA],
        }
    }

    pub(super) fn parse(data: &Data, modifier: u32) -> Self {
        Self {
            request_id: u32_at(data, 0),
            status: SidrStatus(data[4]),
            info_length: data[5],
            qpn: u24_at(data, 8),
            service_id: ServiceId(u64_at(data, 12)),
            qkey: u32_at(data, 20),
            ece: Ece { vendor_id: u32::from_be_bytes([0, data[6], data[7], data[11]]), options: modifier },
            info: bytes(data, 24),
            private_data: bytes(data, 96),
        }
    }

    /// Writes the message, and returns the attribute modifier.
    pub(super) fn emit(&self, data: &mut Data) -> u32 {
        let [_, high, middle, low] = self.ece.vendor_id.to_be_bytes();
        put_u32(data, 0, self.request_id);
        data[4] = self.status.0;
        data[5] = self.info_length;
        data[6] = high;
        data[7] = middle;
        put_u24(data, 8, self.qpn);
        data[11] = low;
        put_u64(data, 12, self.service_id.0);
        put_u32(data, 20, self.qkey);
        put(data, 24, self.info);
        put(data, 96, self.private_data);
        self.ece.options
    }
}
