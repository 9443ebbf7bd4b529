//! Acknowledgement by results: a SEND that waits for the result of its cell is acknowledged without a packet when the peer writes that it
//! was executed.
//!
//! The peer writes the result of each such cell before it gives the cell back. A SEND that wasn't executed as a plain one is *left* to the
//! general rules: it is acknowledged, refused or repeated by packets, like everything else.

use super::{Link, Receive};
use crate::cells::CELLS;
use crate::protocol::{self, Broken, CellResult, NO_CELL};
use std::collections::VecDeque;

/// A SEND that waits for its result.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnackedSend {
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

/// The position of the first of `unacked`.
#[inline]
fn first_of(unacked: &VecDeque<UnackedSend>) -> u64 {
    unacked.front().map_or(NO_CELL, |first| first.position)
}

/// A QP is being notified of a result. The end of this shows that it has been, also if that has panicked.
struct Notifying<'a>(&'a Link);

impl Drop for Notifying<'_> {
    fn drop(&mut self) {
        self.0.awaited.end_notifying();
    }
}

impl Link {
    /// The cell at `position`, the next, waits for its result from now on. The caller has `tx` locked. False, and it doesn't: the word for
    /// its result is that of another cell which waits.
    #[inline]
    pub(super) fn await_result(&self, position: u64, packet: SentPacket) -> bool {
        let mut unacked = self.unacked.lock();
        match unacked.front() {
            None => self.awaited.set_first(position),
            Some(first) if position - first.position >= CELLS as u64 => return false,
            Some(_) => {}
        }
        unacked.push_back(UnackedSend { position, packet });
        true
    }

    /// The peer has written results that aren't known here.
    #[inline]
    pub(super) fn has_results(&self) -> bool {
        let first = self.awaited.first();
        first != NO_CELL && self.has_result(first)
    }

    #[inline]
    fn has_result(&self, position: u64) -> bool {
        protocol::result(self.to_peer.place.result(position), position) != Ok(None)
    }

    /// As [`Link::has_results`], or a QP is being notified, of a cell before `position`.
    pub(super) fn has_results_before(&self, position: u64) -> bool {
        self.awaited.may_come_before(position, |first| self.has_result(first))
    }

    /// Notifies `to` of the SENDs that the peer has executed by now. The caller has the ring from the peer locked. Returns whether there was
    /// any.
    ///
    /// # Errors
    /// The peer has written a result that can't be, or has taken one back.
    #[inline]
    pub(super) fn receive_results(&self, to: &mut impl Receive) -> Result<bool, Broken> {
        let (mut any, mut until) = (false, NO_CELL);
        while self.has_results() && self.awaited.first() < until {
            let notifying = Notifying(self);
            let (last, taken) = self.take_results(&mut until);
            // The QP learns of what was executed before the link breaks.
            if let Some(last) = last {
                to.executed(last);
                any = true;
            }
            drop(notifying);
            taken?;
        }
        Ok(any)
    }

    /// Takes out the SENDs that have a result, of which the first has one, up to the first of another QP than the last that was executed.
    /// Returns that one. Results from the position `until` on are left; the first call sets it to the end of what was sent.
    #[inline]
    pub(super) fn take_results(&self, until: &mut u64) -> (Option<SentPacket>, Result<(), Broken>) {
        // Not `tx`: a page can hold up the thread that has it.
        let mut unacked = self.unacked.lock();
        *until = (*until).min(unacked.back().map_or(0, |last| last.position + 1));
        let begin = first_of(&unacked);
        self.awaited.begin_notifying();
        let (mut last, mut taken) = (None::<SentPacket>, Ok(()));
        while let Some(&UnackedSend { position, packet }) = unacked.front()
            && position < *until
        {
            match protocol::result(self.to_peer.place.result(position), position) {
                Ok(Some(CellResult::Done)) if last.is_some_and(|last| !last.is_of(&packet)) => break,
                Ok(Some(CellResult::Done)) => last = Some(packet),
                Ok(Some(CellResult::Left)) => {}
                Ok(None) if position != begin => break,
                Ok(None) | Err(Broken) => {
                    taken = Err(Broken);
                    break;
                }
            }
            unacked.pop_front();
        }
        self.awaited.set_first(first_of(&unacked));
        (last, taken)
    }
}
