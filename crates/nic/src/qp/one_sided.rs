//! Small WRITEs and READs between two processes of a host: the short way, from the program's request to the peer's memory and to the
//! completion, without the peer and without a place in the send queue. [`SendRequest::one_sided`] returns whether a request may take it.

use super::{LockedQp, Path, Qp};
use ferroce_access::{Fault, copy, pages};
use ferroce_hostlink::{Link, Purpose, is_large};
use ferroce_mem::KeyTable;
use ferroce_parts::Ah;
use ferroce_proto::{DataRef, SendRequest};
use ferroce_types::Completion;
use ferroce_wire::Service;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Requests of more bytes take the general way: the copy is what they cost.
pub(super) const MOST: u64 = 4096;
/// Requests that leave as packets after a refused copy before one waits for those before it, so that a copy is tried again.
const REFUSED: u32 = 64;

/// The memory of the peer of a queue pair, as one request reaches it.
#[derive(Clone, Copy)]
pub(super) struct Reach<'a> {
    pub(super) qp: &'a Qp,
    pub(super) link: &'a Link,
    /// The peer's QPN.
    pub(super) peer: u32,
    /// The request reads.
    pub(super) reads: bool,
}

impl Reach<'_> {
    /// Copies `len` bytes between `addr` in this process and byte `at` of a range (key, address, length) of the peer's memory. The
    /// whole range is checked before a byte is copied. `None`: the range isn't allowed or can't be reached this way, or both overlap, and a
    /// copy from the front would read bytes that it has written.
    #[inline]
    pub(super) fn copy(&self, range: (u32, u64, u64), at: u64, addr: u64, len: usize) -> Option<()> {
        let Self { qp, link, peer, reads } = *self;
        let purpose = if reads { Purpose::Read } else { Purpose::Write };
        link.access((qp.qpn, peer), range, purpose, |peer, place| {
            // `place` is a value from the peer's memory: it isn't trusted, and the addition must not panic.
            let at_peer = place.wrapping_add(at);
            let overlaps = link.is_to_itself() && at_peer.abs_diff(addr) < len as u64;
            // Pages of this process that aren't there are brought in before a packet leaves; the peer brings its own when the packet has come.
            let copied = !overlaps
                && pages::are_present(addr, len)
                && peer.are_present(at_peer, len)
                && qp.is_connected(peer)
                && if reads { peer.read(at_peer, addr, len) } else { peer.write(at_peer, addr, len) };
            copied.then_some(())
        })
    }
}

impl Qp {
    /// Its peer is another process that shares memory with this one: requests may take the short way.
    #[must_use]
    #[inline]
    pub fn shares_memory_with_peer(&self) -> bool {
        self.service == Service::Rc && self.peer_uses_shm()
    }

    /// Whether a one-sided request of a region of the peer's, of so many bytes that are so many elements, had better wait until the requests
    /// before it have ended, and then be carried out without packets.
    #[inline]
    pub(super) fn prefers_to_execute(&self, link: &Link, rkey: u32, len: u64, elements: usize) -> bool {
        let is_abandoned = || self.left_to_peer.load(Ordering::Relaxed) && !link.peer_watches(u64::MAX);
        self.may_reach(link)
            && (is_large(len, elements) || is_abandoned() || self.is_mappable(link, rkey))
            && !self.counts_down_refusals()
    }

    /// Whether requests may be carried out without packets, as far as that depends on neither memory nor keys.
    #[inline]
    pub(super) fn may_reach(&self, link: &Link) -> bool {
        // Which protection domain a key of XRC must be of depends on the SRQ, which the peer's process knows.
        self.service != Service::Xrc && link.may_access() && !self.adapter.has_capture()
    }

    /// The peer's memory was reached, or a copy was refused. Many causes of a refusal last: the region or the QP isn't in the peer's
    /// directory, or the kernel doesn't copy. The requests that follow then don't wait in vain.
    #[inline]
    pub(super) fn note_copy(&self, reached: bool) {
        self.not_waiting.store(if reached { 0 } else { REFUSED }, Ordering::Relaxed);
    }

    /// A copy was refused a few requests ago. Caller holds the QP lock.
    #[inline]
    fn counts_down_refusals(&self) -> bool {
        let left = self.not_waiting.load(Ordering::Relaxed);
        self.not_waiting.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    /// Whether the peer's region can be mapped. The QP remembers the last region that can't.
    #[inline]
    pub(super) fn is_mappable(&self, link: &Link, rkey: u32) -> bool {
        if self.unmappable.load(Ordering::Relaxed) == rkey {
            return false;
        }
        let is_mappable = link.is_mappable(rkey);
        if !is_mappable {
            self.unmappable.store(rkey, Ordering::Relaxed);
        }
        is_mappable
    }

    /// Carries out a WRITE or READ. `overrun`: its completion had no room. False, and nothing has happened.
    #[inline(never)]
    pub(super) fn reach(
        &self,
        inner: &mut LockedQp,
        request: &SendRequest<'_, Arc<Ah>>,
        overrun: &mut bool,
    ) -> bool {
        let LockedQp { proto, path: Some(Path::Shm { link, .. }), .. } = inner else { return false };
        let Some((reads, va, rkey)) = request.one_sided() else { return false };
        let SendRequest { data, signaled, .. } = *request;
        // Where the kernel copies, all that the general way does costs little beside.
        let usable = self.peer_uses_shm()
            && link.may_access()
            && !self.is_broken()
            && !self.adapter.has_capture()
            && !self.observers.any()
            && !copy::by_kernel();
        if !usable || !proto.may_reach_peer(reads) || self.may_overrun(link, 0, signaled) {
            return false;
        }
        let len = data.len() as usize;
        let reach = Reach { qp: self, link, peer: proto.params().dest_qpn, reads };
        let by_peer = !self.is_mappable(link, rkey) && link.is_better_left_to_peer(len as u64, 1);
        self.left_to_peer.store(by_peer, Ordering::Relaxed);
        if by_peer {
            return false;
        }
        let mut reached = false;
        let done = match data {
            DataRef::Inline(bytes) => {
                reached = true;
                reach.copy((rkey, va, len as u64), 0, bytes.as_ptr() as u64, len).is_some()
            }
            // A null region takes nothing from the peer, whose rights are looked at all the same: by a packet.
            DataRef::Sges(sges) => {
                let [sge] = sges else { return false };
                let copy = |addr| {
                    reached = true;
                    reach.copy((rkey, va, len as u64), 0, addr, len).ok_or(Fault)
                };
                KeyTable::global().local(self.pd.id(), sge, reads, copy).is_ok()
            }
        };
        if !done || !reached {
            return false;
        }
        if let Some(completion) = proto.reached_peer(request) {
            *overrun |= !self.send_cq.push(Completion { qp_num: self.qpn, ..completion });
        }
        true
    }
}
