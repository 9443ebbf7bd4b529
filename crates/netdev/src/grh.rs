//! The GRH that a UD receiver sees of a packet.

use super::LinkLayer;
use ferroce_types::{MAX_FLOW_LABEL, PacketMeta, gid_of};
use ferroce_wire::checksum;
use std::net::IpAddr;

/// The 40 bytes before a UD receive's payload: the packet's IP header (annex A17.4.5.1: an IPv4 header fills the last 20 of
/// them), or an InfiniBand GRH (IBTA 8.3).
pub struct Grh;

impl Grh {
    /// Bytes of a GRH.
    pub const LEN: usize = 40;

    /// The GRH that a receiver sees of a packet.
    #[must_use]
    #[inline]
    pub fn of(meta: &PacketMeta) -> [u8; Self::LEN] {
        let mut grh = [0; Self::LEN];
        let udp_len = meta.len + 8;
        match (meta.src, meta.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let ip = &mut grh[20..];
                ip[0] = 0x45;
                ip[1] = meta.tos;
                ip[2..4].copy_from_slice(&(udp_len + 20).to_be_bytes());
                ip[6] = 0x40;
                ip[8] = meta.ttl;
                ip[9] = 17;
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                let sum = !checksum::sum(ip);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            (src, dst) => {
                return Self::version_6(meta, udp_len, 17, gid_of(src), gid_of(dst));
            }
        }
        grh
    }

    /// The GRH of InfiniBand between two GIDs.
    #[must_use]
    pub fn between(meta: &PacketMeta, sgid: [u8; 16], dgid: [u8; 16]) -> [u8; Self::LEN] {
        /// The transport headers of InfiniBand follow.
        const IBA: u8 = 0x1b;
        Self::version_6(meta, meta.len, IBA, sgid, dgid)
    }

    #[inline]
    fn version_6(
        meta: &PacketMeta,
        len: u16,
        next_header: u8,
        source: [u8; 16],
        destination: [u8; 16],
    ) -> [u8; Self::LEN] {
        let mut grh = [0; Self::LEN];
        let first = 6 << 28 | u32::from(meta.tos) << 20 | meta.flow_label & MAX_FLOW_LABEL;
        grh[..4].copy_from_slice(&first.to_be_bytes());
        grh[4..6].copy_from_slice(&len.to_be_bytes());
        grh[6] = next_header;
        grh[7] = meta.ttl;
        grh[8..24].copy_from_slice(&source);
        grh[24..40].copy_from_slice(&destination);
        grh
    }
}

/// The GRH of a packet, in the form of the process's link layer.
#[inline]
#[must_use]
pub fn grh_of(meta: &PacketMeta) -> [u8; Grh::LEN] {
    match LinkLayer::current() {
        LinkLayer::Ethernet => Grh::of(meta),
        layer @ LinkLayer::InfiniBand => Grh::between(meta, layer.gid_of(meta.src), layer.gid_of(meta.dst)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_header_ends_the_grh_and_checks() {
        let meta = PacketMeta {
            src: "10.0.0.1".parse().unwrap(),
            dst: "10.0.0.2".parse().unwrap(),
            tos: 0x10,
            ttl: 64,
            flow_label: 0x12345,
            len: 100,
            source_port: 0,
        };
        let grh = Grh::of(&meta);
        assert_eq!(grh[..20], [0; 20]);
        assert_eq!(grh[20], 0x45);
        assert_eq!(checksum::sum(&grh[20..]), 0xffff);
        assert_eq!(u16::from_be_bytes([grh[22], grh[23]]), 128);
    }

    #[test]
    fn an_ipv6_grh_is_the_ipv6_header() {
        let meta = PacketMeta {
            src: "fe80::1".parse().unwrap(),
            dst: "fe80::2".parse().unwrap(),
            tos: 0xab,
            ttl: 1,
            flow_label: 0xc_def0,
            len: 32,
            source_port: 0,
        };
        let grh = Grh::of(&meta);
        assert_eq!(grh[..8], [0x6a, 0xbc, 0xde, 0xf0, 0, 40, 17, 1]);
        assert_eq!(grh[23], 1);
        assert_eq!(grh[39], 2);
        let grh = Grh::between(&meta, [7; 16], [8; 16]);
        assert_eq!(grh[..8], [0x6a, 0xbc, 0xde, 0xf0, 0, 32, 0x1b, 1]);
        assert_eq!((&grh[8..24], &grh[24..]), (&[7; 16][..], &[8; 16][..]));
    }
}
