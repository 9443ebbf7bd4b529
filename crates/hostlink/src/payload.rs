//! Payloads on their way through a link: into a ring, out of it, or straight out of the peer's memory.

use super::directory::{Purpose, QpnPair};
use super::link::{Link, Peer};
use super::record::{Body, CopiedPayload, MAX_COPIED, Piece, Record};
use ferroce_access::{Fault, SharedMemory, copy};
use ferroce_proto::PlaceError;

/// Room for a payload in a ring.
pub struct RingBytes<'a> {
    memory: &'a SharedMemory,
    at: usize,
    len: usize,
}

impl<'a> RingBytes<'a> {
    /// `len` bytes from byte `at` of `memory`.
    pub(super) fn new(memory: &'a SharedMemory, at: usize, len: usize) -> Self {
        Self { memory, at, len }
    }

    /// Copies bytes of this library in.
    pub fn put(&self, bytes: &[u8]) {
        self.memory.write(self.at, &bytes[..bytes.len().min(self.len)]);
    }

    /// The bytes, for showing.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.memory.read(self.at, &mut bytes);
        bytes
    }

    /// Copies `len` bytes of the program's memory at `addr` to byte `offset` of the payload.
    ///
    /// # Errors
    /// The memory isn't there.
    pub fn copy_from(&self, offset: usize, addr: u64, len: usize) -> Result<(), Fault> {
        assert!(offset <= self.len && len <= self.len - offset);
        self.memory.copy_from_program(self.at + offset, addr, len)
    }
}

/// A packet that has arrived.
#[derive(Debug)]
pub struct ReceivedRecord<'a> {
    link: &'a Link,
    /// The packet.
    pub packet: Record,
}

impl<'a> ReceivedRecord<'a> {
    pub(super) fn new(link: &'a Link, packet: Record) -> Self {
        Self { link, packet }
    }

    /// The link that it has come by.
    #[inline]
    pub fn link(&self) -> &'a Link {
        self.link
    }

    /// The process it is from.
    #[inline]
    pub fn peer(&self) -> Peer {
        self.link.peer()
    }

    /// Its payload, for the QP at whose end of `ends` it has arrived.
    #[inline]
    pub fn payload(&self, ends: QpnPair) -> ShmPayload<'_> {
        match &self.packet.body {
            &Body::Inline { at, len } => ShmPayload::Ring { memory: &self.link.memory, at, len },
            Body::Reference(pieces) => ShmPayload::Peer { link: self.link, ends, pieces },
        }
    }
}

/// The payload of a packet. The peer may still change its bytes where they aren't copied.
#[derive(Clone, Copy)]
pub enum ShmPayload<'a> {
    /// In a ring.
    Ring {
        /// The ring's memory.
        memory: &'a SharedMemory,
        /// The first byte there.
        at: usize,
        /// Bytes.
        len: usize,
    },
    /// A copy in this process, which nobody else can change.
    Copied {
        /// The words that hold it.
        words: &'a CopiedPayload,
        /// Bytes.
        len: usize,
    },
    /// In the peer's memory.
    Peer {
        /// The link to the peer.
        link: &'a Link,
        /// The QP that sent it and the one that it is for.
        ends: QpnPair,
        /// Where its parts are.
        pieces: &'a [Piece],
    },
}

#[expect(clippy::len_without_is_empty, reason = "nobody asks")]
impl ShmPayload<'_> {
    /// Bytes of the payload.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Ring { len, .. } | Self::Copied { len, .. } => *len,
            Self::Peer { pieces, .. } => pieces.iter().map(|piece| piece.len as usize).sum(),
        }
    }

    /// Copies `len` bytes from `offset` on to the program's memory at `addr`.
    ///
    /// # Errors
    /// See [`PlaceError`].
    pub fn copy_to(&self, offset: usize, addr: u64, len: usize) -> Result<(), PlaceError> {
        match *self {
            Self::Ring { memory, at, len: whole } => {
                assert!(offset <= whole && len <= whole - offset);
                memory.copy_to_program(at + offset, addr, len).map_err(|Fault| PlaceError::Memory)
            }
            Self::Copied { words, len: whole } => {
                assert!(offset <= whole && len <= whole - offset);
                let bytes = bytes_of(words);
                copy::write(addr, &bytes[offset..offset + len]).map_err(|Fault| PlaceError::Memory)
            }
            Self::Peer { link, ends, pieces } => link.fetch(ends, pieces, offset, addr, len),
        }
    }

    /// The bytes, for showing; fewer where they can't be had.
    pub fn to_vec(self) -> Vec<u8> {
        match self {
            Self::Ring { memory, at, len } => {
                let mut bytes = vec![0; len];
                memory.read(at, &mut bytes);
                bytes
            }
            Self::Copied { words, len } => bytes_of(words)[..len].to_vec(),
            Self::Peer { .. } => Vec::new(),
        }
    }
}

/// The words as they lie in memory.
#[inline]
fn bytes_of(words: &CopiedPayload) -> [u8; MAX_COPIED] {
    let mut bytes = [0; MAX_COPIED];
    bytes.as_chunks_mut::<8>().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_ne_bytes());
    bytes
}

impl Link {
    /// Copies `len` bytes from `offset` of `pieces` of the peer's memory to the program's memory at `addr`.
    fn fetch(
        &self,
        ends: QpnPair,
        pieces: &[Piece],
        offset: usize,
        addr: u64,
        len: usize,
    ) -> Result<(), PlaceError> {
        let mut begin = 0;
        let (mut done, end) = (0, offset + len);
        for piece in pieces {
            let (from, to) = (begin.max(offset), (begin + piece.len as usize).min(end));
            if from < to {
                let part = (piece.key, piece.va.wrapping_add((from - begin) as u64), (to - from) as u64);
                self.fetch_part(ends, part, addr + done as u64)?;
                done += to - from;
            }
            begin += piece.len as usize;
        }
        if done == len { Ok(()) } else { Err(PlaceError::Lost) }
    }

    fn fetch_part(
        &self,
        ends: QpnPair,
        (key, va, len): (u32, u64, u64),
        addr: u64,
    ) -> Result<(), PlaceError> {
        let part = (key, va, len);
        let copied = self.access(ends, part, Purpose::Fetch, |peer, from| {
            peer.read(from, addr, len as usize).then_some(())
        });
        if copied.is_some() {
            return Ok(());
        }
        // Whose memory is it that isn't there? Or was it listed only a moment later?
        let mut scratch = vec![0u8; len as usize];
        let to = scratch.as_mut_ptr() as u64;
        let readable = self
            .access(ends, part, Purpose::Fetch, |peer, from| peer.read(from, to, len as usize).then_some(()));
        if readable.is_some() {
            return copy::write(addr, &scratch).map_err(|Fault| PlaceError::Memory);
        }
        // The sender finds out by copying itself what is wrong, and what comes next comes through the ring.
        tracing::debug!(pid = self.pid, "a payload can't be fetched");
        self.offer_to_fetch(false);
        Err(PlaceError::Lost)
    }
}
