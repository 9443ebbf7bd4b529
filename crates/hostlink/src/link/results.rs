//! Acknowledgement by results: a SEND that waits for the result of its cell is acknowledged without a packet when the peer writes that it
//! was executed.
//!
//! The peer writes the result of each such cell before it gives the cell back. A SEND that wasn't executed as a plain one is *left* to the
//! general rules: it is acknowledged, refused or repeated by packets, like everything else.

use super::{Link, Receive};
use crate::cells::CELLS;
use crate::protocol::{self, Broken, CellResult, Producer};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// In place of a cell's position: there is no such cell.
pub(super) const NO_CELL: u64 = u64::MAX;

/// Writes the ring to the peer, and knows which SENDs wait for a result.
#[derive(Debug)]
pub(super) struct RingSender {
    pub(super) producer: Producer,
    awaited: VecDeque<UnackedSend>,
}

/// A SEND that waits for its result.
#[derive(Clone, Copy, Debug)]
struct UnackedSend {
    /// The position of its cell.
    position: u64,
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

impl SentPacket {
    /// Both are of the same connection.
    #[inline]
    fn is_of(&self, other: &Self) -> bool {
        (self.qpn, self.connection) == (other.qpn, other.connection)
    }
}

impl RingSender {
    pub(super) fn new(producer: Producer) -> Self {
        Self { producer, awaited: VecDeque::new() }
    }

    /// No SEND waits for its result.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.awaited.is_empty()
    }

    /// The next cell may wait for its result: the word for it isn't that of another cell that waits.
    #[inline]
    pub(super) fn may_await(&self) -> bool {
        self.awaited.front().is_none_or(|first| self.producer.tail() - first.position < CELLS as u64)
    }

    /// The position of the oldest cell that waits for its result.
    #[inline]
    fn first(&self) -> u64 {
        self.awaited.front().map_or(NO_CELL, |first| first.position)
    }
}

impl Link {
    /// The next cell waits for its result. The sender is that of `tx`, which is locked.
    #[inline]
    pub(super) fn await_result(&self, sender: &mut RingSender, packet: SentPacket) {
        let position = sender.producer.tail();
        if sender.awaited.is_empty() {
            self.awaited.store(position, Ordering::Relaxed);
        }
        sender.awaited.push_back(UnackedSend { position, packet });
    }

    /// The peer has written results that aren't known here.
    #[inline]
    pub(super) fn has_results(&self) -> bool {
        let first = self.awaited.load(Ordering::Acquire);
        first != NO_CELL && protocol::result(self.to_peer.place.result(first), first) != Ok(None)
    }

    /// As [`Link::has_results`], or a QP is being notified, of a cell before `position`.
    pub(super) fn has_results_before(&self, position: u64) -> bool {
        let first = self.awaited.load(Ordering::Acquire);
        first < position && self.has_results() || self.notifying.load(Ordering::Acquire) < position
    }

    /// Notifies `to` of the SENDs that the peer has executed by now. The caller has the ring from the peer locked. Returns whether there was
    /// any.
    ///
    /// # Errors
    /// The peer has written a result that can't be.
    #[inline]
    pub(super) fn receive_results(&self, to: &mut impl Receive) -> Result<bool, Broken> {
        let (mut any, mut until) = (false, NO_CELL);
        while self.has_results() && self.awaited.load(Ordering::Relaxed) < until {
            let last = self.take_results(&mut until);
            if let Ok(Some(last)) = last {
                to.executed(last);
                any = true;
            }
            self.notifying.store(NO_CELL, Ordering::Release);
            last?;
        }
        Ok(any)
    }

    /// Takes out the SENDs that have a result, up to the first of another QP than the last that was executed. Returns that one. `until`:
    /// NO_CELL, or the position of a cell of which the result isn't asked for; the first call sets it.
    #[inline]
    fn take_results(&self, until: &mut u64) -> Result<Option<SentPacket>, Broken> {
        let mut sender = self.tx.lock();
        *until = (*until).min(sender.producer.tail());
        self.notifying.store(sender.first(), Ordering::Relaxed);
        let mut last: Option<SentPacket> = None;
        while let Some(&UnackedSend { position, packet }) = sender.awaited.front()
            && position < *until
        {
            let result = match protocol::result(self.to_peer.place.result(position), position) {
                Ok(Some(result)) => result,
                Err(Broken) if last.is_none() => return Err(Broken),
                // The QP learns of what was executed before the link breaks.
                Ok(None) | Err(Broken) => break,
            };
            if result == CellResult::Done {
                if last.is_some_and(|last| !last.is_of(&packet)) {
                    break;
                }
                last = Some(packet);
            }
            sender.awaited.pop_front();
        }
        // A reader that finds the new position finds that of `notifying`, or that its QP has been notified.
        self.awaited.store(sender.first(), Ordering::Release);
        Ok(last)
    }
}
