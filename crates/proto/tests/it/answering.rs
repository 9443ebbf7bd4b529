//! What a responder owes and sends in unusual orders, and what a requester makes of unusual answers: packets made by hand.

use crate::crafted::{answers, frame, read_request};
use crate::host::{ALL, BASE, Frame, Region, THERE};
use crate::net::{Pair, READ, WRITE, params, wr};
use core::time::Duration;
use ferroce_proto::{Data, QpEvent, QpParams, SendOp, SendWr};
use ferroce_types::{QpState, RecvWqe, Sge, WcStatus};
use ferroce_wire::{Aeth, AtomicEth, NakCode, Operation, Reth, Service, Syndrome};
use std::collections::VecDeque;

const ADD: SendOp = SendOp::FetchAdd { va: THERE, rkey: ALL, add: 1 };
const FIRST: u32 = 100;

fn pair() -> Pair {
    Pair::with(Service::Rc, params(1024), params(1024), FIRST)
}

fn write_request(psn: u32, rkey: u32) -> Frame {
    let mut f = frame(Operation::WriteOnly, psn, &[7; 8]);
    f.headers.reth = Some(Reth { va: THERE, rkey, dma_len: 8 });
    f
}

fn atomic_request(psn: u32) -> Frame {
    let mut f = frame(Operation::FetchAdd, psn, &[]);
    f.headers.atomic = Some(AtomicEth { va: THERE, rkey: ALL, swap_or_add: 1, compare: 0 });
    f
}

/// A response of `b` that isn't one of its own.
fn response(operation: Operation, psn: u32, syndrome: Syndrome, payload: &[u8]) -> Frame {
    let mut f = frame(operation, psn, payload);
    f.headers.aeth = Some(Aeth { syndrome: syndrome.to_u8(), msn: 1 });
    f.headers.atomic_ack = Some(99);
    f
}

fn nak(psn: u32, code: NakCode) -> Frame {
    response(Operation::Acknowledge, psn, Syndrome::Nak(code), &[])
}

#[test]
fn an_answer_with_data_is_the_acknowledgement_of_what_is_before_it() {
    for (data, answer) in [
        (atomic_request(FIRST + 1), Operation::AtomicAcknowledge),
        (read_request(FIRST + 1, THERE, 8), Operation::ReadResponseOnly),
    ] {
        let mut p = pair();
        p.inject(true, &write_request(FIRST, ALL));
        p.inject(true, &data);
        assert_eq!(answers(&mut p), [(answer, FIRST + 1)]);
    }
}

/// `b` has executed a SEND, a READ of three packets and another SEND, and has another receive. Of its answers, `left` packets have left.
/// A WRITE of its own is under way.
fn executed_around_a_read(left: usize) -> Pair {
    let mut p = pair();
    p.b.post(wr(9, WRITE, BASE, 8));
    p.b.qp.transmit(p.now, &mut p.b.host, 1 << 16);
    p.b.host.out.clear();
    (1..=3).for_each(|wr_id| p.b.host.post_recv(wr_id, THERE, 8));
    p.inject(true, &frame(Operation::SendOnly, FIRST, &[7; 8]));
    p.inject(true, &read_request(FIRST + 1, THERE, 3000));
    p.inject(true, &frame(Operation::SendOnly, FIRST + 4, &[7; 8]));
    p.b.host.room = Some(left);
    p.b.qp.flush_acks(&mut p.b.host);
    p.b.qp.transmit(p.now, &mut p.b.host, 1 << 16);
    assert_eq!((p.b.host.out.len(), p.b.host.unpublished.len()), (left, 2));
    p
}

#[test]
fn a_receive_waits_for_the_first_answer_that_acknowledges_it() {
    for (left, acknowledged) in [(0, 0), (1, 1), (2, 1), (3, 1), (4, 2)] {
        let p = executed_around_a_read(left);
        let from = p.b.qp.unacknowledged_from();
        let before = p.b.host.ended_with.values().filter(|&&number| number < from).count();
        assert_eq!(before, acknowledged, "{left} packets have left");
        assert_eq!(from == u64::MAX, left == 4);
    }
    // A NAK acknowledges what is before it.
    let mut p = pair();
    p.b.host.post_recv(1, THERE, 8);
    p.b.host.room = Some(0);
    for psn in [FIRST, FIRST + 1] {
        p.inject(true, &frame(Operation::SendOnly, psn, &[7; 8]));
    }
    p.b.qp.flush_acks(&mut p.b.host);
    assert!(p.b.qp.unacknowledged_from() <= p.b.host.ended_with[&1]);
    p.b.host.room = None;
    assert_eq!(answers(&mut p), [(Operation::Acknowledge, FIRST + 1)]);
    assert_eq!(p.b.qp.unacknowledged_from(), u64::MAX);
}

/// Whichever way the queue pair goes to ERR, the peer sees the same outcome of each SEND.
#[test]
fn receives_that_have_not_been_acknowledged_are_flushed_and_no_others() {
    let ends: [fn(&mut Pair); 3] = [
        |p| p.b.qp.set_state(QpState::Err, &mut p.b.host),
        |p| {
            p.b.host.regions.remove(&ALL);
            p.b.host.room = None;
            p.b.qp.transmit(p.now, &mut p.b.host, 1 << 16);
        },
        |p| p.inject(true, &nak(p.b.qp.sq_psn() - 1, NakCode::RemoteAccessError)),
    ];
    for (way, end) in ends.into_iter().enumerate() {
        for (left, flushed) in
            [(0, [true, true]), (1, [false, true]), (3, [false, true]), (4, [false, false])]
        {
            if way == 1 && !(1..3).contains(&left) {
                continue;
            }
            let mut p = executed_around_a_read(left);
            end(&mut p);
            assert_eq!(p.b.qp.state(), QpState::Err, "way {way}");
            let ended = p.b.host.unpublished.iter().map(|wc| (wc.wr_id, wc.status == WcStatus::WrFlushErr));
            let expected = [(1, flushed[0]), (2, flushed[1]), (3, true)];
            assert!(ended.eq(expected), "way {way}, {left} packets have left: {:?}", p.b.host.unpublished);
        }
    }
}

#[test]
fn an_acknowledgement_without_room_is_owed_until_it_has_left() {
    let mut p = Pair::down(Service::Rc, params(1024), params(1024), FIRST);
    for state in [QpState::Init, QpState::Rtr] {
        p.b.qp.set_state(state, &mut p.b.host);
    }
    p.b.host.room = Some(0);
    p.inject(true, &write_request(FIRST, ALL));
    p.b.qp.flush_acks(&mut p.b.host);
    assert!(p.b.qp.owes_acknowledgement() && p.b.qp.wants_transmit());
    p.b.host.room = None;
    assert_eq!(answers(&mut p), [(Operation::Acknowledge, FIRST)]);
    assert!(!p.b.qp.owes_acknowledgement() && !p.b.qp.wants_transmit());
}

/// A READ of five packets, of which two have left, is asked for again from the third or the second on.
#[test]
fn a_read_that_is_asked_for_again_counts_once_with_all_its_bytes() {
    for again in [2, 1] {
        let mut p = pair();
        p.inject(true, &read_request(FIRST, THERE, 5000));
        assert!(p.b.qp.transmit(p.now, &mut p.b.host, 2048));
        p.inject(true, &read_request(FIRST + again, THERE + 1024 * u64::from(again), 5000 - 1024 * again));
        let (left, restarted) = (answers(&mut p), again < 2);
        let from = if restarted { Operation::ReadResponseFirst } else { Operation::ReadResponseMiddle };
        assert_eq!(left[0], (from, FIRST + again));
        assert_eq!(left.last(), Some(&(Operation::ReadResponseLast, FIRST + 4)));
        assert_eq!(left.len(), 5 - again as usize);
        assert_eq!(p.b.host.read_by_peer, [(5000, true)]);
        p.inject(true, &read_request(FIRST, THERE, 5000));
        assert_eq!(answers(&mut p).len(), 5);
        assert_eq!(p.b.host.read_by_peer, [(5000, true)], "a duplicate");
    }
}

/// The first answer has probably arrived, and the program has withdrawn the memory since.
#[test]
fn a_repeated_answer_that_starts_again_refuses_nothing() {
    let mut p = pair();
    p.inject(true, &read_request(FIRST, THERE, 5000));
    assert_eq!(answers(&mut p).len(), 5);
    p.inject(true, &read_request(FIRST, THERE, 5000));
    assert!(p.b.qp.transmit(p.now, &mut p.b.host, 2048));
    p.inject(true, &read_request(FIRST + 1, THERE + 1024, 5000 - 1024));
    p.b.host.regions.remove(&ALL);
    assert_eq!(answers(&mut p), []);
    assert_eq!(p.b.qp.state(), QpState::Rts);
}

#[test]
fn no_more_answers_are_repeated_at_once_than_twice_the_depth() {
    let b = QpParams { max_dest_rd_atomic: 1, ..params(1024) };
    let mut p = Pair::with(Service::Rc, params(1024), b, FIRST);
    let reads = [0, 1, 2].map(|n| read_request(FIRST + n, THERE, 8));
    for read in &reads {
        p.inject(true, read);
        assert_eq!(answers(&mut p).len(), 1);
    }
    reads.iter().for_each(|read| p.inject(true, read));
    assert_eq!(answers(&mut p), [0, 1].map(|n| (Operation::ReadResponseOnly, FIRST + n)));
}

#[test]
fn answers_without_bytes_take_of_the_budget() {
    let mut p = pair();
    (0..4).for_each(|n| p.inject(true, &read_request(FIRST + n, THERE, 0)));
    assert!(p.b.qp.transmit(p.now, &mut p.b.host, 128));
    assert_eq!(p.b.host.out.len(), 2);
}

/// A request behind the READ was refused first. The peer learns of the READ, which was before it, and the program once.
#[test]
fn an_answer_that_fails_after_a_refusal_raises_no_second_event() {
    let mut p = pair();
    p.inject(true, &read_request(FIRST, THERE, 5000));
    p.inject(true, &write_request(FIRST + 5, 0x77));
    let refused = [QpEvent::AccessError];
    assert_eq!((p.b.qp.state(), &p.b.host.events[..]), (QpState::Err, &refused[..]));
    p.b.host.regions.remove(&ALL);
    assert_eq!(answers(&mut p), [(Operation::Acknowledge, FIRST)]);
    assert_eq!(p.b.host.events, refused);
    assert_eq!(p.b.host.failures.len(), 1);
}

/// What executes requests of another process's target keeps no answer: any number of atomics is executed.
#[test]
fn atomics_for_another_process_leave_no_answer() {
    const SRQN: u32 = 0x7007;
    let mut p = Pair::with(Service::Xrc, params(1024), QpParams { srq: true, ..params(1024) }, FIRST);
    p.b.host.xrc_srqs.insert(SRQN, VecDeque::<RecvWqe>::new());
    for n in 0..40 {
        let mut f = atomic_request(FIRST + n);
        f.headers.bth.opcode.service = Service::Xrc;
        f.headers.xrc_srqn = Some(SRQN);
        let executed = p.b.qp.execute_for(&f.headers, &&f.payload[..], 0, &mut p.b.host);
        assert_eq!(executed, Some(ferroce_proto::Executed::Done { original: u64::from(n) }));
        assert!(!p.b.qp.owes_acknowledgement());
    }
}

/// Two requests of `a`, which have left and aren't answered.
fn outstanding(ops: &[SendOp], a: QpParams) -> Pair {
    let mut p = Pair::with(Service::Rc, a, params(1024), FIRST);
    p.b.host.fill(THERE, 64, 5);
    for (n, op) in ops.iter().enumerate() {
        p.a.post(wr(n as u64, *op, BASE + 64 * n as u64, 8));
    }
    p.transmit_a_into(|frames, _| assert_eq!(frames.len(), ops.len()));
    p
}

#[test]
fn a_refusal_that_comes_before_an_answer_has_the_request_asked_for_again_at_once() {
    let mut p = outstanding(&[READ, WRITE], params(1024));
    p.inject(false, &nak(FIRST + 1, NakCode::RemoteAccessError));
    assert_eq!(p.a.qp.counters().implied_naks, 1);
    assert!(p.a.qp.wants_transmit());
    p.transmit_a_into(|frames, _| {
        assert_eq!(frames[0].headers.bth.opcode.operation, Operation::ReadRequest);
    });
}

#[test]
fn of_two_refusals_the_one_of_the_earlier_request_counts() {
    for earlier_comes_first in [true, false] {
        let mut p = outstanding(&[READ, WRITE, WRITE], params(1024));
        let mut naks =
            [nak(FIRST + 1, NakCode::RemoteAccessError), nak(FIRST + 2, NakCode::RemoteOperationalError)];
        if !earlier_comes_first {
            naks.reverse();
        }
        naks.iter().for_each(|nak| p.inject(false, nak));
        assert_eq!(p.a.host.send_statuses(), []);
        p.inject(false, &response(Operation::ReadResponseOnly, FIRST, Syndrome::ACK_UNLIMITED, &[1; 8]));
        let ends = [(0, WcStatus::Success), (1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr)];
        assert_eq!(p.a.host.send_statuses(), ends);
    }
}

#[test]
fn a_second_nak_while_the_receiver_is_waited_for_takes_no_retry() {
    let mut p = outstanding(&[SendOp::Send], QpParams { rnr_retry: 1, ..params(1024) });
    let not_ready = response(Operation::Acknowledge, FIRST, Syndrome::RnrNak { timer: 12 }, &[]);
    p.inject(false, &not_ready);
    let until = p.a.qp.next_timeout();
    p.now = p.now.after(Duration::from_micros(100));
    p.inject(false, &not_ready);
    assert_eq!(p.a.host.send_statuses(), []);
    assert_eq!((p.a.qp.next_timeout(), p.a.qp.counters().rnr_naks), (until, 2));
}

/// A packet that is refused so has arrived: the peer lives.
#[test]
fn a_missing_receive_gives_the_retries_of_the_timer_back() {
    let mut p = Pair::with(Service::Rc, QpParams { retry_cnt: 1, ..params(1024) }, params(1024), FIRST);
    p.a.post(wr(1, SendOp::Send, BASE, 8));
    for timeouts in 1..5 {
        p.drop_to_b = Some(Box::new(|_| true));
        while p.a.qp.counters().timeouts < timeouts {
            assert!(p.step());
            assert_eq!(p.a.host.send_statuses(), []);
        }
        p.drop_to_b = None;
        while p.a.qp.counters().rnr_naks < timeouts {
            assert!(p.step());
        }
    }
    p.b.host.post_recv(1, THERE, 8);
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn an_answer_of_another_kind_of_request_is_dropped() {
    for (op, wrong) in [(READ, Operation::AtomicAcknowledge), (ADD, Operation::ReadResponseOnly)] {
        for payload in [&[][..], &[0; 8]] {
            let mut p = outstanding(&[op], params(1024));
            let before = p.b.host.bytes(THERE, 8).to_vec();
            p.inject(false, &response(wrong, FIRST, Syndrome::ACK_UNLIMITED, payload));
            assert_eq!((p.a.qp.counters().malformed, p.a.host.send_statuses()), (1, vec![]), "{op:?}");
            p.run();
            assert_eq!(p.a.host.send_statuses(), [(0, WcStatus::Success)], "{op:?}");
            assert_eq!(p.a.host.bytes(BASE, 8), before, "{op:?}");
        }
    }
}

#[test]
fn the_last_packet_of_an_answer_has_to_be_the_last() {
    for wrong in [Operation::ReadResponseFirst, Operation::ReadResponseMiddle] {
        let mut p = outstanding(&[READ], params(1024));
        p.inject(false, &response(wrong, FIRST, Syndrome::ACK_UNLIMITED, &[1; 8]));
        assert_eq!(p.a.host.send_statuses(), [(0, WcStatus::BadRespErr)]);
    }
}

/// Its answer has no bytes, and its data are only read.
#[test]
fn an_atomic_write_may_be_of_memory_that_is_not_written_to() {
    const READ_ONLY: u32 = 0x55;
    let mut p = pair();
    p.a.host.regions.insert(READ_ONLY, Region { local_write: false, ..Region::new(BASE, 64) });
    p.a.host.fill(BASE, 8, 3);
    let data = Data::Sges([Sge { addr: BASE, length: 8, lkey: READ_ONLY }].into_iter().collect());
    let op = SendOp::AtomicWrite { va: THERE, rkey: ALL };
    p.a.post(SendWr { data, ..wr(1, op, 0, 0) });
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success)]);
    assert_eq!(p.b.host.bytes(THERE, 8), p.a.host.bytes(BASE, 8));
}
