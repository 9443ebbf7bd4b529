//! How much may be sent and what has come: the accounts of an established connection, without I/O.
//!
//! The receive buffer is two halves of one ring. Its owner announces a half at a time, by writing where it is into one
//! of the two entries of the peer's table. The peer fills a half before it goes to the next. Each message of data takes a
//! credit, so the receiver's queue of lengths is bounded. Messages about the connection take none; a few places of the send
//! queue are kept for them.

use std::collections::VecDeque;

use crate::wire::{ControlMessage, ImmediateMessage, MemoryEntry, TABLE};

/// Places of the send queue that data can't take.
pub const CONTROL_PLACES: u32 = 4;
/// Free bytes of the send buffer that make a connection writable.
pub const LOW_WATER: usize = 2048;

/// The peer has broken the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProtocolViolation(pub &'static str);

/// The sizes of a sender.
#[derive(Clone, Copy, Debug)]
pub struct SenderSizes {
    /// Places of the send queue.
    pub queue: u32,
    /// Bytes of the send buffer.
    pub buffer: usize,
    /// Bytes that a request may carry itself.
    pub inline: usize,
}

/// Where the bytes of a request lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataSource {
    /// In the request: they needn't stay.
    Inline,
    /// In the send buffer from this offset on, around its end if need be.
    Buffer(usize),
}

/// A write of data that has been counted and must be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// Where its bytes lie.
    pub place: DataSource,
    /// How many bytes.
    pub length: usize,
    /// Where they go.
    pub remote: u64,
    /// By which key.
    pub key: u32,
}

/// What a request was, for when it has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SentRequest {
    /// Data, a mapped write or an entry of the table of mapped memory, with so many bytes of the send buffer.
    Data(u32),
    /// Credits or a keep-alive.
    Control,
    /// That we have done.
    Disconnect,
}

impl SentRequest {
    /// As a `wr_id`.
    #[must_use]
    pub fn id(self) -> u64 {
        match self {
            Self::Data(bytes) => bytes.into(),
            Self::Control => 1 << 32,
            Self::Disconnect => 2 << 32,
        }
    }

    /// Of a `wr_id`.
    #[must_use]
    pub fn of(id: u64) -> Self {
        match id >> 32 {
            0 => Self::Data(id as u32),
            1 => Self::Control,
            _ => Self::Disconnect,
        }
    }
}

/// The sending half.
#[derive(Clone, Debug)]
pub struct SendingHalf {
    sizes: SenderSizes,
    places: u32,
    control_places: u32,
    /// Data messages so far.
    sequence: u16,
    /// Up to where the peer lets us count.
    granted: u16,
    /// Where the next bytes go in the send buffer.
    head: usize,
    used: usize,
    /// The announced parts of the peer's receive buffer, less what we have filled.
    targets: [MemoryEntry; TABLE],
    current: usize,
    /// The entry that the peer writes next.
    expected: usize,
}

impl SendingHalf {
    /// After the connection data of the peer.
    #[must_use]
    pub fn new(sizes: SenderSizes, credits: u16, first: MemoryEntry) -> Self {
        Self {
            sizes,
            places: sizes.queue.saturating_sub(CONTROL_PLACES),
            control_places: CONTROL_PLACES,
            sequence: 0,
            granted: credits,
            head: 0,
            used: 0,
            targets: [first, MemoryEntry::default()],
            current: 0,
            expected: 1,
        }
    }

    fn has_credit(&self) -> bool {
        self.sequence != self.granted
    }

    fn room(&self) -> usize {
        self.sizes.buffer - self.used
    }

    /// Whether data can be sent.
    #[must_use]
    pub fn can_send(&self) -> bool {
        self.places > 0
            && self.has_credit()
            && self.targets[self.current].length > 0
            && self.room() >= LOW_WATER.min(self.sizes.buffer)
    }

    /// Counts a write of at most `wanted` bytes of data, which isn't 0.
    pub fn data(&mut self, wanted: usize) -> Option<Write> {
        if !self.can_send() {
            return None;
        }
        let target = &mut self.targets[self.current];
        let length = wanted.min(target.length as usize).min(self.sizes.buffer - self.used);
        let (remote, key) = (target.addr, target.key);
        target.addr = target.addr.wrapping_add(length as u64);
        target.length -= length as u32;
        if target.length == 0 {
            self.current = (self.current + 1) % TABLE;
        }
        self.places -= 1;
        self.sequence = self.sequence.wrapping_add(1);
        let place = self.place(length);
        Some(Write { place, length, remote, key })
    }

    /// Whether memory can be written that the peer has mapped.
    #[must_use]
    pub fn can_write_mapped(&self) -> bool {
        self.places > 0 && self.room() >= LOW_WATER.min(self.sizes.buffer)
    }

    /// Counts a write of at most `wanted` bytes into memory that the peer has mapped.
    pub fn mapped(&mut self, wanted: usize, remote: u64, key: u32) -> Option<Write> {
        if !self.can_write_mapped() {
            return None;
        }
        self.places -= 1;
        let length = wanted.min(self.room());
        let place = self.place(length);
        Some(Write { place, length, remote, key })
    }

    /// Counts the writing of an entry of the peer's table of mapped memory, of `length` bytes.
    pub fn table_entry(&mut self, length: usize, remote: u64, key: u32) -> Option<Write> {
        if self.places == 0 || !self.has_credit() || self.room() < length {
            return None;
        }
        self.places -= 1;
        self.sequence = self.sequence.wrapping_add(1);
        let place = self.place(length);
        Some(Write { place, length, remote, key })
    }

    fn place(&mut self, length: usize) -> DataSource {
        if length <= self.sizes.inline {
            return DataSource::Inline;
        }
        let offset = self.head;
        self.head = (self.head + length) % self.sizes.buffer;
        self.used += length;
        DataSource::Buffer(offset)
    }

    /// Takes a place for a message about the connection.
    pub fn control(&mut self) -> bool {
        let free = self.control_places > 0;
        self.control_places -= u32::from(free);
        free
    }

    /// A request has completed; requests complete in order.
    pub fn completed(&mut self, sent: SentRequest) {
        match sent {
            SentRequest::Data(bytes) => {
                self.places += 1;
                self.used = self.used.saturating_sub(bytes as usize);
            }
            SentRequest::Control | SentRequest::Disconnect => self.control_places += 1,
        }
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.places + self.control_places == self.sizes.queue.max(CONTROL_PLACES)
    }

    /// The peer grants messages up to number `until`, and has written an entry of our table if there is one.
    ///
    /// # Errors
    /// The peer announces a half before the one whose place it takes is full.
    pub fn granted(&mut self, until: u16, entry: Option<MemoryEntry>) -> Result<(), ProtocolViolation> {
        self.granted = until;
        if let Some(entry) = entry {
            let target = &mut self.targets[self.expected];
            if target.length > 0 {
                return Err(ProtocolViolation("it writes an entry of the table that is in use"));
            }
            *target = entry;
            self.expected = (self.expected + 1) % TABLE;
        }
        Ok(())
    }

    /// The entry of our table that the peer writes next.
    #[must_use]
    pub fn expected_entry(&self) -> usize {
        self.expected
    }
}

/// A grant of credits that has been counted and must be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Its immediate data.
    pub message: ImmediateMessage,
    /// The half of the receive buffer that it announces, by the offset of its beginning, and the entry of the peer's table
    /// that is written.
    pub half: Option<(usize, usize)>,
}

/// What a message was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrived {
    /// Data can be read.
    Data,
    /// More may be sent, or may be once the table has been looked at.
    Credits(u16),
    /// An entry of the table of mapped memory has been written.
    IoMap(u16),
    /// Something about the connection.
    Control(ControlMessage),
}

/// The receiving half.
#[derive(Clone, Debug)]
pub struct ReceivingHalf {
    half: u64,
    credits: u16,
    /// Halves that have been announced to the peer.
    told: u64,
    /// Bytes so far.
    arrived: u64,
    read: u64,
    /// Lengths of the messages that aren't read to their end; of the first, what is left.
    messages: VecDeque<u32>,
    /// Messages that have been read to their end.
    sequence: u16,
    /// With this many messages read, credits are granted anew.
    grant_at: u16,
    /// The entry of the peer's table that we write next.
    entry: usize,
}

impl ReceivingHalf {
    /// With the first half announced in the connection data.
    #[must_use]
    pub fn new(credits: u16, half: usize) -> Self {
        Self {
            half: half as u64,
            credits,
            told: 1,
            arrived: 0,
            read: 0,
            messages: VecDeque::new(),
            sequence: 0,
            grant_at: credits / 2,
            entry: 1,
        }
    }

    /// Counts a message.
    ///
    /// # Errors
    /// The peer sends what it mustn't.
    pub fn message(&mut self, message: ImmediateMessage) -> Result<Arrived, ProtocolViolation> {
        Ok(match message {
            ImmediateMessage::Data(length) => {
                if self.arrived + u64::from(length) > self.told * self.half {
                    return Err(ProtocolViolation("it writes more than fits"));
                }
                if self.messages.len() >= usize::from(self.credits) {
                    return Err(ProtocolViolation("it sends without credits"));
                }
                self.arrived += u64::from(length);
                self.messages.push_back(length);
                self.drop_finished();
                Arrived::Data
            }
            ImmediateMessage::Credits(until) => Arrived::Credits(until),
            ImmediateMessage::IoMap(index) => {
                // The sender has taken a credit for it.
                self.sequence = self.sequence.wrapping_add(1);
                Arrived::IoMap(index)
            }
            ImmediateMessage::Control(control) => Arrived::Control(control),
            ImmediateMessage::Unknown(_) => {
                return Err(ProtocolViolation("it sends a message that doesn't exist"));
            }
        })
    }

    fn drop_finished(&mut self) {
        while self.messages.front() == Some(&0) {
            self.messages.pop_front();
            self.sequence = self.sequence.wrapping_add(1);
        }
    }

    /// Bytes that can be read.
    #[must_use]
    pub fn readable(&self) -> usize {
        (self.arrived - self.read) as usize
    }

    /// The next bytes, after the first `skipped`: their offset in the receive buffer, and how many there are before its end.
    #[must_use]
    pub fn next_bytes(&self, skipped: usize) -> (usize, usize) {
        let size = 2 * self.half;
        let offset = (self.read + skipped as u64) % size;
        (offset as usize, (self.readable() - skipped).min((size - offset) as usize))
    }

    /// So many bytes have been read.
    pub fn consumed(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.readable(), "more than has arrived");
        self.read += bytes as u64;
        let mut left = bytes as u64;
        while let Some(first) = self.messages.front_mut().filter(|_| left > 0) {
            let taken = left.min(u64::from(*first));
            *first -= taken as u32;
            left -= taken;
            self.drop_finished();
        }
    }

    fn half_is_free(&self) -> bool {
        self.read >= (self.told - 1) * self.half
    }

    /// Whether credits or a free half should be sent to the peer.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.half_is_free() || self.sequence.wrapping_sub(self.grant_at) as i16 >= 0
    }

    /// Counts the telling, for which there is a place in the send queue.
    pub fn grant(&mut self) -> Grant {
        self.grant_at = self.sequence.wrapping_add(self.credits / 2);
        let half = self.half_is_free().then(|| {
            let offset = self.told % TABLE as u64 * self.half;
            let entry = self.entry;
            self.told += 1;
            self.entry = (entry + 1) % TABLE;
            (offset as usize, entry)
        });
        Grant { message: ImmediateMessage::Credits(self.sequence.wrapping_add(self.credits)), half }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const BASE: u64 = 0x1000;

    /// One side, with its memory, and what travels to the other.
    struct Side {
        sender: SendingHalf,
        receiver: ReceivingHalf,
        half: usize,
        buffer: Vec<u8>,
        send_buffer: Vec<u8>,
        table: [MemoryEntry; TABLE],
        /// On its way to the other side: writes take effect, and messages arrive, in this order.
        wire: VecDeque<Packet>,
        /// Sent and not completed.
        posted: VecDeque<SentRequest>,
        written: u64,
        read: u64,
    }

    struct Packet {
        bytes: Vec<u8>,
        offset: usize,
        entry: Option<(usize, MemoryEntry)>,
        message: ImmediateMessage,
    }

    fn byte(at: u64) -> u8 {
        (at % 251) as u8
    }

    impl Side {
        fn new(queue: u32, credits: u16, half: usize, peer: (u16, usize), send_buffer: usize) -> Self {
            let sizes = SenderSizes { queue, buffer: send_buffer, inline: 16 };
            let first = MemoryEntry { addr: BASE, key: 7, length: peer.1 as u32 };
            Self {
                sender: SendingHalf::new(sizes, peer.0, first),
                receiver: ReceivingHalf::new(credits, half),
                half,
                buffer: vec![0; 2 * half],
                send_buffer: vec![0; send_buffer],
                table: [MemoryEntry::default(); TABLE],
                wire: VecDeque::new(),
                posted: VecDeque::new(),
                written: 0,
                read: 0,
            }
        }

        fn write(&mut self, wanted: usize) {
            let Some(write) = self.sender.data(wanted) else { return };
            assert!((1..=wanted).contains(&write.length));
            let bytes: Vec<u8> = (self.written..).take(write.length).map(byte).collect();
            let mut kept = 0;
            if let DataSource::Buffer(offset) = write.place {
                kept = write.length as u32;
                for (i, b) in bytes.iter().enumerate() {
                    let at = (offset + i) % self.send_buffer.len();
                    assert_eq!(self.send_buffer[at], 0, "bytes that are under way are kept");
                    self.send_buffer[at] = b | 1;
                }
            }
            self.written += write.length as u64;
            self.posted.push_back(SentRequest::of(SentRequest::Data(kept).id()));
            let message = ImmediateMessage::Data(write.length as u32);
            let offset = (write.remote - BASE) as usize;
            self.wire.push_back(Packet { bytes, offset, entry: None, message });
        }

        fn grant(&mut self) {
            if self.receiver.owes() && self.sender.control() {
                let grant = self.receiver.grant();
                let entry = grant.half.map(|(offset, entry)| {
                    let addr = BASE + offset as u64;
                    (entry, MemoryEntry { addr, key: 7, length: self.half as u32 })
                });
                self.posted.push_back(SentRequest::Control);
                self.wire.push_back(Packet { bytes: vec![], offset: 0, entry, message: grant.message });
            }
        }

        fn complete(&mut self, tail: &mut usize) {
            if let Some(sent) = self.posted.pop_front() {
                if let SentRequest::Data(bytes) = sent {
                    for _ in 0..bytes {
                        self.send_buffer[*tail] = 0;
                        *tail = (*tail + 1) % self.send_buffer.len();
                    }
                }
                self.sender.completed(sent);
            }
        }

        fn deliver_to(&mut self, peer: &mut Side) {
            let Some(packet) = self.wire.pop_front() else { return };
            peer.buffer[packet.offset..][..packet.bytes.len()].copy_from_slice(&packet.bytes);
            if let Some((at, entry)) = packet.entry {
                peer.table[at] = entry;
            }
            match peer.receiver.message(packet.message).expect("a peer that keeps to the protocol") {
                Arrived::Credits(until) => {
                    let entry = packet.entry.map(|_| peer.table[peer.sender.expected_entry()]);
                    peer.sender.granted(until, entry).expect("a peer that keeps to the protocol");
                }
                Arrived::Data => {}
                other => panic!("{other:?}"),
            }
        }

        fn read(&mut self, wanted: usize) {
            let wanted = wanted.min(self.receiver.readable());
            let mut done = 0;
            while done < wanted {
                let (offset, run) = self.receiver.next_bytes(done);
                for at in offset..offset + run.min(wanted - done) {
                    assert_eq!(self.buffer[at], byte(self.read), "byte {} of the stream", self.read);
                    self.read += 1;
                }
                done += run.min(wanted - done);
            }
            self.receiver.consumed(wanted);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(usize),
        Read(usize),
        Grant,
        Deliver,
        Complete,
    }

    fn steps() -> impl Strategy<Value = Vec<(bool, Step)>> {
        let step = prop_oneof![
            3 => (1..5000usize).prop_map(Step::Write),
            3 => (1..5000usize).prop_map(Step::Read),
            2 => Just(Step::Grant),
            6 => Just(Step::Deliver),
            6 => Just(Step::Complete),
        ];
        proptest::collection::vec((any::<bool>(), step), 0..600)
    }

    proptest! {
        #[test]
        fn every_byte_arrives_once_and_in_order(
            steps in steps(), queue in 5..40u32, credits in 2..40u16, other_credits in 2..40u16,
            half in 1..4000usize, other_half in 1..4000usize, buffer in 1..6000usize
        ) {
            let mut sides = [
                Side::new(queue, credits, half, (other_credits, other_half), buffer),
                Side::new(queue, other_credits, other_half, (credits, half), buffer),
            ];
            let mut tails = [0; 2];
            let mut run = |sides: &mut [Side; 2], first: bool, step: Step| {
                let at = usize::from(!first);
                match step {
                    Step::Write(wanted) => sides[at].write(wanted),
                    Step::Read(wanted) => sides[at].read(wanted),
                    Step::Grant => sides[at].grant(),
                    Step::Complete => sides[at].complete(&mut tails[at]),
                    Step::Deliver => {
                        let [a, b] = sides;
                        let (from, to) = if first { (a, b) } else { (b, a) };
                        from.deliver_to(to);
                    }
                }
            };
            for (first, step) in steps {
                run(&mut sides, first, step);
            }
            // Whatever has happened: when all is delivered, completed, read and granted, both can send, and nothing is missing.
            for _ in 0..20 {
                for first in [true, false] {
                    for step in [Step::Read(usize::MAX), Step::Grant, Step::Grant] {
                        run(&mut sides, first, step);
                    }
                    for _ in 0..100 {
                        run(&mut sides, first, Step::Deliver);
                        run(&mut sides, first, Step::Complete);
                    }
                }
            }
            prop_assert_eq!((sides[0].written, sides[1].written), (sides[1].read, sides[0].read));
            for side in &sides {
                prop_assert!(side.sender.is_idle() && side.sender.can_send());
                prop_assert!(!side.receiver.owes());
            }
        }

        #[test]
        fn a_hostile_peer_is_told_so(numbers in proptest::collection::vec((any::<u32>(), any::<bool>()), 0..200)) {
            let sizes = SenderSizes { queue: 20, buffer: 4096, inline: 16 };
            let mut sender = SendingHalf::new(sizes, 4, MemoryEntry { addr: 0, key: 0, length: 100 });
            let mut receiver = ReceivingHalf::new(4, 1000);
            for (number, written) in numbers {
                // Data of a length that may fit.
                let number = if number & 3 == 0 { number % 600 } else { number };
                match receiver.message(ImmediateMessage::parse(number)) {
                    Ok(Arrived::Credits(until)) => {
                        let entry = written.then_some(MemoryEntry { addr: 0, key: 0, length: number });
                        if sender.granted(until, entry).is_err() {
                            break;
                        }
                    }
                    Ok(_) => {}
                    Err(ProtocolViolation(_)) => break,
                }
                prop_assert!(receiver.readable() <= 2000);
                let _ = sender.data(number as usize | 1);
            }
        }
    }
}
