//! What is sent when: windows, budgets, fences, acknowledgements, repetition.

use crate::host::{ALL, BASE, Frame, Region};
use crate::net::{CLEAN, Faults, Filter, Pair, params, wr};
use core::time::Duration;
use ferroce_proto::{Data, PostError, Qp, QpEvent, QpParams, QpState, SendOp, WcStatus};
use ferroce_wire::{AtomicEth, Bth, Headers, Opcode, Operation, Reth, Service};

const THERE: u64 = BASE + (1 << 20);
const WRITE: SendOp = SendOp::Write { va: THERE, rkey: ALL };
const READ: SendOp = SendOp::Read { va: THERE, rkey: ALL };

fn frame(operation: Operation, psn: u32, payload: &[u8]) -> Frame {
    let opcode = Opcode::new(Service::Rc, operation).unwrap();
    let bth = Bth { ack_request: true, ..Bth::new(opcode, 0x22, psn) };
    Frame { headers: Headers::new(bth), payload: payload.to_vec() }
}

fn read_request(psn: u32, va: u64, dma_len: u32) -> Frame {
    let mut f = frame(Operation::ReadRequest, psn, &[]);
    f.headers.reth = Some(Reth { va, rkey: ALL, dma_len });
    f
}

/// The packets that `b` sends now.
fn answers(p: &mut Pair) -> Vec<(Operation, u32)> {
    p.b.host.log.clear();
    p.b.qp.flush_acks(p.now, &mut p.b.host);
    while p.b.qp.transmit(p.now, &mut p.b.host, 1 << 16) {}
    p.b.host.out.clear();
    core::mem::take(&mut p.b.host.log)
}

#[test]
fn idle_qp_is_small() {
    assert!(size_of::<Qp<u32>>() <= 1536, "{}", size_of::<Qp<u32>>());
}

#[test]
fn requests_are_refused_before_rts_and_beyond_the_queue() {
    let mut p = Pair::down(Service::Rc, params(1024), params(1024), 0);
    for state in [QpState::Init, QpState::Rtr] {
        p.a.qp.set_state(state, p.now, &mut p.a.host);
        assert_eq!(p.a.qp.post_send(wr(1, WRITE, BASE, 1)), Err(PostError::State(state)));
    }
    p.a.qp.set_state(QpState::Rts, p.now, &mut p.a.host);
    for i in 0..4096 {
        p.a.post(wr(i, WRITE, BASE, 1));
    }
    assert_eq!(p.a.qp.post_send(wr(1, WRITE, BASE, 1)), Err(PostError::QueueFull));
    assert_eq!(p.a.qp.sq_len(), 4096);
}

#[test]
fn operations_that_a_service_does_not_have_are_refused() {
    let mut p = Pair::new(Service::Uc, 1024);
    assert_eq!(p.a.qp.post_send(wr(1, READ, BASE, 1)), Err(PostError::Operation));
    assert_eq!(
        p.a.qp.post_send(wr(1, SendOp::SendWithInvalidate { rkey: 1 }, BASE, 1)),
        Err(PostError::Operation)
    );
    let mut p = Pair::new(Service::Ud, 1024);
    assert_eq!(p.a.qp.post_send(wr(1, SendOp::Send, BASE, 1)), Err(PostError::Operation), "no address");
    let mut p = Pair::new(Service::Rc, 1024);
    let mut inline = wr(1, READ, BASE, 1);
    inline.data = Data::Inline([0; 8].into_iter().collect());
    assert_eq!(p.a.qp.post_send(inline), Err(PostError::Operation));
    let mut long = wr(1, WRITE, BASE, 1 << 31);
    if let Data::Sges(sges) = &mut long.data {
        sges.push(ferroce_proto::Sge { addr: BASE, length: 1, lkey: ALL });
    }
    assert_eq!(p.a.qp.post_send(long), Err(PostError::Operation));
}

#[test]
fn qp_in_rtr_receives_executes_and_answers() {
    let mut p = Pair::down(Service::Rc, params(1024), params(1024), 0);
    for state in [QpState::Init, QpState::Rtr] {
        p.b.qp.set_state(state, p.now, &mut p.b.host);
        p.a.qp.set_state(state, p.now, &mut p.a.host);
    }
    p.a.qp.set_state(QpState::Rts, p.now, &mut p.a.host);
    p.b.host.post_recv(1, THERE, 5000);
    p.a.post(wr(1, SendOp::Send, BASE, 5000));
    p.a.post(wr(2, READ, BASE, 5000));
    p.a.post(wr(3, SendOp::FetchAdd { va: THERE, rkey: ALL, add: 1 }, BASE, 8));
    p.run();
    assert!(p.a.send_ok() && p.a.host.sends.len() == 3);
    assert_eq!(p.b.host.events, [QpEvent::CommunicationEstablished]);
}

#[test]
fn packets_before_rtr_change_nothing() {
    let mut p = Pair::down(Service::Rc, params(1024), params(1024), 0);
    p.b.qp.set_state(QpState::Init, p.now, &mut p.b.host);
    p.b.host.post_recv(1, THERE, 64);
    p.inject(true, &frame(Operation::SendOnly, 0, &[1]));
    assert_eq!(answers(&mut p), []);
    assert_eq!(p.b.qp.counters().wrong_state, 1);
    assert_eq!(p.b.host.receives.len(), 1);
}

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
fn sqd_ends_what_was_started_and_says_when() {
    let mut p = Pair::new(Service::Rc, 256);
    p.a.host.room = Some(2);
    p.a.post(wr(1, WRITE, BASE, 1000));
    p.a.post(wr(2, WRITE, BASE, 1000));
    p.transmit();
    p.a.qp.set_state(QpState::Sqd, p.now, &mut p.a.host);
    p.a.host.room = None;
    p.run_for(Duration::from_millis(500));
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success)]);
    assert_eq!(p.a.host.events, [QpEvent::SqDrained]);
    assert_eq!(p.a.host.log.len(), 4);
    p.a.qp.set_state(QpState::Rts, p.now, &mut p.a.host);
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    p.a.qp.set_state(QpState::Sqd, p.now, &mut p.a.host);
    assert_eq!(p.a.host.events.len(), 2, "an idle queue is drained at once");
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
    for (mtu, pieces) in [(1024, 19), (u32::MAX, 1)] {
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

/// Drops the first packet that `chosen` picks, and only that.
fn drop_once(chosen: impl Fn(&Frame) -> bool + 'static) -> Filter {
    let mut done = false;
    Some(Box::new(move |f| {
        let drops = !done && chosen(f);
        done |= drops;
        drops
    }))
}

fn operation(f: &Frame) -> Operation {
    f.headers.bth.opcode.operation
}

#[test]
fn lost_tail_is_found_long_before_the_timeout_and_costs_no_retry() {
    type Case = (&'static str, SendOp, bool, Operation);
    let cases: [Case; 5] = [
        ("last request packet", WRITE, true, Operation::WriteLast),
        ("ack", WRITE, false, Operation::Acknowledge),
        ("read request", READ, true, Operation::ReadRequest),
        ("last read response", READ, false, Operation::ReadResponseLast),
        (
            "result of an atomic",
            SendOp::FetchAdd { va: THERE, rkey: ALL, add: 1 },
            false,
            Operation::AtomicAcknowledge,
        ),
    ];
    for (name, op, to_b, lost) in cases {
        let a = QpParams { retry_cnt: 0, timeout: 20, ..params(1024) };
        let mut p = Pair::with(Service::Rc, a, params(1024), 9);
        // A first round trip tells how long one takes.
        p.a.post(wr(0, WRITE, BASE, 8));
        p.run();
        let filter = drop_once(move |f| operation(f) == lost);
        if to_b {
            p.drop_to_b = filter
        } else {
            p.drop_to_a = filter
        }
        let start = p.now;
        p.a.post(wr(1, op, BASE, if matches!(op, SendOp::FetchAdd { .. }) { 8 } else { 5000 }));
        p.run();
        assert!(p.a.send_ok(), "{name}");
        assert!(p.now.since(start) < Duration::from_millis(3), "{name}: {:?}", p.now.since(start));
        let c = p.a.qp.counters();
        assert_eq!((c.timeouts, c.probes), (0, 1), "{name}");
    }
}

#[test]
fn lost_sequence_nak_is_repeated_when_the_probe_shows_that_it_was() {
    let mut p = Pair::with(Service::Rc, QpParams { timeout: 20, ..params(1024) }, params(1024), 9);
    p.a.post(wr(0, WRITE, BASE, 8));
    p.run();
    p.drop_to_b = drop_once(|f| operation(f) == Operation::WriteMiddle);
    p.drop_to_a = drop_once(|f| f.headers.aeth.is_some_and(|a| a.syndrome == 0x60));
    p.a.post(wr(1, WRITE, BASE, 9000));
    let start = p.now;
    p.run();
    assert!(p.a.send_ok());
    assert!(p.now.since(start) < Duration::from_millis(5));
    assert_eq!(p.b.qp.counters().seq_naks_sent, 2);
}

#[test]
fn probes_of_a_silent_peer_back_off_and_never_fail_the_qp() {
    let mut p =
        Pair::with(Service::Rc, QpParams { timeout: 0, retry_cnt: 0, ..params(1024) }, params(1024), 9);
    p.drop_to_b = Some(Box::new(|_| true));
    p.a.post(wr(1, WRITE, BASE, 8));
    p.run_for(Duration::from_secs(20));
    assert_eq!(p.a.qp.state(), QpState::Rts);
    assert!((5..60).contains(&p.a.qp.counters().probes), "{}", p.a.qp.counters().probes);
}

#[test]
fn one_sequence_nak_is_sent_until_the_gap_is_filled() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.b.host.receives.clear();
    let psn = p.b.qp.rq_psn();
    let write = |n: u32| {
        let mut f = frame(Operation::WriteOnly, (psn + n) & 0xff_ffff, &[1; 8]);
        f.headers.reth = Some(Reth { va: THERE, rkey: ALL, dma_len: 8 });
        f.headers.bth.ack_request = false;
        f
    };
    for n in 1..10 {
        p.inject(true, &write(n));
    }
    assert_eq!(answers(&mut p), [(Operation::Acknowledge, psn)]);
    p.inject(true, &write(10));
    assert_eq!(answers(&mut p), []);
    assert_eq!(p.b.qp.counters().out_of_order, 10);
    p.inject(true, &write(0));
    p.inject(true, &write(3));
    assert_eq!(answers(&mut p), [(Operation::Acknowledge, (psn + 1) & 0xff_ffff)], "a new gap, a new NAK");
}

#[test]
fn duplicate_requests_are_answered_and_not_executed_again() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
    p.b.host.post_recv(1, THERE, 64);
    p.b.host.post_recv(2, THERE, 64);
    let send = frame(Operation::SendOnly, 100, &[1; 64]);
    p.inject(true, &send);
    assert_eq!(answers(&mut p), [(Operation::Acknowledge, 100)]);
    let mut add = frame(Operation::FetchAdd, 101, &[]);
    add.headers.atomic = Some(AtomicEth { va: THERE + 64, rkey: ALL, swap_or_add: 5, compare: 0 });
    p.inject(true, &add);
    assert_eq!(answers(&mut p), [(Operation::AtomicAcknowledge, 101)]);
    p.inject(true, &send);
    p.inject(true, &add);
    assert_eq!(answers(&mut p), [(Operation::AtomicAcknowledge, 101), (Operation::Acknowledge, 100)]);
    assert_eq!(p.b.host.unpublished.len(), 1);
    assert_eq!(p.b.host.bytes(THERE + 64, 8), 5u64.to_ne_bytes());
    assert_eq!(p.b.qp.counters().duplicates, 2);
}

#[test]
fn duplicate_read_is_answered_from_any_psn_of_it() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
    p.inject(true, &read_request(100, THERE, 5000));
    let all: Vec<_> = answers(&mut p);
    assert_eq!(all.len(), 5);
    p.inject(true, &read_request(103, THERE + 3072, 5000 - 3072));
    assert_eq!(answers(&mut p), [(Operation::ReadResponseFirst, 103), (Operation::ReadResponseLast, 104)]);
    // Beyond what was asked for the first time: not a duplicate, and not new either.
    p.inject(true, &read_request(103, THERE, 5000));
    assert_eq!(answers(&mut p), []);
    // The key is gone by now: no answer, and no harm.
    p.b.host.regions.remove(&ALL);
    p.inject(true, &read_request(100, THERE, 5000));
    assert_eq!(answers(&mut p), []);
    assert_eq!(p.b.qp.state(), QpState::Rts);
}

#[test]
fn duplicate_read_whose_answer_is_still_to_leave_is_answered_once() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
    p.inject(true, &read_request(100, THERE, 5000));
    p.inject(true, &read_request(105, THERE, 2000));
    p.inject(true, &read_request(100, THERE, 5000));
    p.inject(true, &read_request(105, THERE, 2000));
    assert_eq!(answers(&mut p).len(), 7);
}

#[test]
fn read_asked_for_again_in_the_middle_of_its_answer_starts_again() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
    p.inject(true, &read_request(100, THERE, 5000));
    p.inject(true, &read_request(105, THERE, 2000));
    assert!(p.b.qp.transmit(p.now, &mut p.b.host, 3 * 1024));
    p.inject(true, &read_request(101, THERE + 1024, 5000 - 1024));
    let psns: Vec<_> = answers(&mut p).into_iter().map(|(_, psn)| psn).collect();
    assert_eq!(psns, [101, 102, 103, 104, 105, 106], "and those behind it stay behind it");
}

#[test]
fn answers_asked_for_again_leave_in_the_order_of_their_psns() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
    p.inject(true, &read_request(100, THERE, 10));
    p.inject(true, &read_request(101, THERE, 10));
    answers(&mut p);
    p.inject(true, &read_request(102, THERE, 10));
    p.inject(true, &read_request(101, THERE, 10));
    p.inject(true, &read_request(100, THERE, 10));
    assert_eq!(answers(&mut p), [100, 101, 102].map(|psn| (Operation::ReadResponseOnly, psn)));
}

#[test]
fn ack_ends_the_wait_for_a_receiver() {
    let mut p = Pair::with(Service::Rc, params(1024), QpParams { min_rnr_timer: 0, ..params(1024) }, 100);
    p.a.post(wr(1, SendOp::Send, BASE, 8));
    p.a.post(wr(2, WRITE, BASE, 8));
    while p.a.qp.counters().rnr_naks == 0 {
        p.step();
    }
    let start = p.now;
    assert!(p.a.qp.next_timeout().unwrap().since(start) > Duration::from_millis(600));
    let mut ack = frame(Operation::Acknowledge, 100, &[]);
    ack.headers.aeth = Some(ferroce_wire::Aeth { syndrome: 0x1f, msn: 1 });
    p.inject(false, &ack);
    p.b.host.post_recv(1, THERE, 8);
    p.inject(true, &frame(Operation::SendOnly, 100, &[0; 8]));
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert!(p.now.since(start) < Duration::from_millis(1));
}

#[test]
fn responses_for_nothing_change_nothing() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.a.post(wr(1, WRITE, BASE, 8));
    p.run();
    let before = p.a.qp.counters().stale_responses;
    for operation in [Operation::Acknowledge, Operation::ReadResponseOnly, Operation::AtomicAcknowledge] {
        for distance in [0u32, 1, 5, 0x7f_ffff, 0x80_0000, 0xff_ffff] {
            let mut f = frame(operation, (p.a.qp.sq_psn() + distance) & 0xff_ffff, &[0; 8]);
            for syndrome in [0, 0x1f, 0x20, 0x60, 0x61, 0x62, 0x63, 0x80, 0xff] {
                f.headers.aeth = Some(ferroce_wire::Aeth { syndrome, msn: 0 });
                f.headers.atomic_ack = Some(1);
                p.inject(false, &f);
            }
        }
    }
    assert_eq!(p.a.qp.counters().stale_responses, before + 3 * 6 * 9);
    assert_eq!(p.a.qp.state(), QpState::Rts);
    p.a.post(wr(2, WRITE, BASE, 8));
    p.run();
    assert!(p.a.send_ok());
}

#[test]
fn read_response_of_the_wrong_length_is_a_bad_response() {
    for len in [0, 1023, 1025] {
        let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
        p.a.post(wr(1, READ, BASE, 3000));
        p.transmit();
        let mut f = frame(Operation::ReadResponseFirst, 100, &vec![0; len]);
        f.headers.aeth = Some(ferroce_wire::Aeth { syndrome: 0x1f, msn: 1 });
        p.inject(false, &f);
        assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::BadRespErr)]);
        assert_eq!(p.a.qp.state(), QpState::Err);
    }
}

#[test]
fn invalid_sequences_of_opcodes_are_refused() {
    use Operation as O;
    let cases: [(&[O], &str); 8] = [
        (&[O::SendMiddle], "middle without first"),
        (&[O::SendLast], "last without first"),
        (&[O::WriteMiddle], "write middle without first"),
        (&[O::SendFirst, O::SendFirst], "first in a message"),
        (&[O::SendFirst, O::SendOnly], "only in a message"),
        (&[O::SendFirst, O::WriteMiddle], "write in a send"),
        (&[O::SendFirst, O::ReadRequest], "read in a send"),
        (&[O::WriteFirst, O::SendLast], "send in a write"),
    ];
    for (operations, name) in cases {
        let mut p = Pair::with(Service::Rc, params(256), params(256), 100);
        p.b.host.post_recv(1, THERE, 4096);
        for (i, operation) in operations.iter().enumerate() {
            let mut f =
                frame(*operation, 100 + i as u32, if *operation == O::ReadRequest { &[] } else { &[0; 256] });
            f.headers.reth = Some(Reth { va: THERE, rkey: ALL, dma_len: 4096 });
            p.inject(true, &f);
        }
        assert_eq!(answers(&mut p), [(O::Acknowledge, 99 + operations.len() as u32)], "{name}");
        assert_eq!(p.b.qp.state(), QpState::Err, "{name}");
        let held = operations[0] == O::SendFirst;
        assert_eq!(p.b.host.unpublished[0].status == WcStatus::RemInvReqErr, held, "{name}");
        assert_eq!(p.b.host.events.is_empty(), held, "{name}");
    }
}

#[test]
fn packets_of_impossible_length_are_refused() {
    use Operation as O;
    let cases = [
        (O::SendFirst, 255, 0),
        (O::SendFirst, 257, 0),
        (O::SendOnly, 257, 0),
        (O::WriteFirst, 256, 256),
        (O::WriteFirst, 100, 1000),
        (O::WriteOnly, 10, 11),
        (O::WriteOnly, 10, 9),
        (O::WriteOnly, 0, 1),
        (O::ReadRequest, 1, 1),
        (O::ReadRequest, 0, (1 << 31) + 1),
    ];
    for (operation, len, dma_len) in cases {
        let mut p = Pair::with(Service::Rc, params(256), params(256), 100);
        p.b.host.post_recv(1, THERE, 4096);
        let mut f = frame(operation, 100, &vec![0; len]);
        f.headers.reth = Some(Reth { va: THERE, rkey: ALL, dma_len });
        p.inject(true, &f);
        answers(&mut p);
        assert_eq!(p.b.qp.state(), QpState::Err, "{operation:?} {len} of {dma_len}");
    }
}

#[test]
fn write_that_ends_early_or_late_is_refused() {
    for (last, psns) in [(10, 2), (200, 2)] {
        let mut p = Pair::with(Service::Rc, params(256), params(256), 100);
        let mut f = frame(Operation::WriteFirst, 100, &[0; 256]);
        f.headers.reth = Some(Reth { va: THERE, rkey: ALL, dma_len: 300 });
        p.inject(true, &f);
        p.inject(true, &frame(Operation::WriteLast, 101, &vec![0; last]));
        assert_eq!(answers(&mut p), [(Operation::Acknowledge, 99 + psns)]);
        assert_eq!(p.b.host.events, [QpEvent::RequestError]);
    }
}

#[test]
fn last_packet_of_several_is_never_empty() {
    let mut p = Pair::with(Service::Rc, params(256), params(256), 100);
    p.b.host.post_recv(1, THERE, 4096);
    p.inject(true, &frame(Operation::SendFirst, 100, &[0; 256]));
    p.inject(true, &frame(Operation::SendLast, 101, &[]));
    assert_eq!(p.b.qp.state(), QpState::Err);
    assert_eq!(p.b.host.unpublished[0].status, WcStatus::RemInvReqErr);
}

#[test]
fn zero_length_requests_ask_nothing_of_the_key() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.a.post(wr(1, SendOp::Write { va: 1, rkey: 0xdead }, BASE, 0));
    p.a.post(wr(2, SendOp::Read { va: 1, rkey: 0xdead }, BASE, 0));
    p.run();
    assert!(p.a.send_ok() && p.a.host.sends.len() == 2);
}

#[test]
fn packets_with_another_partition_key_are_dropped() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
    for pkey in [0x7ffe, 0xfffe, 0x0000] {
        let mut f = frame(Operation::SendOnly, 100, &[1]);
        f.headers.bth.pkey = pkey;
        p.inject(true, &f);
    }
    assert_eq!(p.b.qp.counters().pkey_violations, 3);
    assert_eq!(answers(&mut p), []);
    let mut limited = frame(Operation::WriteOnly, 100, &[]);
    limited.headers.bth.pkey = 0x7fff;
    limited.headers.reth = Some(Reth { va: 0, rkey: 0, dma_len: 0 });
    p.inject(true, &limited);
    assert_eq!(answers(&mut p), [(Operation::Acknowledge, 100)], "a limited member may talk to a full one");
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

#[test]
fn request_whose_memory_is_gone_when_it_must_be_sent_again_fails() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 7).seeded(3, Faults { loss: 0, ..CLEAN });
    p.drop_to_b = drop_once(|_| true);
    p.a.host.regions.insert(0x55, Region::new(BASE, 64));
    let mut request = wr(1, WRITE, BASE, 64);
    if let Data::Sges(sges) = &mut request.data {
        sges[0].lkey = 0x55;
    }
    p.a.post(request);
    p.transmit();
    p.a.host.regions.remove(&0x55);
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::LocProtErr)], "it can't be sent again");
}
