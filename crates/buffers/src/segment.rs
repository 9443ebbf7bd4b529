//! Registered memory as requests name it.

use ferroce_types::{Sge, SgeList};
use std::ops::Deref;

/// The pieces of a message that aren't empty.
#[derive(Debug, Default)]
pub struct Segments(SgeList);

impl Segments {
    /// None.
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        Self(SgeList::new())
    }

    /// Adds a piece, if it isn't empty.
    #[inline]
    pub fn push(&mut self, segment: Sge) {
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
    type Target = [Sge];

    #[inline]
    fn deref(&self) -> &[Sge] {
        &self.0
    }
}
