//! Which memory a packet needs, which a caller looks at before it has the packet taken.

use crate::host::{BASE, Frame, THERE};
use crate::net::{Pair, READ, WRITE, datagram, params, wr};
use ferroce_proto::{Buffer, NeededMemory, QpEvent, QpParams, SendOp};
use ferroce_types::{QpState, RemoteAccess, WcStatus};
use ferroce_wire::{Headers, Operation, Service};

/// The packets of the first side that leave, each with the length of its payload.
fn leaving(p: &mut Pair) -> Vec<(Headers, usize)> {
    let mut left = Vec::new();
    p.transmit_a_into(|frames, _| {
        left = frames.iter().map(|frame| (frame.headers, frame.payload.len())).collect();
    });
    left
}

#[test]
fn writes_need_what_they_name_up_to_the_end_of_their_message() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
    p.a.post(wr(1, WRITE, BASE, 2500));
    let packets = leaving(&mut p);
    assert_eq!(packets.len(), 3);
    let SendOp::Write { va, rkey } = WRITE else { panic!("another operation") };
    let needed = |at: usize| p.b.qp.needed_memory(&packets[at].0, packets[at].1);
    let NeededMemory::Remote { rkey: key, va: at, len, access } = needed(0) else {
        panic!("{:?}", needed(0))
    };
    assert_eq!((key, at, len, access), (rkey, va, 2500, RemoteAccess::Write));
    // Not its turn.
    assert!(matches!(needed(1), NeededMemory::Nothing));
}

#[test]
fn sends_need_the_next_receive_and_then_the_rest_of_it() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
    p.b.host.post_recv(9, THERE, 4096);
    p.a.post(wr(1, SendOp::Send, BASE, 2500));
    let mut frames = Vec::new();
    p.transmit_a_into(|sent, _| frames = sent);
    let needed =
        |p: &Pair, at: usize| match p.b.qp.needed_memory(&frames[at].headers, frames[at].payload.len()) {
            NeededMemory::NextReceive => (None, 0),
            NeededMemory::Local(buffer, sges, offset) => {
                assert_eq!((buffer, sges[0].addr), (Buffer::Receive, THERE));
                (Some(()), offset)
            }
            other => panic!("{other:?}"),
        };
    assert_eq!(needed(&p, 0), (None, 0));
    p.inject(true, &frames[0]);
    assert_eq!(needed(&p, 1), (Some(()), 1024));
    p.inject(true, &frames[1]);
    assert_eq!(needed(&p, 2), (Some(()), 2048));
}

#[test]
fn answers_need_the_memory_of_their_request_and_acknowledgements_none() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
    p.a.post(wr(1, READ, BASE, 2500));
    let first = p.a.qp.sq_psn();
    assert!(matches!(p.a.qp.needed_by_answer(first), NeededMemory::Nothing), "it hasn't been sent");
    let request = leaving(&mut p);
    assert_eq!(request[0].0.bth.opcode.operation, Operation::ReadRequest);
    let psn = request[0].0.bth.psn;
    for (packet, at) in [(0, 0), (1, 1024), (2, 2048)] {
        match p.a.qp.needed_by_answer(psn + packet) {
            NeededMemory::Local(buffer, sges, offset) => {
                assert_eq!((buffer, sges[0].addr, offset), (Buffer::Request, BASE, at));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(p.a.qp.needed_by_answer(psn + 3), NeededMemory::Nothing), "beyond what was asked for");
}

#[test]
fn packets_of_another_partition_need_no_memory() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
    p.a.post(wr(1, WRITE, BASE, 8));
    let (mut headers, len) = leaving(&mut p)[0];
    assert!(matches!(p.b.qp.needed_memory(&headers, len), NeededMemory::Remote { .. }));
    headers.bth.pkey ^= 1;
    assert!(matches!(p.b.qp.needed_memory(&headers, len), NeededMemory::Nothing));
}

#[test]
fn an_answer_that_waits_acknowledges_the_requests_before_it() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
    p.b.host.post_recv(9, THERE, 4096);
    for (wr_id, op) in [(1, SendOp::Send), (2, WRITE), (3, READ), (4, WRITE)] {
        p.a.post(wr(wr_id, op, BASE, 8));
    }
    let psn = leaving(&mut p)[2].0.bth.psn;
    let wait = |p: &mut Pair, psn| p.a.qp.answer_waits(p.now, psn, &mut p.a.host);
    wait(&mut p, psn);
    let success = |wr_id| (wr_id, WcStatus::Success);
    assert_eq!(p.a.host.send_statuses(), [success(1), success(2)]);
    // It is looked at again, and so is another that waits behind it, or nowhere.
    [psn, psn + 1, psn + 9].into_iter().for_each(|psn| wait(&mut p, psn));
    p.a.qp.set_state(QpState::Err, &mut p.a.host);
    wait(&mut p, psn);
    let flushed = |wr_id| (wr_id, WcStatus::WrFlushErr);
    assert_eq!(p.a.host.send_statuses(), [success(1), success(2), flushed(3), flushed(4)]);
}

/// A pair whose second side has two receives in a shared queue, and the packets of a message that it is sent.
fn shared(service: Service, len: u32) -> (Pair, Vec<Frame>) {
    let side = QpParams { qkey: 5, srq: true, ..params(1024) };
    let mut p = Pair::with(service, side, side, 100);
    p.b.host.srq = true;
    (9..=10).for_each(|wr_id| p.b.host.post_recv(wr_id, THERE, 2048));
    p.a.post(match service {
        Service::Ud => datagram(1, SendOp::Send, BASE, len, 2, 5),
        _ => wr(1, SendOp::Send, BASE, len),
    });
    let mut frames = Vec::new();
    p.transmit_a_into(|sent, _| frames = sent);
    (p, frames)
}

/// Whether the second side has the memory that a packet needs.
fn has_memory(p: &mut Pair, frame: &Frame) -> bool {
    p.b.qp.has_memory_for(&frame.headers, frame.payload.len(), &mut p.b.host)
}

fn numbers_of_receives(p: &Pair) -> Vec<u64> {
    p.b.host.receives.iter().map(|receive| receive.wr_id).collect()
}

#[test]
fn a_message_that_waits_for_memory_has_its_receive_of_a_shared_queue() {
    for (service, len) in [(Service::Rc, 1500), (Service::Rc, 8), (Service::Ud, 8)] {
        for absent in [true, false] {
            let (mut p, frames) = shared(service, len);
            p.b.host.memory_is_absent = absent;
            assert_eq!(has_memory(&mut p, &frames[0]), !absent);
            assert_eq!(numbers_of_receives(&p), [10], "{service:?}");
            // It is looked at again, and another QP takes the other receive.
            assert_eq!(has_memory(&mut p, &frames[0]), !absent);
            p.b.host.receives.clear();
            p.b.host.memory_is_absent = false;
            assert!(has_memory(&mut p, &frames[0]));
            frames.iter().for_each(|frame| p.inject(true, frame));
            p.run();
            let receives = p.b.host.recvs.iter().map(|end| (end.wr_id, end.status)).collect::<Vec<_>>();
            assert_eq!(receives, [(9, WcStatus::Success)], "{service:?}");
        }
    }
}

#[test]
fn the_receive_of_a_message_that_waits_is_flushed_before_the_event_that_no_other_follows() {
    for service in [Service::Rc, Service::Ud] {
        let (mut p, frames) = shared(service, 8);
        p.b.host.memory_is_absent = true;
        assert!(!has_memory(&mut p, &frames[0]));
        p.b.qp.set_state(QpState::Err, &mut p.b.host);
        let receives = p.b.host.recvs.iter().chain(&p.b.host.unpublished);
        let receives = receives.map(|end| (end.wr_id, end.status)).collect::<Vec<_>>();
        assert_eq!(receives, [(9, WcStatus::WrFlushErr)], "{service:?}");
        assert_eq!(p.b.host.events.last(), Some(&QpEvent::LastWqeReached));
        assert_eq!((numbers_of_receives(&p), p.b.qp.take_unfinished_receive()), (vec![10], None));
    }
}

#[test]
fn a_reset_finds_the_receive_of_a_message_that_waits_once() {
    let (mut p, frames) = shared(Service::Rc, 1500);
    assert!(has_memory(&mut p, &frames[0]));
    p.inject(true, &frames[0]);
    p.b.host.memory_is_absent = true;
    assert!(!has_memory(&mut p, &frames[1]));
    assert_eq!(p.b.qp.take_unfinished_receive().map(|receive| receive.wr_id), Some(9));
    assert_eq!(p.b.qp.take_unfinished_receive(), None);
    p.b.qp.set_state(QpState::Reset, &mut p.b.host);
    assert!(p.b.host.recvs.is_empty() && p.b.host.unpublished.is_empty());
}

#[test]
fn packets_that_are_refused_or_dropped_take_no_receive_of_a_shared_queue() {
    for service in [Service::Rc, Service::Ud] {
        let (mut p, frames) = shared(service, 8);
        let mut other = frames[0].clone();
        match &mut other.headers.deth {
            Some(deth) => deth.qkey += 1,
            // Longer than the path MTU.
            None => other.payload = vec![0; 1025],
        }
        assert!(has_memory(&mut p, &other));
        other = frames[0].clone();
        if service == Service::Rc {
            other.headers.bth.psn += 1;
            assert!(has_memory(&mut p, &other), "it isn't the next one");
        } else {
            other.payload = vec![0; 2048];
            assert!(has_memory(&mut p, &other), "the receive is too small, with the GRH");
        }
        assert_eq!(numbers_of_receives(&p), [9, 10], "{service:?}");
    }
}
