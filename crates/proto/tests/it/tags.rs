//! What a tag-matching SRQ makes of messages: headers, the rendezvous, and what a lossy network doesn't change.

use crate::host::{ALL, BASE, Host, pattern};
use crate::net::{CLEAN, Faults, Pair, params, wr};
use core::time::Duration;
use ferroce_proto::{Data, QpEvent, QpParams, SendOp, TagInfo};
use ferroce_types::{Completion, QpState, RecvWqe, Sge, TagFlags, WcOpcode, WcStatus};
use ferroce_wire::{Service, TagOperation, Tmh};
use std::panic::{AssertUnwindSafe, catch_unwind};

const THERE: u64 = BASE + (1 << 20);
const UNEXPECTED: u64 = BASE + (2 << 20);
const FINS: u64 = BASE + (3 << 20);
const NOTHING: TagFlags = TagFlags { sync_required: false, matched: false, data_valid: false };
const MATCHED: TagFlags = TagFlags { matched: true, ..NOTHING };
const VALID: TagFlags = TagFlags { data_valid: true, ..NOTHING };
const BOTH: TagFlags = TagFlags { matched: true, data_valid: true, ..NOTHING };

fn pair(mtu: u32) -> Pair {
    let b = QpParams { srq: true, tags: true, ..params(mtu) };
    Pair::with(Service::Rc, params(mtu), b, 0xff_fff0)
}

fn receive(wr_id: u64, addr: u64, length: u32) -> RecvWqe {
    RecvWqe { wr_id, sges: [Sge { addr, length, lkey: ALL }].into_iter().collect() }
}

fn header(operation: TagOperation, tag: u64) -> Vec<u8> {
    Tmh { operation, app_ctx: 77, tag }.emit().to_vec()
}

fn rendezvous(tag: u64, va: u64, rkey: u32, len: u32) -> Vec<u8> {
    let mut bytes = header(TagOperation::Rendezvous, tag);
    bytes.extend_from_slice(&va.to_be_bytes());
    bytes.extend_from_slice(&rkey.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

fn eager(tag: u64, len: usize, seed: u8) -> Vec<u8> {
    let mut bytes = header(TagOperation::Eager, tag);
    bytes.extend((0..len).map(|i| pattern(seed, i)));
    bytes
}

fn send(p: &mut Pair, wr_id: u64, bytes: &[u8]) {
    p.a.post(ferroce_proto::SendWr {
        data: Data::Inline(bytes.iter().copied().collect()),
        ..wr(wr_id, SendOp::Send, 0, 0)
    });
}

fn told(host: &Host) -> Vec<(u64, WcStatus, WcOpcode, TagFlags, u32)> {
    let of = |c: &Completion| (c.wr_id, c.status, c.opcode, c.tags(), c.byte_len);
    host.recvs.iter().map(of).collect()
}

const GRID: [Faults; 4] = [
    CLEAN,
    Faults { loss: 100, ..CLEAN },
    Faults { duplicate: 100, reorder: 100, ..CLEAN },
    Faults { loss: 30, duplicate: 50, reorder: 50, delay: Duration::from_micros(500), link: None },
];

#[test]
fn every_message_goes_where_its_tag_says_whatever_the_network_does() {
    use WcStatus::Success;
    for (seed, mtu) in [(1, 256), (2, 1024), (3, u32::MAX)] {
        for faults in GRID {
            let mut p = pair(mtu).seeded(seed, faults);
            p.a.host.fill(BASE, 50_000, 9);
            p.b.host.tags = vec![
                (5, u64::MAX, receive(105, THERE, 4000)),
                (0x60, 0xf0, receive(106, THERE + 10_000, 60_000)),
                (7, u64::MAX, receive(107, THERE + 100_000, 16)),
            ];
            p.b.host.post_recv(1, UNEXPECTED, 5000);
            p.b.host.post_recv(2, UNEXPECTED + 5000, 5000);
            p.a.host.post_recv(50, FINS, 16);
            send(&mut p, 1, &eager(8, 3000, 1));
            send(&mut p, 2, &eager(5, 4000, 2));
            send(&mut p, 3, &rendezvous(0x6a, BASE, ALL, 50_000));
            send(&mut p, 4, &header(TagOperation::NoTag, 7));
            send(&mut p, 5, &eager(7, 0, 0));
            p.run();
            let context = (mtu, faults);
            assert!(p.a.send_ok() && p.a.host.sends.len() == 5, "{context:?}");
            let mut recvs = told(&p.b.host);
            let data = recvs.iter().position(|told| told.3 == VALID).unwrap();
            assert_eq!(recvs.remove(data), (106, Success, WcOpcode::TmRecv, VALID, 50_000), "{context:?}");
            assert!(data > 2, "the data of a rendezvous come after its match");
            assert_eq!(
                recvs,
                [
                    (1, Success, WcOpcode::TmRecv, NOTHING, 3016),
                    (105, Success, WcOpcode::TmRecv, BOTH, 4000),
                    (106, Success, WcOpcode::TmRecv, MATCHED, 0),
                    (2, Success, WcOpcode::TmNoTag, NOTHING, 16),
                    (107, Success, WcOpcode::TmRecv, BOTH, 0),
                ],
                "{context:?}"
            );
            let info = |tag| TagInfo { tag, app_ctx: 77 };
            let mut infos = p.b.host.infos.clone();
            assert_eq!(infos.remove(data), TagInfo::default());
            assert_eq!(infos, [TagInfo::default(), info(5), info(0x6a), TagInfo::default(), info(7)]);
            assert_eq!(p.b.host.unexpected, 1);
            assert_eq!(p.b.host.bytes(UNEXPECTED, 3016), eager(8, 3000, 1));
            assert_eq!(p.b.host.bytes(THERE, 4000), &eager(5, 4000, 2)[16..]);
            assert_eq!(p.b.host.bytes(THERE + 10_000, 50_000), p.a.host.bytes(BASE, 50_000));
            assert_eq!(p.a.host.recv_statuses(), [(50, Success)], "the FIN");
            assert_eq!(p.a.host.bytes(FINS, 16), header(TagOperation::Fin, 0x6a));
            assert!(p.b.host.sends.is_empty(), "the adapter's own requests have no completions");
        }
    }
}

#[test]
fn rendezvous_that_cannot_be_carried_out_says_so_and_sends_no_fin() {
    let mut p = pair(1024);
    p.b.host.tags = vec![(1, 1, receive(9, THERE, 5000))];
    p.a.host.post_recv(50, FINS, 16);
    send(&mut p, 1, &rendezvous(1, BASE, 0xbad, 5000));
    p.run();
    let incomplete = (9, WcStatus::TmRndvIncomplete, WcOpcode::TmRecv, NOTHING, 0);
    assert_eq!(told(&p.b.host), [(9, WcStatus::Success, WcOpcode::TmRecv, MATCHED, 0), incomplete]);
    assert_eq!((p.b.qp.state(), p.a.host.bytes(FINS, 16)), (QpState::Err, &[0; 16][..]));
}

/// The caller flushes a QP in whose work it has caught a panic.
#[test]
fn rendezvous_whose_completion_panics_completes_once() {
    let mut p = pair(1024);
    p.b.host.tags = vec![(1, 1, receive(9, THERE, 5000))];
    send(&mut p, 1, &rendezvous(1, BASE, ALL, 5000));
    p.b.host.panics_once = true;
    assert!(catch_unwind(AssertUnwindSafe(|| p.run())).is_err());
    p.b.qp.set_state(QpState::Err, &mut p.b.host);
    p.b.host.recvs.append(&mut p.b.host.unpublished);
    let done = [(MATCHED, 0), (VALID, 5000)];
    assert_eq!(told(&p.b.host), done.map(|(tags, len)| (9, WcStatus::Success, WcOpcode::TmRecv, tags, len)));
}

#[test]
fn rendezvous_of_nothing_is_over_at_once_and_one_too_long_is_refused() {
    let mut p = pair(1024);
    p.b.host.tags = vec![(1, 1, receive(9, THERE, 10)), (1, 1, receive(10, THERE, 10))];
    p.a.host.post_recv(50, FINS, 16);
    send(&mut p, 1, &rendezvous(1, BASE, ALL, 0));
    p.run();
    assert_eq!(told(&p.b.host)[1], (9, WcStatus::Success, WcOpcode::TmRecv, VALID, 0));
    assert_eq!(p.a.host.recvs.len(), 1);
    send(&mut p, 2, &rendezvous(1, BASE, ALL, 11));
    p.run();
    assert_eq!(told(&p.b.host)[2], (10, WcStatus::LocLenErr, WcOpcode::TmRecv, MATCHED, 0));
    assert_eq!(p.a.host.send_statuses()[1], (2, WcStatus::RemInvReqErr));
}

#[test]
fn rendezvous_before_rts_waits_for_it() {
    let b = QpParams { srq: true, tags: true, ..params(1024) };
    let mut p = Pair::down(Service::Rc, params(1024), b, 5);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        p.a.qp.set_state(state, &mut p.a.host);
        if state != QpState::Rts {
            p.b.qp.set_state(state, &mut p.b.host);
        }
    }
    p.b.host.tags = vec![(1, 1, receive(9, THERE, 5000))];
    p.a.host.post_recv(50, FINS, 16);
    p.a.host.fill(BASE, 5000, 3);
    send(&mut p, 1, &rendezvous(1, BASE, ALL, 5000));
    p.run_for(Duration::from_secs(1));
    assert_eq!(told(&p.b.host), [(9, WcStatus::Success, WcOpcode::TmRecv, MATCHED, 0)]);
    p.b.qp.set_state(QpState::Rts, &mut p.b.host);
    p.run();
    assert_eq!(told(&p.b.host)[1], (9, WcStatus::Success, WcOpcode::TmRecv, VALID, 5000));
    assert_eq!(p.b.host.bytes(THERE, 5000), p.a.host.bytes(BASE, 5000));
}

#[test]
fn message_longer_than_the_tags_buffer_is_refused() {
    let mut p = pair(256);
    p.b.host.tags = vec![(1, 1, receive(9, THERE, 999))];
    send(&mut p, 1, &eager(1, 1000, 1));
    p.run();
    assert_eq!(told(&p.b.host), [(9, WcStatus::LocLenErr, WcOpcode::TmRecv, MATCHED, 0)]);
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RemInvReqErr)]);
}

#[test]
fn what_is_no_message_of_tag_matching_is_refused_and_takes_nothing() {
    let mut long = rendezvous(1, BASE, ALL, 8);
    long.resize(257, 0);
    let unknown = [vec![4], vec![0; 15]].concat();
    for bytes in [&[][..], &[3; 15], &unknown, &rendezvous(1, BASE, ALL, 8)[..31], &long] {
        let mut p = pair(1024);
        p.b.host.tags = vec![(0, 0, receive(9, THERE, 5000))];
        p.b.host.post_recv(1, UNEXPECTED, 5000);
        send(&mut p, 1, bytes);
        p.run();
        assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::RemInvReqErr)], "{bytes:?}");
        assert_eq!((p.b.host.tags.len(), p.b.host.receives.len(), p.b.host.recvs.len()), (1, 1, 0));
        assert_eq!(p.b.host.events[0], QpEvent::RequestError);
    }
}

#[test]
fn longest_request_of_a_rendezvous_is_taken_in_the_smallest_packet() {
    let mut p = pair(256);
    let mut request = rendezvous(1, BASE, ALL, 8);
    request.resize(256, 0xee);
    p.b.host.tags = vec![(1, 1, receive(9, THERE, 8))];
    p.a.host.post_recv(50, FINS, 16);
    send(&mut p, 1, &request);
    p.run();
    assert_eq!(told(&p.b.host)[1].3, VALID);
}

#[test]
fn unexpected_message_without_a_receive_is_counted_once_it_has_one() {
    let mut p = pair(1024);
    send(&mut p, 1, &eager(1, 100, 1));
    p.run_for(Duration::from_millis(20));
    assert_eq!((p.b.host.unexpected, p.a.host.sends.len()), (0, 0));
    p.b.host.post_recv(1, UNEXPECTED, 5000);
    p.run();
    assert_eq!((p.b.host.unexpected, p.a.host.sends.len()), (1, 1));
}

#[test]
fn unexpected_message_that_is_cut_off_does_not_count() {
    let mut p = pair(256);
    p.b.host.post_recv(1, UNEXPECTED, 5000);
    let mut packets = 0;
    p.drop_to_b = Some(Box::new(move |_| {
        packets += 1;
        packets > 2
    }));
    send(&mut p, 1, &eager(1, 3000, 1));
    p.run_for(Duration::from_micros(100));
    assert_eq!(p.b.host.unexpected, 1);
    p.b.qp.set_state(QpState::Err, &mut p.b.host);
    assert_eq!(p.b.host.unexpected, 0);
    assert_eq!(p.b.host.unpublished[0].status, WcStatus::WrFlushErr);
}

#[test]
fn what_the_adapter_asks_for_takes_no_room_in_the_send_queue() {
    let mut p = pair(1024);
    p.b.host.tags = vec![(1, 1, receive(9, THERE, 5000))];
    p.a.host.post_recv(50, FINS, 16);
    p.b.host.room = Some(0);
    send(&mut p, 1, &rendezvous(1, BASE, ALL, 5000));
    p.run_for(Duration::from_micros(100));
    assert_eq!(p.b.qp.sq_len(), 2);
    for i in 0..4096 {
        p.b.post(wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 8));
    }
    assert!(p.b.qp.post_send(&wr(4096, SendOp::Send, BASE, 8).request()).is_err());
    p.b.host.room = None;
    p.run();
    assert_eq!((p.b.host.sends.len(), p.a.host.recvs.len()), (4096, 1));
}
