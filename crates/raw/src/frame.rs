//! A frame on its way to the queues that flows choose.

use ferroce_wire::checksum;
use ferroce_wire::frame::Frame;

/// Bytes of a VLAN tag, and where it stands in a frame.
pub(super) const TAG: usize = 4;
pub(super) const TAG_AT: usize = 12;

/// A frame with what is known about it.
pub(super) struct IncomingFrame<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) headers: Frame,
    /// IPv4, TCP and UDP checksums are right.
    pub(super) checksums_ok: bool,
    /// The QP that has sent it, if it is of this process.
    pub(super) sender: Option<u32>,
}

impl<'a> IncomingFrame<'a> {
    /// `None` for what is shorter than an Ethernet header. `sealed`: the checksum of TCP or UDP is known to be right.
    pub(super) fn new(bytes: &'a [u8], sealed: bool, sender: Option<u32>) -> Option<Self> {
        let headers = Frame::parse(bytes)?;
        let checksums_ok = checksum::verify(bytes, &headers.outer, sealed);
        Some(Self { bytes, headers, checksums_ok, sender })
    }

    pub(super) fn is_multicast(&self) -> bool {
        self.bytes[0] & 1 != 0
    }

    /// The frame in two parts without its first VLAN tag, and the tag.
    pub(super) fn stripped(&self) -> Option<([&'a [u8]; 2], u16)> {
        let tag = self.headers.outer.ethernet?.vlan?;
        Some(([&self.bytes[..TAG_AT], &self.bytes[TAG_AT + TAG..]], tag))
    }
}
