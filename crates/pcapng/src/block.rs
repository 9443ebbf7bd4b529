//! The blocks of a capture file (pcapng).

use std::time::Duration;

/// Which way a packet goes, seen from the host that captures it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
}

/// What a block's bytes begin with: interfaces of the file, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interface {
    /// RoCEv2 packets, from their IP header on.
    Packets,
    /// Ethernet frames.
    Frames,
}

impl Interface {
    /// Each with its LINKTYPE and name.
    const ALL: [(Self, u16, &'static [u8]); 2] =
        [(Self::Packets, 101, b"ferroce"), (Self::Frames, 1, b"ferroce-raw")];
}

/// Section header and interface descriptions (pcapng, sections 4.1 and 4.2). Numbers are little-endian.
#[must_use]
pub fn file_header() -> Vec<u8> {
    let mut section = Vec::new();
    section.extend(0x1a2b_3c4d_u32.to_le_bytes());
    section.extend(1u16.to_le_bytes());
    section.extend(0u16.to_le_bytes());
    section.extend(u64::MAX.to_le_bytes()); // of unknown length
    option(&mut section, 4, concat!("ferroce ", env!("CARGO_PKG_VERSION")).as_bytes()); // shb_userappl
    option(&mut section, 0, &[]);

    let mut file = Vec::new();
    block(&mut file, 0x0a0d_0d0a, &section);
    for (_, link_type, name) in Interface::ALL {
        let mut interface = Vec::new();
        interface.extend(link_type.to_le_bytes());
        interface.extend([0; 2]);
        interface.extend(0u32.to_le_bytes()); // no limit on a packet's bytes
        option(&mut interface, 2, name); // if_name
        option(&mut interface, 9, &[9]); // if_tsresol: 10^-9 s
        option(&mut interface, 0, &[]);
        block(&mut file, 1, &interface);
    }
    file
}

fn block(file: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let len = (body.len() as u32 + 12).to_le_bytes();
    file.extend(kind.to_le_bytes());
    file.extend(len);
    file.extend(body);
    file.extend(len);
}

fn option(block: &mut Vec<u8>, code: u16, value: &[u8]) {
    block.extend(code.to_le_bytes());
    block.extend((value.len() as u16).to_le_bytes());
    block.extend(value);
    block.resize(block.len().next_multiple_of(4), 0);
}

/// What surrounds a packet's bytes in an enhanced packet block (pcapng, section 4.3).
#[derive(Clone, Copy, Debug)]
pub struct PacketBlock {
    front: [u8; Self::FRONT],
    /// Three zeros for the pad, options, length; the pad's length is where it begins.
    back: [u8; 3 + Self::BACK],
    pad: usize,
    captured: usize,
}

impl PacketBlock {
    const FRONT: usize = 28;
    /// epb_flags, the end of the options, the block's length.
    const BACK: usize = 8 + 4 + 4;

    /// A block with `captured` bytes of a packet of `original` bytes. `time` is since 1970.
    ///
    /// # Errors
    /// There are more bytes than a block has.
    pub fn new(
        interface: Interface,
        direction: Direction,
        time: Duration,
        (captured, original): (usize, usize),
    ) -> Result<Self, std::num::TryFromIntError> {
        let pad = captured.wrapping_neg() % 4;
        let total = u32::try_from(Self::FRONT + captured + pad + Self::BACK)?;
        let original = u32::try_from(original)?;
        let now = time.as_nanos() as u64;
        let flags: u32 = match direction {
            Direction::In => 1,
            Direction::Out => 2,
        };
        let mut block = Self { front: [0; Self::FRONT], back: [0; 3 + Self::BACK], pad, captured };
        let front = [6, total, interface as u32, (now >> 32) as u32, now as u32, captured as u32, original];
        let back = [4 << 16 | 2, flags, 0, total];
        put(&mut block.front, &front);
        put(&mut block.back[3..], &back);
        Ok(block)
    }

    /// The bytes before the packet's.
    #[must_use]
    pub const fn front(&self) -> &[u8] {
        &self.front
    }

    /// The bytes after the packet's.
    #[must_use]
    pub fn back(&self) -> &[u8] {
        &self.back[3 - self.pad..]
    }

    /// Bytes of the block.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // A block is never empty.
    pub fn len(&self) -> usize {
        Self::FRONT + self.captured + self.back().len()
    }
}

fn put(bytes: &mut [u8], words: &[u32]) {
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}
