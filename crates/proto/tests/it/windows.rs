//! Memory windows: binds and invalidations take effect in the order of the send queue, whatever the network does.

use crate::host::{ALL, BASE, Region, THERE};
use crate::net::{CLEAN, Faults, Pair, wr};
use core::time::Duration;
use ferroce_proto::SendOp;
use ferroce_types::{Access, BindMw, QpState, WcOpcode, WcStatus};
use ferroce_wire::{Operation, Service};

const WRITE: Access = Access {
    remote_write: true,
    remote_read: false,
    remote_atomic: false,
    flush: ferroce_types::Placement { global: false, persistent: false },
};
/// Bytes of a window; the address of the first is [`THERE`].
const LENGTH: u64 = 4096;

/// Binds the window that has key `from` under key `to`.
fn bind(from: u32, to: u32, length: u64) -> SendOp {
    SendOp::BindMw(BindMw {
        window: u64::from(from),
        rkey: to,
        lkey: ALL,
        va: THERE,
        length,
        access: WRITE,
        zero_based: false,
    })
}

fn statuses(pair: &Pair) -> Vec<(u64, WcStatus, WcOpcode)> {
    pair.a.host.sends.iter().map(|c| (c.wr_id, c.status, c.opcode)).collect()
}

#[test]
fn a_bind_costs_no_packet_and_completes_in_order() {
    for service in [Service::Rc, Service::Uc] {
        let mut p = Pair::new(service, 1024);
        p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 64));
        p.a.post(wr(2, bind(0, 0x200, LENGTH), BASE, 0));
        p.a.post(wr(3, SendOp::Write { va: THERE, rkey: ALL }, BASE, 64));
        p.run();
        let expected = [(1, WcOpcode::RdmaWrite), (2, WcOpcode::BindMw), (3, WcOpcode::RdmaWrite)];
        let expected = expected.map(|(wr_id, opcode)| (wr_id, WcStatus::Success, opcode));
        assert_eq!(statuses(&p), expected, "{service:?}");
        assert!(p.a.host.regions.contains_key(&0x200));
        assert_eq!(p.a.host.log.len(), 2);
    }
}

#[test]
fn a_bind_that_is_not_signaled_ends_in_silence() {
    let mut p = Pair::new(Service::Rc, 1024);
    let mut request = wr(1, bind(0, 0x200, LENGTH), BASE, 0);
    request.signaled = false;
    p.a.post(request);
    p.run();
    assert!(p.a.host.sends.is_empty() && p.a.host.regions.contains_key(&0x200));
}

#[test]
fn a_bind_that_fails_is_mw_bind_err_and_stops_the_queue() {
    for (service, after) in [(Service::Rc, QpState::Err), (Service::Uc, QpState::Sqe)] {
        let mut p = Pair::new(service, 1024);
        p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 64));
        p.a.post(wr(2, bind(0, 0x200, 1 << 40), BASE, 0));
        p.a.post(wr(3, bind(0, 0x201, LENGTH), BASE, 0));
        p.run();
        let expected = [
            (1, WcStatus::Success, WcOpcode::RdmaWrite),
            (2, WcStatus::MwBindErr, WcOpcode::BindMw),
            (3, WcStatus::WrFlushErr, WcOpcode::BindMw),
        ];
        assert_eq!(statuses(&p), expected, "{service:?}");
        assert_eq!(p.a.qp.state(), after);
        assert!(!p.a.host.regions.contains_key(&0x201), "what was flushed has no effect");
    }
}

#[test]
fn a_bind_waits_for_what_was_asked_before() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.a.post(wr(1, SendOp::Read { va: THERE, rkey: ALL }, BASE, 5000));
    p.a.post(wr(2, bind(0, 0x200, LENGTH), BASE, 0));
    p.transmit();
    assert!(!p.a.host.regions.contains_key(&0x200), "an earlier request is still unanswered");
    p.run();
    assert!(p.a.send_ok() && p.a.host.regions.contains_key(&0x200));
}

#[test]
fn datagrams_have_no_binds() {
    let mut p = Pair::new(Service::Ud, 1024);
    let refused = p.a.qp.post_send(&wr(1, bind(0, 0x200, LENGTH), BASE, 0).request());
    assert_eq!(refused, Err(ferroce_proto::PostError::Operation));
}

/// Many rounds of: bind, pass the key to the peer by a SEND, let it write through the window and give it back by a SEND with
/// invalidate. Whatever is lost, doubled or late, the window is open when the peer gets the key, and closed once it has given it
/// back.
#[test]
fn a_window_is_open_when_the_peer_hears_of_it_and_closed_when_it_gives_it_back() {
    let all = Faults { loss: 60, duplicate: 100, reorder: 100, delay: Duration::from_micros(300), ..CLEAN };
    for (seed, faults) in [CLEAN, Faults { loss: 100, ..CLEAN }, Faults { duplicate: 200, ..CLEAN }, all]
        .into_iter()
        .enumerate()
        .flat_map(|(i, faults)| (0..8).map(move |n| (i as u64 * 8 + n, faults)))
    {
        let mut p = Pair::new(Service::Rc, 1024).seeded(seed, faults);
        let mut key = 0x200;
        for round in 0..20u64 {
            let next = 0x200 | ((key + 1) & 0xff);
            p.b.host.post_recv(round, BASE + 8192, 64);
            p.a.host.post_recv(round, BASE + 8192, 64);
            p.a.post(wr(2 * round, bind(key, next, LENGTH), BASE, 0));
            p.a.post(wr(2 * round + 1, SendOp::Send, BASE, 16));
            key = next;
            while p.b.host.recvs.len() as u64 <= round {
                assert!(p.step(), "seed {seed}: the message about the window doesn't come");
            }
            p.b.host.fill(BASE, 3000, round as u8);
            p.b.post(wr(2 * round, SendOp::Write { va: THERE, rkey: key }, BASE, 3000));
            p.b.post(wr(2 * round + 1, SendOp::SendWithInvalidate { rkey: key }, BASE, 16));
            p.run();
            assert!(p.a.send_ok() && p.b.send_ok(), "seed {seed}, round {round}: {p:?}");
            assert_eq!(p.a.host.recvs[round as usize].invalidated_rkey(), Some(key));
            assert_eq!(p.a.host.bytes(THERE, 3000), p.b.host.bytes(BASE, 3000));
            assert!(!p.a.host.regions.contains_key(&key));
        }
        // A refusal that gets lost isn't repeated: its sender is in ERR.
        p.faults = CLEAN;
        p.b.post(wr(99, SendOp::Write { va: THERE, rkey: key }, BASE, 8));
        p.run_for(Duration::from_secs(10));
        assert_eq!(p.b.host.sends.last().map(|c| c.status), Some(WcStatus::RemAccessErr), "seed {seed}");
    }
}

/// A WRITE of many packets whose window goes away in the middle: the rest is refused.
#[test]
fn a_message_through_a_window_that_is_invalidated_meanwhile_is_refused() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.b.host.regions.insert(0x200, Region::new(THERE, LENGTH));
    p.a.host.fill(BASE, 4096, 7);
    p.a.post(wr(1, SendOp::Write { va: THERE, rkey: 0x200 }, BASE, 4096));
    p.transmit_a_into(|frames, p| {
        assert_eq!(frames.len(), 4);
        p.inject(true, &frames[0]);
        p.b.post(wr(1, SendOp::LocalInvalidate { rkey: 0x200 }, BASE, 0));
        p.transmit();
        for frame in &frames[1..] {
            p.inject(true, frame);
        }
    });
    p.run_for(Duration::from_secs(10));
    assert_eq!(p.a.host.sends[0].status, WcStatus::RemAccessErr);
    assert_eq!(p.b.host.bytes(THERE, 1024), p.a.host.bytes(BASE, 1024));
    assert!(p.b.host.bytes(THERE + 1024, 3072).iter().all(|&byte| byte == 0));
    assert_eq!(p.a.host.sent(Operation::WriteLast), 1);
}
