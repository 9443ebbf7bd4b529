//! Ethernet frames, their checksums and hashes.

use ferroce_wire::frame::{Frame, IpLayer, Layer, Mpls, Transport, Tunnel, Under};
use ferroce_wire::{checksum, toeplitz};
use proptest::prelude::*;

const MACS: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

fn ethernet(ether_type: u16, rest: &[u8]) -> Vec<u8> {
    [&MACS, &ether_type.to_be_bytes()[..], rest].concat()
}

/// With checksums of zero.
fn ipv4(protocol: u8, rest: &[u8]) -> Vec<u8> {
    let length = (20 + rest.len() as u16).to_be_bytes();
    let mut packet = vec![0x45, 0x10, length[0], length[1], 0, 1, 0x40, 0, 64, protocol, 0, 0];
    packet.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend_from_slice(rest);
    packet
}

fn ipv6(next: u8, rest: &[u8]) -> Vec<u8> {
    let length = (rest.len() as u16).to_be_bytes();
    let mut packet = vec![0x6a, 0xb1, 0x23, 0x45, length[0], length[1], next, 63];
    packet.extend_from_slice(&[0x20; 16]);
    packet.extend_from_slice(&[0x30; 16]);
    packet.extend_from_slice(rest);
    packet
}

fn udp(src: u16, dst: u16, rest: &[u8]) -> Vec<u8> {
    let length = (8 + rest.len() as u16).to_be_bytes();
    [&src.to_be_bytes(), &dst.to_be_bytes(), &length, &[0, 0][..], rest].concat()
}

fn tcp(src: u16, dst: u16, rest: &[u8]) -> Vec<u8> {
    let mut packet = [src.to_be_bytes(), dst.to_be_bytes()].concat();
    packet.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0, 9, 0, 0, 0, 0]);
    packet.extend_from_slice(rest);
    packet
}

fn parse(bytes: &[u8]) -> Frame {
    Frame::parse(bytes).expect("a frame")
}

#[test]
fn the_fields_of_ethernet_ip_and_udp_are_found() {
    let frame = parse(&ethernet(0x0800, &ipv4(17, &udp(1234, 5678, b"data"))));
    let link = frame.outer.ethernet.expect("Ethernet");
    assert_eq!((link.dst, link.src), ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]));
    assert_eq!((link.vlan, link.ether_type), (None, 0x0800));
    assert_eq!(
        frame.outer.network,
        Some(IpLayer::V4 {
            src: [10, 0, 0, 1],
            dst: [10, 0, 0, 2],
            protocol: 17,
            tos: 0x10,
            ttl: 64,
            flags: 2
        })
    );
    assert_eq!(frame.outer.transport, Some(Transport::Udp { src: 1234, dst: 5678 }));
    assert_eq!((frame.outer.network_at, frame.outer.transport_at, frame.outer.end), (14, 34, 46));
}

#[test]
fn vlan_tags_and_ipv6_extension_headers_are_walked_over() {
    // Hop-by-hop options of 8 bytes, then destination options of 16.
    let mut rest = vec![60, 0, 0, 0, 0, 0, 0, 0, 6, 1];
    rest.extend_from_slice(&[0; 14]);
    rest.extend_from_slice(&tcp(7, 9, b""));
    let tagged = [&[0xac, 0x0c, 0x81, 0x00, 0, 5, 0x86, 0xdd][..], &ipv6(0, &rest)].concat();
    let frame = parse(&ethernet(0x88a8, &tagged));
    let link = frame.outer.ethernet.expect("Ethernet");
    assert_eq!((link.vlan, link.ether_type), (Some(0xac0c), 0x86dd));
    assert_eq!(
        frame.outer.network,
        Some(IpLayer::V6 {
            src: [0x20; 16],
            dst: [0x30; 16],
            protocol: 6,
            traffic_class: 0xab,
            hop_limit: 63,
            flow_label: 0x12345
        })
    );
    assert_eq!(frame.outer.transport, Some(Transport::Tcp { src: 7, dst: 9 }));
}

#[test]
fn only_the_first_fragment_has_ports() {
    let mut bytes = ethernet(0x0800, &ipv4(17, &udp(1, 2, b"")));
    bytes[21] = 1;
    assert_eq!(parse(&bytes).outer.transport, None);
    let mut fragment = vec![17, 0, 0, 1, 0, 0, 0, 0];
    fragment.extend_from_slice(&udp(1, 2, b""));
    assert!(parse(&ethernet(0x86dd, &ipv6(44, &fragment))).outer.transport.is_some());
    fragment[3] = 9;
    assert_eq!(parse(&ethernet(0x86dd, &ipv6(44, &fragment))).outer.transport, None);
}

#[test]
fn tunnels_show_what_they_carry() {
    let inside = ethernet(0x0800, &ipv4(6, &tcp(11, 12, b"")));
    let inner = |frame: Frame| frame.inner.and_then(|layer: Layer| layer.transport);
    let carried = Some(Transport::Tcp { src: 11, dst: 12 });

    let vxlan = [&[8, 0, 0, 0, 0x12, 0x34, 0x56, 0][..], &inside].concat();
    let frame = parse(&ethernet(0x0800, &ipv4(17, &udp(1, 4789, &vxlan))));
    assert_eq!(frame.tunnel, Some(Tunnel::Vxlan { vni: 0x12_3456 }));
    assert_eq!(inner(frame), carried);
    assert!(frame.inner.is_some_and(|layer| layer.ethernet.is_some()));

    let gre = [&[0x30, 0, 8, 0, 0, 0, 0, 77, 0, 0, 0, 1][..], &inside[14..]].concat();
    let frame = parse(&ethernet(0x86dd, &ipv6(47, &gre)));
    assert_eq!(frame.tunnel, Some(Tunnel::Gre { flags: 0x3000, protocol: 0x0800, key: 77 }));
    assert_eq!(inner(frame), carried);

    let stack = [&[0, 1, 0x10, 64, 0, 2, 0x21, 64][..], &inside[14..]].concat();
    let frame = parse(&ethernet(0x8847, &stack));
    assert_eq!(frame.mpls, Some(Mpls { under: Under::Ethernet, entry: 0x0001_1040 }));
    assert_eq!(frame.outer.transport, carried);
    let frame = parse(&ethernet(0x0800, &ipv4(17, &udp(1, 6635, &stack))));
    assert_eq!(frame.mpls.map(|mpls| mpls.under), Some(Under::Udp));
    assert_eq!(inner(frame), carried);
}

#[test]
fn checksums_that_are_filled_in_are_right_and_damage_is_found() {
    for (protocol, packet) in [(17, udp(1, 2, b"odd")), (6, tcp(1, 2, b"even"))] {
        let mut bytes = ethernet(0x0800, &ipv4(protocol, &packet));
        bytes.resize(64, 0);
        let layer = parse(&bytes).outer;
        assert!(!checksum::verify(&bytes, &layer, false));
        checksum::fill(&mut bytes, &layer);
        assert!(checksum::verify(&bytes, &layer, false));
        // An independent sum of the IPv4 header.
        let words = bytes[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        assert_eq!(words.sum::<u32>() % 0xffff, 0);
        for at in [20, layer.transport_at, layer.end - 1] {
            bytes[at] ^= 4;
            assert!(!checksum::verify(&bytes, &layer, false), "a changed byte {at}");
            bytes[at] ^= 4;
        }
        bytes[layer.end - 1] ^= 4;
        assert!(checksum::verify(&bytes, &layer, true), "TCP and UDP are vouched for");
    }
}

#[test]
fn a_checksum_that_was_begun_is_completed() {
    let mut whole = ethernet(0x86dd, &ipv6(17, &udp(5, 6, b"payload")));
    let layer = parse(&whole).outer;
    checksum::fill(&mut whole, &layer);
    let mut begun = whole.clone();
    // The sum of the pseudo-header: addresses, length, protocol.
    let addresses = u32::from(checksum::sum(&begun[22..54]));
    let sum = addresses + (layer.end - layer.transport_at) as u32 + 17;
    let sum = ((sum & 0xffff) + (sum >> 16)) as u16;
    begun[60..62].copy_from_slice(&sum.to_be_bytes());
    checksum::complete(&mut begun, layer.transport_at, 6);
    assert_eq!(begun, whole);
}

#[test]
fn the_hash_is_that_of_the_published_vectors() {
    // "Verifying the RSS Hash Calculation", Windows driver documentation.
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];
    let mut input = vec![66, 9, 149, 187, 161, 142, 100, 80];
    assert_eq!(toeplitz::hash(&KEY, &input), 0x323e_8fc2);
    input.extend_from_slice(&2794_u16.to_be_bytes());
    input.extend_from_slice(&1766_u16.to_be_bytes());
    assert_eq!(toeplitz::hash(&KEY, &input), 0x51cc_c178);
}

proptest! {
    #[test]
    fn nothing_makes_the_parser_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..6usize) {
        let types = [[8, 0], [0x86, 0xdd], [0x81, 0], [0x88, 0x47], [0x88, 0xa8], [0, 0]];
        if bytes.len() > 24 {
            bytes[12..14].copy_from_slice(&types[kind]);
            bytes[14] = bytes[14] & 15 | if kind == 1 { 0x60 } else { 0x40 };
            bytes[23] = [17, 47, 6, 50][usize::from(bytes[23]) % 4];
        }
        if let Some(frame) = Frame::parse(&bytes) {
            prop_assert!(frame.outer.end <= bytes.len());
            let _ = checksum::verify(&bytes, &frame.outer, false);
            checksum::fill(&mut bytes, &frame.outer);
        }
        checksum::complete(&mut bytes, kind, kind);
    }
}
