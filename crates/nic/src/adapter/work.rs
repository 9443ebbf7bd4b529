//! The buffers that a thread needs while it lets QPs work.

use super::Adapter;
use crate::qp::{AwaitingQp, Qp, ReceiveCompletions};
use ferroce_hostlink::Link;
use ferroce_network::Taps;
use ferroce_os::clock;
use ferroce_parts::voice::Untold;
use ferroce_parts::{Ah, LastFlow};
use ferroce_udp::{OutgoingTap, TxBatch};
use smallvec::SmallVec;
use std::sync::Arc;

/// One thread's buffers, for as long as it is at work.
#[derive(Debug, Default)]
pub(crate) struct ThreadBuffers {
    pub(crate) batch: TxBatch,
    /// Receive completions of the QP at work. Its list keeps its room.
    pub(crate) received: ReceiveCompletions,
    /// XRC targets, and SRQs of processes that they have to reach.
    pub(crate) unconnected: Vec<(Arc<Qp>, u32)>,
    /// QPs that want to send to a QP at an address to which no path is known yet.
    pub(crate) unresolved: Vec<(Arc<Qp>, Arc<Ah>, u32)>,
    /// QPs whose peers turn out not to share memory with this process.
    pub(crate) falling_back: Vec<Arc<Qp>>,
    /// QPs that need memory that isn't there.
    pub(crate) absent: Vec<AwaitingQp>,
    /// Something was sent to a QP of this process.
    pub(crate) left_here: bool,
    /// Reports of failures, which are logged when no QP is locked.
    pub(crate) said: Vec<Untold>,
    /// A completion found no room in its queue.
    pub(crate) overrun: bool,
    /// The QP at work has found memory that isn't there.
    pub(crate) awaits_memory: bool,
    /// A packet wasn't taken for now.
    pub(crate) blocked: bool,
    /// … because there was no room in this link's ring.
    pub(crate) blocked_on: Option<Arc<Link>>,
    /// Of the last packet from the network.
    pub(crate) last_flow: LastFlow,
    /// Links through which something was sent and whose peers may have to be woken.
    pub(crate) links_to_ring: SmallVec<[Arc<Link>; 2]>,
}

impl ThreadBuffers {
    /// Empty buffers; what they send goes through `taps`.
    pub(super) fn sending_through(taps: Option<&'static Taps>) -> Self {
        let mut work = Self::default();
        work.batch.set_tap(taps.map(|taps| taps as &dyn OutgoingTap));
        work
    }

    /// Sends what has been gathered.
    #[inline(always)]
    pub(crate) fn send(&mut self, adapter: &Adapter) {
        if !self.batch.is_empty() {
            // Not the time of the turn: copies from slow memory may have taken many milliseconds.
            self.batch.flush(adapter.engine.lately());
        }
        if !self.links_to_ring.is_empty() {
            self.ring_bells();
        }
    }

    fn ring_bells(&mut self) {
        self.links_to_ring.drain(..).for_each(|link| link.ring_bell());
    }

    /// Processes or paths are to be found before QPs can go on.
    #[inline]
    pub(super) fn has_ways_to_find(&self) -> bool {
        !(self.unconnected.is_empty() && self.unresolved.is_empty() && self.falling_back.is_empty())
    }

    /// A panic has ended what these buffers were used for: those QPs that would have had a turn get it from the run queue,
    /// and the peers are woken.
    #[cold]
    fn hand_on(&mut self, adapter: &Adapter) {
        self.ring_bells();
        for (qp, _) in self.unconnected.drain(..) {
            // What waits comes again.
            qp.drop_backlog();
        }
        let waiting = self.unresolved.drain(..).map(|(qp, ..)| qp);
        for qp in waiting.chain(self.falling_back.drain(..)) {
            adapter.enqueue(&qp);
        }
        self.absent.drain(..).for_each(|awaiting| awaiting.looks_again());
        if std::mem::take(&mut self.left_here) {
            adapter.engine.wake_for(clock::now());
        }
    }

    /// Something was sent through `link`.
    pub(crate) fn rings(&mut self, link: &Arc<Link>) {
        if link.is_to_itself() {
            self.left_here = true;
        } else if !self.links_to_ring.iter().any(|other| Arc::ptr_eq(other, link)) {
            self.links_to_ring.push(link.clone());
        }
    }
}

/// Unwind guard of buffers in use: if the section panics, it hands on what they hold for other QPs. Call `mem::forget` on success.
pub(super) struct HandsOn<'a> {
    pub(super) adapter: &'a Adapter,
    pub(super) work: &'a mut ThreadBuffers,
}

impl Drop for HandsOn<'_> {
    fn drop(&mut self) {
        self.work.hand_on(self.adapter);
    }
}
