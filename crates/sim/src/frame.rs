//! Packets of the simulated network.

use ferroce_wire::Headers;
use std::net::Ipv4Addr;

/// A packet.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) to: Ipv4Addr,
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
    /// Switches may mark it.
    pub(crate) ecn: bool,
    /// It has found a long queue.
    pub(crate) marked: bool,
}

impl Frame {
    pub(crate) const fn new(to: Ipv4Addr, headers: Headers, payload: Vec<u8>) -> Self {
        Self { to, headers, payload, ecn: false, marked: false }
    }
}
