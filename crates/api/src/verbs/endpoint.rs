//! What a queue pair has to know of its peer.

use ferroce_buffers::{Error, Result};

const VERSION: u8 = 1;

/// Bytes of the GRH before a datagram.
pub(crate) const GRH: usize = 40;

/// The address of a queue pair, for its peer. It can be sent as 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    pub(crate) gid: [u8; 16],
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) mtu: u32,
    pub(crate) reads: u8,
    /// Of a queue pair for datagrams.
    pub(crate) qkey: u32,
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
        bytes[32..36].copy_from_slice(&self.qkey.to_be_bytes());
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
        let (qpn, psn, mtu, qkey) = (number(4), number(8), number(12), number(32));
        let endpoint = Self { gid, qpn, psn, mtu, reads: bytes[1], qkey };
        if bytes[0] != VERSION {
            return Err(Error::invalid("endpoint", format!("unknown version {}", bytes[0])));
        }
        if qpn >> 24 != 0 || psn >> 24 != 0 || !is_mtu(mtu) {
            let why = format!("QPN {qpn:#x}, PSN {psn:#x} or MTU {mtu} is out of range");
            return Err(Error::invalid("endpoint", why));
        }
        Ok(endpoint)
    }

    /// The QPN.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.qpn
    }

    /// The sender of a datagram. RoCEv2 has an IPv4 header in the last 20 bytes of a GRH, or an IPv6 header.
    pub(crate) fn of_sender(grh: &[u8], qpn: u32, qkey: u32) -> Option<Self> {
        let grh: &[u8; GRH] = grh.try_into().ok()?;
        let mut gid = [0; 16];
        if grh[0] >> 4 == 6 {
            gid.copy_from_slice(&grh[8..24]);
        } else if grh[20] >> 4 == 4 {
            gid[10..12].copy_from_slice(&[0xff; 2]);
            gid[12..].copy_from_slice(&grh[32..36]);
        } else {
            return None;
        }
        Some(Self { gid, qpn: qpn & 0xff_ffff, psn: 0, mtu: LARGEST_MTU, reads: 0, qkey })
    }
}

/// Bytes of payload in the largest packet that the specification has.
const LARGEST_MTU: u32 = 4096;

/// Whether packets may carry so many bytes of payload.
pub(crate) const fn is_mtu(mtu: u32) -> bool {
    mtu.is_power_of_two() && mtu >= 256 && mtu <= LARGEST_MTU
}
