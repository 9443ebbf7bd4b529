//! The short ways between two processes of a host: which requests may take them, and what they do beside moving bytes.

use super::messages::{
    INCOMING, bytes, check_many, connect, connected, fill, of_memory, pattern, post, receive_many, reconnect,
    register_read_only, request, send_many, takes_at_once,
};
use super::namespace::in_namespace;
use super::peer::MEMORY;
use super::side::{Side, open, register};
use ferroce_mem::{MrAccess, MrInit, Pd};
use ferroce_parts::{Ah, QpAttr, mask};
use ferroce_proto::{Data, SendOp, SendWr};
use ferroce_queues::{CntrValue, CompCntr, CompCntrType, CountedOp, Cq, Srq, SrqAttr};
use ferroce_tests::wait::eventually;
use ferroce_types::{Access, QpState, RecvWqe, Sge, WcStatus};
use ferroce_wire::Service;
use std::sync::Arc;

/// Where in its memory a side receives.
const HERE: usize = 4096;

/// A request takes the short way: a SEND at once, a WRITE when the peer doesn't watch for records.
fn takes_short_way(side: &Side, wr: &SendWr<Arc<Ah>>) {
    eventually("the request takes the short way", || {
        let taken = post(side, wr.clone());
        assert_eq!(side.wait().status, WcStatus::Success, "{:?}", wr.op);
        assert!(taken || wr.op != SendOp::Send);
        taken
    });
}

/// Receives into elements of all kinds, of messages that come alone and of such that come together.
fn kinds_of_receives() {
    const LEN: usize = 40;
    let (mut remote, side) = connected();
    // Elements, and where the message's bytes come to.
    let end = MEMORY - 60;
    let kinds = [
        (vec![side.sge(HERE, LEN)], vec![(HERE, LEN)]),
        (vec![side.sge(HERE, 10), side.sge(HERE + 20, 30)], vec![(HERE, 10), (HERE + 20, 30)]),
        (vec![side.sge(HERE, 0), side.sge(HERE, 100)], vec![(HERE, LEN)]),
        // The region ends before the element, and after the message.
        (vec![side.sge(end, 100)], vec![(end, LEN)]),
        (
            vec![side.sge(HERE, 39), side.sge(HERE + 50, 1), side.sge(HERE + 60, 9)],
            vec![(HERE, 39), (HERE + 50, 1)],
        ),
    ];
    for (seed, (sges, places)) in kinds.iter().enumerate() {
        for count in [1, 3] {
            fill(&side, 0, std::iter::repeat_n(0xee, MEMORY));
            for n in 0..count {
                side.qp.post_recv(RecvWqe { wr_id: n, sges: sges.iter().copied().collect() }).unwrap();
            }
            assert_eq!(remote.member.ask(&format!("send {seed} {count} {LEN}")), count.to_string());
            for n in 0..count {
                let wc = side.wait();
                assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (n, WcStatus::Success, LEN));
            }
            let mut at = 0;
            let mut expected = vec![0xee; MEMORY];
            for &(place, len) in places {
                for byte in &mut expected[place..place + len] {
                    *byte = pattern(seed, count as usize - 1, at);
                    at += 1;
                }
            }
            assert!(bytes(&side, 0, MEMORY) == expected, "{sges:?}, {count} messages");
            assert_eq!(remote.member.ask(&format!("sent {count}")), "ok");
        }
    }
    side.close();
}

#[test]
fn a_receive_takes_a_message_whatever_its_elements() {
    in_namespace("short_ways::a_receive_takes_a_message_whatever_its_elements", kinds_of_receives);
}

/// The keys of a shared receive queue's elements are of the queue's own domain.
fn shared_receives() {
    let context = open();
    let [pd, other] = [(); 2].map(|()| Pd::alloc(&context).unwrap());
    let srq = Srq::create(&other, SrqAttr { max_wr: 32, max_sge: 1, limit: 0 }, 0).unwrap();
    let cq = Cq::create(&context, 64, None, 0).unwrap();
    let side = Side::of(&pd, Service::Rc, MEMORY, cq, Some(srq.clone()));
    let init = MrInit { addr: side.addr(), length: MEMORY as u64, iova: side.addr(), access: MrAccess::ALL };
    let region = register(&other, init).unwrap();
    let receive = |wr_id, lkey| {
        let sge = Sge { lkey, ..side.sge(INCOMING + 2048 * wr_id as usize, 16) };
        srq.post(RecvWqe { wr_id, sges: [sge].into_iter().collect() }).unwrap();
    };
    let mut remote = super::peer::Remote::start();
    assert_eq!(remote.member.ask(&format!("reconnect {}", side.qp.qpn())), "ok");
    side.connect(remote.qpn);
    fill(&side, 0, std::iter::repeat_n(0xee, MEMORY));
    assert_eq!(remote.member.ask("receive 1 8"), "ok");
    post(&side, request(7, SendOp::Send, of_memory(side.sge(0, 8))));
    assert_eq!(side.wait().status, WcStatus::Success);
    assert_eq!(remote.member.ask("received 1"), "ok");
    for (seed, count) in [(0, 1), (1, 1), (2, 4), (3, 1)] {
        fill(&side, 0, std::iter::repeat_n(0xee, MEMORY));
        (0..count).for_each(|n| receive(n, region.key()));
        let taken = remote.member.ask(&format!("send {seed} {count} 16"));
        assert!(seed == 0 || taken == count.to_string(), "{taken} SENDs took the short way");
        let taken: Vec<_> = (0..count).map(|_| side.wait()).collect();
        check_many(&side, seed, 16, &taken);
        assert_eq!(remote.member.ask(&format!("sent {count}")), "ok");
    }
    // A key of the queue pair's domain is good for none.
    receive(0, side.mr.key());
    assert_eq!(remote.member.ask("send 4 1 16"), "1");
    assert_eq!(side.wait().status, WcStatus::LocProtErr);
    assert_eq!(remote.member.ask("statuses 1"), "RemOpErr");
    let Side { qp, mr, cq, .. } = &side;
    qp.destroy().unwrap();
    srq.destroy().unwrap();
    mr.deregister().unwrap();
    region.deregister().unwrap();
    cq.destroy().unwrap();
}

#[test]
fn messages_come_into_a_shared_queue_of_another_domain() {
    in_namespace("short_ways::messages_come_into_a_shared_queue_of_another_domain", shared_receives);
}

/// Memory that can't be written to is good for what is sent, and for nothing that comes.
fn read_only_memory() {
    let (mut remote, side) = connected();
    let read_only = register_read_only(&side);
    let source = Sge { lkey: read_only.key(), ..side.sge(0, 8) };
    let (va, rkey) = (remote.addr + INCOMING as u64, remote.rkey);
    assert_eq!(remote.member.ask("receive 1 8"), "ok");
    for op in [SendOp::Send, SendOp::Write { va, rkey }] {
        takes_short_way(&side, &request(1, op, of_memory(source)));
    }
    assert_eq!(remote.member.ask("received 1"), "ok");
    for op in [SendOp::Read { va, rkey }, SendOp::FetchAdd { va, rkey, add: 1 }] {
        fill(&side, 0, std::iter::repeat_n(0x11, 8));
        assert_eq!(remote.member.ask("clear"), "ok");
        post(&side, request(2, op, of_memory(source)));
        assert_eq!(side.wait().status, WcStatus::LocProtErr, "{op:?}");
        assert_eq!(bytes(&side, 0, 8), [0x11; 8], "{op:?}");
        reconnect(&mut remote, &side);
    }
    read_only.deregister().unwrap();
    side.close();
}

#[test]
fn memory_that_cannot_be_written_to_is_sent_and_receives_nothing() {
    const NAME: &str = "short_ways::memory_that_cannot_be_written_to_is_sent_and_receives_nothing";
    in_namespace(NAME, read_only_memory);
}

/// What the short ways leave to the general one.
fn limits() {
    let (mut remote, side) = connected();
    let (va, rkey) = (remote.addr, remote.rkey);
    let inline = |len: usize| Data::Inline(std::iter::repeat_n(7, len).collect());
    let write = SendOp::Write { va, rkey };
    for (len, fits) in [(256, true), (257, false)] {
        let send = request(1, SendOp::Send, inline(len));
        let write = request(2, write, inline(len));
        assert_eq!(remote.member.ask("receive 1 256"), "ok");
        assert_eq!(takes_at_once(&side, &send), fits, "a SEND of {len} bytes");
        if fits {
            assert_eq!(side.wait().status, WcStatus::Success);
        }
        if fits {
            takes_short_way(&side, &write);
        }
        assert!(fits || !takes_at_once(&side, &write), "a WRITE of {len} bytes");
        for wr in [send, write].into_iter().filter(|_| !fits) {
            side.qp.post_send(wr.request()).unwrap_err();
        }
    }
    assert_eq!(remote.member.ask("received 1"), "ok");
    for (len, fits) in [(0, false), (1, true), (4096, true), (4097, false)] {
        let write = request(3, write, of_memory(side.sge(0, len)));
        if fits {
            takes_short_way(&side, &write);
        }
        assert!(fits || !takes_at_once(&side, &write), "{len} bytes");
    }
    side.close();
}

#[test]
fn requests_that_are_too_long_are_left_to_the_general_way() {
    in_namespace("short_ways::requests_that_are_too_long_are_left_to_the_general_way", limits);
}

/// A queue pair that signals all: also what doesn't ask for it. Nothing takes a short way before the peer has sent something.
fn all_are_signaled() {
    let (mut remote, side) = connected();
    let (va, rkey) = (remote.addr, remote.rkey);
    let ops = [
        SendOp::Send,
        SendOp::Write { va, rkey },
        SendOp::Read { va, rkey },
        SendOp::FetchAdd { va, rkey, add: 1 },
        SendOp::CompareSwap { va, rkey, compare: 1, swap: 2 },
    ];
    for is_first in [false, true] {
        for (n, op) in ops.into_iter().enumerate() {
            if is_first {
                assert_eq!(remote.member.ask(&format!("reconnect {}", side.qp.qpn())), "ok");
                side.reset();
                side.connect(remote.qpn);
            }
            assert_eq!(remote.member.ask("receive 1 8"), "ok");
            let request = request(n as u64, op, of_memory(side.sge(0, 8)));
            let taken = post(&side, SendWr { signaled: false, ..request });
            assert!(!(taken && is_first), "{op:?} took the short way to a peer that may not be there");
            let wc = side.wait();
            assert_eq!((wc.wr_id, wc.status), (n as u64, WcStatus::Success), "{op:?}");
            if op == SendOp::Send {
                assert_eq!(remote.member.ask("received 1"), "ok");
            }
        }
    }
    side.close();
}

#[test]
fn a_queue_pair_that_signals_all_signals_what_takes_a_short_way() {
    const NAME: &str = "short_ways::a_queue_pair_that_signals_all_signals_what_takes_a_short_way";
    in_namespace(NAME, all_are_signaled);
}

/// Completion counters count what takes a short way.
fn counted() {
    let side = Side::new(&open(), Service::Rc, MEMORY);
    let access = Access { remote_write: true, remote_read: true, remote_atomic: true, ..Access::default() };
    let attr = QpAttr { state: QpState::Init, port_num: 1, access, ..QpAttr::default() };
    let bits = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
    side.qp.modify(&attr, bits).unwrap();
    let ops = [CountedOp::Send, CountedOp::Recv, CountedOp::Read, CountedOp::Write];
    let counters = ops.map(|op| {
        let counter = CompCntr::create(CompCntrType::Bytes).unwrap();
        side.qp.attach_comp_cntr(&counter, op.bit()).unwrap();
        counter
    });
    let mut remote = connect(&side);
    let (va, rkey) = (remote.addr, remote.rkey);
    let values = || counters.each_ref().map(|counter| counter.value(CntrValue::Completed));
    let before = values();
    // Alone, and together.
    for (seed, count) in [(1, 1), (2, 4)] {
        assert_eq!(remote.member.ask(&format!("receive {count} 16")), "ok");
        assert_eq!(send_many(&side, seed, count, 16), count);
        assert_eq!(remote.member.ask(&format!("check {seed} {count} 16")), "ok");
        (0..count).for_each(|_| assert_eq!(side.wait().status, WcStatus::Success));
        receive_many(&side, count, 32);
        assert_eq!(remote.member.ask(&format!("send {seed} {count} 32")), count.to_string());
        (0..count).for_each(|_| assert_eq!(side.wait().status, WcStatus::Success));
        assert_eq!(remote.member.ask(&format!("sent {count}")), "ok");
    }
    for _ in 0..3 {
        for op in [SendOp::Read { va, rkey }, SendOp::Write { va, rkey }] {
            let len = if matches!(op, SendOp::Read { .. }) { 100 } else { 1000 };
            post(&side, request(3, op, of_memory(side.sge(0, len))));
            assert_eq!(side.wait().status, WcStatus::Success);
        }
    }
    let after = values();
    let counted: Vec<_> = before.iter().zip(after).map(|(before, after)| after - before).collect();
    assert_eq!(counted, [5 * 16, 5 * 32, 300, 3000]);
    side.close();
}

#[test]
fn completion_counters_count_what_takes_a_short_way() {
    in_namespace("short_ways::completion_counters_count_what_takes_a_short_way", counted);
}

/// A list of requests, as the C interface posts it: those that take a short way first, with one bell.
fn lists() {
    let (mut remote, side) = connected();
    let (va, rkey) = (remote.addr, remote.rkey);
    let of = |n: u64, op| request(n, op, of_memory(side.sge(8 * n as usize, 8)));
    for _ in 0..20 {
        assert_eq!(remote.member.ask("receive 2 8"), "ok");
        let posted = side.qp.post_list(|poster| {
            let ops = [SendOp::Send, SendOp::FetchAdd { va, rkey, add: 1 }, SendOp::Send];
            for (op, n) in ops.into_iter().zip(0..) {
                assert!(poster.send_at_once(&mut of(n, op).request()));
            }
            ferroce_types::Result::Ok(())
        });
        posted.unwrap();
        for n in 0..3 {
            let wc = side.wait();
            assert_eq!((wc.wr_id, wc.status), (n, WcStatus::Success));
        }
        assert_eq!(remote.member.ask("received 2"), "ok");
    }
    // As many at most as the send queue takes are carried out while others wait.
    let write = of(1, SendOp::Write { va, rkey });
    eventually("a send queue's length of WRITEs takes the short way", || {
        let mut reached = 0;
        let reach = |poster: &mut ferroce_nic::Poster<'_>| {
            while reached < 100 && poster.send_at_once(&mut write.request()) {
                reached += 1;
            }
            ferroce_types::Result::Ok(())
        };
        side.qp.post_list(reach).unwrap();
        (0..reached).for_each(|_| assert_eq!(side.wait().status, WcStatus::Success));
        assert!(reached <= side.qp.cap().max_send_wr);
        reached == side.qp.cap().max_send_wr
    });
    side.close();
}

#[test]
fn lists_of_requests_take_the_short_ways_in_order() {
    in_namespace("short_ways::lists_of_requests_take_the_short_ways_in_order", lists);
}

/// A completion queue of four entries.
fn full_queue() {
    let context = open();
    let cq = Cq::create(&context, 4, None, 0).unwrap();
    let room = cq.capacity() as u64;
    let side = Side::with_cq(&context, Service::Rc, MEMORY, cq);
    let mut remote = connect(&side);
    let (va, rkey) = (remote.addr, remote.rkey);
    let of = |n, op| request(n, op, of_memory(side.sge(0, 8)));
    // What would end at once isn't taken.
    for n in 0..room {
        post(&side, of(n, SendOp::Write { va, rkey }));
    }
    let [write, read, add] =
        [SendOp::Write { va, rkey }, SendOp::Read { va, rkey }, SendOp::FetchAdd { va, rkey, add: 1 }];
    for op in [write, read, add] {
        assert!(!takes_at_once(&side, &of(9, op)));
        side.post(9, op, side.sge(0, 8), None).unwrap_err();
    }
    (0..room).for_each(|n| assert_eq!(side.wait().wr_id, n));
    // SENDs end when the peer has received them: the completion that has no room ends the queue pair.
    assert_eq!(remote.member.ask(&format!("receive {} 8", room + 1)), "ok");
    (0..=room).for_each(|n| assert!(post(&side, of(n, SendOp::Send))));
    assert_eq!(remote.member.ask(&format!("received {}", room + 1)), "ok");
    eventually("the queue pair has failed", || side.qp.query().unwrap().state == QpState::Err);
    side.qp.destroy().unwrap();
}

#[test]
fn a_full_completion_queue_takes_no_request_or_ends_the_queue_pair() {
    const NAME: &str = "short_ways::a_full_completion_queue_takes_no_request_or_ends_the_queue_pair";
    in_namespace(NAME, full_queue);
}

/// More messages at once than a completion queue of four entries has room for.
fn full_queue_of_the_receiver() {
    const MORE: u64 = 10;
    let context = open();
    let cq = Cq::create(&context, 4, None, 0).unwrap();
    let room = cq.capacity() as u64;
    let side = Side::with_cq(&context, Service::Rc, MEMORY, cq);
    let mut remote = connect(&side);
    let received = || side.qp.counters().messages_received;
    let before = received();
    receive_many(&side, (room + MORE) as usize, 8);
    remote.member.ask(&format!("send 2 {} 8", room + MORE));
    eventually("the queue pair has failed", || side.qp.query().unwrap().state == QpState::Err);
    assert_eq!(received() - before, room + 1, "none is executed after the completion that has no room");
    side.qp.destroy().unwrap();
}

#[test]
fn a_message_whose_completion_has_no_room_is_the_last() {
    const NAME: &str = "short_ways::a_message_whose_completion_has_no_room_is_the_last";
    in_namespace(NAME, full_queue_of_the_receiver);
}
