//! Reports of errors: one for each QP, by the side that knows the cause, with the request and the number of requests that it
//! flushes.

use crate::crafted;
use crate::host::{ALL, BASE, Frame, REASON, Region, THERE};
use crate::net::{Pair, READ, WRITE, datagram, params, wr};
use ferroce_proto::{Cause, QpParams, Refusing, RequestedAccess, SendOp, Telling};
use ferroce_types::{Access, QpState, RemoteAccess, WcStatus};
use ferroce_wire::{Aeth, NakCode, Operation, Service, Syndrome};
use std::time::Duration;

/// The peer's refusal, with its reason.
fn refused(status: WcStatus) -> Cause {
    Cause::Refused { status, told: REASON }
}

fn pair(a: QpParams, b: QpParams) -> Pair {
    let mut pair = Pair::with(Service::Rc, a, b, 5);
    pair.b.host.telling = Telling::WithNak;
    pair
}

/// The causes that both sides have reported.
fn causes(pair: &Pair) -> [Vec<Cause>; 2] {
    [&pair.a, &pair.b].map(|side| side.host.failures.iter().map(|failure| failure.0).collect())
}

#[test]
fn both_sides_tell_a_refusal_once_and_name_what_they_know() {
    for mtu in [1024, u32::MAX] {
        let mut p = pair(params(mtu), params(mtu));
        p.b.host.post_recv(9, THERE, 64);
        p.a.post(wr(1, WRITE, BASE, 3000));
        p.a.post(wr(2, SendOp::Write { va: THERE, rkey: 0x400 }, BASE, 3000));
        p.a.post(wr(3, WRITE, BASE, 8));
        p.a.post(wr(4, SendOp::Send, BASE, 8));
        p.run();
        let status = WcStatus::RemAccessErr;
        assert_eq!(p.a.host.failures, [(refused(status), Some(2), None, 2)]);
        let operation = if mtu == 1024 { Operation::WriteFirst } else { Operation::WriteOnly };
        let asked = RequestedAccess {
            operation,
            va: THERE,
            rkey: 0x400,
            len: 3000,
            packet: if mtu == 1024 { 1024 } else { 3000 },
        };
        let cause = Cause::Refuses { why: Refusing::Access(RemoteAccess::Write), asked };
        assert_eq!(p.b.host.failures, [(cause, None, None, 0)]);
        // Every completion that isn't a success contains the reason, also those of flushed receives, which the host makes.
        let reasons: Vec<_> = p.a.host.sends.iter().map(|c| (c.wr_id, c.reason())).collect();
        assert_eq!(reasons, [(1, 0), (2, REASON), (3, REASON), (4, REASON)]);
        assert_eq!(p.b.qp.reason(), REASON);
    }
}

#[test]
fn a_reason_that_may_not_be_told_is_not() {
    let mut p = pair(params(1024), params(1024));
    p.b.host.telling = Telling::Never;
    p.a.post(wr(1, SendOp::Write { va: THERE, rkey: 0x400 }, BASE, 8));
    p.drop_to_a = Some(Box::new(|frame| {
        assert!(frame.payload.is_empty());
        false
    }));
    p.run();
    assert_eq!(causes(&p)[0], [Cause::Refused { status: WcStatus::RemAccessErr, told: 0 }]);
}

#[test]
fn a_reason_that_comes_before_its_nak_changes_nothing_else() {
    for (timer, drops_it) in [(None, false), (None, true), (Some(12), false), (Some(12), true)] {
        let retry = QpParams { rnr_retry: 1, min_rnr_timer: 12, ..params(1024) };
        let mut p = pair(retry, retry);
        p.b.host.telling = Telling::BeforeNak;
        let refused = SendOp::Write { va: THERE, rkey: 0x400 };
        p.a.post(wr(1, if timer.is_some() { SendOp::Send } else { refused }, BASE, 8));
        let sizes = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let seen = std::rc::Rc::clone(&sizes);
        p.drop_to_a = Some(Box::new(move |frame| {
            seen.borrow_mut().push(frame.payload.len());
            drops_it && !frame.payload.is_empty()
        }));
        p.run();
        let told = if drops_it { 0 } else { REASON };
        let cause = match timer {
            None => Cause::Refused { status: WcStatus::RemAccessErr, told },
            Some(timer) => Cause::NotReady { tries: 2, timer, told },
        };
        assert_eq!(causes(&p)[0], [cause]);
        // A packet for each NAK, right before it: a NAK that isn't ready comes twice.
        let naks = if timer.is_some() { 2 } else { 1 };
        assert_eq!(*sizes.borrow(), [4, 0].repeat(naks));
    }
}

#[test]
fn each_refusal_has_its_own_cause() {
    let nothing = QpParams { access: Access::default(), ..params(1024) };
    let shallow = QpParams { max_dest_rd_atomic: 0, ..params(1024) };
    let add = |va| SendOp::FetchAdd { va, rkey: ALL, add: 1 };
    let gone = SendOp::Write { va: THERE, rkey: 0x300 };
    let cases = [
        (nothing, WRITE, Refusing::QpRights),
        (nothing, READ, Refusing::QpRights),
        (nothing, add(THERE), Refusing::QpRights),
        (shallow, READ, Refusing::Depth),
        (params(1024), add(THERE + 1), Refusing::Misaligned),
        (QpParams { path_mtu: 256, ..params(1024) }, SendOp::Send, Refusing::PacketLength),
        (params(1024), SendOp::Send, Refusing::TooLong),
        (params(1024), gone, Refusing::Gone(RemoteAccess::Write)),
        (params(1024), SendOp::SendWithInvalidate { rkey: 0x700 }, Refusing::Invalidation),
    ];
    for (b, op, expected) in cases {
        let mut p = pair(params(1024), b);
        p.b.host.regions.insert(0x300, Region { gone: true, ..Region::new(BASE, 4 << 20) });
        let room = if expected == Refusing::TooLong { 16 } else { 2048 };
        p.b.host.post_recv(9, THERE, room);
        p.a.post(wr(1, op, BASE, if expected == Refusing::PacketLength { 1024 } else { 64 }));
        p.run();
        let told: Vec<_> = p.b.host.failures.iter().map(|failure| (failure.0, failure.2)).collect();
        let [(Cause::Refuses { why, .. }, receive)] = told[..] else { panic!("{op:?}: {told:?}") };
        assert_eq!(why, expected);
        let uses = matches!(expected, Refusing::TooLong | Refusing::Invalidation);
        assert_eq!(receive, uses.then_some(9), "{op:?}");
        assert!(matches!(causes(&p)[0][..], [Cause::Refused { told: REASON, .. }]), "{op:?}");
    }
}

fn sequence_nak(psn: u32) -> Frame {
    let mut nak = crafted::frame(Operation::Acknowledge, psn & 0xff_ffff, &[]);
    let syndrome = Syndrome::Nak(NakCode::PsnSequenceError).to_u8();
    nak.headers.aeth = Some(Aeth { syndrome, msn: 0 });
    nak
}

#[test]
fn silence_is_told_with_what_is_known_of_it() {
    let a = QpParams { retry_cnt: 2, timeout: 10, ..params(1024) };
    let mut p = pair(a, params(1024));
    p.drop_to_b = Some(Box::new(|_| true));
    p.a.post(wr(1, WRITE, BASE, 8));
    p.a.post(wr(2, WRITE, BASE, 8));
    // No peer that has these PSNs asks for one that is far ahead.
    p.inject(false, &sequence_nak(p.a.qp.sq_psn().wrapping_add(50)));
    p.run();
    let cause = Cause::NoAnswer { tries: 3, asked_for: None, answered: false };
    assert_eq!(p.a.host.failures, [(cause, Some(1), None, 1)]);
    // The peer expects an earlier PSN, and its NAK contains it; or a later one, which only the peer itself can report.
    for (sq_psn, rq_psn) in [(100, 99), (100, 200)] {
        let mut p = Pair::down(Service::Rc, a, params(1024), sq_psn);
        p.b.qp.params_mut().rq_psn = rq_psn;
        p.up();
        p.a.post(wr(1, WRITE, BASE, 8));
        p.run();
        let [ours, theirs] = causes(&p);
        let asked_for = (rq_psn < sq_psn).then_some(rq_psn);
        assert_eq!(ours, [Cause::NoAnswer { tries: 3, asked_for, answered: false }]);
        let ahead = (rq_psn > sq_psn).then_some(Cause::BeforeFirst { psn: sq_psn, expected: rq_psn });
        assert_eq!(theirs, Vec::from_iter(ahead));
    }
}

/// As where the network repeats or delays a NAK, and the peer dies later.
#[test]
fn a_stale_nak_of_a_peer_that_has_answered_is_no_reason_for_its_silence() {
    let mut p = pair(QpParams { retry_cnt: 2, timeout: 10, ..params(1024) }, params(1024));
    p.a.post(wr(1, WRITE, BASE, 8));
    p.run();
    assert!(p.a.send_ok());
    p.inject(false, &sequence_nak(p.a.qp.sq_psn().wrapping_sub(1)));
    p.drop_to_b = Some(Box::new(|_| true));
    p.a.post(wr(2, WRITE, BASE, 8));
    p.run();
    assert_eq!(p.a.qp.counters().stale_responses, 1);
    assert_eq!(causes(&p)[0], [Cause::NoAnswer { tries: 3, asked_for: None, answered: true }]);
}

#[test]
fn a_peer_without_receives_says_whether_it_ever_had_one() {
    for first in [true, false] {
        let mut p = pair(QpParams { rnr_retry: 1, ..params(1024) }, params(1024));
        if !first {
            p.b.host.post_recv(9, THERE, 64);
            p.a.post(wr(1, SendOp::Send, BASE, 8));
        }
        p.a.post(wr(2, SendOp::Send, BASE, 8));
        p.run();
        assert_eq!(causes(&p)[0], [Cause::NotReady { tries: 2, timer: 12, told: REASON }]);
        assert_eq!(causes(&p)[1], [Cause::NoReceive { first }; 2]);
        assert_eq!(p.b.qp.reason(), 0);
    }
}

#[test]
fn a_wait_without_limit_for_a_receive_is_reported_once() {
    let mut p =
        pair(QpParams { rnr_retry: 7, ..params(1024) }, QpParams { min_rnr_timer: 31, ..params(1024) });
    for number in [1, 2] {
        p.a.post(wr(number, SendOp::Send, BASE, 8));
    }
    p.run_for(Duration::from_secs(10));
    let [Cause::StillNotReady { waited, told: REASON }] = causes(&p)[0][..] else {
        panic!("{:?}", causes(&p)[0])
    };
    assert!((3..4).contains(&waited.as_secs()), "{waited:?}");
    assert_eq!(p.a.host.failures[0].1, Some(1), "the oldest request");
    assert!(p.a.qp.oldest().is_some_and(|oldest| oldest.not_ready_since.is_some()));
    for _ in [1, 2] {
        p.b.host.post_recv(9, THERE, 64);
    }
    p.run();
    assert_eq!((causes(&p)[0].len(), p.a.qp.reason()), (1, 0));
    assert!(p.a.qp.oldest().is_none());
}

#[test]
fn what_is_wrong_on_this_side_is_told_before_anything_leaves() {
    let mut p = pair(QpParams { max_rd_atomic: 0, ..params(1024) }, params(1024));
    p.a.post(wr(1, READ, BASE, 8));
    p.run();
    assert_eq!(causes(&p), [vec![Cause::NoReadDepth], vec![]]);
    let mut p = pair(params(1024), params(1024));
    p.a.host.regions.clear();
    p.a.post(wr(1, SendOp::Send, BASE, 8));
    p.run();
    assert_eq!(causes(&p), [vec![Cause::LocalMemory], vec![]]);
}

#[test]
fn requests_posted_after_an_error_are_told_once_and_after_none_never() {
    let mut p = pair(params(1024), params(1024));
    p.a.post(wr(1, SendOp::Write { va: THERE, rkey: 0x400 }, BASE, 8));
    p.run();
    for wr_id in 2..5 {
        p.a.post(wr(wr_id, WRITE, BASE, 8));
        p.run();
    }
    let after = (Cause::PostedAfter { reason: REASON }, Some(2), None, 1);
    assert_eq!(p.a.host.failures[1..], [after]);
    // The program takes the QP to ERR itself.
    let mut p = pair(params(1024), params(1024));
    p.a.qp.set_state(QpState::Err, &mut p.a.host);
    p.a.post(wr(1, WRITE, BASE, 8));
    p.run();
    assert_eq!(causes(&p), [vec![], vec![]]);
    assert_eq!(p.a.host.sends[0].reason(), 0);
}

#[test]
fn datagrams_that_are_dropped_are_told_once() {
    let mut p = Pair::with(Service::Ud, params(1024), params(1024), 5);
    p.b.host.post_recv(9, THERE, 41);
    for wr_id in 0..3 {
        p.a.post(datagram(wr_id, SendOp::Send, BASE, 8, 0x22, 0x111));
        p.a.post(datagram(wr_id, SendOp::Send, BASE, 8, 0x22, 0));
    }
    p.run();
    let qkey = Cause::QKey { theirs: 0x111, from: 0x11 };
    assert_eq!(causes(&p), [vec![], vec![qkey, Cause::NoRoomForGrh { needs: 48 }]]);
    assert_eq!(p.b.qp.reason(), 0);
}
