//! The invariant CRC (IBTA 7.8.1, annex A17.3.3): a CRC-32 over everything that no router on the way changes.
//!
//! It covers eight bytes of ones, the IP and UDP headers and the packet; fields that may change on the way count as
//! ones (IPv4: type of service, TTL, checksum; IPv6: traffic class, flow label, hop limit; UDP: checksum; BTH: the
//! byte with FECN and BECN). The IPv4 identification and flags are covered, although a program on a UDP socket neither
//! chooses nor sees the former. Ferroce sends so that the kernel's choice is known (0, or the index of the segment
//! in a UDP GSO train) and, on receipt, accepts what any of the 65,536 identifications can have caused: see
//! [`Icrc::check`]. IPv4 headers are taken to be without options and with DF set, as RoCEv2 senders have it.
//!
//! ```
//! use core::net::Ipv4Addr;
//! use ferroce_wire::{BTH_LEN, icrc::Flow};
//!
//! // Once per path:
//! let flow = Flow::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 0xc000, 4791);
//! // Per packet: headers, then payload in as many pieces as it lies in memory, then pad.
//! let headers = [0u8; BTH_LEN];
//! let mut crc = flow.start(BTH_LEN + 8 + 4, 0);
//! crc.bth(&headers);
//! crc.update(b"four");
//! crc.update(b"more");
//! let icrc = crc.finish();
//!
//! let mut packet = [0; BTH_LEN + 8 + 4];
//! packet[BTH_LEN..BTH_LEN + 8].copy_from_slice(b"fourmore");
//! packet[BTH_LEN + 8..].copy_from_slice(&icrc);
//! assert_eq!(flow.verify(&packet, 0), Some(0));
//! ```

use crate::ICRC_LEN;
use crate::crc::{FieldEffect, extend, extend_half, extend_word, field_causing};
use core::net::{Ipv4Addr, Ipv6Addr};

/// Ones, IPv4 header and UDP header.
const V4_PREFIX: usize = 8 + 20 + 8;
/// Ones, IPv6 header and UDP header.
const V6_PREFIX: usize = 8 + 40 + 8;
const UDP_HEADER: usize = 8;

/// Bytes between the IPv4 identification and the BTH.
const V4_AFTER_ID: usize = V4_PREFIX - (8 + 6);

static V4_TOTAL_LENGTH: FieldEffect = FieldEffect::new(V4_PREFIX - (8 + 4));
static V4_ID: FieldEffect = FieldEffect::new(V4_AFTER_ID);
static V6_PAYLOAD_LENGTH: FieldEffect = FieldEffect::new(V6_PREFIX - (8 + 6));
static UDP_LENGTH: FieldEffect = FieldEffect::new(2);

/// What the lengths in the headers of a short packet do to the CRC up to the BTH, by the packet's length in words.
static V4_SHORT: [u32; SHORT] = short_lengths(&V4_TOTAL_LENGTH, 20);
static V6_SHORT: [u32; SHORT] = short_lengths(&V6_PAYLOAD_LENGTH, 0);
/// Words of the longest short packet, and one more.
const SHORT: usize = 64;
const WORD: usize = 4;

/// `ip`: the effect of the length in the IP header, which is that of the UDP header and so many bytes more.
const fn short_lengths(ip: &FieldEffect, more: u16) -> [u32; SHORT] {
    let mut table = [0; SHORT];
    let mut words = 0;
    while words < SHORT {
        let udp = (words * WORD + UDP_HEADER) as u16;
        table[words] = ip.of(udp + more) ^ UDP_LENGTH.of(udp);
        words += 1;
    }
    table
}

/// Addresses and ports of one direction of one path, digested: everything of IP and UDP that the ICRC covers and that
/// is the same in all packets. Cheap to copy; make it once per path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// CRC up to the BTH, as if lengths and identification were 0.
    prefix: u32,
    ip: Ip,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ip {
    V4,
    V6,
}

impl Flow {
    /// A path over IPv4.
    #[must_use]
    pub fn v4(src: Ipv4Addr, dst: Ipv4Addr, src_port: u16, dst_port: u16) -> Self {
        let mut ip = [0; 20];
        ip[0] = 0x45;
        ip[1] = 0xff;
        ip[6] = 0x40; // DF
        ip[8] = 0xff;
        ip[9] = 17;
        ip[10..12].fill(0xff);
        ip[12..16].copy_from_slice(&src.octets());
        ip[16..].copy_from_slice(&dst.octets());
        Self { prefix: prefix(&ip, src_port, dst_port), ip: Ip::V4 }
    }

    /// A path over IPv6.
    #[must_use]
    pub fn v6(src: Ipv6Addr, dst: Ipv6Addr, src_port: u16, dst_port: u16) -> Self {
        let mut ip = [0; 40];
        ip[0] = 0x6f;
        ip[1..4].fill(0xff);
        ip[6] = 17;
        ip[7] = 0xff;
        ip[8..24].copy_from_slice(&src.octets());
        ip[24..].copy_from_slice(&dst.octets());
        Self { prefix: prefix(&ip, src_port, dst_port), ip: Ip::V6 }
    }

    /// Starts the ICRC of a packet with `packet_len` bytes from BTH to ICRC, both included, whose IPv4 header has the
    /// identification `id` (IPv6 has none: ignored). Costs a few table look-ups, whatever the segment of a GSO train.
    /// Of lengths that don't fit an IP header the low 16 bits count.
    #[must_use]
    #[inline]
    pub fn start(&self, packet_len: usize, id: u16) -> Icrc {
        let (short, id_effect) = match self.ip {
            Ip::V4 if id != 0 => (&V4_SHORT, V4_ID.of(id)),
            Ip::V4 => (&V4_SHORT, 0),
            Ip::V6 => (&V6_SHORT, 0),
        };
        let lengths = match short.get(packet_len / WORD) {
            Some(&lengths) if packet_len.is_multiple_of(WORD) => lengths,
            _ => self.lengths(packet_len),
        };
        Icrc { crc: self.prefix ^ id_effect ^ lengths, id, ip: self.ip, bytes: 0 }
    }

    /// What the lengths in the headers of a packet do to the CRC up to the BTH.
    fn lengths(&self, packet_len: usize) -> u32 {
        let udp = (packet_len.wrapping_add(UDP_HEADER)) as u16;
        let ip = match self.ip {
            Ip::V4 => V4_TOTAL_LENGTH.of(udp.wrapping_add(20)),
            Ip::V6 => V6_PAYLOAD_LENGTH.of(udp),
        };
        ip ^ UDP_LENGTH.of(udp)
    }

    /// Checks the ICRC of a packet that lies in one piece, BTH to ICRC. See [`Icrc::check`].
    #[must_use]
    #[inline]
    pub fn verify(&self, packet: &[u8], id_hint: u16) -> Option<u16> {
        let (covered, icrc) = packet.split_last_chunk::<ICRC_LEN>()?;
        let mut crc = self.start(packet.len(), id_hint);
        crc.bth(covered);
        crc.check(*icrc)
    }
}

fn prefix(ip: &[u8], src_port: u16, dst_port: u16) -> u32 {
    let [[a, b], [c, d]] = [src_port.to_be_bytes(), dst_port.to_be_bytes()];
    extend(extend(extend(0, &[0xff; 8]), ip), &[a, b, c, d, 0, 0, 0xff, 0xff])
}

/// The ICRC of one packet in the making: [`Icrc::bth`] first, then [`Icrc::update`] for the rest, pad included.
#[derive(Clone, Debug)]
pub struct Icrc {
    /// CRC-32 of what has been taken in.
    crc: u32,
    id: u16,
    ip: Ip,
    /// Bytes of the packet so far.
    bytes: usize,
}

impl Icrc {
    /// Takes in the front of the packet: at least eight bytes of the BTH (the fifth is masked), and as much of what follows as the
    /// caller has in one piece.
    #[inline]
    pub fn bth(&mut self, bytes: &[u8]) {
        const MASKED: u64 = 0xff << 32;
        // Fewer bytes aren't a packet's.
        let Some((first, rest)) = bytes.split_first_chunk() else { return self.update(bytes) };
        self.took(first.len(), extend_word(self.crc, u64::from_le_bytes(*first) | MASKED));
        // The rest of the BTH needs no loop.
        let Some((next, rest)) = rest.split_first_chunk() else { return self.update(rest) };
        self.took(next.len(), extend_half(self.crc, u32::from_le_bytes(*next)));
        self.update(rest);
    }

    /// Takes in the next bytes of the packet.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.took(bytes.len(), extend(self.crc, bytes));
        }
    }

    /// The CRC-32 so far, for a pass that copies the next bytes and [extends](crate::crc::extend) it by them.
    #[must_use]
    #[inline]
    pub const fn so_far(&self) -> u32 {
        self.crc
    }

    /// Takes in the `len` next bytes of the packet, by which [`Self::so_far`] has become `crc`.
    #[inline]
    pub const fn took(&mut self, len: usize, crc: u32) {
        self.crc = crc;
        self.bytes = self.bytes.wrapping_add(len);
    }

    /// The ICRC as it is on the wire.
    #[must_use]
    #[inline]
    pub fn finish(self) -> [u8; ICRC_LEN] {
        self.crc.to_le_bytes()
    }

    /// Compares with the ICRC of a received packet: `Some` when it is right. IPv6 is checked in full. Of IPv4 the
    /// identification isn't known: a difference from the CRC computed with the one given to [`Flow::start`] is accepted
    /// when another identification explains it, and the value is that identification: a good guess for the peer's next
    /// packet is the same plus one, and a right guess saves the search. A damaged packet passes with a probability of
    /// 2^-16 rather than 2^-32.
    #[must_use]
    #[inline]
    pub fn check(self, received: [u8; ICRC_LEN]) -> Option<u16> {
        let difference = self.crc ^ u32::from_le_bytes(received);
        match self.ip {
            _ if difference == 0 => Some(self.id),
            Ip::V4 => {
                let after = self.bytes.checked_add(V4_AFTER_ID)?;
                field_causing(difference, after).map(|change| change ^ self.id)
            }
            Ip::V6 => None,
        }
    }
}
