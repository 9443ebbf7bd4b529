//! Records of a ring: what a packet is on the `shm` fabric.
//!
//! A record is a fixed part, the transport headers as they are on the wire, and a payload, or a description of where
//! the payload is. Whatever a peer writes: reading a record gives a record or an error, and touches no byte outside it.

use super::memory::SharedMemory;
use super::protocol::{Broken, Lines};
use crate::packet::PacketMeta;
use ferroce_wire::Headers;
use std::net::{IpAddr, Ipv6Addr};

/// Bytes before the transport headers.
const FIXED: usize = 48;
/// More than any packet's transport headers take.
const MAX_HEADERS: usize = 80;
/// Payload bytes of a record, at most.
pub(crate) const MAX_PAYLOAD: usize = 64 * 1024;

/// What a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    /// Nothing: the end of the ring was too short.
    Padding = 0,
    /// A packet with its payload.
    Packet = 1,
}

/// A packet in a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) headers: Headers,
    pub(crate) meta: PacketMeta,
    /// Offset of the payload in the ring.
    pub(crate) payload_at: usize,
    /// Its bytes.
    pub(crate) payload_len: usize,
}

/// Bytes of a record.
const fn total(headers: usize, payload: usize) -> usize {
    (payload_offset(headers) + payload).next_multiple_of(Lines::GRAIN)
}

const fn payload_offset(headers: usize) -> usize {
    (FIXED + headers).next_multiple_of(8)
}

/// A record that is about to be written.
pub(super) struct Draft {
    bytes: [u8; FIXED + MAX_HEADERS],
    headers: usize,
    payload: usize,
}

impl Draft {
    /// A packet with a payload of `payload` bytes; `None` when the headers don't fit their opcode.
    pub(super) fn packet(headers: &Headers, meta: &PacketMeta, payload: usize) -> Option<Self> {
        let mut bytes = [0; FIXED + MAX_HEADERS];
        let len = headers.emit(&mut bytes[FIXED..]).ok()?;
        bytes[..4].copy_from_slice(&(total(len, payload) as u32).to_ne_bytes());
        bytes[4] = Kind::Packet as u8;
        bytes[5] = len as u8;
        bytes[6] = meta.tos;
        bytes[7] = meta.ttl;
        bytes[8..12].copy_from_slice(&(payload as u32).to_ne_bytes());
        bytes[12..14].copy_from_slice(&meta.len.to_ne_bytes());
        bytes[16..32].copy_from_slice(&gid(meta.src));
        bytes[32..48].copy_from_slice(&gid(meta.dst));
        Some(Self { bytes, headers: len, payload })
    }

    /// Bytes of the record.
    pub(super) const fn total(&self) -> usize {
        total(self.headers, self.payload)
    }

    /// Where the payload of a record at `at` goes.
    pub(super) const fn payload_at(&self, at: usize) -> usize {
        at + payload_offset(self.headers)
    }

    /// Writes everything but the payload.
    pub(super) fn write(&self, memory: &SharedMemory, at: usize) {
        memory.write(at, &self.bytes[..FIXED + self.headers]);
    }
}

/// Writes a record that fills the end of the ring.
pub(super) fn write_padding(memory: &SharedMemory, at: usize, len: usize) {
    let mut bytes = [0; 5];
    bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    bytes[4] = Kind::Padding as u8;
    memory.write(at, &bytes);
}

/// Reads the record at `at`, of which `available` bytes are published, and returns it with its length; `None` for
/// padding.
pub(super) fn read(
    memory: &SharedMemory,
    at: usize,
    available: usize,
) -> Result<(Option<Packet>, usize), Broken> {
    // Copied once: the peer may change its bytes at any time.
    let mut bytes = [0; FIXED + MAX_HEADERS];
    let have = bytes.len().min(available);
    memory.read(at, &mut bytes[..have]);
    let parsed = parse(&bytes[..have], available)?;
    let packet = parsed.packet.map(|packet| Packet { payload_at: packet.payload_at + at, ..packet });
    Ok((packet, parsed.total))
}

struct Parsed {
    packet: Option<Packet>,
    total: usize,
}

/// Understands the first bytes of a record. [`Packet::payload_at`] counts from the record's beginning.
fn parse(bytes: &[u8], available: usize) -> Result<Parsed, Broken> {
    let fixed: &[u8; FIXED] = bytes.first_chunk().ok_or(Broken)?;
    let word =
        |at: usize| u32::from_ne_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]) as usize;
    let (length, payload_len) = (word(0), word(8));
    if length == 0 || length > available || !length.is_multiple_of(Lines::GRAIN) {
        return Err(Broken);
    }
    if fixed[4] == Kind::Padding as u8 {
        return Ok(Parsed { packet: None, total: length });
    }
    if fixed[4] != Kind::Packet as u8 || payload_len > MAX_PAYLOAD {
        return Err(Broken);
    }
    let headers_len = usize::from(fixed[5]);
    if total(headers_len, payload_len) != length {
        return Err(Broken);
    }
    let (headers, parsed) =
        Headers::parse(bytes.get(FIXED..FIXED + headers_len).ok_or(Broken)?).map_err(|_| Broken)?;
    if parsed != headers_len {
        return Err(Broken);
    }
    let address =
        |at: usize| fixed[at..].first_chunk::<16>().map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |gid| ip(*gid));
    let meta = PacketMeta {
        src: address(16),
        dst: address(32),
        tos: fixed[6],
        ttl: fixed[7],
        len: u16::from_ne_bytes([fixed[12], fixed[13]]),
    };
    let packet = Packet { headers, meta, payload_at: payload_offset(headers_len), payload_len };
    Ok(Parsed { packet: Some(packet), total: length })
}

fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn ip(gid: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(gid)).to_canonical()
}
