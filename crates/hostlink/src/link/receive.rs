//! The ring from the peer: reads its records.

use super::executed::{Acknowledged, CompactRun, Disowned, SentPacket};
use super::{Link, RING, ReceivedRecord};
use crate::payload::ShmPayload;
use crate::protocol::{Broken, Consumer, RingWords};
use crate::record::{self, CompactPayload, CompactRecord, RingRecord};
use ferroce_os::room;
use ferroce_wire::Headers;
use std::sync::atomic::Ordering;

/// The reader of the ring.
#[derive(Debug)]
pub(super) struct RingReceiver {
    consumer: Consumer,
    /// Room for a run of packets.
    run: Vec<ReceivedRecord<'static>>,
    compact: Vec<CompactRecord>,
    disowned: Disowned,
    /// Records before this position that disown others have been read.
    looked_ahead: u64,
}

/// Records that have been dealt with together.
struct RecordBatch {
    records: usize,
    /// Their bytes.
    len: usize,
    /// Their sender may sleep until it gets an acknowledgement or a refusal.
    rings: bool,
}

/// How much a reader takes in one go.
#[derive(Clone, Copy)]
struct TurnLimit {
    records: usize,
    /// What begins there or later is left.
    position: u64,
}

/// What has come by a link up to a moment ([`Link::arrived`]).
#[derive(Clone, Copy, Debug)]
pub struct ArrivalMark {
    /// Position of the ring from the peer.
    published: u64,
    /// Position of the ring to the peer.
    executed: u64,
}

/// What becomes of a packet that comes alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Single {
    /// It wasn't executed: it comes again, by [`Receive::compact`].
    Left,
    /// It was executed and acknowledged.
    Executed,
    /// It was executed and acknowledged, and the caller of [`Link::receive`] wants no more records for now.
    Enough,
}

/// The only packet in a ring, which waits to be acknowledged by position.
#[derive(Debug)]
pub struct SinglePacket<'a> {
    link: &'a Link,
    packet: &'a CompactRecord,
    rx: &'a mut RingReceiver,
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

    /// It was executed as a plain SEND: acknowledges it, and gives its record back to the sender. To be called before its completion is
    /// visible, and before its queue pair sends anything.
    #[inline]
    pub fn acknowledge(self) {
        let Self { link, packet, rx } = self;
        link.acknowledge(&mut rx.disowned, packet.end);
        // Both words are of one line, which moves once. The bell is rung in any case.
        rx.consumer.release(link.rx_lines(), RingWords::GRAIN);
    }
}

/// Takes packets out of a ring: those in a row for one QP come together.
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

impl RingReceiver {
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
    /// Takes packets, `limit` at most and no more than a ring holds, and hands them to `to`. The peer gets the room back when `to` has dealt with them.
    /// Returns whether there was any, and `None` if another thread is receiving:
    /// [`Links::next_with_work`](crate::Links::next_with_work) shows whether it is worth the lock.
    #[inline]
    pub fn receive(&self, limit: usize, to: &mut dyn Receive) -> Option<bool> {
        if !self.answered.load(Ordering::Acquire) {
            return None;
        }
        self.rx.try_lock().map(|mut rx| {
            let position = rx.consumer.head() + RING as u64;
            self.receive_with(&mut rx, TurnLimit { records: limit, position }, to)
        })
    }

    /// Of a link of the process to itself: whether something was left there that perhaps no other thread takes. A thread that has left
    /// something asks, and then takes it ([`Link::receive`]); if it finds another thread at it, that thread asks when it has received.
    #[inline]
    pub fn has_unclaimed(&self) -> bool {
        !self.is_dead()
            && (self.rx_lines().has_unclaimed_records()
                || self.has_executed()
                || self.has_room_for_disowned())
    }

    /// What the peer has left so far.
    pub fn arrived(&self) -> ArrivalMark {
        let published = self.rx_lines().unread().unwrap_or(0);
        // By a link to itself a process learns of the end of what it has left there.
        let executed = if self.is_to_itself() { published } else { self.executed_by_peer().0 };
        ArrivalMark { published, executed }
    }

    /// Takes what had `arrived`, unless other threads have taken it. False: another thread has some of it in its hands.
    #[must_use]
    pub fn receive_arrived(&self, arrived: ArrivalMark, to: &mut dyn Receive) -> bool {
        if !self.answered.load(Ordering::Acquire) || self.is_dead() {
            return true;
        }
        match self.rx.try_lock() {
            Some(mut rx) => {
                let limit = TurnLimit { records: usize::MAX, position: arrived.published };
                self.receive_with(&mut rx, limit, to);
                true
            }
            None => self.is_read(arrived.published) && !self.has_executed_before(arrived.executed),
        }
    }

    /// As [`Link::receive`], for what a peer has left that is gone: all of it.
    pub fn receive_last(&self, to: &mut dyn Receive) {
        let limit = TurnLimit { records: RING / RingWords::GRAIN, position: u64::MAX };
        self.receive_with(&mut self.rx.lock(), limit, to);
    }

    fn receive_with(&self, rx: &mut RingReceiver, limit: TurnLimit, to: &mut dyn Receive) -> bool {
        let mut any = false;
        if self.receive_all(rx, limit, to, &mut any) == Err(Broken) {
            self.broken();
        }
        any
    }

    fn receive_all(
        &self,
        rx: &mut RingReceiver,
        limit: TurnLimit,
        to: &mut dyn Receive,
        any: &mut bool,
    ) -> Result<(), Broken> {
        let lines = self.rx_lines();
        // What is disowned and waits for room isn't tried again before there is some.
        if rx.disowned.is_waiting() {
            self.tell_disowned(rx);
        }
        let mut taken = 0;
        loop {
            let goes_on = taken < limit.records && rx.consumer.head() < limit.position;
            let ahead = if goes_on { rx.consumer.peek(lines)? } else { None };
            // The peer may have published a record in answer to a SEND that it had executed: the SEND's QP is notified of that first.
            *any |= self.receive_positions(rx, to)?;
            let Some(ahead) = ahead else { return Ok(()) };
            let single = if to.wants_single() { self.receive_single(rx, ahead.0, to)? } else { Single::Left };
            if single == Single::Left {
                // Nothing of a run is given back before it has been dealt with.
                let run = self.receive_run(rx, ahead, limit.records - taken, to)?;
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

    #[cold]
    fn tell_disowned(&self, rx: &mut RingReceiver) {
        if self.has_room_for_disowned() {
            self.acknowledge(&mut rx.disowned, rx.consumer.head());
            self.ring_bell();
        }
    }

    /// Notifies `to` of all SENDs that the peer has executed. Returns whether there was any.
    #[inline]
    fn receive_positions(&self, rx: &mut RingReceiver, to: &mut dyn Receive) -> Result<bool, Broken> {
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

    /// As [`Link::receive_positions`], with the peer's words.
    #[inline(never)]
    fn receive_many_positions(
        &self,
        rx: &mut RingReceiver,
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

    /// Reads those of all published records that disown SENDs, and no other record.
    #[cold]
    fn look_ahead(&self, rx: &mut RingReceiver) -> Result<(), Broken> {
        rx.consumer.look(self.rx_lines())?;
        let mut position = rx.consumer.head();
        while let Some((at, left)) = rx.consumer.ahead_of(position) {
            let at = self.from_peer.bytes_at + at;
            let before = position;
            position = match record::read_compact(&self.memory, at, left, before)? {
                Some(packet) => packet.end,
                None => {
                    let (record, len) = record::read(&self.memory, at, left)?;
                    if let RingRecord::Disowned(disowned) = record {
                        self.receive_disowned(&mut rx.looked_ahead, before, disowned);
                    }
                    before + len as u64
                }
            };
        }
        Ok(())
    }

    /// The record that begins at `position` disowns SENDs. It is read twice if [`Link::look_ahead`] has read it before, and counts once.
    fn receive_disowned(&self, looked_ahead: &mut u64, position: u64, disowned: (u64, u64)) {
        if position >= *looked_ahead {
            *looked_ahead = position + 1;
            self.peer_disowns(disowned);
        }
    }

    /// Hands over the record at `at` of the ring if it is the only one, and a packet that may be acknowledged by position.
    #[inline]
    fn receive_single(
        &self,
        rx: &mut RingReceiver,
        at: usize,
        to: &mut dyn Receive,
    ) -> Result<Single, Broken> {
        let (lines, consumer) = (self.rx_lines(), &rx.consumer);
        // SENDs before it that were disowned have to be reported first.
        if !consumer.has_one_grain() || rx.disowned.is_waiting() {
            return Ok(Single::Left);
        }
        let begin = consumer.head();
        let copied = |words| record::read_copy(words, begin + RingWords::GRAIN as u64);
        let packet = match consumer.copy_of_only(lines).and_then(copied) {
            Some(packet) => Some(packet),
            None => {
                record::read_compact(&self.memory, self.from_peer.bytes_at + at, RingWords::GRAIN, begin)?
            }
        };
        Ok(match packet {
            Some(packet) if packet.headers.is_by_position() => {
                to.single(SinglePacket { link: self, packet: &packet, rx })
            }
            _ => Single::Left,
        })
    }

    /// Hands over packets in a row for one QP: at most `limit` records of the `published` bytes at `at` of the ring.
    #[inline(never)]
    fn receive_run(
        &self,
        rx: &mut RingReceiver,
        (at, published): (usize, usize),
        limit: usize,
        to: &mut dyn Receive,
    ) -> Result<RecordBatch, Broken> {
        let base = self.from_peer.bytes_at + at;
        let (mut records, mut len) = (0, 0);
        let begin = rx.consumer.head();
        let RingReceiver { run, compact, disowned, looked_ahead, .. } = rx;
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
                RingRecord::Padding => {}
                RingRecord::Disowned(disowned) => self.receive_disowned(looked_ahead, before, disowned),
                RingRecord::Whole(packet) => {
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
        Ok(RecordBatch { records, len, rings })
    }

    /// A poller may have something to do here: it takes no lock to find out.
    #[inline]
    pub(crate) fn may_have_work(&self) -> bool {
        self.rx_lines().has_records() || self.has_executed() || self.waits_for_room()
    }

    /// Whether [`Link::receive`] has something to do.
    #[inline]
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
pub(super) mod tests;
