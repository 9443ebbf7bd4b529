//! Payloads on their way through a link: into a ring and out of it.

use super::record::{CopiedPayload, MAX_COPIED};
use ferroce_access::{Fault, SharedMemory, copy};

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
    #[inline]
    pub fn copy_from(&self, offset: usize, addr: u64, len: usize) -> Result<(), Fault> {
        assert!(offset <= self.len && len <= self.len - offset);
        self.memory.copy_from_program(self.at + offset, addr, len)
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
    /// A copy in this process, which the peer can't change.
    Copied {
        /// The words that hold it.
        words: &'a CopiedPayload,
        /// Bytes.
        len: usize,
    },
}

#[expect(clippy::len_without_is_empty, reason = "no caller needs is_empty")]
impl ShmPayload<'_> {
    /// Bytes of the payload.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Ring { len, .. } | Self::Copied { len, .. } => *len,
        }
    }

    /// Copies `len` bytes from `offset` on to the program's memory at `addr`.
    ///
    /// # Errors
    /// A byte of the program's memory can't be written.
    #[inline]
    pub fn copy_to(&self, offset: usize, addr: u64, len: usize) -> Result<(), Fault> {
        match *self {
            Self::Ring { memory, at, len: whole } => {
                assert!(offset <= whole && len <= whole - offset);
                memory.copy_to_program(at + offset, addr, len)
            }
            Self::Copied { words, len: whole } => {
                assert!(offset <= whole && len <= whole - offset);
                let bytes = bytes_of(words);
                copy::write(addr, &bytes[offset..offset + len])
            }
        }
    }

    /// The bytes, for showing.
    pub fn to_vec(self) -> Vec<u8> {
        match self {
            Self::Ring { memory, at, len } => {
                let mut bytes = vec![0; len];
                memory.read(at, &mut bytes);
                bytes
            }
            Self::Copied { words, len } => bytes_of(words)[..len].to_vec(),
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
