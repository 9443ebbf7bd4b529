//! A ring that a hostile peer writes, read as a link reads it: for tests and for fuzzing.

use super::protocol::{Broken, COPIED_WORDS, Consumer, RingWords};
use super::record::{self, CompactPayload, CompactRecord, Record, RingRecord};
use ferroce_access::SharedMemory;
use ferroce_types::PacketMeta;

/// Bytes of the ring: short, so that its end is reached soon.
const RING: usize = 4096;
const BYTES_AT: usize = 4096;
/// Where the producer's tail is among a ring's words.
const TAIL_AT: usize = 0;
/// … and the copy of the last record.
const LAST_AT: usize = 16;

/// What a reader has made of a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingReading {
    /// Packets.
    pub packets: usize,
    /// Bytes of all records.
    pub consumed: u64,
    /// The peer has written what can't be.
    pub is_broken: bool,
    /// All that was understood.
    said: String,
}

/// Reads what a peer publishes that puts `stream` (zeros from its end on) into the ring and writes each of `tails` in turn.
///
/// # Panics
/// If a record doesn't lie within what has been published, or if bytes beyond matter.
#[must_use]
pub fn read(stream: &[u8], tails: &[u64]) -> RingReading {
    let readings = [0, 0xff].map(|beyond| {
        let mut reading = RingReading { packets: 0, consumed: 0, is_broken: false, said: String::new() };
        reading.is_broken = read_into(&mut reading, stream, tails, beyond).is_err();
        reading
    });
    assert_eq!(readings[0], readings[1], "bytes matter that haven't been published");
    let [reading, _] = readings;
    reading
}

/// As [`read`], with `beyond` in every byte of the ring that isn't published.
fn read_into(reading: &mut RingReading, stream: &[u8], tails: &[u64], beyond: u8) -> Result<(), Broken> {
    let memory = SharedMemory::create(BYTES_AT + RING, false).expect("memory to share");
    let lines: &RingWords = memory.words(0);
    let mut consumer = Consumer::new(RING);
    for &tail in tails {
        let head = reading.consumed;
        let mut bytes = [beyond; RING];
        for position in head..tail.min(head + RING as u64) {
            bytes[position as usize % RING] = stream.get(position as usize).copied().unwrap_or(0);
        }
        memory.write(BYTES_AT, &bytes);
        memory.write(TAIL_AT, &tail.to_ne_bytes());
        // A copy that needn't be one: what would lie at the head.
        let copy: [u8; 8 * COPIED_WORDS] =
            std::array::from_fn(|at| stream.get(head as usize + at).copied().unwrap_or(0));
        memory.write(LAST_AT, &tail.to_ne_bytes());
        memory.write(LAST_AT + 8, &copy);
        while let Some((at, published)) = consumer.peek(lines)? {
            assert!(at + published <= RING && reading.consumed + published as u64 <= tail);
            let begin = BYTES_AT + at;
            if let Some(packet) =
                consumer.copy_of_only(lines).and_then(|words| record::read_copy(words, tail))
            {
                check_compact(&packet, &memory, 0..0);
                reading.said += &format!("{packet:?} beside the position\n");
            }
            let whole = |total: usize| {
                assert!(total > 0 && total <= published);
                begin..begin + total
            };
            let total = if let Some(packet) = record::read_compact(&memory, begin, published, 0)? {
                check_compact(&packet, &memory, whole(packet.end as usize));
                reading.packets += 1;
                reading.said += &format!("{packet:?}\n");
                packet.end as usize
            } else {
                let (record, total) = record::read(&memory, begin, published)?;
                if let RingRecord::Whole(packet) = &record {
                    check(packet, whole(total));
                }
                reading.packets += usize::from(!matches!(record, RingRecord::Padding));
                reading.said += &format!("{record:?}\n");
                whole(total).len()
            };
            consumer.release(lines, total);
            reading.consumed += total as u64;
        }
    }
    Ok(())
}

/// What is done with a packet can be done.
fn check(packet: &Record, record: std::ops::Range<usize>) {
    assert!(packet.headers.emit(&mut [0; 128]).is_ok());
    assert!(packet.meta.len <= PacketMeta::MAX_LEN);
    let (at, len) = packet.payload;
    assert!(at >= record.start && at + len <= record.end && len <= record::MAX_PAYLOAD);
}

/// As [`check`].
fn check_compact(packet: &CompactRecord, memory: &SharedMemory, record: std::ops::Range<usize>) {
    assert!(packet.headers(memory).emit(&mut [0; 128]).is_ok());
    let len = packet.len;
    match packet.payload {
        CompactPayload::Ring(at) => {
            assert!(at >= record.start && at + len <= record.end && len <= record::MAX_PAYLOAD);
        }
        CompactPayload::Copied(_) => assert!(len <= record::MAX_COPIED),
    }
    assert!(packet.headers.operands_len() <= len);
}

#[cfg(test)]
mod tests {
    use super::super::record::Draft;
    use super::*;
    use crate::compact::CompactHeaders;
    use ferroce_wire::{Bth, Headers, Opcode, Operation, Service};
    use proptest::prelude::*;
    use std::net::Ipv6Addr;

    fn packet(payload: usize, on_wire: u16) -> Vec<u8> {
        let headers = Headers::new(Bth::new(Opcode::new(Service::Rc, Operation::SendOnly).unwrap(), 7, 9));
        let ip = Ipv6Addr::LOCALHOST.into();
        let meta =
            PacketMeta { src: ip, dst: ip, tos: 0, ttl: 64, flow_label: 0, len: on_wire, source_port: 0 };
        let draft = Draft::packet(&headers, &meta, payload).unwrap();
        let memory = SharedMemory::create(draft.total(), false).unwrap();
        draft.write(&memory, 0);
        let mut bytes = vec![0; draft.total()];
        memory.read(0, &mut bytes);
        bytes
    }

    fn compact(payload: usize, by_position: bool) -> Vec<u8> {
        let opcode = Opcode::new(Service::Rc, Operation::SendOnly).unwrap();
        let headers = CompactHeaders::of_send(opcode, (7, 9), 5, (false, 0), by_position);
        let total = record::compact_total(&headers, payload);
        let memory = SharedMemory::create(total, false).unwrap();
        record::write_compact(&memory, 0, &headers, payload);
        let mut bytes = vec![0; total];
        memory.read(0, &mut bytes);
        bytes
    }

    /// Records as they should be, and bytes that are anything.
    fn part() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            (0..1500usize, prop_oneof![any::<u16>(), Just(u16::MAX)])
                .prop_map(|(payload, on_wire)| packet(payload, on_wire)),
            (0..1500usize, any::<bool>()).prop_map(|(len, by_position)| compact(len, by_position)),
            (0..20usize).prop_map(|len| compact(len, true)),
            (1..8u32).prop_map(|grains| {
                let mut padding = vec![0; RingWords::GRAIN * grains as usize];
                padding[..4].copy_from_slice(&(RingWords::GRAIN as u32 * grains).to_ne_bytes());
                padding
            }),
            any::<[u64; 7]>().prop_map(|words| {
                let first = [RingWords::GRAIN as u32, 3].map(u32::to_ne_bytes).concat();
                [first, words.map(u64::to_ne_bytes).concat()].concat()
            }),
            prop::collection::vec(any::<u8>(), 0..200),
        ]
    }

    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
        (prop::collection::vec(part(), 0..12), damage).prop_map(|(parts, damage)| {
            let mut stream = parts.concat();
            for (index, byte) in damage {
                if !stream.is_empty() {
                    let at = index.index(stream.len());
                    stream[at] = byte;
                }
            }
            stream
        })
    }

    fn tail() -> impl Strategy<Value = u64> {
        prop_oneof![
            6 => (0..200u64).prop_map(|grains| grains * RingWords::GRAIN as u64),
            1 => 0..20_000u64,
            1 => any::<u64>(),
        ]
    }

    proptest! {
        #[test]
        fn whatever_a_peer_writes_is_read_within_bounds_or_broken(
            stream in stream(),
            mut tails in prop::collection::vec(tail(), 1..6),
            in_order: bool,
        ) {
            if in_order {
                tails.sort_unstable();
            }
            let reading = read(&stream, &tails);
            prop_assert!(reading.consumed <= tails.iter().copied().max().unwrap());
        }
    }

    #[test]
    fn good_records_are_read_and_a_bad_one_after_them_breaks_the_ring() {
        let mut stream = [packet(100, 1), packet(0, 2), packet(500, 3)].concat();
        let good = stream.len() as u64;
        let reading = read(&stream, &[good]);
        assert_eq!((reading.packets, reading.consumed, reading.is_broken), (3, good, false));
        stream.extend([0xff; 64]);
        let reading = read(&stream, &[good, good + 64]);
        assert_eq!((reading.packets, reading.consumed, reading.is_broken), (3, good, true));
    }

    #[test]
    fn positions_that_cannot_be_break_the_ring() {
        let stream = packet(100, 1);
        let whole = stream.len() as u64;
        for tails in [&[1][..], &[whole + 1], &[RING as u64 + 64], &[u64::MAX], &[u64::MAX - 63], &[whole, 0]]
        {
            assert!(read(&stream, tails).is_broken, "{tails:?}");
        }
        assert!(!read(&stream, &[0, 0, whole, whole]).is_broken);
    }
}
