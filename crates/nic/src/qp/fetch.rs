//! Fetches between two processes of a host, that is READs of one packet and atomics: the short way, from the program's request to the
//! ring, and from the ring to the answer, which the result of the cell comes with. [`SendRequest::fetches_to`] returns an element for
//! requests that may take it.

use super::payload::{fill_ring, if_present};
use super::{LockedQp, Path, Qp};
use ferroce_access::{atomic, copy};
use ferroce_hostlink::{CompactHeaders, CompactRecord, Link, RecordRun, SendOutcome};
use ferroce_mem::{KeyTable, KeyUser};
use ferroce_parts::Ah;
use ferroce_proto::{FetchOp, PayloadSource, SendOp, SendRequest};
use ferroce_types::{AtomicOp, RemoteAccess};
use ferroce_wire::{Opcode, Operation, Reth, Service};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of what an atomic swaps in or adds, and of what it compares with.
const OPERANDS: usize = 16;

impl Qp {
    /// Sends a fetch, without a bell.
    #[inline(never)]
    pub(super) fn send_fetch(
        self: &Arc<Self>,
        inner: &mut LockedQp,
        fetch: &SendRequest<'_, Arc<Ah>>,
    ) -> bool {
        let LockedQp { proto, connection, path: Some(Path::Shm { link, .. }), .. } = inner else {
            return false;
        };
        let usable = self.peer_uses_shm()
            && link.peer_takes_compact()
            && !self.is_broken()
            && !self.adapter.has_capture()
            && !copy::by_kernel();
        let Some(psn) = proto.fetch_psn(fetch, || u32::MAX).filter(|_| usable) else { return false };
        if self.may_overrun(link, proto.signaled_len(), fetch.signaled) {
            return false;
        }
        let (operation, reth, operands) = match fetch.op {
            // It could be carried out without the peer when those before it have ended.
            SendOp::Read { rkey, .. }
                if proto.is_behind_one_sided()
                    && self.prefers_to_execute(link, rkey, fetch.data.len(), 1) =>
            {
                return false;
            }
            SendOp::Read { va, rkey } => {
                (Operation::ReadRequest, Reth { va, rkey, dma_len: fetch.data.len() as u32 }, None)
            }
            SendOp::CompareSwap { va, rkey, compare, swap } => {
                (Operation::CompareSwap, Reth { va, rkey, dma_len: 0 }, Some([swap, compare]))
            }
            SendOp::FetchAdd { va, rkey, add } => {
                (Operation::FetchAdd, Reth { va, rkey, dma_len: 0 }, Some([add, 0]))
            }
            _ => return false,
        };
        let params = proto.params();
        let ends = (params.pkey, params.dest_qpn);
        let headers = CompactHeaders::of_fetch(Opcode { service: Service::Rc, operation }, ends, psn, reth);
        let len = operands.map_or(0, |_| OPERANDS);
        let sent = link.send_on_connection::<()>(&headers, (self.qpn, *connection), len, |ring| {
            if let Some([first, second]) = operands {
                ring.put([first.to_ne_bytes(), second.to_ne_bytes()].as_flattened());
            }
            Ok(())
        });
        // Whatever keeps it, the general way finds it again.
        let SendOutcome::Published(end) = sent else { return false };
        self.last_request.store(end, Ordering::Relaxed);
        if let Some(at) = proto.fetch_sent(|| self.adapter.engine.lately(), fetch) {
            self.adapter.schedule(self, at);
        }
        true
    }

    /// What a packet asks for, if it is a fetch that its result may answer, as far as is known without a look at keys.
    pub(super) fn expected_fetch(
        &self,
        proto: &ferroce_proto::QpProtocol<Arc<Ah>>,
        link: &Link,
        packet: &CompactRecord,
    ) -> Option<FetchOp> {
        let headers = &packet.headers;
        // Counters count READs of the peer's.
        if !headers.is_by_result() || self.observers.any() || self.adapter.has_capture() {
            return None;
        }
        let op = fetch_of(link, packet)?;
        let is_expected = packet.payload_len() == 0
            && proto.expects_fetch(headers.psn(), headers.pkey, &op)
            // The requester reads results before packets: a result would overtake an earlier answer.
            && link.is_consumed(self.last_answer.load(Ordering::Relaxed));
        is_expected.then_some(op)
    }

    /// Executes the next packet of a run if it is a fetch that its result answers, and that is possible the short way: the answer is in the
    /// fetch's room then. Returns its length.
    #[inline(never)]
    pub(super) fn answer_next(
        &self,
        proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>,
        run: &RecordRun<'_>,
    ) -> Option<usize> {
        let (room, packet) = (run.answer()?, run.next_compact()?);
        let op = self.expected_fetch(proto, run.link(), packet)?;
        let by = KeyUser { pd: self.pd.id(), qp: self.serial };
        let original = match op {
            FetchOp::Read { va, rkey, len } => {
                fill_ring(by, PayloadSource::Remote { rkey, va, len }, &room, &mut None).ok()?;
                0
            }
            FetchOp::Atomic { va, rkey, op } => {
                let execute = |addr| if_present(addr, 8, || atomic::execute(addr, op));
                let original =
                    KeyTable::global().remote(by, rkey, va, 8, RemoteAccess::Atomic, execute).ok()?;
                room.put(&original.to_ne_bytes());
                original
            }
        };
        proto.fetch_answered(&op, original);
        Some(op.len() as usize)
    }
}

/// What a packet that is a fetch asks for.
#[inline]
fn fetch_of(link: &Link, packet: &CompactRecord) -> Option<FetchOp> {
    let Reth { va, rkey, dma_len: len } = packet.headers.reth();
    let op = match packet.headers.opcode().operation {
        Operation::ReadRequest => return Some(FetchOp::Read { va, rkey, len }),
        Operation::CompareSwap => {
            let [swap, compare] = link.operands(packet);
            AtomicOp::CompareSwap { compare, swap }
        }
        Operation::FetchAdd => AtomicOp::FetchAdd { add: link.operands(packet)[0] },
        _ => return None,
    };
    Some(FetchOp::Atomic { va, rkey, op })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::links::tests::{Meanwhile, leave};
    use crate::namespace::in_namespace;
    use crate::side::{Side, open};
    use ferroce_proto::{Data, SendWr};
    use ferroce_types::WcStatus;

    /// Leaves a packet for no queue pair in the ring, and returns the position after its cell.
    fn leaves(link: &Link) -> u64 {
        match leave(link) {
            SendOutcome::Published(end) => end,
            other => panic!("{other:?}"),
        }
    }

    fn link_of(side: &Side) -> Arc<Link> {
        let Some(Path::Shm { link, .. }) = side.qp.inner.lock().path.clone() else { panic!("another path") };
        link
    }

    /// Adds 1 to the peer's first word. The original value goes to word number `wr_id` of `asks`, whole or in halves.
    fn add(asks: &Side, answers: &Side, wr_id: u64, in_halves: bool) {
        let op = SendOp::FetchAdd { va: answers.addr(), rkey: answers.mr.key(), add: 1 };
        let (at, parts) = (wr_id as usize * 8, if in_halves { 2 } else { 1 });
        let data = Data::Sges((0..parts).map(|part| asks.sge(at + part * 4, 8 / parts)).collect());
        let (signaled, solicited, fence) = (true, false, false);
        let wr = SendWr { wr_id, op, data, signaled, solicited, fence, ud: None, remote_srqn: 0 };
        asks.qp.post_send(wr.request()).unwrap();
    }

    /// Posts SENDs and atomics in a row, before any of them is taken. Returns how many cells they and their answers have taken.
    fn cells_of(posts: impl FnOnce(&Side, &Side) + Send, sends: u64, atomics: u64) -> u64 {
        let context = open();
        let [asks, answers] = [(); 2].map(|()| Side::new(&context, Service::Rc, 128));
        asks.connect(answers.qp.qpn());
        answers.connect(asks.qp.qpn());
        // The first takes the general way: the peer's process isn't known to share memory.
        add(&asks, &answers, 0, false);
        assert_eq!(asks.wait().status, WcStatus::Success);
        (0..sends).for_each(|wr_id| answers.recv(wr_id, answers.sge(64, 8)));
        let adapter = context.adapter().unwrap();
        let (link, mut begin) = (adapter.links.to_itself().unwrap(), 0);
        let mut meanwhile = Meanwhile(Some(|| {
            begin = leaves(link);
            posts(&asks, &answers);
        }));
        // Another thread may take the first packet.
        while meanwhile.0.is_some() {
            leaves(link);
            link.receive(1, &mut meanwhile);
        }
        adapter.take_what_was_left();
        (0..sends + atomics).for_each(|_| assert_eq!(asks.wait().status, WcStatus::Success));
        (0..sends).for_each(|_| assert_eq!(answers.wait().status, WcStatus::Success));
        for wr_id in 0..=atomics {
            let at = wr_id as usize * 8;
            assert_eq!(asks.memory[at..at + 8], wr_id.to_ne_bytes());
        }
        assert_eq!(asks.qp.inner.lock().proto.counters().implied_naks, 0);
        let cells = leaves(link) - begin - 1;
        asks.close();
        answers.close();
        cells
    }

    #[test]
    fn fetches_between_sends_end_and_none_is_asked_for_again() {
        const NAME: &str = "qp::fetch::tests::fetches_between_sends_end_and_none_is_asked_for_again";
        in_namespace(NAME, || {
            let posts = |asks: &Side, answers: &Side| {
                for wr_id in 1..=3 {
                    add(asks, answers, wr_id, false);
                    asks.send(wr_id, SendOp::Send, asks.sge(64, 8), None);
                }
            };
            // At most one packet answers each request.
            assert!(cells_of(posts, 3, 3) <= 6 + 6);
        });
    }

    #[test]
    fn no_result_overtakes_the_answer_to_an_earlier_fetch() {
        const NAME: &str = "qp::fetch::tests::no_result_overtakes_the_answer_to_an_earlier_fetch";
        in_namespace(NAME, || {
            let posts = |asks: &Side, answers: &Side| {
                // In halves, it takes the general way.
                add(asks, answers, 1, true);
                add(asks, answers, 2, false);
            };
            assert_eq!(cells_of(posts, 0, 2), 4);
        });
    }

    /// The packet in between is for no queue pair, so the second fetch is looked at when the first has been answered. The answer is behind it.
    #[test]
    fn no_result_overtakes_an_answer_that_has_left_and_is_unread() {
        const NAME: &str = "qp::fetch::tests::no_result_overtakes_an_answer_that_has_left_and_is_unread";
        in_namespace(NAME, || {
            let posts = |asks: &Side, answers: &Side| {
                add(asks, answers, 1, true);
                leaves(&link_of(asks));
                add(asks, answers, 2, false);
            };
            assert_eq!(cells_of(posts, 0, 2), 1 + 4);
        });
    }

    #[test]
    fn an_atomic_takes_one_cell_of_the_ring_and_its_answer_none() {
        const NAME: &str = "qp::fetch::tests::an_atomic_takes_one_cell_of_the_ring_and_its_answer_none";
        in_namespace(NAME, || {
            const ATOMICS: u64 = 10;
            let context = open();
            let [asks, answers] = [(); 2].map(|()| Side::new(&context, Service::Rc, 64));
            asks.connect(answers.qp.qpn());
            answers.connect(asks.qp.qpn());
            let original = || u64::from_ne_bytes(*asks.memory.first_chunk().unwrap());
            let add_by = |rkey| {
                let op = SendOp::FetchAdd { va: answers.addr(), rkey, add: 3 };
                let data = Data::Sges(std::iter::once(asks.sge(0, 8)).collect());
                let (signaled, solicited, fence) = (true, false, false);
                let wr = SendWr { wr_id: 1, op, data, signaled, solicited, fence, ud: None, remote_srqn: 0 };
                asks.qp.post_send(wr.request()).unwrap();
                asks.wait().status
            };
            // The first takes the general way: the peer's process isn't known to share memory.
            assert_eq!(add_by(answers.mr.key()), WcStatus::Success);
            let link = link_of(&asks);
            let begin = leaves(&link);
            for n in 1..=ATOMICS {
                assert_eq!(add_by(answers.mr.key()), WcStatus::Success);
                assert_eq!(original(), 3 * n);
            }
            assert_eq!(leaves(&link), begin + ATOMICS + 1);
            // It is left to the general rules, which refuse it.
            assert_eq!(add_by(answers.mr.key() ^ 0xff), WcStatus::RemAccessErr);
            assert_eq!(original(), 3 * ATOMICS, "nothing has come");
        });
    }
}
