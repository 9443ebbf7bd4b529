//! The buffers that a thread needs while it lets QPs work.

use super::Adapter;
use crate::ah::Ah;
use crate::fabric::Taps;
use crate::qp::{Qp, Received};
use crate::voice::Untold;
use ferroce_hostlink::Link;
use ferroce_udp::{OutgoingTap, TxBatch};
use smallvec::SmallVec;
use std::sync::Arc;

/// So many payloads' rooms are kept.
const PAYLOADS: usize = 4;

/// One thread's buffers, for as long as it is at work.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) batch: TxBatch,
    /// Receive completions of the QP at work. Its list keeps its room.
    pub(crate) received: Received,
    /// XRC targets, and SRQs of processes that they have to reach.
    pub(crate) unconnected: Vec<(Arc<Qp>, u32)>,
    /// QPs that want to send to a QP at an address to which no path is known yet.
    pub(crate) unresolved: Vec<(Arc<Qp>, Arc<Ah>, u32)>,
    /// QPs whose peers turn out not to share memory with this process.
    pub(crate) falling_back: Vec<Arc<Qp>>,
    /// QPs of this process that have got something.
    pub(crate) delivered_to: Vec<Arc<Qp>>,
    /// Room for the payloads of packets to QPs of this process.
    payloads: Vec<Vec<u8>>,
    /// What is told of failures when no QP is locked.
    pub(crate) said: Vec<Untold>,
    /// A completion found no room in its queue.
    pub(crate) overrun: bool,
    /// A packet wasn't taken for now.
    pub(crate) blocked: bool,
    /// … because there was no room in this link's ring.
    pub(crate) blocked_on: Option<Arc<Link>>,
    /// Links through which something was sent and whose peers may have to be woken.
    pub(crate) links_to_ring: SmallVec<[Arc<Link>; 2]>,
}

impl Work {
    /// Empty buffers; what they send goes through `taps`.
    pub(super) fn sending_through(taps: Option<&'static Taps>) -> Self {
        let mut work = Self::default();
        work.batch.set_tap(taps.map(|taps| taps as &dyn OutgoingTap));
        work
    }

    /// Room for a payload of `len` bytes, which are zeros.
    #[inline]
    pub(crate) fn take_payload(&mut self, len: usize) -> Vec<u8> {
        // An acknowledgement has none.
        let mut payload = if len > 0 { self.payloads.pop().unwrap_or_default() } else { Vec::new() };
        payload.resize(len, 0);
        payload
    }

    /// Keeps the room of a payload for the next one.
    #[inline]
    pub(crate) fn put_payload(&mut self, mut payload: Vec<u8>) {
        if payload.capacity() > 0 && self.payloads.len() < PAYLOADS {
            payload.clear();
            self.payloads.push(payload);
        }
    }

    /// Sends what has been gathered.
    pub(crate) fn send(&mut self) {
        if !self.batch.is_empty() {
            self.batch.flush();
        }
        for link in self.links_to_ring.drain(..) {
            link.ring_bell();
        }
    }

    /// A panic has ended what these buffers were used for: those QPs that would have had a turn get it from the run queue,
    /// and the peers are woken.
    #[cold]
    fn hand_on(&mut self, adapter: &Adapter) {
        for link in self.links_to_ring.drain(..) {
            link.ring_bell();
        }
        for (qp, _) in self.unconnected.drain(..) {
            // What waits comes again.
            qp.drop_backlog();
        }
        let waiting = self.unresolved.drain(..).map(|(qp, ..)| qp);
        for qp in waiting.chain(self.falling_back.drain(..)).chain(self.delivered_to.drain(..)) {
            adapter.enqueue(&qp);
        }
    }

    /// Something was sent through `link`.
    pub(crate) fn rings(&mut self, link: &Arc<Link>) {
        if !self.links_to_ring.iter().any(|other| Arc::ptr_eq(other, link)) {
            self.links_to_ring.push(link.clone());
        }
    }
}

/// Buffers in use. Dropped by unwinding, it hands on what they hold for others; whoever comes through forgets it.
pub(super) struct HandsOn<'a> {
    pub(super) adapter: &'a Adapter,
    pub(super) work: &'a mut Work,
}

impl Drop for HandsOn<'_> {
    fn drop(&mut self) {
        self.work.hand_on(self.adapter);
    }
}
