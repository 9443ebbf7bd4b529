//! The header of a message that has a receive of a tag-matching SRQ.

use ferroce_wire::{Rvh, TagOperation, Tmh};

/// The message that has a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tagged {
    pub(crate) header: Tmh,
    pub(crate) matched: bool,
    pub(crate) sync_required: bool,
    /// Where the data are, of a rendezvous that has matched.
    pub(crate) rendezvous: Option<Rvh>,
}

impl Tagged {
    /// Bytes of the header that aren't placed.
    pub(crate) const fn header_len(&self) -> u64 {
        if self.matched { Tmh::LEN as u64 } else { 0 }
    }

    /// Bytes that go to the receive when the message has `total`.
    pub(crate) const fn data_len(&self, total: u64) -> u64 {
        match self.rendezvous {
            Some(rvh) => rvh.len as u64,
            None => total - self.header_len(),
        }
    }

    pub(crate) const fn is_unexpected(&self) -> bool {
        !self.matched && matches!(self.header.operation, TagOperation::Eager | TagOperation::Rendezvous)
    }
}
