//! Payloads on their way through a link: into a ring and out of it.

use ferroce_access::{Fault, SharedMemory};

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
        ShmPayload::new(self.memory, self.at, self.len).to_vec()
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

/// The payload of a packet in a ring. The peer may still change its bytes.
#[derive(Clone, Copy)]
pub struct ShmPayload<'a> {
    memory: &'a SharedMemory,
    at: usize,
    len: usize,
}

#[expect(clippy::len_without_is_empty, reason = "no caller needs is_empty")]
impl<'a> ShmPayload<'a> {
    /// `len` bytes from byte `at` of `memory`.
    #[inline]
    pub(super) fn new(memory: &'a SharedMemory, at: usize, len: usize) -> Self {
        Self { memory, at, len }
    }

    /// Bytes of the payload.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies `len` bytes from `offset` on to the program's memory at `addr`.
    ///
    /// # Errors
    /// A byte of the program's memory can't be written.
    #[inline]
    pub fn copy_to(&self, offset: usize, addr: u64, len: usize) -> Result<(), Fault> {
        assert!(offset <= self.len && len <= self.len - offset);
        self.memory.copy_to_program(self.at + offset, addr, len)
    }

    /// The bytes, for showing.
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.memory.read(self.at, &mut bytes);
        bytes
    }
}
