//! Every operation on a network without faults.

use crate::host::{ALL, BASE, THERE, pattern};
use crate::net::{Pair, params, wr};
use ferroce_proto::{Data, SendOp};
use ferroce_types::{WcOpcode, WcStatus};
use ferroce_wire::{Operation, Service};

const SIZES: [u32; 10] = [0, 1, 255, 256, 257, 1024, 4096, 4097, 65_536, 300_001];
const MTUS: [u32; 4] = [256, 1024, 4096, u32::MAX];

fn expected(seed: u8, len: u32) -> Vec<u8> {
    (0..len as usize).map(|i| pattern(seed, i)).collect()
}

#[test]
fn send_arrives_intact_for_every_size_and_mtu() {
    for mtu in MTUS {
        let mut p = Pair::new(Service::Rc, mtu);
        for (i, len) in SIZES.into_iter().enumerate() {
            let seed = i as u8;
            p.a.host.fill(BASE, len as usize, seed);
            p.b.host.post_recv(100 + i as u64, THERE, len);
            p.a.post(wr(i as u64, SendOp::SendWithImmediate { immediate: [1, 2, 3, seed] }, BASE, len));
            p.run();
            let done = p.b.host.recvs.pop().unwrap();
            assert_eq!((done.wr_id, done.status, done.byte_len), (100 + i as u64, WcStatus::Success, len));
            assert_eq!((done.opcode, done.immediate()), (WcOpcode::Recv, Some([1, 2, 3, seed])));
            assert_eq!(p.b.host.bytes(THERE, len as usize), expected(seed, len), "mtu {mtu} len {len}");
            assert_eq!(p.a.host.send_statuses().pop(), Some((i as u64, WcStatus::Success)));
        }
        assert_eq!(p.a.qp.counters().retransmissions, 0);
    }
}

#[test]
fn write_and_read_arrive_intact_for_every_size_and_mtu() {
    for mtu in MTUS {
        let mut p = Pair::new(Service::Rc, mtu);
        for (i, len) in SIZES.into_iter().enumerate() {
            let seed = 50 + i as u8;
            p.a.host.fill(BASE, len as usize, seed);
            p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, len));
            p.a.post(wr(2, SendOp::Read { va: THERE, rkey: ALL }, THERE, len));
            p.run();
            assert_eq!(p.b.host.bytes(THERE, len as usize), expected(seed, len), "write mtu {mtu} len {len}");
            assert_eq!(p.a.host.bytes(THERE, len as usize), expected(seed, len), "read mtu {mtu} len {len}");
            assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
            assert_eq!(p.a.host.sends[1].byte_len, len);
            p.a.host.sends.clear();
        }
        assert_eq!(p.a.qp.counters().retransmissions, 0);
    }
}

#[test]
fn write_with_immediate_uses_a_receive_and_reports_the_length() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.b.host.post_recv(9, THERE, 0);
    p.a.host.fill(BASE, 5000, 3);
    let op = SendOp::WriteWithImmediate { va: THERE, rkey: ALL, immediate: *b"imm!" };
    let mut request = wr(1, op, BASE, 5000);
    request.solicited = true;
    p.a.post(request);
    p.run();
    let done = p.b.host.recvs[0];
    assert_eq!((done.wr_id, done.opcode, done.byte_len), (9, WcOpcode::RecvRdmaWithImm, 5000));
    assert_eq!((done.immediate(), done.solicited), (Some(*b"imm!"), true));
    assert_eq!(p.b.host.bytes(THERE, 5000), expected(3, 5000));
}

#[test]
fn atomics_return_the_original_value() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.b.host.memory[(THERE - BASE) as usize..][..8].copy_from_slice(&40u64.to_ne_bytes());
    p.a.post(wr(1, SendOp::FetchAdd { va: THERE, rkey: ALL, add: 2 }, BASE, 8));
    p.a.post(wr(2, SendOp::CompareSwap { va: THERE, rkey: ALL, compare: 42, swap: 7 }, BASE + 8, 8));
    p.a.post(wr(3, SendOp::CompareSwap { va: THERE, rkey: ALL, compare: 42, swap: 9 }, BASE + 16, 8));
    p.run();
    let value = |side: &crate::net::Side, at| u64::from_ne_bytes(side.host.bytes(at, 8).try_into().unwrap());
    assert_eq!([0, 8, 16].map(|o| value(&p.a, BASE + o)), [40, 42, 7]);
    assert_eq!(value(&p.b, THERE), 7);
    let seen: Vec<_> = p.a.host.sends.iter().map(|c| (c.wr_id, c.opcode, c.byte_len)).collect();
    assert_eq!(seen, [(1, WcOpcode::FetchAdd, 8), (2, WcOpcode::CompSwap, 8), (3, WcOpcode::CompSwap, 8)]);
}

#[test]
fn inline_data_is_cut_into_packets_like_any_other() {
    let mut p = Pair::new(Service::Rc, 256);
    let bytes = expected(5, 700);
    p.b.host.post_recv(1, THERE, 700);
    let mut request = wr(1, SendOp::Send, BASE, 0);
    request.data = Data::Inline(bytes.iter().copied().collect());
    p.a.post(request);
    p.run();
    assert_eq!(p.b.host.bytes(THERE, 700), bytes);
    assert_eq!(p.a.host.sent(Operation::SendMiddle), 1);
}

#[test]
fn send_with_invalidate_takes_the_key_away_and_says_so() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.b.host.regions.insert(0x77, crate::host::Region::new(BASE, 4096));
    p.b.host.post_recv(1, THERE, 16);
    p.a.post(wr(1, SendOp::SendWithInvalidate { rkey: 0x77 }, BASE, 16));
    p.run();
    assert_eq!(p.b.host.recvs[0].invalidated_rkey(), Some(0x77));
    assert!(!p.b.host.regions.contains_key(&0x77));
}

#[test]
fn local_invalidate_runs_in_order_and_costs_no_packet() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.a.host.regions.insert(0x78, crate::host::Region::new(BASE, 4096));
    p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 64));
    p.a.post(wr(2, SendOp::LocalInvalidate { rkey: 0x78 }, BASE, 0));
    p.a.post(wr(3, SendOp::Write { va: THERE, rkey: ALL }, BASE, 64));
    p.transmit();
    assert!(p.a.host.regions.contains_key(&0x78), "an earlier request is still unacknowledged");
    p.run();
    assert_eq!(p.a.host.sends.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(p.a.send_ok() && !p.a.host.regions.contains_key(&0x78));
    assert_eq!(p.a.host.log.len(), 2);
}

#[test]
fn psns_wrap_around_in_the_middle_of_every_operation() {
    for start in [0xff_fffe, 0xff_ffff, 0xff_fff8, 0] {
        let mut p = Pair::with(Service::Rc, params(256), params(256), start);
        p.a.host.fill(BASE, 2000, 1);
        for i in 0..8 {
            p.b.host.post_recv(i, THERE + 8192, 2000);
            p.a.post(wr(i, SendOp::Send, BASE, 2000));
            p.a.post(wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 2000));
            p.a.post(wr(i, SendOp::Read { va: THERE, rkey: ALL }, THERE, 2000));
            p.a.post(wr(i, SendOp::FetchAdd { va: THERE + 4096, rkey: ALL, add: 1 }, BASE + 4096, 8));
        }
        p.run();
        assert!(p.a.send_ok());
        assert_eq!(p.a.host.sends.len(), 32);
        assert_eq!(p.a.host.bytes(THERE, 2000), expected(1, 2000));
        assert_eq!(p.b.host.bytes(THERE + 8192, 2000), expected(1, 2000));
        assert_eq!(p.a.qp.sq_psn(), p.b.qp.rq_psn());
        assert_eq!(p.a.qp.counters().retransmissions, 0);
    }
}

#[test]
fn unsignaled_requests_end_silently_and_in_order() {
    let mut p = Pair::new(Service::Rc, 1024);
    for i in 0..10 {
        let mut request = wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 10);
        request.signaled = i % 4 == 3;
        p.a.post(request);
    }
    p.run();
    assert_eq!(p.a.host.sends.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [3, 7]);
    assert_eq!(p.a.qp.sq_len(), 0);
}

#[test]
fn one_ack_covers_a_batch_of_messages() {
    let mut p = Pair::new(Service::Rc, 1024);
    for i in 0..20 {
        p.a.post(wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 100));
    }
    p.run();
    assert_eq!(p.a.host.sends.len(), 20);
    assert_eq!(p.b.host.sent(Operation::Acknowledge), 1);
}

#[test]
fn both_directions_run_at_once() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.a.host.fill(BASE, 100_000, 1);
    p.b.host.fill(BASE, 100_000, 2);
    for i in 0..5 {
        p.a.post(wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 100_000));
        p.b.post(wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 100_000));
        p.a.post(wr(i, SendOp::Read { va: BASE, rkey: ALL }, THERE + 200_000, 100_000));
        p.b.post(wr(i, SendOp::Read { va: BASE, rkey: ALL }, THERE + 200_000, 100_000));
    }
    p.run();
    assert!(p.a.send_ok() && p.b.send_ok());
    assert_eq!((p.a.host.sends.len(), p.b.host.sends.len()), (10, 10));
    assert_eq!(p.a.host.bytes(THERE, 100_000), expected(2, 100_000));
    assert_eq!(p.a.host.bytes(THERE + 200_000, 100_000), expected(2, 100_000));
    assert_eq!(p.b.host.bytes(THERE + 200_000, 100_000), expected(1, 100_000));
}
