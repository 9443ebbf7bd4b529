//! A whole packet from BTH to ICRC, as a UDP datagram carries it.

use crate::{Headers, ICRC_LEN, ParseError};

/// A view of a packet: its headers, and its payload without pad and ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// The headers.
    pub headers: Headers,
    /// Bytes of the message. (Of a CNP: its reserved bytes.)
    pub payload: &'a [u8],
}

/// Why bytes aren't a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum PacketError {
    /// The headers are wrong.
    #[error(transparent)]
    Headers(#[from] ParseError),
    /// More pad bytes than there are bytes between headers and ICRC.
    #[error("{pad} pad bytes in {have} bytes of payload and pad")]
    Pad {
        /// What the BTH says.
        pad: u8,
        /// Bytes between headers and ICRC.
        have: usize,
    },
    /// Payload and pad together aren't a multiple of 4 bytes (IBTA 9.2.3).
    #[error("{0} bytes of payload and pad: not a multiple of 4")]
    Unaligned(usize),
}

impl<'a> Packet<'a> {
    /// Reads a packet, BTH to ICRC: everything that is in the UDP datagram. The ICRC itself is checked elsewhere
    /// ([`crate::icrc`]); an opcode that has no payload isn't refused for bringing one.
    ///
    /// # Errors
    /// See [`PacketError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        // Without room for the ICRC the headers are as good as truncated.
        let covered = &bytes[..bytes.len().saturating_sub(ICRC_LEN)];
        let (headers, len) = Headers::parse(covered)?;
        let padded = covered.get(len..).unwrap_or_default();
        if padded.len() % 4 != 0 {
            return Err(PacketError::Unaligned(padded.len()));
        }
        let pad = headers.bth.pad;
        let payload = padded
            .len()
            .checked_sub(usize::from(pad))
            .and_then(|n| padded.get(..n))
            .ok_or(PacketError::Pad { pad, have: padded.len() })?;
        Ok(Self { headers, payload })
    }
}
