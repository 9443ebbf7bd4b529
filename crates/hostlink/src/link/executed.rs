//! Acknowledgement by position: a SEND that waits for it is acknowledged, without a packet, as soon as the peer's word *executed* has
//! passed the SEND's record.
//!
//! The peer disowns each such SEND that it hasn't executed, by a record that it publishes before the word passes the
//! SEND. The sender acts on the word only when it has read as many of these records as the peer has published. A disowned
//! SEND is acknowledged, refused or repeated by packets, like everything else.

use super::{Link, RING, SendOutcome};
use crate::compact::CompactHeaders;
use crate::payload::RingBytes;
use crate::protocol::{Broken, Producer, RingWords};
use crate::record::{self, CompactRecord};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Writes the ring to the peer, and knows which SENDs wait to be acknowledged by position.
#[derive(Debug)]
pub(super) struct RingSender {
    pub(super) producer: Producer,
    awaited: VecDeque<UnackedSend>,
    /// The peer's position up to which SENDs were acknowledged.
    executed: u64,
    /// Records read that disown SENDs.
    disowned: u64,
}

/// More SENDs than this don't wait at once: those beyond are acknowledged by packets.
const MOST_AWAITED: usize = 16 * 1024;
/// QPs that get acknowledgements in one step, at most.
const MOST_AT_ONCE: usize = 64;
/// So many records that disown one packet each may wait for room; those beyond share one.
const MOST_WAITING: usize = 1024;

/// A SEND that waits to be acknowledged by position.
#[derive(Clone, Copy, Debug)]
struct UnackedSend {
    /// Where its record ends in the ring.
    end: u64,
    packet: SentPacket,
}

/// A packet that has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SentPacket {
    /// The QP of this process that has sent it.
    pub qpn: u32,
    /// Its number, unlike that of any other connection of the process's life.
    pub connection: u64,
    /// Its PSN.
    pub psn: u32,
}

/// The last packet of each QP that has got acknowledgements.
pub(super) type Acknowledged = SmallVec<[SentPacket; 4]>;

impl RingSender {
    pub(super) fn new(producer: Producer) -> Self {
        Self { producer, awaited: VecDeque::new(), executed: 0, disowned: 0 }
    }

    /// No SEND waits to be acknowledged by position.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Takes out the only SEND that waits, if the peer has executed it according to its words.
    #[inline]
    fn take_only(&mut self, executed: u64, disowned: u64) -> Option<SentPacket> {
        let &UnackedSend { end, packet } = self.awaited.front()?;
        let only = self.awaited.len() == 1 && end == executed && disowned <= self.disowned;
        only.then(|| {
            self.awaited.clear();
            self.executed = end;
            packet
        })
    }

    /// Takes out the SENDs that the peer has executed, according to its words `executed` and `disowned`, and adds the last one of each
    /// QP to `last`. False, and nothing is taken out, if records that disown have to be read first.
    fn take(&mut self, executed: u64, disowned: u64, last: &mut Acknowledged) -> Result<bool, Broken> {
        let possible = (self.executed..=self.producer.tail()).contains(&executed);
        if !possible || !executed.is_multiple_of(RingWords::GRAIN as u64) {
            return Err(Broken);
        }
        if disowned > self.disowned {
            return Ok(false);
        }
        while let Some(UnackedSend { packet, end }) =
            self.awaited.front().copied().filter(|awaited| awaited.end <= executed)
        {
            if last.len() == MOST_AT_ONCE {
                // The rest follows at the next look.
                return Ok(true);
            }
            self.awaited.pop_front();
            self.executed = end;
            let of_same =
                |other: &&mut SentPacket| (other.qpn, other.connection) == (packet.qpn, packet.connection);
            match last.iter_mut().find(of_same) {
                Some(other) => *other = packet,
                None => last.push(packet),
            }
        }
        self.executed = executed;
        Ok(true)
    }
}

/// SENDs of the peer that wait to be acknowledged by position and weren't executed.
#[derive(Debug, Default)]
pub(super) struct Disowned {
    /// Records published that disown SENDs.
    published: u64,
    /// SENDs for whose records there was no room yet, by first and last position.
    waiting: Vec<(u64, u64)>,
}

impl Disowned {
    /// The SEND whose record ends at `end` wasn't executed.
    fn push(&mut self, end: u64) {
        let is_full = self.waiting.len() >= MOST_WAITING;
        match self.waiting.last_mut() {
            // While a record waits for room, no SEND is acknowledged by position.
            Some((_, last)) if is_full => *last = end,
            _ => self.waiting.push((end, end)),
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// Packets in a row for one QP, of its connection.
#[derive(Debug)]
pub struct CompactRun<'a> {
    pub(super) link: &'a Link,
    pub(super) packets: &'a [CompactRecord],
    pub(super) disowned: &'a mut Disowned,
    /// Packets, from the first on, that were executed or left to the general rules.
    pub(super) settled: usize,
    /// One of these was executed, and its acknowledgement by position isn't written.
    pub(super) is_awaited: bool,
}

impl<'a> CompactRun<'a> {
    /// The link that they have come by.
    #[must_use]
    #[inline]
    pub fn link(&self) -> &'a Link {
        self.link
    }

    /// The QP that they are for.
    #[must_use]
    #[inline]
    pub fn dest_qp(&self) -> u32 {
        self.packets.first().map_or(0, |first| first.headers.dest_qp)
    }

    /// The first packet that isn't settled.
    #[must_use]
    #[inline]
    pub fn next(&self) -> Option<&'a CompactRecord> {
        self.packets.get(self.settled)
    }

    /// The packets that are settled.
    #[must_use]
    #[inline]
    pub fn settled(&self) -> &'a [CompactRecord] {
        &self.packets[..self.settled]
    }

    /// `packet` waits to be acknowledged by position, and is acknowledged at once if it is executed: nothing that is disowned before it
    /// waits for room.
    #[must_use]
    #[inline]
    pub fn is_by_position(&self, packet: &CompactRecord) -> bool {
        packet.headers.is_by_position() && !self.disowned.is_waiting()
    }

    /// The next packet was `executed` as a plain SEND that is acknowledged by position, or else was left to the general rules. To be
    /// called for each in turn: those for which it isn't weren't executed.
    #[inline]
    pub fn settle(&mut self, executed: bool) {
        let Some(packet) = self.next() else { return };
        if packet.headers.is_by_position() {
            if executed {
                self.is_awaited = true;
            } else {
                self.disown(packet.end);
            }
        }
        self.settled += 1;
    }

    /// Disowns the packet that ends at `end`. Those before it are acknowledged first: there may be no room for the record that disowns.
    fn disown(&mut self, end: u64) {
        self.acknowledge();
        let others_wait = self.disowned.is_waiting();
        self.disowned.push(end);
        if !others_wait {
            self.link.acknowledge(self.disowned, end);
        }
    }

    /// Acknowledges what was executed of the packets that are settled: to be called before its completions are visible.
    #[inline]
    pub fn acknowledge(&mut self) {
        if std::mem::take(&mut self.is_awaited)
            && let Some(last) = self.settled().last()
        {
            self.link.acknowledge(self.disowned, last.end);
        }
    }
}

impl Drop for CompactRun<'_> {
    fn drop(&mut self) {
        self.acknowledge();
        while self.settled < self.packets.len() {
            self.settle(false);
        }
    }
}

impl Link {
    /// One more SEND may wait to be acknowledged by position ([`Link::send_plain`]).
    #[inline]
    pub fn may_await(&self) -> bool {
        !self.many_awaited.load(Ordering::Relaxed)
    }

    /// Sends a SEND of a connection, from the QP with the number `qpn`; `fill` copies the payload into the ring. If the headers ask for
    /// acknowledgement by position, [`Receive::executed`](super::Receive::executed) is called for it.
    #[inline]
    pub fn send_plain<E>(
        &self,
        headers: &CompactHeaders,
        (qpn, connection): (u32, u64),
        payload: usize,
        fill: impl FnOnce(&RingBytes<'_>) -> Result<(), E>,
    ) -> SendOutcome<E> {
        let packet = SentPacket { qpn, connection, psn: headers.psn() };
        self.publish_compact(headers, payload, fill, |sender, end| {
            if headers.is_by_position() {
                // Most likely the peer has read all before this, and looks at the position.
                if sender.awaited.is_empty() && payload <= record::MAX_COPIED {
                    let at = (end - RingWords::GRAIN as u64) as usize % RING;
                    self.tx_lines().copy_last(end, record::copy(&self.memory, self.to_peer.bytes_at + at));
                }
                sender.awaited.push_back(UnackedSend { end, packet });
                if sender.awaited.len() >= MOST_AWAITED {
                    self.many_awaited.store(true, Ordering::Relaxed);
                }
            }
        })
    }

    /// The peer has executed SENDs whose QPs haven't been notified.
    #[inline]
    pub fn has_executed(&self) -> bool {
        self.tx_lines().executed() != self.executed.load(Ordering::Relaxed)
    }

    /// The peer has processed a SEND, of any QP, that waits to be acknowledged by position and ends at `position` or before, and can't
    /// acknowledge it for want of room.
    pub(super) fn is_kept_from_telling(&self, position: u64) -> bool {
        let first = self.tx.lock().awaited.front().copied();
        first.is_some_and(|first| first.end <= position && self.tx_lines().is_consumed(first.end))
    }

    /// The peer has executed SENDs whose QPs haven't been notified, at `position` or before.
    pub(super) fn has_executed_before(&self, position: u64) -> bool {
        self.executed.load(Ordering::Relaxed) < position && self.has_executed()
    }

    /// The position up to which the peer has executed, and how many records with which it disowns SENDs it has published by then.
    #[inline]
    pub(super) fn executed_by_peer(&self) -> (u64, u64) {
        let lines = self.tx_lines();
        (lines.executed(), lines.disowned())
    }

    /// Adds the SENDs that the peer has `executed` since the last call to `last`, and returns the position up to which that is; `None`
    /// if records that disown have to be read first. The caller has the ring from the peer locked, notifies the QPs, and then calls
    /// [`Link::note_executed`].
    ///
    /// # Errors
    /// The peer has written an impossible position.
    #[inline]
    pub(super) fn take_executed(
        &self,
        (executed, disowned): (u64, u64),
        last: &mut Acknowledged,
    ) -> Result<Option<u64>, Broken> {
        let mut sender = self.tx.lock();
        let believed = sender.take(executed, disowned, last)?;
        self.many_awaited.store(sender.awaited.len() >= MOST_AWAITED, Ordering::Relaxed);
        Ok(believed.then_some(sender.executed))
    }

    /// As [`Link::take_executed`] if exactly one SEND waits and the peer has executed it; otherwise `None`, and nothing changes.
    #[inline]
    pub(super) fn take_only_executed(&self, (executed, disowned): (u64, u64)) -> Option<SentPacket> {
        let only = self.tx.lock().take_only(executed, disowned);
        if only.is_some() {
            self.many_awaited.store(false, Ordering::Relaxed);
        }
        only
    }

    /// QPs have been notified of everything that the peer has executed up to `position`.
    pub(super) fn note_executed(&self, position: u64) {
        self.executed.store(position, Ordering::Relaxed);
    }

    /// The peer disowns the SENDs whose records end from `first` to `last` of the ring to it.
    pub(super) fn peer_disowns(&self, (first, last): (u64, u64)) {
        let mut sender = self.tx.lock();
        sender.disowned += 1;
        let from = sender.awaited.partition_point(|awaited| awaited.end < first);
        let to = sender.awaited.partition_point(|awaited| awaited.end <= last).max(from);
        sender.awaited.drain(from..to);
    }

    /// Acknowledges to the peer all its SENDs up to `position` that wait for acknowledgement by position, except the disowned ones.
    /// Nothing is acknowledged until there is room for the records that disown: [`Link::has_records`] is true when it is time to try
    /// again.
    pub(super) fn acknowledge(&self, disowned: &mut Disowned, position: u64) {
        if disowned.is_waiting() && !self.publish_disowned(disowned) {
            self.has_disowned.store(true, Ordering::Relaxed);
            // A bell comes when there is room, unless there is some by now.
            let has_room = {
                let mut sender = self.tx.lock();
                sender.producer.wait(self.tx_lines());
                sender.producer.has_room(self.tx_lines()) != Ok(false)
            };
            if !has_room || !self.publish_disowned(disowned) {
                return;
            }
        }
        self.has_disowned.store(false, Ordering::Relaxed);
        self.rx_lines().acknowledge(position, disowned.published);
    }

    /// False when there isn't room for all.
    fn publish_disowned(&self, disowned: &mut Disowned) -> bool {
        let Disowned { published, waiting } = disowned;
        let fits = |&(first, last): &(u64, u64)| {
            let write = |at| {
                record::write_disowned(&self.memory, at, (first, last));
                Ok::<(), Broken>(())
            };
            self.publish(record::DISOWNED, write) != SendOutcome::Full
        };
        let done = waiting.iter().take_while(|range| fits(range)).count();
        waiting.drain(..done);
        *published += done as u64;
        waiting.is_empty()
    }

    /// A record that disowns waits for room, and there is some.
    pub(super) fn has_room_for_disowned(&self) -> bool {
        self.has_disowned.load(Ordering::Relaxed)
            && self.tx.lock().producer.has_room(self.tx_lines()) != Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::super::receive::tests::{RingEvents, link, try_send};
    use super::*;
    use proptest::prelude::*;

    const GRAIN: u64 = RingWords::GRAIN as u64;

    /// A sender that has published `count` records of a grain each: every QP of `qpns` in turn.
    fn sender(count: u64, qpns: &[u32]) -> RingSender {
        let memory = ferroce_access::SharedMemory::create(4096, false).unwrap();
        let lines: &RingWords = memory.words(0);
        let mut sender = RingSender::new(Producer::new(super::super::RING));
        for (psn, &qpn) in (0..count as u32).zip(qpns.iter().cycle()) {
            let place = sender.producer.reserve(lines, RingWords::GRAIN).unwrap().unwrap();
            let packet = SentPacket { qpn, connection: u64::from(qpn), psn };
            sender.awaited.push_back(UnackedSend { end: place.end(), packet });
            sender.producer.publish(lines, place);
        }
        sender
    }

    /// What [`RingSender::take`] takes out, if it acts on the words.
    fn taken(sender: &mut RingSender, executed: u64, disowned: u64) -> Result<Option<Acknowledged>, Broken> {
        let mut last = Acknowledged::new();
        let believed = sender.take(executed, disowned, &mut last)?;
        assert!(believed || last.is_empty());
        Ok(believed.then_some(last))
    }

    #[test]
    fn the_last_packet_of_each_qp_is_acknowledged() {
        let mut sender = sender(7, &[1, 2, 3]);
        let last = taken(&mut sender, 5 * GRAIN, 0).unwrap().unwrap();
        let mut last: Vec<_> = last.iter().map(|packet| (packet.qpn, packet.psn)).collect();
        last.sort_unstable();
        assert_eq!(last, [(1, 3), (2, 4), (3, 2)]);
        assert_eq!(taken(&mut sender, 7 * GRAIN, 0).unwrap().unwrap().len(), 2);
        assert_eq!(taken(&mut sender, 7 * GRAIN, 0).unwrap().unwrap().len(), 0);
    }

    /// A queue pair that was reset has another connection, of which no packet has the number of one before.
    #[test]
    fn each_connection_of_a_queue_pair_is_acknowledged_by_itself() {
        let mut sender = sender(4, &[1]);
        sender.awaited.iter_mut().skip(2).for_each(|awaited| awaited.packet.connection = 2);
        let last = taken(&mut sender, 4 * GRAIN, 0).unwrap().unwrap();
        let last: Vec<_> = last.iter().map(|packet| (packet.connection, packet.psn)).collect();
        assert_eq!(last, [(1, 1), (2, 3)]);
    }

    #[test]
    fn no_more_sends_wait_than_may() {
        let [link, peer] = link();
        let mut sent = 0;
        while link.may_await() {
            assert!(sent < MOST_AWAITED);
            match try_send(&link, 3, 2 * sent as u32, true) {
                Some(_) => sent += 1,
                None => peer.receive_last(&mut RingEvents::default()),
            }
        }
        assert_eq!(sent, MOST_AWAITED);
        peer.receive_last(&mut RingEvents::default());
        link.receive_last(&mut RingEvents::default());
        assert!(link.may_await());
    }

    #[test]
    fn the_only_one_that_waits_is_taken_out_alone() {
        let mut one = sender(1, &[1]);
        for (executed, disowned) in [(0, 0), (2 * GRAIN, 0), (GRAIN, 1)] {
            assert_eq!(one.take_only(executed, disowned), None, "{executed} {disowned}");
        }
        assert_eq!(one.take_only(GRAIN, 0), Some(SentPacket { qpn: 1, connection: 1, psn: 0 }));
        assert_eq!((one.awaited.len(), one.executed, one.take_only(GRAIN, 0)), (0, GRAIN, None));
        let mut two = sender(2, &[1]);
        assert_eq!((two.take_only(GRAIN, 0), two.take_only(2 * GRAIN, 0)), (None, None));
        assert_eq!(taken(&mut two, 2 * GRAIN, 0).unwrap().unwrap().len(), 1);
    }

    #[test]
    fn nothing_is_believed_before_what_is_disowned_is_known() {
        let mut sender = sender(3, &[1]);
        assert!(taken(&mut sender, 3 * GRAIN, 1).unwrap().is_none());
        sender.disowned += 1;
        // More may be known than the peer has counted for this position.
        assert_eq!(taken(&mut sender, GRAIN, 0).unwrap().unwrap()[0].psn, 0);
        assert_eq!(taken(&mut sender, 3 * GRAIN, 1).unwrap().unwrap()[0].psn, 2);
    }

    #[test]
    fn positions_that_cannot_be_are_broken() {
        for position in [4 * GRAIN, GRAIN + 1, 2 * GRAIN + 1, u64::MAX, u64::MAX - 63, GRAIN] {
            let mut sender = sender(3, &[1]);
            taken(&mut sender, 2 * GRAIN, 0).unwrap();
            assert_eq!(taken(&mut sender, position, 0), Err(Broken), "{position}");
        }
    }

    proptest! {
        #[test]
        fn what_waits_for_room_covers_what_was_disowned_within_bounds(
            ends in prop::collection::btree_set(1..100_000u64, 0..3000),
        ) {
            let mut disowned = Disowned::default();
            ends.iter().for_each(|&end| disowned.push(end));
            let waiting = &disowned.waiting;
            prop_assert!(waiting.len() <= MOST_WAITING && waiting.is_sorted());
            let covers = |end: u64| waiting.iter().any(|&(first, last)| (first..=last).contains(&end));
            prop_assert!(ends.iter().all(|&end| covers(end)));
            if ends.len() <= MOST_WAITING {
                prop_assert!(waiting.iter().map(|&(end, _)| end).eq(ends.iter().copied()));
            }
        }
    }
}
