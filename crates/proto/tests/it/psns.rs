//! Sides that don't agree on the first PSN: what was never executed isn't confirmed (IBTA 9.7.5, 9.7.6).

use crate::host::{ALL, BASE, THERE};
use crate::net::{Pair, READ, WRITE, params, wr};
use ferroce_proto::{Data, QpParams, SendOp, SendWr};
use ferroce_types::{Placement, WcStatus};
use ferroce_wire::Service;

/// One request of each kind.
fn requests() -> Vec<SendWr<u32>> {
    let placement = Placement { global: true, persistent: false };
    let flush = SendOp::Flush { va: THERE, rkey: ALL, len: 8, placement, whole_region: false };
    let store = Data::Inline([1; 8].as_slice().into());
    vec![
        wr(1, WRITE, BASE, 8),
        wr(1, WRITE, BASE, 3000),
        wr(1, SendOp::WriteWithImmediate { va: THERE, rkey: ALL, immediate: [1; 4] }, BASE, 8),
        wr(1, SendOp::Send, BASE, 8),
        wr(1, READ, BASE, 8),
        wr(1, READ, BASE, 3000),
        wr(1, SendOp::FetchAdd { va: THERE, rkey: ALL, add: 1 }, BASE, 8),
        wr(1, SendOp::CompareSwap { va: THERE, rkey: ALL, compare: 0, swap: 1 }, BASE, 8),
        SendWr { data: store, ..wr(1, SendOp::AtomicWrite { va: THERE, rkey: ALL }, 0, 0) },
        wr(1, flush, 0, 0),
    ]
}

#[test]
fn request_behind_the_first_psn_or_ahead_of_it_is_never_confirmed() {
    for mtu in [1024, u32::MAX] {
        for (sq_psn, rq_psn) in
            [(100, 101), (100, 5000), (0xff_fffe, 40), (0, 0x70_0000), (100, 99), (3, 0xff_ff00)]
        {
            for request in requests() {
                let name = format!("{:?} sq_psn {sq_psn} rq_psn {rq_psn} mtu {mtu}", request.op);
                let a = QpParams { timeout: 10, retry_cnt: 2, ..params(mtu) };
                let mut p = Pair::down(Service::Rc, a, params(mtu), sq_psn);
                p.b.qp.params_mut().rq_psn = rq_psn;
                p.up();
                p.a.host.fill(BASE, 3000, 7);
                p.b.host.fill(THERE, 8, 1);
                let before = p.b.host.bytes(THERE, 3000).to_vec();
                p.b.host.post_recv(9, THERE, 100);
                p.a.post(request);
                p.run();
                // The middle of a message may be what the peer expects, and no message begins there.
                let midway = rq_psn == sq_psn + 1 && p.a.host.sends[0].status == WcStatus::RemInvReqErr;
                let given_up = p.a.host.send_statuses() == [(1, WcStatus::RetryExcErr)];
                assert!(given_up || midway, "{name}: {:?}", p.a.host.send_statuses());
                assert_eq!(p.b.host.bytes(THERE, 3000), before, "{name}");
                assert!(p.b.host.recvs.iter().all(|c| c.status == WcStatus::WrFlushErr), "{name}");
                assert!(p.b.host.flushed.is_empty(), "{name}");
            }
        }
    }
}

#[test]
fn packet_that_was_executed_is_confirmed_again_from_the_first_one_on() {
    let mut p = Pair::new(Service::Rc, 1024);
    let mut lost = 1;
    p.drop_to_a = Some(Box::new(move |_| core::mem::take(&mut lost) == 1));
    p.a.post(wr(1, WRITE, BASE, 8));
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success)]);
    assert_eq!((p.b.qp.counters().duplicates, p.b.qp.counters().never_executed), (1, 0));
}
