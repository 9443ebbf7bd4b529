//! What is sent again: losses and how they are found, duplicates and how they are answered.

use crate::crafted::{answers, frame, read_request};
use crate::host::{ALL, BASE, Frame, Region, THERE};
use crate::net::{CLEAN, Faults, Filter, Pair, READ, WRITE, params, wr};
use core::time::Duration;
use ferroce_proto::{Data, QpParams, SendOp};
use ferroce_types::{QpState, WcStatus};
use ferroce_wire::{AtomicEth, Operation, Reth, Service};

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
        // A first round trip is measured.
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
fn nothing_is_probed_for_while_answers_wait_or_a_request_awaits_memory() {
    let success = |wr_id| (wr_id, WcStatus::Success);
    for answers_wait in [true, false] {
        let side = QpParams { timeout: 0, ..params(1024) };
        let mut p = Pair::with(Service::Rc, side, params(1024), 9);
        p.drop_to_a = Some(Box::new(|_| true));
        p.a.post(wr(1, if answers_wait { READ } else { WRITE }, BASE, 8));
        p.transmit();
        p.a.host.peer_stopped = answers_wait;
        p.a.host.memory_is_absent = !answers_wait;
        p.a.post(wr(2, WRITE, BASE, 8));
        p.run_for(Duration::from_secs(20));
        assert_eq!(p.a.qp.counters().probes, 0, "answers wait: {answers_wait}");
        assert!(p.a.host.sends.is_empty());
        p.a.host.peer_stopped = false;
        p.a.host.memory_is_absent = false;
        p.drop_to_a = None;
        p.transmit();
        p.run();
        assert_eq!(p.a.host.send_statuses(), [success(1), success(2)]);
    }
}

#[test]
fn the_time_until_a_probe_does_not_count_as_round_trip() {
    for keeps in [false, true] {
        let mut p = Pair::with(Service::Rc, QpParams { timeout: 20, ..params(1024) }, params(1024), 9);
        if keeps {
            p.keep(1024);
        }
        p.a.post(wr(0, WRITE, BASE, 8));
        p.run();
        let start = p.now;
        // The end of every other message is lost, so its probe brings the acknowledgement.
        for number in 1..=80 {
            if number % 2 == 0 {
                p.drop_to_b =
                    drop_once(|f| matches!(operation(f), Operation::WriteLast | Operation::WriteOnly));
            }
            p.a.post(wr(number, WRITE, BASE, if number % 4 == 0 { 8 } else { 5000 }));
            p.run();
        }
        assert!(p.a.send_ok() && p.a.host.sends.len() == 81);
        assert_eq!((p.a.qp.counters().timeouts, p.a.qp.counters().probes), (0, 40));
        assert!(p.now.since(start) < Duration::from_millis(100), "{:?}", p.now.since(start));
    }
}

#[test]
fn a_path_that_has_become_longer_than_the_time_until_a_probe_is_measured() {
    let mut p = Pair::with(Service::Rc, QpParams { timeout: 20, ..params(1024) }, params(1024), 9);
    p.a.post(wr(0, WRITE, BASE, 8));
    p.run();
    p.faults.delay = Duration::from_millis(10);
    let mut probes = Vec::new();
    for number in 1..=30 {
        p.a.post(wr(number, WRITE, BASE, 8));
        p.run();
        probes.push(p.a.qp.counters().probes);
    }
    assert!(p.a.send_ok() && p.a.qp.counters().timeouts == 0);
    // The probes of a few messages are needless.
    assert_eq!(probes[5], probes[29], "{probes:?}");
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

/// The memory goes while the answer, begun again for a requester that was slow to look, hasn't come to where it was before.
#[test]
fn read_refused_before_what_has_come_of_it_ends_with_the_refusal() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
    p.a.post(wr(1, READ, BASE, 5000));
    p.transmit_a_into(|frames, p| frames.iter().for_each(|f| p.inject(true, f)));
    assert!(p.b.qp.transmit(p.now, &mut p.b.host, 3 * 1024));
    let sent = core::mem::take(&mut p.b.host.out);
    assert!(sent.len() > 2);
    p.inject(true, &read_request(100, THERE, 5000));
    p.b.host.regions.remove(&ALL);
    sent.iter().for_each(|f| p.inject(false, f));
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(p.b.qp.state(), QpState::Err);
}

/// Networks, and kernels that are busy, reorder. Nothing that is sent again after a refusal is answered.
#[test]
fn refusal_that_overtakes_the_answer_before_it_is_not_lost() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
    for (wr_id, rkey) in [(1, ALL), (2, ALL), (3, 0x77)] {
        p.a.post(wr(wr_id, SendOp::FetchAdd { va: THERE, rkey, add: 1 }, BASE, 8));
    }
    p.transmit_a_into(|frames, p| frames.iter().for_each(|f| p.inject(true, f)));
    p.b.qp.flush_acks(&mut p.b.host);
    let answers = core::mem::take(&mut p.b.host.out);
    assert_eq!(answers.len(), 3);
    for at in [0, 2, 1] {
        p.inject(false, &answers[at]);
    }
    p.run();
    let ends = [(1, WcStatus::Success), (2, WcStatus::Success), (3, WcStatus::RemAccessErr)];
    assert_eq!(p.a.host.send_statuses(), ends);
}

/// IBTA 9.7.5.2.8: an answer for a later request implies that the answer to a READ or atomic before it is lost. Here it is only
/// late, which the requester can't know: it asks again at once, takes what comes first, and needs no timer or retry.
#[test]
fn answer_that_overtakes_has_the_request_before_it_repeated_at_once() {
    const ADD: SendOp = SendOp::FetchAdd { va: THERE + 8192, rkey: ALL, add: 1 };
    for first in [READ, ADD] {
        for second in [READ, ADD, WRITE] {
            for late_comes in [true, false] {
                let strict = QpParams { retry_cnt: 0, timeout: 20, ..params(1024) };
                let mut p = Pair::with(Service::Rc, strict, params(1024), 0xff_fffe);
                p.b.host.fill(THERE, 8, 7);
                for (wr_id, op) in [(1, first), (2, second)] {
                    p.a.post(wr(wr_id, op, BASE + wr_id * 64, 8));
                }
                p.transmit_a_into(|frames, p| frames.iter().for_each(|f| p.inject(true, f)));
                p.b.qp.flush_acks(&mut p.b.host);
                while p.b.qp.transmit(p.now, &mut p.b.host, 65_536) {}
                let answers = core::mem::take(&mut p.b.host.out);
                assert_eq!(answers.len(), 2);
                let (before, start) = (answers[0].clone(), p.now);
                p.inject(false, &answers[1]);
                assert_eq!(p.a.host.send_statuses(), [], "what overtakes ends nothing");
                if late_comes {
                    p.inject(false, &before);
                }
                p.run();
                let both = [(1, WcStatus::Success), (2, WcStatus::Success)];
                assert_eq!(p.a.host.send_statuses(), both, "{first:?} {second:?}");
                let c = p.a.qp.counters();
                assert_eq!((c.implied_naks, c.timeouts, c.probes), (1, 0, 0), "{first:?} {second:?}");
                assert!(p.now.since(start) < Duration::from_millis(1), "{first:?} {second:?}");
                let adds = u64::from(first == ADD) + u64::from(second == ADD);
                assert_eq!(p.b.host.bytes(THERE + 8192, 8), adds.to_ne_bytes(), "executed once");
                if first == READ && second != WRITE {
                    assert_eq!(p.a.host.bytes(BASE + 64, 8), p.b.host.bytes(THERE, 8));
                }
            }
        }
    }
}
