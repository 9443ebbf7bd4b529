//! Atomic writes and flushes (annex A19).

use crate::host::{ALL, BASE, Region};
use crate::net::{CLEAN, Faults, Pair, params, wr};
use core::time::Duration;
use ferroce_proto::{Data, QpParams, SendOp, SendWr};
use ferroce_types::{Access, Placement, WcOpcode, WcStatus};
use ferroce_wire::{Operation, Service};

const WORD: u64 = BASE + (3 << 20);
const RESULTS: u64 = BASE + (1 << 20);
const GLOBAL: Placement = Placement { global: true, persistent: false };

fn store(wr_id: u64, va: u64, rkey: u32, value: u64) -> SendWr<u32> {
    let data = Data::Inline(value.to_ne_bytes().as_slice().into());
    SendWr { data, ..wr(wr_id, SendOp::AtomicWrite { va, rkey }, 0, 0) }
}

fn flush(wr_id: u64, va: u64, rkey: u32, len: u32, placement: Placement) -> SendWr<u32> {
    wr(wr_id, SendOp::Flush { va, rkey, len, placement, whole_region: false }, 0, 0)
}

#[test]
fn each_is_carried_out_once_and_in_order_whatever_the_network_does() {
    let everything =
        Faults { loss: 30, duplicate: 50, reorder: 50, delay: Duration::from_micros(500), link: None };
    for (seed, faults) in
        [CLEAN, Faults { loss: 100, ..CLEAN }, Faults { duplicate: 300, ..CLEAN }, everything]
            .into_iter()
            .enumerate()
    {
        let mut p = Pair::new(Service::Rc, 1024).seeded(seed as u64, faults);
        let rounds = 100;
        for i in 0..rounds {
            p.a.host.fill(BASE, 2000, i as u8);
            p.a.post(wr(4 * i, SendOp::Write { va: WORD + 64, rkey: ALL }, BASE, 2000));
            p.a.post(store(4 * i + 1, WORD, ALL, i * 1000));
            // A store that was carried out again would take the sum away.
            p.a.post(wr(4 * i + 2, SendOp::FetchAdd { va: WORD, rkey: ALL, add: 1 }, RESULTS + 8 * i, 8));
            p.a.post(flush(4 * i + 3, WORD + 64, ALL, 2000, GLOBAL));
        }
        p.run();
        let expected: Vec<_> = (0..4 * rounds).map(|i| (i, WcStatus::Success)).collect();
        assert_eq!(p.a.host.send_statuses(), expected);
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
        for i in 0..rounds {
            assert_eq!(word(p.a.host.bytes(RESULTS + 8 * i, 8)), i * 1000);
        }
        assert_eq!(word(p.b.host.bytes(WORD, 8)), (rounds - 1) * 1000 + 1);
        assert_eq!(p.b.host.flushed, vec![(WORD + 64, 2000); rounds as usize]);
        let opcodes: Vec<_> = p.a.host.sends.iter().take(4).map(|c| c.opcode).collect();
        assert_eq!(
            opcodes,
            [WcOpcode::RdmaWrite, WcOpcode::AtomicWrite, WcOpcode::FetchAdd, WcOpcode::Flush]
        );
    }
}

#[test]
fn both_are_answered_with_an_empty_read_response() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.a.post(store(1, WORD, ALL, 7));
    p.a.post(flush(2, WORD, ALL, 8, GLOBAL));
    p.run();
    let answers: Vec<_> = p.b.host.log.iter().map(|(operation, _)| *operation).collect();
    assert_eq!(answers, [Operation::ReadResponseOnly; 2]);
}

#[test]
fn flush_of_a_region_takes_all_of_it() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.b.host.regions.insert(5, Region::new(BASE + 4096, 8192));
    let op = SendOp::Flush { va: 0, rkey: 5, len: 0, placement: GLOBAL, whole_region: true };
    p.a.post(wr(1, op, 0, 0));
    p.run();
    assert!(p.a.send_ok());
    assert_eq!(p.b.host.flushed, [(BASE + 4096, 8192)]);
}

#[test]
fn they_count_among_the_reads_in_flight() {
    let mut p = Pair::with(
        Service::Rc,
        QpParams { max_rd_atomic: 2, ..params(1024) },
        QpParams { max_dest_rd_atomic: 2, ..params(1024) },
        0,
    );
    for i in 0..10 {
        p.a.post(store(2 * i, WORD, ALL, i));
        p.a.post(flush(2 * i + 1, WORD, ALL, 8, GLOBAL));
    }
    p.transmit_a_into(|frames, _| assert_eq!(frames.len(), 2));
    p.run();
    assert!(p.a.send_ok() && p.a.host.sends.len() == 20);
}

#[test]
fn what_is_not_permitted_or_not_possible_is_refused_by_the_responder() {
    let read_only = Region { remote_write: false, flush: false, ..Region::new(BASE, 4096) };
    let persistent = Placement { global: false, persistent: true };
    let cases = [
        (store(1, WORD + 4, ALL, 1), WcStatus::RemInvReqErr),
        (store(1, BASE, 5, 1), WcStatus::RemAccessErr),
        (store(1, BASE, 77, 1), WcStatus::RemAccessErr),
        (flush(1, BASE, 5, 8, GLOBAL), WcStatus::RemAccessErr),
        (flush(1, BASE, 77, 0, GLOBAL), WcStatus::RemAccessErr),
        (flush(1, BASE + (4 << 20) - 8, ALL, 9, GLOBAL), WcStatus::RemAccessErr),
        // The QP doesn't have that right.
        (flush(1, BASE, ALL, 8, persistent), WcStatus::RemInvReqErr),
    ];
    for (request, status) in cases {
        let mut p = Pair::new(Service::Rc, 1024);
        p.b.host.regions.insert(5, read_only);
        let what = format!("{request:?}");
        p.a.post(request);
        p.run();
        assert_eq!(p.a.host.send_statuses(), [(1, status)], "{what}");
        assert!(p.b.host.flushed.is_empty() && p.b.host.bytes(WORD, 16) == [0; 16], "{what}");
    }
    let mut p =
        Pair::with(Service::Rc, params(1024), QpParams { access: Access::default(), ..params(1024) }, 0);
    p.a.post(store(1, WORD, ALL, 1));
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RemInvReqErr)]);
}

#[test]
fn wrong_sizes_and_services_are_refused_when_posted() {
    let mut p = Pair::new(Service::Rc, 1024);
    for data in [&[0u8; 7][..], &[0; 9], &[]] {
        let short = SendWr { data: Data::Inline(data.into()), ..store(1, WORD, ALL, 1) };
        assert!(p.a.qp.post_send(&short.request()).is_err());
    }
    assert!(p.a.qp.post_send(&flush(1, WORD, ALL, 8, Placement::default()).request()).is_err());
    for service in [Service::Uc, Service::Ud] {
        let mut p = Pair::new(service, 1024);
        assert!(p.a.qp.post_send(&store(1, WORD, ALL, 1).request()).is_err());
        assert!(p.a.qp.post_send(&flush(1, WORD, ALL, 8, GLOBAL).request()).is_err());
    }
}
