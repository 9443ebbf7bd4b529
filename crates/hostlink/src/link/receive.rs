//! The ring from the peer: reads its cells.

use super::Link;
use super::results::SentPacket;
use crate::cells::{BULK, CELLS};
use crate::payload::{RingBytes, ShmPayload};
use crate::protocol::{self, Broken, CellResult, Consumer};
use crate::record::{self, CompactRecord, ReadRecord, Record, RingRecord};
use ferroce_wire::Headers;
use std::sync::atomic::Ordering;

/// The reader of the ring.
#[derive(Debug)]
pub(super) struct RingReceiver {
    consumer: Consumer,
    /// The cells before this position are known to be published.
    known: u64,
    /// The next record of the run at hand.
    next: ReadRecord,
    limit: TurnLimit,
    /// Cells that have been dealt with in this turn.
    taken: usize,
    /// … and the bytes of their bulk, and of what they offer. The positions of bulk are what the peer has written: it could name the same bytes
    /// in each cell.
    bulk_taken: usize,
    /// The peer may sleep until it learns of a result, or gets an answer.
    rings: bool,
    /// The peer has written what can't be.
    is_broken: bool,
}

/// So many cells are looked at in one go, at most.
const LOOK: u64 = 64;

/// How much a reader takes in one go.
#[derive(Default, Debug)]
struct TurnLimit {
    cells: usize,
    /// The cell at this position is left, and those after it.
    position: u64,
    /// So many bytes of bulk end the turn.
    bulk: usize,
}

/// More bytes of bulk than a ring has room for: a peer that names more has written some of them twice.
const ALL_BULK: usize = BULK + 1;

/// What has come by a link up to a moment ([`Link::arrived`]).
#[derive(Clone, Copy, Debug)]
pub struct ArrivalMark {
    /// Position of the ring from the peer.
    published: u64,
    /// Position of the ring to the peer.
    sent: u64,
}

/// Takes packets out of a ring: those in a row for one QP come together.
pub trait Receive {
    /// Packets for one QP. Returns false if no more are wanted for now.
    fn run(&mut self, run: &mut RecordRun<'_>) -> bool;

    /// The peer has executed everything up to a packet that a QP of this process has sent to it. `answer`: that of this packet, if it is a READ
    /// or an atomic; it is there until this returns.
    fn executed(&mut self, last: SentPacket, answer: Option<ShmPayload<'_>>);
}

/// Packets in a row for one QP. Each is read when the one before it is settled.
#[derive(Debug)]
pub struct RecordRun<'a> {
    link: &'a Link,
    rx: &'a mut RingReceiver,
    dest_qp: u32,
}

impl<'a> RecordRun<'a> {
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
        self.dest_qp
    }

    /// The first packet that isn't settled.
    #[must_use]
    #[inline]
    pub fn next(&self) -> Option<RingRecord<'_>> {
        self.rx.next.get()
    }

    /// As [`RecordRun::next`], if it is a packet of a connection.
    #[must_use]
    #[inline]
    pub fn next_compact(&self) -> Option<&CompactRecord> {
        self.rx.next.compact()
    }

    /// Room for the answer to the first packet that isn't settled, if that comes with the result of its cell. It lies where the payload does.
    #[must_use]
    #[inline]
    pub fn answer(&self) -> Option<RingBytes<'a>> {
        let packet = self.next_compact()?;
        let len = packet.headers.answer_len();
        (len > 0).then(|| RingBytes::new(&self.link.memory, packet.at, len))
    }

    /// The next packet was `executed` as one that the result of its cell acknowledges, its answer included, or else was left to the general
    /// rules. To be called for each in turn, before its completion is visible: those for which it isn't weren't executed.
    #[inline(always)]
    pub fn settle(&mut self, executed: bool) {
        let Some(record) = self.next() else { return };
        let (is_by_result, is_waited_for, offered) = match record {
            RingRecord::Compact(packet) => {
                (packet.headers.is_by_result(), packet.headers.is_waited_for(), packet.offered_len())
            }
            RingRecord::Whole(_) => (false, false, 0),
        };
        let rx = &mut *self.rx;
        rx.rings |= is_waited_for;
        if is_by_result {
            let position = rx.consumer.head();
            let result = if executed { CellResult::Done } else { CellResult::Left };
            protocol::set_result(self.link.from_peer.place.result(position), position, result);
        }
        rx.consumer.advance(rx.next.bulk_end);
        rx.taken += 1;
        rx.bulk_taken += if rx.next.bulk_end.is_some() { rx.next.bulk_len } else { offered };
        rx.next.clear();
        if self.rx.goes_on() && self.dest_qp == self.dest_of_next() {
            self.read();
        }
    }

    #[inline]
    fn dest_of_next(&self) -> u32 {
        record::dest_of(self.link.from_peer.place.cell(self.rx.consumer.head()))
    }

    /// Reads the next cell.
    #[inline]
    fn read(&mut self) {
        let RingReceiver { consumer, next, is_broken, .. } = &mut *self.rx;
        let (memory, ring) = (&self.link.memory, &self.link.from_peer.place);
        // Broken also if the peer has changed the QPN since the look.
        *is_broken |= next.read(memory, ring, consumer.head(), self.dest_qp).is_err();
    }
}

impl Drop for RecordRun<'_> {
    /// Gives the cells of the run back: none before all of it has been dealt with.
    #[inline]
    fn drop(&mut self) {
        while self.next().is_some() {
            self.settle(false);
        }
        // SYNC: pairs with `Link::has_cells` and `Link::is_read` in another thread, and with `protocol::published_end`, which needs it before
        // the producer learns of the room.
        self.link.taken.store(self.rx.consumer.head(), Ordering::Release);
        if self.rx.consumer.release(self.link.rx_lines()) | std::mem::take(&mut self.rx.rings) {
            self.link.ring_bell();
        }
    }
}

impl RingReceiver {
    pub(super) fn new() -> Self {
        Self {
            consumer: Consumer::new(CELLS, BULK),
            known: 0,
            next: ReadRecord::default(),
            limit: TurnLimit::default(),
            taken: 0,
            bulk_taken: 0,
            rings: false,
            is_broken: false,
        }
    }

    /// The next cell is known to be published, and belongs to this turn.
    #[inline]
    fn goes_on(&self) -> bool {
        let TurnLimit { cells, position, bulk } = self.limit;
        self.consumer.head() < self.known.min(position) && self.taken < cells && self.bulk_taken < bulk
    }
}

impl Link {
    /// Takes packets, `limit` at most and no more than a ring holds, and hands them to `to`. The peer gets the room back when `to` has dealt with them.
    /// Returns whether there was any, and `None` if another thread is receiving:
    /// [`Links::next_with_work`](crate::Links::next_with_work) shows whether it is worth the lock.
    #[inline]
    pub fn receive(&self, limit: usize, to: &mut impl Receive) -> Option<bool> {
        if !self.answered.load(Ordering::Acquire) {
            return None;
        }
        let limit = TurnLimit { cells: limit, position: u64::MAX, bulk: BULK };
        self.rx.try_lock().map(|mut rx| self.receive_with(&mut rx, limit, to))
    }

    /// Of a link of the process to itself: whether something was left there that perhaps no other thread takes. A thread that has left
    /// something asks, and then takes it ([`Link::receive`]); if it finds another thread at it, that thread asks when it has received.
    #[inline]
    pub fn has_unclaimed(&self) -> bool {
        protocol::fence_of_own_ring();
        !self.is_dead() && (self.has_cells() || self.has_results())
    }

    /// What the peer has left so far.
    pub fn arrived(&self) -> ArrivalMark {
        ArrivalMark { published: self.unread().unwrap_or(0), sent: self.sent.load(Ordering::Acquire) }
    }

    /// Takes what had `arrived`, unless other threads have taken it. False: another thread has some of it in its hands.
    #[must_use]
    pub fn receive_arrived(&self, arrived: ArrivalMark, to: &mut impl Receive) -> bool {
        if !self.answered.load(Ordering::Acquire) || self.is_dead() {
            return true;
        }
        match self.rx.try_lock() {
            Some(mut rx) => {
                let limit = TurnLimit { cells: usize::MAX, position: arrived.published, bulk: ALL_BULK };
                self.receive_with(&mut rx, limit, to);
                true
            }
            None => self.is_read(arrived.published) && !self.has_results_before(arrived.sent),
        }
    }

    /// As [`Link::receive`], for what a peer has left that is gone: all of it.
    pub fn receive_last(&self, to: &mut impl Receive) {
        let limit = TurnLimit { cells: CELLS, position: u64::MAX, bulk: ALL_BULK };
        self.receive_with(&mut self.rx.lock(), limit, to);
    }

    fn receive_with(&self, rx: &mut RingReceiver, limit: TurnLimit, to: &mut impl Receive) -> bool {
        rx.limit = limit;
        (rx.taken, rx.bulk_taken) = (0, 0);
        let mut any = false;
        if self.receive_all(rx, to, &mut any) == Err(Broken) {
            self.broken();
        }
        any
    }

    fn receive_all(
        &self,
        rx: &mut RingReceiver,
        to: &mut impl Receive,
        any: &mut bool,
    ) -> Result<(), Broken> {
        loop {
            if rx.consumer.head() == rx.known {
                let unknown = rx.known..rx.known + LOOK;
                rx.known = unknown.clone().find(|&at| !self.is_published(at)).unwrap_or(unknown.end);
            }
            // The peer may have published a cell in answer to a SEND that it had executed: the SEND's QP is notified of that first.
            *any |= self.receive_results(to)?;
            if !rx.goes_on() {
                return Ok(());
            }
            let mut run = RecordRun { link: self, rx: &mut *rx, dest_qp: 0 };
            run.dest_qp = run.dest_of_next();
            run.read();
            if run.rx.is_broken {
                return Err(Broken);
            }
            *any = true;
            let goes_on = to.run(&mut run);
            drop(run);
            if rx.is_broken {
                return Err(Broken);
            }
            if !goes_on {
                return Ok(());
            }
        }
    }

    #[inline]
    fn is_published(&self, position: u64) -> bool {
        protocol::is_published(&self.from_peer.place.cell(position)[0], position)
    }

    /// The next cell is published.
    #[inline]
    fn has_cells(&self) -> bool {
        self.is_published(self.taken.load(Ordering::Acquire))
    }

    /// The end of what the peer has published, unless all of it has been dealt with.
    pub fn unread(&self) -> Option<u64> {
        let end = protocol::published_end(CELLS, &self.taken, |at| &self.from_peer.place.cell(at)[0]);
        Some(end).filter(|&end| !self.is_read(end))
    }

    /// Everything that the peer has published up to `position` has been dealt with.
    pub fn is_read(&self, position: u64) -> bool {
        self.taken.load(Ordering::Acquire) >= position
    }

    /// A poller may have something to do here: it takes no lock to find out.
    #[inline]
    pub(crate) fn may_have_work(&self) -> bool {
        self.has_cells() || self.has_results() || self.waits_for_room()
    }

    /// Whether [`Link::receive`] has something to do.
    #[inline]
    pub fn has_records(&self) -> bool {
        !self.is_dead() && self.answered.load(Ordering::Acquire) && (self.has_cells() || self.has_results())
    }

    /// The payload of a packet that has come by this link, if it isn't [offered](Link::offered).
    #[inline]
    pub fn payload(&self, packet: &CompactRecord) -> ShmPayload<'_> {
        let operands = packet.headers.operands_len();
        debug_assert!(!packet.headers.is_offered());
        ShmPayload::new(&self.memory, packet.at + operands, packet.len - operands)
    }

    /// As [`Link::payload`], of a packet with addresses.
    #[inline]
    pub fn payload_of_whole(&self, packet: &Record) -> ShmPayload<'_> {
        let (at, len) = packet.payload;
        ShmPayload::new(&self.memory, at, len)
    }

    /// What an atomic swaps in or adds, and what it compares with.
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
