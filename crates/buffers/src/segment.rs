//! Registered memory as requests name it.

use smallvec::SmallVec;
use std::ops::Deref;

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

/// The pieces of a message that aren't empty.
#[derive(Debug, Default)]
pub struct Segments(SmallVec<[Segment; 2]>);

impl Segments {
    /// None.
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        Self(SmallVec::new())
    }

    /// Adds a piece, if it isn't empty.
    #[inline]
    pub fn push(&mut self, segment: Segment) {
        if segment.length > 0 {
            self.0.push(segment);
        }
    }

    /// Leaves the first `bytes` bytes.
    pub fn truncate(&mut self, mut bytes: u64) {
        for segment in &mut self.0 {
            segment.length = u64::from(segment.length).min(bytes) as u32;
            bytes -= u64::from(segment.length);
        }
        self.0.retain(|segment| segment.length > 0);
    }
}

impl Deref for Segments {
    type Target = [Segment];

    #[inline]
    fn deref(&self) -> &[Segment] {
        &self.0
    }
}
