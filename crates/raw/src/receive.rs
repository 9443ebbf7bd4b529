//! Frames from a packet socket, in batches. The kernel adds a header and a control message to each frame, and leaves checksums,
//! segmentation and VLAN tags to be completed here.

use super::frame::{TAG, TAG_AT};
use super::segment::segments;
use ferroce_os::{
    sys::ReceiveBatch,
    sys::control::{ReceivedControls, space},
};
use ferroce_wire::checksum;
use std::os::fd::RawFd;

/// Frames taken at once.
const BATCH: usize = 16;
/// Bytes for one frame: 64 KiB of IP, its link headers, and the kernel's header before it ([`VnetHeader`]).
const FRAME: usize = 65 << 10;

/// `struct virtio_net_hdr`, before each frame of a socket with PACKET_VNET_HDR.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct VnetHeader {
    flags: u8,
    segmentation: u8,
    segment_size: u16,
    checksum_start: u16,
    checksum_place: u16,
}

impl VnetHeader {
    /// Its bytes.
    pub(super) const SIZE: usize = 10;
    /// The checksum of TCP or UDP is to be completed.
    const NEEDS_CHECKSUM: u8 = 1;
    /// The checksum has been verified.
    const CHECKED: u8 = 2;

    /// Flags, the kind of segmentation, and words in the machine's order: the length of headers, the size of a segment,
    /// where checksums begin, and where they go from there.
    fn parse(&[flags, segmentation, _, _, s0, s1, c0, c1, p0, p1]: &[u8; Self::SIZE]) -> Self {
        Self {
            flags,
            segmentation,
            segment_size: u16::from_ne_bytes([s0, s1]),
            checksum_start: u16::from_ne_bytes([c0, c1]),
            checksum_place: u16::from_ne_bytes([p0, p1]),
        }
    }
}

// A tag takes the place of the header's end.
const _: () = assert!(TAG <= VnetHeader::SIZE);

/// The buffers of one socket.
pub(super) struct FrameReceiver(ReceiveBatch<BATCH, FRAME, { space(size_of::<libc::tpacket_auxdata>()) }>);

impl FrameReceiver {
    pub(super) fn new() -> Self {
        Self(ReceiveBatch::new(false))
    }

    /// Takes one batch and calls `f` with each frame as it is on a wire, and whether the checksum of TCP or UDP is known to
    /// be right. Whether there was any frame.
    pub(super) fn receive(&mut self, fd: RawFd, f: &mut dyn FnMut(&[u8], bool)) -> bool {
        let count = match self.0.receive(fd, BATCH) {
            Ok(count) => count,
            Err(error) => {
                if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) {
                    // A frame that the kernel can't describe (EINVAL), or an interface that is down: others may follow.
                    tracing::debug!(%error, "receiving from a packet socket");
                }
                return false;
            }
        };
        for message in self.0.messages() {
            if message.truncated {
                tracing::debug!(length = message.bytes.len(), "a frame is too long");
                continue;
            }
            if let Some(header) = message.bytes.first_chunk() {
                let vnet = VnetHeader::parse(header);
                deliver(&mut message.bytes[VnetHeader::SIZE - TAG..], vnet, tag(message.control), f);
            }
        }
        count > 0
    }
}

/// The VLAN tag that the kernel has taken out, with its EtherType.
fn tag(messages: ReceivedControls<'_>) -> Option<[u8; TAG]> {
    for message in messages {
        if (message.level, message.kind) == (libc::SOL_PACKET, libc::PACKET_AUXDATA)
            && let Some(facts) = message.payload.first_chunk::<{ size_of::<libc::tpacket_auxdata>() }>()
        {
            // `struct tpacket_auxdata`: status at 0, the tag at 16, its EtherType at 18.
            let status = u32::from_ne_bytes([facts[0], facts[1], facts[2], facts[3]]);
            let native = |at: usize| u16::from_ne_bytes([facts[at], facts[at + 1]]);
            if status & libc::TP_STATUS_VLAN_VALID != 0 {
                let kind = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { native(18) } else { 0x8100 };
                let (kind, tag) = (kind.to_be_bytes(), native(16).to_be_bytes());
                return Some([kind[0], kind[1], tag[0], tag[1]]);
            }
        }
    }
    None
}

/// Completes a frame, which `buffer` has after room for a tag, to what it is on a wire.
fn deliver(buffer: &mut [u8], vnet: VnetHeader, tag: Option<[u8; TAG]>, f: &mut dyn FnMut(&[u8], bool)) {
    if buffer.len() < TAG + TAG_AT {
        return;
    }
    let begun = vnet.flags & VnetHeader::NEEDS_CHECKSUM != 0;
    if vnet.segmentation != 0 {
        let size = vnet.segment_size.into();
        return segments(&buffer[TAG..], size, &mut |segment| match tag {
            None => f(segment, true),
            Some(tag) => f(&[&segment[..TAG_AT], &tag, &segment[TAG_AT..]].concat(), true),
        });
    }
    if begun {
        checksum::complete(&mut buffer[TAG..], vnet.checksum_start.into(), vnet.checksum_place.into());
    }
    let sealed = begun || vnet.flags & VnetHeader::CHECKED != 0;
    match tag {
        None => f(&buffer[TAG..], sealed),
        Some(tag) => {
            buffer.copy_within(TAG..TAG + TAG_AT, 0);
            buffer[TAG_AT..TAG_AT + TAG].copy_from_slice(&tag);
            f(buffer, sealed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_os::sys::control::ControlBuffer;
    use ferroce_wire::frame::Frame;

    /// The tag that is read from a control message with these values.
    fn said(status: u32, tag_and_kind: [u16; 2]) -> Option<[u8; TAG]> {
        let mut facts = [0; size_of::<libc::tpacket_auxdata>()];
        facts[..4].copy_from_slice(&status.to_ne_bytes());
        facts[16..18].copy_from_slice(&tag_and_kind[0].to_ne_bytes());
        facts[18..20].copy_from_slice(&tag_and_kind[1].to_ne_bytes());
        let mut control = ControlBuffer::<64>::new();
        assert!(control.push(libc::SOL_PACKET, libc::PACKET_AUXDATA, &facts));
        tag(control.received(control.len()))
    }

    fn delivered(frame: &[u8], vnet: VnetHeader, tag: Option<[u8; TAG]>) -> Vec<(Vec<u8>, bool)> {
        let mut buffer = [&[0xee; TAG], frame].concat();
        let mut got = Vec::new();
        deliver(&mut buffer, vnet, tag, &mut |bytes, sealed| got.push((bytes.to_vec(), sealed)));
        got
    }

    /// Ethernet, IPv6 and UDP around `payload`, with the sum of the pseudo-header where the checksum goes.
    fn begun(payload: &[u8]) -> Vec<u8> {
        let length = 8 + payload.len() as u16;
        let mut frame = vec![4; 12];
        frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(&[17, 64]);
        frame.extend_from_slice(&[0; 32]);
        frame.extend_from_slice(&[0, 1, 0, 2]);
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(&(length + 17).to_be_bytes());
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn the_kernels_word_on_vlan_tags_is_read() {
        let (valid, kind) = (libc::TP_STATUS_VLAN_VALID, libc::TP_STATUS_VLAN_TPID_VALID);
        assert_eq!(said(valid | kind, [0x2005, 0x88a8]), Some([0x88, 0xa8, 0x20, 0x05]));
        assert_eq!(said(valid, [7, 0]), Some([0x81, 0, 0, 7]));
        assert_eq!(said(0, [7, 0x8100]), None);
    }

    #[test]
    fn what_the_kernel_says_before_a_frame_is_read() {
        let words = [20u16, 1448, 34, 16].map(u16::to_ne_bytes).concat();
        let vnet = VnetHeader::parse(&[&[1, 5], &words[..]].concat().try_into().unwrap());
        let VnetHeader { flags, segmentation, segment_size, checksum_start, checksum_place } = vnet;
        assert_eq!((flags, segmentation, segment_size), (1, 5, 1448));
        assert_eq!((checksum_start, checksum_place), (34, 16));
    }

    #[test]
    fn a_tag_is_put_back_where_it_was() {
        let frame: Vec<u8> = (0..60).collect();
        let tag = [0x81, 0, 0x20, 5];
        let whole = [&frame[..12], &tag, &frame[12..]].concat();
        assert_eq!(delivered(&frame, VnetHeader::default(), Some(tag)), [(whole, false)]);
        let checked = VnetHeader { flags: VnetHeader::CHECKED, ..VnetHeader::default() };
        assert_eq!(delivered(&frame, checked, None), [(frame, true)]);
        assert_eq!(delivered(&[1; 11], VnetHeader::default(), Some(tag)), []);
    }

    #[test]
    fn a_checksum_that_was_left_to_the_adapter_is_completed() {
        let left = VnetHeader {
            flags: VnetHeader::NEEDS_CHECKSUM,
            checksum_start: 54,
            checksum_place: 6,
            ..VnetHeader::default()
        };
        let got = delivered(&begun(b"payload"), left, None);
        let mut right = begun(b"payload");
        let layer = Frame::parse(&right).unwrap().outer;
        checksum::fill(&mut right, &layer);
        assert_eq!(got, [(right, true)]);
    }

    #[test]
    fn merged_packets_are_taken_apart_each_with_its_tag() {
        let merged = VnetHeader { segmentation: 5, segment_size: 100, ..VnetHeader::default() };
        let got = delivered(&begun(&[9; 250]), merged, Some([0x81, 0, 0, 7]));
        let lengths: Vec<usize> = got.iter().map(|(bytes, _)| bytes.len()).collect();
        assert_eq!(lengths, [166, 166, 116]);
        for (bytes, sealed) in got {
            let frame = Frame::parse(&bytes).unwrap();
            assert!(sealed && frame.outer.ethernet.is_some_and(|link| link.vlan == Some(7)));
        }
    }
}
