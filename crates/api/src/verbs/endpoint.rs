//! What a queue pair has to know of its peer.

use ferroce_buffers::{Error, Result};

const VERSION: u8 = 1;

/// The address of a queue pair, for its peer. It can be sent as 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    pub(crate) gid: [u8; 16],
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) mtu: u32,
    pub(crate) reads: u8,
}

impl Endpoint {
    /// As bytes, for the peer.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        (bytes[0], bytes[1]) = (VERSION, self.reads);
        bytes[4..8].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.psn.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.mtu.to_be_bytes());
        bytes[16..32].copy_from_slice(&self.gid);
        bytes
    }

    /// From what a peer has sent.
    ///
    /// # Errors
    /// The bytes aren't an endpoint of this version, or a number is out of its range.
    pub fn from_bytes(bytes: [u8; 64]) -> Result<Self> {
        let number = |at: usize| bytes[at..at + 4].iter().fold(0_u32, |n, byte| n << 8 | u32::from(*byte));
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[16..32]);
        let endpoint = Self { gid, qpn: number(4), psn: number(8), mtu: number(12), reads: bytes[1] };
        let Self { qpn, psn, mtu, .. } = endpoint;
        if bytes[0] != VERSION {
            return Err(Error::invalid("endpoint", format!("unknown version {}", bytes[0])));
        }
        if qpn >> 24 != 0 || psn >> 24 != 0 || !is_mtu(mtu) {
            let why = format!("QPN {qpn:#x}, PSN {psn:#x} or MTU {mtu} is out of range");
            return Err(Error::invalid("endpoint", why));
        }
        Ok(endpoint)
    }
}

/// Whether packets may carry so many bytes of payload.
pub(crate) const fn is_mtu(mtu: u32) -> bool {
    mtu.is_power_of_two() && mtu >= 256 && mtu <= 4096
}
