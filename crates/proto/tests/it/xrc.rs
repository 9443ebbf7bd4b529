//! Extended reliable connections (annex A14): an initiator names the peer's SRQ, a target receives into it.

use crate::host::{ALL, BASE, Frame, Host, Region, THERE, pattern};
use crate::net::{CLEAN, Faults, Pair, params, wr};
use core::cell::RefCell;
use core::time::Duration;
use ferroce_proto::{Cause, Executed, QpEvent, QpParams, QpProtocol, Refusing, SendOp, SendWr};
use ferroce_types::{QpState, RecvWqe, Sge, WcOpcode, WcStatus};
use ferroce_wire::{Bth, Headers, NakCode, Opcode, Operation, Service};
use std::collections::VecDeque;
use std::rc::Rc;

const SRQS: [u32; 2] = [0x51, 0xff_ff52];

/// An initiator and a target with two SRQs.
fn pair(mtu: u32) -> Pair {
    let target = QpParams { srq: true, ..params(mtu) };
    let mut p = Pair::with(Service::Xrc, params(mtu), target, 0xff_fff0);
    for srqn in SRQS {
        p.b.host.xrc_srqs.insert(srqn, VecDeque::new());
    }
    p
}

fn to(srqn: u32, wr: SendWr<u32>) -> SendWr<u32> {
    SendWr { remote_srqn: srqn, ..wr }
}

fn post_srq(p: &mut Pair, srqn: u32, wr_id: u64, addr: u64, length: u32) {
    let sges = [Sge { addr, length, lkey: ALL }].into_iter().collect();
    p.b.host.xrc_srqs.get_mut(&srqn).unwrap().push_back(RecvWqe { wr_id, sges });
}

/// Whether every packet that passes is of the service and names the SRQ if, and only if, it is a request.
fn check_headers(p: &mut Pair) -> Rc<RefCell<(u32, u32)>> {
    let seen = Rc::new(RefCell::new((0, 0)));
    let (requests, responses) = (seen.clone(), seen.clone());
    p.drop_to_b = Some(Box::new(move |f: &Frame| {
        assert_eq!(f.headers.bth.opcode.service, Service::Xrc);
        assert!(f.headers.fits_opcode() && f.headers.xrc_srqn.is_some_and(|n| SRQS.contains(&n)));
        requests.borrow_mut().0 += 1;
        false
    }));
    p.drop_to_a = Some(Box::new(move |f: &Frame| {
        assert_eq!(f.headers.bth.opcode.service, Service::Xrc);
        assert!(f.headers.fits_opcode() && f.headers.xrc_srqn.is_none());
        responses.borrow_mut().1 += 1;
        false
    }));
    seen
}

#[test]
fn every_operation_arrives_once_and_in_the_srq_it_names_whatever_the_network_does() {
    const LEN: u32 = 3000;
    let worst =
        Faults { loss: 50, duplicate: 80, reorder: 80, delay: Duration::from_micros(100), link: None };
    for (faults, mtu) in [CLEAN, worst].into_iter().flat_map(|f| [256, 1024, u32::MAX].map(|mtu| (f, mtu))) {
        for seed in 0..8 {
            let mut p = pair(mtu).seeded(seed, faults);
            let seen = check_headers(&mut p);
            let at = |i: u64| i * u64::from(LEN);
            for i in 0..40u64 {
                let srqn = SRQS[(i % 3 % 2) as usize];
                p.a.host.fill(BASE + at(i), LEN as usize, i as u8);
                let op = match i % 5 {
                    0 | 1 => {
                        post_srq(&mut p, srqn, i, THERE + at(i), LEN);
                        SendOp::SendWithImmediate { immediate: [i as u8; 4] }
                    }
                    2 => {
                        post_srq(&mut p, srqn, i, THERE, 0);
                        SendOp::WriteWithImmediate { va: THERE + at(i), rkey: ALL, immediate: [i as u8; 4] }
                    }
                    3 => SendOp::Write { va: THERE + at(i), rkey: ALL },
                    _ => SendOp::Read { va: THERE + at(i - 1), rkey: ALL },
                };
                p.a.post(to(srqn, wr(i, op, BASE + at(i), LEN)));
            }
            for i in 40..44 {
                let op = SendOp::FetchAdd { va: BASE, rkey: ALL, add: 1 };
                p.a.post(to(SRQS[0], wr(i, op, THERE + at(i), 8)));
            }
            p.run();
            assert_eq!(p.a.host.send_statuses(), (0..44).map(|i| (i, WcStatus::Success)).collect::<Vec<_>>());
            let received: Vec<_> =
                p.b.host.recvs.iter().map(|c| (c.wr_id, c.immediate(), c.byte_len)).collect();
            let sent: Vec<_> = (0..40).filter(|i| i % 5 < 3).map(|i| (i, Some([i as u8; 4]), LEN)).collect();
            assert_eq!(received, sent, "{faults:?} {mtu} {seed}");
            for i in 0..40 {
                let (bytes, seed) = match i % 5 {
                    4 => (p.a.host.bytes(BASE + at(i), LEN as usize), i - 1),
                    _ => (p.b.host.bytes(THERE + at(i), LEN as usize), i),
                };
                assert!(bytes.iter().enumerate().all(|(n, b)| *b == pattern(seed as u8, n)), "{i} {mtu}");
            }
            assert_eq!(p.b.host.bytes(BASE, 8), 4u64.to_ne_bytes());
            assert!(seen.borrow().0 >= 44 && seen.borrow().1 > 0);
        }
    }
}

#[test]
fn empty_srq_is_rnr_and_the_others_receives_stay_where_they_are() {
    let mut p = pair(1024);
    post_srq(&mut p, SRQS[1], 7, THERE, 64);
    p.a.post(to(SRQS[0], wr(1, SendOp::Send, BASE, 64)));
    p.run_for(Duration::from_millis(5));
    assert!(p.b.qp.counters().rnr_naks_sent > 0 && p.b.host.recvs.is_empty());
    post_srq(&mut p, SRQS[0], 8, THERE, 64);
    p.run();
    assert_eq!(p.b.host.recv_statuses(), [(8, WcStatus::Success)]);
    assert_eq!(p.b.host.xrc_srqs[&SRQS[1]].len(), 1);
}

#[test]
fn srq_that_is_not_of_the_domain_is_an_invalid_request_whatever_the_operation() {
    use SendOp::{FetchAdd, Read, Send, Write};
    let (va, rkey) = (THERE, ALL);
    for op in [Send, Write { va, rkey }, Read { va, rkey }, FetchAdd { va, rkey, add: 1 }] {
        let mut p = pair(1024);
        p.a.host.fill(BASE, 8, 1);
        p.a.post(to(0x99, wr(1, op, BASE, 8)));
        p.run();
        assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RemInvReqErr)], "{op:?}");
        assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Err, QpState::Err));
        assert_eq!(p.b.host.events, [QpEvent::AccessError, QpEvent::LastWqeReached]);
        assert_eq!(p.b.host.bytes(THERE, 8), [0; 8]);
    }
}

#[test]
fn message_that_changes_its_srq_midway_is_an_invalid_request() {
    let mut p = pair(256);
    post_srq(&mut p, SRQS[0], 5, THERE, 600);
    post_srq(&mut p, SRQS[1], 6, THERE, 600);
    p.a.post(to(SRQS[0], wr(1, SendOp::Send, BASE, 600)));
    p.transmit_a_into(|frames, p| {
        for (n, mut frame) in frames.into_iter().enumerate() {
            if n == 1 {
                frame.headers.xrc_srqn = Some(SRQS[1]);
            }
            p.inject(true, &frame);
        }
    });
    p.run();
    assert_eq!(p.b.host.recv_statuses(), [(5, WcStatus::RemInvReqErr)]);
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(p.b.host.xrc_srqs[&SRQS[1]].len(), 1);
}

#[test]
fn keys_are_those_of_the_named_srqs_protection_domain() {
    for (srqn, status) in [(SRQS[0], WcStatus::Success), (SRQS[1], WcStatus::RemAccessErr)] {
        for read in [false, true] {
            let mut p = pair(256);
            p.b.host.regions.insert(0x77, Region::new(THERE, 4096));
            p.b.host.owners.insert(0x77, SRQS[0]);
            let (va, rkey) = (THERE, 0x77);
            let op = if read { SendOp::Read { va, rkey } } else { SendOp::Write { va, rkey } };
            // Another request's SRQ is the selected one by the time the answer leaves.
            p.a.post(to(srqn, wr(1, op, BASE, 1000)));
            p.a.post(to(SRQS[1], wr(2, SendOp::Write { va: BASE, rkey: ALL }, BASE, 8)));
            p.run();
            assert_eq!(p.a.host.send_statuses()[0], (1, status), "read: {read}");
        }
    }
}

#[test]
fn read_whose_srq_is_gone_when_it_is_answered_is_refused() {
    let mut p = pair(256);
    p.a.post(to(SRQS[0], wr(1, SendOp::Read { va: THERE, rkey: ALL }, BASE, 1000)));
    p.transmit_a_into(|frames, p| frames.iter().for_each(|f| p.inject(true, f)));
    p.b.host.xrc_srqs.remove(&SRQS[0]);
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RemOpErr)]);
    let told = p.b.host.failures[0].0;
    assert!(matches!(told, Cause::Refuses { why: Refusing::NoSrq, .. }), "{told:?}");
}

#[test]
fn initiator_takes_no_requests_and_a_target_none_without_an_xrceth() {
    let mut p = pair(1024);
    let bth = Bth::new(Opcode::new(Service::Xrc, Operation::SendOnly).unwrap(), 0x22, p.a.qp.sq_psn());
    let mut frame = Frame { headers: Headers::new(bth), payload: vec![1; 8] };
    frame.headers.xrc_srqn = Some(SRQS[0]);
    p.inject(false, &frame);
    assert_eq!((p.a.qp.counters().malformed, p.a.qp.state()), (1, QpState::Rts));
    // Without an XRCETH, and of another service, it is nothing to a target either.
    let without = Frame { headers: Headers { xrc_srqn: None, ..frame.headers }, ..frame.clone() };
    p.inject(true, &without);
    let mut rc = without.clone();
    rc.headers.bth.opcode.service = Service::Rc;
    p.inject(true, &rc);
    assert_eq!((p.b.qp.counters().malformed, p.b.qp.state()), (2, QpState::Rts));
}

#[test]
fn receive_completions_name_the_initiator_and_the_target_ends_with_its_last_wqe() {
    let mut p = pair(1024);
    post_srq(&mut p, SRQS[1], 3, THERE, 64);
    p.a.post(to(SRQS[1], wr(1, SendOp::Send, BASE, 64)));
    p.run();
    let done = p.b.host.recvs[0];
    assert_eq!((done.opcode, done.src_qp, done.byte_len), (WcOpcode::Recv, 0x11, 64));
    post_srq(&mut p, SRQS[1], 4, THERE, 64);
    p.b.qp.set_state(QpState::Err, &mut p.b.host);
    assert_eq!(p.b.host.events.last(), Some(&QpEvent::LastWqeReached));
    assert_eq!(p.b.host.xrc_srqs[&SRQS[1]].len(), 1, "the SRQ's receives aren't the target's to flush");
}

/// Runs with the requests for [`OTHER_PROCESS`] executed by another process's QP, now and then late.
fn run_with(p: &mut Pair, other: &mut (QpProtocol<u32>, Host), late: u64) {
    let end = p.now.after(Duration::from_secs(60));
    while !p.is_idle() && p.now < end {
        p.step();
        if p.rng.below(late) == 0 {
            execute_one(p, other);
        }
    }
    assert!(p.is_idle(), "{p:?}");
}

/// The other process executes the oldest request that it was given.
fn execute_one(p: &mut Pair, other: &mut (QpProtocol<u32>, Host)) {
    let Some((frame, run)) = p.b.host.delegated.pop_front() else { return };
    if let Some(executed) = other.0.execute_for(&frame.headers, &&frame.payload[..], run, &mut other.1) {
        assert!(p.b.qp.is_delegating());
        p.b.qp.executed(executed, &mut p.b.host);
    }
    other.1.recvs.append(&mut other.1.unpublished);
}

const OTHER_PROCESS: u32 = 0x7007;

/// What another process has for a target.
fn other() -> (QpProtocol<u32>, Host) {
    let mut other = (QpProtocol::new(Service::Xrc, 0x22, 0), Host::new(4 << 20));
    *other.0.params_mut() = QpParams { srq: true, dest_qpn: 0x11, ..params(256) };
    other.1.srq = true;
    other.1.xrc_srqs.insert(OTHER_PROCESS, VecDeque::new());
    for state in [QpState::Init, QpState::Rtr] {
        other.0.set_state(state, &mut other.1);
    }
    other
}

#[test]
fn srq_of_another_process_gets_its_messages_once_and_in_order_whatever_the_network_does() {
    let worst = Faults { loss: 20, duplicate: 50, reorder: 50, ..CLEAN };
    for (seed, faults) in (0..6).flat_map(|seed| [(seed, CLEAN), (seed, worst)]) {
        let mut p = pair(256).seeded(seed, faults);
        let mut other = other();
        p.b.host.other_process.push(OTHER_PROCESS);
        let at = |i: u64| i * 1000;
        for i in 0..24u64 {
            p.a.host.fill(BASE + at(i), 1000, i as u8);
            let (va, rkey, immediate) = (THERE + at(i), ALL, [i as u8; 4]);
            let op = match i % 4 {
                0 => SendOp::FetchAdd { va: BASE, rkey, add: 1 },
                1 => SendOp::WriteWithImmediate { va, rkey, immediate },
                _ => SendOp::SendWithImmediate { immediate },
            };
            let srqn = if i % 3 == 0 { SRQS[0] } else { OTHER_PROCESS };
            if i % 4 != 0 {
                let sges = [Sge { addr: va, length: 1000, lkey: ALL }].into_iter().collect();
                let host = if srqn == OTHER_PROCESS { &mut other.1 } else { &mut p.b.host };
                host.xrc_srqs.get_mut(&srqn).unwrap().push_back(RecvWqe { wr_id: i, sges });
            }
            let len = if i % 4 == 0 { 8 } else { 1000 };
            p.a.post(to(srqn, wr(i, op, BASE + at(i), len)));
        }
        run_with(&mut p, &mut other, 1 + seed % 3);
        assert!(p.a.send_ok() && p.a.host.sends.len() == 24, "{:?}", p.a.host.send_statuses());
        for (host, mine) in [(&p.b.host, true), (&other.1, false)] {
            let expected: Vec<_> = (0..24).filter(|i| i % 4 != 0 && (i % 3 == 0) == mine).collect();
            assert_eq!(host.recvs.iter().map(|c| c.wr_id).collect::<Vec<_>>(), expected, "{seed}");
            for i in expected {
                let bytes = host.bytes(THERE + at(i), 1000);
                assert!(bytes.iter().enumerate().all(|(n, b)| *b == pattern(i as u8, n)), "{i}");
            }
        }
        assert_eq!((p.b.host.bytes(BASE, 8)[0], other.1.bytes(BASE, 8)[0]), (2, 4));
    }
}

#[test]
fn many_requests_are_under_way_and_a_refusal_takes_back_those_after_it() {
    const LEN: u32 = 600;
    let lossy = Faults { loss: 30, duplicate: 30, reorder: 30, ..CLEAN };
    for (seed, faults) in (0..8).flat_map(|seed| [(seed, CLEAN), (seed, lossy)]) {
        let mut p = pair(256).seeded(seed, faults);
        p.a.qp.params_mut().rnr_retry = 7;
        let mut other = other();
        p.b.host.other_process.push(OTHER_PROCESS);
        // Either the other process can't take more for now, or it lacks receives for most of them at first.
        let full = seed % 2 == 0;
        p.b.host.delegated_room = if full { 4 + seed as usize } else { usize::MAX };
        let at = |i: u64| i * u64::from(LEN);
        for i in 0..30u64 {
            p.a.host.fill(BASE + at(i), LEN as usize, i as u8);
            p.a.post(to(OTHER_PROCESS, wr(i, SendOp::Send, BASE + at(i), LEN)));
        }
        // A receive now and then: most requests find none at first.
        let (mut posted, mut most, mut turns) = (0, 0, 0);
        let end = p.now.after(Duration::from_secs(60));
        while !p.is_idle() && p.now < end {
            p.step();
            turns += 1;
            while posted < 30 && (full || posted < turns / 6) {
                let sges = [Sge { addr: THERE + at(posted), length: LEN, lkey: ALL }].into_iter().collect();
                let srq = other.1.xrc_srqs.get_mut(&OTHER_PROCESS).unwrap();
                srq.push_back(RecvWqe { wr_id: posted, sges });
                posted += 1;
            }
            most = most.max(p.b.qp.delegated().0);
            for _ in 0..turns % 30 {
                execute_one(&mut p, &mut other);
            }
        }
        assert!(p.a.send_ok() && p.a.host.sends.len() == 30, "{:?}", p.a.host.send_statuses());
        assert!(most >= 3, "{most} under way");
        assert_eq!(p.b.qp.counters().rnr_naks_sent == 0, full);
        let received: Vec<_> = other.1.recvs.iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(received, (0..30).map(|i| (i, WcStatus::Success)).collect::<Vec<_>>());
        for i in 0..30 {
            let bytes = other.1.bytes(THERE + at(i), LEN as usize);
            assert!(bytes.iter().enumerate().all(|(n, b)| *b == pattern(i as u8, n)), "{i} {seed}");
        }
    }
}

#[test]
fn end_of_the_other_process_is_an_operational_error_of_the_oldest_request_it_had() {
    let mut p = pair(256);
    p.b.host.other_process.push(OTHER_PROCESS);
    for i in 0..3 {
        p.a.post(to(OTHER_PROCESS, wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 64)));
    }
    p.transmit_a_into(|frames, p| frames.iter().for_each(|f| p.inject(true, f)));
    assert_eq!(p.b.qp.delegated(), (3, 3 * 64));
    p.b.qp.executed(Executed::Done { original: 0 }, &mut p.b.host);
    p.b.qp.executed(Executed::Refused(NakCode::RemoteOperationalError), &mut p.b.host);
    assert!(!p.b.qp.is_delegating());
    p.run();
    let expected = [(0, WcStatus::Success), (1, WcStatus::RemOpErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(p.a.host.send_statuses(), expected);
}

#[test]
fn what_another_process_refuses_is_refused_here() {
    for (op, status) in [
        (SendOp::Send, WcStatus::RnrRetryExcErr),
        (SendOp::Write { va: THERE, rkey: 0x99 }, WcStatus::RemAccessErr),
    ] {
        let mut p = pair(256);
        p.a.qp.params_mut().rnr_retry = 1;
        p.b.host.other_process.push(OTHER_PROCESS);
        p.a.post(to(OTHER_PROCESS, wr(1, op, BASE, 600)));
        run_with(&mut p, &mut other(), 1);
        assert_eq!(p.a.host.send_statuses(), [(1, status)]);
    }
}

/// A target of a process that gives no result for up to a minute, again and again. Messages, WRITEs and atomics for an SRQ there; how they end.
fn stopped_now_and_then(seed: u64, asks: bool) -> (Pair, (QpProtocol<u32>, Host)) {
    const LEN: u32 = 600;
    let worst = Faults { loss: 20, duplicate: 50, reorder: 50, ..CLEAN };
    let mut p = pair(256).seeded(seed, if seed.is_multiple_of(2) { CLEAN } else { worst });
    // Timeouts of 12.6 ms: eight of them take a tenth of a second.
    p.a.qp.params_mut().timeout = 10;
    p.b.host.asks_for_time = asks;
    p.b.host.other_process.push(OTHER_PROCESS);
    let mut other = other();
    let at = |i: u64| i * u64::from(LEN);
    for i in 0..20u64 {
        let sges = [Sge { addr: THERE + at(i), length: LEN, lkey: ALL }].into_iter().collect();
        let (va, rkey) = (BASE, ALL);
        let (op, len) = match i % 3 {
            0 => (SendOp::FetchAdd { va, rkey, add: 1 }, 8),
            1 => (SendOp::Write { va: THERE + at(i), rkey }, LEN),
            _ => {
                other.1.xrc_srqs.get_mut(&OTHER_PROCESS).unwrap().push_back(RecvWqe { wr_id: i, sges });
                (SendOp::Send, LEN)
            }
        };
        p.a.host.fill(BASE + 64 + at(i), LEN as usize, i as u8);
        p.a.post(to(OTHER_PROCESS, wr(i, op, BASE + 64 + at(i), len)));
    }
    let mut goes_on = p.now;
    for _ in 0..1_000_000 {
        if p.is_idle() {
            break;
        }
        p.step();
        if p.now < goes_on {
            continue;
        }
        execute_one(&mut p, &mut other);
        if p.rng.below(4) == 0 {
            goes_on = p.now.after(Duration::from_millis(p.rng.below(60_000)));
        }
    }
    (p, other)
}

#[test]
fn process_that_is_stopped_for_long_gets_each_request_once_when_it_goes_on() {
    for seed in 0..12 {
        let (p, other) = stopped_now_and_then(seed, true);
        let ended: Vec<_> = (0..20).map(|i| (i, WcStatus::Success)).collect();
        assert_eq!(p.a.host.send_statuses(), ended, "{seed}");
        let received: Vec<_> = other.1.recvs.iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(received, ended.into_iter().filter(|(i, _)| i % 3 == 2).collect::<Vec<_>>(), "{seed}");
        assert_eq!(other.1.bytes(BASE, 8), 7u64.to_ne_bytes(), "{seed}");
        for i in (0..20u64).filter(|i| i % 3 > 0) {
            let bytes = other.1.bytes(THERE + i * 600, 600);
            assert!(bytes.iter().enumerate().all(|(n, b)| *b == pattern(i as u8, n)), "{i} {seed}");
        }
        assert!(p.b.qp.counters().rnr_naks_sent > 0, "{seed}");
    }
}

#[test]
fn process_that_is_stopped_for_long_counts_as_no_peer_if_no_time_is_asked_for() {
    let (p, _) = stopped_now_and_then(0, false);
    assert!(p.a.host.send_statuses().iter().any(|(_, status)| *status == WcStatus::RetryExcErr));
}

#[test]
fn no_time_is_asked_for_while_results_come() {
    let mut p = pair(256);
    let mut other = other();
    p.b.host.asks_for_time = true;
    p.b.host.other_process.push(OTHER_PROCESS);
    for i in 0..100 {
        p.a.post(to(OTHER_PROCESS, wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 64)));
        let sent = p.now;
        // 20 ms for each: together far more than a process may be silent.
        while p.now < sent.after(Duration::from_millis(20)) {
            p.step();
        }
        execute_one(&mut p, &mut other);
    }
    p.run();
    assert!(p.a.send_ok());
    assert_eq!(p.b.qp.counters().rnr_naks_sent, 0);
}

#[test]
fn no_time_is_asked_for_until_the_initiator_repeats_a_request() {
    let mut p = pair(256);
    p.b.host.other_process.push(OTHER_PROCESS);
    let mut sent = Vec::new();
    for i in 0..20 {
        p.a.post(to(OTHER_PROCESS, wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 64)));
        p.transmit_a_into(|frames, _| sent.extend(frames));
    }
    let mut asked = |n: usize| {
        p.now = p.now.after(Duration::from_millis(10));
        p.inject(true, &sent[n]);
        p.b.qp.ask_for_time(p.now, sent[n].headers.bth.psn, false, &mut p.b.host)
    };
    // The last but one is lost.
    let firsts: Vec<_> = (0..18).chain([19]).map(&mut asked).collect();
    assert_eq!(firsts, [false; 19]);
    assert!(asked(3));
}

#[test]
fn nak_that_asks_for_time_acknowledges_the_receives_before_it() {
    let mut p = pair(256);
    post_srq(&mut p, SRQS[0], 7, THERE, 64);
    p.a.post(to(SRQS[0], wr(1, SendOp::Send, BASE, 64)));
    p.a.post(to(SRQS[1], wr(2, SendOp::Read { va: THERE, rkey: ALL }, BASE, 64)));
    let psn = p.a.qp.sq_psn() + 1;
    // The bytes of the READ don't come.
    p.b.host.room = Some(0);
    p.transmit_a_into(|frames, p| frames.iter().for_each(|f| p.inject(true, f)));
    assert!(!p.b.qp.ask_for_time(p.now, psn, true, &mut p.b.host));
    p.b.host.room = Some(1);
    assert!(p.b.qp.ask_for_time(p.now.after(Duration::from_millis(60)), psn, true, &mut p.b.host));
    let nak = p.b.host.out.pop().unwrap();
    assert_eq!((nak.headers.bth.psn, p.b.host.unpublished.len()), (psn, 1));
    assert!(p.b.qp.unacknowledged_from() > p.b.host.ended_with[&7]);
    p.b.qp.set_state(QpState::Err, &mut p.b.host);
    assert_eq!(p.b.host.unpublished[0].status, WcStatus::Success);
}
