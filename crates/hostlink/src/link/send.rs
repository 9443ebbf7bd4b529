//! The ring to the peer: writes its records, and keeps the QPs that wait for room.

use super::executed::RingSender;
use super::{Link, PATIENCE, RING};
use crate::compact::CompactHeaders;
use crate::directory::QpnPair;
use crate::payload::RingBytes;
use crate::protocol::Broken;
use crate::record::{self, Draft};
use ferroce_types::{Instant, PacketMeta};
use ferroce_wire::Headers;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOutcome<E> {
    /// It is in the ring, which the peer has dealt with when it has consumed everything up to this position.
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
        match Draft::packet(headers, meta, payload) {
            Some(draft) => self.publish(draft.total(), |at| {
                fill(&RingBytes::new(&self.memory, draft.payload_at(at), payload))?;
                draft.write(&self.memory, at);
                Ok(())
            }),
            None => SendOutcome::Lost,
        }
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
            None => self.send_on_connection(&compact, payload, fill),
            Some((operands, len)) => self.send_on_connection(&compact, len, |ring| {
                ring.put(&operands[..len]);
                Ok(())
            }),
        })
    }

    /// Sends a packet of a connection, which isn't acknowledged by position. `fill` copies `payload` bytes into the ring: the operands of
    /// an atomic, or what the memory held, are a payload here. The peer takes these ([`Link::peer_takes_compact`]).
    #[inline]
    pub fn send_on_connection<E>(
        &self,
        headers: &CompactHeaders,
        payload: usize,
        fill: impl FnOnce(&RingBytes<'_>) -> Result<(), E>,
    ) -> SendOutcome<E> {
        self.publish_compact(headers, payload, fill, |_, _| ())
    }

    /// As [`Link::send_compact`], with headers that have their form; `before` is called with the record's end before the peer can see
    /// it.
    #[inline(always)]
    pub(super) fn publish_compact<E>(
        &self,
        headers: &CompactHeaders,
        payload: usize,
        fill: impl FnOnce(&RingBytes<'_>) -> Result<(), E>,
        before: impl FnOnce(&mut RingSender, u64),
    ) -> SendOutcome<E> {
        let write = |at: usize| {
            fill(&RingBytes::new(&self.memory, at + headers.payload_offset(), payload))?;
            record::write_compact(&self.memory, at, headers, payload);
            Ok(())
        };
        self.publish_with(record::compact_total(headers, payload), write, before)
    }

    /// Publishes a record of `total` bytes, which `write` writes at its argument, an offset in the link's memory.
    #[inline]
    pub(super) fn publish<E>(
        &self,
        total: usize,
        write: impl FnOnce(usize) -> Result<(), E>,
    ) -> SendOutcome<E> {
        self.publish_with(total, write, |_, _| ())
    }

    /// As [`Link::publish`]; `before` is called with the record's end before the peer can see it.
    #[inline(always)]
    pub(super) fn publish_with<E>(
        &self,
        total: usize,
        write: impl FnOnce(usize) -> Result<(), E>,
        before: impl FnOnce(&mut RingSender, u64),
    ) -> SendOutcome<E> {
        if self.is_dead() {
            return SendOutcome::Lost;
        }
        let (base, lines) = (self.to_peer.bytes_at, self.tx_lines());
        let mut tx = self.tx.lock();
        let place = match tx.producer.reserve(lines, total) {
            Ok(Some(place)) => place,
            Ok(None) => return SendOutcome::Full,
            Err(Broken) => {
                self.broken();
                return SendOutcome::Lost;
            }
        };
        if let Err(error) = write(base + place.at) {
            return SendOutcome::Failed(error);
        }
        if let Some((start, len)) = place.padding {
            record::write_padding(&self.memory, base + start, len);
        }
        before(&mut tx, place.end());
        let end = tx.producer.publish(lines, place);
        // The next record goes there.
        self.memory.prepare_write(base + end as usize % RING);
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

    /// The peer has dealt with everything up to `position`.
    #[inline]
    pub(super) fn is_consumed(&self, position: u64) -> bool {
        self.tx_lines().is_consumed(position)
    }

    /// The peer hasn't processed the record that ends at `position` of the ring to it, or an acknowledgement by position of this record, or
    /// of one before, hasn't reached the QPs of this process.
    pub fn is_unacknowledged(&self, position: u64) -> bool {
        // An entry removed from `awaited` has been acknowledged; its QP is completed before `executed` is advanced.
        !self.is_consumed(position)
            || self.is_kept_from_telling(position)
            || self.has_executed_before(position)
    }

    /// The peer's QP of `ends` owes this process's QP of `ends` an answer.
    pub fn peer_owes(&self, ends: QpnPair) -> bool {
        self.remote.get().is_some_and(|remote| remote.directory.owes(ends))
    }

    /// The end of what the peer has published, unless all of it has been dealt with.
    pub fn unread(&self) -> Option<u64> {
        self.rx_lines().unread()
    }

    /// Everything that the peer has published up to `position` has been dealt with.
    pub fn is_read(&self, position: u64) -> bool {
        self.rx_lines().is_consumed(position)
    }

    /// The QP with this number goes on when there is room. False when there is some already.
    pub fn wake_when_room(&self, qpn: u32) -> bool {
        let mut blocked = self.blocked.lock();
        self.has_blocked.store(true, Ordering::SeqCst);
        let mut tx = self.tx.lock();
        tx.producer.wait(self.tx_lines());
        if self.is_dead() || tx.producer.has_room(self.tx_lines()) != Ok(false) {
            self.has_blocked.store(!blocked.is_empty(), Ordering::SeqCst);
            return false;
        }
        if !blocked.contains(&qpn) {
            blocked.push(qpn);
        }
        true
    }

    /// A QP, or a record that disowns, waits for room.
    #[inline]
    pub(super) fn waits_for_room(&self) -> bool {
        self.has_blocked.load(Ordering::Relaxed) || self.has_disowned.load(Ordering::Relaxed)
    }

    /// A QP waits for room, and there is some.
    #[inline]
    pub fn has_room_for_blocked(&self) -> bool {
        self.has_blocked.load(Ordering::SeqCst)
            && self.tx.lock().producer.has_room(self.tx_lines()) != Ok(false)
    }

    /// The numbers of the QPs that wait for room; they have to be looked after now.
    pub fn take_blocked(&self) -> Vec<u32> {
        let mut blocked = self.blocked.lock();
        self.has_blocked.store(false, Ordering::SeqCst);
        std::mem::take(&mut *blocked)
    }
}

#[cfg(test)]
mod tests {
    use super::super::receive::tests::{RingEvents, link, try_send};
    use super::*;

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
        let sent = link.publish(64, |_| Ok::<(), ()>(()));
        assert_eq!(sent, SendOutcome::Lost);
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
