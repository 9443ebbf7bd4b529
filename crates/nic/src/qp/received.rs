//! Receive completions until the program may see them: when the peer has the acknowledgement. So a receive succeeds if and only if its
//! SEND succeeds at the peer, also where a QP is flushed next.

use ferroce_queues::{Srq, WcTags};
use ferroce_types::Completion;
use std::sync::Arc;

/// A completion for the completion queue of an SRQ (XRC, tag matching).
#[derive(Debug)]
pub(crate) struct OfSrq {
    pub(crate) srq: Arc<Srq>,
    pub(crate) completion: Completion,
    pub(crate) number: u64,
    pub(crate) tags: WcTags,
}

/// Receive completions that aren't published, each with the number of the packet that an answer has to acknowledge first.
#[derive(Default, Debug)]
pub(crate) struct ReceiveCompletions {
    /// For the QP's own completion queue.
    pub(crate) own: Vec<(Completion, u64)>,
    pub(crate) of_srqs: Vec<OfSrq>,
}

impl ReceiveCompletions {
    pub(crate) fn is_empty(&self) -> bool {
        self.own.is_empty() && self.of_srqs.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.own.clear();
        self.of_srqs.clear();
    }

    /// Moves the first with the number `from` or a later one, and all after it, to the end of `held`.
    #[cold]
    pub(crate) fn hold_back(&mut self, from: u64, held: &mut Self) {
        let own = self.own.iter().position(|&(_, number)| number >= from).unwrap_or(self.own.len());
        held.own.extend(self.own.drain(own..));
        let of_srqs =
            self.of_srqs.iter().position(|of_srq| of_srq.number >= from).unwrap_or(self.of_srqs.len());
        held.of_srqs.extend(self.of_srqs.drain(of_srqs..));
    }

    /// Puts those of `held` before the others.
    #[cold]
    pub(crate) fn put_back(&mut self, held: &mut Self) {
        let Self { own, of_srqs, .. } = std::mem::take(held);
        self.own.splice(0..0, own);
        // The program expects nothing more of an SRQ that it has destroyed meanwhile.
        self.of_srqs.splice(0..0, of_srqs.into_iter().filter(|of_srq| !of_srq.srq.has_ended()));
    }

    /// Makes flushed ones of those with the number `from` or a later one. `flushed` returns the flushed completion of a request.
    #[cold]
    pub(crate) fn flush(&mut self, from: u64, flushed: impl Fn(u64) -> Completion) {
        let own = self.own.iter_mut().map(|(completion, number)| (completion, *number));
        let of_srqs = self.of_srqs.iter_mut().map(|of_srq| (&mut of_srq.completion, of_srq.number));
        for (completion, _) in own.chain(of_srqs).filter(|&(_, number)| number >= from) {
            *completion = flushed(completion.wr_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Arc, Completion, OfSrq, ReceiveCompletions, Srq, WcTags};
    use crate::Poll as _;
    use crate::adapter::ThreadBuffers;
    use crate::fabric::links::tests::{Meanwhile, leave};
    use crate::namespace::in_namespace;
    use crate::qp::{Path, QpEnv, RxPayload};
    use crate::side::{Side, open};
    use ferroce_hostlink::{Link, SendOutcome};
    use ferroce_os::clock;
    use ferroce_parts::{Ah, QpAttr, mask};
    use ferroce_proto::QpProtocol;
    use ferroce_queues::SrqAttr;
    use ferroce_types::{PacketMeta, QpState, WcOpcode, WcStatus};
    use ferroce_wire::{Bth, Headers, Opcode, Operation, Reth, Service};

    fn completion(wr_id: u64) -> Completion {
        Completion::new(wr_id, WcStatus::Success, WcOpcode::Recv)
    }

    fn numbers(received: &ReceiveCompletions) -> (Vec<u64>, Vec<u64>) {
        (
            received.own.iter().map(|(completion, _)| completion.wr_id).collect(),
            received.of_srqs.iter().map(|of_srq| of_srq.completion.wr_id).collect(),
        )
    }

    #[test]
    fn what_is_held_back_comes_before_what_comes_later() {
        in_namespace("qp::received::tests::what_is_held_back_comes_before_what_comes_later", || {
            let side = Side::new(&open(), Service::Rc, 64);
            let own = |wr_id: u64| (completion(wr_id), 10 * wr_id);
            let attr = SrqAttr { max_wr: 1, max_sge: 1, limit: 0 };
            let srq = Srq::create(&side.pd, attr, 0).unwrap();
            let of_srq = |wr_id: u64| {
                let (srq, number, tags) = (srq.clone(), 10 * wr_id, WcTags::default());
                OfSrq { srq, completion: completion(wr_id), number, tags }
            };
            let (mut received, mut held) = (ReceiveCompletions::default(), ReceiveCompletions::default());
            received.own.extend([2, 3, 4].map(own));
            received.of_srqs.extend([1, 11].map(of_srq));
            received.hold_back(30, &mut held);
            assert_eq!((numbers(&received), numbers(&held)), ((vec![2], vec![1]), (vec![3, 4], vec![11])));
            received.clear();
            // What waits for no acknowledgement waits for what is before it.
            received.own.extend([own(5), (completion(6), 0)]);
            received.of_srqs.push(of_srq(12));
            received.put_back(&mut held);
            assert_eq!(numbers(&received), (vec![3, 4, 5, 6], vec![11, 12]));
            received.hold_back(40, &mut held);
            assert_eq!(
                (numbers(&received), numbers(&held)),
                ((vec![3], vec![]), (vec![4, 5, 6], vec![11, 12]))
            );
            held.flush(50, |wr_id| Completion::new(wr_id, WcStatus::WrFlushErr, WcOpcode::Recv));
            let flushed = |completion: &Completion| completion.status == WcStatus::WrFlushErr;
            assert!(held.own.iter().map(|(completion, _)| flushed(completion)).eq([false, true, false]));
            assert!(held.of_srqs.iter().all(|of_srq| flushed(&of_srq.completion)));
            srq.destroy().unwrap();
            received.clear();
            received.put_back(&mut held);
            assert_eq!(numbers(&received), (vec![4, 5, 6], vec![]), "nothing of an SRQ that has ended");
            received.clear();
            assert!(held.is_empty() && received.is_empty());
        });
    }

    type Transport = QpProtocol<Arc<Ah>>;

    /// More bytes than a ring has room for.
    const LONG: usize = 16 << 20;

    /// Leaves a packet for no queue pair in the ring; false when there is no room.
    fn leaves(link: &Link) -> bool {
        matches!(leave(link), SendOutcome::Published(_))
    }

    /// A queue pair with three receives, and its peer. `execute` runs while nothing in the ring between them is read.
    fn sides(bytes: usize, execute: impl FnOnce(&Side, &Link, &PacketMeta) + Send) -> [Side; 2] {
        let context = open();
        let sides = [(); 2].map(|()| Side::new(&context, Service::Rc, bytes));
        let [sender, receiver] = &sides;
        sender.connect(receiver.qp.qpn());
        receiver.connect(sender.qp.qpn());
        (1..=3).for_each(|wr_id| receiver.recv(wr_id, receiver.sge(0, 8)));
        let Some(Path::Shm { meta, link }) = sender.qp.inner.lock().path.clone() else {
            panic!("another path")
        };
        assert!(link.is_to_itself() && leaves(&link));
        let execute = || execute(receiver, &link, &meta);
        assert_eq!(link.receive(1, &mut Meanwhile(Some(execute))), Some(true));
        sides
    }

    /// Gives `receiver` a SEND of its peer, or a READ of that many bytes.
    fn handle(
        receiver: &Side,
        meta: &PacketMeta,
        (env, proto): (&mut QpEnv<'_>, &mut Transport),
        read: Option<u32>,
    ) {
        let operation = if read.is_some() { Operation::ReadRequest } else { Operation::SendOnly };
        let opcode = Opcode { service: Service::Rc, operation };
        let mut headers =
            Headers::new(Bth { ack_request: true, ..Bth::new(opcode, receiver.qp.qpn(), proto.rq_psn()) });
        headers.reth = read.map(|dma_len| Reth { va: receiver.addr(), rkey: receiver.mr.key(), dma_len });
        let payload: &[u8] = if read.is_some() { &[] } else { &[7; 8] };
        let meta = meta.with_len(headers.packet_len(payload.len()));
        env.handle(proto, clock::now(), &headers, RxPayload::of_packet(payload), &meta);
    }

    fn work(receiver: &Side, f: impl FnOnce((&mut QpEnv<'_>, &mut Transport))) {
        let run =
            |work: &mut ThreadBuffers| receiver.qp.work(work, clock::now(), |proto, env| f((env, proto)));
        receiver.qp.adapter.with_work(run);
    }

    fn fail(receiver: &Side) {
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        receiver.qp.modify(&attr, mask::STATE).unwrap();
        // Nor is anything acknowledged later.
        assert!(!receiver.qp.inner.lock().proto.owes_acknowledgement());
    }

    /// The next completions of receives are of these, with this status.
    fn expect(receiver: &Side, numbers: std::ops::RangeInclusive<u64>, status: WcStatus) {
        for wr_id in numbers {
            let completion = receiver.wait();
            assert_eq!((completion.wr_id, completion.status), (wr_id, status));
        }
    }

    /// A queue pair that has executed a SEND, and its peer. There was no room for the ACK in the ring between them while `meanwhile` ran.
    fn executed_without_room(meanwhile: impl FnOnce(&Side) + Send) -> [Side; 2] {
        sides(64, |receiver, link, meta| {
            while leaves(link) {}
            work(receiver, |transport| handle(receiver, meta, transport, None));
            assert_eq!(receiver.qp.counters().messages_received, 1);
            let polled = receiver.cq.poll(1, |_| ()).unwrap();
            assert_eq!(polled, 0, "received before its ACK has left");
            meanwhile(receiver);
        })
    }

    #[test]
    fn a_receive_completes_when_its_ack_has_left() {
        in_namespace("qp::received::tests::a_receive_completes_when_its_ack_has_left", || {
            let [_, receiver] = executed_without_room(|_| ());
            expect(&receiver, 1..=1, WcStatus::Success);
        });
    }

    #[test]
    fn a_receive_whose_ack_has_not_left_is_flushed_in_its_place() {
        in_namespace("qp::received::tests::a_receive_whose_ack_has_not_left_is_flushed_in_its_place", || {
            let [_, receiver] = executed_without_room(fail);
            expect(&receiver, 1..=3, WcStatus::WrFlushErr);
        });
    }

    /// The first packet of the answer acknowledges the SEND before the READ, and the answer doesn't fit into the ring.
    #[test]
    fn a_receive_completes_when_the_answer_to_a_later_read_has_begun_to_leave() {
        in_namespace(
            "qp::received::tests::a_receive_completes_when_the_answer_to_a_later_read_has_begun_to_leave",
            || {
                let [_, receiver] = sides(LONG, |receiver, _, meta| {
                    work(receiver, |(env, proto)| {
                        for read in [None, Some(LONG as u32), None] {
                            handle(receiver, meta, (env, proto), read);
                        }
                    });
                    assert_eq!(receiver.qp.counters().messages_received, 3);
                    expect(receiver, 1..=1, WcStatus::Success);
                    assert!(receiver.qp.inner.lock().proto.owes_acknowledgement());
                    fail(receiver);
                });
                expect(&receiver, 2..=3, WcStatus::WrFlushErr);
            },
        );
    }

    #[test]
    fn a_receive_whose_ack_has_not_left_is_dropped_by_a_reset() {
        in_namespace("qp::received::tests::a_receive_whose_ack_has_not_left_is_dropped_by_a_reset", || {
            let [sender, receiver] = executed_without_room(Side::reset);
            receiver.connect(sender.qp.qpn());
            assert_eq!(receiver.cq.poll(1, |_| ()).unwrap(), 0);
        });
    }
}
