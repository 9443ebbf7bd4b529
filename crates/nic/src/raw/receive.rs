//! Frames from a packet socket: batches, what the kernel says beside them, and what it leaves to be done.

use super::frame::{TAG, TAG_AT};
use super::segment::segments;
use ferroce_os::{
    sys,
    sys::control::{Control, Messages, space},
};
use ferroce_wire::checksum;
use std::os::fd::RawFd;

/// Frames taken at once.
const BATCH: usize = 16;
/// Bytes for one frame: 64 KiB of IP and its link headers.
const FRAME: usize = 65 << 10;

/// `struct virtio_net_hdr`, before each frame of a socket with PACKET_VNET_HDR.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub(super) struct VnetHeader {
    flags: u8,
    segmentation: u8,
    header_length: u16,
    segment_size: u16,
    checksum_start: u16,
    checksum_place: u16,
}

impl VnetHeader {
    /// The checksum of TCP or UDP is to be completed.
    const NEEDS_CHECKSUM: u8 = 1;
    /// It has been found right.
    const CHECKED: u8 = 2;
}

struct Slots {
    headers: [libc::mmsghdr; BATCH],
    parts: [[libc::iovec; 2]; BATCH],
    vnet: [VnetHeader; BATCH],
    controls: [Control<{ space(size_of::<libc::tpacket_auxdata>()) }>; BATCH],
}

/// The buffers of one socket.
pub(super) struct Receiver {
    slots: Box<Slots>,
    frames: Box<[u8]>,
}

// SAFETY: the pointers in `slots` lead to buffers that the same value owns.
unsafe impl Send for Receiver {}

impl Receiver {
    pub(super) fn new() -> Self {
        // SAFETY: numbers and null pointers; a control buffer is bytes and their count.
        let slots = unsafe { Box::new(std::mem::zeroed::<Slots>()) };
        Self { slots, frames: vec![0; BATCH * FRAME].into_boxed_slice() }
    }

    /// Takes one batch and calls `f` with each frame as it is on a wire, and whether the checksum of TCP or UDP is known to
    /// be right. Whether there was any frame.
    pub(super) fn receive(&mut self, fd: RawFd, f: &mut dyn FnMut(&[u8], bool)) -> bool {
        let Slots { headers, parts, vnet, controls } = &mut *self.slots;
        let buffers = self.frames.chunks_exact_mut(FRAME);
        for ((((header, parts), vnet), control), buffer) in
            headers.iter_mut().zip(parts).zip(vnet).zip(controls).zip(buffers)
        {
            // Room for a VLAN tag before it.
            let room = &mut buffer[TAG..];
            *parts = [
                libc::iovec { iov_base: std::ptr::from_mut(vnet).cast(), iov_len: size_of::<VnetHeader>() },
                libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() },
            ];
            let header = &mut header.msg_hdr;
            header.msg_iov = parts.as_mut_ptr();
            header.msg_iovlen = parts.len();
            (header.msg_control, header.msg_controllen) = control.for_receiving();
        }
        // SAFETY: every pointer was just set, to buffers that this value owns.
        let count = match unsafe { sys::receive_messages(fd, &mut self.slots.headers) } {
            Ok(count) => count,
            Err(error) => {
                if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) {
                    // A frame that the kernel can't describe (EINVAL), or an interface that is down: others may follow.
                    tracing::debug!(%error, "receiving from a packet socket");
                }
                return false;
            }
        };
        let Slots { headers, vnet, controls, .. } = &*self.slots;
        let buffers = self.frames.chunks_exact_mut(FRAME);
        for (((header, vnet), control), buffer) in
            headers[..count].iter().zip(vnet).zip(controls).zip(buffers)
        {
            let length = (header.msg_len as usize).saturating_sub(size_of::<VnetHeader>());
            if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 || length > FRAME - TAG {
                tracing::debug!(length, "a frame is too long");
                continue;
            }
            let tag = tag(control.received(header.msg_hdr.msg_controllen));
            deliver(&mut buffer[..TAG + length], *vnet, tag, f);
        }
        count > 0
    }
}

/// The VLAN tag that the kernel has taken out, with its EtherType.
fn tag(messages: Messages<'_>) -> Option<[u8; TAG]> {
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
    use ferroce_wire::frame::Frame;

    /// The tag that a message of these words says.
    fn said(status: u32, tag_and_kind: [u16; 2]) -> Option<[u8; TAG]> {
        let mut facts = [0; size_of::<libc::tpacket_auxdata>()];
        facts[..4].copy_from_slice(&status.to_ne_bytes());
        facts[16..18].copy_from_slice(&tag_and_kind[0].to_ne_bytes());
        facts[18..20].copy_from_slice(&tag_and_kind[1].to_ne_bytes());
        let mut control = Control::<64>::new();
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
