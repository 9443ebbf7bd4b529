//! Control messages of `sendmsg(2)` and `recvmsg(2)`: built and read without pointers.

use std::os::fd::RawFd;

const HEADER: usize = size_of::<libc::cmsghdr>();
const ALIGN: usize = size_of::<usize>();

// The offsets below are those of 64-bit Linux (length, level, type).
const _: () = assert!(HEADER == 16 && ALIGN == 8);

/// Bytes a control message with `payload` bytes takes.
#[must_use]
pub const fn space(payload: usize) -> usize {
    HEADER + payload.next_multiple_of(ALIGN)
}

/// A buffer for control messages, `N` bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct ControlBuffer<const N: usize> {
    bytes: [u8; N],
    used: usize,
}

impl<const N: usize> ControlBuffer<N> {
    /// An empty one.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; N], used: 0 }
    }

    /// Bytes in use: `msg_controllen` for sending.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.used
    }

    /// No message.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Appends a message; `false`, and nothing is done, when there is no room.
    pub fn push(&mut self, level: i32, kind: i32, payload: &[u8]) -> bool {
        let Some(room) = self.bytes.get_mut(self.used..self.used + space(payload.len())) else {
            return false;
        };
        room[..8].copy_from_slice(&(HEADER + payload.len()).to_ne_bytes());
        room[8..12].copy_from_slice(&level.to_ne_bytes());
        room[12..16].copy_from_slice(&kind.to_ne_bytes());
        room[16..16 + payload.len()].copy_from_slice(payload);
        self.used += room.len();
        true
    }

    /// Where the kernel writes when receiving, and how much it may: `msg_control` and `msg_controllen`.
    pub fn for_receiving(&mut self) -> (*mut libc::c_void, usize) {
        self.used = 0;
        (self.bytes.as_mut_ptr().cast(), N)
    }

    /// What the kernel reads when sending: `msg_control` (null when empty).
    pub fn for_sending(&mut self) -> *mut libc::c_void {
        if self.is_empty() { std::ptr::null_mut() } else { self.bytes.as_mut_ptr().cast() }
    }

    /// The messages in the first `length` bytes, which is what the kernel left in `msg_controllen`.
    #[must_use]
    pub fn received(&self, length: usize) -> ReceivedControls<'_> {
        ReceivedControls { rest: &self.bytes[..length.min(N)] }
    }
}

impl<const N: usize> Default for ControlBuffer<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// A received control message.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedControl<'a> {
    /// `cmsg_level`.
    pub level: i32,
    /// `cmsg_type`.
    pub kind: i32,
    /// The payload.
    pub payload: &'a [u8],
}

impl ReceivedControl<'_> {
    /// The payload as an `int`, or as a single byte (the kernel sends IP_TOS so).
    #[must_use]
    #[inline]
    pub fn int(&self) -> Option<i32> {
        match *self.payload {
            [byte] => Some(i32::from(byte)),
            _ => self.payload.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)),
        }
    }

    /// The payload as descriptors (SCM_RIGHTS), which the caller must own or close.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.payload.as_chunks::<4>().0.iter().map(|bytes| RawFd::from_ne_bytes(*bytes))
    }
}

/// Iterator of [`ControlBuffer::received`].
#[derive(Clone, Debug)]
pub struct ReceivedControls<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for ReceivedControls<'a> {
    type Item = ReceivedControl<'a>;

    #[inline]
    fn next(&mut self) -> Option<ReceivedControl<'a>> {
        let (header, _) = self.rest.split_first_chunk::<HEADER>()?;
        let length = usize::from_ne_bytes(*header.first_chunk()?);
        let level = i32::from_ne_bytes(*header[8..].first_chunk()?);
        let kind = i32::from_ne_bytes(*header[12..].first_chunk()?);
        let payload = self.rest.get(HEADER..length)?;
        self.rest = self.rest.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some(ReceivedControl { level, kind, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let mut control = ControlBuffer::<64>::new();
        assert!(control.is_empty());
        assert!(control.push(1, 2, &7_u16.to_ne_bytes()));
        assert!(control.push(3, 4, &8_i32.to_ne_bytes()));
        assert!(!control.push(5, 6, &[0; 8]), "no room for a third");
        assert_eq!(control.len(), 48);
        let got: Vec<_> = control.received(48).map(|m| (m.level, m.kind, m.payload.len())).collect();
        assert_eq!(got, [(1, 2, 2), (3, 4, 4)]);
        assert_eq!(control.received(48).nth(1).unwrap().int(), Some(8));
    }

    #[test]
    fn damaged_lengths_end_the_list() {
        let mut control = ControlBuffer::<64>::new();
        control.push(1, 2, &[9; 4]);
        for length in [0_usize, 3, 15, 65, usize::MAX] {
            control.bytes[..8].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(control.received(64).count(), 0, "length {length}");
        }
        assert_eq!(control.received(7).count(), 0);
    }
}
