//! Threads that share a device, a QP and a CQ, and make and end objects of their own meanwhile.

use crate::namespace::in_namespace;
use crate::pair::{connected, over_sockets};
use crate::side::{Side, open};
use ferroce_nic::{Context, Poll as _};
use ferroce_parts::{QpAttr, mask};
use ferroce_proto::SendOp;
use ferroce_types::{Completion, QpState, WcStatus};
use ferroce_wire::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const THREADS: usize = 8;
const DURATION: Duration = Duration::from_millis(1500);
/// A thread that waits longer for its completion has lost it.
const LIMIT: Duration = Duration::from_secs(20);
const SIZES: [usize; 4] = [1, 300, 5000, 70_000];

/// Posts on a QP that all threads post on, and polls the CQ that all of them poll: the thread that finds a completion marks it as
/// done.
fn add_one(near: &Side, far: &Side, thread: usize, done: &[AtomicBool; THREADS]) {
    done[thread].store(false, Ordering::SeqCst);
    let op = SendOp::FetchAdd { va: far.addr(), rkey: far.mr.key(), add: 1 };
    near.send(thread as u64, op, near.sge(8 * thread, 8), None);
    let start = Instant::now();
    while !done[thread].load(Ordering::SeqCst) {
        let mark = |wc: &Completion| {
            assert_eq!(wc.status, WcStatus::Success);
            done[wc.wr_id as usize].store(true, Ordering::SeqCst);
        };
        near.cq.poll(2, mark).unwrap();
        assert!(start.elapsed() < LIMIT, "the completion of thread {thread} is lost");
    }
}

/// A pair of QPs from their creation to their end; the last messages are under way when they end.
fn one_life(context: &Arc<Context>, round: usize) {
    let service = [Service::Rc, Service::Uc][round % 2];
    let (mut a, b) = connected(context, service, 80_000);
    for (i, len) in SIZES.into_iter().enumerate() {
        a.memory[..len].fill((round + i) as u8);
        b.recv(1, b.sge(0, 80_000));
        a.send(2, SendOp::Send, a.sge(0, len), None);
        assert_eq!(a.wait().status, WcStatus::Success);
        // UC gives no second chance to what a full socket has dropped.
        if service == Service::Rc {
            assert_eq!(b.wait().byte_len, len as u32);
            assert!(b.memory[..len].iter().all(|&byte| byte == (round + i) as u8));
        }
    }
    for _ in 0..3 {
        b.recv(1, b.sge(0, 80_000));
        a.send(2, SendOp::Send, a.sge(0, 70_000), None);
    }
    let (first, second) = if round.is_multiple_of(3) { (a, b) } else { (b, a) };
    first.close();
    second.close();
}

fn threads_share_and_make_and_end_objects() {
    let context = open();
    let (near, far) = connected(&context, Service::Rc, 4096);
    let done = [const { AtomicBool::new(false) }; THREADS];
    let end = Instant::now() + DURATION;
    let rounds: usize = std::thread::scope(|scope| {
        let threads = std::array::from_fn::<_, THREADS, _>(|thread| {
            let (context, near, far, done) = (&context, &near, &far, &done);
            scope.spawn(move || {
                let mut rounds = 0;
                while Instant::now() < end {
                    add_one(near, far, thread, done);
                    one_life(context, thread + rounds);
                    rounds += 1;
                }
                rounds
            })
        });
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert!(rounds >= THREADS);
    assert_eq!(far.memory[..8], (rounds as u64).to_ne_bytes(), "each addition counts once");
}

#[test]
fn objects_of_many_threads_keep_their_promises_within_a_process() {
    in_namespace("stress::objects_of_many_threads_keep_their_promises_within_a_process", || {
        threads_share_and_make_and_end_objects();
    });
}

#[test]
fn objects_of_many_threads_keep_their_promises_over_sockets() {
    in_namespace("stress::objects_of_many_threads_keep_their_promises_over_sockets", || {
        over_sockets();
        threads_share_and_make_and_end_objects();
    });
}

/// A thread that has a queue pair locked now and then leaves its packets to the run queue.
fn acknowledged_requests_succeed() {
    let (a, b) = connected(&open(), Service::Rc, 64);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                _ = a.qp.query();
            }
        });
        for round in 0..1000 {
            b.recv(1, b.sge(0, 64));
            a.send(2, SendOp::Send, a.sge(0, 8), None);
            assert_eq!(b.wait().status, WcStatus::Success);
            let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
            a.qp.modify(&attr, mask::STATE).unwrap();
            let status = a.wait().status;
            stop.store(status != WcStatus::Success, Ordering::Relaxed);
            assert_eq!(status, WcStatus::Success, "round {round}");
            a.reset();
            b.reset();
            a.connect(b.qp.qpn());
            b.connect(a.qp.qpn());
        }
        stop.store(true, Ordering::Relaxed);
    });
    a.close();
    b.close();
}

#[test]
fn requests_that_the_peer_has_acknowledged_are_not_flushed() {
    in_namespace(
        "stress::requests_that_the_peer_has_acknowledged_are_not_flushed",
        acknowledged_requests_succeed,
    );
}
