//! A packet of a ring, as its receiver gets it.

use super::{Link, LinkPeer};
use crate::payload::ShmPayload;
use crate::record::Record;

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
    pub fn peer(&self) -> LinkPeer {
        self.link.peer()
    }

    /// Its payload.
    #[inline]
    pub fn payload(&self) -> ShmPayload<'_> {
        let (at, len) = self.packet.payload;
        ShmPayload::Ring { memory: &self.link.memory, at, len }
    }
}
