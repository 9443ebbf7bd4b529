//! A link with an end: how much of it a transfer uses, and what it costs to find that end.

use crate::host::{ALL, BASE, Frame};
use crate::net::{CLEAN, Faults, Link, Pair, params, wr};
use core::fmt::Write as _;
use core::time::Duration;
use ferroce_proto::SendOp;
use ferroce_wire::{Bth, Headers, Opcode, Service};

const THERE: u64 = BASE + (2 << 20);
const TOTAL: u64 = 64 << 20;

/// Moves 64 MiB in messages of 1 MiB and returns the share of the link that carried them, in percent.
fn utilisation(
    op: SendOp,
    link: Link,
    delay: Duration,
    (window, kept): (u32, usize),
    mtu: u32,
) -> (u64, Pair) {
    let faults = Faults { link: Some(link), delay, ..CLEAN };
    let mut p = Pair::with(Service::Rc, params(mtu), params(mtu), 7).seeded(1, faults);
    p.a.host.window = window;
    p.keep(kept);
    let start = p.now;
    for i in 0..TOTAL >> 20 {
        p.a.post(wr(i, op, BASE, 1 << 20));
    }
    p.run();
    assert!(p.a.send_ok() && p.a.host.sends.len() as u64 == TOTAL >> 20);
    let least = TOTAL * 1_000_000_000 / link.bytes_per_second;
    (least * 100 / p.now.since(start).as_nanos() as u64, p)
}

#[test]
fn transfers_use_most_of_a_link_whatever_its_queue() {
    let mut table = String::new();
    for (name, op, kept) in [
        ("write", SendOp::Write { va: THERE, rkey: ALL }, 0),
        ("kept", SendOp::Write { va: THERE, rkey: ALL }, 2048),
        ("read", SendOp::Read { va: THERE, rkey: ALL }, 0),
    ] {
        for (rate, queue, delay, window) in [
            (1_000_000_000, 1 << 20, 20, 1 << 20),
            (1_000_000_000, 200_000, 20, 100_000),
            (1_000_000_000, 200_000, 20, 1 << 20),
            (100_000_000, 64_000, 50, 1 << 20),
            (100_000_000, 200_000, 1000, 1 << 20),
            (10_000_000, 20_000, 100, 1 << 20),
        ] {
            let link = Link { bytes_per_second: rate, queue, marks_from: u64::MAX };
            let (percent, p) = utilisation(op, link, Duration::from_micros(delay), (window, kept), 1024);
            let (a, b) = (p.a.qp.counters(), p.b.qp.counters());
            writeln!(
                table,
                "{name:<5} {:>4} MB/s queue {queue:>7} window {window:>7} delay {delay:>4} us: {percent:>3} % \
                 lost {:>4} sent again {:>5} answers {:>5} probes {} timeouts {}",
                rate / 1_000_000,
                p.overflows,
                a.retransmissions,
                b.responses_sent,
                a.probes,
                a.timeouts
            )
            .unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn marks_spare_a_link_from_losses_and_cost_no_throughput() {
    for op in [SendOp::Write { va: THERE, rkey: ALL }, SendOp::Read { va: THERE, rkey: ALL }] {
        let run = |marks_from| {
            let link = Link { bytes_per_second: 1_000_000_000, queue: 300_000, marks_from };
            utilisation(op, link, Duration::from_micros(20), (1 << 20, 0), 1024)
        };
        let ((plain, without), (percent, with)) = (run(u64::MAX), run(100_000));
        assert!(without.overflows > 100, "{op:?}: {}", without.overflows);
        assert_eq!(with.overflows, 0, "{op:?}");
        assert!(percent + 1 >= plain, "{op:?}: {percent} %, and {plain} % without marks");
    }
}

#[test]
fn congestion_notifications_that_no_packet_can_have_caused_slow_nothing() {
    let run = |ecn| {
        let mut p = Pair::new(Service::Rc, 1024);
        p.a.host.ecn = ecn;
        for i in 0..100 {
            p.a.post(wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 100_000));
            let headers = Headers::new(Bth { becn: true, ..Bth::new(Opcode::CNP, 0x11, 0) });
            p.inject(false, &Frame { headers, payload: vec![0; 16] });
            p.run();
        }
        assert!(p.a.send_ok());
        (p.now, p.a.qp.counters().cnps)
    };
    let (deaf, heard) = (run(false), run(true));
    assert_eq!((deaf.1, heard.1), (100, 100));
    assert!(deaf.0 < heard.0, "{deaf:?} {heard:?}");
}

/// A user of the peer's host can send them, and needs no PSN.
#[test]
fn a_flood_of_congestion_notifications_slows_no_more_than_one_in_each_round_trip() {
    let run = |flood| {
        let mut p = Pair::new(Service::Rc, 1024);
        p.a.post(wr(0, SendOp::Write { va: THERE, rkey: ALL }, BASE, 1 << 20));
        p.transmit();
        while p.a.qp.counters().requests_ended == 0 {
            for _ in 0..flood {
                let headers = Headers::new(Bth { becn: true, ..Bth::new(Opcode::CNP, 0x11, 0) });
                p.inject(false, &Frame { headers, payload: vec![0; 16] });
            }
            p.step();
        }
        (p.now, p.a.qp.counters().cnps)
    };
    let (one, many) = (run(1), run(50));
    assert!(many.1 >= 40 * one.1 && one.1 > 0, "{one:?} {many:?}");
    assert_eq!(one.0, many.0);
}
