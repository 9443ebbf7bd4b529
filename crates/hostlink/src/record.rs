//! Records of a ring: what a packet is on the `shm` fabric.
//!
//! A record is a fixed part, the transport headers as they are on the wire, and a payload. A compact record has [`CompactHeaders`] and a
//! payload. Whatever a peer writes: reading a record gives a record or an error, and touches no byte outside it.

use super::compact::{self, CompactHeaders, Operands};
use super::protocol::{Broken, COPIED_WORDS, RingWords};
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

/// The first words of a record in memory.
type FrontWords = [AtomicU64; size_of::<compact::Front>() / 8];

/// The words of operands in memory. Each lies within the line that a record takes at least.
type OperandWords = [AtomicU64; size_of::<Operands>() / 8];

/// The words of a record that is copied whole.
type CopiedWords = [AtomicU64; COPIED_WORDS];

/// What a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum RecordKind {
    /// Nothing: the end of the ring was too short.
    Padding = 0,
    /// A packet with its payload.
    Packet = 1,
    /// A packet of a connection, with [`CompactHeaders`] and its payload.
    Compact = 2,
    /// No packet: what ends between two positions of the other ring isn't acknowledged by position.
    Disowned = 3,
}

/// What a reader finds in a ring that isn't a compact record.
#[derive(Debug)]
pub(crate) enum RingRecord {
    /// Nothing: the end of the ring was too short.
    Padding,
    /// A packet with addresses and headers.
    Whole(Record),
    /// What ends from the first to the last of these positions of the ring to the peer isn't acknowledged by position.
    Disowned((u64, u64)),
}

/// A packet of a connection in a ring.
#[derive(Clone, Copy, Debug)]
pub struct CompactRecord {
    /// Its headers.
    pub headers: CompactHeaders,
    /// Its payload, operands included.
    pub(crate) payload: CompactPayload,
    /// Bytes of the payload.
    pub(crate) len: usize,
    /// Where the record ends in its ring, as positions go.
    pub(crate) end: u64,
}

/// Where the payload of a compact record is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CompactPayload {
    /// In the link's memory, from this byte on.
    Ring(usize),
    /// In these words: that of a SEND which is acknowledged by position.
    Copied(CopiedPayload),
}

/// The payload of a record of which a copy was made.
pub(crate) type CopiedPayload = [u64; COPIED_WORDS - compact::SHORT / 8];
/// Payload bytes of a SEND that can be copied beside the position.
pub(super) const MAX_COPIED: usize = size_of::<CopiedPayload>();

// The position, two words more, and the copy: all in one line.
const _: () = assert!((3 + COPIED_WORDS) * size_of::<u64>() == RingWords::GRAIN);

impl CompactRecord {
    /// All its headers. The memory is that of its link.
    #[inline]
    pub(crate) fn headers(&self, memory: &SharedMemory) -> Headers {
        self.headers.headers(|| self.operands(memory))
    }

    /// What an atomic swaps in or adds, and what it compares with; or what the memory held.
    #[inline]
    pub(crate) fn operands(&self, memory: &SharedMemory) -> Operands {
        match self.payload {
            CompactPayload::Ring(at) => {
                let words: &OperandWords = memory.words(at);
                std::array::from_fn(|i| words[i].load(Ordering::Relaxed))
            }
            // Of SENDs, which have none.
            CompactPayload::Copied(_) => Operands::default(),
        }
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

/// Bytes of a record.
const fn total(headers: usize, payload: usize) -> usize {
    (payload_offset(headers) + payload).next_multiple_of(RingWords::GRAIN)
}

const fn payload_offset(headers: usize) -> usize {
    (FIXED + headers).next_multiple_of(8)
}

/// Bytes of a record with compact headers.
#[inline]
pub(super) const fn compact_total(headers: &CompactHeaders, payload: usize) -> usize {
    (headers.payload_offset() + payload).next_multiple_of(RingWords::GRAIN)
}

/// Writes everything of a record with compact headers but its payload of `payload` bytes.
#[inline(always)]
pub(super) fn write_compact(memory: &SharedMemory, at: usize, headers: &CompactHeaders, payload: usize) {
    let (front, len) = headers.front(RecordKind::Compact as u8, compact_total(headers, payload), payload);
    let words: &FrontWords = memory.words(at);
    let (short, rest) = words.split_at(compact::SHORT / 8);
    short.iter().zip(&front).for_each(|(to, &word)| to.store(word, Ordering::Relaxed));
    if len > short.len() {
        rest.iter().zip(&front[short.len()..]).for_each(|(to, &word)| to.store(word, Ordering::Relaxed));
    }
}

/// Bytes of a record that disowns others.
pub(super) const DISOWNED: usize = RingWords::GRAIN;

/// Writes a record that disowns those which end from `first` to `last` of the other ring.
pub(super) fn write_disowned(memory: &SharedMemory, at: usize, (first, last): (u64, u64)) {
    let words: &FrontWords = memory.words(at);
    words[0].store(compact::first_word(DISOWNED, RecordKind::Disowned as u8), Ordering::Relaxed);
    words[1].store(first, Ordering::Relaxed);
    words[2].store(last, Ordering::Relaxed);
}

/// A record that is about to be written.
pub(super) struct Draft {
    bytes: [u8; FRONT],
    front: usize,
    headers: usize,
    payload: usize,
}

impl Draft {
    /// A packet with a payload of `payload` bytes, which the caller writes at [`Draft::payload_at`]; `None` when the
    /// headers don't fit their opcode.
    pub(super) fn packet(headers: &Headers, meta: &PacketMeta, payload: usize) -> Option<Self> {
        let mut bytes = [0; FRONT];
        let len = headers.emit(&mut bytes[FIXED..FIXED + MAX_HEADERS]).ok()?;
        bytes[..4].copy_from_slice(&(total(len, payload) as u32).to_ne_bytes());
        bytes[4] = RecordKind::Packet as u8;
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
        Some(Self { bytes, front: FIXED + len, headers: len, payload })
    }

    /// Bytes of the record.
    pub(super) const fn total(&self) -> usize {
        total(self.headers, self.payload)
    }

    /// Where the payload of a record at `at` goes.
    pub(super) const fn payload_at(&self, at: usize) -> usize {
        at + payload_offset(self.headers)
    }

    /// Writes everything but an inline payload.
    pub(super) fn write(&self, memory: &SharedMemory, at: usize) {
        memory.write(at, &self.bytes[..self.front]);
    }
}

/// Writes a record that fills the end of the ring.
pub(super) fn write_padding(memory: &SharedMemory, at: usize, len: usize) {
    let mut bytes = [0; 5];
    bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    bytes[4] = RecordKind::Padding as u8;
    memory.write(at, &bytes);
}

/// The first words of the record at `at`, of which `available` bytes are published. They are copied: the peer may change its bytes at
/// any time, so a caller that copies them again has to check the copy again.
#[inline]
fn front(memory: &SharedMemory, at: usize, available: usize) -> Result<compact::Front, Broken> {
    if available < RingWords::GRAIN {
        return Err(Broken);
    }
    let words: &FrontWords = memory.words(at);
    Ok(std::array::from_fn(|i| words[i].load(Ordering::Relaxed)))
}

/// Reads the record at `at`, which begins at the position `before` and of which `available` bytes are published, if it is a compact
/// record. `None`: [`read`] has to.
#[inline(always)]
pub(super) fn read_compact(
    memory: &SharedMemory,
    at: usize,
    available: usize,
    before: u64,
) -> Result<Option<CompactRecord>, Broken> {
    let front = front(memory, at, available)?;
    let (length, kind) = compact::length_and_kind(front[0]);
    if kind != RecordKind::Compact as u8 {
        return Ok(None);
    }
    let (headers, payload) = CompactHeaders::parse(&front).ok_or(Broken)?;
    if length > available || payload > MAX_PAYLOAD || compact_total(&headers, payload) != length {
        return Err(Broken);
    }
    let from = CompactPayload::Ring(at + headers.payload_offset());
    Ok(Some(CompactRecord { headers, payload: from, len: payload, end: before + length as u64 }))
}

/// The words with headers and payload of the SEND at `at`, which this process has written: of [`MAX_COPIED`] bytes at most.
#[inline]
pub(super) fn copy(memory: &SharedMemory, at: usize) -> [u64; COPIED_WORDS] {
    let words: &CopiedWords = memory.words(at);
    std::array::from_fn(|i| words[i].load(Ordering::Relaxed))
}

/// Understands a [`copy`] of the record that ends at `end`. `None`: it isn't one.
#[inline(always)]
pub(super) fn read_copy(words: [u64; COPIED_WORDS], end: u64) -> Option<CompactRecord> {
    let (length, kind) = compact::length_and_kind(words[0]);
    let (headers, len) = CompactHeaders::parse(&words)?;
    let [_, _, _, payload @ ..] = words;
    let fits = kind == RecordKind::Compact as u8
        && length == RingWords::GRAIN
        && headers.is_by_position()
        && len <= MAX_COPIED;
    fits.then_some(CompactRecord { headers, payload: CompactPayload::Copied(payload), len, end })
}

/// Reads the record at `at`, of which `available` bytes are published, and returns it with its length. It isn't a compact record.
pub(super) fn read(
    memory: &SharedMemory,
    at: usize,
    available: usize,
) -> Result<(RingRecord, usize), Broken> {
    let front = front(memory, at, available)?;
    let (length, kind) = compact::length_and_kind(front[0]);
    if kind != RecordKind::Disowned as u8 {
        return read_whole(memory, at, available);
    }
    if length == DISOWNED { Ok((RingRecord::Disowned((front[1], front[2])), length)) } else { Err(Broken) }
}

/// As [`read`], of a packet with addresses, or padding.
fn read_whole(memory: &SharedMemory, at: usize, available: usize) -> Result<(RingRecord, usize), Broken> {
    let mut bytes = [0; FRONT];
    let have = bytes.len().min(available);
    memory.read(at, &mut bytes[..have]);
    let mut parsed = parse(&bytes[..have], available)?;
    if let Some(Record { payload: (payload, _), .. }) = &mut parsed.packet {
        *payload += at;
    }
    Ok((parsed.packet.map_or(RingRecord::Padding, RingRecord::Whole), parsed.total))
}

struct Parsed {
    packet: Option<Record>,
    total: usize,
}

/// Understands the first bytes of a record. The place of an inline payload counts from the record's beginning.
fn parse(bytes: &[u8], available: usize) -> Result<Parsed, Broken> {
    let fixed: &[u8; FIXED] = bytes.first_chunk().ok_or(Broken)?;
    let word =
        |at: usize| u32::from_ne_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]) as usize;
    let (length, payload_len, label) = (word(0), word(8) & 0xfff_ffff, word(8) >> 28 << 16);
    if length == 0 || length > available || !length.is_multiple_of(RingWords::GRAIN) {
        return Err(Broken);
    }
    if fixed[4] == RecordKind::Padding as u8 {
        return Ok(Parsed { packet: None, total: length });
    }
    if payload_len > MAX_PAYLOAD {
        return Err(Broken);
    }
    let headers_len = usize::from(fixed[5]);
    if total(headers_len, payload_len) != length {
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
        flow_label: label as u32 | u32::from(u16::from_ne_bytes([fixed[14], fixed[15]])),
        len: u16::from_ne_bytes([fixed[12], fixed[13]]),
        source_port: 0,
    };
    if meta.len > PacketMeta::MAX_LEN {
        return Err(Broken);
    }
    let at = payload_offset(headers_len);
    if fixed[4] != RecordKind::Packet as u8 {
        return Err(Broken);
    }
    Ok(Parsed { packet: Some(Record { headers, meta, payload: (at, payload_len) }), total: length })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use ferroce_wire::{Aeth, AtomicEth, Bth, Deth, Feth, Opcode, Reth};
    use proptest::prelude::*;

    const AT: usize = 128;

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

    /// Reads the record back, of which exactly its bytes are published.
    fn back(draft: &Draft) -> Record {
        let memory = SharedMemory::create(2 * MAX_PAYLOAD, false).unwrap();
        draft.write(&memory, AT);
        let (record, total) = read(&memory, AT, draft.total()).unwrap();
        assert_eq!(total, draft.total());
        assert_eq!(read(&memory, AT, total - RingWords::GRAIN).map(|_| ()), Err(Broken));
        let RingRecord::Whole(packet) = record else { panic!("{record:?}") };
        packet
    }

    #[test]
    fn packets_of_every_opcode_survive_the_round_trip() {
        for opcode in (0..=u8::MAX).filter_map(Opcode::from_u8) {
            for (meta, len) in [(meta("10.0.0.1", "10.0.0.2"), 0), (meta("fd00::1", "fd00::2"), MAX_PAYLOAD)]
            {
                let draft = Draft::packet(&headers(opcode), &meta, len).unwrap();
                let packet = back(&draft);
                assert_eq!((packet.headers, packet.meta), (headers(opcode), meta), "{opcode:?}");
                assert_eq!(packet.payload, (draft.payload_at(AT), len));
                assert!(packet.payload.0 + len <= AT + draft.total());
            }
        }
    }

    /// The headers of a SEND that is acknowledged by position.
    fn send_by_position() -> CompactHeaders {
        let opcode = Opcode::from_u8(4).unwrap();
        CompactHeaders::of_send(opcode, (0xffff, 9), 5, (true, 0), true)
    }

    #[test]
    fn a_copy_of_a_short_record_is_the_record() {
        let headers = send_by_position();
        for len in 0..=MAX_COPIED {
            let memory = SharedMemory::create(4096, false).unwrap();
            let payload: Vec<u8> = (1..=len as u8).collect();
            memory.write(AT + headers.payload_offset(), &payload);
            write_compact(&memory, AT, &headers, len);
            let packet = read_copy(copy(&memory, AT), 7).unwrap();
            assert_eq!((packet.headers, packet.len, packet.end), (headers, len, 7));
            let CompactPayload::Copied(words) = packet.payload else { panic!("{packet:?}") };
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(bytes[..len], payload);
        }
    }

    proptest! {
        #[test]
        fn a_copy_that_a_peer_makes_up_is_no_record_or_one_that_is_here(
            words: [u64; COPIED_WORDS],
            len in 0..100usize,
            is_front_whole: bool,
        ) {
            let mut words = words;
            if is_front_whole {
                let (front, _) = send_by_position().front(RecordKind::Compact as u8, RingWords::GRAIN, len);
                words[..3].copy_from_slice(&front[..3]);
            }
            let packet = read_copy(words, 64);
            prop_assert!(!is_front_whole || packet.is_some() == (len <= MAX_COPIED));
            if let Some(packet) = packet {
                prop_assert!(packet.len <= MAX_COPIED && packet.headers.operands_len() <= packet.len);
                prop_assert!(matches!(packet.payload, CompactPayload::Copied(_)));
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
                let memory = SharedMemory::create(2 * MAX_PAYLOAD, false).unwrap();
                let total = compact_total(&headers, len);
                // As a sender does: the payload is there before the headers.
                let payload = [&operands[..shortest], &vec![0xee; len - shortest]].concat();
                memory.write(AT + headers.payload_offset(), &payload);
                write_compact(&memory, AT, &headers, len);
                let packet = read_compact(&memory, AT, total, 7).unwrap().unwrap();
                assert_eq!(packet.end, 7 + total as u64);
                assert_eq!(packet.headers(&memory), self::headers(opcode));
                let at = AT + headers.payload_offset();
                assert!(matches!(packet.payload, CompactPayload::Ring(from) if from == at));
                assert!(packet.len == len && at + len <= AT + total);
                let mut arrived = vec![0; len];
                memory.read(at, &mut arrived);
                assert_eq!(arrived, payload, "{opcode:?}");
                assert!(read_compact(&memory, AT, total - RingWords::GRAIN, 7).is_err());
                assert!(read(&memory, AT, total).is_err());
            }
            let memory = SharedMemory::create(4096, false).unwrap();
            for len in 0..shortest {
                write_compact(&memory, AT, &headers, len);
                assert!(read_compact(&memory, AT, 4096 - AT, 7).is_err(), "{opcode:?} with {len} bytes");
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
    fn compact_headers_that_cannot_be_are_broken() {
        let headers = CompactHeaders::of(&headers(Opcode::from_u8(4).unwrap())).unwrap();
        let memory = SharedMemory::create(2 * MAX_PAYLOAD, false).unwrap();
        for (what, at, bytes) in [
            ("no length", 0, &0u32.to_ne_bytes()[..]),
            ("a shorter record", 0, &64u32.to_ne_bytes()),
            ("the longest record", 0, &u32::MAX.to_ne_bytes()),
            ("an opcode that isn't", 5, &[0xff]),
            ("an opcode of a datagram", 5, &[0x64]),
            ("an atomic, whose payload begins later", 5, &[0x13]),
            ("FLUSH", 5, &[0x1c]),
            ("a QPN of more than 24 bits", 8, &0x0100_0000u32.to_ne_bytes()),
            ("flags that aren't", 12, &0x0800_0000u32.to_ne_bytes()),
            ("a longer payload", 16, &200u32.to_ne_bytes()),
            ("a payload beyond all", 16, &u32::MAX.to_ne_bytes()),
        ] {
            write_compact(&memory, AT, &headers, 100);
            assert!(read_compact(&memory, AT, 512, 0).is_ok());
            memory.write(AT + at, bytes);
            assert!(read_compact(&memory, AT, 512, 0).is_err(), "{what}");
        }
    }

    #[test]
    fn payloads_of_every_length_near_that_of_a_packet_are_read() {
        let opcode = Opcode::from_u8(4).unwrap();
        for len in (0..300).chain(65_000..=MAX_PAYLOAD) {
            let packet_len = headers(opcode).packet_len(len);
            let meta = meta("10.0.0.1", "10.0.0.2").with_len(packet_len);
            let draft = Draft::packet(&headers(opcode), &meta, len).unwrap();
            let packet = back(&draft);
            assert_eq!(packet.payload.1, len);
        }
    }

    #[test]
    fn padding_is_no_packet() {
        let memory = SharedMemory::create(4096, false).unwrap();
        write_padding(&memory, AT, 192);
        assert!(matches!(read(&memory, AT, 192), Ok((RingRecord::Padding, 192))));
        assert!(matches!(read(&memory, AT, 256), Ok((RingRecord::Padding, 192))));
        assert!(read(&memory, AT, 128).is_err());
    }

    #[test]
    fn lengths_and_kinds_that_cannot_be_are_broken() {
        let opcode = Opcode::from_u8(4).unwrap();
        let draft = Draft::packet(&headers(opcode), &meta("::1", "::1"), 100).unwrap();
        let memory = SharedMemory::create(2 * MAX_PAYLOAD, false).unwrap();
        for (what, at, bytes) in [
            ("no length", 0, &0u32.to_ne_bytes()[..]),
            ("a shorter record", 0, &64u32.to_ne_bytes()),
            ("a longer record", 0, &320u32.to_ne_bytes()),
            ("the longest record", 0, &u32::MAX.to_ne_bytes()),
            ("another kind", 4, &[RecordKind::Disowned as u8 + 1]),
            ("compact headers of another length", 4, &[RecordKind::Compact as u8]),
            ("no headers", 5, &[0]),
            ("too many headers", 5, &[255]),
            ("headers of another opcode", 48, &[6]),
            ("an opcode that isn't", 48, &[0xff]),
            ("a longer payload", 8, &200u32.to_ne_bytes()),
            ("a payload beyond all", 8, &u32::MAX.to_ne_bytes()),
            ("more than an IP packet", 12, &u16::MAX.to_ne_bytes()),
        ] {
            draft.write(&memory, AT);
            assert!(read(&memory, AT, 512).is_ok());
            memory.write(AT + at, bytes);
            assert!(read(&memory, AT, 512).is_err(), "{what}");
        }
    }
}
