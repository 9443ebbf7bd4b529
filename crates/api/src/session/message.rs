//! Received messages.

use crate::session::shared::{Received, Shared};
use ferroce_buffers::Buffer;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A message of the peer. When it is dropped, its buffer receives another one.
pub struct Message {
    shared: Arc<Shared>,
    /// `None` once the program has taken it.
    buffer: Option<Buffer>,
    immediate: Option<u32>,
    written: Option<usize>,
}

impl Message {
    #[inline]
    pub(crate) fn new(shared: &Arc<Shared>, received: Received) -> Self {
        let Received { buffer, immediate, written } = received;
        Self { shared: shared.clone(), buffer: Some(buffer), immediate, written }
    }

    /// The 32 bits that came with the message.
    #[must_use]
    pub const fn imm(&self) -> Option<u32> {
        self.immediate
    }

    /// The peer has written exposed memory of this side, and has announced it with this message, which is empty: how many bytes.
    #[must_use]
    pub const fn written(&self) -> Option<usize> {
        self.written
    }

    /// Takes the buffer. The connection receives into another one of its pool instead.
    #[must_use]
    pub fn into_buffer(mut self) -> Buffer {
        self.buffer.take().unwrap_or_else(|| unreachable!("taken by this call alone"))
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Message {
    #[inline]
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.shared.read(buffer);
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("len", &self.len()).field("imm", &self.immediate).finish()
    }
}
