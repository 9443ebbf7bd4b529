//! Acknowledgement by position: a SEND that waits for it is acknowledged as soon as the peer's word for what it has executed has
//! passed the SEND's record, without a packet.
//!
//! The peer disowns each such SEND that it hasn't executed, by a record that it publishes before the word passes the
//! SEND. The sender believes the word when it has read as many of these records as the peer has published. What is
//! disowned is acknowledged, refused or repeated by packets, like everything else.

use super::{Link, Sent};
use crate::compact::CompactHeaders;
use crate::payload::RingBytes;
use crate::protocol::{Broken, Lines, Producer};
use crate::record::{self, CompactRecord};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Writes the ring to the peer, and knows which SENDs wait to be acknowledged by position.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) producer: Producer,
    awaited: VecDeque<Awaited>,
    /// What was believed last of what the peer has executed.
    executed: u64,
    /// Records read that disown something.
    disowned: u64,
}

/// A SEND that waits to be acknowledged by position.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    /// Where its record ends in the ring.
    end: u64,
    /// The QP that sent it, and its PSN.
    packet: SentPacket,
}

/// The number of a QP of this process, and the PSN of a packet that it has sent.
pub type SentPacket = (u32, u32);

/// The last packet of each QP that has got acknowledgements.
pub(super) type Acknowledged = SmallVec<[SentPacket; 4]>;

impl Sender {
    pub(super) fn new(producer: Producer) -> Self {
        Self { producer, awaited: VecDeque::new(), executed: 0, disowned: 0 }
    }

    /// Takes out what the peer has executed, if its words `executed` and `disowned` can be believed now.
    fn take(&mut self, executed: u64, disowned: u64) -> Result<Acknowledged, Broken> {
        let mut last = Acknowledged::new();
        if executed <= self.executed {
            // Another thread was faster.
            return Ok(last);
        }
        if executed > self.producer.tail() || !executed.is_multiple_of(Lines::GRAIN as u64) {
            return Err(Broken);
        }
        if disowned != self.disowned {
            return Ok(last);
        }
        self.executed = executed;
        while let Some(Awaited { packet: (qpn, psn), .. }) =
            self.awaited.front().copied().filter(|awaited| awaited.end <= executed)
        {
            self.awaited.pop_front();
            match last.iter_mut().find(|(other, _)| *other == qpn) {
                Some((_, latest)) => *latest = psn,
                None => last.push((qpn, psn)),
            }
        }
        Ok(last)
    }
}

/// SENDs that the peer waits for and that weren't executed.
#[derive(Debug, Default)]
pub(super) struct Disowned {
    /// Records that say so, so far.
    published: u64,
    /// Where those end for which there was no room yet.
    waiting: Vec<u64>,
}

impl Disowned {
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
    /// Packets, from the first on, of which is known whether they were executed.
    pub(super) settled: usize,
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

    /// The next packet was `executed` as a plain SEND, or else was left to the general rules. To be called for each in turn:
    /// those for which it isn't weren't executed.
    #[inline]
    pub fn settle(&mut self, executed: bool) {
        let Some(packet) = self.next() else { return };
        self.settled += 1;
        if !executed && packet.headers.is_by_position() {
            self.disowned.waiting.push(packet.end);
        }
    }

    /// Acknowledges what was executed of the packets that are settled: to be called before anybody learns of it.
    #[inline]
    pub fn acknowledge(&mut self) {
        let settled = &self.packets[..self.settled];
        if settled.iter().any(|packet| packet.headers.is_by_position())
            && let Some(last) = settled.last()
        {
            self.link.acknowledge(self.disowned, last.end);
        }
    }
}

impl Drop for CompactRun<'_> {
    fn drop(&mut self) {
        if self.settled < self.packets.len() {
            while self.settled < self.packets.len() {
                self.settle(false);
            }
            self.acknowledge();
        }
    }
}

impl Link {
    /// Tells the peer that SENDs may wait to be acknowledged by position.
    pub(in crate::link) fn offer_positions(&self) {
        self.terms(true).positions.store(1, Ordering::Release);
    }

    /// The peer acknowledges by position what is sent with [`Link::send_awaited`].
    #[inline]
    pub fn peer_tells_positions(&self) -> bool {
        self.terms(false).positions.load(Ordering::Relaxed) == 1
    }

    /// As [`Link::send_with`], of a SEND that waits to be acknowledged by position: [`Receive::executed`](super::Receive::executed)
    /// tells of it.
    #[inline]
    pub fn send_awaited<E>(
        &self,
        headers: &CompactHeaders,
        qpn: u32,
        payload: usize,
        fill: impl FnOnce(&RingBytes<'_>) -> Result<(), E>,
    ) -> Sent<E> {
        let packet = (qpn, headers.psn());
        let write = |at: usize| {
            fill(&RingBytes::new(&self.memory, at + headers.payload_offset(), payload))?;
            record::write_compact(&self.memory, at, headers, payload);
            Ok(())
        };
        self.publish_with(record::compact_total(headers, payload), write, |sender, end| {
            sender.awaited.push_back(Awaited { end, packet });
        })
    }

    /// Nothing is acknowledged by position any more of what the QP has sent by this link.
    pub fn forget_awaited(&self, qpn: u32) {
        self.tx.lock().awaited.retain(|awaited| awaited.packet.0 != qpn);
    }

    /// What the peer has executed since this was last asked. `Err`: it has written what can't be.
    #[inline]
    pub(super) fn take_executed(&self) -> Result<Acknowledged, Broken> {
        let lines = self.tx_lines();
        let executed = lines.executed();
        if executed == self.executed.load(Ordering::Relaxed) {
            return Ok(Acknowledged::new());
        }
        let disowned = lines.disowned();
        let mut sender = self.tx.lock();
        let taken = sender.take(executed, disowned);
        self.executed.store(sender.executed, Ordering::Relaxed);
        taken
    }

    /// The peer has executed something of which it wasn't asked yet.
    pub(super) fn has_executed(&self) -> bool {
        self.tx_lines().executed() != self.executed.load(Ordering::Relaxed)
    }

    /// The peer says that what ends at `position` of the ring to it isn't acknowledged by position.
    pub(super) fn peer_disowns(&self, position: u64) {
        let mut sender = self.tx.lock();
        sender.disowned += 1;
        if let Ok(index) = sender.awaited.binary_search_by_key(&position, |awaited| awaited.end) {
            sender.awaited.remove(index);
        }
    }

    /// Tells the peer that everything up to `position` of its ring that waits for that has been executed, but for what is
    /// disowned.
    pub(super) fn acknowledge(&self, disowned: &mut Disowned, position: u64) {
        let Disowned { published, waiting } = disowned;
        if !waiting.is_empty() {
            waiting.retain(|&end| {
                let write = |at| {
                    record::write_disowned(&self.memory, at, end);
                    Ok::<(), Broken>(())
                };
                let full = self.publish(record::DISOWNED, write) == Sent::Full;
                *published += u64::from(!full);
                full
            });
            self.has_disowned.store(!waiting.is_empty(), Ordering::Relaxed);
            if !waiting.is_empty() {
                // The word stays behind until there is room.
                return;
            }
        }
        self.rx_lines().acknowledge(position, *published);
    }
}
