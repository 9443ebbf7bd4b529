//! What is sent when: windows, budgets, fences, acknowledgements.

use crate::crafted::{answers, frame, read_request};
use crate::host::{ALL, BASE, THERE};
use crate::net::{Pair, READ, WRITE, wr};
use ferroce_proto::SendOp;
use ferroce_types::WcStatus;
use ferroce_wire::{Opcode, Operation, Service};

#[test]
fn fence_waits_for_earlier_reads_and_atomics_only() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.a.post(wr(1, WRITE, BASE, 8));
    p.a.post(wr(2, READ, BASE, 8));
    p.a.post(wr(3, SendOp::FetchAdd { va: THERE, rkey: ALL, add: 1 }, BASE, 8));
    p.a.post(wr(4, WRITE, BASE, 8));
    let mut fenced = wr(5, WRITE, BASE, 8);
    fenced.fence = true;
    p.a.post(fenced);
    p.transmit();
    assert_eq!(p.a.host.log.len(), 4);
    p.run();
    assert_eq!(p.a.host.log.len(), 5);
    let mut fenced = wr(6, WRITE, BASE, 8);
    fenced.fence = true;
    p.a.post(wr(7, WRITE, BASE, 8));
    p.a.post(fenced);
    p.transmit();
    assert_eq!(p.a.host.log.len(), 7, "a WRITE holds no fence up");
    p.run();
}

#[test]
fn budget_paces_and_the_rest_follows() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.a.post(wr(1, WRITE, BASE, 20 * 1024));
    assert!(p.a.qp.transmit(p.now, &mut p.a.host, 4096));
    assert_eq!(p.a.host.out.len(), 4);
    assert!(p.a.qp.wants_transmit());
    while p.a.qp.transmit(p.now, &mut p.a.host, 4096) {}
    assert_eq!(p.a.host.out.len(), 20);
    assert!(!p.a.qp.wants_transmit());
    p.run();
    assert!(p.a.send_ok());
}

#[test]
fn read_responses_are_paced_and_do_not_hold_up_receiving() {
    let mut p = Pair::new(Service::Rc, 1024);
    let psn = p.b.qp.rq_psn();
    p.inject(true, &read_request(psn, THERE, 10 * 1024));
    p.b.host.post_recv(1, THERE, 64);
    assert!(p.b.qp.transmit(p.now, &mut p.b.host, 3 * 1024));
    assert_eq!(p.b.host.out.len(), 3);
    p.inject(true, &frame(Operation::SendOnly, psn + 10, &[7; 64]));
    assert_eq!(p.b.host.unpublished.len(), 1, "executed while the READ is being answered");
    let sent = answers(&mut p);
    assert_eq!(sent.len(), 8);
    assert_eq!(sent[6], (Operation::ReadResponseLast, (psn + 9) & 0xff_ffff));
    assert_eq!(sent[7], (Operation::Acknowledge, (psn + 10) & 0xff_ffff), "no ACK overtakes a READ response");
}

#[test]
fn blocked_fabric_loses_nothing() {
    for kind in 0..3 {
        let mut p = Pair::new(Service::Rc, 256);
        p.a.host.fill(BASE, 10_000, 1);
        let op = [WRITE, READ, SendOp::Send][kind];
        p.b.host.post_recv(1, THERE, 10_000);
        p.a.post(wr(1, op, BASE, 10_000));
        for _ in 0..2000 {
            p.a.host.room = Some(1);
            p.b.host.room = Some(1);
            p.step();
        }
        assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success)], "{op:?}");
        assert_eq!(p.a.host.bytes(BASE, 10_000), p.b.host.bytes(THERE, 10_000));
    }
}

/// Short requests behind eight packets without an acknowledgement may wait for one, 32 at a time.
#[test]
fn short_requests_may_wait_for_an_acknowledgement_behind_others() {
    let mut p = Pair::new(Service::Rc, 1024);
    for n in 0..8 {
        p.a.post(wr(n, WRITE, BASE, 8));
        assert!(!p.a.qp.may_wait_for_more(), "{n} packets are under way");
        p.transmit();
    }
    for n in 8..40 {
        p.a.post(wr(n, WRITE, BASE, 8));
        assert_eq!(p.a.qp.may_wait_for_more(), n < 39, "{} requests wait", n - 7);
    }
    p.transmit();
    p.a.post(wr(40, WRITE, BASE, 1025));
    assert!(!p.a.qp.may_wait_for_more(), "a long request");
    p.run();
    assert!(p.a.send_ok() && p.a.host.sends.len() == 41);
    p.a.post(wr(41, WRITE, BASE, 8));
    assert!(!p.a.qp.may_wait_for_more(), "nothing is under way");
    p.run();
}

#[test]
fn bytes_in_flight_stay_below_the_window_of_the_fabric() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.a.host.window = 10 * 1024;
    for i in 0..5 {
        p.a.post(wr(i, WRITE, BASE, 100_000));
        p.a.post(wr(i, READ, BASE, 100_000));
    }
    p.transmit();
    assert_eq!(p.a.host.log.len(), 10);
    p.run();
    assert!(p.a.send_ok());
    assert_eq!(p.a.qp.counters().retransmissions, 0);
}

#[test]
fn window_smaller_than_a_packet_still_lets_one_through() {
    let mut p = Pair::new(Service::Rc, 4096);
    p.a.host.window = 0;
    p.a.post(wr(1, WRITE, BASE, 20_000));
    p.a.post(wr(2, READ, BASE, 200_000));
    p.run();
    assert!(p.a.send_ok());
}

#[test]
fn long_read_is_asked_for_in_pieces_and_on_a_lossless_fabric_in_one() {
    for (mtu, pieces) in [(1024, 35), (u32::MAX, 1)] {
        let mut p = Pair::new(Service::Rc, mtu);
        p.b.host.fill(THERE, 1 << 20, 4);
        p.a.post(wr(1, READ, BASE, 1 << 20));
        p.run();
        assert_eq!(p.a.host.sent(Operation::ReadRequest), pieces);
        assert_eq!(p.a.host.bytes(BASE, 1 << 20), p.b.host.bytes(THERE, 1 << 20));
    }
}

#[test]
fn ack_is_asked_for_often_enough_inside_a_long_message() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.a.host.window = 32 * 1024;
    p.a.post(wr(1, WRITE, BASE, 512 * 1024));
    p.transmit();
    p.step();
    assert!(p.b.host.sent(Operation::Acknowledge) >= 1, "before the window is full");
    p.run();
    assert!(p.a.send_ok());
}

#[test]
fn congestion_notification_halves_the_window() {
    let in_flight = |cnps| {
        let mut p = Pair::new(Service::Rc, 1024);
        let mut f = frame(Operation::Acknowledge, 0, &[0; 16]);
        f.headers.bth.opcode = Opcode { service: Service::Cnp, operation: Operation::CongestionNotification };
        for _ in 0..cnps {
            p.inject(false, &f);
        }
        p.a.post(wr(1, WRITE, BASE, 1 << 20));
        p.transmit();
        p.a.host.log.len()
    };
    assert_eq!(in_flight(1), in_flight(0) / 2);
    assert_eq!(in_flight(3), in_flight(1), "once per round trip");
}

#[test]
fn timeout_halves_the_window() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.drop_to_b = Some(Box::new(|_| true));
    p.a.post(wr(1, WRITE, BASE, 1 << 20));
    p.transmit();
    let before = p.a.host.log.len();
    while p.a.qp.counters().timeouts == 0 {
        p.step();
    }
    let sent = p.a.host.log.len();
    p.transmit();
    assert_eq!(p.a.host.log.len() - sent, before / 2);
}

#[test]
fn recv_completion_is_published_after_its_ack() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.b.host.post_recv(1, THERE, 64);
    p.a.post(wr(1, SendOp::Send, BASE, 64));
    p.run();
    // The harness publishes in flush_acks' wake; the ACK must have been handed over by then, not later by transmit.
    assert_eq!(p.b.host.sent(Operation::Acknowledge), 1);
    assert_eq!(p.b.host.recvs.len(), 1);
}
