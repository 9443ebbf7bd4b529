//! The `local` fabric: packets between QPs of one process, through each QP's inbox. Nothing is lost.

use crate::adapter::{Adapter, Work};
use crate::ah::Ah;
use crate::qp::{Origin, Qp, QpEnv};
use ferroce_engine::PayloadBytes;
use ferroce_os::clock;
use ferroce_types::{Instant, PacketMeta};
use ferroce_wire::Headers;
use std::sync::Arc;

/// A packet on its way between two QPs of this process.
#[derive(Debug)]
pub(crate) struct LocalPacket {
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
    pub(crate) meta: PacketMeta,
}

impl PayloadBytes for LocalPacket {
    fn bytes(&self) -> usize {
        self.payload.len()
    }
}

/// Packets that a QP works on in a turn.
const BATCH: usize = 32;

impl Adapter {
    /// Lets QPs work on what their inboxes hold. A QP that somebody else has locked is left to them: they look into
    /// its inbox once more after unlocking.
    pub(crate) fn deliver_local(&'static self, work: &mut Work) {
        /// Turns a thread gives before it goes back to what it was called for.
        const TURNS: usize = 256;
        let mut turns = 0;
        while let Some(qp) = work.delivered_to.pop() {
            turns += 1;
            if turns > TURNS {
                self.enqueue(&qp);
                continue;
            }
            if !qp.inbox.has_records() {
                continue;
            }
            let now = clock::now();
            if !qp.try_work(work, now, |proto, env| take_batch(proto, env, now)) {
                // Whoever holds the lock may have looked into the inbox already.
                self.enqueue(&qp);
            }
        }
    }

    /// Takes all that QPs of this process have sent to a QP so far, as long as the QP's lock is free or `waits` says to wait for it.
    pub(super) fn empty_inbox(&'static self, qp: &Arc<Qp>, waits: &mut impl FnMut() -> bool) {
        let sent = qp.inbox.sent();
        while sent.wrapping_sub(qp.inbox.taken()).cast_signed() > 0 {
            let now = clock::now();
            let worked =
                self.with_work(|work| qp.try_work(work, now, |proto, env| take_batch(proto, env, now)));
            if !worked && !waits() {
                return;
            }
        }
    }
}

/// Takes packets out of the inbox of a QP, which is locked.
fn take_batch(proto: &mut ferroce_proto::Qp<Arc<Ah>>, env: &mut QpEnv<'_>, now: Instant) {
    let inbox = env.inbox();
    for packet in std::iter::from_fn(|| inbox.pop()).take(BATCH) {
        if env.accepts(&packet.meta, Origin::Here) {
            env.handle(proto, now, &packet.headers, packet.payload.as_slice().into(), &packet.meta);
        }
        env.work.put_payload(packet.payload);
    }
}
