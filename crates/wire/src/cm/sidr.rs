//! SIDR: the lookup of a datagram service (IBTA 12.11).

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
