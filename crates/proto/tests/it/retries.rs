//! Peers that answer nothing, or "not ready": when a request is given up, and when never.

use crate::crafted::frame;
use crate::host::{ALL, BASE, THERE};
use crate::net::{Pair, params, wr};
use core::time::Duration;
use ferroce_proto::{LEAST_ACK_TIMEOUT, QpParams, SendOp};
use ferroce_types::{QpState, WcStatus};
use ferroce_wire::{Operation, Service};

#[test]
fn peer_that_dies_at_any_moment_ends_every_request_within_the_retries() {
    for after in 0..60 {
        let a = QpParams { retry_cnt: 2, timeout: 10, ..params(1024) };
        let mut p = Pair::with(Service::Rc, a, params(1024), 0xff_fff0);
        for i in 0..10 {
            p.b.host.post_recv(i, THERE, 5000);
            p.a.post(wr(2 * i, SendOp::Send, BASE, 5000));
            p.a.post(wr(2 * i + 1, SendOp::Read { va: THERE, rkey: ALL }, BASE, 5000));
        }
        let mut n = 0;
        p.drop_to_a = Some(Box::new(move |_| {
            n += 1;
            n > after
        }));
        p.run();
        let ends = p.a.host.send_statuses();
        let good = ends.iter().take_while(|(_, s)| *s == WcStatus::Success).count();
        assert_eq!(ends.len(), 20);
        if good < 20 {
            assert_eq!(ends[good].1, WcStatus::RetryExcErr, "after {after} answers");
            assert!(ends[good + 1..].iter().all(|(_, s)| *s == WcStatus::WrFlushErr));
        }
        assert!(p.now.since(ferroce_types::Instant(1_000_000)) < Duration::from_millis(100));
    }
}

#[test]
fn peer_that_answers_nothing_uses_up_the_retries() {
    for (retry_cnt, mtu) in [(0, 1024), (3, 1024), (7, 1024), (2, u32::MAX)] {
        let mut p =
            Pair::with(Service::Rc, QpParams { retry_cnt, timeout: 10, ..params(mtu) }, params(mtu), 5);
        p.drop_to_b = Some(Box::new(|_| true));
        let start = p.now;
        p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 8));
        p.a.post(wr(2, SendOp::Read { va: THERE, rkey: ALL }, BASE, 8));
        p.run();
        assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
        assert_eq!(p.a.qp.counters().timeouts, u64::from(retry_cnt) + 1);
        let least = Duration::from_nanos(4096 << 10) * (u32::from(retry_cnt) + 1);
        let took = p.now.since(start);
        assert!(took >= least && took <= least * 4, "IBTA 9.7.6.1.3: {took:?} for {least:?}");
    }
}

#[test]
fn packet_that_never_gets_through_uses_up_the_retries_by_sequence_naks() {
    for retry_cnt in [0, 3] {
        let a = QpParams { retry_cnt, timeout: 0, ..params(1024) };
        let mut p = Pair::with(Service::Rc, a, params(1024), 5);
        p.drop_to_b = Some(Box::new(|f| f.headers.bth.psn == 6));
        for i in 0..4 {
            p.a.post(wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 8));
        }
        let start = p.now;
        p.run();
        use WcStatus::{RetryExcErr, Success, WrFlushErr};
        assert_eq!(
            p.a.host.send_statuses(),
            [(0, Success), (1, RetryExcErr), (2, WrFlushErr), (3, WrFlushErr)]
        );
        assert!(p.a.qp.counters().seq_naks > u64::from(retry_cnt));
        // NAKs within ten milliseconds count once.
        let (took, least) = (p.now.since(start), Duration::from_millis(10) * u32::from(retry_cnt));
        assert!(took >= least && took <= least + Duration::from_millis(5), "{took:?} for {least:?}");
    }
}

/// A receiver that has no room for a while, or a host that forges PSNs: NAKs don't hurry the local ACK timer.
#[test]
fn sequence_naks_leave_the_local_ack_timer_its_time() {
    for recovers in [true, false] {
        let mut p = Pair::with(Service::Rc, params(1024), params(1024), 5);
        p.drop_to_b = Some(Box::new(|f| f.headers.bth.psn == 6));
        for i in 0..4 {
            p.a.post(wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 8));
        }
        let start = p.now;
        for _ in 0..400 {
            p.run_for(Duration::from_millis(1));
            // Each brings a NAK.
            p.inject(true, &frame(Operation::SendOnly, 7, &[]));
        }
        assert!(p.a.qp.counters().seq_naks > 100, "{p:?}");
        assert_eq!(p.a.host.send_statuses(), [(0, WcStatus::Success)]);
        if recovers {
            p.drop_to_b = None;
        }
        p.run();
        assert_eq!(p.a.host.sends.len(), 4);
        assert_eq!(p.a.send_ok(), recovers);
        let least = Duration::from_nanos(4096 << 14) * 8;
        assert!(recovers || (p.now.since(start) >= least && p.now.since(start) <= least * 4), "{p:?}");
    }
}

/// As where the peer is dead and a queue on the way to it stays full.
#[test]
fn retries_are_used_up_where_nothing_can_leave() {
    let a = QpParams { retry_cnt: 2, timeout: 10, ..params(1024) };
    let mut p = Pair::with(Service::Rc, a, params(1024), 5);
    p.drop_to_b = Some(Box::new(|_| true));
    p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 8));
    p.transmit();
    p.a.host.room = Some(0);
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RetryExcErr)]);
}

/// As where a page has gone since the packet left.
#[test]
fn no_retry_is_used_up_while_memory_of_this_side_is_awaited() {
    for (keeps, recovers) in [(false, true), (false, false), (true, true), (true, false)] {
        let a = QpParams { retry_cnt: 1, timeout: 10, ..params(1024) };
        let mut p = Pair::with(Service::Rc, a, params(1024), 5);
        if keeps {
            p.keep(1024);
        }
        p.drop_to_b = Some(Box::new(|_| true));
        p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 8));
        p.transmit();
        p.a.host.memory_is_absent = true;
        p.run_for(Duration::from_secs(10));
        assert!(p.a.host.sends.is_empty(), "{p:?}");
        assert_eq!(p.a.qp.counters().timeouts, 1, "the packet had left");
        p.a.host.memory_is_absent = false;
        if recovers {
            p.drop_to_b = None;
        }
        p.transmit();
        p.run();
        let end = if recovers { WcStatus::Success } else { WcStatus::RetryExcErr };
        assert_eq!(p.a.host.send_statuses(), [(1, end)]);
    }
}

#[test]
fn timeout_zero_never_gives_up() {
    let mut p = Pair::with(Service::Rc, QpParams { timeout: 0, ..params(1024) }, params(1024), 5);
    p.drop_to_b = Some(Box::new(|_| true));
    p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 8));
    p.run_for(Duration::from_secs(100));
    assert!(p.a.host.sends.is_empty());
    p.drop_to_b = None;
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn missing_receive_uses_up_the_rnr_retries() {
    for rnr_retry in [0, 1, 6] {
        let a = QpParams { rnr_retry, ..params(1024) };
        let mut p = Pair::with(Service::Rc, a, QpParams { min_rnr_timer: 20, ..params(1024) }, 5);
        let start = p.now;
        p.a.post(wr(1, SendOp::Send, BASE, 3000));
        p.a.post(wr(2, SendOp::Send, BASE, 3000));
        p.run();
        assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)]);
        assert_eq!(p.a.qp.counters().rnr_naks, u64::from(rnr_retry) + 1);
        let waited = Duration::from_micros(10_240) * u32::from(rnr_retry);
        assert!(p.now.since(start) >= waited && p.now.since(start) < waited + Duration::from_millis(1));
        assert_eq!(p.b.qp.state(), QpState::Rts, "the responder is unharmed");
    }
}

#[test]
fn rnr_retry_seven_waits_for_ever_and_the_message_arrives_once() {
    for op in [SendOp::Send, SendOp::WriteWithImmediate { va: THERE, rkey: ALL, immediate: [9; 4] }] {
        let mut p = Pair::new(Service::Rc, 1024);
        p.a.host.fill(BASE, 5000, 1);
        p.a.post(wr(1, op, BASE, 5000));
        p.a.post(wr(2, SendOp::Write { va: THERE + 8192, rkey: ALL }, BASE, 5000));
        p.run_for(Duration::from_secs(2));
        assert!(p.a.host.sends.is_empty());
        assert!(p.a.qp.counters().rnr_naks > 100);
        p.b.host.post_recv(1, THERE, 5000);
        p.run();
        assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
        assert_eq!(p.b.host.recvs.len(), 1);
        assert_eq!(p.b.host.bytes(THERE, 5000), p.a.host.bytes(BASE, 5000));
    }
}

#[test]
fn progress_gives_the_retries_back() {
    let mut p =
        Pair::with(Service::Rc, QpParams { retry_cnt: 1, timeout: 10, ..params(1024) }, params(1024), 5);
    let mut seen = std::collections::BTreeSet::new();
    p.drop_to_b =
        Some(Box::new(move |frame| frame.headers.bth.psn % 3 == 0 && seen.insert(frame.headers.bth.psn)));
    for i in 0..50 {
        p.a.post(wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 8));
    }
    p.run();
    assert!(p.a.send_ok() && p.a.host.sends.len() == 50);
}

#[test]
fn ack_timeout_below_what_software_can_promise_is_raised() {
    let given_up = |timeout| {
        let a = QpParams { timeout, retry_cnt: 1, ..params(1024) };
        let mut p = Pair::with(Service::Rc, a, params(1024), 5);
        p.drop_to_b = Some(Box::new(|_| true));
        let start = p.now;
        p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 8));
        p.run();
        assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RetryExcErr)]);
        p.now.since(start)
    };
    let least = given_up(LEAST_ACK_TIMEOUT);
    assert!(least >= Duration::from_millis(8), "{least:?}");
    for timeout in 1..LEAST_ACK_TIMEOUT {
        assert_eq!(given_up(timeout), least, "{timeout}");
    }
    assert!(given_up(LEAST_ACK_TIMEOUT + 1) > least);
}
