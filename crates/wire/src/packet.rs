//! A whole packet from BTH to ICRC, as a UDP datagram carries it.

use crate::{Headers, ICRC_LEN, ParseError};
use core::error::Error;
use core::fmt;

/// A view of a packet: its headers, and its payload without pad and ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// The headers.
    pub headers: Headers,
    /// Bytes of the message. (Of a CNP: its reserved bytes.)
    pub payload: &'a [u8],
}

/// Why bytes aren't a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PacketError {
    /// The headers are wrong.
    Headers(ParseError),
    /// More pad bytes than there are bytes between headers and ICRC.
    Pad {
        /// The pad count of the BTH.
        pad: u8,
        /// Bytes between headers and ICRC.
        have: usize,
    },
    /// Payload and pad together aren't a multiple of 4 bytes (IBTA 9.2.3).
    Unaligned(usize),
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Headers(error) => error.fmt(f),
            Self::Pad { pad, have } => write!(f, "{pad} pad bytes in {have} bytes of payload and pad"),
            Self::Unaligned(len) => write!(f, "{len} bytes of payload and pad: not a multiple of 4"),
        }
    }
}

impl Error for PacketError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Headers(error) => error.source(),
            _ => None,
        }
    }
}

impl From<ParseError> for PacketError {
    fn from(error: ParseError) -> Self {
        Self::Headers(error)
    }
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
