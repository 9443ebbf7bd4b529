//! Acknowledgement by results: a packet that waits for the result of its cell is acknowledged without a packet when the peer writes that it
//! was executed. The answer to a READ or an atomic is in the cell or its bulk by then.
//!
//! The peer writes the result of each such cell before it gives the cell back. A packet that wasn't executed the short way is *left* to the
//! general rules: it is acknowledged, answered, refused or repeated by packets, like everything else.

use super::{Link, Receive};
use crate::payload::ShmPayload;
use crate::protocol::{self, Broken, CellResult, NO_CELL};
use std::collections::VecDeque;

/// A packet that waits for its result.
#[derive(Clone, Copy, Debug)]
pub(super) struct AwaitedPacket {
    /// The position of its cell.
    position: u64,
    packet: SentPacket,
    answer: AnswerPlace,
}

/// Where the answer to a READ or an atomic lies in the link's memory. A packet without an answer has one of 0 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AnswerPlace {
    pub(super) at: usize,
    pub(super) len: usize,
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
fn first_of(unacked: &VecDeque<AwaitedPacket>) -> u64 {
    unacked.front().map_or(NO_CELL, |first| first.position)
}

/// A QP is being notified of a result. The end of this shows that it has been, also if that has panicked.
struct Notifying<'a>(&'a Link);

impl Drop for Notifying<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.awaited.end_notifying();
    }
}

impl Link {
    /// The cell at `position`, the next, waits for its result from now on. The caller has `tx` locked, and has found room: the word of the
    /// result isn't that of another cell which waits.
    #[inline]
    pub(super) fn await_result(&self, position: u64, packet: SentPacket, answer: AnswerPlace) {
        let mut unacked = self.unacked.lock();
        if unacked.is_empty() {
            self.awaited.set_first(position);
        }
        unacked.push_back(AwaitedPacket { position, packet, answer });
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

    /// Notifies `to` of the packets that the peer has executed by now. The caller has the ring from the peer locked. Returns whether there was
    /// any. That frees room: the caller looks for queue pairs that wait for it ([`Link::has_room_for_blocked`]).
    ///
    /// # Errors
    /// The peer has written a result that can't be, or has taken one back.
    #[inline]
    pub(super) fn receive_results(&self, to: &mut impl Receive) -> Result<bool, Broken> {
        let (mut any, mut read, mut until) = (false, false, NO_CELL);
        while self.has_results() && self.awaited.first() < until {
            let notifying = Notifying(self);
            let (last, taken) = self.take_results(&mut until);
            // The QP learns of what was executed before the link breaks.
            if let Some((packet, AnswerPlace { at, len })) = last {
                to.executed(packet, (len > 0).then(|| ShmPayload::new(&self.memory, at, len)));
                any = true;
            }
            // An answer's room may be used again from now on.
            drop(notifying);
            taken?;
            read = true;
        }
        if read {
            self.awaited.have_freed_room();
        }
        Ok(any)
    }

    /// Takes out the packets that have a result, of which the first has one, up to the first of another QP than the last that was executed; one
    /// with an answer comes alone. Returns the last that was executed. Results from the position `until` on are left; the first call sets it to
    /// the end of what was sent.
    #[inline]
    pub(super) fn take_results(
        &self,
        until: &mut u64,
    ) -> (Option<(SentPacket, AnswerPlace)>, Result<(), Broken>) {
        // Not `tx`: a page can hold up the thread that has it.
        let mut unacked = self.unacked.lock();
        *until = (*until).min(unacked.back().map_or(0, |last| last.position + 1));
        let begin = first_of(&unacked);
        self.awaited.begin_notifying();
        let (mut last, mut taken) = (None::<(SentPacket, AnswerPlace)>, Ok(()));
        while let Some(&AwaitedPacket { position, packet, answer }) = unacked.front()
            && position < *until
        {
            let follows = |(last, before): (SentPacket, AnswerPlace)| {
                last.is_of(&packet) && before.len + answer.len == 0
            };
            match protocol::result(self.to_peer.place.result(position), position) {
                Ok(Some(CellResult::Done)) if last.is_some_and(|last| !follows(last)) => break,
                Ok(Some(CellResult::Done)) => {
                    if answer.len > 0 {
                        self.awaited.begin_reading(position);
                    }
                    last = Some((packet, answer));
                }
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
