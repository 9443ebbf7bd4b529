//! UC and UD.

use crate::host::{ALL, BASE, THERE};
use crate::net::{CLEAN, Faults, Pair, datagram, params, wr};
use core::time::Duration;
use ferroce_proto::{QpEvent, QpParams, SendOp};
use ferroce_types::{QpState, WcOpcode, WcStatus};
use ferroce_wire::{Operation, Service};

const QKEY: u32 = 0x1111_1111;

fn ud() -> Pair {
    let side = QpParams { qkey: QKEY, ..params(1024) };
    Pair::with(Service::Ud, side, side, 0)
}

#[test]
fn uc_messages_arrive_intact_when_nothing_is_lost() {
    for mtu in [256, 4096, u32::MAX] {
        let mut p = Pair::new(Service::Uc, mtu);
        p.a.host.fill(BASE, 10_000, 1);
        p.b.host.post_recv(1, THERE, 10_000);
        p.b.host.post_recv(2, THERE, 0);
        p.a.post(wr(1, SendOp::SendWithImmediate { immediate: [1; 4] }, BASE, 10_000));
        p.a.post(wr(2, SendOp::Write { va: THERE + 20_000, rkey: ALL }, BASE, 10_000));
        let op = SendOp::WriteWithImmediate { va: THERE + 40_000, rkey: ALL, immediate: [2; 4] };
        p.a.post(wr(3, op, BASE, 10_000));
        p.run();
        assert!(p.a.send_ok() && p.a.host.sends.len() == 3);
        let got: Vec<_> =
            p.b.host.recvs.iter().map(|c| (c.wr_id, c.opcode, c.byte_len, c.immediate())).collect();
        assert_eq!(
            got,
            [(1, WcOpcode::Recv, 10_000, Some([1; 4])), (2, WcOpcode::RecvRdmaWithImm, 10_000, Some([2; 4]))]
        );
        for at in [0, 20_000, 40_000] {
            assert_eq!(p.b.host.bytes(THERE + at, 10_000), p.a.host.bytes(BASE, 10_000));
        }
        assert!(p.b.host.log.is_empty(), "nothing is ever answered");
    }
}

#[test]
fn uc_loss_drops_the_whole_message_and_its_receive_serves_the_next() {
    let mut p = Pair::with(Service::Uc, params(256), params(256), 100);
    p.drop_to_b = Some(Box::new(|f| f.headers.bth.psn == 101));
    for i in 0..2 {
        p.b.host.post_recv(i, THERE, 1000);
    }
    p.a.host.fill(BASE, 1000, 1);
    p.a.host.fill(BASE + 1000, 1000, 2);
    p.a.post(wr(1, SendOp::Send, BASE, 1000));
    p.a.post(wr(2, SendOp::Send, BASE + 1000, 1000));
    p.run();
    assert!(p.a.send_ok(), "the sender doesn't know");
    assert_eq!(p.b.host.recv_statuses(), [(0, WcStatus::Success)]);
    assert_eq!(p.b.host.bytes(THERE, 1000), p.a.host.bytes(BASE + 1000, 1000));
    assert_eq!(p.b.host.receives.len(), 1);
    assert_eq!(p.b.qp.counters().dropped_messages, 1);
}

#[test]
fn uc_receives_every_message_at_most_once_in_order_and_intact_under_any_fault() {
    for seed in 0..40 {
        let faults = Faults { loss: 50, duplicate: 50, reorder: 50, ..CLEAN };
        let mut p = Pair::with(Service::Uc, params(256), params(256), 0xff_ffc0).seeded(seed, faults);
        for i in 0..100 {
            p.a.host.fill(BASE + i * 600, 600, i as u8);
            p.b.host.post_recv(i, THERE + i * 600, 600);
            let immediate = (i as u32).to_be_bytes();
            p.a.post(wr(i, SendOp::SendWithImmediate { immediate }, BASE + i * 600, 600));
        }
        p.run();
        let numbers: Vec<_> =
            p.b.host.recvs.iter().map(|c| u32::from_be_bytes(c.immediate().unwrap())).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
        assert!(numbers.len() > 30 && numbers.len() < 100);
        for (slot, number) in numbers.iter().enumerate() {
            let want = p.a.host.bytes(BASE + u64::from(*number) * 600, 600);
            assert_eq!(p.b.host.bytes(THERE + slot as u64 * 600, 600), want);
        }
    }
}

#[test]
fn uc_refused_messages_are_dropped_in_silence() {
    for op in [
        SendOp::Write { va: THERE, rkey: 0xbad },
        SendOp::WriteWithImmediate { va: THERE, rkey: ALL, immediate: [0; 4] },
        SendOp::Send,
    ] {
        let mut p = Pair::new(Service::Uc, 256);
        p.a.post(wr(1, op, BASE, 1000));
        p.run();
        assert!(p.a.send_ok());
        assert_eq!(p.b.qp.counters().dropped_messages, 1, "{op:?}");
        assert_eq!((p.b.qp.state(), p.b.host.events.len()), (QpState::Rts, 0));
        // A receive that is too small is kept as well.
        p.b.host.post_recv(1, THERE, 500);
        p.a.post(wr(2, SendOp::Send, BASE, 1000));
        p.a.post(wr(3, SendOp::Send, BASE, 500));
        p.run();
        assert_eq!(p.b.host.recv_statuses(), [(1, WcStatus::Success)], "{op:?}");
        assert_eq!(p.b.host.recvs[0].byte_len, 500, "nothing of the refused one");
    }
}

#[test]
fn uc_receive_with_a_wrong_key_ends_the_qp() {
    let mut p = Pair::new(Service::Uc, 256);
    p.b.host.post_recv(1, 0x10, 500);
    p.a.post(wr(1, SendOp::Send, BASE, 100));
    p.run();
    assert_eq!(p.b.host.recv_statuses(), [(1, WcStatus::LocProtErr)]);
    assert_eq!(p.b.qp.state(), QpState::Err);
}

#[test]
fn send_error_puts_uc_and_ud_into_sqe_where_receiving_goes_on() {
    for service in [Service::Uc, Service::Ud] {
        let side = QpParams { qkey: QKEY, ..params(1024) };
        let mut p = Pair::with(service, side, side, 0);
        let request = |id, addr| datagram(id, SendOp::Send, addr, 64, 0x22, QKEY);
        p.a.post(request(1, BASE));
        p.a.post(request(2, 0x10));
        p.a.post(request(3, BASE));
        p.run();
        use WcStatus::{LocProtErr, Success, WrFlushErr};
        assert_eq!(p.a.host.send_statuses(), [(1, Success), (2, LocProtErr), (3, WrFlushErr)]);
        assert_eq!(p.a.qp.state(), QpState::Sqe);
        p.a.post(request(4, BASE));
        p.run();
        assert_eq!(p.a.host.send_statuses()[3], (4, WrFlushErr));
        p.a.host.post_recv(7, THERE, 200);
        p.b.post(datagram(1, SendOp::Send, BASE, 64, 0x11, QKEY));
        p.run();
        assert_eq!(p.a.host.recv_statuses(), [(7, Success)]);
        p.a.qp.set_state(QpState::Rts, &mut p.a.host);
        p.b.host.post_recv(8, THERE, 200);
        p.a.post(request(5, BASE));
        p.run();
        assert_eq!(p.a.host.send_statuses()[4], (5, Success));
        assert_eq!(p.b.host.recv_statuses(), [(8, Success)]);
    }
}

#[test]
fn ud_receive_has_forty_bytes_of_grh_before_the_payload() {
    let mut p = ud();
    p.a.host.fill(BASE, 1000, 3);
    p.b.host.post_recv(1, THERE, 1040);
    p.a.post(datagram(1, SendOp::SendWithImmediate { immediate: [5; 4] }, BASE, 1000, 0x22, QKEY));
    p.run();
    let c = p.b.host.recvs[0];
    assert_eq!((c.status, c.byte_len, c.grh(), c.src_qp), (WcStatus::Success, 1040, true, 0x11));
    assert_eq!(c.immediate(), Some([5; 4]));
    assert_eq!(p.b.host.bytes(THERE, 40), [0x60; 40]);
    assert_eq!(p.b.host.bytes(THERE + 40, 1000), p.a.host.bytes(BASE, 1000));
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn ud_drops_wrong_qkeys_and_datagrams_nobody_waits_for() {
    let mut p = ud();
    p.a.post(datagram(1, SendOp::Send, BASE, 10, 0x22, QKEY));
    p.run();
    assert_eq!(p.b.qp.counters().dropped_messages, 1);
    p.b.host.post_recv(1, THERE, 100);
    p.a.post(datagram(2, SendOp::Send, BASE, 10, 0x22, QKEY + 1));
    p.run();
    assert_eq!(p.b.qp.counters().qkey_violations, 1);
    assert_eq!(p.b.host.receives.len(), 1);
    assert!(p.a.send_ok());
    // The top bit asks for the sender's own Q_Key.
    p.a.post(datagram(3, SendOp::Send, BASE, 10, 0x22, 0x8000_0000));
    p.run();
    assert_eq!(p.b.host.recv_statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn ud_datagram_that_does_not_fit_is_dropped_and_takes_no_receive() {
    let mut p = ud();
    p.b.host.post_recv(1, THERE, 49);
    p.b.host.post_recv(2, THERE, 50);
    p.a.post(datagram(1, SendOp::Send, BASE, 10, 0x22, QKEY));
    p.run();
    assert!(p.b.host.recvs.is_empty());
    assert_eq!((p.b.qp.state(), p.b.host.receives.len()), (QpState::Rts, 2));
    assert_eq!(p.b.qp.counters().dropped_messages, 1);
    for (id, length) in [(2, 9), (3, 10)] {
        p.a.post(datagram(id, SendOp::Send, BASE, length, 0x22, QKEY));
    }
    p.run();
    assert_eq!(p.b.host.recv_statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!((p.b.host.recvs[0].byte_len, p.b.host.recvs[1].byte_len), (49, 50));
}

#[test]
fn ud_message_longer_than_the_mtu_is_refused_when_posted() {
    let mut p = ud();
    let r = p.a.qp.post_send(&datagram(1, SendOp::Send, BASE, 1025, 0x22, QKEY).request());
    assert_eq!(r, Err(ferroce_proto::PostError::Length { len: 1025, most: 1024 }));
    p.a.post(datagram(1, SendOp::Send, BASE, 1024, 0x22, QKEY));
    p.b.host.post_recv(1, THERE, 1064);
    p.run();
    assert_eq!(p.b.host.recvs[0].byte_len, 1064);
}

#[test]
fn ud_and_uc_drain_in_sqd() {
    for service in [Service::Uc, Service::Ud] {
        let side = QpParams { qkey: QKEY, ..params(1024) };
        let mut p = Pair::with(service, side, side, 0);
        p.a.qp.set_state(QpState::Sqd, &mut p.a.host);
        assert_eq!(p.a.host.events, [QpEvent::SqDrained]);
        p.a.post(datagram(1, SendOp::Send, BASE, 10, 0x22, QKEY));
        p.transmit();
        assert_eq!(p.a.host.sent(Operation::SendOnly), 0);
        p.a.qp.set_state(QpState::Rts, &mut p.a.host);
        p.run();
        assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success)]);
    }
}

#[test]
fn unacknowledged_packets_leave_when_the_fabric_says_so() {
    for service in [Service::Uc, Service::Ud] {
        let side = QpParams { qkey: QKEY, ..params(1024) };
        let mut p = Pair::with(service, side, side, 0);
        let later = p.now.after(Duration::from_micros(70));
        p.a.host.later = Some(later);
        for i in 0..10 {
            p.a.post(datagram(i, SendOp::Send, BASE, 1000, 0x22, QKEY));
        }
        p.transmit();
        assert!(p.a.host.log.is_empty() && !p.a.qp.wants_transmit());
        assert_eq!(p.a.qp.next_timeout(), Some(later));
        p.a.host.later = None;
        p.a.qp.handle_timeout(later, &mut p.a.host);
        assert!(p.a.qp.wants_transmit());
        p.run();
        assert!(p.a.send_ok() && p.a.host.sends.len() == 10);
        assert_eq!(p.a.qp.next_timeout(), None);
    }
}
