//! Fetches between two processes of a host, that is READs of one packet and atomics: the short way, from the program's request to the
//! ring, and from the ring to the answer, which the result of the cell comes with. [`SendRequest::fetches_to`] returns an element for
//! requests that may take it.

use super::payload::fill_ring;
use super::{LockedQp, Path, Qp};
use crate::ah::Ah;
use ferroce_access::{atomic, copy};
use ferroce_hostlink::{CompactHeaders, CompactRecord, Link, RecordRun, SendOutcome};
use ferroce_mem::{KeyTable, KeyUser};
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
        let Some(psn) = proto.fetch_psn(fetch).filter(|_| usable) else { return false };
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

    /// Executes the next packet of a run if it is a fetch that its result answers, and that is possible the short way: the answer is in the
    /// fetch's room then. Returns its length.
    #[inline(never)]
    pub(super) fn answer_next(
        &self,
        proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>,
        run: &RecordRun<'_>,
    ) -> Option<usize> {
        let (room, packet) = (run.answer()?, run.next_compact()?);
        // Counters count READs of the peer's.
        if self.observers.any() || self.adapter.has_capture() {
            return None;
        }
        let (op, headers) = (fetch_of(run.link(), packet)?, &packet.headers);
        if run.link().payload(packet).len() > 0 || !proto.expects_fetch(headers.psn(), headers.pkey, &op) {
            return None;
        }
        let by = KeyUser { pd: self.pd.id(), qp: self.serial };
        let original = match op {
            FetchOp::Read { va, rkey, len } => {
                fill_ring(by, PayloadSource::Remote { rkey, va, len }, &room).ok()?;
                0
            }
            FetchOp::Atomic { va, rkey, op } => {
                let execute = |addr| atomic::execute(addr, op);
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
    use crate::namespace::in_namespace;
    use crate::side::{Side, open};
    use ferroce_proto::{Data, SendWr};
    use ferroce_types::WcStatus;

    /// Leaves a packet for no queue pair in the ring, and returns the position after its cell.
    fn leaves(link: &Link) -> u64 {
        let opcode = Opcode { service: Service::Rc, operation: Operation::SendOnly };
        let headers = CompactHeaders::of_send(opcode, (0xffff, 0), 0, (false, 0));
        match link.send_on_connection::<()>(&headers, (0, 0), 0, |_| Ok(())) {
            SendOutcome::Published(end) => end,
            other => panic!("{other:?}"),
        }
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
            let add = |rkey| {
                let op = SendOp::FetchAdd { va: answers.addr(), rkey, add: 3 };
                let data = Data::Sges(std::iter::once(asks.sge(0, 8)).collect());
                let (signaled, solicited, fence) = (true, false, false);
                let wr = SendWr { wr_id: 1, op, data, signaled, solicited, fence, ud: None, remote_srqn: 0 };
                asks.qp.post_send(wr.request()).unwrap();
                asks.wait().status
            };
            // The first takes the general way: the peer's process isn't known to share memory.
            assert_eq!(add(answers.mr.key()), WcStatus::Success);
            let Some(Path::Shm { link, .. }) = asks.qp.inner.lock().path.clone() else {
                panic!("another path")
            };
            let begin = leaves(&link);
            for n in 1..=ATOMICS {
                assert_eq!(add(answers.mr.key()), WcStatus::Success);
                assert_eq!(original(), 3 * n);
            }
            assert_eq!(leaves(&link), begin + ATOMICS + 1);
            // It is left to the general rules, which refuse it.
            assert_eq!(add(answers.mr.key() ^ 0xff), WcStatus::RemAccessErr);
            assert_eq!(original(), 3 * ATOMICS, "nothing has come");
        });
    }
}
