//! Every class of error: the completion on either side, the state of either QP, the event.

use crate::host::{ALL, BASE, Region, THERE};
use crate::net::{CLEAN, Faults, Pair, params, wr};
use core::time::Duration;
use ferroce_proto::{QpEvent, QpParams, SendOp, SendWr};
use ferroce_types::{Access, QpState, WcStatus};
use ferroce_wire::Service;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A key of the peer with no rights at all, one whose memory is gone, and one that doesn't exist.
const NO_RIGHTS: u32 = 0x200;
const GONE: u32 = 0x300;
const UNKNOWN: u32 = 0x400;
/// One page.
const SMALL: u32 = 0x500;

fn keys(p: &mut Pair) {
    for host in [&mut p.a.host, &mut p.b.host] {
        let none = Region {
            local_write: false,
            remote_read: false,
            remote_write: false,
            remote_atomic: false,
            ..Region::new(BASE, 4 << 20)
        };
        host.regions.insert(NO_RIGHTS, none);
        host.regions.insert(GONE, Region { gone: true, ..Region::new(BASE, 4 << 20) });
        host.regions.insert(SMALL, Region::new(THERE, 4096));
    }
}

fn with_lkey(mut wr: SendWr<u32>, lkey: u32) -> SendWr<u32> {
    if let ferroce_proto::Data::Sges(sges) = &mut wr.data {
        for sge in sges {
            sge.lkey = lkey;
        }
    }
    wr
}

/// What a failing request leads to. The failing one has number 2, a good one before it 1, one behind it 3.
struct Case {
    name: &'static str,
    request: SendWr<u32>,
    /// The receives at the peer, of this size and key.
    receive: Option<(u32, u32)>,
    requester: WcStatus,
    /// How the peer's receive ends, if the request uses one.
    responder: Option<WcStatus>,
    peer_state: QpState,
    event: Option<QpEvent>,
}

fn cases() -> Vec<Case> {
    use QpState::{Err, Rts};
    use WcStatus as S;
    let case = |name, request, requester, event: Option<QpEvent>| Case {
        name,
        request,
        receive: None,
        requester,
        responder: None,
        peer_state: if event.is_none() { Rts } else { Err },
        event,
    };
    let access = Some(QpEvent::AccessError);
    let invalid = Some(QpEvent::RequestError);
    let write = |rkey, va, len| wr(2, SendOp::Write { va, rkey }, BASE, len);
    let read = |rkey, va, len| wr(2, SendOp::Read { va, rkey }, BASE, len);
    let add = |rkey, va| wr(2, SendOp::FetchAdd { va, rkey, add: 1 }, BASE, 8);
    let swap = |rkey, va| wr(2, SendOp::CompareSwap { va, rkey, compare: 1, swap: 1 }, BASE, 8);
    let write_imm =
        |rkey, va, len| wr(2, SendOp::WriteWithImmediate { va, rkey, immediate: [0; 4] }, BASE, len);
    let send = |len| wr(2, SendOp::Send, BASE, len);
    vec![
        case("write with an unknown rkey", write(UNKNOWN, THERE, 5000), S::RemAccessErr, access),
        case("write without the right", write(NO_RIGHTS, THERE, 5000), S::RemAccessErr, access),
        case("write beyond the region", write(SMALL, THERE, 4097), S::RemAccessErr, access),
        case("write before the region", write(SMALL, THERE - 1, 10), S::RemAccessErr, access),
        case("write around the end of addresses", write(SMALL, u64::MAX - 1, 4), S::RemAccessErr, access),
        case("write to memory that is gone", write(GONE, THERE, 5000), S::RemOpErr, access),
        case("read with an unknown rkey", read(UNKNOWN, THERE, 5000), S::RemAccessErr, access),
        case("read without the right", read(NO_RIGHTS, THERE, 5000), S::RemAccessErr, access),
        case("read beyond the region", read(SMALL, THERE, 4097), S::RemAccessErr, access),
        case("read of memory that is gone", read(GONE, THERE, 5000), S::RemOpErr, access),
        case("fetch-add with an unknown rkey", add(UNKNOWN, THERE), S::RemAccessErr, access),
        case("fetch-add beyond the region", add(SMALL, THERE + 4096), S::RemAccessErr, access),
        case("fetch-add on memory that is gone", add(GONE, THERE), S::RemOpErr, access),
        case("misaligned fetch-add", add(ALL, THERE + 4), S::RemInvReqErr, invalid),
        case("misaligned compare-swap", swap(ALL, THERE + 1), S::RemInvReqErr, invalid),
        case("compare-swap without the right", swap(NO_RIGHTS, THERE), S::RemAccessErr, access),
        Case {
            responder: Some(S::LocAccessErr),
            event: None,
            receive: Some((64, ALL)),
            ..case(
                "write with immediate without the right",
                write_imm(NO_RIGHTS, THERE, 10),
                S::RemAccessErr,
                access,
            )
        },
        Case {
            responder: Some(S::LocLenErr),
            peer_state: Err,
            receive: Some((100, ALL)),
            ..case("send longer than the receive", send(101), S::RemInvReqErr, None)
        },
        Case {
            responder: Some(S::LocLenErr),
            peer_state: Err,
            receive: Some((4999, ALL)),
            ..case("long send one byte longer than the receive", send(5000), S::RemInvReqErr, None)
        },
        Case {
            responder: Some(S::LocProtErr),
            peer_state: Err,
            receive: Some((5000, UNKNOWN)),
            ..case("send into a receive with a wrong lkey", send(10), S::RemOpErr, None)
        },
        Case {
            responder: Some(S::LocProtErr),
            peer_state: Err,
            receive: Some((5000, NO_RIGHTS)),
            ..case("send into a receive without local write", send(10), S::RemOpErr, None)
        },
        Case {
            responder: Some(S::RemAccessErr),
            peer_state: Err,
            receive: Some((100, ALL)),
            ..case(
                "send that invalidates an unknown key",
                wr(2, SendOp::SendWithInvalidate { rkey: UNKNOWN }, BASE, 10),
                S::RemAccessErr,
                None,
            )
        },
        case("send from a wrong lkey", with_lkey(write(ALL, THERE, 10), UNKNOWN), S::LocProtErr, None),
        case(
            "long write whose second element is wrong",
            {
                let mut request = write(ALL, THERE, 3000);
                if let ferroce_proto::Data::Sges(sges) = &mut request.data {
                    sges.push(ferroce_types::Sge { addr: BASE, length: 3000, lkey: UNKNOWN });
                }
                request
            },
            S::LocProtErr,
            None,
        ),
        case("read into a wrong lkey", with_lkey(read(ALL, THERE, 5000), UNKNOWN), S::LocProtErr, None),
        case(
            "read into memory without local write",
            with_lkey(read(ALL, THERE, 1), NO_RIGHTS),
            S::LocProtErr,
            None,
        ),
        case("atomic into a wrong lkey", with_lkey(add(ALL, THERE), UNKNOWN), S::LocProtErr, None),
        case(
            "atomic with a short buffer",
            wr(2, SendOp::FetchAdd { va: THERE, rkey: ALL, add: 1 }, BASE, 4),
            S::LocLenErr,
            None,
        ),
        case(
            "local invalidate of an unknown key",
            wr(2, SendOp::LocalInvalidate { rkey: UNKNOWN }, BASE, 0),
            S::MwBindErr,
            None,
        ),
    ]
}

#[test]
fn every_error_class_has_its_status_state_and_event_on_both_sides() {
    for mtu in [256, 1024, u32::MAX] {
        for case in cases() {
            let name = format!("{} (mtu {mtu})", case.name);
            let mut p = Pair::new(Service::Rc, mtu);
            keys(&mut p);
            if let Some((length, lkey)) = case.receive {
                p.b.host.post_recv(10, THERE, length);
                p.b.host.receives[0].sges[0].lkey = lkey;
            }
            p.b.host.post_recv(11, THERE, 64);
            p.a.host.post_recv(12, THERE, 64);
            p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 3000));
            p.a.post(case.request);
            let mut behind = wr(3, SendOp::Write { va: THERE, rkey: ALL }, BASE, 3000);
            behind.signaled = false;
            p.a.post(behind);
            p.run();
            p.transmit();
            assert_eq!(
                p.a.host.send_statuses(),
                [(1, WcStatus::Success), (2, case.requester), (3, WcStatus::WrFlushErr)],
                "{name}"
            );
            assert_eq!(p.a.host.recv_statuses(), [(12, WcStatus::WrFlushErr)], "{name}");
            assert_eq!(p.a.qp.state(), QpState::Err, "{name}");
            assert_eq!(p.b.qp.state(), case.peer_state, "{name}");
            assert_eq!(p.b.host.events, Vec::from_iter(case.event), "{name}");
            let mut receives = Vec::from_iter(case.responder.map(|status| (10, status)));
            if case.peer_state == QpState::Err {
                receives.push((11, WcStatus::WrFlushErr));
            }
            assert_eq!(p.b.host.recv_statuses(), receives, "{name}");
            assert_eq!(p.a.qp.next_timeout(), None, "{name}: no timer is left");
        }
    }
}

#[test]
fn under_loss_an_error_is_the_named_one_or_a_peer_that_answers_no_more() {
    for seed in 0..20 {
        let faults = Faults { loss: 100, duplicate: 50, reorder: 50, ..CLEAN };
        for case in cases() {
            let mut p = Pair::with(Service::Rc, params(256), params(256), 0xff_fff0).seeded(seed, faults);
            keys(&mut p);
            if let Some((length, lkey)) = case.receive {
                p.b.host.post_recv(10, THERE, length);
                p.b.host.receives[0].sges[0].lkey = lkey;
            }
            p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 3000));
            p.a.post(case.request);
            p.a.post(wr(3, SendOp::Write { va: THERE, rkey: ALL }, BASE, 3000));
            p.run();
            let ends = p.a.host.send_statuses();
            let name = format!("{} (seed {seed})", case.name);
            assert_eq!(ends.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 3], "{name}");
            // A NAK that is lost isn't repeated by a QP in the error state; then even what was before it may be
            // unconfirmed.
            let failed = ends.iter().position(|(_, status)| *status != WcStatus::Success).unwrap();
            assert!(failed <= 1, "{name}: {ends:?}");
            let named = failed == 1 && ends[1].1 == case.requester;
            assert!(named || ends[failed].1 == WcStatus::RetryExcErr, "{name}: {ends:?}");
            assert!(ends[failed + 1..].iter().all(|(_, s)| *s == WcStatus::WrFlushErr), "{name}: {ends:?}");
            assert_eq!(p.a.qp.state(), QpState::Err);
        }
    }
}

#[test]
fn rights_of_the_qp_are_asked_before_those_of_the_key() {
    let none = QpParams { access: Access::default(), ..params(1024) };
    for op in [
        SendOp::Write { va: THERE, rkey: ALL },
        SendOp::Read { va: THERE, rkey: ALL },
        SendOp::FetchAdd { va: THERE, rkey: ALL, add: 1 },
        SendOp::CompareSwap { va: THERE, rkey: ALL, compare: 0, swap: 0 },
    ] {
        let mut p = Pair::with(Service::Rc, params(1024), none, 5);
        p.a.post(wr(1, op, BASE, 8));
        p.run();
        assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RemInvReqErr)], "{op:?}");
        assert_eq!(p.b.host.events, [QpEvent::RequestError], "{op:?}");
        assert_eq!(p.b.qp.state(), QpState::Err);
    }
}

#[test]
fn more_reads_than_the_responder_keeps_are_an_invalid_request() {
    let one = QpParams { max_dest_rd_atomic: 1, ..params(1024) };
    let mut p = Pair::with(Service::Rc, params(1024), one, 5);
    for i in 0..3 {
        p.a.post(wr(i, SendOp::Read { va: THERE, rkey: ALL }, BASE, 4096));
    }
    p.run();
    // The first is answered before the NAK.
    assert_eq!(
        p.a.host.send_statuses(),
        [(0, WcStatus::Success), (1, WcStatus::RemInvReqErr), (2, WcStatus::WrFlushErr)]
    );
}

#[test]
fn no_more_reads_are_outstanding_than_max_rd_atomic() {
    for limit in [1, 2, 5] {
        let a = QpParams { max_rd_atomic: limit, ..params(1024) };
        let b = QpParams { max_dest_rd_atomic: limit, ..params(1024) };
        let mut p = Pair::with(Service::Rc, a, b, 5);
        for i in 0..20 {
            p.a.post(wr(2 * i, SendOp::Read { va: THERE, rkey: ALL }, BASE, 4096));
            p.a.post(wr(2 * i + 1, SendOp::FetchAdd { va: THERE, rkey: ALL, add: 1 }, BASE + 8192, 8));
        }
        p.transmit();
        assert_eq!(p.a.host.log.len(), usize::from(limit));
        p.run();
        assert!(p.a.send_ok());
        assert_eq!(p.a.host.sends.len(), 40);
    }
}

#[test]
fn read_on_a_qp_without_rd_atomic_ends_instead_of_waiting_for_ever() {
    let mut p = Pair::with(Service::Rc, QpParams { max_rd_atomic: 0, ..params(1024) }, params(1024), 5);
    p.a.post(wr(1, SendOp::Read { va: THERE, rkey: ALL }, BASE, 8));
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::LocQpOpErr)]);
}

#[test]
fn memory_taken_away_in_the_middle_of_a_read_ends_it_after_what_was_sent() {
    let mut p = Pair::new(Service::Rc, 256);
    p.b.host.regions.insert(0x99, Region::new(BASE, 1 << 20));
    p.a.post(wr(1, SendOp::Write { va: THERE, rkey: ALL }, BASE, 8));
    p.a.post(wr(2, SendOp::Read { va: BASE, rkey: 0x99 }, BASE, 10_000));
    p.b.host.room = Some(5);
    for _ in 0..3 {
        p.step();
    }
    p.b.host.regions.remove(&0x99);
    p.b.host.room = None;
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success), (2, WcStatus::RemAccessErr)]);
    assert_eq!(p.b.host.events, [QpEvent::AccessError]);
    assert_eq!(p.b.qp.state(), QpState::Err);
}

#[test]
fn nak_that_the_fabric_did_not_take_yet_survives_the_programs_own_change_to_error() {
    let mut p = Pair::new(Service::Rc, 1024);
    p.b.host.room = Some(0);
    p.a.post(wr(1, SendOp::Write { va: 0, rkey: UNKNOWN }, BASE, 8));
    p.step();
    assert_eq!(p.b.qp.state(), QpState::Err);
    p.b.qp.set_state(QpState::Err, &mut p.b.host);
    p.b.host.room = None;
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RemAccessErr)]);
}

#[test]
fn error_is_reported_only_after_all_earlier_requests_have_ended() {
    let mut p = Pair::new(Service::Rc, 1024);
    keys(&mut p);
    p.a.post(wr(1, SendOp::Read { va: THERE, rkey: ALL }, BASE, 20_000));
    p.a.post(wr(2, SendOp::Write { va: THERE, rkey: ALL }, BASE, 20_000));
    p.a.post(with_lkey(wr(3, SendOp::Write { va: THERE, rkey: ALL }, BASE, 10), UNKNOWN));
    p.a.post(wr(4, SendOp::Write { va: THERE, rkey: ALL }, BASE, 10));
    p.transmit();
    assert!(p.a.host.sends.is_empty());
    p.run();
    use WcStatus::{LocProtErr, Success, WrFlushErr};
    assert_eq!(p.a.host.send_statuses(), [(1, Success), (2, Success), (3, LocProtErr), (4, WrFlushErr)]);
}

/// Nothing is lost, but answers come when the requester has asked again, by its probes or its local ACK timer.
#[test]
fn a_late_refusal_is_the_named_one() {
    let atomic = |id| wr(id, SendOp::FetchAdd { va: THERE, rkey: ALL, add: 1 }, BASE, 8);
    for (micros, before) in [700, 5000, 150_000, 250_000].into_iter().flat_map(|at| [(at, 0), (at, 3)]) {
        for case in cases() {
            let faults = Faults { delay: Duration::from_micros(micros), ..CLEAN };
            let mut p = Pair::with(Service::Rc, params(1024), params(1024), 0xff_fff0).seeded(1, faults);
            keys(&mut p);
            if let Some((length, lkey)) = case.receive {
                p.b.host.post_recv(10, THERE, length);
                p.b.host.receives[0].sges[0].lkey = lkey;
            }
            for id in 0..before {
                p.a.post(atomic(100 + id));
                p.run_for(Duration::from_micros(micros / 2));
            }
            p.a.post(case.request);
            p.a.post(atomic(200));
            p.run();
            let ends = p.a.host.send_statuses();
            let failed = ends.iter().find(|(_, status)| *status != WcStatus::Success);
            assert_eq!(failed, Some(&(2, case.requester)), "{} after {micros} µs: {ends:?}", case.name);
        }
    }
}

#[test]
fn long_write_with_immediate_is_refused_before_it_takes_a_receive_on_every_fabric() {
    // On a wire its first packet has no immediate.
    for mtu in [1024, u32::MAX] {
        for (len, receive) in [(1024, WcStatus::LocAccessErr), (1025, WcStatus::WrFlushErr)] {
            let side = QpParams { wire_mtu: 1024, ..params(mtu) };
            let mut p = Pair::with(Service::Rc, side, side, 5);
            p.b.host.post_recv(1, THERE, 8);
            let op = SendOp::WriteWithImmediate { va: THERE, rkey: UNKNOWN, immediate: [0; 4] };
            p.a.post(wr(1, op, BASE, len));
            p.run();
            let name = format!("{len} bytes, mtu {mtu}");
            assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RemAccessErr)], "{name}");
            assert_eq!(p.b.host.recv_statuses(), [(1, receive)], "{name}");
            let event = (receive == WcStatus::WrFlushErr).then_some(QpEvent::AccessError);
            assert_eq!(p.b.host.events, Vec::from_iter(event), "{name}");
        }
    }
}

#[test]
fn read_that_fails_while_it_is_answered_is_not_told_by_the_receive_of_a_send_behind_it() {
    let mut p = Pair::new(Service::Rc, 256);
    p.b.host.regions.insert(0x99, Region::new(BASE, 1 << 20));
    p.b.host.post_recv(10, THERE, 20_000);
    p.a.post(wr(1, SendOp::Read { va: BASE, rkey: 0x99 }, BASE, 10_000));
    p.a.post(wr(2, SendOp::Send, BASE, 20_000));
    p.a.host.room = Some(10);
    p.b.host.room = Some(5);
    for _ in 0..3 {
        p.step();
    }
    p.b.host.regions.remove(&0x99);
    p.b.host.room = None;
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(p.b.host.recv_statuses(), [(10, WcStatus::WrFlushErr)]);
    assert_eq!(p.b.host.events, [QpEvent::AccessError]);
}

/// The caller flushes a QP in whose work it has caught a panic.
#[test]
fn request_whose_completion_panics_completes_once() {
    use SendOp::{FetchAdd, Read, Send, Write};
    let (va, rkey) = (THERE, ALL);
    let ops = [Send, Write { va, rkey }, Read { va, rkey }, FetchAdd { va, rkey, add: 1 }];
    for (op, takes_plain) in ops.into_iter().flat_map(|op| [(op, false), (op, true)]) {
        let mut p = Pair::new(Service::Rc, 1024);
        p.a.host.takes_plain = takes_plain;
        p.b.host.post_recv(1, THERE, 64);
        for id in 0..3 {
            p.a.post(wr(id, if id == 0 { op } else { Send }, BASE, 8));
        }
        p.a.host.panics_once = true;
        let injected = catch_unwind(AssertUnwindSafe(|| p.run()));
        assert!(injected.is_err());
        p.a.qp.set_state(QpState::Err, &mut p.a.host);
        let flushed = WcStatus::WrFlushErr;
        assert_eq!(p.a.host.send_statuses(), [(0, WcStatus::Success), (1, flushed), (2, flushed)], "{op:?}");
    }
    // Flushing itself may panic.
    let mut p = Pair::new(Service::Rc, 1024);
    (0..3).for_each(|id| p.a.post(wr(id, Send, BASE, 8)));
    p.a.host.panics_once = true;
    for _ in 0..2 {
        let _ = catch_unwind(AssertUnwindSafe(|| p.a.qp.set_state(QpState::Err, &mut p.a.host)));
    }
    assert_eq!(p.a.host.send_statuses(), [0, 1, 2].map(|id| (id, WcStatus::WrFlushErr)));
}
