//! The header that requests of the IP port spaces have before the consumer's private data (IBTA annex A11).

use core::net::{IpAddr, SocketAddr};

/// Bytes of the header.
pub const IP_HEADER_LEN: usize = 36;

/// Who asks whom, by IP addresses. The destination's port is in the service ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpHeader {
    /// The requester's address and port.
    pub source: SocketAddr,
    /// The responder's address.
    pub destination: IpAddr,
}
