//! Registered memory as requests name it.

use ferroce_types::{Sge, SgeList, one_sge};
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

    /// One piece, or none if it is empty.
    #[must_use]
    #[inline(always)]
    pub fn one(segment: Sge) -> Self {
        if segment.length > 0 { Self(one_sge(segment)) } else { Self::new() }
    }

    /// As the adapter's requests have them.
    #[must_use]
    #[inline(always)]
    pub fn into_list(self) -> SgeList {
        self.0
    }

    /// Bytes of all of them.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.iter().map(|segment| u64::from(segment.length)).sum()
    }

    /// Adds these.
    #[inline]
    pub fn append(&mut self, others: &Self) {
        self.0.extend_from_slice(others);
    }

    /// Leaves the first `bytes` bytes.
    #[inline]
    pub fn truncate(&mut self, bytes: u64) {
        match &mut self.0[..] {
            [only] if bytes > 0 => only.length = u64::from(only.length).min(bytes) as u32,
            _ => self.truncate_several(bytes),
        }
    }

    #[inline(never)]
    fn truncate_several(&mut self, mut bytes: u64) {
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

impl FromIterator<Sge> for Segments {
    fn from_iter<I: IntoIterator<Item = Sge>>(segments: I) -> Self {
        Self(segments.into_iter().filter(|segment| segment.length > 0).collect())
    }
}
