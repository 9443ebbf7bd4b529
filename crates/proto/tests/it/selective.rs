//! Selective repeat: a peer keeps what comes beyond a gap, and gets what it misses, and no more.

use crate::host::{ALL, BASE, Frame, THERE};
use crate::net::{CLEAN, Faults, Pair, READ, Rng, WRITE, params, wr};
use core::cell::Cell;
use core::time::Duration;
use ferroce_proto::{QpParams, SendOp};
use ferroce_types::{QpState, WcStatus};
use ferroce_wire::{Aeth, Bth, Headers, Opcode, Operation, Reth, Service, Syndrome};
use std::rc::Rc;

const MTU: u32 = 1024;
/// The first PSN, so that all wrap.
const START: u32 = 0xff_fff0;

/// A pair that keeps packets, after a first message: what comes before it isn't kept.
fn pair() -> Pair {
    with(params(MTU))
}

fn with(b: QpParams) -> Pair {
    let mut p = Pair::with(Service::Rc, params(MTU), b, START);
    p.keep(1024);
    p.a.post(wr(1000, WRITE, BASE, 8));
    p.run();
    p.a.host.sends.clear();
    p.a.host.log.clear();
    p
}

/// Loses these packets towards `b`, by how many PSNs they are behind the first message, once each.
fn lose(p: &mut Pair, mut lost: Vec<u32>) {
    p.drop_to_b = Some(Box::new(move |frame| {
        let number = frame.headers.bth.psn.wrapping_sub(START) & 0xff_ffff;
        let at = lost.iter().position(|&it| it == number);
        at.map(|at| lost.remove(at)).is_some()
    }));
}

fn sent_again(p: &Pair) -> u64 {
    p.a.qp.counters().retransmissions
}

#[test]
fn only_what_is_lost_is_sent_again() {
    for lost in [vec![1], vec![5], vec![1, 2, 3], vec![1, 9, 17, 18, 30], (1..60).step_by(2).collect()] {
        let mut p = pair();
        p.a.host.fill(BASE, 64 << 10, 3);
        for i in 0..4_u64 {
            let at = i << 14;
            p.a.post(wr(i, SendOp::Write { va: THERE + at, rkey: ALL }, BASE + at, 16 << 10));
        }
        lose(&mut p, lost.clone());
        p.run();
        assert_eq!(sent_again(&p), lost.len() as u64, "{lost:?}");
        let ok = |i| (i, WcStatus::Success);
        assert_eq!(p.a.host.send_statuses(), (0..4).map(ok).collect::<Vec<_>>());
        assert!(p.a.host.bytes(BASE, 64 << 10) == p.b.host.bytes(THERE, 64 << 10));
        assert_eq!((p.a.qp.counters().probes, p.a.qp.counters().timeouts), (0, 0), "{lost:?}");
    }
}

#[test]
fn a_report_shows_all_that_has_come_however_short_the_packets_are() {
    let short = (0..400).map(|_| 8).collect::<Vec<_>>();
    for (lengths, lost) in [(vec![400 << 10, 8], vec![1, 90, 300]), (short, vec![1, 3, 77, 200, 399])] {
        let mut p = wide_and_patient();
        for (i, len) in (0..).zip(lengths) {
            p.a.post(wr(i, WRITE, BASE, len));
        }
        lose(&mut p, lost.iter().map(|at| at + 1024).collect());
        p.run();
        assert_eq!((sent_again(&p), p.a.qp.counters().seq_naks), (lost.len() as u64, 1));
        assert!(p.a.send_ok());
    }
}

#[test]
fn what_is_lost_again_is_sent_again_within_a_round_trip_or_two() {
    let mut p = pair();
    let start = p.now;
    p.a.post(wr(1, WRITE, BASE, 2 << 20));
    lose(&mut p, vec![7, 7, 7, 20]);
    p.run();
    assert_eq!((sent_again(&p), p.a.qp.counters().probes), (4, 0));
    assert!(p.now.since(start) < Duration::from_millis(10));
    assert!(p.a.send_ok() && p.a.host.sends.len() == 1);
}

#[test]
fn what_another_sender_seems_to_have_sent_is_sent_again() {
    for lost in [vec![1], vec![1, 9, 17], (1..60).step_by(2).collect()] {
        let mut p = pair();
        p.b.host.distrusts_kept = true;
        p.a.host.fill(BASE, 64 << 10, 3);
        for i in 0..4_u64 {
            let at = i << 14;
            p.a.post(wr(i, SendOp::Write { va: THERE + at, rkey: ALL }, BASE + at, 16 << 10));
        }
        lose(&mut p, lost);
        p.run();
        assert!(!p.b.host.distrusts_kept && p.a.send_ok() && p.a.host.sends.len() == 4);
        assert!(p.a.host.bytes(BASE, 64 << 10) == p.b.host.bytes(THERE, 64 << 10));
        // The report that nothing is kept has the requester go back, or its probe, if too little has come for a report.
        assert!(p.a.qp.counters().probes <= 1 && p.a.qp.counters().timeouts == 0);
    }
}

/// Has `a` get some acknowledgements only.
fn let_through(p: &mut Pair, passes: impl Fn(usize, Option<u8>) -> bool + 'static) {
    p.drop_to_a = Some(Box::new(move |frame: &Frame| {
        let syndrome = frame.headers.aeth.map(|aeth| aeth.syndrome);
        !passes(frame.payload.len(), syndrome)
    }));
}

#[test]
fn lost_reports_and_lost_naks_delay_and_break_nothing() {
    let nak = Syndrome::Nak(ferroce_wire::NakCode::PsnSequenceError).to_u8();
    type Passes = Box<dyn Fn(usize, Option<u8>) -> bool>;
    let ways: [Passes; 3] = [
        Box::new(|len, _| len < 8),
        Box::new(move |len, syndrome| syndrome != Some(nak) || len >= 8),
        Box::new(move |_, syndrome| syndrome != Some(nak)),
    ];
    for passes in ways {
        let mut p = pair();
        let_through(&mut p, passes);
        p.a.host.fill(BASE, 300_000, 9);
        for i in 0..3 {
            p.a.post(wr(i, WRITE, BASE, 300_000));
        }
        lose(&mut p, (1..880).step_by(37).collect());
        p.run();
        assert!(p.a.send_ok() && p.a.host.sends.len() == 3);
        assert!(p.a.host.bytes(BASE, 300_000) == p.b.host.bytes(THERE, 300_000));
    }
}

#[test]
fn nothing_of_a_kept_packet_counts_before_its_turn() {
    let mut p = pair();
    p.a.host.fill(BASE, 4096, 5);
    p.b.host.post_recv(7, THERE + 8192, 4096);
    p.a.post(wr(1, WRITE, BASE, 4096));
    p.a.post(wr(2, SendOp::Send, BASE, 4096));
    let before = p.b.host.memory.clone();
    p.transmit_a_into(|frames, p| {
        frames[1..].iter().for_each(|frame| p.inject(true, frame));
        assert_eq!((p.b.host.kept.len(), p.b.host.receives.len()), (frames.len() - 1, 1));
        assert!(p.b.host.memory == before && p.b.host.unpublished.is_empty());
        p.inject(true, &frames[0]);
        assert!(p.b.host.kept.is_empty() && p.b.host.receives.is_empty());
    });
    p.run();
    assert!(p.a.host.bytes(BASE, 4096) == p.b.host.bytes(THERE, 4096));
    assert!(p.a.host.bytes(BASE, 4096) == p.b.host.bytes(THERE + 8192, 4096));
    assert_eq!(p.b.host.recv_statuses(), [(7, WcStatus::Success)]);
    assert_eq!(sent_again(&p), 0, "the gap had closed before the NAK left");
}

#[test]
fn kept_sends_without_a_receive_are_asked_for_again_in_their_turn() {
    let mut p = pair();
    p.b.host.post_recv(0, THERE, 100);
    p.b.host.post_recv(1, THERE, 100);
    for i in 0..6 {
        p.a.host.fill(BASE + 128 * i, 100, i as u8);
        p.a.post(wr(i, SendOp::Send, BASE + 128 * i, 100));
    }
    lose(&mut p, vec![1]);
    p.run_for(Duration::from_micros(200));
    assert_eq!(p.b.host.recv_statuses(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    assert_eq!((p.a.host.sends.len(), p.a.qp.counters().rnr_naks), (2, 1));
    // The others wait with the requester.
    assert!(p.b.host.kept.is_empty());
    for i in 2..6 {
        p.b.host.post_recv(i, THERE + 128 * i, 100);
    }
    p.run();
    let ok = |i| (i, WcStatus::Success);
    assert_eq!(p.b.host.recv_statuses(), (0..6).map(ok).collect::<Vec<_>>());
    assert_eq!(p.a.host.send_statuses(), (0..6).map(ok).collect::<Vec<_>>());
    for i in 2..6 {
        assert!(p.a.host.bytes(BASE + 128 * i, 100) == p.b.host.bytes(THERE + 128 * i, 100));
    }
}

#[test]
fn a_kept_request_is_refused_in_its_turn() {
    let mut p = pair();
    let bad = SendOp::Write { va: THERE, rkey: ALL + 1 };
    for (i, op) in [WRITE, WRITE, bad, WRITE].into_iter().enumerate() {
        p.a.post(wr(i as u64, op, BASE, 1000));
    }
    p.transmit_a_into(|frames, p| {
        frames[1..].iter().for_each(|frame| p.inject(true, frame));
        assert_eq!((p.b.qp.state(), p.b.host.kept.len()), (QpState::Rts, 3));
        p.inject(true, &frames[0]);
        assert_eq!((p.b.qp.state(), p.b.host.kept.len()), (QpState::Err, 0));
    });
    p.run();
    let flushed = (3, WcStatus::WrFlushErr);
    let ok = |i| (i, WcStatus::Success);
    assert_eq!(p.a.host.send_statuses(), [ok(0), ok(1), (2, WcStatus::RemAccessErr), flushed]);
}

#[test]
fn kept_packets_are_forgotten_with_the_connection() {
    for state in [QpState::Err, QpState::Reset] {
        let mut p = pair();
        p.a.post(wr(1, WRITE, BASE, 10 << 10));
        p.transmit_a_into(|frames, p| frames[1..].iter().for_each(|frame| p.inject(true, frame)));
        assert_eq!(p.b.host.kept.len(), 9);
        p.b.qp.set_state(state, &mut p.b.host);
        assert!(p.b.host.kept.is_empty());
        // The next connection has the same PSNs.
        for side in [&mut p.a, &mut p.b] {
            side.qp.set_state(QpState::Reset, &mut side.host);
        }
        p.up();
        p.a.host.fill(BASE, 20 << 10, 8);
        p.a.post(wr(2, WRITE, BASE, 20 << 10));
        p.run();
        assert!(p.a.host.bytes(BASE, 20 << 10) == p.b.host.bytes(THERE, 20 << 10));
        assert_eq!(p.a.host.sends.last().map(|c| (c.wr_id, c.status)), Some((2, WcStatus::Success)));
    }
}

#[test]
fn a_packet_of_the_connection_before_is_not_kept_for_this_one() {
    let mut p = pair();
    p.a.host.fill(BASE, 20 << 10, 3);
    p.a.post(wr(1, WRITE, BASE, 20 << 10));
    let mut old = Vec::new();
    p.transmit_a_into(|frames, _| old = frames.to_vec());
    for side in [&mut p.a, &mut p.b] {
        side.qp.set_state(QpState::Reset, &mut side.host);
    }
    p.up();
    p.keep(1024);
    p.a.post(wr(2, WRITE, BASE, 8));
    p.run();
    // The same PSNs again, and packets that the network has held back.
    old[3..].iter().for_each(|frame| p.inject(true, frame));
    assert!(p.b.host.kept.is_empty());
    p.a.host.fill(BASE, 20 << 10, 8);
    p.a.post(wr(3, WRITE, BASE, 20 << 10));
    p.run();
    assert!(p.a.host.bytes(BASE, 20 << 10) == p.b.host.bytes(THERE, 20 << 10));
    // After a second packets are kept again.
    p.now = p.now.after(Duration::from_secs(1));
    let again = sent_again(&p);
    p.a.post(wr(4, WRITE, BASE, 20 << 10));
    lose(&mut p, vec![25]);
    p.run();
    assert_eq!(sent_again(&p) - again, 1);
    assert!(p.a.send_ok());
}

#[test]
fn what_waits_for_seconds_is_dropped_and_sent_again() {
    let mut p = pair();
    p.a.host.fill(BASE, 10 << 10, 8);
    p.a.post(wr(1, WRITE, BASE, 10 << 10));
    let mut frames = Vec::new();
    p.transmit_a_into(|sent, _| frames = sent);
    for frame in &frames[2..] {
        p.inject(true, frame);
    }
    assert_eq!((p.b.host.kept.len(), p.b.qp.next_timeout()), (8, Some(p.now.after(Duration::from_secs(5)))));
    // The first packet closes no gap that packets wait behind, but the time begins anew.
    p.now = p.now.after(Duration::from_secs(4));
    p.inject(true, &frames[0]);
    let at = p.now.after(Duration::from_secs(5));
    assert_eq!((p.b.host.kept.len(), p.b.qp.next_timeout()), (8, Some(at)));
    p.b.qp.handle_timeout(at, &mut p.b.host);
    assert_eq!((p.b.host.kept.len(), p.b.qp.next_timeout()), (0, None));
    p.run();
    assert!(p.a.host.bytes(BASE, 10 << 10) == p.b.host.bytes(THERE, 10 << 10));
    assert!(p.a.send_ok() && p.a.host.sends.len() == 1 && p.b.host.kept.is_empty());
}

#[test]
fn requests_that_miss_packets_are_flushed_when_the_qp_fails() {
    let mut p = pair();
    for i in 0..3 {
        p.a.post(wr(i, WRITE, BASE, 100_000));
    }
    p.drop_to_b = Some(Box::new(|frame| frame.headers.bth.psn == (START + 50) & 0xff_ffff));
    p.run_for(Duration::from_micros(300));
    assert!(sent_again(&p) > 0 && !p.b.host.kept.is_empty());
    p.a.qp.set_state(QpState::Err, &mut p.a.host);
    assert_eq!(p.a.host.send_statuses(), [0, 1, 2].map(|i| (i, WcStatus::WrFlushErr)));
    p.run();
    assert_eq!(p.a.qp.next_timeout(), None);
}

#[test]
fn a_packet_that_never_arrives_uses_up_the_retries() {
    for timeout in [0, 10] {
        let a = QpParams { timeout, retry_cnt: 2, ..params(MTU) };
        let mut p = Pair::with(Service::Rc, a, params(MTU), START);
        p.keep(1024);
        p.a.post(wr(9, WRITE, BASE, 8));
        p.run();
        p.a.host.sends.clear();
        for i in 0..1000 {
            p.a.post(wr(i, WRITE, BASE, 2000));
        }
        p.drop_to_b = Some(Box::new(|frame| frame.headers.bth.psn == (START + 100) & 0xff_ffff));
        p.run_for(Duration::from_secs(2));
        let failed = p.a.host.sends.iter().position(|c| c.status != WcStatus::Success).unwrap();
        assert_eq!((failed, p.a.host.sends[failed].status), (49, WcStatus::RetryExcErr), "{timeout}");
        assert_eq!(p.a.host.sends.len(), 1000);
    }
}

#[test]
fn a_request_whose_memory_is_gone_when_a_packet_is_to_leave_again_fails_in_its_turn() {
    let mut p = pair();
    p.a.host.regions.insert(5, crate::host::Region::new(BASE, 1 << 20));
    for i in 0..3 {
        let mut request = wr(i, WRITE, BASE, 10_000);
        if i == 1 {
            let sges = [ferroce_types::Sge { addr: BASE, length: 10_000, lkey: 5 }];
            request.data = ferroce_proto::Data::Sges(sges.into_iter().collect());
        }
        p.a.post(request);
    }
    lose(&mut p, vec![3, 13]);
    p.transmit();
    p.a.host.regions.remove(&5);
    p.run();
    let flushed = (2, WcStatus::WrFlushErr);
    assert_eq!(p.a.host.send_statuses(), [(0, WcStatus::Success), (1, WcStatus::LocProtErr), flushed]);
}

#[test]
fn no_more_is_kept_than_the_environment_has_room_for() {
    for room in [0, 1, 10, 20] {
        let mut p = pair();
        let most = Rc::new(Cell::new(0));
        p.b.host.kept_room = room;
        p.a.host.fill(BASE, 1 << 20, 1);
        for i in 0..8 {
            p.a.post(wr(i, WRITE, BASE, 256 << 10));
        }
        lose(&mut p, (1..2000).step_by(61).collect());
        while !p.is_idle() && p.step() {
            most.set(most.get().max(p.b.host.kept.len()));
            assert!(p.b.host.kept.bytes() <= room * MTU as usize);
        }
        assert!(p.a.send_ok() && p.a.host.sends.len() == 8, "{room}");
        assert_eq!(most.get(), room);
        assert!(p.a.host.bytes(BASE, 256 << 10) == p.b.host.bytes(THERE, 256 << 10));
        assert_eq!((p.b.host.kept.len(), p.b.host.kept.bytes()), (0, 0));
    }
}

/// A path on which much more is in flight than a peer keeps.
#[test]
fn what_is_too_far_beyond_a_gap_is_sent_again() {
    let mut p = pair();
    p.faults = Faults { delay: Duration::from_millis(2), ..CLEAN };
    p.a.post(wr(64, WRITE, BASE, 1 << 20));
    p.run();
    let probes = p.a.qp.counters().probes;
    (p.a.host.window, p.b.host.kept_room) = (8 << 20, usize::MAX);
    for i in 0..64 {
        p.a.post(wr(i, WRITE, BASE, 1 << 20));
    }
    let dropped = Rc::new(Cell::new(0_u32));
    let seen = Rc::clone(&dropped);
    p.drop_to_b = Some(Box::new(move |frame| {
        let number = frame.headers.bth.psn.wrapping_sub(START) & 0xff_ffff;
        let drops = number == 20_000 && seen.get() == 0;
        seen.set(seen.get() + u32::from(drops));
        drops
    }));
    p.run();
    assert!(p.a.send_ok() && p.a.host.sends.len() == 65);
    assert_eq!((dropped.get(), p.a.qp.counters().timeouts, p.a.qp.counters().probes), (1, 0, probes));
    assert!((1..=8192).contains(&sent_again(&p)), "{}", sent_again(&p));
    assert!(p.b.host.kept.is_empty() && p.b.host.kept.bytes() == 0);
}

/// A SEND that comes as packet `ahead` after the expected one.
fn beyond(p: &Pair, ahead: u32) -> Frame {
    let opcode = Opcode::new(Service::Rc, Operation::SendOnly).unwrap();
    let psn = (p.b.qp.rq_psn() + ahead) & 0xff_ffff;
    Frame { headers: Headers::new(Bth::new(opcode, 0x22, psn)), payload: vec![1; 8] }
}

#[test]
fn no_packet_is_kept_that_has_the_bit_of_another_one() {
    let mut p = pair();
    p.b.host.kept_room = usize::MAX;
    for ahead in [2049, 2048, 4096, 2047, 1] {
        p.inject(true, &beyond(&p, ahead));
    }
    assert_eq!(p.b.host.kept.len(), 2);
    p.b.host.post_recv(0, THERE, 8);
    p.b.host.post_recv(1, THERE, 8);
    p.inject(true, &beyond(&p, 0));
    assert_eq!((p.b.host.kept.len(), p.b.host.unpublished.len()), (1, 2));
}

#[test]
fn what_a_read_has_taken_the_numbers_of_is_dropped() {
    let mut p = pair();
    p.b.host.post_recv(0, THERE, 8);
    for ahead in [1, 2, 4, 6] {
        p.inject(true, &beyond(&p, ahead));
    }
    let opcode = Opcode::new(Service::Rc, Operation::ReadRequest).unwrap();
    let mut headers = Headers::new(Bth::new(opcode, 0x22, p.b.qp.rq_psn()));
    headers.reth = Some(Reth { va: THERE, rkey: ALL, dma_len: 4 * MTU });
    p.inject(true, &Frame { headers, payload: vec![] });
    assert_eq!((p.b.host.kept.len(), p.b.host.kept.bytes(), p.b.host.unpublished.len()), (1, 8, 1));
}

#[test]
fn a_packet_that_the_transport_knows_nothing_of_does_not_outlive_the_connection() {
    for state in [QpState::Reset, QpState::Err] {
        let mut p = pair();
        let frame = beyond(&p, 5);
        assert!(p.b.host.kept.keep(5, &frame.headers, &&frame.payload[..]));
        assert!(p.b.host.kept.keep(5, &frame.headers, &&frame.payload[..4]));
        assert_eq!((p.b.host.kept.len(), p.b.host.kept.bytes()), (1, 4));
        p.b.qp.set_state(state, &mut p.b.host);
        assert!(p.b.host.kept.is_empty());
    }
}

#[test]
fn a_peer_that_may_be_an_adapter_gets_no_report() {
    let mut p = pair();
    p.b.host.telling = ferroce_proto::Telling::Never;
    p.drop_to_a = Some(Box::new(|frame| {
        assert!(frame.payload.is_empty());
        false
    }));
    p.a.post(wr(1, WRITE, BASE, 64 << 10));
    let mut lost = false;
    p.drop_to_b = Some(Box::new(move |frame| {
        let drops = !lost && frame.headers.bth.psn == 0;
        lost |= drops;
        drops
    }));
    p.run();
    // It goes back, and what is kept spares it some of the way.
    assert!(p.a.send_ok() && sent_again(&p) > 1);
}
#[test]
fn the_farthest_packet_that_is_kept_has_its_turn() {
    let mut p = pair();
    p.b.host.kept_room = usize::MAX;
    let write = |number: u32| {
        let opcode = Opcode::new(Service::Rc, Operation::SendOnly).unwrap();
        let psn = (START + 1 + number) & 0xff_ffff;
        Frame { headers: Headers::new(Bth::new(opcode, 0x22, psn)), payload: vec![1; 8] }
    };
    for number in [2047, 2048, 5000, 1] {
        p.inject(true, &write(number));
    }
    assert_eq!(p.b.host.kept.len(), 2);
    for number in 2..2047 {
        p.inject(true, &write(number));
    }
    assert_eq!(p.b.host.kept.len(), 2047);
    (0..2048).for_each(|_| p.b.host.post_recv(7, THERE, 8));
    p.inject(true, &write(0));
    assert_eq!((p.b.host.kept.len(), p.b.host.kept.bytes()), (0, 0));
    assert_eq!(p.b.qp.rq_psn(), (START + 1 + 2048) & 0xff_ffff);
}

#[test]
fn nothing_is_kept_before_the_first_request_has_come() {
    let mut p = Pair::with(Service::Rc, params(MTU), params(MTU), START);
    p.keep(1024);
    p.a.post(wr(1, WRITE, BASE, 64 << 10));
    p.transmit_a_into(|frames, p| frames[1..].iter().for_each(|frame| p.inject(true, frame)));
    assert!(p.b.host.kept.is_empty());
    p.run();
    assert!(p.a.send_ok());
}

#[test]
fn reads_and_atomics_go_back_and_come_in_order() {
    let add = SendOp::FetchAdd { va: THERE + (1 << 20), rkey: ALL, add: 1 };
    for lost in [vec![1], vec![2, 6], vec![4], vec![9, 10, 11, 30]] {
        let mut p = pair();
        for i in 0..20 {
            let op = [WRITE, READ, WRITE, add][i as usize % 4];
            p.a.post(wr(i, op, BASE + 4096 * i, if op == add { 8 } else { 3000 }));
        }
        lose(&mut p, lost);
        p.run();
        let ok = |i| (i, WcStatus::Success);
        assert_eq!(p.a.host.send_statuses(), (0..20).map(ok).collect::<Vec<_>>());
        assert_eq!(p.b.host.bytes(THERE + (1 << 20), 8), 5_u64.to_ne_bytes());
    }
}

/// A pair with a large window and without a local ACK timer.
pub fn wide_and_patient() -> Pair {
    let mut p =
        Pair::with(Service::Rc, QpParams { timeout: 0, retry_cnt: 2, ..params(MTU) }, params(MTU), START);
    p.keep(1024);
    p.a.post(wr(1000, WRITE, BASE, 1 << 20));
    p.run();
    p.a.host.sends.clear();
    p
}

/// Many of the small packets that have come count as in flight: a report doesn't show them, or they weren't kept.
#[test]
fn the_oldest_packet_leaves_again_whatever_the_window() {
    for (room, times) in [(1024, 1), (1024, 3), (1, 1), (1, 3), (0, 2)] {
        let mut p = wide_and_patient();
        p.b.host.kept_room = room;
        for i in 0..400 {
            p.b.host.post_recv(i, THERE, 8);
            p.a.post(wr(i, SendOp::Send, BASE, 8));
        }
        lose(&mut p, vec![1025; times]);
        p.transmit();
        let congested = Headers::new(Bth { becn: true, ..Bth::new(Opcode::CNP, 0x11, 0) });
        for _ in 0..40 {
            p.inject(false, &Frame { headers: congested, payload: vec![0; 16] });
            p.run_for(Duration::from_micros(25));
        }
        p.run();
        let ok = |i| (i, WcStatus::Success);
        assert_eq!(p.a.host.send_statuses(), (0..400).map(ok).collect::<Vec<_>>(), "{room}");
        assert_eq!(p.b.host.recv_statuses(), (0..400).map(ok).collect::<Vec<_>>(), "{room}");
    }
}

#[test]
fn reports_count_as_retries_while_the_oldest_packet_cannot_leave() {
    let mut p = wide_and_patient();
    for i in 0..3 {
        p.a.post(wr(i, WRITE, BASE, 2000));
    }
    let first = p.a.qp.sq_psn();
    p.transmit();
    p.a.host.room = Some(0);
    for _ in 0..3 {
        assert_eq!(p.a.qp.state(), QpState::Rts);
        p.now = p.now.after(Duration::from_millis(20));
        p.inject(false, &nak(first, 2_u64.to_le_bytes().to_vec()));
        p.transmit();
    }
    assert_eq!(p.a.host.sends.first().map(|c| (c.wr_id, c.status)), Some((0, WcStatus::RetryExcErr)));
}

/// A NAK of `b` for the packet `psn` with this payload.
pub fn nak(psn: u32, payload: Vec<u8>) -> Frame {
    let opcode = Opcode::new(Service::Rc, Operation::Acknowledge).unwrap();
    let mut headers = Headers::new(Bth::new(opcode, 0x11, psn & 0xff_ffff));
    let syndrome = Syndrome::Nak(ferroce_wire::NakCode::PsnSequenceError).to_u8();
    headers.aeth = Some(Aeth { syndrome, msn: 0 });
    Frame { headers, payload }
}

#[test]
fn what_a_peer_has_kept_and_dropped_is_sent_again() {
    let mut p = wide_and_patient();
    p.a.post(wr(1, WRITE, BASE, 10 * MTU));
    let first = p.a.qp.sq_psn();
    p.transmit_a_into(|frames, _| assert_eq!(frames.len(), 10));
    let leaves = |p: &mut Pair, report: u64| {
        p.inject(false, &nak(first, report.to_le_bytes().to_vec()));
        let mut psns = Vec::new();
        p.transmit_a_into(|frames, _| psns.extend(frames.iter().map(|frame| frame.headers.bth.psn - first)));
        psns
    };
    assert_eq!(leaves(&mut p, 0b1_1111_1111), [0]);
    // A report that is older, and one after it.
    assert_eq!(leaves(&mut p, 0b0_1000_0101), []);
    assert_eq!(leaves(&mut p, 0b1_1111_1111), []);
    p.now = p.now.after(Duration::from_millis(1));
    assert_eq!(leaves(&mut p, 0b1_1111_1111), [0]);
    // What comes beyond the packets that a report shows isn't known to be dropped.
    assert_eq!(leaves(&mut p, 0b0_1100_0001), []);
    p.now = p.now.after(Duration::from_millis(1));
    assert_eq!(leaves(&mut p, 0b0_1100_0001), [0, 2, 3, 4, 5, 6]);
    p.run();
    assert!(p.a.send_ok() && p.a.host.sends.len() == 1);
}

#[test]
fn a_loss_with_a_read_under_way_goes_back_once_in_a_round_trip() {
    let mut p = pair();
    p.a.post(wr(0, READ, BASE, 8));
    (1..10).for_each(|i| p.a.post(wr(i, WRITE, BASE, 8)));
    let first = p.a.qp.sq_psn();
    p.transmit_a_into(|frames, _| assert_eq!(frames.len(), 10));
    // The round trip is 20 us. Packets that left before the first NAK came cause the others.
    for (micros, leave) in [(0, 10), (4, 0), (12, 0), (3, 0), (2, 10), (19, 0)] {
        p.now = p.now.after(Duration::from_micros(micros));
        p.inject(false, &nak(first, 2_u64.to_le_bytes().to_vec()));
        p.transmit_a_into(|frames, _| assert_eq!(frames.len(), leave, "{micros}"));
    }
    p.run();
    assert!(p.a.send_ok() && p.a.host.sends.len() == 10);
}

#[test]
fn the_oldest_request_whose_memory_is_gone_when_a_packet_is_to_leave_again_fails_at_once() {
    let mut p = wide_and_patient();
    p.a.host.regions.insert(5, crate::host::Region::new(BASE, 1 << 20));
    let sges = [ferroce_types::Sge { addr: BASE, length: 10_000, lkey: 5 }];
    let data = ferroce_proto::Data::Sges(sges.into_iter().collect());
    p.a.post(ferroce_proto::SendWr { data, ..wr(1, WRITE, BASE, 0) });
    lose(&mut p, vec![1025]);
    p.transmit();
    p.a.host.regions.remove(&5);
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::LocProtErr)]);
}

/// The peer lies to its own harm only: every request ends once and in order, with success or, when all retries are used up, with an error.
#[test]
fn false_reports_break_no_order_and_cause_no_flood() {
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let mut p = pair();
        (p.a.qp.params_mut().timeout, p.a.qp.params_mut().retry_cnt) = (8, 1);
        for i in 0..50 {
            p.a.post(wr(i, WRITE, BASE, rng.below(9000) as u32));
        }
        let first = sent_again(&p);
        let mut naks = 0;
        for _ in 0..60 {
            p.step();
            let psn = p.a.qp.sq_psn().wrapping_sub(rng.below(60) as u32);
            let words = 1 + rng.below(33);
            let payload = (0..words).flat_map(|_| (rng.next() | rng.next()).to_le_bytes()).collect();
            if rng.below(3) > 0 {
                naks += 1;
                p.inject(false, &nak(psn, payload));
            }
        }
        assert!(sent_again(&p) - first <= naks * 60);
        p.run_for(Duration::from_secs(20));
        let order: Vec<_> = p.a.host.sends.iter().map(|c| c.wr_id).collect();
        assert_eq!(order, (0..50).collect::<Vec<_>>(), "{seed}");
    }
}

/// Packets with PSNs far beyond the gap, of every length: bounded memory, and answers that aren't longer than what causes them.
#[test]
fn packets_far_beyond_a_gap_are_not_kept_and_cause_no_long_answers() {
    let mut p = pair();
    p.b.host.kept_room = usize::MAX;
    let mut rng = Rng(3);
    p.b.host.out.clear();
    let (mut came, mut left) = (0, 0);
    for _ in 0..100_000 {
        let farthest = [5, 100, 3000, 1 << 22][rng.below(4) as usize];
        let ahead = 1 + rng.below(farthest) as u32;
        let operation =
            [Operation::SendOnly, Operation::WriteMiddle, Operation::SendLast][rng.below(3) as usize];
        let opcode = Opcode::new(Service::Rc, operation).unwrap();
        let psn = (p.b.qp.rq_psn() + ahead) & 0xff_ffff;
        let bth = Bth { ack_request: rng.below(2) == 0, ..Bth::new(opcode, 0x22, psn) };
        let len = if rng.below(2) == 0 { MTU as usize } else { rng.below(1025) as usize };
        p.inject(true, &Frame { headers: Headers::new(bth), payload: vec![1; len] });
        p.b.qp.flush_acks(&mut p.b.host);
        // With their headers.
        came += len + 48;
        left += p.b.host.out.drain(..).map(|frame| frame.payload.len() + 48).sum::<usize>();
        assert!(left <= came, "{left} bytes for {came}");
    }
    assert!((2000..=2048).contains(&p.b.host.kept.len()));
    assert!(p.b.host.kept.bytes() <= 2048 * MTU as usize);
    assert_eq!((p.b.qp.state(), p.b.host.unpublished.len()), (QpState::Rts, 0));
}

#[test]
fn what_was_kept_waits_for_its_memory_when_its_turn_comes() {
    let mut p = pair();
    p.b.host.post_recv(9, THERE, 4096);
    p.a.host.fill(BASE, 3 * 1024, 3);
    p.a.post(wr(1, SendOp::Send, BASE, 3 * 1024));
    p.a.post(wr(2, SendOp::Write { va: THERE + 8192, rkey: ALL }, BASE, 8));
    let mut frames = Vec::new();
    p.transmit_a_into(|sent, _| frames = sent);
    frames[1..].iter().for_each(|frame| p.inject(true, frame));
    assert_eq!(p.b.host.kept.len(), 3);
    // What fills the gap has its memory.
    p.b.host.memory_is_absent = true;
    p.inject(true, &frames[0]);
    assert_eq!(p.b.host.bytes(THERE, 1024), p.a.host.bytes(BASE, 1024));
    assert_eq!(p.b.host.bytes(THERE + 1024, 2048), [0; 2048], "nothing is copied to memory that isn't there");
    assert!(p.b.host.kept.is_empty());
    let awaiting = std::mem::take(&mut p.b.host.awaiting);
    let psns = awaiting.iter().map(|packet| packet.headers.bth.psn).collect::<Vec<_>>();
    assert_eq!(psns, frames[1..].iter().map(|frame| frame.headers.bth.psn).collect::<Vec<_>>());
    p.b.host.memory_is_absent = false;
    for packet in awaiting {
        p.inject(true, &Frame { headers: packet.headers, payload: packet.payload.to_vec() });
    }
    p.run();
    assert_eq!(p.b.host.bytes(THERE, 3 * 1024), p.a.host.bytes(BASE, 3 * 1024));
    assert_eq!(p.b.host.bytes(THERE + 8192, 8), p.a.host.bytes(BASE, 8));
    assert!(p.a.send_ok() && p.a.host.sends.len() == 2 && p.b.host.recvs.len() == 1);
    assert_eq!(sent_again(&p), 0);
}
