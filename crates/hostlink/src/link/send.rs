//! The ring to the peer: writes its cells, and keeps the QPs that wait for room.

use super::results::{AnswerPlace, SentPacket};
use super::{Link, PATIENCE};
use crate::compact::{CompactHeaders, MemoryOffer};
use crate::directory::QpnPair;
use crate::payload::RingBytes;
use crate::protocol::{Broken, CellSpace, Producer};
use crate::record::{self, Draft};
use ferroce_os::sync::MutexGuard;
use ferroce_types::{Instant, PacketMeta};
use ferroce_wire::Headers;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOutcome<E> {
    /// It is in the ring: the peer has dealt with it when it has dealt with all cells before this position.
    Published(u64),
    /// There is no room now.
    Full,
    /// The peer is gone, or hasn't read for long: the packet is lost, as on a wire.
    Lost,
    /// The payload couldn't be copied.
    Failed(E),
}

impl Link {
    /// Sends a packet; `fill` copies the payload into the ring.
    pub fn send<E>(
        &self,
        headers: &Headers,
        meta: &PacketMeta,
        payload: usize,
        fill: impl FnOnce(&RingBytes<'_>) -> Result<(), E>,
    ) -> SendOutcome<E> {
        let Some(draft) = Draft::packet(headers, meta, payload).filter(|_| !self.is_dead()) else {
            return SendOutcome::Lost;
        };
        self.publish(draft.total(), |space| {
            let bulk @ (at, _) = self.bulk(space);
            fill(&RingBytes::new(&self.memory, draft.payload_at(at), payload))?;
            Ok(draft.write(self.to_peer.place.cell(space.position), &self.memory, bulk))
        })
    }

    /// Sends a packet of a connection: `None` when its headers have no compact form. The peer takes these ([`Link::peer_takes_compact`]).
    #[inline]
    pub fn send_compact<E>(
        &self,
        headers: &Headers,
        payload: usize,
        fill: impl FnOnce(&RingBytes<'_>) -> Result<(), E>,
    ) -> Option<SendOutcome<E>> {
        let compact = CompactHeaders::of(headers)?;
        Some(match CompactHeaders::operands_of(headers) {
            None => self.publish_compact(&compact, payload, fill, |_, _| ()),
            Some((operands, len)) => self.publish_compact(
                &compact,
                len,
                |ring| {
                    ring.put(&operands[..len]);
                    Ok(())
                },
                |_, _| (),
            ),
        })
    }

    /// Sends a packet of a SEND, whose payload of `payload` bytes the peer reads from this process's memory ([`Link::peer_reads_offers`]): `None`
    /// as above.
    pub fn send_offer<E>(
        &self,
        headers: &Headers,
        payload: usize,
        offer: &MemoryOffer,
    ) -> Option<SendOutcome<E>> {
        let compact = CompactHeaders::of(headers)?.offering(offer);
        Some(self.publish_compact(&compact, payload, |_| Ok(()), |_, _| ()))
    }

    /// Sends a packet of a connection, as above, from the QP with the number `qpn`. `fill` copies `payload` bytes into the ring: the operands
    /// of an atomic are a payload here. If the packet [`is_by_result`](CompactHeaders::is_by_result), and the peer executes it so,
    /// [`Receive::executed`](super::Receive::executed) is called for it, or for a later one.
    #[inline(always)]
    pub fn send_on_connection<E>(
        &self,
        headers: &CompactHeaders,
        (qpn, connection): (u32, u64),
        payload: usize,
        fill: impl FnOnce(&RingBytes<'_>) -> Result<(), E>,
    ) -> SendOutcome<E> {
        self.publish_compact(headers, payload, fill, |position, at| {
            if headers.is_by_result() {
                let packet = SentPacket { qpn, connection, psn: headers.psn() };
                self.await_result(position, packet, AnswerPlace { at, len: headers.answer_len() });
            }
        })
    }

    /// As [`Link::send_compact`], with headers that have their form. `is_written` gets the position of the cell, and where the payload begins
    /// in the link's memory, before the cell is published.
    #[inline(always)]
    fn publish_compact<E>(
        &self,
        headers: &CompactHeaders,
        payload: usize,
        fill: impl FnOnce(&RingBytes<'_>) -> Result<(), E>,
        is_written: impl FnOnce(u64, usize),
    ) -> SendOutcome<E> {
        let len = record::bulk_of(headers, payload);
        self.publish(len, |space| {
            let (at, bulk) = if len == 0 {
                (self.to_peer.place.cell_at(space.position) + headers.payload_offset(), None)
            } else {
                let (at, position) = self.bulk(space);
                (at, Some(position))
            };
            fill(&RingBytes::new(&self.memory, at, payload))?;
            is_written(space.position, at);
            Ok(record::write_compact(self.to_peer.place.cell(space.position), headers, payload, bulk))
        })
    }

    /// Where the bulk of a cell begins in the link's memory, and its position.
    #[inline]
    fn bulk(&self, space: &CellSpace) -> (usize, u64) {
        let (position, _) = space.bulk;
        (self.to_peer.place.bulk_at(position), position)
    }

    /// Publishes a cell with `bulk` bytes of bulk. `write` writes both, and returns the cell's first word. The caller has found that the link
    /// isn't dead, or has just read a cell of it: the child of a fork has no memory of the link.
    #[inline(always)]
    pub(super) fn publish<E>(
        &self,
        bulk: usize,
        write: impl FnOnce(&CellSpace) -> Result<u64, E>,
    ) -> SendOutcome<E> {
        let mut tx = self.tx.lock();
        let space = match tx.reserve(self.tx_lines(), &self.awaited, bulk) {
            Ok(Some(space)) => space,
            Ok(None) => return SendOutcome::Full,
            Err(Broken) => {
                self.broken();
                return SendOutcome::Lost;
            }
        };
        let first = match write(&space) {
            Ok(first) => first,
            Err(error) => return SendOutcome::Failed(error),
        };
        let end = tx.publish(space, &self.to_peer.place.cell(space.position)[0], first);
        // SYNC: pairs with `Link::arrived`.
        self.sent.store(end, Ordering::Release);
        // The next cell goes there.
        self.memory.prepare_write(self.to_peer.place.cell_at(end));
        drop(tx);
        if self.full_since.load(Ordering::Relaxed) != 0 {
            self.full_since.store(0, Ordering::Relaxed);
        }
        SendOutcome::Published(end)
    }

    /// Whether the ring has been full for so long that packets which aren't repeated (UC, UD) are given up.
    pub fn is_stuck(&self, now: Instant) -> bool {
        let since = self.full_since.load(Ordering::Relaxed);
        if since == 0 {
            self.full_since.store(now.0, Ordering::Relaxed);
        }
        since != 0 && now.since(Instant(since)) > PATIENCE
    }

    /// When [`Link::is_stuck`] may become true.
    pub fn stuck_at(&self, now: Instant) -> Instant {
        now.after(PATIENCE + Duration::from_millis(1))
    }

    /// The peer hasn't dealt with a cell before `position`, or results of such cells haven't reached the QPs of this process.
    pub fn is_unacknowledged(&self, position: u64) -> bool {
        // A cell's result is written before the cell is given back.
        !self.tx_lines().is_consumed(position) || self.has_results_before(position)
    }

    /// The peer has dealt with all cells before `position`.
    #[inline]
    pub fn is_consumed(&self, position: u64) -> bool {
        self.tx_lines().is_consumed(position)
    }

    /// The peer's QP of `ends` owes this process's QP of `ends` an answer.
    pub fn peer_owes(&self, ends: QpnPair) -> bool {
        self.remote.get().is_some_and(|remote| remote.directory.owes(ends))
    }

    /// The QP with this number goes on when there is room. False when there is some already.
    pub fn wake_when_room(&self, qpn: u32) -> bool {
        // Before `blocked`: a thread that is held up in filling a cell has `tx` for any time, and the end of a link needs `blocked`.
        let mut tx = self.tx.lock();
        let mut blocked = self.blocked.lock();
        self.has_blocked.store(true, Ordering::SeqCst);
        self.tx_lines().wait();
        if self.is_dead() || tx.has_room(self.tx_lines(), &self.awaited) != Ok(false) {
            if blocked.is_empty() {
                self.tx_lines().stop_waiting();
                self.has_blocked.store(false, Ordering::SeqCst);
            }
            return false;
        }
        if !blocked.contains(&qpn) {
            blocked.push(qpn);
        }
        true
    }

    /// A QP waits for room.
    #[inline]
    pub(super) fn waits_for_room(&self) -> bool {
        self.has_blocked.load(Ordering::Relaxed)
    }

    /// A QP waits for room, and there is some. So it is supposed while another thread has the writer, which can be held up in filling a cell
    /// for any time: the QP that goes on finds out.
    #[inline]
    pub fn has_room_for_blocked(&self) -> bool {
        let has_room =
            |mut tx: MutexGuard<'_, _, Producer>| tx.has_room(self.tx_lines(), &self.awaited) != Ok(false);
        self.has_blocked.load(Ordering::SeqCst) && self.tx.try_lock().is_none_or(has_room)
    }

    /// The numbers of the QPs that wait for room; they have to be looked after now.
    pub fn take_blocked(&self) -> Vec<u32> {
        let mut blocked = self.blocked.lock();
        self.has_blocked.store(false, Ordering::SeqCst);
        if !self.is_dead() {
            // Written with `blocked` locked, without `tx`.
            self.tx_lines().stop_waiting();
        }
        std::mem::take(&mut *blocked)
    }
}

#[cfg(test)]
mod tests {
    use super::super::receive::tests::{RingEvents, link, send, try_send};
    use super::*;
    use ferroce_wire::Opcode;

    fn fill(link: &Link) {
        while try_send(link, 3, 1, false).is_some() {}
    }

    #[test]
    fn a_ring_that_stays_full_is_stuck_until_something_is_sent() {
        let [link, peer] = link();
        let begin = Instant(1_000_000_000);
        let late = begin.after(PATIENCE + Duration::from_millis(1));
        fill(&link);
        assert!(!link.is_stuck(begin) && !link.is_stuck(begin.after(PATIENCE)));
        assert!(link.is_stuck(late) && link.stuck_at(begin) >= late);
        peer.receive_last(&mut RingEvents::default());
        assert!(try_send(&link, 3, 1, false).is_some());
        assert!(!link.is_stuck(late), "it is full since now at the earliest");
    }

    #[test]
    fn queue_pairs_that_wait_for_room_are_named_once_when_there_is_some() {
        let [link, peer] = link();
        assert!(!link.wake_when_room(3) && !link.waits_for_room(), "there is room");
        fill(&link);
        assert!(link.wake_when_room(3) && link.wake_when_room(4) && link.wake_when_room(3));
        assert!(link.waits_for_room() && link.may_have_work() && !link.has_room_for_blocked());
        peer.receive_last(&mut RingEvents::default());
        assert!(link.has_room_for_blocked());
        // One more finds room: the others wait as before.
        assert!(!link.wake_when_room(5) && link.waits_for_room());
        assert_eq!(link.take_blocked(), [3, 4]);
        assert!(!link.waits_for_room() && !link.has_room_for_blocked() && link.take_blocked().is_empty());
    }

    #[test]
    fn a_broken_link_takes_nothing_and_is_not_waited_for() {
        let [link, _peer] = link();
        fill(&link);
        link.broken();
        assert!(!link.wake_when_room(3));
        let headers = record::tests::headers(Opcode::from_u8(4).unwrap());
        let meta = record::tests::meta("10.0.0.1", "10.0.0.2");
        assert_eq!(link.send::<()>(&headers, &meta, 0, |_| Ok(())), SendOutcome::Lost);
        assert!(!link.peer_takes_compact());
    }

    /// What `call` does with a link while another thread is held up in filling a cell.
    fn beside_a_fill(call: fn(&Link)) {
        let [link, peer] = link();
        send(&peer, 5, 2, false);
        // A result is to be read, too.
        send(&link, 3, 4, true);
        peer.receive_last(&mut RingEvents::default());
        let (returned, returns) = std::sync::mpsc::channel();
        let (begins, begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let sent = link.publish(0, |_| {
                // A QP has found the ring full, and waits for the thread that fills, too.
                scope.spawn(|| {
                    begins.send(()).unwrap();
                    link.wake_when_room(3)
                });
                begun.recv().unwrap();
                std::thread::sleep(Duration::from_millis(50));
                scope.spawn(|| {
                    call(&link);
                    returned.send(()).unwrap();
                });
                Err::<u64, bool>(returns.recv_timeout(Duration::from_secs(10)).is_ok())
            });
            assert_eq!(sent, SendOutcome::Failed(true), "the call waits for the thread that fills");
        });
    }

    #[test]
    fn a_link_is_read_while_a_thread_is_held_up_in_filling_a_cell() {
        beside_a_fill(|link| {
            let mut told = RingEvents::default();
            assert!(link.receive_arrived(link.arrived(), &mut told));
            assert_eq!(told.events.len(), 2);
        });
        beside_a_fill(|link| link.receive_last(&mut RingEvents::default()));
    }

    #[test]
    fn a_link_ends_while_a_thread_is_held_up_in_filling_a_cell() {
        beside_a_fill(|link| assert!(link.end().is_empty()));
    }

    #[test]
    fn as_many_records_are_taken_as_are_asked_for() {
        let [link, peer] = link();
        for psn in 0..200 {
            try_send(&link, 3, psn, false).unwrap();
        }
        let mut told = RingEvents::default();
        assert_eq!((peer.receive(4, &mut told), told.events.len()), (Some(true), 4));
        assert!(peer.receive_arrived(peer.arrived(), &mut told) && told.events.len() == 200);
        assert!(!peer.has_records());
    }
}
