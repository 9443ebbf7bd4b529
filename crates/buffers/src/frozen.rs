//! A buffer that several requests read at once.

use crate::Buffer;
use crate::range::limits;
use ferroce_types::Sge;
use std::fmt;
use std::ops::{Deref, RangeBounds};
use std::sync::Arc;

/// A shared, read-only part of a [`Buffer`]. Clones are cheap, so one buffer can be sent to many peers.
#[derive(Clone)]
pub struct Frozen {
    whole: Arc<Buffer>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// Makes it readable by many requests at once.
    #[must_use]
    pub fn freeze(self) -> Frozen {
        Frozen::new(self)
    }
}

impl Frozen {
    fn new(buffer: Buffer) -> Self {
        let len = buffer.length();
        Self { whole: Arc::new(buffer), start: 0, len }
    }

    /// A part of it.
    ///
    /// # Panics
    /// The range isn't within it.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let (start, end) = limits(&range, self.len);
        Self { whole: self.whole.clone(), start: self.start + start, len: end - start }
    }

    /// The buffer again.
    ///
    /// # Errors
    /// Other clones exist, or requests that name it are outstanding.
    pub fn thaw(self) -> Result<Buffer, Self> {
        let Self { whole, start, len } = self;
        Arc::try_unwrap(whole).map_err(|whole| Self { whole, start, len })
    }

    #[inline]
    pub(crate) fn segment(&self) -> Sge {
        let mut segment = self.whole.segment(self.len);
        segment.addr += self.start as u64;
        segment
    }

    #[inline]
    pub(crate) fn whole(&self) -> &Buffer {
        &self.whole
    }
}

impl Deref for Frozen {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.whole[self.start..self.start + self.len]
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen").field("len", &self.len).finish()
    }
}
