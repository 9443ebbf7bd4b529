//! The header of a message that has a receive of a tag-matching SRQ.

use ferroce_wire::{Rvh, TagOperation, Tmh};

/// The message that has a receive.
#[derive(Clone, Copy, Debug)]
pub struct Tagged {
    /// The header.
    pub header: Tmh,
    /// It has matched a receive with a tag.
    pub matched: bool,
    /// The receiver has to be in step with the sender again.
    pub sync_required: bool,
    /// Where the data are, of a rendezvous that has matched.
    pub rendezvous: Option<Rvh>,
}

impl Tagged {
    /// Bytes of the header that aren't placed.
    pub const fn header_len(&self) -> u64 {
        if self.matched { Tmh::LEN as u64 } else { 0 }
    }

    /// Bytes that go to the receive when the message has `total`.
    pub const fn data_len(&self, total: u64) -> u64 {
        match self.rendezvous {
            Some(rvh) => rvh.len as u64,
            None => total - self.header_len(),
        }
    }

    /// It has matched none.
    pub const fn is_unexpected(&self) -> bool {
        !self.matched && matches!(self.header.operation, TagOperation::Eager | TagOperation::Rendezvous)
    }
}
