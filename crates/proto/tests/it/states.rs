//! The states of a QP: what each takes, sends, receives and flushes.

use crate::crafted::{answers, frame};
use crate::host::{ALL, BASE, THERE};
use crate::net::{Pair, READ, WRITE, params, wr};
use core::time::Duration;
use ferroce_proto::{Data, PostError, QpEvent, QpParams, QpProtocol, SendOp};
use ferroce_types::{QpState, WcOpcode, WcStatus};
use ferroce_wire::{Operation, Service};

#[test]
fn idle_qp_is_small() {
    assert!(size_of::<QpProtocol<u32>>() <= 1536, "{}", size_of::<QpProtocol<u32>>());
}

#[test]
fn requests_are_refused_before_rts_and_beyond_the_queue() {
    let mut p = Pair::down(Service::Rc, params(1024), params(1024), 0);
    for state in [QpState::Init, QpState::Rtr] {
        p.a.qp.set_state(state, &mut p.a.host);
        assert_eq!(p.a.qp.post_send(&wr(1, WRITE, BASE, 1).request()), Err(PostError::State(state)));
    }
    p.a.qp.set_state(QpState::Rts, &mut p.a.host);
    for i in 0..4096 {
        p.a.post(wr(i, WRITE, BASE, 1));
    }
    assert_eq!(p.a.qp.post_send(&wr(1, WRITE, BASE, 1).request()), Err(PostError::QueueFull));
    assert_eq!(p.a.qp.sq_len(), 4096);
}

#[test]
fn operations_that_a_service_does_not_have_are_refused() {
    let mut p = Pair::new(Service::Uc, 1024);
    assert_eq!(p.a.qp.post_send(&wr(1, READ, BASE, 1).request()), Err(PostError::Operation));
    assert_eq!(
        p.a.qp.post_send(&wr(1, SendOp::SendWithInvalidate { rkey: 1 }, BASE, 1).request()),
        Err(PostError::Operation)
    );
    let mut p = Pair::new(Service::Ud, 1024);
    assert_eq!(
        p.a.qp.post_send(&wr(1, SendOp::Send, BASE, 1).request()),
        Err(PostError::Operation),
        "no address"
    );
    let mut p = Pair::new(Service::Rc, 1024);
    let mut inline = wr(1, READ, BASE, 1);
    inline.data = Data::Inline([0; 8].into_iter().collect());
    assert_eq!(p.a.qp.post_send(&inline.request()), Err(PostError::Operation));
    let mut long = wr(1, WRITE, BASE, 1 << 31);
    if let Data::Sges(sges) = &mut long.data {
        sges.push(ferroce_types::Sge { addr: BASE, length: 1, lkey: ALL });
    }
    assert_eq!(
        p.a.qp.post_send(&long.request()),
        Err(PostError::Length { len: (1 << 31) + 1, most: 1 << 31 })
    );
}

#[test]
fn qp_in_rtr_receives_executes_and_answers() {
    let mut p = Pair::down(Service::Rc, params(1024), params(1024), 0);
    for state in [QpState::Init, QpState::Rtr] {
        p.b.qp.set_state(state, &mut p.b.host);
        p.a.qp.set_state(state, &mut p.a.host);
    }
    p.a.qp.set_state(QpState::Rts, &mut p.a.host);
    p.b.host.post_recv(1, THERE, 5000);
    p.a.post(wr(1, SendOp::Send, BASE, 5000));
    p.a.post(wr(2, READ, BASE, 5000));
    p.a.post(wr(3, SendOp::FetchAdd { va: THERE, rkey: ALL, add: 1 }, BASE, 8));
    p.run();
    assert!(p.a.send_ok() && p.a.host.sends.len() == 3);
    assert_eq!(p.b.host.events, [QpEvent::CommunicationEstablished]);
}

#[test]
fn packets_before_rtr_change_nothing() {
    let mut p = Pair::down(Service::Rc, params(1024), params(1024), 0);
    p.b.qp.set_state(QpState::Init, &mut p.b.host);
    p.b.host.post_recv(1, THERE, 64);
    p.inject(true, &frame(Operation::SendOnly, 0, &[1]));
    assert_eq!(answers(&mut p), []);
    assert_eq!(p.b.qp.counters().wrong_state, 1);
    assert_eq!(p.b.host.receives.len(), 1);
}

#[test]
fn sqd_ends_what_was_started_and_says_when() {
    let mut p = Pair::new(Service::Rc, 256);
    p.a.host.room = Some(2);
    p.a.post(wr(1, WRITE, BASE, 1000));
    p.a.post(wr(2, WRITE, BASE, 1000));
    p.transmit();
    p.a.qp.set_state(QpState::Sqd, &mut p.a.host);
    p.a.host.room = None;
    p.run_for(Duration::from_millis(500));
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success)]);
    assert_eq!(p.a.host.events, [QpEvent::SqDrained]);
    assert_eq!(p.a.host.log.len(), 4);
    p.a.qp.set_state(QpState::Rts, &mut p.a.host);
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    p.a.qp.set_state(QpState::Sqd, &mut p.a.host);
    assert_eq!(p.a.host.events.len(), 2, "an idle queue is drained at once");
}

#[test]
fn qp_in_error_flushes_what_is_posted_later() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 8));
    p.a.host.post_recv(5, THERE, 8);
    p.a.qp.set_state(QpState::Err, &mut p.a.host);
    p.a.post(wr(2, SendOp::Read { va: THERE, rkey: ALL }, BASE, 8));
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(p.a.host.sends[1].opcode, WcOpcode::RdmaRead);
    assert_eq!(p.a.host.recv_statuses(), [(5, WcStatus::WrFlushErr)]);
    assert!(p.a.host.log.is_empty());
}

#[test]
fn receive_of_a_message_in_progress_is_flushed_before_the_others() {
    let mut p = Pair::new(Service::Rc, 256);
    for i in 0..3 {
        p.b.host.post_recv(i, THERE, 1000);
    }
    p.a.post(wr(1, SendOp::Send, BASE, 1000));
    p.a.host.room = Some(2);
    p.step();
    p.b.qp.set_state(QpState::Err, &mut p.b.host);
    p.b.host.recvs.append(&mut p.b.host.unpublished);
    assert_eq!(p.b.host.recv_statuses(), [0, 1, 2].map(|i| (i, WcStatus::WrFlushErr)));
}

#[test]
fn qp_with_an_srq_says_when_it_has_taken_its_last_receive() {
    let mut p = Pair::with(Service::Rc, params(256), QpParams { srq: true, ..params(256) }, 5);
    for i in 0..3 {
        p.b.host.post_recv(i, THERE, 100);
    }
    p.a.post(wr(1, SendOp::Send, BASE, 1000));
    p.run();
    assert_eq!(p.b.host.recv_statuses(), [(0, WcStatus::LocLenErr)]);
    assert_eq!(p.b.host.events, [QpEvent::LastWqeReached]);
    assert_eq!(p.b.host.receives.len(), 2, "those of the SRQ are for others");
    p.b.qp.set_state(QpState::Err, &mut p.b.host);
    assert_eq!(p.b.host.events.len(), 1);
}

#[test]
fn reset_drops_everything_silently_and_the_qp_can_be_used_again() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 50_000));
    p.a.post(wr(2, SendOp::Read { va: THERE, rkey: ALL }, BASE, 50_000));
    p.transmit();
    for side in [&mut p.a, &mut p.b] {
        side.qp.set_state(QpState::Reset, &mut side.host);
        side.qp.params_mut().sq_psn = 0x123;
        side.qp.params_mut().rq_psn = 0x123;
    }
    assert!(p.a.host.sends.is_empty() && p.a.qp.sq_len() == 0 && p.a.qp.next_timeout().is_none());
    p.up();
    // The packets of the former connection are still on the wire.
    p.run();
    let responses = p.b.qp.counters().responses_sent;
    p.a.post(wr(3, SendOp::Write { va: THERE, rkey: ALL }, BASE, 5000));
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(3, WcStatus::Success)]);
    assert!(p.b.qp.counters().responses_sent > responses);
}
