//! The IP and UDP headers of a packet, as the kernel puts them on the wire.

use ferroce_types::{MAX_FLOW_LABEL, gid_of};
use ferroce_wire::ROCE_V2_PORT;
use std::net::{IpAddr, SocketAddr};

const UDP_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_PROTOCOL: u8 = 17;
const DONT_FRAGMENT: u8 = 0x40;

/// The fields of the IP and UDP headers of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpUdpHeader {
    /// Sender's address and UDP port.
    pub src: SocketAddr,
    /// Receiver's address and UDP port (on the wire [`ROCE_V2_PORT`]).
    pub dst: SocketAddr,
    /// Type of service or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// IPv4 identification: what the ICRC was computed or found right with. Ignored for IPv6.
    pub id: u16,
}

impl IpUdpHeader {
    /// A packet to the RoCEv2 port with nothing special: TOS 0, TTL 64, identification 0.
    #[must_use]
    pub const fn plain(src: SocketAddr, dst: IpAddr) -> Self {
        Self { src, dst: SocketAddr::new(dst, ROCE_V2_PORT), tos: 0, ttl: 64, flow_label: 0, id: 0 }
    }
}

/// IP and UDP header, on the stack.
#[derive(Clone, Copy, Debug)]
pub struct IpUdpBytes {
    bytes: [u8; IPV6_LEN + UDP_LEN],
    len: usize,
    /// Bytes of UDP payload that they speak of.
    payload: usize,
}

impl IpUdpBytes {
    /// Length of the whole packet that they speak of.
    #[must_use]
    pub const fn packet_len(&self) -> usize {
        self.len + self.payload
    }

    /// The headers.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The headers for a UDP payload of `len` bytes, of which `pieces` is as much as there is (the UDP checksum is over
/// that). Lengths that don't fit a datagram become the largest that does.
#[must_use]
pub fn ip_udp_bytes(ip_udp: &IpUdpHeader, len: usize, pieces: &[&[u8]]) -> IpUdpBytes {
    let (src, dst) = (ip_udp.src.ip().to_canonical(), ip_udp.dst.ip().to_canonical());
    let v4 = src.is_ipv4() && dst.is_ipv4();
    let len = len.min(usize::from(u16::MAX) - UDP_LEN - if v4 { IPV4_LEN } else { 0 });
    let mut h = IpUdpBytes { bytes: [0; IPV6_LEN + UDP_LEN], len: 0, payload: len };
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            h.len = IPV4_LEN + UDP_LEN;
            let ip = &mut h.bytes[..IPV4_LEN];
            ip[0] = 0x45;
            ip[1] = ip_udp.tos;
            ip[2..4].copy_from_slice(&be(len + UDP_LEN + IPV4_LEN));
            ip[4..6].copy_from_slice(&ip_udp.id.to_be_bytes());
            ip[6] = DONT_FRAGMENT;
            ip[8] = ip_udp.ttl;
            ip[9] = UDP_PROTOCOL;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..].copy_from_slice(&dst.octets());
            let mut sum = Sum::default();
            sum.add(ip);
            ip[10..12].copy_from_slice(&sum.finish());
        }
        (src, dst) => {
            h.len = IPV6_LEN + UDP_LEN;
            let ip = &mut h.bytes[..IPV6_LEN];
            let first = 6 << 28 | u32::from(ip_udp.tos) << 20 | ip_udp.flow_label & MAX_FLOW_LABEL;
            ip[..4].copy_from_slice(&first.to_be_bytes());
            ip[4..6].copy_from_slice(&be(len + UDP_LEN));
            ip[6] = UDP_PROTOCOL;
            ip[7] = ip_udp.ttl;
            ip[8..24].copy_from_slice(&gid_of(src));
            ip[24..].copy_from_slice(&gid_of(dst));
        }
    }
    let (ip, udp) = h.bytes[..h.len].split_at_mut(h.len - UDP_LEN);
    udp[..2].copy_from_slice(&ip_udp.src.port().to_be_bytes());
    udp[2..4].copy_from_slice(&ip_udp.dst.port().to_be_bytes());
    udp[4..6].copy_from_slice(&be(len + UDP_LEN));
    let mut sum = Sum::default();
    // The pseudo-header: addresses, protocol, length.
    sum.add(&ip[if ip.len() == IPV4_LEN { 12 } else { 8 }..]);
    sum.add(&[0, UDP_PROTOCOL]);
    sum.add(&be(len + UDP_LEN));
    sum.add(udp);
    pieces.iter().for_each(|p| sum.add(p));
    // A sum of 0 is sent as its other form: 0 would mean "no checksum" (RFC 768).
    let sum = if sum.finish() == [0, 0] { [0xff; 2] } else { sum.finish() };
    udp[6..].copy_from_slice(&sum);
    h
}

/// A length that fits 16 bits.
fn be(len: usize) -> [u8; 2] {
    (len as u16).to_be_bytes()
}

/// The internet checksum (RFC 1071) over bytes that come in pieces.
#[derive(Clone, Copy, Default)]
struct Sum {
    sum: u64,
    /// The next byte is the low one of its word.
    odd: bool,
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.sum += u64::from(*byte) << if self.odd { 0 } else { 8 };
            self.odd = !self.odd;
        }
    }

    fn finish(self) -> [u8; 2] {
        let mut sum = self.sum;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::{IpUdpHeader, Sum, ip_udp_bytes};

    #[test]
    fn the_ipv4_header_of_an_adapters_packet_is_rebuilt() {
        let ip_udp = IpUdpHeader {
            src: "10.0.17.1:0".parse().unwrap(),
            dst: "10.0.18.1:4791".parse().unwrap(),
            tos: 0xc2,
            ttl: 64,
            flow_label: 0,
            id: 0x718c,
        };
        let expected = [
            0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 10, 0, 17, 1, 10, 0, 18,
            1, 0, 0, 0x12, 0xb7, 0x00, 0x28,
        ];
        // That adapter sends no UDP checksum.
        assert_eq!(ip_udp_bytes(&ip_udp, 32, &[]).bytes()[..26], expected);
    }

    #[test]
    fn a_sum_over_pieces_is_the_sum_over_all() {
        let bytes: Vec<u8> = (0..101).map(|i: u32| (i * 37 % 251) as u8).collect();
        let mut all = Sum::default();
        all.add(&bytes);
        for cut in 0..bytes.len() {
            let mut pieces = Sum::default();
            pieces.add(&bytes[..cut]);
            pieces.add(&bytes[cut..]);
            assert_eq!(pieces.finish(), all.finish());
        }
    }

    #[test]
    fn lengths_that_do_not_fit_are_the_largest_that_do() {
        let ip_udp = IpUdpHeader::plain("[fd00::1]:5".parse().unwrap(), "fd00::2".parse().unwrap());
        let h = ip_udp_bytes(&ip_udp, 1 << 30, &[]);
        assert_eq!((&h.bytes()[4..6], &h.bytes()[44..46]), (&[0xff; 2][..], &[0xff; 2][..]));
        assert_eq!(h.packet_len(), 65_535 + 40);
        let ip_udp = IpUdpHeader::plain("10.0.0.1:5".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let h = ip_udp_bytes(&ip_udp, 1 << 30, &[]);
        assert_eq!((&h.bytes()[2..4], &h.bytes()[24..26]), (&[0xff; 2][..], &[0xff, 0xeb][..]));
        assert_eq!(h.packet_len(), 65_535);
    }
}
