//! What fabrics in shared memory ask of the transport: payloads that can't be had, requests without packets, peers that
//! are stopped, and the way back to another fabric.

use crate::host::{ALL, BASE, THERE};
use crate::net::{Pair, WRITE, params, wr};
use core::time::Duration;
use ferroce_proto::{QpParams, SendOp};
use ferroce_types::WcStatus;
use ferroce_wire::{Operation, Service};

fn lossless(mtu: u32) -> QpParams {
    QpParams { lossless: true, ..params(mtu) }
}

fn pair(mtu: u32) -> Pair {
    Pair::with(Service::Rc, lossless(mtu), lossless(mtu), 0xff_fff0)
}

/// A pair whose first packet was answered.
fn answered(mtu: u32) -> Pair {
    let mut p = pair(mtu);
    p.a.post(wr(0, WRITE, BASE, 0));
    p.run();
    p.a.host.sends.clear();
    p.a.host.log.clear();
    p
}

#[test]
fn first_request_is_a_packet_so_that_psns_that_do_not_match_show() {
    let mut p = Pair::down(Service::Rc, lossless(65_536), lossless(65_536), 100);
    p.b.qp.params_mut().rq_psn = 101;
    p.up();
    p.a.host.direct = u64::MAX;
    p.a.post(wr(1, WRITE, BASE, 10_000));
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RetryExcErr)]);
    assert!(p.a.host.direct_log.is_empty());
}

/// A one-sided request waits for those before it if it had better be executed; what has to be received keeps it waiting for nothing.
#[test]
fn request_that_had_better_be_executed_waits_for_one_sided_ones_only() {
    for (first, log) in [(WRITE, vec![(0, 4096)]), (SendOp::Send, vec![])] {
        let mut p = answered(65_536);
        p.b.host.post_recv(9, THERE, 100);
        p.a.host.prefers_direct = true;
        p.a.post(wr(1, first, BASE, 100));
        p.transmit();
        p.a.host.direct = u64::MAX;
        p.a.post(wr(2, WRITE, BASE, 100));
        p.run();
        assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
        assert_eq!(p.a.host.direct_log, log, "behind {first:?}");
    }
}

#[test]
fn request_that_needs_no_packet_sends_none_and_completes_in_order() {
    let mut p = answered(65_536);
    p.a.host.direct = u64::MAX;
    for i in 0..3 {
        p.a.post(wr(i, WRITE, BASE, 10_000));
    }
    p.run();
    use WcStatus::Success;
    assert_eq!(p.a.host.send_statuses(), [(0, Success), (1, Success), (2, Success)]);
    assert!(p.a.host.log.is_empty());
    assert_eq!(p.a.host.direct_log[..4], [(0, 4096), (4096, 4096), (8192, 4096), (0, 4096)]);
}

#[test]
fn request_that_stops_needing_no_packet_is_sent_from_its_beginning() {
    let mut p = answered(65_536);
    p.a.host.direct = 4096;
    p.a.host.fill(BASE, 10_000, 8);
    p.a.post(wr(1, WRITE, BASE, 10_000));
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success)]);
    assert_eq!(p.a.host.sent(Operation::WriteOnly), 1);
    assert_eq!(p.b.host.bytes(THERE, 10_000), p.a.host.bytes(BASE, 10_000));
}

#[test]
fn request_whose_memory_is_not_there_waits_and_sends_no_packet() {
    let mut p = answered(65_536);
    p.a.host.direct = u64::MAX;
    p.a.post(wr(0, WRITE, BASE, 10_000));
    p.transmit();
    p.a.host.memory_is_absent = true;
    p.a.post(wr(1, WRITE, BASE, 10_000));
    p.transmit();
    assert_eq!(p.a.host.send_statuses(), [(0, WcStatus::Success)]);
    assert!(p.a.host.log.is_empty());
    p.a.host.memory_is_absent = false;
    p.transmit();
    assert_eq!(p.a.host.send_statuses(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    assert!(p.a.host.log.is_empty());
}

#[test]
fn request_waits_with_packets_for_those_before_it() {
    let mut p = pair(65_536);
    p.a.host.direct = u64::MAX;
    p.b.host.post_recv(9, THERE, 8);
    p.a.post(wr(1, SendOp::Send, BASE, 8));
    p.a.post(wr(2, WRITE, BASE, 8));
    p.run();
    assert_eq!(p.a.host.sent(Operation::SendOnly), 1);
    assert_eq!(p.a.host.sent(Operation::WriteOnly), 1, "the SEND wasn't acknowledged yet");
    assert!(p.a.host.direct_log.is_empty());
}

#[test]
fn stopped_peer_uses_up_no_retries_and_a_dead_one_does() {
    let mut p = pair(65_536);
    p.drop_to_b = Some(Box::new(|_| true));
    p.a.host.peer_stopped = true;
    p.a.post(wr(1, WRITE, BASE, 8));
    p.run_for(Duration::from_secs(300));
    assert!(p.a.host.sends.is_empty());
    assert_eq!((p.a.qp.counters().timeouts, p.a.host.sent(Operation::WriteOnly)), (0, 1));
    p.a.host.peer_stopped = false;
    p.run_for(Duration::from_secs(60));
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RetryExcErr)]);
}

/// Nothing is lost on the way: the peer had no room for what waits for memory.
#[test]
fn requests_that_the_peer_has_dropped_come_again_without_a_retry() {
    let side = QpParams { timeout: 0, retry_cnt: 0, ..lossless(65_536) };
    let mut p = Pair::with(Service::Rc, side, side, 0xff_fff0);
    for number in 1..=3 {
        p.drop_to_b = Some(Box::new(|_| true));
        p.a.post(wr(number, WRITE, BASE, 8));
        p.transmit();
        p.drop_to_b = None;
        p.b.qp.request_again();
        p.run();
        assert_eq!(p.a.host.send_statuses().last(), Some(&(number, WcStatus::Success)));
    }
}

#[test]
fn message_that_finds_no_room_uses_up_no_retries() {
    let mut p = pair(1024);
    p.a.host.fill(BASE, 10_000, 5);
    // Three packets leave, and the peer deals with them: none asks for an answer.
    p.a.host.room = Some(3);
    p.a.post(wr(1, WRITE, BASE, 10_000));
    p.run_for(Duration::from_secs(300));
    assert!(p.a.host.sends.is_empty() && p.a.host.waited_for.is_empty());
    assert_eq!((p.a.qp.counters().timeouts, p.a.host.log.len()), (0, 3));
    p.a.host.room = None;
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success)]);
    assert_eq!(p.b.host.bytes(THERE, 10_000), p.a.host.bytes(BASE, 10_000));
    assert_eq!(p.a.qp.counters().retransmissions, 0);
}

#[test]
fn what_is_waited_for_is_another_thing_after_each_answer() {
    let mut p = pair(65_536);
    let waited_for = |p: &mut Pair| {
        p.drop_to_b = Some(Box::new(|_| true));
        p.a.host.peer_stopped = true;
        p.a.host.waited_for.clear();
        p.run_for(Duration::from_secs(10));
        p.drop_to_b = None;
        let all = &p.a.host.waited_for;
        assert!(all.len() > 2 && all.iter().all(|one| *one == all[0]), "{all:?}");
        all[0]
    };
    p.a.post(wr(1, SendOp::Send, BASE, 8));
    p.a.post(wr(2, SendOp::Send, BASE, 8));
    // No receive is posted.
    p.run_for(Duration::from_micros(5));
    let refused = waited_for(&mut p);
    p.a.host.peer_stopped = false;
    p.run_for(Duration::from_secs(1));
    let refused_again = waited_for(&mut p);
    p.b.host.post_recv(9, THERE, 100);
    p.a.host.peer_stopped = false;
    p.run_for(Duration::from_secs(1));
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success)]);
    let second = waited_for(&mut p);
    assert!(refused != refused_again && refused_again != second && refused != second);
}

#[test]
fn fabric_can_be_changed_while_nothing_has_got_through() {
    let mut p = Pair::with(Service::Rc, lossless(65_536), params(1024), 0xff_fff0);
    p.drop_to_b = Some(Box::new(|_| true));
    p.a.host.fill(BASE, 20_000, 5);
    p.b.host.post_recv(9, THERE + 100_000, 100);
    p.a.post(wr(1, WRITE, BASE, 20_000));
    p.a.post(wr(2, SendOp::Send, BASE, 100));
    p.a.post(wr(3, SendOp::Read { va: THERE, rkey: ALL }, THERE, 20_000));
    p.run_for(Duration::from_millis(1));
    p.drop_to_b = None;
    p.a.qp.change_fabric(1024, false);
    p.run();
    use WcStatus::Success;
    assert_eq!(p.a.host.send_statuses(), [(1, Success), (2, Success), (3, Success)]);
    assert_eq!(p.b.host.bytes(THERE, 20_000), p.a.host.bytes(BASE, 20_000));
    assert_eq!(p.a.host.bytes(THERE, 20_000), p.a.host.bytes(BASE, 20_000));
    assert_eq!(p.b.host.recv_statuses(), [(9, Success)]);
}
