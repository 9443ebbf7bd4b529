//! What the wire tests share: headers for an opcode, and packets with IP and UDP around them.

use ferroce_wire::{Aeth, AtomicEth, Bth, Deth, Feth, Headers, Opcode, Reth};

/// Every opcode that exists.
pub fn opcodes() -> impl Iterator<Item = Opcode> {
    (0..=u8::MAX).filter_map(Opcode::from_u8)
}

/// Values for every field of every header; [`headers`] takes those that an opcode has.
#[derive(Clone, Debug)]
pub struct Fields {
    pub bth: Bth,
    pub srqn: u32,
    pub deth: Deth,
    pub flush: Feth,
    pub reth: Reth,
    pub atomic: AtomicEth,
    pub aeth: Aeth,
    pub atomic_ack: u64,
    pub immediate: [u8; 4],
    pub invalidate_rkey: u32,
}

pub fn headers(opcode: Opcode, f: &Fields) -> Headers {
    Headers {
        bth: Bth { opcode, ..f.bth },
        xrc_srqn: opcode.carries_xrceth().then_some(f.srqn),
        deth: opcode.carries_deth().then_some(f.deth),
        flush: opcode.carries_feth().then_some(f.flush),
        reth: opcode.carries_reth().then_some(f.reth),
        atomic: opcode.is_atomic().then_some(f.atomic),
        aeth: opcode.carries_aeth().then_some(f.aeth),
        atomic_ack: opcode.carries_atomic_ack().then_some(f.atomic_ack),
        immediate: opcode.carries_immediate().then_some(f.immediate),
        invalidate_rkey: opcode.carries_invalidate().then_some(f.invalidate_rkey),
    }
}

/// The ICRC straight from its definition: a bit-by-bit CRC over a copy with the variant fields set to ones.
/// `ip` is the IP header as on the wire, `udp` the UDP header, `rest` the packet from the BTH up to the ICRC.
pub fn icrc_by_definition(ip: &[u8], udp: &[u8], rest: &[u8]) -> [u8; 4] {
    let mut ip = ip.to_vec();
    if ip[0] >> 4 == 4 {
        ip[1] = 0xff;
        ip[8] = 0xff;
        ip[10..12].fill(0xff);
    } else {
        ip[0] |= 0x0f;
        ip[1..4].fill(0xff);
        ip[7] = 0xff;
    }
    let mut udp = udp.to_vec();
    udp[6..8].fill(0xff);
    let mut rest = rest.to_vec();
    rest[4] = 0xff;
    let mut crc = u32::MAX;
    for byte in [0xff; 8].into_iter().chain(ip).chain(udp).chain(rest) {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    (!crc).to_le_bytes()
}

/// An IPv4 header for `packet_len` bytes of UDP payload.
pub fn ipv4(src: [u8; 4], dst: [u8; 4], id: u16, tos: u8, ttl: u8, packet_len: usize) -> Vec<u8> {
    let mut h = vec![0x45, tos];
    h.extend(u16::try_from(28 + packet_len).unwrap().to_be_bytes());
    h.extend(id.to_be_bytes());
    h.extend([0x40, 0, ttl, 17, 0, 0]);
    h.extend(src);
    h.extend(dst);
    let mut sum: u32 = h.chunks(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum();
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    h[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    h
}

/// An IPv6 header for `packet_len` bytes of UDP payload.
pub fn ipv6(src: [u8; 16], dst: [u8; 16], class_and_label: u32, hops: u8, packet_len: usize) -> Vec<u8> {
    let mut h = (6u32 << 28 | class_and_label & 0x0fff_ffff).to_be_bytes().to_vec();
    h.extend(u16::try_from(8 + packet_len).unwrap().to_be_bytes());
    h.extend([17, hops]);
    h.extend(src);
    h.extend(dst);
    h
}

/// A UDP header without a checksum.
pub fn udp(src_port: u16, packet_len: usize) -> Vec<u8> {
    let len = u16::try_from(8 + packet_len).unwrap();
    [src_port, ferroce_wire::ROCE_V2_PORT, len, 0].into_iter().flat_map(u16::to_be_bytes).collect()
}
