//! Headers and packets: what goes in comes out, and no input does harm.

use crate::common::{Fields, headers, opcodes};
use ferroce_wire::*;
use proptest::prelude::*;

prop_compose! {
    fn any_bth()(
        (solicited, migrated, fecn, becn, ack_request) in any::<(bool, bool, bool, bool, bool)>(),
        pad in 0u8..4,
        pkey: u16,
        dest_qp in 0u32..1 << 24,
        psn in 0u32..1 << 24,
    ) -> Bth {
        Bth { opcode: Opcode::CNP, solicited, migrated, pad, pkey, fecn, becn, dest_qp, ack_request, psn }
    }
}

prop_compose! {
    fn any_fields()(
        bth in any_bth(),
        srqn in 0u32..1 << 24,
        (qkey, src_qp) in (any::<u32>(), 0u32..1 << 24),
        (va, rkey, dma_len) in any::<(u64, u32, u32)>(),
        (swap_or_add, compare, atomic_ack) in any::<(u64, u64, u64)>(),
        (syndrome, msn) in (any::<u8>(), 0u32..1 << 24),
        immediate: [u8; 4],
        invalidate_rkey: u32,
    ) -> Fields {
        Fields {
            bth,
            srqn,
            deth: Deth { qkey, src_qp },
            flush: Feth { placement: (qkey & 15) as u8, selectivity: (rkey & 3) as u8 },
            reth: Reth { va, rkey, dma_len },
            atomic: AtomicEth { va, rkey, swap_or_add, compare },
            aeth: Aeth { syndrome, msn },
            atomic_ack,
            immediate,
            invalidate_rkey,
        }
    }
}

#[test]
fn the_opcodes_are_those_of_the_specification() {
    let values: Vec<u8> = opcodes().map(Opcode::to_u8).collect();
    let both = (0x00..=0x14).chain([0x16, 0x17]);
    let rc = both.clone().chain([0x1c, 0x1d]);
    let expected: Vec<u8> =
        rc.chain(0x20..=0x2b).chain([0x64, 0x65, 0x81]).chain(both.map(|o| 0xa0 | o)).collect();
    assert_eq!(values, expected);
}

#[test]
fn flush_header_stands_before_the_reth_with_its_bits_at_the_end() {
    let opcode = Opcode::new(Service::Rc, Operation::Flush).unwrap();
    let mut headers = Headers::new(Bth::new(opcode, 1, 2));
    headers.flush = Some(Feth { placement: 2, selectivity: 1 });
    headers.reth = Some(Reth { va: 0x0102_0304_0506_0708, rkey: 9, dma_len: 10 });
    let mut bytes = [0; 32];
    assert_eq!(headers.emit(&mut bytes), Ok(32));
    assert_eq!(bytes[0], 0x1c);
    assert_eq!(bytes[12..24], [0, 0, 0, 0x12, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn every_opcode_value_survives_the_round_trip() {
    for value in 0..=u8::MAX {
        if let Some(opcode) = Opcode::from_u8(value) {
            assert_eq!(opcode.to_u8(), value);
            assert_eq!(Opcode::new(opcode.service, opcode.operation), Some(opcode));
        }
    }
}

#[test]
fn every_message_packet_has_exactly_one_position() {
    for o in opcodes() {
        let positions = [o.is_first(), o.is_middle(), o.is_last(), o.is_only()].map(usize::from);
        assert_eq!(positions.iter().sum::<usize>(), usize::from(o.has_payload()), "{o:?}");
    }
}

#[test]
fn header_lengths_are_those_of_the_specification() {
    let len = |value| Opcode::from_u8(value).unwrap().headers_len();
    for (value, expected) in [
        (0x00, 12),
        (0x03, 16),
        (0x06, 28),
        (0x09, 16),
        (0x0b, 32),
        (0x0c, 28),
        (0x0d, 16),
        (0x0e, 12),
        (0x10, 16),
        (0x11, 16),
        (0x12, 24),
        (0x13, 40),
        (0x17, 16),
        (0x1c, 32),
        (0x1d, 28),
        (0x64, 20),
        (0x65, 24),
        (0x81, 12),
        (0xa0, 16),
        (0xab, 36),
        (0xad, 16),
        (0xb4, 44),
    ] {
        assert_eq!(len(value), expected, "{value:#04x}");
    }
    assert_eq!(opcodes().map(Opcode::headers_len).max(), Some(MAX_HEADERS_LEN));
}

#[test]
fn an_rc_write_only_with_immediate_has_the_specified_bytes() {
    let bytes = [
        0x0b, 0xf0, 0xff, 0xff, 0x40, 0x01, 0x02, 0x03, 0x80, 0x0a, 0x0b, 0x0c, // BTH
        1, 2, 3, 4, 5, 6, 7, 8, 0xaa, 0xbb, 0xcc, 0xdd, 0, 0, 0, 5, // RETH
        0xde, 0xad, 0xbe, 0xef, // ImmDt
    ];
    let (h, len) = Headers::parse(&bytes).unwrap();
    assert_eq!(len, bytes.len());
    assert_eq!(
        h.bth,
        Bth {
            opcode: Opcode::new(Service::Rc, Operation::WriteOnlyWithImmediate).unwrap(),
            solicited: true,
            migrated: true,
            pad: 3,
            pkey: 0xffff,
            fecn: false,
            becn: true,
            dest_qp: 0x01_02_03,
            ack_request: true,
            psn: 0x0a_0b_0c,
        }
    );
    assert_eq!(h.reth, Some(Reth { va: 0x0102_0304_0506_0708, rkey: 0xaabb_ccdd, dma_len: 5 }));
    assert_eq!(h.immediate, Some([0xde, 0xad, 0xbe, 0xef]));
    let mut out = [0; MAX_HEADERS_LEN];
    assert_eq!(h.emit(&mut out), Ok(len));
    assert_eq!(out[..len], bytes);
}

#[test]
fn other_transport_versions_and_unknown_opcodes_are_refused() {
    let mut bytes = [0; 12];
    bytes[1] = 0x01;
    assert_eq!(Headers::parse(&bytes), Err(ParseError::Version(1)));
    bytes[1] = 0;
    for value in 0..=u8::MAX {
        bytes[0] = value;
        match Headers::parse(&bytes) {
            Err(ParseError::Opcode(v)) => assert!(v == value && Opcode::from_u8(value).is_none()),
            _ => assert!(Opcode::from_u8(value).is_some()),
        }
    }
}

proptest! {
    #[test]
    fn headers_survive_the_round_trip(fields in any_fields()) {
        for opcode in opcodes() {
            let h = headers(opcode, &fields);
            let mut buffer = [0xa5; MAX_HEADERS_LEN + 1];
            let len = h.emit(&mut buffer).unwrap();
            prop_assert_eq!(len, h.len());
            prop_assert!(buffer[len..].iter().all(|b| *b == 0xa5));
            prop_assert_eq!(Headers::parse(&buffer), Ok((h, len)));
        }
    }

    #[test]
    fn truncated_headers_are_refused(fields in any_fields()) {
        for opcode in opcodes() {
            let mut buffer = [0; MAX_HEADERS_LEN];
            let len = headers(opcode, &fields).emit(&mut buffer).unwrap();
            for have in 0..len {
                let need = if have < BTH_LEN { BTH_LEN } else { len };
                prop_assert_eq!(Headers::parse(&buffer[..have]), Err(ParseError::Truncated { have, need }));
            }
        }
    }

    #[test]
    fn emit_into_a_short_buffer_fails_and_leaves_it_alone(fields in any_fields()) {
        for opcode in opcodes() {
            let h = headers(opcode, &fields);
            for have in 0..h.len() {
                let mut buffer = [0xa5; MAX_HEADERS_LEN];
                prop_assert_eq!(h.emit(&mut buffer[..have]), Err(EmitError::Short { have, need: h.len() }));
                prop_assert!(buffer.iter().all(|b| *b == 0xa5));
            }
        }
    }

    #[test]
    fn emit_refuses_headers_of_another_opcode(fields in any_fields()) {
        let all: Vec<Opcode> = opcodes().collect();
        for a in &all {
            for b in &all {
                let mut h = headers(*a, &fields);
                h.bth.opcode = *b;
                let refused = h.emit(&mut [0; MAX_HEADERS_LEN]) == Err(EmitError::Mismatch(*b));
                prop_assert_eq!(refused, h != headers(*b, &fields));
            }
        }
    }

    #[test]
    fn arbitrary_bytes_parse_or_fail_without_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..96)) {
        let _ = Packet::parse(&bytes);
        if let Some(opcode) = bytes.first_mut() {
            *opcode &= 0x1f; // RC, of which some packets are short
        }
        prop_assert_eq!(ShortPacket::parse(&bytes), short(&bytes));
        if let Some(flags) = bytes.get_mut(1) {
            *flags &= 0xf0; // a right version, so that most inputs get further
        }
        prop_assert_eq!(ShortPacket::parse(&bytes), short(&bytes));
        if let Ok((h, len)) = Headers::parse(&bytes) {
            let mut out = [0; MAX_HEADERS_LEN];
            prop_assert_eq!(h.emit(&mut out), Ok(len));
            prop_assert_eq!(Headers::parse(&out), Ok((h, len)));
        }
        if let Ok(p) = Packet::parse(&bytes) {
            let total = p.headers.len() + p.payload.len() + usize::from(p.headers.bth.pad) + ICRC_LEN;
            prop_assert_eq!(total, bytes.len());
        }
    }

    #[test]
    fn a_packet_gives_back_its_payload_without_pad(
        fields in any_fields(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        for opcode in opcodes() {
            let mut h = headers(opcode, &fields);
            h.bth.pad = (payload.len().wrapping_neg() % 4) as u8;
            let mut bytes = vec![0; h.len()];
            h.emit(&mut bytes).unwrap();
            bytes.extend(&payload);
            bytes.resize(bytes.len() + usize::from(h.bth.pad) + ICRC_LEN, 0);
            prop_assert_eq!(Packet::parse(&bytes), Ok(Packet { headers: h, payload: &payload }));
            prop_assert_eq!(ShortPacket::parse(&bytes), short(&bytes));
            // Cut anywhere it is refused, or seen as a shorter packet of whole words.
            for len in 0..bytes.len() {
                prop_assert_eq!(ShortPacket::parse(&bytes[..len]), short(&bytes[..len]));
                if let Ok(p) = Packet::parse(&bytes[..len]) {
                    prop_assert!(len % 4 == 0 && p.payload.len() < payload.len());
                }
            }
        }
    }
}

/// What [`ShortPacket::parse`] has to make of a packet, as [`Packet::parse`] reads it.
fn short(bytes: &[u8]) -> Option<ShortPacket<'_>> {
    let Ok(Packet { headers, payload }) = Packet::parse(bytes) else { return None };
    let Headers { bth, immediate, reth, aeth, atomic, atomic_ack, .. } = headers;
    if bth.opcode.service != Service::Rc {
        return None;
    }
    match (bth.opcode.operation, aeth.map(|aeth| Syndrome::from_u8(aeth.syndrome))) {
        (Operation::SendOnly | Operation::SendOnlyWithImmediate, _) => {
            Some(ShortPacket::Send { bth, immediate, payload })
        }
        (Operation::WriteOnly, _) => Some(ShortPacket::Write { bth, reth: reth?, payload }),
        (Operation::Acknowledge, Some(Syndrome::Ack { .. })) if payload.is_empty() => {
            Some(ShortPacket::Acknowledge { bth })
        }
        (Operation::ReadRequest, _) if payload.is_empty() => Some(ShortPacket::Read { bth, reth: reth? }),
        (Operation::CompareSwap | Operation::FetchAdd, _) if payload.is_empty() => {
            Some(ShortPacket::Atomic { bth, atomic: atomic? })
        }
        (Operation::ReadResponseOnly, Some(Syndrome::Ack { .. })) => {
            Some(ShortPacket::ReadResponse { bth, payload })
        }
        (Operation::AtomicAcknowledge, Some(Syndrome::Ack { .. })) if payload.is_empty() => {
            Some(ShortPacket::AtomicAcknowledge { bth, original: atomic_ack? })
        }
        _ => None,
    }
}

#[test]
fn more_pad_than_payload_is_refused() {
    let mut bytes = [0; BTH_LEN + ICRC_LEN];
    bytes[1] = 3 << 4;
    assert_eq!(Packet::parse(&bytes), Err(PacketError::Pad { pad: 3, have: 0 }));
}

#[test]
fn a_packet_that_is_not_whole_words_is_refused() {
    let bytes = [0; BTH_LEN + 6 + ICRC_LEN];
    assert_eq!(Packet::parse(&bytes), Err(PacketError::Unaligned(6)));
}
