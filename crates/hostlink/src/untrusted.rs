//! A ring that a hostile peer writes, read as a link reads it: for tests and for fuzzing.

use super::cells::{BULK, CELLS, RingPlace, SPAN};
use super::protocol::{self, Broken, CELL};
use super::record::{self, MAX_PAYLOAD, ReadRecord, RingRecord};
use ferroce_access::SharedMemory;
use ferroce_types::PacketMeta;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The position of the first cell: the ring's end is reached soon.
const BEGIN: u64 = 3 * CELLS as u64 - 3;

/// What a reader has made of a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingReading {
    /// Packets.
    pub packets: usize,
    /// The peer has written what can't be.
    pub is_broken: bool,
    /// All that was understood.
    said: String,
}

/// Reads what a peer publishes that puts `cells`, a cell each, into the ring, and `bulk` at the beginning of the ring's bulk.
///
/// # Panics
/// If a packet doesn't lie within its cell or within the bulk, or if bytes matter that haven't been published.
#[must_use]
pub fn read(cells: &[u8], bulk: &[u8]) -> RingReading {
    let readings = [0, 0xff].map(|beyond| {
        let mut reading = RingReading { packets: 0, is_broken: false, said: String::new() };
        reading.is_broken = read_into(&mut reading, cells, bulk, beyond).is_err();
        reading
    });
    assert_eq!(readings[0], readings[1], "bytes matter that haven't been published");
    let [reading, _] = readings;
    reading
}

/// As [`read`], with `beyond` in every byte of the cell behind the last.
fn read_into(reading: &mut RingReading, cells: &[u8], bulk: &[u8], beyond: u8) -> Result<(), Broken> {
    let memory = Arc::new(SharedMemory::create(SPAN, false).expect("memory to share"));
    let ring = RingPlace::new(&memory, 0);
    memory.write(ring.bulk_at(0), &bulk[..bulk.len().min(BULK)]);
    let (cells, _) = cells.as_chunks::<CELL>();
    for (position, bytes) in (BEGIN..).zip(cells) {
        memory.write(ring.cell_at(position), bytes);
        let stamp = (position as u32).wrapping_add(1);
        let first = &ring.cell(position)[0];
        first.store(first.load(Ordering::Relaxed) >> 32 << 32 | u64::from(stamp), Ordering::Relaxed);
        memory.write(ring.cell_at(position + 1), &[beyond; CELL]);
        assert!(protocol::is_published(first, position));
        assert!(!protocol::is_published(&ring.cell(position + 1)[0], position + 1));
        let dest = record::dest_of(ring.cell(position));
        // The peer has changed the QPN since the reader's look.
        assert_eq!(ReadRecord::default().read(&memory, &ring, position, dest ^ 1), Err(Broken));
        let mut record = ReadRecord::default();
        record.read(&memory, &ring, position, dest)?;
        check(&record, &memory, &ring, position);
        reading.packets += 1;
        reading.said += &format!("{record:?}\n");
    }
    Ok(())
}

/// What is done with a packet can be done.
fn check(record: &ReadRecord, memory: &SharedMemory, ring: &RingPlace, position: u64) {
    let (headers, (at, len)) = match record.get().expect("a record") {
        RingRecord::Compact(packet) if packet.headers.is_offered() => {
            assert!(packet.len <= MAX_PAYLOAD && record.bulk_end.is_none());
            (packet.headers(memory), (packet.at, 0))
        }
        RingRecord::Compact(packet) => {
            assert!(packet.headers.operands_len() <= packet.len);
            (packet.headers(memory), (packet.at, packet.len.max(packet.headers.answer_len())))
        }
        RingRecord::Whole(packet) => {
            assert!(packet.meta.len <= PacketMeta::MAX_LEN);
            (packet.headers, packet.payload)
        }
    };
    assert!(headers.emit(&mut [0; 128]).is_ok() && len <= MAX_PAYLOAD);
    let (first, room) = match record.bulk_end {
        None => (ring.cell_at(position), CELL),
        Some(_) => (ring.bulk_at(0), BULK),
    };
    assert!(at >= first && at + len <= first + room);
}

#[cfg(test)]
mod tests {
    use super::super::cells::Cell;
    use super::super::record::Draft;
    use super::*;
    use crate::compact::CompactHeaders;
    use ferroce_wire::{Bth, Headers, Opcode, Operation, Reth, Service};
    use proptest::prelude::*;
    use std::net::Ipv6Addr;

    /// A ring in memory of its own.
    struct OwnRing {
        memory: Arc<SharedMemory>,
        place: RingPlace,
    }

    /// The bytes of a cell that `write` writes, which returns the first word.
    fn cell(write: impl FnOnce(&Cell, &OwnRing) -> u64) -> ([u8; CELL], OwnRing) {
        let memory = Arc::new(SharedMemory::create(SPAN, false).unwrap());
        let ring = OwnRing { place: RingPlace::new(&memory, 0), memory };
        let first = write(ring.place.cell(0), &ring);
        ring.place.cell(0)[0].store(first, Ordering::Relaxed);
        let mut bytes = [0; CELL];
        ring.memory.read(ring.place.cell_at(0), &mut bytes);
        (bytes, ring)
    }

    /// A cell with a packet whose bulk is the first of all, and that.
    fn packet(payload: usize, on_wire: u16) -> ([u8; CELL], Vec<u8>) {
        let headers = Headers::new(Bth::new(Opcode::new(Service::Rc, Operation::SendOnly).unwrap(), 7, 9));
        let ip = Ipv6Addr::LOCALHOST.into();
        let meta =
            PacketMeta { src: ip, dst: ip, tos: 0, ttl: 64, flow_label: 0, len: on_wire, source_port: 0 };
        let draft = Draft::packet(&headers, &meta, payload).unwrap();
        let (cell, ring) = cell(|cell, ring| draft.write(cell, &ring.memory, (ring.place.bulk_at(0), 0)));
        let mut bulk = vec![0; draft.total()];
        ring.memory.read(ring.place.bulk_at(0), &mut bulk);
        (cell, bulk)
    }

    fn compact(payload: usize, bulk: Option<u64>) -> [u8; CELL] {
        let opcode = Opcode::new(Service::Rc, Operation::SendOnly).unwrap();
        let headers = CompactHeaders::of_send(opcode, (7, 9), 5, (false, 0)).acknowledged_by_result();
        cell(|cell, _| record::write_compact(cell, &headers, payload, bulk)).0
    }

    /// A cell with a READ of so many bytes that its result answers.
    fn read_of(len: u32, bulk: Option<u64>) -> [u8; CELL] {
        let opcode = Opcode::new(Service::Rc, Operation::ReadRequest).unwrap();
        let headers = CompactHeaders::of_fetch(opcode, (7, 9), 5, Reth { va: 1, rkey: 2, dma_len: len });
        cell(|cell, _| record::write_compact(cell, &headers, 0, bulk)).0
    }

    /// Cells as they should be, and bytes that are anything.
    fn part() -> impl Strategy<Value = [u8; CELL]> {
        let position =
            prop_oneof![(0..2 * BULK as u64 / CELL as u64).prop_map(|line| line * CELL as u64), any::<u64>()];
        prop_oneof![
            Just(packet(100, 1).0),
            (0..1500usize, any::<Option<u64>>()).prop_map(|(len, bulk)| compact(len, bulk)),
            (0..70_000usize, position.clone()).prop_map(|(len, bulk)| compact(len, Some(bulk))),
            (0..70_000u32, position).prop_map(|(len, bulk)| read_of(len, Some(bulk))),
            prop::collection::vec(any::<u8>(), CELL).prop_map(|bytes| *bytes.first_chunk().unwrap()),
        ]
    }

    fn damaged(mut bytes: Vec<u8>, damage: Vec<(prop::sample::Index, u8)>) -> Vec<u8> {
        for (index, byte) in damage {
            if !bytes.is_empty() {
                let at = index.index(bytes.len());
                bytes[at] = byte;
            }
        }
        bytes
    }

    fn damage() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)
    }

    proptest! {
        #[test]
        fn whatever_a_peer_writes_is_read_within_bounds_or_broken(
            parts in prop::collection::vec(part(), 0..12),
            in_cells in damage(),
            in_bulk in damage(),
        ) {
            let cells = damaged(parts.concat(), in_cells);
            let reading = read(&cells, &damaged(packet(100, 1).1, in_bulk));
            prop_assert!(reading.packets <= parts.len());
        }
    }

    #[test]
    fn good_cells_are_read_and_a_bad_one_after_them_breaks_the_ring() {
        let (whole, bulk) = packet(100, 1);
        let reads = [read_of(24, None), read_of(25, Some(64)), read_of(MAX_PAYLOAD as u32, Some(0))];
        let good = [&[whole, compact(40, None), compact(41, Some(64))][..], &reads, &[whole]].concat();
        let reading = read(good.as_flattened(), &bulk);
        assert_eq!((reading.packets, reading.is_broken), (good.len(), false));
        let last = BULK as u64 - CELL as u64;
        for bad in [
            [0xff; CELL],
            read_of(MAX_PAYLOAD as u32 + 1, Some(0)),
            read_of(u32::MAX, Some(0)),
            read_of(65, Some(last)),
            read_of(25, Some(8)),
        ] {
            let reading = read([&good[..], &[bad]].concat().as_flattened(), &bulk);
            assert_eq!((reading.packets, reading.is_broken), (good.len(), true));
        }
    }
}
