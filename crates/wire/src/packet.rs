//! A whole packet from BTH to ICRC, as a UDP datagram carries it.

use crate::{AtomicEth, Bth, Headers, ICRC_LEN, Opcode, Operation, ParseError, Reth, Service, Syndrome};
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

/// One of the packets that short messages, READs and atomics over RC consist of. It is read without the headers that it can't have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShortPacket<'a> {
    /// A SEND in one packet.
    Send {
        /// Its BTH.
        bth: Bth,
        /// Its immediate data, as they are on the wire.
        immediate: Option<[u8; 4]>,
        /// Bytes of the message.
        payload: &'a [u8],
    },
    /// An RDMA WRITE in one packet, without immediate data.
    Write {
        /// Its BTH.
        bth: Bth,
        /// Where it writes to.
        reth: Reth,
        /// Bytes of the message.
        payload: &'a [u8],
    },
    /// An acknowledgement that is neither a NAK nor asks for time, without a payload.
    Acknowledge {
        /// Its BTH.
        bth: Bth,
    },
    /// A READ request, without a payload.
    Read {
        /// Its BTH.
        bth: Bth,
        /// What it reads.
        reth: Reth,
    },
    /// A compare-and-swap or a fetch-and-add, without a payload.
    Atomic {
        /// Its BTH.
        bth: Bth,
        /// What it changes.
        atomic: AtomicEth,
    },
    /// A READ response in one packet, which acknowledges.
    ReadResponse {
        /// Its BTH.
        bth: Bth,
        /// What was read.
        payload: &'a [u8],
    },
    /// The result of an atomic, which acknowledges, without a payload.
    AtomicAcknowledge {
        /// Its BTH.
        bth: Bth,
        /// What the atomic has found.
        original: u64,
    },
}

impl<'a> ShortPacket<'a> {
    /// Reads a packet, BTH to ICRC, of which [`Packet::parse`] reads the same. `None`: it is another packet, or none.
    #[must_use]
    #[inline(always)]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (bth, rest) = bytes.split_first_chunk()?;
        let bth = Bth::parse(bth).ok()?;
        let (rest, _) = rest.split_last_chunk::<ICRC_LEN>()?;
        let Opcode { service: Service::Rc, operation } = bth.opcode else { return None };
        match operation {
            Operation::SendOnly => {
                Some(Self::Send { bth, immediate: None, payload: unpadded(rest, bth.pad)? })
            }
            Operation::SendOnlyWithImmediate => {
                let (immediate, rest) = rest.split_first_chunk()?;
                Some(Self::Send { bth, immediate: Some(*immediate), payload: unpadded(rest, bth.pad)? })
            }
            Operation::WriteOnly => {
                let (reth, rest) = rest.split_first_chunk()?;
                Some(Self::Write { bth, reth: Reth::parse(reth), payload: unpadded(rest, bth.pad)? })
            }
            Operation::Acknowledge => {
                let (aeth, rest) = rest.split_first_chunk()?;
                (acknowledges(aeth) && is_end(rest, bth.pad)).then_some(Self::Acknowledge { bth })
            }
            _ => Self::parse_fetch(bth, rest),
        }
    }

    /// Reads a READ, an atomic or the answer to one. Apart, so that SENDs and WRITEs don't pay for it.
    #[inline(never)]
    fn parse_fetch(bth: Bth, rest: &'a [u8]) -> Option<Self> {
        match bth.opcode.operation {
            Operation::ReadRequest => {
                let (reth, rest) = rest.split_first_chunk()?;
                is_end(rest, bth.pad).then(|| Self::Read { bth, reth: Reth::parse(reth) })
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                let (atomic, rest) = rest.split_first_chunk()?;
                let atomic = AtomicEth::parse(atomic).filter(|_| is_end(rest, bth.pad))?;
                Some(Self::Atomic { bth, atomic })
            }
            Operation::ReadResponseOnly => {
                let (aeth, rest) = rest.split_first_chunk()?;
                let payload = unpadded(rest, bth.pad)?;
                acknowledges(aeth).then_some(Self::ReadResponse { bth, payload })
            }
            Operation::AtomicAcknowledge => {
                let (aeth, rest) = rest.split_first_chunk()?;
                let (original, rest) = rest.split_first_chunk()?;
                let original = u64::from_be_bytes(*original);
                (acknowledges(aeth) && is_end(rest, bth.pad))
                    .then_some(Self::AtomicAcknowledge { bth, original })
            }
            _ => None,
        }
    }
}

/// Whether an AETH is an acknowledgement.
#[inline(always)]
fn acknowledges([syndrome, ..]: &[u8; 4]) -> bool {
    matches!(Syndrome::from_u8(*syndrome), Syndrome::Ack { .. })
}

/// Nothing follows the headers.
#[inline(always)]
const fn is_end(rest: &[u8], pad: u8) -> bool {
    rest.is_empty() && pad == 0
}

/// A payload without its pad bytes.
#[inline]
fn unpadded(padded: &[u8], pad: u8) -> Option<&[u8]> {
    let len = padded.len().checked_sub(usize::from(pad))?;
    padded.get(..len).filter(|_| padded.len().is_multiple_of(4))
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
    #[inline]
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
