//! What a program's limit of the rate does to each service and each side.

use crate::host::{ALL, BASE, THERE};
use crate::net::{Pair, params, wr};
use core::num::NonZeroU32;
use core::time::Duration;
use ferroce_proto::{QpParams, RateLimit, SendOp};
use ferroce_wire::Service;

fn limit(kbps: u32) -> Option<RateLimit> {
    NonZeroU32::new(kbps).map(|kbps| RateLimit { kbps, burst: 16 << 10 })
}

/// How long a MiB takes.
fn time_of(mut p: Pair, op: SendOp) -> Duration {
    let start = p.now;
    p.a.host.fill(BASE, 1 << 20, 1);
    p.b.host.fill(THERE, 1 << 20, 2);
    p.a.post(wr(1, op, BASE, 1 << 20));
    p.run();
    assert!(p.a.send_ok());
    assert_eq!(p.a.host.bytes(BASE, 1 << 20), p.b.host.bytes(THERE, 1 << 20));
    p.now.since(start)
}

#[test]
fn requests_and_read_responses_leave_at_the_rate_of_their_own_side() {
    let write = SendOp::Write { va: THERE, rkey: ALL };
    let read = SendOp::Read { va: THERE, rkey: ALL };
    // 83,886 kbps would carry a MiB without headers in 100 ms; those of 1 KiB packets are six parts in a hundred.
    let limited = QpParams { rate: limit(83_886), ..params(1024) };
    let hundred = Duration::from_millis(98)..Duration::from_millis(110);
    let with = |service, a, b| Pair::with(service, a, b, 0);
    assert!(hundred.contains(&time_of(with(Service::Rc, limited, params(1024)), write)));
    assert!(hundred.contains(&time_of(with(Service::Rc, params(1024), limited), read)));
    assert!(hundred.contains(&time_of(with(Service::Uc, limited, params(1024)), write)));
    for (a, b, op) in [(params(1024), limited, write), (limited, params(1024), read)] {
        let time = time_of(with(Service::Rc, a, b), op);
        assert!(time < Duration::from_millis(50), "{time:?}: the other side isn't limited");
    }
    let lossless = QpParams { rate: limit(83_886), ..params(u32::MAX) };
    let mut p = with(Service::Rc, lossless, params(u32::MAX));
    let start = p.now;
    for i in 0..17 {
        p.a.post(wr(i, write, BASE, 64 << 10));
    }
    p.run();
    let time = p.now.since(start);
    assert!(hundred.contains(&time), "{time:?}: whole messages wait for their turn too");
}

#[test]
fn request_that_waits_for_a_limit_is_tried_again_when_that_changes() {
    let limited = QpParams { rate: limit(8), lossless: true, ..params(65_536) };
    let mut p = Pair::with(Service::Rc, limited, limited, 0);
    for i in 0..3 {
        p.a.post(wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 32 << 10));
    }
    p.run_for(Duration::from_millis(1));
    assert!(p.a.qp.sq_len() > 0 && !p.a.qp.wants_transmit());
    p.a.qp.limit_rate(None);
    assert!(p.a.qp.wants_transmit());
    p.run_for(Duration::from_millis(1));
    assert_eq!(p.a.host.sends.len(), 3);
}

#[test]
fn a_limit_that_is_taken_away_holds_nothing_back() {
    let limited = QpParams { rate: limit(8), ..params(1024) };
    let mut p = Pair::with(Service::Rc, limited, params(1024), 0);
    p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 1 << 20));
    p.run_for(Duration::from_secs(1));
    assert!(p.a.host.sends.is_empty() && p.a.qp.counters().requests_sent < 20);
    p.a.qp.params_mut().rate = None;
    let start = p.now;
    p.run();
    assert!(p.a.send_ok() && p.now.since(start) < Duration::from_secs(1), "{:?}", p.now.since(start));
}

#[test]
fn what_is_done_without_the_peer_counts_too() {
    let limited = QpParams { rate: limit(83_886), ..params(u32::MAX) };
    let mut p = Pair::with(Service::Rc, limited, params(u32::MAX), 0);
    p.a.post(wr(0, SendOp::Write { va: THERE, rkey: ALL }, BASE, 0));
    p.run();
    p.a.host.direct = u64::MAX;
    let start = p.now;
    p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 1 << 20));
    p.run();
    assert!(p.a.send_ok() && !p.a.host.direct_log.is_empty());
    assert!(p.now.since(start) > Duration::from_millis(90), "{:?}", p.now.since(start));
}
