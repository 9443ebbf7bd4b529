//! Packets that come alone, which take the short way: what a message leaves behind, and which packets aren't the peer's.

use super::keeping::{PSN, Responder, another_port, own_address};
use super::namespace::in_namespace;
use ferroce_nic::Poll as _;
use ferroce_os::clock;
use ferroce_tests::wait::eventually;
use ferroce_types::{HostAddr, QpState, WcStatus};
use ferroce_udp::{Dest, Endpoint, TxBatch};
use ferroce_wire::crc::extend;
use ferroce_wire::{Bth, Headers, NakCode, Opcode, Operation, Service, Syndrome};
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
    fn sends_by(&self, dest: &Dest, send: Sent) {
        let Sent { number, ack_request, damaged } = send;
        let opcode = Opcode { service: Service::Rc, operation: Operation::SendOnly };
        let psn = PSN.wrapping_add(number) & 0xff_ffff;
        let headers = Headers::new(Bth { ack_request, ..Bth::new(opcode, self.side.qp.qpn(), psn) });
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
