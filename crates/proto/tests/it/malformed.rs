//! Packets that make no sense where they come: refused or dropped, as the specification requires for each.

use crate::crafted::{answers, frame};
use crate::host::{ALL, BASE, THERE};
use crate::net::{Pair, READ, WRITE, params, wr};
use ferroce_proto::{QpEvent, SendOp};
use ferroce_types::{QpState, WcStatus};
use ferroce_wire::{Operation, Reth, Service};

#[test]
fn responses_for_nothing_change_nothing() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.a.post(wr(1, WRITE, BASE, 8));
    p.run();
    let before = p.a.qp.counters().stale_responses;
    for operation in [Operation::Acknowledge, Operation::ReadResponseOnly, Operation::AtomicAcknowledge] {
        for distance in [0u32, 1, 5, 0x7f_ffff, 0x80_0000, 0xff_ffff] {
            let mut f = frame(operation, (p.a.qp.sq_psn() + distance) & 0xff_ffff, &[0; 8]);
            for syndrome in [0, 0x1f, 0x20, 0x60, 0x61, 0x62, 0x63, 0x80, 0xff] {
                f.headers.aeth = Some(ferroce_wire::Aeth { syndrome, msn: 0 });
                f.headers.atomic_ack = Some(1);
                p.inject(false, &f);
            }
        }
    }
    assert_eq!(p.a.qp.counters().stale_responses, before + 3 * 6 * 9);
    assert_eq!(p.a.qp.state(), QpState::Rts);
    p.a.post(wr(2, WRITE, BASE, 8));
    p.run();
    assert!(p.a.send_ok());
}

#[test]
fn read_response_of_the_wrong_length_is_a_bad_response() {
    for len in [0, 1023, 1025] {
        let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
        p.a.post(wr(1, READ, BASE, 3000));
        p.transmit();
        let mut f = frame(Operation::ReadResponseFirst, 100, &vec![0; len]);
        f.headers.aeth = Some(ferroce_wire::Aeth { syndrome: 0x1f, msn: 1 });
        p.inject(false, &f);
        assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::BadRespErr)]);
        assert_eq!(p.a.qp.state(), QpState::Err);
    }
}

#[test]
fn invalid_sequences_of_opcodes_are_refused() {
    use Operation as O;
    let cases: [(&[O], &str); 8] = [
        (&[O::SendMiddle], "middle without first"),
        (&[O::SendLast], "last without first"),
        (&[O::WriteMiddle], "write middle without first"),
        (&[O::SendFirst, O::SendFirst], "first in a message"),
        (&[O::SendFirst, O::SendOnly], "only in a message"),
        (&[O::SendFirst, O::WriteMiddle], "write in a send"),
        (&[O::SendFirst, O::ReadRequest], "read in a send"),
        (&[O::WriteFirst, O::SendLast], "send in a write"),
    ];
    for (operations, name) in cases {
        let mut p = Pair::with(Service::Rc, params(256), params(256), 100);
        p.b.host.post_recv(1, THERE, 4096);
        for (i, operation) in operations.iter().enumerate() {
            let mut f =
                frame(*operation, 100 + i as u32, if *operation == O::ReadRequest { &[] } else { &[0; 256] });
            f.headers.reth = Some(Reth { va: THERE, rkey: ALL, dma_len: 4096 });
            p.inject(true, &f);
        }
        assert_eq!(answers(&mut p), [(O::Acknowledge, 99 + operations.len() as u32)], "{name}");
        assert_eq!(p.b.qp.state(), QpState::Err, "{name}");
        let held = operations[0] == O::SendFirst;
        assert_eq!(p.b.host.unpublished[0].status == WcStatus::RemInvReqErr, held, "{name}");
        assert_eq!(p.b.host.events.is_empty(), held, "{name}");
    }
}

#[test]
fn packets_of_impossible_length_are_refused() {
    use Operation as O;
    let cases = [
        (O::SendFirst, 255, 0),
        (O::SendFirst, 257, 0),
        (O::SendOnly, 257, 0),
        (O::WriteFirst, 256, 256),
        (O::WriteFirst, 100, 1000),
        (O::WriteOnly, 10, 11),
        (O::WriteOnly, 10, 9),
        (O::WriteOnly, 0, 1),
        (O::ReadRequest, 1, 1),
        (O::ReadRequest, 0, (1 << 31) + 1),
    ];
    for (operation, len, dma_len) in cases {
        let mut p = Pair::with(Service::Rc, params(256), params(256), 100);
        p.b.host.post_recv(1, THERE, 4096);
        let mut f = frame(operation, 100, &vec![0; len]);
        f.headers.reth = Some(Reth { va: THERE, rkey: ALL, dma_len });
        p.inject(true, &f);
        answers(&mut p);
        assert_eq!(p.b.qp.state(), QpState::Err, "{operation:?} {len} of {dma_len}");
    }
}

#[test]
fn write_that_ends_early_or_late_is_refused() {
    for (last, psns) in [(10, 2), (200, 2)] {
        let mut p = Pair::with(Service::Rc, params(256), params(256), 100);
        let mut f = frame(Operation::WriteFirst, 100, &[0; 256]);
        f.headers.reth = Some(Reth { va: THERE, rkey: ALL, dma_len: 300 });
        p.inject(true, &f);
        p.inject(true, &frame(Operation::WriteLast, 101, &vec![0; last]));
        assert_eq!(answers(&mut p), [(Operation::Acknowledge, 99 + psns)]);
        assert_eq!(p.b.host.events, [QpEvent::RequestError]);
    }
}

#[test]
fn last_packet_of_several_is_never_empty() {
    let mut p = Pair::with(Service::Rc, params(256), params(256), 100);
    p.b.host.post_recv(1, THERE, 4096);
    p.inject(true, &frame(Operation::SendFirst, 100, &[0; 256]));
    p.inject(true, &frame(Operation::SendLast, 101, &[]));
    assert_eq!(p.b.qp.state(), QpState::Err);
    assert_eq!(p.b.host.unpublished[0].status, WcStatus::RemInvReqErr);
}

#[test]
fn zero_length_requests_ask_nothing_of_the_key() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.a.post(wr(1, SendOp::Write { va: 1, rkey: 0xdead }, BASE, 0));
    p.a.post(wr(2, SendOp::Read { va: 1, rkey: 0xdead }, BASE, 0));
    p.run();
    assert!(p.a.send_ok() && p.a.host.sends.len() == 2);
}

#[test]
fn packets_with_another_partition_key_are_dropped() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), 100);
    for pkey in [0x7ffe, 0xfffe, 0x0000] {
        let mut f = frame(Operation::SendOnly, 100, &[1]);
        f.headers.bth.pkey = pkey;
        p.inject(true, &f);
    }
    assert_eq!(p.b.qp.counters().pkey_violations, 3);
    assert_eq!(answers(&mut p), []);
    let mut limited = frame(Operation::WriteOnly, 100, &[]);
    limited.headers.bth.pkey = 0x7fff;
    limited.headers.reth = Some(Reth { va: 0, rkey: 0, dma_len: 0 });
    p.inject(true, &limited);
    assert_eq!(answers(&mut p), [(Operation::Acknowledge, 100)], "a limited member may talk to a full one");
}
