//! Which memory a packet needs, which a caller looks at before it has the packet taken.

use crate::host::{BASE, THERE};
use crate::net::{Pair, READ, WRITE, params, wr};
use ferroce_proto::{Buffer, NeededMemory, SendOp};
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
            NeededMemory::NextReceive(len) => (None, len as u64),
            NeededMemory::Local(buffer, sges, offset) => {
                assert_eq!((buffer, sges[0].addr), (Buffer::Receive, THERE));
                (Some(()), offset)
            }
            other => panic!("{other:?}"),
        };
    assert_eq!(needed(&p, 0), (None, 1024));
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
