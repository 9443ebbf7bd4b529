//! The bytes of a packet around its payload.

use crate::IpUdpHeader;
use ferroce_wire::icrc::Flow;
use ferroce_wire::{Headers, ICRC_LEN, MAX_HEADERS_LEN};
use std::net::IpAddr;

/// The transport headers of a packet, with the pad of its payload.
#[derive(Clone, Copy, Debug)]
pub struct PacketHead {
    bytes: [u8; MAX_HEADERS_LEN],
    len: usize,
    pad: usize,
    /// Bytes from BTH to ICRC.
    packet: usize,
}

impl PacketHead {
    /// The headers.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The pad.
    #[must_use]
    pub fn pad(&self) -> &'static [u8] {
        &[0; 3][..self.pad]
    }

    /// Bytes of the packet from BTH to ICRC.
    #[must_use]
    pub const fn packet_len(&self) -> usize {
        self.packet
    }
}

/// The headers of a packet with `payload_len` bytes of payload; `None` if they lack what their opcode asks for.
#[must_use]
pub fn headed(headers: &Headers, payload_len: usize) -> Option<PacketHead> {
    let mut headers = *headers;
    let pad = payload_len.wrapping_neg() % 4;
    headers.bth.pad = pad as u8;
    let mut bytes = [0; MAX_HEADERS_LEN];
    let len = headers.emit(&mut bytes).ok()?;
    Some(PacketHead { bytes, len, pad, packet: len + payload_len + pad + ICRC_LEN })
}

/// The ICRC of a packet.
#[must_use]
pub fn trailer(ip_udp: &IpUdpHeader, headed: &PacketHead, payload: &[u8]) -> [u8; ICRC_LEN] {
    let mut crc = flow(ip_udp).start(headed.packet, ip_udp.id);
    crc.bth(headed.bytes());
    crc.update(payload);
    crc.update(headed.pad());
    crc.finish()
}

/// What the ICRC covers of IP and UDP.
#[must_use]
pub fn flow(ip_udp: &IpUdpHeader) -> Flow {
    let (from, to) = (ip_udp.src.port(), ip_udp.dst.port());
    match (ip_udp.src.ip().to_canonical(), ip_udp.dst.ip().to_canonical()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Flow::v4(src, dst, from, to),
        (src, dst) => {
            let v6 = |ip| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            Flow::v6(v6(src), v6(dst), from, to)
        }
    }
}
