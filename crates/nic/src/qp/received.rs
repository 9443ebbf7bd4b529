//! Receive completions until the program may see them: when the peer has the acknowledgement. So a receive succeeds if and only if its
//! SEND succeeds at the peer, also where a QP is flushed next.

use ferroce_queues::{Cq, WcTags};
use ferroce_types::Completion;
use std::sync::Arc;

/// A completion for the completion queue of an SRQ (XRC, tag matching).
pub(crate) type OfSrq = (Arc<Cq>, Completion, WcTags);

/// Receive completions that aren't published.
#[derive(Default, Debug)]
pub(crate) struct ReceiveCompletions {
    /// For the QP's own completion queue.
    pub(crate) own: Vec<Completion>,
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

    /// Moves all to the end of `held`.
    #[cold]
    pub(crate) fn hold_back(&mut self, held: &mut Self) {
        held.own.append(&mut self.own);
        held.of_srqs.append(&mut self.of_srqs);
    }

    /// Puts those of `held` before the others.
    #[cold]
    pub(crate) fn put_back(&mut self, held: &mut Self) {
        let Self { own, of_srqs, .. } = std::mem::take(held);
        self.own.splice(0..0, own);
        self.of_srqs.splice(0..0, of_srqs);
    }

    /// Makes flushed ones of all. `flushed` returns the flushed completion of a request.
    #[cold]
    pub(crate) fn flush(&mut self, flushed: impl Fn(u64) -> Completion) {
        let of_srqs = self.of_srqs.iter_mut().map(|(_, completion, _)| completion);
        for completion in self.own.iter_mut().chain(of_srqs) {
            *completion = flushed(completion.wr_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Completion, OfSrq, ReceiveCompletions, WcTags};
    use crate::Poll as _;
    use crate::namespace::in_namespace;
    use crate::qp::{Path, QpAttr, RxPayload, mask};
    use crate::side::{Side, open};
    use ferroce_hostlink::{CompactHeaders, Link, Receive, RecordRun, SendOutcome, SentPacket};
    use ferroce_os::clock;
    use ferroce_types::{QpState, WcOpcode, WcStatus};
    use ferroce_wire::Service;
    use ferroce_wire::{Bth, Headers, Opcode, Operation};

    fn completion(wr_id: u64) -> Completion {
        Completion::new(wr_id, WcStatus::Success, WcOpcode::Recv)
    }

    fn numbers(received: &ReceiveCompletions) -> (Vec<u64>, Vec<u64>) {
        let number = |completion: &Completion| completion.wr_id;
        (
            received.own.iter().map(number).collect(),
            received.of_srqs.iter().map(|(_, completion, _)| number(completion)).collect(),
        )
    }

    #[test]
    fn what_is_held_back_comes_before_what_comes_later() {
        in_namespace("qp::received::tests::what_is_held_back_comes_before_what_comes_later", || {
            let side = Side::new(&open(), Service::Rc, 64);
            let of_srq = |wr_id| -> OfSrq { (side.cq.clone(), completion(wr_id), WcTags::default()) };
            let (mut received, mut held) = (ReceiveCompletions::default(), ReceiveCompletions::default());
            received.own.extend([3, 4].map(completion));
            received.of_srqs.push(of_srq(11));
            received.hold_back(&mut held);
            assert_eq!((received.is_empty(), numbers(&held)), (true, (vec![3, 4], vec![11])));
            received.own.push(completion(5));
            received.of_srqs.push(of_srq(12));
            received.put_back(&mut held);
            assert_eq!(numbers(&received), (vec![3, 4, 5], vec![11, 12]));
            received.hold_back(&mut held);
            assert!(received.is_empty() && numbers(&held) == (vec![3, 4, 5], vec![11, 12]));
            held.clear();
            assert!(held.is_empty());
        });
    }

    /// The first PSN of a [`Side`].
    const PSN: u32 = 0xff_fff0;

    /// Takes what comes by holding the ring until another thread has run this.
    struct Meanwhile<F>(Option<F>);

    impl<F: FnOnce() + Send> Receive for Meanwhile<F> {
        fn run(&mut self, _: &mut RecordRun<'_>) -> bool {
            if let Some(f) = self.0.take() {
                // Another thread, which takes locks of its own.
                std::thread::scope(|scope| scope.spawn(f).join().unwrap());
            }
            true
        }

        fn executed(&mut self, _: SentPacket) {}
    }

    /// Leaves a packet for no queue pair in the ring; false when there is no room.
    fn leaves(link: &Link) -> bool {
        let opcode = Opcode { service: Service::Rc, operation: Operation::SendOnly };
        let headers = CompactHeaders::of_send(opcode, (0xffff, 0), PSN, (false, 0));
        matches!(link.send_on_connection::<()>(&headers, 0, |_| Ok(())), SendOutcome::Published(_))
    }

    /// A queue pair that has executed a SEND and has another receive, and its peer. There was no room for the ACK in the ring between them
    /// while `meanwhile` ran.
    fn executed_without_room(meanwhile: impl FnOnce(&Side) + Send) -> [Side; 2] {
        let context = open();
        let sides = [(); 2].map(|()| Side::new(&context, Service::Rc, 64));
        let [sender, receiver] = &sides;
        sender.connect(receiver.qp.qpn());
        receiver.connect(sender.qp.qpn());
        (1..=2).for_each(|wr_id| receiver.recv(wr_id, receiver.sge(0, 8)));
        let Some(Path::Shm { meta, link }) = sender.qp.inner.lock().path.clone() else {
            panic!("another path")
        };
        assert!(link.is_to_itself() && leaves(&link));
        let execute = || {
            while leaves(&link) {}
            let opcode = Opcode { service: Service::Rc, operation: Operation::SendOnly };
            let headers = Headers::new(Bth { ack_request: true, ..Bth::new(opcode, receiver.qp.qpn(), PSN) });
            let (payload, now) = ([7; 8], clock::now());
            let meta = meta.with_len(headers.packet_len(payload.len()));
            receiver.qp.adapter.with_work(|work| {
                receiver.qp.work(work, now, |proto, env| {
                    env.handle(proto, now, &headers, RxPayload::of_packet(&payload), &meta);
                });
            });
            assert_eq!(receiver.qp.counters().messages_received, 1);
            let polled = receiver.cq.poll(1, |_| ()).unwrap();
            assert_eq!(polled, 0, "received before its ACK has left");
            meanwhile(receiver);
        };
        assert_eq!(link.receive(1, &mut Meanwhile(Some(execute))), Some(true));
        sides
    }

    #[test]
    fn a_receive_completes_when_its_ack_has_left() {
        in_namespace("qp::received::tests::a_receive_completes_when_its_ack_has_left", || {
            let [_, receiver] = executed_without_room(|_| ());
            let completion = receiver.wait();
            assert_eq!((completion.wr_id, completion.status), (1, WcStatus::Success));
        });
    }

    #[test]
    fn a_receive_whose_ack_has_not_left_is_flushed_in_its_place() {
        in_namespace("qp::received::tests::a_receive_whose_ack_has_not_left_is_flushed_in_its_place", || {
            let [_, receiver] = executed_without_room(|receiver| {
                let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
                receiver.qp.modify(&attr, mask::STATE).unwrap();
                // Nor is it acknowledged later.
                assert!(!receiver.qp.inner.lock().proto.owes_acknowledgement());
            });
            for wr_id in 1..=2 {
                let completion = receiver.wait();
                assert_eq!((completion.wr_id, completion.status), (wr_id, WcStatus::WrFlushErr));
            }
        });
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
