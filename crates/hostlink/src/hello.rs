//! How two processes introduce themselves before they share memory: one message each way over the connection to a
//! slot's holder, with descriptors. A slot's listener refuses them, so the process that makes the link first asks for leave.
//!
//! The frame is that of all requests between processes of a host. A process whose [`LAYOUT`] is another refuses, and both go by UDP.

use super::directory::{self, Directory};
use super::link;
use ferroce_access::layout;
use ferroce_host::frame;
use ferroce_os::sys::EngineFd;
use std::io;
use std::os::fd::RawFd;

/// The kind of a request for shared memory.
pub(super) const KIND: u8 = 2;
/// What cells and words contain: a hash that a test makes of samples of all of them. A change of meaning without one of the
/// samples adds a sample.
const ENCODING: u64 = 0x15e8_8657_1e31_f5d4;
/// All that two processes have to agree on.
pub const LAYOUT: u64 =
    layout(LEN, &[("link", 0, link::LAYOUT), ("directory", 0, directory::LAYOUT), ("encoding", 0, ENCODING)]);
const LEN: usize = 40;

/// What a process sends about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Introduction {
    pub(super) process: u64,
    /// Where in its memory its cookie is, and the cookie.
    pub(super) cookie_at: u64,
    pub(super) cookie: u64,
}

/// Frame (8 bytes), [`LAYOUT`], then [`Introduction`].
fn message(status: u8, own: &Directory) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(&frame::header(status));
    bytes[8..16].copy_from_slice(&LAYOUT.to_ne_bytes());
    bytes[16..24].copy_from_slice(&own.process.to_ne_bytes());
    bytes[24..32].copy_from_slice(&own.cookie.at().to_ne_bytes());
    bytes[32..40].copy_from_slice(&own.cookie.value().to_ne_bytes());
    bytes
}

/// Asks the holder of a slot for leave to send the memory that goes with a [`hello`].
pub(super) fn ask(fd: RawFd) -> io::Result<()> {
    frame::send(fd, &mut frame::header(frame::KIND_MEMORY), &[])
}

/// The answer that gives it.
pub(super) fn is_leave(bytes: &[u8]) -> bool {
    bytes == frame::header(frame::GRANTED)
}

/// The request for a link; link memory and directory go with it.
pub(super) fn hello(own: &Directory) -> [u8; LEN] {
    message(KIND, own)
}

/// The answer that accepts; the directory goes with it.
pub(super) fn answer(own: &Directory) -> [u8; LEN] {
    message(frame::GRANTED, own)
}

impl Introduction {
    pub(super) fn parse_hello(bytes: &[u8]) -> Option<Self> {
        Self::parse(bytes, KIND)
    }

    pub(super) fn parse_answer(bytes: &[u8]) -> Option<Self> {
        Self::parse(bytes, frame::GRANTED)
    }

    fn parse(bytes: &[u8], kind: u8) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let long = |at: usize| bytes[at..].first_chunk().map(|b| u64::from_ne_bytes(*b));
        let same = frame::kind_of(bytes)? == kind && long(8)? == LAYOUT;
        same.then_some(Self { process: long(16)?, cookie_at: long(24)?, cookie: long(32)? })
    }
}

pub(super) fn send(fd: RawFd, bytes: &[u8; LEN], fds: &[RawFd]) -> io::Result<()> {
    frame::send(fd, &mut bytes.clone(), fds)
}

/// One message, if it is there, also of a peer that has closed: if that left something unread, the kernel first returns ECONNRESET,
/// once.
pub(super) fn receive(fd: RawFd) -> io::Result<(Vec<u8>, Vec<EngineFd>)> {
    let mut bytes = vec![0; LEN + 1];
    let (len, fds) = match frame::receive(fd, &mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => frame::receive(fd, &mut bytes),
        received => received,
    }?;
    if len == 0 {
        return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
    }
    bytes.truncate(len);
    Ok((bytes, fds))
}

/// Refuses a link.
pub(super) fn refuse(fd: RawFd) {
    // A process that is gone needs no answer.
    let _ = frame::send(fd, &mut frame::header(frame::REFUSED), &[]);
}

#[cfg(test)]
mod tests {
    use super::super::cells::Cell;
    use super::super::compact::{CompactHeaders, MemoryOffer};
    use super::super::directory::{ListedQp, ListedRegion};
    use super::super::protocol::{
        AccessWord, AwaitedCells, CellResult, Consumer, EndedFlag, Producer, RingWords, set_result,
    };
    use super::super::record::{self, Draft};
    use super::*;
    use ferroce_access::SharedMemory;
    use ferroce_os::sys::duplicate_engine;
    use ferroce_types::Access;
    use ferroce_wire::{Opcode, Reth};
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn an_introduction_survives_the_round_trip() {
        let own = Directory::new().unwrap();
        let (cookie_at, cookie) = (own.cookie.at(), own.cookie.value());
        let expected = Introduction { process: own.process, cookie_at, cookie };
        assert_eq!(Introduction::parse_hello(&hello(&own)), Some(expected));
        assert_eq!(Introduction::parse_answer(&answer(&own)), Some(expected));
        assert_eq!(Introduction::parse_answer(&frame::header(frame::REFUSED)), None);
    }

    /// The words of shared memory that aren't 0, and where they are.
    fn words(memory: &SharedMemory, len: usize) -> Vec<(&'static str, usize, u64)> {
        let word = |at| memory.words::<AtomicU64>(at).load(Ordering::Relaxed);
        (0..len).step_by(8).map(|at| ("", at, word(at))).filter(|(_, _, word)| *word != 0).collect()
    }

    /// All kinds of cells and of bulk, one after the other.
    fn records() -> Vec<(&'static str, usize, u64)> {
        const CELL_AT: usize = 64;
        const BULK_AT: usize = 128;
        let meta = record::tests::meta("10.0.0.1", "fd00::2");
        let mut all = Vec::new();
        let mut sample = |write: &dyn Fn(&Cell, &SharedMemory) -> u64| {
            let memory = SharedMemory::create(4096, false).unwrap();
            let cell: &Cell = memory.words(CELL_AT);
            cell[0].store(write(cell, &memory), Ordering::Relaxed);
            all.extend(words(&memory, 4096));
        };
        for headers in (0..=u8::MAX).filter_map(Opcode::from_u8).map(record::tests::headers) {
            sample(&|cell, memory| {
                Draft::packet(&headers, &meta, 100).unwrap().write(cell, memory, (BULK_AT, 64))
            });
            sample(&|cell, memory| {
                let Some(compact) = CompactHeaders::of(&headers) else { return 0 };
                let operands = CompactHeaders::operands_of(&headers).unwrap_or_default();
                memory.write(CELL_AT + compact.payload_offset(), &operands.0);
                record::write_compact(cell, &compact, operands.1, None)
            });
        }
        let send = CompactHeaders::of_send(Opcode::from_u8(4).unwrap(), (1, 2), 3, (true, 4));
        sample(&|cell, _| record::write_compact(cell, &send, 5, None));
        sample(&|cell, _| record::write_compact(cell, &send.acknowledged_by_result(), 50, Some(64)));
        let offer = MemoryOffer { key: 1, va: 2, connection: 3 };
        sample(&|cell, _| record::write_compact(cell, &send.offering(&offer), 20_000, None));
        let reth = Reth { va: 1, rkey: 2, dma_len: 24 };
        let read = CompactHeaders::of_fetch(Opcode::from_u8(0x0c).unwrap(), (1, 2), 3, reth);
        sample(&|cell, _| record::write_compact(cell, &read, 0, None));
        all.push(("longest", record::MAX_PAYLOAD, record::bulk_of(&send, 41) as u64));
        all.push(("answer", record::bulk_of(&read, 0), read.answer_len() as u64));
        all
    }

    /// A directory with one of each entry.
    fn entries() -> Vec<(&'static str, usize, u64)> {
        let own = Directory::new().unwrap();
        own.add_slot(3);
        let access = Access { remote_read: true, ..Access::default() };
        let (ends, pd, remote_write) = ((0x3005, 0x4001), 7, access.remote_write);
        own.publish_qp(&ListedQp { ends, connection: 5, pd, access, owes: true });
        let (key, remote_read, shared) = (0x177, true, true);
        let region = ListedRegion {
            pd,
            addr: 1,
            iova: 2,
            length: 3,
            remote_read,
            remote_write,
            shared,
            of_file: true,
        };
        own.publish_region(key, &region);
        // The count of listings is the process's.
        let entry = own.region(key).unwrap();
        entry.set(3, entry.get(3) & !0xffff_ff00);
        own.bell().background_sleeps();
        own.bell().waiter_sleeps();
        own.attention().works(5);
        let memory = SharedMemory::open(duplicate_engine(own.fd()).unwrap(), directory::LEN, false);
        words(&memory.unwrap(), directory::LEN)
    }

    /// The words of an access, and of a ring.
    fn ring() -> Vec<(&'static str, usize, u64)> {
        let memory = SharedMemory::create(4096, false).unwrap();
        memory.words::<AccessWord>(0).enter(0x3005, 0x177);
        let used: &AccessWord = memory.words(64);
        used.enter(1, 2);
        used.leave();
        memory.words::<EndedFlag>(128).set();
        let lines: &RingWords = memory.words(1024);
        let (mut producer, mut consumer) = (Producer::new(8, 1024), Consumer::new(8, 1024));
        let word = |at: usize| memory.words::<AtomicU64>(2048 + 8 * at);
        for at in 0..2 {
            let space = producer.reserve(lines, &AwaitedCells::new(), 65).unwrap().unwrap();
            let (begin, end) = space.bulk;
            word(2 + at).store(begin << 32 | end, Ordering::Relaxed);
            producer.publish(space, word(at), 5 << 32);
            consumer.advance(Some(end));
        }
        lines.wait();
        consumer.release(lines);
        set_result(word(4), 4, CellResult::Done);
        set_result(word(5), 5, CellResult::Left);
        words(&memory, 4096)
    }

    #[test]
    fn no_encoding_changes_without_the_layout() {
        let samples = [records(), entries(), ring()].concat();
        let encoding = layout(samples.len(), &samples);
        assert!(
            encoding == ENCODING,
            "what processes share has changed: ENCODING is {encoding:#x} now, and they don't share memory with builds before"
        );
    }

    #[test]
    fn what_a_peer_has_said_is_read_when_it_has_gone_with_something_unread() {
        use ferroce_os::sys::{send_byte, socket_pair};
        let [own, peer] = socket_pair(libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK).unwrap();
        let directory = Directory::new().unwrap();
        send(peer.raw(), &answer(&directory), &[]).unwrap();
        send_byte(own.raw());
        drop(peer);
        let (bytes, _) = receive(own.raw()).unwrap();
        assert!(Introduction::parse_answer(&bytes).is_some());
        assert!(receive(own.raw()).is_err());
    }

    #[test]
    fn introductions_of_another_layout_or_length_are_none() {
        let own = Directory::new().unwrap();
        let (hello, answer) = (hello(&own), answer(&own));
        for len in (0..LEN).chain([LEN + 1]) {
            let mut longer = hello.to_vec();
            longer.resize(len, 0);
            assert_eq!(Introduction::parse_hello(&longer), None, "{len} bytes");
        }
        // Magic, version of the frame, kind, layout.
        for at in (0..6).chain(8..16) {
            let (mut hello, mut answer) = (hello, answer);
            hello[at] ^= 1;
            answer[at] ^= 1;
            assert_eq!(Introduction::parse_hello(&hello), None, "byte {at}");
            assert_eq!(Introduction::parse_answer(&answer), None, "byte {at}");
        }
        assert_eq!(Introduction::parse_hello(&answer), None);
        // An answer isn't leave to introduce oneself once more.
        assert!(is_leave(&frame::header(frame::GRANTED)));
        assert!(!is_leave(&answer) && !is_leave(&frame::header(frame::REFUSED)) && !is_leave(&[]));
    }
}
