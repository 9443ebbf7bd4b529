//! A grid of fault, operation and message size: everything arrives once, in order and intact, and the traffic that it
//! took is written down (a change in it is a change of behaviour, to be looked at).

use crate::host::{ALL, BASE, pattern};
use crate::net::{CLEAN, Faults, Pair, params, wr};
use core::cell::RefCell;
use core::fmt::Write as _;
use core::time::Duration;
use ferroce_proto::SendOp;
use ferroce_types::WcStatus;
use ferroce_wire::Service;
use std::collections::BTreeSet;
use std::rc::Rc;

const THERE: u64 = BASE + (2 << 20);
const RESULTS: u64 = BASE + (1 << 20);

const FAULTS: [(&str, Faults); 6] = [
    ("clean", CLEAN),
    ("loss 1%", Faults { loss: 10, ..CLEAN }),
    ("loss 10%", Faults { loss: 100, ..CLEAN }),
    ("duplicates 10%", Faults { duplicate: 100, ..CLEAN }),
    ("reordering 10%", Faults { reorder: 100, ..CLEAN }),
    (
        "everything, 1 ms away",
        Faults { loss: 30, duplicate: 50, reorder: 50, delay: Duration::from_micros(500), link: None },
    ),
];

#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    Mixed,
}

const KINDS: [Kind; 6] = [Kind::Send, Kind::Write, Kind::WriteImm, Kind::Read, Kind::FetchAdd, Kind::Mixed];

impl Kind {
    fn at(self, i: u64) -> Self {
        match self {
            Kind::Mixed => KINDS[(i % 5) as usize],
            other => other,
        }
    }
}

/// Where message `i` lies in either host's memory.
fn slot(i: u64, len: u32) -> u64 {
    i * u64::from(len.max(8)).next_multiple_of(8)
}

/// Runs `count` messages of one kind and checks everything about them.
fn run(mut p: Pair, kind: Kind, count: u64, len: u32) -> Pair {
    let counter = BASE + (4 << 20) - 8;
    for i in 0..count {
        let at = slot(i, len);
        p.a.host.fill(BASE + at, len as usize, i as u8);
        let op = match kind.at(i) {
            Kind::Send => {
                p.b.host.post_recv(i, THERE + at, len);
                SendOp::SendWithImmediate { immediate: (i as u32).to_be_bytes() }
            }
            Kind::Write => SendOp::Write { va: THERE + at, rkey: ALL },
            Kind::WriteImm => {
                p.b.host.post_recv(i, THERE, 0);
                let immediate = (i as u32).to_be_bytes();
                SendOp::WriteWithImmediate { va: THERE + at, rkey: ALL, immediate }
            }
            Kind::Read => {
                p.b.host.fill(THERE + at, len as usize, i as u8);
                p.a.post(wr(i, SendOp::Read { va: THERE + at, rkey: ALL }, RESULTS + at, len));
                continue;
            }
            _ => {
                p.a.post(wr(i, SendOp::FetchAdd { va: counter, rkey: ALL, add: 1 }, RESULTS + at, 8));
                continue;
            }
        };
        p.a.post(wr(i, op, BASE + at, len));
    }
    p.run();

    let expected: Vec<_> = (0..count).map(|i| (i, WcStatus::Success)).collect();
    assert_eq!(p.a.host.send_statuses(), expected, "{kind:?} {len}");
    let received: Vec<_> = p.b.host.recvs.iter().map(|c| (c.wr_id, c.status, c.immediate())).collect();
    let consumed: Vec<_> = (0..count)
        .filter(|i| matches!(kind.at(*i), Kind::Send | Kind::WriteImm))
        .map(|i| (i, WcStatus::Success, Some((i as u32).to_be_bytes())))
        .collect();
    assert_eq!(received, consumed, "{kind:?} {len}");
    let mut atomics = 0u64;
    for i in 0..count {
        let at = slot(i, len);
        let intact = |bytes: &[u8]| bytes.iter().enumerate().all(|(n, byte)| *byte == pattern(i as u8, n));
        match kind.at(i) {
            Kind::Read => assert!(intact(p.a.host.bytes(RESULTS + at, len as usize)), "{kind:?} {len} {i}"),
            Kind::FetchAdd => {
                let result = u64::from_ne_bytes(p.a.host.bytes(RESULTS + at, 8).try_into().unwrap());
                assert_eq!(result, atomics, "each atomic once and in order");
                atomics += 1;
            }
            _ => assert!(intact(p.b.host.bytes(THERE + at, len as usize)), "{kind:?} {len} {i}"),
        }
    }
    assert_eq!(u64::from_ne_bytes(p.b.host.bytes(counter, 8).try_into().unwrap()), atomics);
    assert!(p.a.host.events.is_empty() && p.b.host.events.is_empty());
    p
}

fn row(p: &Pair) -> String {
    let (a, b) = (p.a.qp.counters(), p.b.qp.counters());
    format!(
        "{:>6} req {:>5} again {:>5} resp {:>3} probes {:>2} timeouts {:>3} seq {:>3} implied",
        a.requests_sent,
        a.retransmissions,
        b.responses_sent,
        a.probes,
        a.timeouts,
        a.seq_naks,
        a.implied_naks
    )
}

#[test]
fn every_message_arrives_once_in_order_and_intact() {
    let mut table = String::new();
    for (name, faults) in FAULTS {
        for kind in KINDS {
            for (mtu, len, count) in
                [(1024, 0, 50), (1024, 64, 200), (256, 4096, 60), (1024, 16_384, 40), (4096, 300_000, 3)]
            {
                let p = Pair::with(Service::Rc, params(mtu), params(mtu), 0xff_fff0).seeded(7, faults);
                let p = run(p, kind, count, len);
                let kind = format!("{kind:?}");
                writeln!(table, "{name:<22} {kind:<8} mtu {mtu:<4} {count:>3} x {len:<6} {}", row(&p))
                    .unwrap();
            }
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn lossless_fabric_takes_one_packet_a_message() {
    for kind in KINDS {
        for len in [0, 64, 100_000] {
            let p = run(Pair::new(Service::Rc, u32::MAX), kind, 9, len);
            assert_eq!(
                (p.a.qp.counters().requests_sent, p.a.qp.counters().retransmissions),
                (9, 0),
                "{kind:?}"
            );
        }
    }
}

#[test]
fn every_seed_ends_well() {
    for seed in 0..150 {
        let faults =
            Faults { loss: 40, duplicate: 40, reorder: 60, delay: Duration::from_micros(20), link: None };
        let mtu = [256, 1024, 4096][seed as usize % 3];
        let start = 0xff_ff00 + seed as u32;
        for (kind, kept) in [(Kind::Mixed, 0), (Kind::Mixed, 1024), (Kind::Send, 1024), (Kind::WriteImm, 10)]
        {
            let mut p = Pair::with(Service::Rc, params(mtu), params(mtu), start).seeded(seed, faults);
            p.keep(kept);
            let p = run(p, kind, 60, 5000);
            assert!(p.a.host.kept.is_empty() && p.b.host.kept.is_empty());
        }
    }
}

#[test]
fn read_request_that_is_sent_again_ends_where_it_ended_before() {
    for seed in 0..20 {
        let faults = Faults { loss: 50, ..CLEAN };
        let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100).seeded(seed, faults);
        let asked = Rc::new(RefCell::new((100, BTreeSet::new(), 0)));
        let seen = Rc::clone(&asked);
        p.drop_to_b = Some(Box::new(move |frame| {
            let (new, ends, again) = &mut *seen.borrow_mut();
            let psn = frame.headers.bth.psn;
            let end = psn + frame.headers.reth.unwrap().dma_len.div_ceil(1024);
            if psn == *new {
                *new = end;
                ends.insert(end);
            } else {
                *again += 1;
                assert!(psn < *new && ends.contains(&end), "{psn}..{end} of requests that end at {ends:?}");
            }
            false
        }));
        let p = run(p, Kind::Read, 3, 300_000);
        assert!(p.a.qp.counters().implied_naks > 0 && asked.borrow().2 > 0);
    }
}
