//! Packets that come alone, which take the short way: what a message leaves behind, and which packets aren't the peer's.

use super::keeping::{PSN, Responder, another_port, own_address};
use super::namespace::in_namespace;
use ferroce_nic::Poll as _;
use ferroce_os::clock;
use ferroce_proto::SendOp;
use ferroce_tests::wait::eventually;
use ferroce_types::{HostAddr, QpState, Sge, WcStatus};
use ferroce_udp::{Dest, Endpoint, TxBatch};
use ferroce_wire::crc::extend;
use ferroce_wire::{AtomicEth, Bth, Headers, NakCode, Opcode, Operation, Reth, Service, Syndrome};
use std::net::Ipv4Addr;
use std::sync::Arc;

const ACK: u8 = Syndrome::ACK_UNLIMITED.to_u8();
const LEN: usize = 8;

/// A SEND that leaves alone.
#[derive(Clone, Copy)]
struct Sent {
    number: u32,
    ack_request: bool,
    damaged: bool,
}

const fn sent(number: u32) -> Sent {
    Sent { number, ack_request: true, damaged: false }
}

impl Responder {
    /// The headers of a packet that asks for an answer.
    fn headers(&self, operation: Operation, number: u32) -> Headers {
        let opcode = Opcode { service: Service::Rc, operation };
        let psn = PSN.wrapping_add(number) & 0xff_ffff;
        Headers::new(Bth { ack_request: true, ..Bth::new(opcode, self.side.qp.qpn(), psn) })
    }

    fn sends_by(&self, dest: &Dest, send: Sent) {
        let Sent { number, ack_request, damaged } = send;
        let mut headers = self.headers(Operation::SendOnly, number);
        headers.bth.ack_request = ack_request;
        let fill = |buffer: &mut [u8], crc| {
            buffer.fill(1 + number as u8);
            let right = extend(crc, buffer);
            // More than two bytes: an identification may explain less.
            Ok::<u32, ()>(if damaged { right ^ 0x5a5a_5a5a } else { right })
        };
        let mut batch = TxBatch::new();
        batch.packet(dest, &headers, LEN, fill).unwrap();
        assert_eq!(batch.flush(clock::now()).sent, 1);
    }

    /// Asks for so many bytes from a multiple of them on, and returns the answers.
    fn reads(&self, number: u32, len: usize) -> Vec<(u32, u8, Vec<u8>)> {
        let va = self.side.addr() + u64::from(number) * len as u64;
        let reth = Some(Reth { va, rkey: self.side.mr.rkey(), dma_len: len as u32 });
        self.asks(&Headers { reth, ..self.headers(Operation::ReadRequest, number) })
    }

    /// Adds to the first word, and returns the answers.
    fn adds(&self, number: u32, swap_or_add: u64) -> Vec<(u32, u8, Vec<u8>)> {
        let (va, rkey) = (self.side.addr(), self.side.mr.rkey());
        let atomic = Some(AtomicEth { va, rkey, swap_or_add, compare: 0 });
        self.asks(&Headers { atomic, ..self.headers(Operation::FetchAdd, number) })
    }

    fn asks(&self, headers: &Headers) -> Vec<(u32, u8, Vec<u8>)> {
        let mut batch = TxBatch::new();
        batch.packet(&self.dest, headers, 0, |_, crc| Ok::<u32, ()>(crc)).unwrap();
        assert_eq!(batch.flush(clock::now()).sent, 1);
        let mut answers = Vec::new();
        eventually("an answer", || {
            assert_eq!(self.side.cq.poll(1, |_| ()).unwrap(), 0);
            answers = self.answers();
            !answers.is_empty()
        });
        answers
    }

    /// The SEND completes the oldest receive, which has its number. Returns the answers to it.
    fn receives(&self, number: u32) -> Vec<(u32, u8, Vec<u8>)> {
        let mut found = None;
        eventually("the receive completes", || {
            self.side.cq.poll(1, |completion| found = Some(*completion)).unwrap();
            found.is_some()
        });
        // Nothing of this process has run since.
        let answers = self.answers();
        let completion = found.unwrap();
        assert_eq!((completion.wr_id, completion.status), (u64::from(number), WcStatus::Success));
        assert_eq!((completion.byte_len, completion.qp_num), (LEN as u32, self.side.qp.qpn()));
        let at = number as usize * LEN;
        assert_eq!(self.side.memory[at..at + LEN], [1 + number as u8; LEN]);
        answers
    }

    fn posts_receives(&self, count: u32) {
        for number in 0..count {
            self.side.recv(u64::from(number), self.side.sge(number as usize * LEN, LEN));
        }
    }

    /// Polls for a while in which a packet would have been executed.
    fn receives_nothing(&self) {
        for _ in 0..1000 {
            assert_eq!(self.side.cq.poll(1, |_| ()).unwrap(), 0);
        }
        assert_eq!(self.answers(), []);
    }
}

#[test]
fn a_send_that_comes_alone_is_acknowledged_before_its_receive_completes() {
    in_namespace("alone::a_send_that_comes_alone_is_acknowledged_before_its_receive_completes", || {
        let responder = Responder::new("20000 30000");
        responder.posts_receives(4);
        for number in 0..3 {
            responder.sends_by(&responder.dest, sent(number));
            assert_eq!(responder.receives(number), [(number, ACK, vec![])]);
        }
        // The requester has asked for none.
        responder.sends_by(&responder.dest, Sent { ack_request: false, ..sent(3) });
        assert_eq!(responder.receives(3), []);
        let counters = responder.side.qp.counters();
        assert_eq!((counters.messages_received, counters.responses_sent), (4, 3));
    });
}

#[test]
fn a_write_that_comes_alone_is_placed_and_acknowledged_if_its_key_permits_it() {
    in_namespace("alone::a_write_that_comes_alone_is_placed_and_acknowledged_if_its_key_permits_it", || {
        let responder = Responder::new("20000 30000");
        for number in 0..3 {
            responder.arrives(number);
            responder.has_executed(1 + number);
            assert_eq!(responder.answers(), [(number as u32, ACK, vec![])]);
        }
        let counters = responder.side.qp.counters();
        assert_eq!((counters.messages_received, counters.responses_sent), (3, 3));
        responder.side.mr.deregister().unwrap();
        responder.arrives(3);
        responder.has_executed(3);
        // The reason is sent ahead of the NAK.
        let refused = responder.answers().last().map(|(number, syndrome, _)| (*number, *syndrome));
        assert_eq!(refused, Some((3, Syndrome::Nak(NakCode::RemoteAccessError).to_u8())));
        assert_eq!(responder.side.qp.query().unwrap().state, QpState::Err);
    });
}

#[test]
fn a_read_or_an_atomic_that_comes_alone_is_answered_if_its_key_permits_it() {
    in_namespace("alone::a_read_or_an_atomic_that_comes_alone_is_answered_if_its_key_permits_it", || {
        let responder = Responder::new("20000 30000");
        responder.arrives(0);
        responder.answers();
        // Of any length: only a short answer is sent alone.
        for (number, len) in [(1, 8), (2, 5), (3, 256), (4, 300)] {
            let at = number as usize * len;
            let expected = responder.side.memory[at..at + len].to_vec();
            assert_eq!(responder.reads(number, len), [(number, ACK, expected)]);
        }
        let word = || u64::from_ne_bytes(*responder.side.memory.first_chunk().unwrap());
        let before = word();
        // What comes again is answered again, and executed once.
        for _ in 0..2 {
            assert_eq!(responder.adds(5, 3), [(5, ACK, vec![])]);
            assert_eq!(word(), before + 3);
        }
        let counters = responder.side.qp.counters();
        assert_eq!((counters.messages_received, counters.responses_sent, counters.duplicates), (6, 7, 1));
        responder.side.mr.deregister().unwrap();
        let refused = responder.adds(6, 3).last().map(|(number, syndrome, _)| (*number, *syndrome));
        assert_eq!(refused, Some((6, Syndrome::Nak(NakCode::RemoteAccessError).to_u8())));
        assert_eq!(word(), before + 3);
        assert_eq!(responder.side.qp.query().unwrap().state, QpState::Err);
    });
}

#[test]
fn reads_and_atomics_that_leave_alone_get_their_answers() {
    in_namespace("alone::reads_and_atomics_that_leave_alone_get_their_answers", || {
        let Responder { side: answers, peer: asks, .. } = Responder::new("20000 30000");
        asks.connect(answers.qp.qpn());
        let ends = |wr_id, op, sge| {
            asks.send(wr_id, op, sge, None);
            let completion = asks.wait();
            assert_eq!(completion.wr_id, wr_id);
            completion.status
        };
        let (va, rkey) = (answers.addr(), answers.mr.rkey());
        let send = |at: usize, value: u64| {
            answers.recv(0, answers.sge(at, 8));
            let sge = asks.sge(0, 8);
            let op = SendOp::FetchAdd { va: va + 64, rkey, add: value };
            assert_eq!(ends(1, op, sge), WcStatus::Success);
            assert_eq!(ends(2, SendOp::Send, sge), WcStatus::Success);
            assert_eq!(answers.wait().status, WcStatus::Success);
        };
        // The SENDs put the original values there, which the READs find.
        for (at, value) in [(0, 7), (8, 1 << 40), (16, 1)] {
            send(at, value);
        }
        let swap = SendOp::CompareSwap { va: va + 64, rkey, compare: 8 + (1 << 40), swap: 9 };
        assert_eq!(ends(3, swap, asks.sge(32, 8)), WcStatus::Success);
        let expected = [0, 7, 7 + (1 << 40)].map(u64::to_ne_bytes);
        for len in [24, 5] {
            assert_eq!(ends(4, SendOp::Read { va, rkey }, asks.sge(64, len)), WcStatus::Success);
            assert_eq!(asks.memory[64..][..len], expected.as_flattened()[..len]);
        }
        assert_eq!(ends(5, SendOp::Read { va: va + 64, rkey }, asks.sge(40, 8)), WcStatus::Success);
        let words = [8 + (1 << 40), 9].map(u64::to_ne_bytes);
        assert_eq!(asks.memory[32..48], *words.as_flattened());
        // An answer has no place without the key.
        let nowhere = Sge { lkey: asks.mr.key() ^ 0xff, ..asks.sge(64, 8) };
        assert_eq!(ends(6, SendOp::Read { va, rkey }, nowhere), WcStatus::LocProtErr);
    });
}

#[test]
fn a_send_that_comes_alone_without_a_receive_waits_for_one() {
    in_namespace("alone::a_send_that_comes_alone_without_a_receive_waits_for_one", || {
        let responder = Responder::new("20000 30000");
        responder.sends_by(&responder.dest, sent(0));
        let mut answers = Vec::new();
        eventually("an answer", || {
            assert_eq!(responder.side.cq.poll(1, |_| ()).unwrap(), 0);
            answers = responder.answers();
            !answers.is_empty()
        });
        assert!(matches!(Syndrome::from_u8(answers[0].1), Syndrome::RnrNak { .. }), "{answers:?}");
        responder.posts_receives(1);
        responder.sends_by(&responder.dest, sent(0));
        assert_eq!(responder.receives(0), [(0, ACK, vec![])]);
    });
}

#[test]
fn a_packet_alone_that_is_damaged_or_from_another_address_is_refused() {
    in_namespace("alone::a_packet_alone_that_is_damaged_or_from_another_address_is_refused", || {
        let responder = Responder::new("20000 30000");
        responder.posts_receives(3);
        responder.sends_by(&responder.dest, sent(0));
        responder.receives(0);
        responder.sends_by(&responder.dest, Sent { damaged: true, ..sent(1) });
        responder.receives_nothing();
        let stranger = HostAddr::new(Ipv4Addr::new(127, 9, 9, 9).into(), 0);
        let other = Arc::new(Endpoint::new(stranger, None));
        let other = other.dest(own_address(&responder.side), 0, 0, responder.side.qp.qpn()).unwrap();
        responder.sends_by(&other, sent(1));
        responder.receives_nothing();
        // An adapter sends from as many ports as it likes.
        responder.sends_by(&another_port(&responder.side), sent(1));
        assert_eq!(responder.receives(1), [(1, ACK, vec![])]);
        responder.sends_by(&responder.dest, sent(2));
        assert_eq!(responder.receives(2), [(2, ACK, vec![])]);
    });
}
