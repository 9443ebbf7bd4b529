//! Registered memory as requests name it.

use smallvec::SmallVec;

/// A piece of registered memory, as a request names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The address of the first byte.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The local key.
    pub key: u32,
}

/// The pieces of a message.
pub type Segments = SmallVec<[Segment; 2]>;
