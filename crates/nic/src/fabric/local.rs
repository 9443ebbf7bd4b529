//! The `local` fabric: packets between QPs of one process, through each QP's inbox. Nothing is lost.

use crate::adapter::{Adapter, Work};
use crate::qp::Origin;
use ferroce_engine::PayloadBytes;
use ferroce_os::clock;
use ferroce_types::PacketMeta;
use ferroce_wire::Headers;

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

impl Adapter {
    /// Lets QPs work on what their inboxes hold. A QP that somebody else has locked is left to them: they look into
    /// its inbox once more after unlocking.
    pub(crate) fn deliver_local(&'static self, work: &mut Work) {
        /// Turns a thread gives before it goes back to what it was called for.
        const TURNS: usize = 256;
        /// Packets that a QP works on in a turn.
        const BATCH: usize = 32;
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
            let worked = qp.try_work(work, now, |proto, env| {
                let inbox = env.inbox();
                for packet in std::iter::from_fn(|| inbox.pop()).take(BATCH) {
                    if env.accepts(&packet.meta, Origin::Here) {
                        env.handle(
                            proto,
                            now,
                            &packet.headers,
                            packet.payload.as_slice().into(),
                            &packet.meta,
                        );
                    }
                }
            });
            if !worked {
                // Whoever holds the lock may have looked into the inbox already.
                self.enqueue(&qp);
            }
        }
    }
}
