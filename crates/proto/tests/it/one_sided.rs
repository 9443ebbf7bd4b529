//! WRITEs and READs that take the short way: carried out at once, and as if they had never been there for what follows.

use crate::host::{ALL, BASE, THERE};
use crate::net::{Pair, READ, Side, WRITE, params, wr};
use ferroce_proto::{Data, QpParams, SendOp, SendWr};
use ferroce_types::{QpState, WcOpcode, WcStatus};
use ferroce_wire::Service;

/// A pair whose first packet was answered.
fn answered(side: QpParams) -> Pair {
    let side = QpParams { lossless: true, ..side };
    let mut p = Pair::with(Service::Rc, side, side, 0xff_fff0);
    assert!(!p.a.qp.may_reach_peer(false), "the peer has answered nothing");
    p.a.post(wr(0, WRITE, BASE, 8));
    p.run();
    p.a.host.sends.clear();
    p
}

/// Carries out a WRITE or READ, of which nothing but its end is looked at here. False: it may not be.
fn reach(side: &mut Side, request: &SendWr<u32>) -> bool {
    let (reads, ..) = request.request().one_sided().unwrap();
    let may = side.qp.may_reach_peer(reads);
    if may {
        side.host.sends.extend(side.qp.reached_peer(&request.request()));
    }
    may
}

#[test]
fn nothing_may_be_under_way() {
    let mut p = answered(params(65_536));
    p.b.host.post_recv(9, THERE, 8);
    for op in [SendOp::Send, WRITE, READ] {
        assert!(p.a.qp.may_reach_peer(false) && p.a.qp.may_reach_peer(true));
        p.a.post(wr(1, op, BASE, 8));
        assert!(!p.a.qp.may_reach_peer(false), "{op:?} waits");
        p.transmit();
        assert!(!p.a.qp.may_reach_peer(false), "{op:?} isn't answered");
        p.run();
    }
    p.a.qp.set_state(QpState::Sqd, &mut p.a.host);
    assert!(!p.a.qp.may_reach_peer(false));
}

#[test]
fn a_peer_without_reads_is_written_to_only() {
    let p = answered(QpParams { max_rd_atomic: 0, ..params(65_536) });
    assert!(p.a.qp.may_reach_peer(false) && !p.a.qp.may_reach_peer(true));
}

#[test]
fn what_follows_is_as_if_nothing_had_been_there() {
    let mut p = answered(params(65_536));
    for i in 1..=100 {
        assert!(reach(&mut p.a, &wr(i, if i % 2 == 0 { READ } else { WRITE }, BASE, 8)));
        p.b.host.post_recv(i, THERE, 8);
        p.a.post(wr(1000 + i, SendOp::Send, BASE, 8));
        p.run();
    }
    assert!(p.a.send_ok() && p.a.host.sends.len() == 200 && p.b.host.recvs.len() == 100);
    // Those of the first packet, too.
    let counters = p.a.qp.counters();
    assert_eq!((counters.requests_ended, counters.bytes_posted), (201, 201 * 8));
    let ends = p.a.host.sends.chunks(2).zip(1..);
    assert!(ends.clone().all(|(ends, i)| ends[0].wr_id == i && ends[1].wr_id == 1000 + i));
    for (ends, i) in ends {
        let (opcode, bytes) = if i % 2 == 0 { (WcOpcode::RdmaRead, 8) } else { (WcOpcode::RdmaWrite, 0) };
        assert_eq!((ends[0].opcode, ends[0].byte_len, ends[0].status), (opcode, bytes, WcStatus::Success));
    }
}

#[test]
fn requests_of_another_form_are_none() {
    let two = |op| {
        let mut request: SendWr<u32> = wr(1, op, BASE, 8);
        if let Data::Sges(sges) = &mut request.data {
            sges.push(sges[0]);
        }
        request
    };
    let is_one_sided = |wr: &SendWr<u32>| wr.request().one_sided().is_some();
    assert!(!is_one_sided(&two(WRITE)) && !is_one_sided(&two(READ)));
    let inline = |op| SendWr { data: Data::Inline([1; 8].as_slice().into()), ..wr(1, op, BASE, 8) };
    assert!(is_one_sided(&inline(WRITE)) && !is_one_sided(&inline(READ)));
    let with_immediate = SendOp::WriteWithImmediate { va: THERE, rkey: ALL, immediate: [0; 4] };
    assert!(!is_one_sided(&wr(1, with_immediate, BASE, 8)));
    let unsignaled = SendWr { signaled: false, ..wr(1, WRITE, BASE, 8) };
    assert!(answered(params(65_536)).a.qp.reached_peer(&unsignaled.request()).is_none());
}

#[test]
fn requests_under_way_that_ask_for_a_completion_are_counted() {
    let mut p = answered(params(65_536));
    p.b.host.post_recv(9, THERE, 8);
    for (i, signaled) in [(1, true), (2, false), (3, true)] {
        p.a.post(SendWr { signaled, ..wr(i, SendOp::Send, BASE, 8) });
    }
    assert_eq!(p.a.qp.signaled_len(), 2);
    p.run_for(core::time::Duration::from_millis(5));
    assert_eq!((p.a.qp.sq_len(), p.a.qp.signaled_len()), (2, 1), "the others have no receive");
    p.a.qp.set_state(QpState::Err, &mut p.a.host);
    p.transmit();
    assert_eq!((p.a.qp.sq_len(), p.a.qp.signaled_len()), (0, 0));
}
