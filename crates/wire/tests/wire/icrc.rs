//! The ICRC against its definition, against packets of real adapters, and the search for the IPv4 identification.

use crate::common::{icrc_by_definition, ipv4, ipv6, udp};
use ferroce_wire::ICRC_LEN;
use ferroce_wire::icrc::Flow;
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|d| (d[0] << 4 | d[1]) as u8).collect()
}

/// Takes an IPv4 packet apart: flow, identification, BTH to ICRC.
fn dissect(ip: &[u8]) -> (Flow, u16, &[u8]) {
    let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
    let number = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    (Flow::v4(address(12), address(16), number(20), number(22)), number(4), &ip[28..])
}

/// A UC SEND ONLY sent by one adapter to itself, and a CNP of a ConnectX-4 Lx, from the IP header on.
const CAPTURED: [&str; 2] = [
    "4501 0040 0478 4000 4011 b4d5 c0a8 0007 c0a8 0007 c000 12b7 002c aca2 \
     2460 ffff 0000 00d3 00cf 1710 4630 818b e289 35d9 0e9a 9550 5401 be88 5e50 0000 78f3 53f3",
    "45c2 003c 718c 4000 4011 9161 0a00 1101 0a00 1201 0000 12b7 0028 0000 \
     8100 ffff 4000 0118 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 82fd 002a",
];

#[test]
fn packets_captured_from_adapters_have_the_icrc_that_is_computed() {
    for hex in CAPTURED {
        let packet = bytes_of(hex);
        let (flow, id, roce) = dissect(&packet);
        let (covered, icrc) = roce.split_at(roce.len() - ICRC_LEN);
        let mut crc = flow.start(roce.len(), id);
        crc.bth(covered);
        assert_eq!(crc.finish(), icrc, "{hex}");
        assert_eq!(icrc_by_definition(&packet[..20], &packet[20..28], covered), icrc);
    }
}

#[test]
fn the_identification_of_captured_packets_is_found() {
    for hex in CAPTURED {
        let packet = bytes_of(hex);
        let (flow, id, roce) = dissect(&packet);
        for hint in [0, id, id.wrapping_sub(1), !id] {
            assert_eq!(flow.verify(roce, hint), Some(id));
        }
    }
}

fn v4() -> (Flow, [u8; 4], [u8; 4], u16) {
    let (src, dst) = ([10, 77, 0, 1], [10, 77, 0, 2]);
    (Flow::v4(src.into(), dst.into(), 0xc123, 4791), src, dst, 0xc123)
}

fn sent_with(flow: &Flow, covered: &[u8], id: u16) -> Vec<u8> {
    let mut crc = flow.start(covered.len() + ICRC_LEN, id);
    crc.bth(covered);
    [covered, &crc.finish()].concat()
}

#[test]
fn every_identification_is_accepted_and_named() {
    let (flow, ..) = v4();
    for len in [12, 16, 1040, 4096 + 40] {
        let covered: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        let zero = sent_with(&flow, &covered, 0);
        for id in 0..=u16::MAX {
            // The ICRC for this identification, put onto the same bytes.
            let mut crc = flow.start(zero.len(), id);
            crc.bth(&covered);
            let mut received = flow.start(zero.len(), 0);
            received.bth(&covered[..12]);
            received.update(&covered[12..]);
            assert_eq!(received.check(crc.finish()), Some(id));
            if len > 1000 && id == 1000 {
                break;
            }
        }
    }
}

#[test]
fn no_other_difference_is_accepted() {
    // All the differences that identifications make, by brute force; then every 2^13th of all that there are.
    let (flow, ..) = v4();
    let covered: Vec<u8> = (0..20).collect();
    let with = |id| {
        let mut crc = flow.start(24, id);
        crc.bth(&covered);
        u32::from_le_bytes(crc.finish())
    };
    let zero = with(0);
    let possible: std::collections::HashMap<u32, u16> =
        (0..=u16::MAX).map(|id| (with(id) ^ zero, id)).collect();
    assert_eq!(possible.len(), 1 << 16);
    let mut accepted = 0;
    for difference in (0..=u32::MAX).step_by(1 << 13).chain(possible.keys().copied()) {
        let mut crc = flow.start(24, 0);
        crc.bth(&covered);
        let found = crc.check((zero ^ difference).to_le_bytes());
        assert_eq!(found, possible.get(&difference).copied(), "{difference:#010x}");
        accepted += usize::from(found.is_some());
    }
    assert!(accepted >= 1 << 16);
}

#[test]
fn every_segment_of_a_train_has_the_icrc_of_its_identification() {
    let (flow, src, dst, port) = v4();
    for id in 0..64 {
        let covered = vec![id as u8; 12 + 1024];
        let packet = sent_with(&flow, &covered, id);
        let expected =
            icrc_by_definition(&ipv4(src, dst, id, 0, 64, packet.len()), &udp(port, packet.len()), &covered);
        assert_eq!(packet[covered.len()..], expected);
    }
}

#[test]
fn short_and_oversized_input_is_refused_without_a_panic() {
    let (flow, ..) = v4();
    for len in 0..20 {
        assert_eq!(
            Flow::verify(&Flow::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, 1, 2), &vec![0; len], 0),
            None
        );
        let _ = flow.verify(&vec![0; len], 0);
    }
    assert_eq!(flow.verify(&vec![0x55; 70_000], 0), None);
}

proptest! {
    #[test]
    fn ipv4_icrc_is_as_defined(
        (src, dst) in any::<([u8; 4], [u8; 4])>(),
        (id, port, tos, ttl) in any::<(u16, u16, u8, u8)>(),
        covered in prop::collection::vec(any::<u8>(), 12..700),
        cut in 8usize..12,
    ) {
        let flow = Flow::v4(src.into(), dst.into(), port, 4791);
        let len = covered.len() + ICRC_LEN;
        let expected = icrc_by_definition(&ipv4(src, dst, id, tos, ttl, len), &udp(port, len), &covered);
        let mut crc = flow.start(len, id);
        crc.bth(&covered[..cut]);
        crc.update(&covered[cut..]);
        prop_assert_eq!(crc.finish(), expected);
        let packet = [&covered[..], &expected].concat();
        prop_assert_eq!(flow.verify(&packet, 0), Some(id));
        prop_assert_eq!(flow.verify(&packet, id), Some(id));
    }

    #[test]
    fn ipv6_icrc_is_as_defined(
        (src, dst) in any::<([u8; 16], [u8; 16])>(),
        (class_and_label, port, hops) in any::<(u32, u16, u8)>(),
        covered in prop::collection::vec(any::<u8>(), 12..700),
        hint: u16,
    ) {
        let flow = Flow::v6(src.into(), dst.into(), port, 4791);
        let len = covered.len() + ICRC_LEN;
        let expected = icrc_by_definition(&ipv6(src, dst, class_and_label, hops, len), &udp(port, len), &covered);
        let mut packet = [&covered[..], &expected].concat();
        prop_assert!(flow.verify(&packet, hint).is_some());
        let at = usize::from(hint) % len;
        if at != 4 {
            packet[at] ^= 1;
            prop_assert_eq!(flow.verify(&packet, hint), None);
        }
    }

    #[test]
    fn a_damaged_byte_is_found_unless_an_identification_explains_it(
        covered in prop::collection::vec(any::<u8>(), 12..300),
        (id, at, flip) in (any::<u16>(), any::<prop::sample::Index>(), 1u8..),
    ) {
        let (flow, src, dst, port) = v4();
        let mut packet = sent_with(&flow, &covered, id);
        let at = at.index(packet.len());
        prop_assume!(at != 4);
        packet[at] ^= flip;
        // What is accepted has exactly the ICRC of the identification that is named.
        if let Some(id) = flow.verify(&packet, 0) {
            let ip = ipv4(src, dst, id, 0, 64, packet.len());
            let (covered, icrc) = packet.split_at(packet.len() - ICRC_LEN);
            prop_assert_eq!(&icrc_by_definition(&ip, &udp(port, packet.len()), covered)[..], icrc);
        }
    }
}

#[test]
fn of_a_million_damaged_packets_about_sixteen_pass() {
    let (flow, ..) = v4();
    let covered = [0x3c; 16];
    let mut crc = flow.start(20, 0);
    crc.bth(&covered);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let passed = (0..1 << 20)
        .filter(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            crc.clone().check((random as u32).to_le_bytes()).is_some()
        })
        .count();
    assert!((4..=36).contains(&passed), "{passed}");
}
