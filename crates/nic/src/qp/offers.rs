//! Large SENDs between two processes of a host: the sender offers the payload in its memory, and the receiver reads it from there, into the
//! buffers of the receive, with one copy.
//!
//! A receiver that can't read a payload loses the packet: it asks for it again, as for one that a network has lost. What leaves again goes
//! through the ring.

use super::Qp;
use super::payload::{RxPayload, pieces};
use ferroce_access::{Fault, MOST_RANGES, PeerRead, copy, pages};
use ferroce_hostlink::{
    CompactHeaders, Link, MemoryOffer, OfferedPayload, RingBytes, SendOutcome, is_large, own_directory,
};
use ferroce_mem::{Denied, KeyTable};
use ferroce_parts::Ah;
use ferroce_proto::{DataRef, PayloadSource, PlaceError, PlainSend};
use ferroce_queues::MAX_SGE;
use ferroce_types::Sge;
use ferroce_wire::{Headers, Service};
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Large packets that go through the ring after one had to leave again, before one is offered again.
const REPEATED: u32 = 64;
/// Elements of a receive that need no allocation.
const SOME_ELEMENTS: usize = 4;
/// Where a connection's number begins in a word, after a PSN.
const CONNECTION: u32 = 24;
const PSN: u64 = (1 << CONNECTION) - 1;

/// What of large SENDs has left. Written with the queue pair locked.
#[derive(Default, Debug)]
pub(super) struct Offering {
    /// The connection and the PSN of the last packet; 0: none has left.
    last: AtomicU64,
    /// So many packets aren't offered, as one had to leave again: the receiver couldn't read it, or wasn't ready.
    paused: AtomicU32,
}

impl Offering {
    /// Whether a packet may be offered: it hasn't left before.
    fn may(&self, (connection, psn): (u64, u32)) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        let is_same = last != 0 && last >> CONNECTION == connection << CONNECTION >> CONNECTION;
        if is_same && last.wrapping_sub(u64::from(psn)) & PSN <= PSN / 2 {
            self.paused.store(REPEATED, Ordering::Relaxed);
            return false;
        }
        let paused = self.paused.load(Ordering::Relaxed);
        self.paused.store(paused.saturating_sub(1), Ordering::Relaxed);
        paused == 0
    }

    /// The packet of this connection with this PSN has left.
    pub(super) fn note_sent(&self, (connection, psn): (u64, u32)) {
        self.last.store(connection << CONNECTION | u64::from(psn), Ordering::Relaxed);
    }
}

/// A payload in the memory of the process that has sent it.
#[derive(Clone, Copy)]
pub struct Offered<'a> {
    payload: OfferedPayload<'a>,
    is_lost: &'a Cell<bool>,
}

impl<'a> Offered<'a> {
    /// `is_lost` becomes true when the payload turns out not to be there any more.
    pub(super) fn new(payload: OfferedPayload<'a>, is_lost: &'a Cell<bool>) -> Self {
        Self { payload, is_lost }
    }

    pub(super) fn len(&self) -> usize {
        self.payload.len()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// Copies `len` bytes from `offset` on to the program's memory at `addr`.
    pub(super) fn copy_to(&self, offset: usize, addr: u64, len: usize) -> Result<(), Fault> {
        self.copy_to_ranges(offset, &[(addr, len)])
    }

    /// Copies the bytes from `offset` on to ranges (address and length) of the program's memory, by one system call.
    fn copy_to_ranges(&self, offset: usize, ranges: &[(u64, usize)]) -> Result<(), Fault> {
        if self.is_lost.get() {
            return Err(Fault);
        }
        match self.payload.read(offset, ranges) {
            PeerRead::Whole => Ok(()),
            PeerRead::Partial => self.copy_slowly(offset, ranges),
            PeerRead::Refused => {
                self.is_lost.set(true);
                Err(Fault)
            }
        }
    }

    /// One of the two memories isn't there, or the receiver's is a mapping that the kernel doesn't write to.
    #[cold]
    fn copy_slowly(&self, offset: usize, ranges: &[(u64, usize)]) -> Result<(), Fault> {
        let mut bytes = vec![0u8; ranges.iter().map(|(_, len)| len).sum()];
        if self.payload.read(offset, &[(bytes.as_mut_ptr() as u64, bytes.len())]) != PeerRead::Whole {
            self.is_lost.set(true);
            return Err(Fault);
        }
        let mut rest = &bytes[..];
        ranges.iter().try_for_each(|&(addr, len)| {
            let (part, behind) = rest.split_at(len);
            rest = behind;
            copy::write(addr, part)
        })
    }

    /// As [`scatter_rest`](super::payload::scatter_rest). `None`: nothing was copied, as an element has a wrong key or isn't in pages of the
    /// program's.
    pub(super) fn scatter(
        &self,
        pd: u32,
        sges: &[Sge],
        offset: u64,
        skip: usize,
    ) -> Option<Result<(), PlaceError>> {
        const { assert!(MAX_SGE as usize <= MOST_RANGES) };
        let len = self.len() - skip;
        let held = pieces(sges, offset, len).map(|(piece, _)| {
            let held = KeyTable::global().hold_local(pd, &piece, true)?;
            Some((held, piece.length as usize))
        });
        let held = held.collect::<Option<SmallVec<[_; SOME_ELEMENTS]>>>()?;
        let ranges: SmallVec<[_; SOME_ELEMENTS]> = held.iter().map(|(held, len)| (held.addr, *len)).collect();
        let has_room = ranges.iter().map(|(_, len)| len).sum::<usize>() == len;
        Some(
            if has_room { self.copy_to_ranges(skip, &ranges) } else { Err(Fault) }
                .map_err(|Fault| PlaceError),
        )
    }
}

impl Qp {
    /// A packet with so many bytes of payload is one of a SEND that may be offered, as far as that depends on neither memory nor peer.
    #[inline]
    pub(super) fn is_large_send(&self, headers: &Headers, len: usize) -> bool {
        is_large(len as u64, 1) && self.service == Service::Rc && headers.bth.opcode.is_send()
    }

    /// Offers the payload of the packet with this PSN of a connection that the peer's process finds in the directory. `None`: it goes through
    /// the ring, as far as its keys and its memory permit that.
    pub(super) fn offer(
        &self,
        link: &Link,
        packet: (u64, u32),
        source: PayloadSource<'_>,
    ) -> Option<MemoryOffer> {
        let PayloadSource::Local { sges, offset, len, .. } = source else { return None };
        let mut pieces = pieces(sges, offset, len as usize);
        let (Some((piece, _)), None) = (pieces.next(), pieces.next()) else { return None };
        self.offer_piece(link, packet, &piece)
    }

    fn offer_piece(&self, link: &Link, packet: (u64, u32), piece: &Sge) -> Option<MemoryOffer> {
        // The directory lists no region that is another process's, or a device's, or beyond its room: the receiver wouldn't find it.
        let is_listed = || own_directory().is_some_and(|own| own.lists_region(piece.lkey));
        if !link.peer_reads_offers() || !is_listed() || !self.offering.may(packet) {
            return None;
        }
        let addr = KeyTable::global().pages_of_local(self.pd.id(), piece, false)?;
        let (connection, _) = packet;
        // A page that isn't there would hold up the reader of the peer.
        let is_there = pages::are_present(addr, piece.length as usize);
        is_there.then_some(MemoryOffer { key: piece.lkey, va: piece.addr, connection })
    }

    /// Sends a plain SEND whose data are large; `listed`: the peer's process finds the queue pair in the directory.
    #[inline(never)]
    pub(super) fn send_large_plain(
        &self,
        link: &Link,
        (headers, connection): (&CompactHeaders, u64),
        data: DataRef<'_>,
        listed: bool,
    ) -> SendOutcome<Denied> {
        let (packet, len) = ((connection, headers.psn()), data.len() as usize);
        let offer = match data {
            DataRef::Sges([sge]) if listed => self.offer_piece(link, packet, sge),
            _ => None,
        };
        let sent = match &offer {
            Some(offer) => {
                link.send_on_connection(&headers.offering(offer), (self.qpn, connection), len, |_| Ok(()))
            }
            None => {
                let fill = |ring: &RingBytes<'_>| self.fill_plain(data, ring);
                link.send_on_connection(headers, (self.qpn, connection), len, fill)
            }
        };
        if matches!(sent, SendOutcome::Published(_)) {
            self.offering.note_sent(packet);
        }
        sent
    }

    /// As [`Qp::place_payload`], of one that is offered.
    #[inline(never)]
    pub(super) fn place_offered(
        &self,
        proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>,
        send: PlainSend,
        offered: OfferedPayload<'_>,
    ) -> Option<(PlainSend, usize, u64)> {
        let is_lost = Cell::new(false);
        let payload = Offered::new(offered, &is_lost);
        let copy = |addr| payload.copy_to(0, addr, payload.len());
        self.place_payload(proto, send, &RxPayload::Offered(payload), copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_offered_once_and_those_behind_a_repeated_one_wait_for_a_while() {
        let offering = Offering::default();
        let first = PSN as u32 - 10;
        let sends = |connection: u64, psn: u32| {
            let packet = (connection, psn & PSN as u32);
            let may_be_offered = offering.may(packet);
            offering.note_sent(packet);
            may_be_offered
        };
        // Over the end of the numbers.
        assert!((0..40).all(|n| sends(1, first + n)));
        // The receiver asks for the last ten again: the first of them begins the pause.
        assert!((30..40).all(|n| !sends(1, first + n)));
        assert!((40..31 + REPEATED).all(|n| !sends(1, first + n)));
        assert!((0..40).all(|n| sends(1, first + 31 + REPEATED + n)));
        // The same numbers in another connection are new ones.
        assert!((0..40).all(|n| sends(2, first + n)));
        // One that has found no room hasn't left.
        assert!((0..10).all(|_| offering.may((2, (first + 40) & PSN as u32))));
    }
}
