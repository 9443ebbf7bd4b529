//! Messages between two processes of a host, posted as the C interface posts them: each operation does what it should, and takes the
//! way that was made for it.

use super::namespace::in_namespace;
use super::peer::{MEMORY, Remote};
use super::side::{Side, open, register};
use ferroce_mem::{Mr, MrAccess, MrInit};
use ferroce_nic::Poll as _;
use ferroce_proto::{Data, SendOp, SendWr};
use ferroce_tests::helper::Helper;
use ferroce_tests::wait::eventually;
use ferroce_types::{Completion, RecvWqe, Sge, WcOpcode, WcStatus};
use ferroce_wire::Service;
use std::sync::Arc;

/// Where in the memory of a side its peer's data come to.
pub const INCOMING: usize = MEMORY / 2;
/// Bytes between two receives' buffers.
pub const STRIDE: usize = 2048;
/// Lengths of messages: around the borders of records and of cache lines.
const LENGTHS: [usize; 12] = [0, 1, 8, 31, 32, 33, 64, 65, 128, 200, 1024, 2048];

/// Posts a request as the C interface does. Whether it was taken by the way between processes of a host.
pub fn post(side: &Side, wr: SendWr<Arc<ferroce_parts::Ah>>) -> bool {
    let taken = takes_at_once(side, &wr);
    if !taken {
        side.qp.post_send(wr.request()).unwrap();
    }
    taken
}

/// Posts a request if it takes the way between processes of a host, and returns whether it does.
pub fn takes_at_once(side: &Side, wr: &SendWr<Arc<ferroce_parts::Ah>>) -> bool {
    let mut taken = false;
    let post = |poster: &mut ferroce_nic::Poster<'_>| {
        taken = poster.send_at_once(&mut wr.request());
        ferroce_types::Result::Ok(())
    };
    side.qp.post_list(post).unwrap();
    taken
}

pub fn request(wr_id: u64, op: SendOp, data: Data) -> SendWr<Arc<ferroce_parts::Ah>> {
    SendWr { wr_id, op, data, signaled: true, solicited: false, fence: false, ud: None, remote_srqn: 0 }
}

pub fn of_memory(sge: Sge) -> Data {
    Data::Sges([sge].into_iter().collect())
}

/// The byte at `at` of message `n` of the kind `seed`.
pub fn pattern(seed: usize, n: usize, at: usize) -> u8 {
    (seed * 89 + n * 31 + at * 7 + at / 256 + 1) as u8
}

/// Fills the bytes from `offset` on.
pub fn fill(side: &Side, offset: usize, bytes: impl Iterator<Item = u8>) {
    for (at, byte) in bytes.enumerate() {
        // SAFETY: bytes of the side's memory, which no reference covers at the moment.
        unsafe { ((side.addr() as *mut u8).add(offset + at)).write_volatile(byte) };
    }
}

/// What lies there.
pub fn bytes(side: &Side, offset: usize, len: usize) -> Vec<u8> {
    // SAFETY: as above.
    (offset..offset + len).map(|at| unsafe { (side.addr() as *const u8).add(at).read_volatile() }).collect()
}

/// Posts `count` SENDs of `len` bytes, the odd ones inline if they fit and with immediate data. How many went the way within a host.
pub fn send_many(side: &Side, seed: usize, count: usize, len: usize) -> usize {
    let post = |n: usize| {
        let contents: Vec<u8> = (0..len).map(|at| pattern(seed, n, at)).collect();
        let odd = n % 2 == 1;
        let data = if odd && len <= 256 {
            Data::Inline(contents.into_iter().collect())
        } else {
            fill(side, n * STRIDE, contents.into_iter());
            of_memory(side.sge(n * STRIDE, len))
        };
        let immediate = [n as u8, seed as u8, len as u8, 7];
        let op = if odd { SendOp::SendWithImmediate { immediate } } else { SendOp::Send };
        SendWr { solicited: n.is_multiple_of(3), ..request(n as u64, op, data) }
    };
    (0..count).filter(|&n| self::post(side, post(n))).count()
}

pub fn receive_many(side: &Side, count: usize, len: usize) {
    for n in 0..count {
        fill(side, INCOMING + n * STRIDE, std::iter::repeat_n(0xee, STRIDE));
        side.recv(n as u64, side.sge(INCOMING + n * STRIDE, len));
    }
}

/// Checks the receives of what `send_many` has sent.
pub fn check_many(side: &Side, seed: usize, len: usize, taken: &[Completion]) {
    for (n, wc) in taken.iter().enumerate() {
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (n as u64, WcStatus::Success, WcOpcode::Recv));
        assert_eq!((wc.byte_len as usize, wc.solicited), (len, n.is_multiple_of(3)));
        let immediate = (n % 2 == 1).then_some([n as u8, seed as u8, len as u8, 7]);
        assert_eq!(wc.immediate(), immediate, "message {n}");
        let expected = (0..len).map(|at| pattern(seed, n, at)).chain(std::iter::repeat_n(0xee, STRIDE - len));
        assert!(
            bytes(side, INCOMING + n * STRIDE, STRIDE).into_iter().eq(expected),
            "message {n} of {len} bytes"
        );
    }
}

/// A region of the side's memory to which nothing can be written.
pub fn register_read_only(side: &Side) -> Arc<Mr> {
    let access = MrAccess { local_write: false, remote_write: false, remote_atomic: false, ..MrAccess::ALL };
    let init = MrInit { addr: side.addr(), length: MEMORY as u64, iova: side.addr(), access };
    register(&side.pd, init).unwrap()
}

/// All completions of `count` requests: one by one, or as many as there are at once.
pub fn take_many(side: &Side, count: usize, one_by_one: bool) -> Vec<Completion> {
    let mut taken = Vec::new();
    while taken.len() < count {
        if one_by_one {
            taken.push(side.wait());
        } else {
            let before = taken.len();
            let left = count - before;
            side.cq.poll(left, |wc| taken.push(*wc)).unwrap();
            if taken.len() == before {
                std::thread::yield_now();
            }
        }
    }
    taken
}

/// A connected pair over which something has gone both ways: each side knows how to reach the other.
pub fn connected() -> (Remote, Side) {
    let side = Side::new(&open(), Service::Rc, MEMORY);
    (connect(&side), side)
}

/// Connects `side` with another process, and has a message go each way.
pub fn connect(side: &Side) -> Remote {
    let mut remote = Remote::start();
    reconnect(&mut remote, side);
    remote
}

/// As `connect`, after RESET.
pub fn reconnect(remote: &mut Remote, side: &Side) {
    assert_eq!(remote.member.ask(&format!("reconnect {}", side.qp.qpn())), "ok");
    side.reset();
    side.connect(remote.qpn);
    receive_many(side, 1, 8);
    assert_eq!(remote.member.ask("receive 1 8"), "ok");
    assert_eq!(send_many(side, 0, 1, 8), 0, "the first message of a connection goes the general way");
    assert_eq!(remote.member.ask("check 0 1 8"), "ok");
    assert_eq!(side.wait().status, WcStatus::Success);
    remote.member.ask("send 0 1 8");
    check_many(side, 0, 8, &[side.wait()]);
    assert_eq!(remote.member.ask("sent 1"), "ok");
}

fn sends_arrive() {
    const COUNT: usize = 20;
    let (mut remote, side) = connected();
    for (seed, len) in LENGTHS.into_iter().enumerate() {
        assert_eq!(remote.member.ask(&format!("receive {COUNT} {len}")), "ok");
        let taken = send_many(&side, seed, COUNT, len);
        assert_eq!(taken, COUNT, "SENDs of {len} bytes took another way");
        assert_eq!(remote.member.ask(&format!("check {seed} {COUNT} {len}")), "ok");
        for (n, wc) in take_many(&side, COUNT, true).iter().enumerate() {
            assert_eq!((wc.wr_id, wc.status, wc.opcode), (n as u64, WcStatus::Success, WcOpcode::Send));
        }
        for one_by_one in [true, false] {
            receive_many(&side, COUNT, len);
            let taken = remote.member.ask(&format!("send {seed} {COUNT} {len}"));
            assert_eq!(taken, COUNT.to_string(), "SENDs of {len} bytes took another way");
            check_many(&side, seed, len, &take_many(&side, COUNT, one_by_one));
            assert_eq!(remote.member.ask(&format!("sent {COUNT}")), "ok");
        }
    }
    let counters = side.qp.counters();
    assert_eq!(counters.requests_ended, (1 + LENGTHS.len() * COUNT) as u64);
    assert_eq!(counters.messages_received, (1 + 2 * LENGTHS.len() * COUNT) as u64);
    assert_eq!(counters.bytes_received, (8 + 2 * COUNT * LENGTHS.iter().sum::<usize>()) as u64);
    side.close();
}

#[test]
fn sends_arrive_in_order_with_all_that_they_carry() {
    in_namespace("messages::sends_arrive_in_order_with_all_that_they_carry", sends_arrive);
}

/// A message that comes alone to a thread that polls for it.
fn ping_pong() {
    let (mut remote, side) = connected();
    for round in 0..200 {
        // Records of one line, and longer ones.
        let len = [0, 8, 40, 41, 64][round % 5];
        receive_many(&side, 1, len);
        remote.member.tell(&format!("send {round} 1 {len}"));
        check_many(&side, round, len, &[side.wait()]);
        assert_eq!(remote.member.answer(), "1");
        assert_eq!(remote.member.ask("sent 1"), "ok");
    }
    side.close();
}

#[test]
fn a_message_that_comes_alone_is_received_by_the_thread_that_polls() {
    in_namespace("messages::a_message_that_comes_alone_is_received_by_the_thread_that_polls", ping_pong);
}

fn sends_without_receives() {
    const COUNT: usize = 9;
    let (mut remote, side) = connected();
    // As many as there are receives leave by the way within a host, and arrive; the rest waits.
    receive_many(&side, 3, 100);
    remote.member.ask(&format!("send 5 {COUNT} 100"));
    let first = take_many(&side, 3, true);
    std::thread::sleep(std::time::Duration::from_millis(20));
    side.cq.poll(1, |wc| panic!("{wc:?}")).unwrap();
    for n in 3..COUNT {
        fill(&side, INCOMING + n * STRIDE, std::iter::repeat_n(0xee, STRIDE));
        side.recv(n as u64, side.sge(INCOMING + n * STRIDE, 100));
    }
    let all: Vec<_> = first.into_iter().chain(take_many(&side, COUNT - 3, false)).collect();
    check_many(&side, 5, 100, &all);
    assert_eq!(remote.member.ask(&format!("sent {COUNT}")), "ok");
    side.close();
}

#[test]
fn sends_without_a_receive_arrive_once_there_is_one() {
    in_namespace("messages::sends_without_a_receive_arrive_once_there_is_one", sends_without_receives);
}

/// A receive that a message doesn't fit into, and one whose key is wrong: those before are received, both sides learn of it, and the
/// rest is flushed.
fn bad_receives() {
    let (mut remote, side) = connected();
    let sge = |offset, len| side.sge(INCOMING + 2 * STRIDE + offset, len);
    let of_key = |lkey, sge| Sge { lkey, ..sge };
    let (unknown, read_only) = (side.mr.key() ^ 0x77, register_read_only(&side));
    let bad = [
        (vec![sge(0, 99)], "LocLenErr", "RemInvReqErr"),
        (vec![sge(0, 49), sge(49, 50)], "LocLenErr", "RemInvReqErr"),
        (vec![of_key(unknown, sge(0, 100))], "LocProtErr", "RemOpErr"),
        (vec![sge(0, 50), of_key(unknown, sge(50, 50))], "LocProtErr", "RemOpErr"),
        (vec![of_key(read_only.key(), sge(0, 100))], "LocProtErr", "RemOpErr"),
        (vec![sge(0, 50), of_key(read_only.key(), sge(50, 50))], "LocProtErr", "RemOpErr"),
    ];
    for (sges, here, there) in bad {
        receive_many(&side, 2, 100);
        side.qp.post_recv(RecvWqe { wr_id: 2, sges: sges.into_iter().collect() }).unwrap();
        side.recv(3, side.sge(INCOMING + 3 * STRIDE, 100));
        remote.member.ask("send 6 4 100");
        check_many(&side, 6, 100, &take_many(&side, 2, false));
        let statuses = take_many(&side, 2, true)
            .iter()
            .map(|wc| (wc.wr_id, format!("{:?}", wc.status)))
            .collect::<Vec<_>>();
        assert_eq!(statuses, [(2, here.to_owned()), (3, "WrFlushErr".to_owned())]);
        assert_eq!(remote.member.ask("statuses 4"), format!("Success Success {there} WrFlushErr"));
        reconnect(&mut remote, &side);
    }
    read_only.deregister().unwrap();
    side.close();
}

#[test]
fn a_bad_receive_fails_both_sides_and_flushes_the_rest() {
    in_namespace("messages::a_bad_receive_fails_both_sides_and_flushes_the_rest", bad_receives);
}

/// WRITEs, READs and atomics: what each does to the peer's memory and to this one's.
fn one_sided() {
    const LENGTHS: [usize; 8] = [1, 7, 8, 64, 100, 1000, 2048, 4096];
    let (mut remote, side) = connected();
    let va = remote.addr + INCOMING as u64;
    let rkey = remote.rkey;
    let (mut written, mut read) = (0, 0);
    for (seed, len) in LENGTHS.into_iter().enumerate() {
        assert_eq!(remote.member.ask("clear"), "ok");
        fill(&side, 0, (0..len).map(|at| pattern(seed, 1, at)));
        written +=
            u32::from(post(&side, request(1, SendOp::Write { va, rkey }, of_memory(side.sge(0, len)))));
        let wc = side.wait();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, WcStatus::Success, WcOpcode::RdmaWrite));
        assert_eq!(remote.member.ask(&format!("written {seed} {len}")), "ok");
        fill(&side, INCOMING, std::iter::repeat_n(0xee, len + 1));
        read +=
            u32::from(post(&side, request(2, SendOp::Read { va, rkey }, of_memory(side.sge(INCOMING, len)))));
        let wc = side.wait();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (2, WcStatus::Success, WcOpcode::RdmaRead));
        assert_eq!(wc.byte_len as usize, len);
        let expected = (0..len).map(|at| pattern(seed, 1, at)).chain([0xee]);
        assert!(bytes(&side, INCOMING, len + 1).into_iter().eq(expected), "a READ of {len} bytes");
    }
    assert!(written as usize >= LENGTHS.len() - 1, "{written} WRITEs went the way within a host");
    assert!(read as usize >= LENGTHS.len() - 1, "{read} READs went the way within a host");
    let mut fetched = 0;
    assert_eq!(remote.member.ask("clear"), "ok");
    let mut expected = u64::from_ne_bytes([0xee; 8]);
    for n in 0..10_u64 {
        let (op, becomes) = match n % 3 {
            0 => (SendOp::FetchAdd { va, rkey, add: n << 33 | 5 }, expected.wrapping_add(n << 33 | 5)),
            1 => (SendOp::CompareSwap { va, rkey, compare: expected, swap: !n }, !n),
            _ => (SendOp::CompareSwap { va, rkey, compare: expected ^ 1, swap: n }, expected),
        };
        fetched += u32::from(post(&side, request(n, op, of_memory(side.sge(16, 8)))));
        let wc = side.wait();
        assert_eq!((wc.wr_id, wc.status), (n, WcStatus::Success));
        assert_eq!(bytes(&side, 16, 8), expected.to_ne_bytes(), "{op:?}");
        expected = becomes;
    }
    assert_eq!(fetched, 10, "atomics took another way");
    side.close();
}

#[test]
fn writes_reads_and_atomics_reach_the_peers_memory() {
    in_namespace("messages::writes_reads_and_atomics_reach_the_peers_memory", one_sided);
}

/// Large WRITEs and READs need nothing of the peer's process, whatever state its queue pair is in.
fn large_one_sided() {
    // Each takes three turns of 1 MiB.
    const LEN: usize = 2_500_000;
    let mut remote = Remote::with_memory(INCOMING + LEN + 1);
    let side = Side::new(&open(), Service::Rc, 2 * LEN);
    let null = Mr::null(&side.pd).unwrap();
    let (va, rkey) = (remote.addr + INCOMING as u64, remote.rkey);
    for command in ["reconnect", "listen"] {
        side.reset();
        assert_eq!(remote.member.ask(&format!("{command} {}", side.qp.qpn())), "ok");
        assert_eq!(remote.member.ask("clear"), "ok");
        side.connect(remote.qpn);
        // The first request is a packet.
        post(&side, request(0, SendOp::Read { va, rkey }, of_memory(side.sge(0, 8))));
        assert_eq!(side.wait().status, WcStatus::Success);
        remote.member.stop();
        fill(&side, 0, (0..LEN).map(|at| pattern(7, 1, at)));
        post(&side, request(1, SendOp::Write { va, rkey }, of_memory(side.sge(0, LEN))));
        post(&side, request(2, SendOp::Read { va, rkey }, of_memory(side.sge(LEN, LEN))));
        for wr_id in [1, 2] {
            let wc = side.wait();
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success), "{command}");
        }
        remote.member.go_on();
        assert!(bytes(&side, LEN, LEN).into_iter().eq((0..LEN).map(|at| pattern(7, 1, at))));
        assert_eq!(remote.member.ask(&format!("written 7 {LEN}")), "ok");
        // A turn that has bytes of a null region only is refused: packets begin again with the first byte.
        let before = side.qp.counters().requests_sent;
        fill(&side, LEN, std::iter::repeat_n(0xee, LEN));
        let half = LEN / 2;
        let nowhere = Sge { addr: 0, length: (LEN - half) as u32, lkey: null.key() };
        let sges = Data::Sges([side.sge(LEN, half), nowhere].into_iter().collect());
        post(&side, request(3, SendOp::Read { va, rkey }, sges));
        let wc = side.wait();
        assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (3, WcStatus::Success, LEN));
        assert!(side.qp.counters().requests_sent > before, "no turn was refused");
        let expected = (0..half).map(|at| pattern(7, 1, at)).chain(std::iter::repeat(0xee));
        assert!(bytes(&side, LEN, LEN).into_iter().eq(expected.take(LEN)));
    }
    null.deregister().unwrap();
    side.close();
}

#[test]
fn large_writes_and_reads_are_carried_out_while_the_peer_is_stopped() {
    in_namespace(
        "messages::large_writes_and_reads_are_carried_out_while_the_peer_is_stopped",
        large_one_sided,
    );
}

/// Posts a large WRITE twice to a peer that is stopped. Both leave: the second doesn't wait until the first has ended.
pub fn write_twice(member: &Helper, side: &Side, write: impl Fn(u64)) {
    member.stop();
    let sent = || side.qp.counters().requests_sent;
    let before = sent();
    for wr_id in 1..=2 {
        write(wr_id);
    }
    eventually("both WRITEs are outstanding, of a packet each", || sent() - before == 2);
    member.go_on();
    for wr_id in 1..=2 {
        let wc = side.wait();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
}

/// A window is in no directory, so a WRITE to it is packets, whatever its length.
fn large_to_a_window() {
    const LEN: usize = 64 * 1024;
    let (mut remote, side) = connected();
    let rkey = remote.member.ask("window").parse().unwrap();
    let va = remote.addr;
    write_twice(&remote.member, &side, |wr_id| {
        post(&side, request(wr_id, SendOp::Write { va, rkey }, of_memory(side.sge(0, LEN))));
    });
    side.close();
}

#[test]
fn large_writes_to_a_window_do_not_wait_for_one_another() {
    in_namespace("messages::large_writes_to_a_window_do_not_wait_for_one_another", large_to_a_window);
}

/// What isn't allowed changes nothing, and fails as it does over a network.
fn refused() {
    let (mut remote, side) = connected();
    let (va, rkey) = (remote.addr + INCOMING as u64, remote.rkey);
    let end = remote.addr + MEMORY as u64;
    let wrong = [
        SendOp::Write { va, rkey: rkey ^ 0x55 },
        SendOp::Write { va: end - 7, rkey },
        SendOp::Write { va: remote.addr - 1, rkey },
        SendOp::Read { va, rkey: rkey ^ 0x55 },
        SendOp::Read { va: end - 7, rkey },
        SendOp::FetchAdd { va, rkey: rkey ^ 0x55, add: 1 },
        SendOp::CompareSwap { va: end, rkey, compare: 0, swap: 1 },
    ];
    for op in wrong {
        assert_eq!(remote.member.ask("clear"), "ok");
        fill(&side, 0, std::iter::repeat_n(0x11, 8));
        post(&side, request(1, op, of_memory(side.sge(0, 8))));
        assert_eq!(side.wait().status, WcStatus::RemAccessErr, "{op:?}");
        assert_eq!(bytes(&side, 0, 8), [0x11; 8], "{op:?}");
        assert_eq!(remote.member.ask("cleared"), "ok", "{op:?}");
        assert_eq!(remote.member.ask(&format!("reconnect {}", side.qp.qpn())), "ok");
        side.reset();
        side.connect(remote.qpn);
        // Each connection begins with a packet: the next request may be carried out without.
        assert_eq!(remote.member.ask("receive 1 8"), "ok");
        post(&side, request(2, SendOp::Send, of_memory(side.sge(0, 8))));
        assert_eq!(side.wait().status, WcStatus::Success);
        assert_eq!(remote.member.ask("sent 1"), "ok");
    }
    assert_eq!(remote.member.ask("clear"), "ok");
    // A key of this side that doesn't cover the buffer.
    let bad = Sge { lkey: side.mr.key() ^ 0x33, ..side.sge(0, 8) };
    for op in [SendOp::Send, SendOp::Write { va, rkey }, SendOp::Read { va, rkey }] {
        post(&side, request(3, op, of_memory(bad)));
        assert_eq!(side.wait().status, WcStatus::LocProtErr, "{op:?}");
        assert_eq!(remote.member.ask(&format!("reconnect {}", side.qp.qpn())), "ok");
        side.reset();
        side.connect(remote.qpn);
    }
    assert_eq!(remote.member.ask("cleared"), "ok");
    side.close();
}

#[test]
fn requests_that_are_not_allowed_change_nothing() {
    in_namespace("messages::requests_that_are_not_allowed_change_nothing", refused);
}

/// A peer that is stopped executes nothing, and when it is killed what was sent to it fails.
fn killed_peer() {
    let (remote, side) = connected();
    remote.member.stop();
    assert_eq!(send_many(&side, 1, 4, 8), 4, "SENDs took another way");
    std::thread::sleep(std::time::Duration::from_millis(50));
    side.cq.poll(1, |wc| panic!("{wc:?}")).unwrap();
    remote.member.kill();
    let statuses: Vec<_> = take_many(&side, 4, true).iter().map(|wc| wc.status).collect();
    let mut expected = [WcStatus::WrFlushErr; 4];
    expected[0] = WcStatus::RetryExcErr;
    assert_eq!(statuses, expected);
    side.close();
}

#[test]
fn sends_to_a_process_that_is_killed_fail() {
    in_namespace("messages::sends_to_a_process_that_is_killed_fail", killed_peer);
}
