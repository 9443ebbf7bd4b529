//! The ring from the peer: what is taken out of it.

use super::executed::{Acknowledged, CompactRun, Disowned, SentPacket};
use super::{Link, RING};
use crate::payload::{ReceivedRecord, ShmPayload};
use crate::protocol::{Broken, Consumer, Lines};
use crate::record::{self, CompactPayload, CompactRecord, Entry};
use ferroce_os::room;
use ferroce_wire::Headers;
use std::sync::atomic::Ordering;

/// Who reads the ring.
#[derive(Debug)]
pub(super) struct Receiver {
    consumer: Consumer,
    /// Room for a run of packets.
    run: Vec<ReceivedRecord<'static>>,
    compact: Vec<CompactRecord>,
    disowned: Disowned,
    /// Records before this position that disown others have been read.
    looked_ahead: u64,
}

/// Records that have been dealt with together.
struct Run {
    records: usize,
    /// Their bytes.
    len: usize,
    /// Their sender may sleep until it learns what has become of them.
    rings: bool,
}

/// What becomes of a packet that comes alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Single {
    /// It wasn't executed: it comes again, by [`Receive::compact`].
    Left,
    /// It was executed and acknowledged.
    Executed,
    /// It was executed and acknowledged, and whoever looks into the ring has all that it wants for now.
    Enough,
}

/// The only packet in a ring, which waits to be acknowledged by position.
#[derive(Debug)]
pub struct SinglePacket<'a> {
    link: &'a Link,
    packet: &'a CompactRecord,
    rx: &'a mut Receiver,
}

impl<'a> SinglePacket<'a> {
    /// The link that it has come by.
    #[must_use]
    #[inline]
    pub fn link(&self) -> &'a Link {
        self.link
    }

    /// The packet.
    #[must_use]
    #[inline]
    pub fn packet(&self) -> &'a CompactRecord {
        self.packet
    }

    /// It was executed as a plain SEND: acknowledges it, and gives its record back to the sender. To be called before anybody learns of it,
    /// and before its queue pair sends anything.
    #[inline]
    pub fn acknowledge(self) {
        let Self { link, packet, rx } = self;
        link.acknowledge(&mut rx.disowned, packet.end);
        // Both words are of one line, which moves once. The bell is rung in any case.
        rx.consumer.release(link.rx_lines(), Lines::GRAIN);
    }
}

/// Who takes packets out of a ring: those in a row for one QP come together.
pub trait Receive {
    /// Packets with addresses and headers.
    fn packets(&mut self, packets: &[ReceivedRecord<'_>]);

    /// Packets of a connection.
    fn compact(&mut self, run: CompactRun<'_>);

    /// Whether packets are to come by [`Receive::single`].
    fn wants_single(&self) -> bool {
        false
    }

    /// A packet of a connection that is the only one in the ring and waits to be acknowledged by position.
    fn single(&mut self, single: SinglePacket<'_>) -> Single {
        let _ = single;
        Single::Left
    }

    /// The peer has executed everything up to a packet that a QP of this process has sent to it.
    fn executed(&mut self, last: SentPacket);
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self {
            consumer: Consumer::new(RING),
            run: Vec::new(),
            compact: Vec::new(),
            disowned: Disowned::default(),
            looked_ahead: 0,
        }
    }
}

impl Link {
    /// Takes packets, `limit` at most, and hands them to `to`. The peer gets the room back when `to` has dealt with them.
    /// Returns whether there was any: whether it is worth the lock, [`Links::next_with_work`](crate::Links::next_with_work) says.
    pub fn receive(&self, limit: usize, to: &mut dyn Receive) -> bool {
        self.answered.load(Ordering::Acquire)
            && self.rx.try_lock().is_some_and(|mut rx| self.receive_with(&mut rx, limit, to))
    }

    /// As [`Link::receive`], with all that the peer has left so far. False, and nothing has happened: another thread is receiving.
    #[must_use]
    pub fn receive_what_has_come(&self, to: &mut dyn Receive) -> bool {
        if !self.answered.load(Ordering::Acquire) || self.is_dead() {
            return true;
        }
        let rx = self.rx.try_lock();
        rx.is_some_and(|mut rx| {
            self.receive_with(&mut rx, RING / Lines::GRAIN, to);
            true
        })
    }

    /// As [`Link::receive`], for what a peer has left that is gone: all of it.
    pub fn receive_last(&self, to: &mut dyn Receive) {
        self.receive_with(&mut self.rx.lock(), RING / Lines::GRAIN, to);
    }

    fn receive_with(&self, rx: &mut Receiver, limit: usize, to: &mut dyn Receive) -> bool {
        let mut any = false;
        if self.receive_all(rx, limit, to, &mut any) == Err(Broken) {
            self.broken();
        }
        any
    }

    fn receive_all(
        &self,
        rx: &mut Receiver,
        limit: usize,
        to: &mut dyn Receive,
        any: &mut bool,
    ) -> Result<(), Broken> {
        let lines = self.rx_lines();
        // What is disowned and waits for room isn't tried again before there is some.
        if rx.disowned.is_waiting() && self.has_room_for_disowned() {
            self.acknowledge(&mut rx.disowned, rx.consumer.head());
            self.ring_bell();
        }
        let mut taken = 0;
        loop {
            let ahead = if taken < limit { rx.consumer.peek(lines)? } else { None };
            // The peer may have published a record in answer to what it had executed: whoever sent that learns of its end before.
            *any |= self.receive_positions(rx, to)?;
            let Some(ahead) = ahead else { return Ok(()) };
            let single = if to.wants_single() { self.receive_single(rx, ahead.0, to)? } else { Single::Left };
            if single == Single::Left {
                // Nothing of a run is given back before it has been dealt with.
                let run = self.receive_run(rx, ahead, limit - taken, to)?;
                *any = true;
                taken += run.records;
                if rx.consumer.release(lines, run.len) || run.rings {
                    self.ring_bell();
                }
            } else {
                *any = true;
                taken += 1;
                self.ring_bell();
                if single == Single::Enough {
                    return Ok(());
                }
            }
        }
    }

    /// Tells what the peer has executed, all of it. Returns whether it was anything.
    #[inline]
    fn receive_positions(&self, rx: &mut Receiver, to: &mut dyn Receive) -> Result<bool, Broken> {
        if !self.has_executed() {
            return Ok(false);
        }
        let executed @ (end, _) = self.executed_by_peer();
        if let Some(only) = self.take_only_executed(executed) {
            to.executed(only);
            self.note_executed(end);
            return Ok(true);
        }
        self.receive_many_positions(rx, to, executed)
    }

    /// As [`Link::receive_positions`], with what the peer says.
    fn receive_many_positions(
        &self,
        rx: &mut Receiver,
        to: &mut dyn Receive,
        executed @ (end, _): (u64, u64),
    ) -> Result<bool, Broken> {
        let mut any = false;
        loop {
            let mut acknowledged = Acknowledged::new();
            let position = match self.take_executed(executed, &mut acknowledged)? {
                Some(position) => position,
                None => {
                    self.look_ahead(rx)?;
                    // Every record that is counted was published before.
                    self.take_executed(executed, &mut acknowledged)?.ok_or(Broken)?
                }
            };
            acknowledged.iter().for_each(|&last| to.executed(last));
            self.note_executed(position);
            any |= !acknowledged.is_empty();
            if position == end {
                return Ok(any);
            }
        }
    }

    /// Reads what the peer disowns of all that it has published, and no other record.
    #[cold]
    fn look_ahead(&self, rx: &mut Receiver) -> Result<(), Broken> {
        rx.consumer.look(self.rx_lines())?;
        let mut position = rx.consumer.head();
        while let Some((at, left)) = rx.consumer.ahead_of(position) {
            let at = self.from_peer.bytes_at + at;
            let before = position;
            position = match record::read_compact(&self.memory, at, left, before)? {
                Some(packet) => packet.end,
                None => {
                    let (record, len) = record::read(&self.memory, at, left)?;
                    if let Entry::Disowned(disowned) = record {
                        self.receive_disowned(&mut rx.looked_ahead, before, disowned);
                    }
                    before + len as u64
                }
            };
        }
        Ok(())
    }

    /// The record that begins at `position` disowns others. It is read twice when somebody has looked ahead.
    fn receive_disowned(&self, looked_ahead: &mut u64, position: u64, disowned: (u64, u64)) {
        if position >= *looked_ahead {
            *looked_ahead = position + 1;
            self.peer_disowns(disowned);
        }
    }

    /// Hands over the record at `at` of the ring if it is the only one, and a packet that may be acknowledged by position.
    #[inline]
    fn receive_single(&self, rx: &mut Receiver, at: usize, to: &mut dyn Receive) -> Result<Single, Broken> {
        let (lines, consumer) = (self.rx_lines(), &rx.consumer);
        // What is disowned before it has to be told before.
        if !consumer.has_one_grain() || rx.disowned.is_waiting() {
            return Ok(Single::Left);
        }
        let begin = consumer.head();
        let copied = |words| record::read_copy(words, begin + Lines::GRAIN as u64);
        let packet = match consumer.copy_of_only(lines).and_then(copied) {
            Some(packet) => Some(packet),
            None => record::read_compact(&self.memory, self.from_peer.bytes_at + at, Lines::GRAIN, begin)?,
        };
        Ok(match packet {
            Some(packet) if packet.headers.is_by_position() => {
                to.single(SinglePacket { link: self, packet: &packet, rx })
            }
            _ => Single::Left,
        })
    }

    /// Hands over packets in a row for one QP: at most `limit` records of the `published` bytes at `at` of the ring.
    fn receive_run(
        &self,
        rx: &mut Receiver,
        (at, published): (usize, usize),
        limit: usize,
        to: &mut dyn Receive,
    ) -> Result<Run, Broken> {
        let base = self.from_peer.bytes_at + at;
        let (mut records, mut len) = (0, 0);
        let begin = rx.consumer.head();
        let Receiver { run, compact, disowned, looked_ahead, .. } = rx;
        compact.clear();
        let mut packets = Vec::new();
        while len < published && records < limit {
            let (at, left, before) = (base + len, published - len, begin + len as u64);
            if let Some(packet) = record::read_compact(&self.memory, at, left, before)? {
                let other = |first: &CompactRecord| first.headers.dest_qp != packet.headers.dest_qp;
                if !packets.is_empty() || compact.first().is_some_and(other) {
                    break;
                }
                records += 1;
                len = (packet.end - begin) as usize;
                compact.push(packet);
                continue;
            }
            let (record, total) = record::read(&self.memory, at, left)?;
            match record {
                Entry::Padding => {}
                Entry::Disowned(disowned) => self.receive_disowned(looked_ahead, before, disowned),
                Entry::Whole(packet) => {
                    let other = |first: &ReceivedRecord<'_>| {
                        first.packet.headers.bth.dest_qp != packet.headers.bth.dest_qp
                    };
                    if !compact.is_empty() || packets.first().is_some_and(other) {
                        break;
                    }
                    if packets.is_empty() {
                        packets = room::reuse(std::mem::take(run));
                    }
                    packets.push(ReceivedRecord::new(self, packet));
                }
            }
            records += 1;
            len += total;
        }
        let rings = !compact.is_empty();
        if rings {
            to.compact(CompactRun { link: self, packets: compact, disowned, settled: 0, is_awaited: false });
        } else if !packets.is_empty() {
            to.packets(&packets);
            *run = room::reuse(packets);
        }
        Ok(Run { records, len, rings })
    }

    /// A poller may have something to do here: it takes no lock to find out.
    #[inline]
    pub(crate) fn may_have_work(&self) -> bool {
        self.rx_lines().has_records() || self.has_executed() || self.waits_for_room()
    }

    /// Whether [`Link::receive`] has something to do.
    pub fn has_records(&self) -> bool {
        !self.is_dead()
            && self.answered.load(Ordering::Acquire)
            && (self.rx_lines().has_records() || self.has_executed() || self.has_room_for_disowned())
    }

    /// The payload of a packet that has come by this link.
    #[inline]
    pub fn payload<'a>(&'a self, packet: &'a CompactRecord) -> ShmPayload<'a> {
        let CompactRecord { ref headers, ref payload, len, .. } = *packet;
        let operands = headers.operands_len();
        match payload {
            CompactPayload::Ring(at) => {
                ShmPayload::Ring { memory: &self.memory, at: at + operands, len: len - operands }
            }
            CompactPayload::Copied(words) => ShmPayload::Copied { words, len },
        }
    }

    /// What an atomic swaps in or adds, and what it compares with; what the memory held, if the packet is the answer to one.
    #[inline]
    pub fn operands(&self, packet: &CompactRecord) -> [u64; 2] {
        packet.operands(&self.memory)
    }

    /// The headers of such a packet, as the transport takes them.
    #[inline]
    pub fn headers(&self, packet: &CompactRecord) -> Headers {
        packet.headers(&self.memory)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::compact::CompactHeaders;
    use crate::link::{LEN, Sent};
    use crate::payload::RingBytes;
    use crate::protocol::COPIED_WORDS;
    use ferroce_access::SharedMemory;
    use ferroce_os::sys;
    use ferroce_wire::Opcode;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(PartialEq, Eq, Debug)]
    pub(in crate::link) enum Event {
        /// The SEND of this QP with this PSN was executed by the peer.
        Executed(u32, u32),
        /// A packet with this PSN came.
        Came(u32),
    }

    /// Notes what happens, and executes packets with even PSNs: those that come alone only if it is `eager`.
    #[derive(Default)]
    pub(in crate::link) struct Told<'a> {
        pub(in crate::link) events: Vec<Event>,
        eager: bool,
        /// The payloads of packets that came alone.
        alone: Vec<Vec<u8>>,
        /// Called once, while a packet is dealt with.
        meanwhile: Option<&'a dyn Fn()>,
    }

    impl Receive for Told<'_> {
        fn packets(&mut self, _: &[ReceivedRecord<'_>]) {}

        fn wants_single(&self) -> bool {
            self.eager
        }

        fn single(&mut self, single: SinglePacket<'_>) -> Single {
            let psn = single.packet().headers.psn();
            self.alone.push(single.link().payload(single.packet()).to_vec());
            if !psn.is_multiple_of(2) {
                return Single::Left;
            }
            single.acknowledge();
            self.events.push(Event::Came(psn));
            if let Some(meanwhile) = self.meanwhile.take() {
                meanwhile();
            }
            Single::Enough
        }

        fn compact(&mut self, mut run: CompactRun<'_>) {
            while let Some(packet) = run.next() {
                let psn = packet.headers.psn();
                self.events.push(Event::Came(psn));
                let executed = run.is_by_position(packet) && psn.is_multiple_of(2);
                run.settle(executed);
            }
            run.acknowledge();
            if let Some(meanwhile) = self.meanwhile.take() {
                meanwhile();
            }
        }

        fn executed(&mut self, last: SentPacket) {
            self.events.push(Event::Executed(last.qpn, last.psn));
        }
    }

    /// Both ends of a link, whose maker has been answered.
    pub(in crate::link) fn link() -> [Link; 2] {
        let [link, other] = unanswered_link();
        other.answered();
        [link, other]
    }

    fn unanswered_link() -> [Link; 2] {
        let memory = SharedMemory::create(LEN, false).unwrap();
        let same = SharedMemory::open(sys::duplicate_engine(memory.fd()).unwrap(), LEN, true).unwrap();
        let [one, other] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
        let link = |connection, memory: SharedMemory, side| {
            let link = Link::new(1, 1, 0, None, connection, memory.into(), side);
            link.offer_compact();
            link
        };
        [link(one, memory, 0), link(other, same, 1)]
    }

    pub(in crate::link) fn try_send(link: &Link, qpn: u32, psn: u32, by_position: bool) -> Option<u64> {
        try_send_bytes(link, qpn, psn, by_position, &[])
    }

    fn try_send_bytes(link: &Link, qpn: u32, psn: u32, by_position: bool, bytes: &[u8]) -> Option<u64> {
        let opcode = Opcode::from_u8(4).unwrap();
        let headers = CompactHeaders::of_send(opcode, (0xffff, 9), psn, (false, 0), by_position);
        let fill = |ring: &RingBytes<'_>| {
            ring.put(bytes);
            Ok(())
        };
        match link.send_plain::<()>(&headers, (qpn, 1), bytes.len(), fill) {
            Sent::Published(end) => Some(end),
            Sent::Full => None,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the position of the record's end.
    fn send(link: &Link, qpn: u32, psn: u32, by_position: bool) -> u64 {
        try_send(link, qpn, psn, by_position).expect("room")
    }

    /// What happens at the end that has sent `sends` (QPs and PSNs) when the peer receives them and answers, with PSN 7, while that
    /// end deals with another packet.
    fn told(sends: impl IntoIterator<Item = (u32, u32)>) -> Vec<Event> {
        let [link, peer] = link();
        for (qpn, psn) in sends {
            send(&link, qpn, psn, true);
        }
        send(&peer, 5, 1, false);
        // On a thread of its own, as it takes locks of the same ranks.
        let answers = || {
            peer.receive_last(&mut Told::default());
            send(&peer, 5, 7, false);
        };
        let answers = || std::thread::scope(|scope| scope.spawn(answers).join().unwrap());
        let mut told = Told { meanwhile: Some(&answers), ..Told::default() };
        assert!(link.receive(64, &mut told));
        assert!(!link.receive(64, &mut told) && !link.is_dead() && !peer.is_dead());
        told.events
    }

    #[test]
    fn a_packet_that_comes_alone_is_executed_and_acknowledged_alone() {
        for len in [0, 1, 8, 15, 16, 17, 40, 41, 500] {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8 | 1).collect();
            let [link, peer] = link();
            let mut told = Told { eager: true, ..Told::default() };
            for psn in [2, 4, 6] {
                try_send_bytes(&link, 3, psn, true, &bytes).unwrap();
                assert!(peer.receive(64, &mut told));
                let mut sender = Told::default();
                assert!(link.receive(64, &mut sender));
                assert_eq!(sender.events, [Event::Executed(3, psn)]);
            }
            assert_eq!(told.events, [2, 4, 6].map(Event::Came));
            // A record of several lines isn't looked at alone.
            let expected = if len <= 40 { vec![bytes.clone(); 3] } else { vec![] };
            assert_eq!(told.alone, expected, "{len} bytes");
        }
    }

    #[test]
    fn a_packet_that_comes_alone_is_acknowledged_before_its_queue_pair_goes_on() {
        let [link, peer] = link();
        send(&link, 3, 2, true);
        // On a thread of its own, as it takes locks of the same ranks.
        let look = || {
            let mut sender = Told::default();
            assert!(link.receive(64, &mut sender));
            assert_eq!(sender.events, [Event::Executed(3, 2)]);
            assert!(link.is_consumed(64), "its room is free");
        };
        let look = || std::thread::scope(|scope| scope.spawn(look).join().unwrap());
        let mut told = Told { eager: true, meanwhile: Some(&look), ..Told::default() };
        assert!(peer.receive(64, &mut told));
        assert!(told.meanwhile.is_none());
    }

    #[test]
    fn nothing_is_taken_before_the_maker_is_answered_nor_of_a_link_that_has_ended() {
        let [link, peer] = unanswered_link();
        let mut told = Told::default();
        send(&link, 3, 2, true);
        assert!(!peer.has_records() && !peer.receive(64, &mut told) && peer.receive_what_has_come(&mut told));
        assert!(told.events.is_empty());
        peer.answered();
        assert!(peer.has_records() && peer.receive_what_has_come(&mut told));
        assert_eq!(told.events, [Event::Came(2)]);
        send(&link, 3, 4, true);
        peer.broken();
        assert!(!peer.has_records() && peer.receive_what_has_come(&mut told));
        assert_eq!(told.events, [Event::Came(2)]);
    }

    #[test]
    fn a_position_beyond_all_that_was_sent_breaks_the_link() {
        let [link, peer] = link();
        send(&link, 3, 2, true);
        peer.rx_lines().acknowledge(1 << 20, 0);
        link.receive(64, &mut Told::default());
        assert!(link.is_dead());
    }

    #[test]
    fn packets_that_come_alone_go_round_the_ring() {
        let [link, peer] = link();
        // The ring is filled several times; its end is met by records of one line and of several.
        let lengths = [0, 8, 16, 17, 40, 41, 900];
        let mut told = Told { eager: true, ..Told::default() };
        let mut alone = 0;
        for n in 0..30_000u32 {
            let len = lengths[n as usize * 7919 % lengths.len()];
            let bytes: Vec<u8> = (0..len).map(|at| (n + at) as u8).collect();
            try_send_bytes(&link, 3, 2 * n, true, &bytes).unwrap();
            assert!(peer.receive(64, &mut told));
            assert!(link.receive(64, &mut Told::default()));
            assert_eq!(told.events.pop(), Some(Event::Came((2 * n) & 0xff_ffff)));
            if let Some(came) = told.alone.pop() {
                assert_eq!(came, bytes);
                alone += 1;
            }
        }
        assert!(told.events.is_empty() && told.alone.is_empty() && alone > 20_000, "{alone}");
    }

    #[test]
    fn packets_that_do_not_come_alone_or_are_not_executed_come_together() {
        let [link, peer] = link();
        let mut told = Told { eager: true, ..Told::default() };
        send(&link, 3, 1, true);
        assert!(peer.receive(64, &mut told));
        assert_eq!((told.alone.len(), &told.events[..]), (1, &[Event::Came(1)][..]));
        // The one before is disowned, which the sender hasn't heard of.
        send(&link, 3, 2, true);
        send(&link, 3, 4, true);
        assert!(peer.receive(64, &mut told));
        assert_eq!((told.alone.len(), &told.events[1..]), (1, &[2, 4].map(Event::Came)[..]));
        send(&link, 3, 6, false);
        assert!(peer.receive(64, &mut told));
        assert_eq!((told.alone.len(), &told.events[3..]), (1, &[Event::Came(6)][..]));
        let mut sender = Told::default();
        assert!(link.receive(64, &mut sender));
        assert_eq!(sender.events, [Event::Executed(3, 4)]);
    }

    #[test]
    fn a_copy_that_the_peer_makes_up_is_passed_over() {
        let [link, peer] = link();
        let end = send(&link, 3, 2, true);
        link.tx_lines().copy_last(end, [u64::MAX; COPIED_WORDS]);
        let mut told = Told { eager: true, ..Told::default() };
        assert!(peer.receive(64, &mut told) && !peer.is_dead());
        assert_eq!(told.events, [Event::Came(2)]);
    }

    #[test]
    fn what_the_peer_has_executed_is_told_before_its_answer_comes() {
        assert_eq!(told([(3, 2)]), [Event::Came(1), Event::Executed(3, 2), Event::Came(7)]);
    }

    #[test]
    fn what_the_peer_disowns_is_known_before_its_answer_comes() {
        let events = told([(3, 1), (3, 2), (4, 3), (4, 4), (4, 5)]);
        let executed = [Event::Executed(3, 2), Event::Executed(4, 4)];
        assert_eq!(events.len(), 4, "{events:?}");
        assert!(events[0] == Event::Came(1) && events[3] == Event::Came(7), "{events:?}");
        assert!(executed.iter().all(|event| events[1..3].contains(event)), "{events:?}");
    }

    #[test]
    fn an_answer_by_position_is_to_come_until_the_sender_knows_of_it() {
        let [link, peer] = link();
        let end = send(&link, 3, 2, true);
        assert!(link.is_unacknowledged(end), "nobody has looked at it");
        peer.receive_last(&mut Told::default());
        assert!(link.is_unacknowledged(end), "nobody has looked at the position");
        assert!(link.has_records() && link.may_have_work());
        link.receive_last(&mut Told::default());
        assert!(!link.has_records() && !link.may_have_work());
        assert!(!link.is_unacknowledged(end) && link.unread().is_none());
    }

    /// Asks, while it is told of what the peer has executed, whether it is acknowledged.
    struct Asks<'a> {
        link: &'a Link,
        end: u64,
        answers: Vec<bool>,
    }

    impl Receive for Asks<'_> {
        fn packets(&mut self, _: &[ReceivedRecord<'_>]) {}

        fn compact(&mut self, _: CompactRun<'_>) {}

        fn executed(&mut self, _: SentPacket) {
            self.answers.push(self.link.is_unacknowledged(self.end));
        }
    }

    #[test]
    fn an_answer_by_position_is_to_come_while_the_sender_is_told() {
        let [link, peer] = link();
        let end = send(&link, 3, 2, true);
        peer.receive_last(&mut Told::default());
        let mut asks = Asks { link: &link, end, answers: Vec::new() };
        link.receive_last(&mut asks);
        assert_eq!(asks.answers, [true]);
        assert!(!link.is_unacknowledged(end));
    }

    #[test]
    fn what_others_have_sent_later_is_not_waited_for() {
        let [link, peer] = link();
        let end = send(&link, 3, 2, false);
        peer.receive_last(&mut Told::default());
        assert!(!link.is_unacknowledged(end));
        send(&link, 4, 4, true);
        peer.receive_last(&mut Told::default());
        let known = link.executed.load(Ordering::Relaxed);
        assert!(link.has_executed() && (known < end) == link.is_unacknowledged(end));
        link.receive_last(&mut Told::default());
        send(&link, 4, 6, true);
        peer.receive_last(&mut Told::default());
        assert!(link.has_executed() && !link.is_unacknowledged(end));
    }

    #[test]
    fn what_is_disowned_without_room_to_tell_is_still_to_be_answered() {
        let [link, peer] = link();
        while try_send(&peer, 5, 1, false).is_some() {}
        let end = send(&link, 3, 1, true);
        peer.receive_last(&mut Told::default());
        let full = link.unread().unwrap();
        assert!(link.is_unacknowledged(end) && !link.is_read(full));
        link.receive_last(&mut Told::default());
        assert!(link.is_unacknowledged(end) && link.is_read(full) && link.unread().is_none());
        // The peer finds room.
        assert!(peer.has_records() && peer.may_have_work());
        peer.receive_last(&mut Told::default());
        assert!(link.unread().is_some());
        link.receive_last(&mut Told::default());
        assert!(!link.is_unacknowledged(end) && link.unread().is_none());
    }

    #[test]
    fn what_is_executed_is_acknowledged_though_there_is_no_room_to_disown_what_follows() {
        let [link, peer] = link();
        while try_send(&peer, 5, 1, false).is_some() {}
        for psn in [2, 1, 4] {
            send(&link, 3, psn, true);
        }
        peer.receive_last(&mut Told::default());
        let mut sender = Told::default();
        link.receive_last(&mut sender);
        let executed = Event::Executed(3, 2);
        assert_eq!(
            sender.events.iter().filter(|event| matches!(event, Event::Executed(..))).collect::<Vec<_>>(),
            [&executed]
        );
        // There is room now: both others are disowned.
        peer.receive_last(&mut Told::default());
        let mut sender = Told::default();
        link.receive_last(&mut sender);
        assert!(sender.events.is_empty() && link.tx.lock().is_idle());
    }

    /// A packet on its way. One with an even PSN is executed.
    #[derive(Clone, PartialEq, Eq, Debug)]
    struct Packet {
        dest: u32,
        psn: u32,
        bytes: Vec<u8>,
    }

    /// What a SEND by position has become.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Fate {
        OnItsWay,
        Executed,
        Disowned,
    }

    /// An end of a link, with what it has sent.
    struct End {
        link: Link,
        packets: VecDeque<Packet>,
        /// QP and PSN of each SEND by position that isn't reported yet.
        awaited: Vec<(u32, u32, Fate)>,
        psn: u32,
    }

    impl End {
        fn send(&mut self, number: u16) {
            const LENGTHS: [usize; 8] = [0, 8, 16, 17, 40, 41, 900, 20_000];
            let (qpn, dest) = (u32::from(number % 3), u32::from(number / 3 % 2));
            // A PSN names one packet; its last bit, what becomes of it.
            self.psn += 1 + u32::from(number & 0x100 == 0);
            let (len, by_position) = (LENGTHS[usize::from(number >> 13)], number & 0x200 == 0);
            let bytes: Vec<u8> = (0..len).map(|at| (at as u32 + self.psn) as u8).collect();
            let opcode = Opcode::from_u8(4).unwrap();
            let headers = CompactHeaders::of_send(opcode, (0xffff, dest), self.psn, (false, 0), by_position);
            let fill = |ring: &RingBytes<'_>| {
                ring.put(&bytes);
                Ok::<(), ()>(())
            };
            match self.link.send_plain(&headers, (qpn, 1), len, fill) {
                Sent::Published(_) => {
                    self.packets.push_back(Packet { dest, psn: self.psn, bytes });
                    if by_position {
                        self.awaited.push((qpn, self.psn, Fate::OnItsWay));
                    }
                }
                Sent::Full => {}
                other => panic!("{other:?}"),
            }
        }

        /// Receives what `peer` has sent. Whether anything has come.
        fn receive(&mut self, peer: &mut Self, number: u16) -> bool {
            let mut noted = Noted { is_eager: number & 1 == 0, ..Noted::default() };
            let any = self.link.receive(1 + usize::from(number >> 1) % 8, &mut noted);
            assert!(any || noted.came.is_empty() && noted.told.is_empty());
            for (packet, executed) in noted.came {
                assert_eq!(peer.packets.pop_front(), Some(packet.clone()));
                if let Some(awaited) = peer.awaited.iter_mut().find(|(_, psn, _)| *psn == packet.psn) {
                    awaited.2 = if executed { Fate::Executed } else { Fate::Disowned };
                }
            }
            for last in noted.told {
                let is_it = |&(qpn, psn, _): &(u32, u32, Fate)| (qpn, psn) == (last.qpn, last.psn);
                let told = self.awaited.iter().copied().find(is_it);
                assert_eq!(told.map(|(.., fate)| fate), Some(Fate::Executed), "{last:?}");
                self.awaited.retain(|&(qpn, psn, _)| qpn != last.qpn || psn > last.psn);
            }
            any
        }
    }

    /// Notes what comes and whether it was executed, and which SENDs are reported as executed.
    #[derive(Default)]
    struct Noted {
        is_eager: bool,
        came: Vec<(Packet, bool)>,
        told: Vec<SentPacket>,
    }

    impl Noted {
        fn note(&mut self, link: &Link, packet: &CompactRecord, executed: bool) {
            let (dest, psn) = (packet.headers.dest_qp, packet.headers.psn());
            self.came.push((Packet { dest, psn, bytes: link.payload(packet).to_vec() }, executed));
        }
    }

    impl Receive for Noted {
        fn packets(&mut self, _: &[ReceivedRecord<'_>]) {
            unreachable!("no such packet is sent");
        }

        fn wants_single(&self) -> bool {
            self.is_eager
        }

        fn single(&mut self, single: SinglePacket<'_>) -> Single {
            let psn = single.packet().headers.psn();
            if !psn.is_multiple_of(2) {
                return Single::Left;
            }
            self.note(single.link(), single.packet(), true);
            single.acknowledge();
            if psn.is_multiple_of(4) { Single::Executed } else { Single::Enough }
        }

        fn compact(&mut self, mut run: CompactRun<'_>) {
            let dest = run.dest_qp();
            while let Some(packet) = run.next() {
                assert_eq!(packet.headers.dest_qp, dest);
                let executed = run.is_by_position(packet) && packet.headers.psn().is_multiple_of(2);
                self.note(run.link(), packet, executed);
                run.settle(executed);
            }
        }

        fn executed(&mut self, last: SentPacket) {
            self.told.push(last);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 24 }))]
        /// Two ends send and receive at random, also when a ring is full. Each packet comes once, in order and intact. Each SEND that was
        /// executed by position is reported, and no other.
        #[test]
        fn what_comes_and_what_is_told_is_what_was_sent_and_executed(
            steps in prop::collection::vec(any::<(u8, u16)>(), 1..1200),
        ) {
            let mut ends = link().map(|link| End { link, packets: VecDeque::new(), awaited: Vec::new(), psn: 0 });
            for (what, number) in steps {
                let [one, other] = &mut ends;
                let (end, peer) = if what & 1 == 0 { (one, other) } else { (other, one) };
                match what >> 1 & 7 {
                    0 => { end.receive(peer, number); }
                    1 => (0..200).for_each(|n| end.send(number ^ n)),
                    _ => end.send(number),
                }
            }
            let [one, other] = &mut ends;
            while one.receive(other, 15) | other.receive(one, 14) {}
            for end in &ends {
                prop_assert!(end.packets.is_empty() && end.link.tx.lock().is_idle() && !end.link.is_dead());
                prop_assert!(end.awaited.iter().all(|(.., fate)| *fate == Fate::Disowned), "{:?}", end.awaited);
                prop_assert!(!end.link.has_records() && !end.link.may_have_work() && end.link.may_await());
            }
        }
    }

    #[test]
    fn more_qps_than_are_told_at_once_are_told_before_the_answer_comes() {
        let events = told((10..200).map(|qpn| (qpn, 2)));
        assert_eq!(events.len(), 192);
        assert_eq!((events.first(), events.last()), (Some(&Event::Came(1)), Some(&Event::Came(7))));
    }
}
