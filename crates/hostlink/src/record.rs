//! What a cell is: a packet on the `shm` fabric. A record is what a reader finds in a cell.
//!
//! A packet of a connection has [`CompactHeaders`] in its cell. Any other packet is in the cell's bulk: a fixed part, the transport headers
//! as they are on the wire, and the payload. Whatever a peer writes: reading a cell gives a record or an error, and touches no byte
//! outside cell and bulk.

use super::cells::{Cell, RingPlace};
use super::compact::{self, CompactHeaders, Front, Operands};
use super::protocol::{Broken, CELL};
use ferroce_access::SharedMemory;
use ferroce_types::{MAX_FLOW_LABEL, PacketMeta, gid_of, ip_of};
use ferroce_wire::Headers;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes before the transport headers.
const FIXED: usize = 48;
/// More than any packet's transport headers take.
const MAX_HEADERS: usize = 80;
/// Bytes a reader needs at once: everything but the payload.
const FRONT: usize = FIXED + MAX_HEADERS;
/// Payload bytes of a record, at most.
pub const MAX_PAYLOAD: usize = 64 * 1024;

/// Where a cell has the position of its bulk.
const BULK_WORD: usize = CELL / size_of::<u64>() - 1;

/// The words of operands in memory.
type OperandWords = [AtomicU64; size_of::<Operands>() / 8];

/// What a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum RecordKind {
    /// A packet with addresses and headers.
    Whole = 1,
    /// A packet of a connection, with [`CompactHeaders`] and its payload.
    Compact = 2,
}

/// What a reader finds in a cell.
#[derive(Clone, Copy, Debug)]
pub enum RingRecord<'a> {
    /// A packet of a connection.
    Compact(&'a CompactRecord),
    /// A packet with addresses and headers.
    Whole(&'a Record),
}

/// Room for what a reader finds: a record is written where it is read, since a copy costs as much as all else.
#[derive(Debug, Default)]
pub(super) struct ReadRecord {
    compact: Option<CompactRecord>,
    whole: Option<Record>,
    /// Where its bulk ends, if it has any.
    pub(super) bulk_end: Option<u64>,
    /// … and how many bytes it has.
    pub(super) bulk_len: usize,
}

/// A packet of a connection in a ring.
#[derive(Clone, Copy, Debug)]
pub struct CompactRecord {
    /// Its headers.
    pub headers: CompactHeaders,
    /// Where its payload begins in the link's memory, operands included; and its answer.
    pub(crate) at: usize,
    /// Bytes of the payload.
    pub(crate) len: usize,
}

impl CompactRecord {
    /// Bytes of the payload, wherever it is.
    #[must_use]
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.len - self.headers.operands_len()
    }

    /// Bytes of the payload if it is to be read from the sender's memory, and 0 otherwise.
    #[inline]
    pub(crate) fn offered_len(&self) -> usize {
        if self.headers.is_offered() { self.len } else { 0 }
    }

    /// All its headers. The memory is that of its link.
    #[inline]
    pub(crate) fn headers(&self, memory: &SharedMemory) -> Headers {
        self.headers.headers(|| self.operands(memory))
    }

    /// What an atomic swaps in or adds, and what it compares with; or what the memory held.
    #[inline]
    pub(crate) fn operands(&self, memory: &SharedMemory) -> Operands {
        let words: &OperandWords = memory.words(self.at);
        std::array::from_fn(|i| words[i].load(Ordering::Relaxed))
    }
}

/// A packet in a ring.
#[derive(Clone, Debug)]
pub struct Record {
    /// The transport headers.
    pub headers: Headers,
    /// The fields that a network layer's headers would have.
    pub meta: PacketMeta,
    /// Where its payload begins in the link's memory, and bytes of the payload.
    pub(crate) payload: (usize, usize),
}

/// Bytes of a packet in bulk.
const fn total(headers: usize, payload: usize) -> usize {
    payload_offset(headers) + payload
}

const fn payload_offset(headers: usize) -> usize {
    (FIXED + headers).next_multiple_of(8)
}

/// Bytes of bulk that a packet with compact headers and a payload of `payload` bytes needs: 0 if its cell has room for the payload, and for
/// the answer, which lies there when the payload has been read, or if the payload is offered.
#[inline]
pub(super) fn bulk_of(headers: &CompactHeaders, payload: usize) -> usize {
    let len = payload.max(headers.answer_len());
    if len <= CELL - headers.payload_offset() || headers.is_offered() { 0 } else { len }
}

/// Writes all words of a cell with compact headers but the first, and returns that one. Its payload of `payload` bytes and its answer lie in
/// the cell unless there is `bulk`, the position of the bulk.
#[inline(always)]
pub(super) fn write_compact(cell: &Cell, headers: &CompactHeaders, payload: usize, bulk: Option<u64>) -> u64 {
    let (front, len) = headers.front(RecordKind::Compact as u8, payload);
    if let Some(bulk) = bulk {
        cell[BULK_WORD].store(bulk, Ordering::Relaxed);
    }
    cell[1].store(front[1], Ordering::Relaxed);
    cell[2].store(front[2], Ordering::Relaxed);
    if len > 3 || headers.is_offered() {
        cell[3].store(front[3], Ordering::Relaxed);
        cell[4].store(front[4], Ordering::Relaxed);
    }
    front[0]
}

/// A packet with addresses that is about to be written.
pub(super) struct Draft {
    bytes: [u8; FRONT],
    front: usize,
    headers: usize,
    payload: usize,
    dest_qp: u32,
}

impl Draft {
    /// A packet with a payload of `payload` bytes, which the caller writes at [`Draft::payload_at`]; `None` when the
    /// headers don't fit their opcode.
    pub(super) fn packet(headers: &Headers, meta: &PacketMeta, payload: usize) -> Option<Self> {
        let mut bytes = [0; FRONT];
        let len = headers.emit(&mut bytes[FIXED..FIXED + MAX_HEADERS]).ok()?;
        bytes[5] = len as u8;
        bytes[6] = meta.tos;
        bytes[7] = meta.ttl;
        // A flow label has 20 bits, a payload's length needs 17.
        let label = meta.flow_label & MAX_FLOW_LABEL;
        bytes[8..12].copy_from_slice(&(payload as u32 | label >> 16 << 28).to_ne_bytes());
        bytes[12..14].copy_from_slice(&meta.len.to_ne_bytes());
        bytes[14..16].copy_from_slice(&(label as u16).to_ne_bytes());
        bytes[16..32].copy_from_slice(&gid_of(meta.src));
        bytes[32..48].copy_from_slice(&gid_of(meta.dst));
        Some(Self { bytes, front: FIXED + len, headers: len, payload, dest_qp: headers.bth.dest_qp })
    }

    /// Bytes of bulk that it needs.
    pub(super) const fn total(&self) -> usize {
        total(self.headers, self.payload)
    }

    /// Where the payload goes if the bulk is at `at`.
    pub(super) const fn payload_at(&self, at: usize) -> usize {
        at + payload_offset(self.headers)
    }

    /// Writes everything but the payload, and all words of the cell but the first, which it returns. The bulk is at byte `at` of `memory`
    /// and position `bulk`.
    pub(super) fn write(&self, cell: &Cell, memory: &SharedMemory, (at, bulk): (usize, u64)) -> u64 {
        memory.write(at, &self.bytes[..self.front]);
        let [first, second, third, ..] =
            compact::front_of_whole(RecordKind::Whole as u8, self.dest_qp, self.total() as u32);
        cell[1].store(second, Ordering::Relaxed);
        cell[2].store(third, Ordering::Relaxed);
        cell[BULK_WORD].store(bulk, Ordering::Relaxed);
        first
    }
}

/// The QPN that the packet of a published cell is for.
#[inline]
pub(super) fn dest_of(cell: &Cell) -> u32 {
    compact::dest_of(cell[1].load(Ordering::Relaxed))
}

impl ReadRecord {
    /// The record, if there is one.
    #[inline]
    pub(super) fn get(&self) -> Option<RingRecord<'_>> {
        match (&self.compact, &self.whole) {
            (Some(packet), _) => Some(RingRecord::Compact(packet)),
            (None, Some(packet)) => Some(RingRecord::Whole(packet)),
            (None, None) => None,
        }
    }

    /// The record, if it is a packet of a connection.
    #[inline]
    pub(super) fn compact(&self) -> Option<&CompactRecord> {
        self.compact.as_ref()
    }

    /// Drops the record.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.compact = None;
        if self.whole.is_some() {
            self.whole = None;
        }
    }

    /// Reads the published cell at `position` of a ring whose packet is for `dest_qp`. The words are copied: the peer may change its bytes
    /// at any time, so a caller that copies them again has to check the copy again.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        memory: &SharedMemory,
        ring: &RingPlace,
        position: u64,
        dest_qp: u32,
    ) -> Result<(), Broken> {
        let cell = ring.cell(position);
        let front: Front = std::array::from_fn(|i| cell[i].load(Ordering::Relaxed));
        let kind = compact::kind_of(front[0]);
        if kind != RecordKind::Compact as u8 {
            return if kind == RecordKind::Whole as u8 {
                self.read_whole(memory, ring, cell, dest_qp)
            } else {
                Err(Broken)
            };
        }
        let (headers, len) = CompactHeaders::parse(&front).ok_or(Broken)?;
        let at = match bulk_of(&headers, len) {
            0 => {
                if headers.is_offered() && len > MAX_PAYLOAD {
                    return Err(Broken);
                }
                self.bulk_end = None;
                ring.cell_at(position) + headers.payload_offset()
            }
            bulk if bulk <= MAX_PAYLOAD => self.read_bulk(ring, cell, bulk)?,
            _ => return Err(Broken),
        };
        if headers.dest_qp != dest_qp {
            return Err(Broken);
        }
        self.compact = Some(CompactRecord { headers, at, len });
        Ok(())
    }

    /// As [`ReadRecord::read`], of a packet with addresses.
    #[inline(never)]
    fn read_whole(
        &mut self,
        memory: &SharedMemory,
        ring: &RingPlace,
        cell: &Cell,
        dest_qp: u32,
    ) -> Result<(), Broken> {
        let total = compact::len_of(cell[2].load(Ordering::Relaxed));
        if total > FRONT + MAX_PAYLOAD {
            return Err(Broken);
        }
        let at = self.read_bulk(ring, cell, total)?;
        let mut bytes = [0; FRONT];
        let have = bytes.len().min(total);
        memory.read(at, &mut bytes[..have]);
        let mut record = parse(&bytes[..have], total)?;
        record.payload.0 += at;
        if record.headers.bth.dest_qp != dest_qp {
            return Err(Broken);
        }
        self.whole = Some(record);
        Ok(())
    }

    /// Where the bulk of a cell begins in the link's memory: `len` bytes that lie in the ring's bulk.
    #[inline]
    fn read_bulk(&mut self, ring: &RingPlace, cell: &Cell, len: usize) -> Result<usize, Broken> {
        let position = cell[BULK_WORD].load(Ordering::Relaxed);
        if len > RingPlace::bulk_left(position) || !position.is_multiple_of(CELL as u64) {
            return Err(Broken);
        }
        self.bulk_len = len.next_multiple_of(CELL);
        self.bulk_end = Some(position.wrapping_add(self.bulk_len as u64));
        Ok(ring.bulk_at(position))
    }
}

/// Understands the first bytes of a packet with addresses, of `length` bytes. The place of its payload counts from its beginning.
fn parse(bytes: &[u8], length: usize) -> Result<Record, Broken> {
    let fixed: &[u8; FIXED] = bytes.first_chunk().ok_or(Broken)?;
    let word = u32::from_ne_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]);
    let (payload_len, label) = ((word & 0xfff_ffff) as usize, word >> 28 << 16);
    let headers_len = usize::from(fixed[5]);
    if payload_len > MAX_PAYLOAD || total(headers_len, payload_len) != length {
        return Err(Broken);
    }
    let (headers, parsed) =
        Headers::parse(bytes.get(FIXED..FIXED + headers_len).ok_or(Broken)?).map_err(|_| Broken)?;
    if parsed != headers_len {
        return Err(Broken);
    }
    let address = |at: usize| {
        fixed[at..].first_chunk::<16>().map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |gid| ip_of(*gid))
    };
    let meta = PacketMeta {
        src: address(16),
        dst: address(32),
        tos: fixed[6],
        ttl: fixed[7],
        flow_label: label | u32::from(u16::from_ne_bytes([fixed[14], fixed[15]])),
        len: u16::from_ne_bytes([fixed[12], fixed[13]]),
        source_port: 0,
    };
    if meta.len > PacketMeta::MAX_LEN {
        return Err(Broken);
    }
    Ok(Record { headers, meta, payload: (payload_offset(headers_len), payload_len) })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cells::{BULK, SPAN};
    use crate::compact::MemoryOffer;
    use ferroce_wire::{Aeth, AtomicEth, Bth, Deth, Feth, Opcode, Reth, Service};
    use std::sync::Arc;

    /// A position whose cell and bulk aren't the first of the ring.
    const POSITION: u64 = (1 << 40) + 5;
    const BULK_POSITION: u64 = (1 << 40) + 7 * CELL as u64;

    pub(crate) fn headers(opcode: Opcode) -> Headers {
        let bth = Bth { solicited: true, ack_request: true, ..Bth::new(opcode, 0x12_3456, 0xab_cdef) };
        let (va, rkey) = (0x0123_4567_89ab_cdef, 0x7654_3210);
        Headers {
            bth,
            xrc_srqn: opcode.carries_xrceth().then_some(5),
            deth: opcode.carries_deth().then_some(Deth { qkey: 0x1111_1111, src_qp: 0x65_4321 }),
            flush: opcode.carries_feth().then_some(Feth { placement: 3, selectivity: 1 }),
            reth: opcode.carries_reth().then_some(Reth { va, rkey, dma_len: 1 << 30 }),
            atomic: opcode.is_atomic().then_some(AtomicEth { va, rkey, swap_or_add: 1, compare: 2 }),
            aeth: opcode.carries_aeth().then_some(Aeth { syndrome: 0x1f, msn: 0x11_2233 }),
            atomic_ack: opcode.carries_atomic_ack().then_some(u64::MAX),
            immediate: opcode.carries_immediate().then_some([1, 2, 3, 4]),
            invalidate_rkey: opcode.carries_invalidate().then_some(rkey),
        }
    }

    pub(crate) fn meta(src: &str, dst: &str) -> PacketMeta {
        let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
        PacketMeta { src, dst, tos: 0xb8, ttl: 63, flow_label: 0xa_bcde, len: 1234, source_port: 0 }
    }

    /// A ring in memory of its own.
    fn ring() -> (Arc<SharedMemory>, RingPlace) {
        let memory = Arc::new(SharedMemory::create(SPAN, false).unwrap());
        let ring = RingPlace::new(&memory, 0);
        (memory, ring)
    }

    /// Reads what has been written.
    fn read_back((memory, ring): &(Arc<SharedMemory>, RingPlace), first: u64) -> Result<ReadRecord, Broken> {
        ring.cell(POSITION)[0].store(first, Ordering::Relaxed);
        let mut record = ReadRecord::default();
        record.read(memory, ring, POSITION, 0x12_3456).map(|()| record)
    }

    fn end_of(len: usize) -> u64 {
        BULK_POSITION + len.next_multiple_of(CELL) as u64
    }

    /// Writes the packet and reads it back.
    fn back(draft: &Draft) -> Record {
        let both @ (memory, ring) = &ring();
        let at = ring.bulk_at(BULK_POSITION);
        let first = draft.write(ring.cell(POSITION), memory, (at, BULK_POSITION));
        assert_eq!(dest_of(ring.cell(POSITION)), 0x12_3456);
        let record = read_back(both, first).unwrap();
        assert_eq!(record.bulk_end, Some(end_of(draft.total())));
        let Some(RingRecord::Whole(packet)) = record.get() else { panic!("{record:?}") };
        assert_eq!(packet.payload.0, draft.payload_at(at));
        packet.clone()
    }

    #[test]
    fn packets_of_every_opcode_survive_the_round_trip() {
        for opcode in (0..=u8::MAX).filter_map(Opcode::from_u8) {
            for (meta, len) in [(meta("10.0.0.1", "10.0.0.2"), 0), (meta("fd00::1", "fd00::2"), MAX_PAYLOAD)]
            {
                let draft = Draft::packet(&headers(opcode), &meta, len).unwrap();
                let packet = back(&draft);
                assert_eq!((packet.headers, packet.meta), (headers(opcode), meta), "{opcode:?}");
                assert_eq!(packet.payload.1, len);
            }
        }
    }

    #[test]
    fn compact_headers_survive_the_round_trip_or_are_refused() {
        let mut compact = 0;
        for opcode in (0..=u8::MAX).filter_map(Opcode::from_u8) {
            let Some(headers) = CompactHeaders::of(&headers(opcode)) else { continue };
            compact += 1;
            let (operands, shortest) =
                CompactHeaders::operands_of(&self::headers(opcode)).unwrap_or_default();
            for len in (shortest..300).chain([MAX_PAYLOAD - 1, MAX_PAYLOAD]) {
                let ring @ (memory, place) = &ring();
                let cell = place.cell(POSITION);
                // As a sender does: the payload is there before the headers.
                let payload = [&operands[..shortest], &vec![0xee; len - shortest]].concat();
                let (at, bulk) = if bulk_of(&headers, len) == 0 {
                    (place.cell_at(POSITION) + headers.payload_offset(), None)
                } else {
                    (place.bulk_at(BULK_POSITION), Some(BULK_POSITION))
                };
                memory.write(at, &payload);
                let first = write_compact(cell, &headers, len, bulk);
                assert_eq!(dest_of(cell), 0x12_3456);
                let record = read_back(ring, first).unwrap();
                let Some(packet) = record.compact() else { panic!("{record:?}") };
                assert_eq!(record.bulk_end, bulk.map(|_| end_of(len)));
                assert_eq!((packet.headers(memory), packet.at, packet.len), (self::headers(opcode), at, len));
                let mut arrived = vec![0; len];
                memory.read(at, &mut arrived);
                assert_eq!(arrived, payload, "{opcode:?}");
            }
            let sends = opcode.is_send() && opcode.service == Service::Rc;
            let offer = MemoryOffer { key: 0x177, va: 0x7fff_1234_5678, connection: 0xffff_ffff_0000_0005 };
            let offering = headers.offering(&offer);
            for len in [0, 1, 16_384, MAX_PAYLOAD as u64, MAX_PAYLOAD as u64 + 1] {
                let ring @ (memory, place) = &ring();
                assert_eq!(bulk_of(&offering, len as usize), 0);
                let read =
                    read_back(ring, write_compact(place.cell(POSITION), &offering, len as usize, None));
                let may = sends && (1..=MAX_PAYLOAD as u64).contains(&len);
                assert_eq!(read.is_ok(), may, "{opcode:?} with {len} bytes");
                let Ok(record) = read else { continue };
                let packet = record.compact().unwrap();
                let named = Reth { va: offer.va, rkey: offer.key, dma_len: 5 };
                assert_eq!((packet.headers.reth(), packet.payload_len() as u64), (named, len));
                assert_eq!((packet.headers(memory), record.bulk_end), (self::headers(opcode), None));
            }
            let ring = ring();
            for len in 0..shortest {
                let first = write_compact(ring.1.cell(POSITION), &headers, len, None);
                assert!(read_back(&ring, first).is_err(), "{opcode:?} with {len} bytes");
            }
        }
        // RC: all but FLUSH; UC: all.
        assert_eq!(compact, 24 + 12);
        let usual = headers(Opcode::from_u8(4).unwrap());
        for bth in [
            Bth { fecn: true, ..usual.bth },
            Bth { becn: true, ..usual.bth },
            Bth { migrated: false, ..usual.bth },
            Bth { pad: 1, ..usual.bth },
        ] {
            assert_eq!(CompactHeaders::of(&Headers { bth, ..usual }), None);
        }
    }

    #[test]
    fn compact_headers_and_bulk_that_cannot_be_are_broken() {
        let headers = CompactHeaders::of(&headers(Opcode::from_u8(4).unwrap())).unwrap();
        let ring @ (memory, place) = &ring();
        let (cell, at) = (place.cell(POSITION), place.cell_at(POSITION));
        let write = |len| write_compact(cell, &headers, len, Some(BULK_POSITION));
        let opcode = |opcode: u64| 0xffff_00ff_ffff_ffff & write(100) | opcode << 40;
        for (what, first) in [
            ("no kind", 0),
            ("another kind", write(100) + (1 << 32)),
            ("an opcode that isn't", opcode(0xff)),
            ("an opcode of a datagram", opcode(0x64)),
            ("FLUSH", opcode(0x1c)),
        ] {
            assert!(read_back(ring, first).is_err(), "{what}");
        }
        let begin = BULK as u64;
        for (what, word, bytes) in [
            ("another QPN", 8, &7u32.to_ne_bytes()[..]),
            ("a QPN of more than 24 bits", 8, &0x0112_3456u32.to_ne_bytes()),
            ("flags that aren't", 12, &0x1000_0000u32.to_ne_bytes()),
            ("a payload beyond all", 16, &u32::MAX.to_ne_bytes()),
            ("the longest payload and a byte", 16, &(MAX_PAYLOAD as u32 + 1).to_ne_bytes()),
            ("bulk between two lines", 56, &(BULK_POSITION + 8).to_ne_bytes()),
            ("bulk beyond the last byte", 56, &(begin - CELL as u64).to_ne_bytes()),
            ("bulk nowhere", 56, &u64::MAX.to_ne_bytes()),
        ] {
            let first = write(100);
            assert!(read_back(ring, first).is_ok());
            memory.write(at + word, bytes);
            assert!(read_back(ring, first).is_err(), "{what}");
        }
        // The last line of all.
        let first = write_compact(cell, &headers, CELL, Some(u64::MAX - 63));
        assert_eq!(read_back(ring, first).unwrap().bulk_end, Some(0));
    }

    #[test]
    fn payloads_of_every_length_near_that_of_a_packet_are_read() {
        let opcode = Opcode::from_u8(4).unwrap();
        for len in (0..300).chain(65_400..=MAX_PAYLOAD) {
            let packet_len = headers(opcode).packet_len(len);
            let meta = meta("10.0.0.1", "10.0.0.2").with_len(packet_len);
            let draft = Draft::packet(&headers(opcode), &meta, len).unwrap();
            let packet = back(&draft);
            assert_eq!(packet.payload.1, len);
        }
    }

    #[test]
    fn packets_with_addresses_that_cannot_be_are_broken() {
        let opcode = Opcode::from_u8(4).unwrap();
        let draft = Draft::packet(&headers(opcode), &meta("::1", "::1"), 100).unwrap();
        let ring @ (memory, place) = &ring();
        let (cell, bulk) = (place.cell_at(POSITION), place.bulk_at(BULK_POSITION));
        for (what, at, bytes) in [
            ("a shorter packet", cell + 16, &64u32.to_ne_bytes()[..]),
            ("no packet", cell + 16, &0u32.to_ne_bytes()),
            ("a longer packet", cell + 16, &320u32.to_ne_bytes()),
            ("the longest packet", cell + 16, &u32::MAX.to_ne_bytes()),
            ("bulk beyond the last byte", cell + 56, &(BULK as u64 - 64).to_ne_bytes()),
            ("no headers", bulk + 5, &[0]),
            ("too many headers", bulk + 5, &[255]),
            ("headers of another opcode", bulk + 48, &[6]),
            ("an opcode that isn't", bulk + 48, &[0xff]),
            ("a longer payload", bulk + 8, &200u32.to_ne_bytes()),
            ("a payload beyond all", bulk + 8, &u32::MAX.to_ne_bytes()),
            ("more than an IP packet", bulk + 12, &u16::MAX.to_ne_bytes()),
        ] {
            let first = draft.write(place.cell(POSITION), memory, (bulk, BULK_POSITION));
            assert!(read_back(ring, first).is_ok());
            memory.write(at, bytes);
            assert!(read_back(ring, first).is_err(), "{what}");
        }
        let first = draft.write(place.cell(POSITION), memory, (bulk, BULK_POSITION));
        assert!(read_back(ring, first).is_ok());
        assert!(ReadRecord::default().read(memory, place, POSITION, 7).is_err(), "for another QP");
    }
}
