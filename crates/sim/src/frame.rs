//! Packets of the simulated network.

use ferroce_wire::Headers;
use std::net::Ipv4Addr;

/// A packet.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) to: Ipv4Addr,
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
}
