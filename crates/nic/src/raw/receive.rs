//! Frames from a packet socket: batches, what the kernel says beside them, and what it leaves to be done.

use super::frame::{TAG, TAG_AT};
use super::segment::segments;
use crate::mem::arena::Staging;
use crate::sys;
use crate::sys::control::{Control, Messages, space};
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
    frames: Staging,
}

// SAFETY: the pointers in `slots` lead to buffers that the same value owns.
unsafe impl Send for Receiver {}

impl Receiver {
    pub(super) fn new() -> Self {
        // SAFETY: numbers and null pointers; a control buffer is bytes and their count.
        let slots = unsafe { Box::new(std::mem::zeroed::<Slots>()) };
        Self { slots, frames: Staging::new(BATCH * FRAME) }
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
