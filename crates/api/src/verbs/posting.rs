//! The slots of requests that are being posted.

use crate::verbs::backend::{RawAddress, RawQp, RawRequest};
use crate::verbs::cq::Operated;
use crate::verbs::ops::sealed::Flags;
use crate::verbs::slots::{Entry, Queue};
use ferroce_buffers::slots::FreePlace;
use ferroce_buffers::{Inline, Payload, Results, Segments};
use ferroce_proto::{DataRef, SendOp};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// The slot of a request that is being posted.
pub(crate) type Slot<'c> = FreePlace<'c, Box<Entry>>;

/// A request that can be posted, without its memory. It is apart from what has a destructor: so it needs no place in memory.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) op: SendOp,
    pub(crate) flags: Flags,
    pub(crate) what: Operated,
    pub(crate) region: u64,
}

/// The slot of a receive that is being posted.
pub(crate) struct Receive<'c> {
    pub(crate) entry: Slot<'c>,
    pub(crate) queue: &'c Queue,
    pub(crate) qp: &'c RawQp,
    pub(crate) qkey: &'c Arc<AtomicU32>,
    pub(crate) refused: &'c mut bool,
}

impl Receive<'_> {
    /// Posts the receive, whose memory is in the slot.
    #[inline(always)]
    pub(crate) fn post(self, tag: u64, segments: Segments) {
        let Self { entry: mut slot, queue, qp, refused, .. } = self;
        let entry = &mut **slot;
        (entry.tag, entry.what, entry.len) = (tag, Operated::Received, 0);
        *refused |= !qp.receive(queue.wr_id(slot.publish()), segments);
    }
}

/// The slot of a request that is being posted.
pub(crate) struct SendSlot<'c> {
    pub(crate) entry: Slot<'c>,
    pub(crate) queue: &'c Queue,
    /// Of the queue.
    pub(crate) depth: u32,
    pub(crate) qp: &'c RawQp,
    pub(crate) results: &'c Option<Arc<Results>>,
    pub(crate) quiet: &'c mut u32,
    pub(crate) refused: &'c mut bool,
}

impl SendSlot<'_> {
    /// Posts the request, to this address. What it owns is in the slot, but for the inline data.
    #[inline(always)]
    pub(crate) fn post(
        self,
        tag: u64,
        plan: Plan,
        to: Option<Arc<RawAddress>>,
        segments: &Segments,
        inline: Option<&Inline>,
    ) {
        let Self { entry: mut slot, queue, depth, qp, quiet: before, refused, .. } = self;
        let Plan { op, flags: Flags { quiet, fence, solicited }, what, region } = plan;
        let entry = &mut **slot;
        // A queue of quiet requests alone would never drain.
        let signaled = !quiet || *before + 1 >= depth.div_ceil(2);
        *before = if signaled { 0 } else { *before + 1 };
        (entry.tag, entry.what) = (tag, what);
        let is_read = what == Operated::Read;
        entry.len = if is_read { segments.bytes() as u32 } else { 0 };
        let wr_id = queue.wr_id(slot.publish());
        let data = inline.and_then(Payload::inline).map_or(DataRef::Sges(segments), DataRef::Inline);
        let request = RawRequest { wr_id, op, data, signaled, solicited, fence, region };
        // Behind a refused request nothing is posted: the completion of a later one would retire it as if it had been carried out.
        *refused = *refused || !qp.post(request, to.as_deref());
    }
}
