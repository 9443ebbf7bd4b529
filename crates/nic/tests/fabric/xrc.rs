//! A target of one process, and SRQs of another that has the same XRC domain.

use super::host::fill;
use super::member::answer_commands;
use super::messages::write_twice;
use super::namespace::in_namespace;
use super::receiver::{Receiver, accept, connect, send};
use super::side::{Side, open};
use ferroce_nic::{Poll as _, XrcTarget, Xrcd};
use ferroce_parts::{QpAttr, mask};
use ferroce_proto::SendOp;
use ferroce_tests::helper::Helper;
use ferroce_types::{Access, QpState, WcStatus};
use ferroce_wire::Service;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

/// The domain of the file that every process of a test has.
fn domain() -> Arc<Xrcd> {
    let file = File::open("/proc/self/exe").unwrap();
    Xrcd::open(&open(), Some(file.as_raw_fd()), true, false).unwrap()
}

/// The process of a helper.
pub fn receiver() {
    let xrcd = domain();
    let mut receiver: Option<&'static mut Receiver> = None;
    answer_commands(|words| match *words {
        ["make"] => {
            let made = Box::leak(Box::new(Receiver::new(&xrcd, 0)));
            let answer =
                format!("{} {} {}", made.srq.number().unwrap(), made.memory.as_ptr() as u64, made.mr.key());
            receiver = Some(made);
            answer
        }
        ["recv", wr_id] => {
            receiver.as_ref().unwrap().recv(wr_id.parse().unwrap());
            "ok".into()
        }
        ["fill", value] => {
            receiver.as_mut().unwrap().memory.fill(value.parse().unwrap());
            "ok".into()
        }
        ["sum", len] => {
            let memory = &receiver.as_ref().unwrap().memory[..len.parse().unwrap()];
            memory.iter().map(|byte| u64::from(*byte)).sum::<u64>().to_string()
        }
        ["wait"] => {
            let (qpn, wc) = receiver.as_ref().unwrap().wait();
            format!("{} {:?} {} {qpn} {}", wc.wr_id, wc.status, wc.byte_len, wc.src_qp)
        }
        ["poll"] => {
            let cq = &receiver.as_ref().unwrap().cq;
            let polled = cq.poll(1, |_| ()).unwrap();
            polled.to_string()
        }
        ["destroy"] => {
            receiver.as_ref().unwrap().srq.destroy().unwrap();
            "ok".into()
        }
        // The device context that the other's requests were first executed by ends, and another one has the next queue.
        ["make_anew"] => {
            let first = receiver.take().unwrap();
            first.srq.destroy().unwrap();
            xrcd.context().close();
            let made = Box::leak(Box::new(Receiver::new(&domain(), 0)));
            made.recv(1);
            let number = made.srq.number().unwrap().to_string();
            receiver = Some(made);
            number
        }
        _ => "what?".into(),
    });
}

/// Another process's SRQ.
struct There {
    member: Helper,
    srqn: u32,
    va: u64,
    rkey: u32,
}

impl There {
    fn start() -> Self {
        let mut member = Helper::start("receiver");
        let made = member.ask("make");
        let numbers: Vec<u64> = made.split(' ').map(|number| number.parse().unwrap()).collect();
        Self { member, srqn: numbers[0] as u32, va: numbers[1], rkey: numbers[2] as u32 }
    }
}

const LEN: usize = 200_000;

/// An initiator and a target of this process.
fn here() -> (Side, XrcTarget, Arc<Xrcd>) {
    let xrcd = domain();
    let a = Side::new(xrcd.context(), Service::Xrc, LEN);
    let target = XrcTarget::create(&xrcd, 0).unwrap();
    connect(&a, &target);
    (a, target, xrcd)
}

fn every_operation() {
    let mut there = There::start();
    let (mut a, target, xrcd) = here();
    let mine = Receiver::new(&xrcd, 0);
    let (va, rkey) = (there.va, there.rkey);
    for round in 1..6u8 {
        let sum = LEN as u64 * u64::from(round);
        a.memory.fill(round);
        assert_eq!(there.member.ask(&format!("recv {round}")), "ok");
        send(&a, there.srqn, 1, SendOp::Send, LEN);
        let (qpn, initiator) = (target.qp().qpn(), a.qp.qpn());
        assert_eq!(there.member.ask("wait"), format!("{round} Success {LEN} {qpn} {initiator}"));
        assert_eq!(a.wait().status, WcStatus::Success);
        assert_eq!(there.member.ask(&format!("sum {LEN}")), sum.to_string());
        // In between, a message for an SRQ of this process.
        mine.recv(9);
        send(&a, mine.srq.number().unwrap(), 2, SendOp::Send, 100);
        assert_eq!((mine.wait().1.wr_id, a.wait().status), (9, WcStatus::Success));

        assert_eq!(there.member.ask("fill 0"), "ok");
        send(&a, there.srqn, 3, SendOp::Write { va, rkey }, LEN);
        assert_eq!(a.wait().status, WcStatus::Success);
        assert_eq!(there.member.ask(&format!("sum {LEN}")), sum.to_string());
        a.memory.fill(0);
        send(&a, there.srqn, 4, SendOp::Read { va, rkey }, LEN);
        assert_eq!(a.wait().status, WcStatus::Success);
        assert!(a.memory.iter().all(|byte| *byte == round));
        send(&a, there.srqn, 5, SendOp::FetchAdd { va, rkey, add: 1 }, 8);
        assert_eq!(a.wait().status, WcStatus::Success);
        assert_eq!(a.memory[..8], [round; 8]);
        assert_eq!(there.member.ask("sum 8"), (8 * u64::from(round) + 1).to_string());
    }
    // Its empty SRQ is "not ready", not an error: the message comes when a receive does.
    send(&a, there.srqn, 6, SendOp::Send, 64);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(there.member.ask("recv 77"), "ok");
    assert_eq!(a.wait().status, WcStatus::Success);
    assert!(there.member.ask("wait").starts_with("77 Success 64 "));
    // A key that isn't there is refused there, and here.
    send(&a, there.srqn, 7, SendOp::Read { va, rkey: rkey ^ 0x55 }, 64);
    assert_eq!(a.wait().status, WcStatus::RemAccessErr);
    assert_eq!(target.qp().query().unwrap().state, QpState::Err);
    target.close().unwrap();
    mine.close();
    a.close();
}

fn another_context_of_the_other_process() {
    let mut there = There::start();
    let (a, target, _xrcd) = here();
    send(&a, there.srqn, 1, SendOp::Write { va: there.va, rkey: there.rkey }, 64);
    assert_eq!(a.wait().status, WcStatus::Success);
    let srqn = there.member.ask("make_anew").parse().unwrap();
    send(&a, srqn, 2, SendOp::Send, 64);
    assert_eq!(a.wait().status, WcStatus::Success);
    assert!(there.member.ask("wait").starts_with("1 Success 64 "));
    target.close().unwrap();
    a.close();
}

/// The target's process applies the change itself: it doesn't send it to the other process.
fn rights_that_are_taken_back() {
    let there = There::start();
    let (va, rkey) = (there.va, there.rkey);
    for (op, access) in [
        (SendOp::Write { va, rkey }, Access { remote_atomic: true, ..Access::default() }),
        (SendOp::FetchAdd { va, rkey, add: 1 }, Access { remote_write: true, ..Access::default() }),
    ] {
        let (a, target, _xrcd) = here();
        let change = |access| {
            let attr = QpAttr { access, ..target.query().unwrap() };
            target.modify(&attr, mask::ACCESS_FLAGS).unwrap();
        };
        change(Access::default());
        change(Access { remote_write: true, remote_atomic: true, ..Access::default() });
        send(&a, there.srqn, 1, op, 8);
        assert_eq!(a.wait().status, WcStatus::Success);
        change(access);
        send(&a, there.srqn, 2, op, 8);
        assert_eq!(a.wait().status, WcStatus::RemInvReqErr);
        target.close().unwrap();
        a.close();
    }
}

fn the_end_of_the_other_process() {
    let there = There::start();
    let (a, target, _xrcd) = here();
    send(&a, there.srqn, 1, SendOp::Write { va: there.va, rkey: there.rkey }, 64);
    assert_eq!(a.wait().status, WcStatus::Success);
    // A request is under way to a stopped process, which then dies.
    there.member.stop();
    send(&a, there.srqn, 2, SendOp::Write { va: there.va, rkey: there.rkey }, 64);
    std::thread::sleep(Duration::from_millis(20));
    let srqn = there.srqn;
    there.member.kill();
    assert_eq!(a.wait().status, WcStatus::RemOpErr);
    target.close().unwrap();
    a.close();
    // Its SRQ is none any more.
    let (a, target, _xrcd) = here();
    send(&a, srqn, 3, SendOp::Send, 64);
    assert_eq!(a.wait().status, WcStatus::RemInvReqErr);
    target.close().unwrap();
    a.close();
}

fn a_process_that_answers_late() {
    let (there, xrcd) = (There::start(), domain());
    let (a, target) = (Side::new(xrcd.context(), Service::Xrc, LEN), XrcTarget::create(&xrcd, 0).unwrap());
    // The retries of a request that isn't answered take 8 times 0.1 s.
    a.connect_with(target.qp().qpn(), |attr| attr.timeout = 13);
    accept(&a, &target);
    there.member.stop();
    send(&a, there.srqn, 1, SendOp::Write { va: there.va, rkey: there.rkey }, 64);
    std::thread::sleep(Duration::from_secs(2));
    there.member.go_on();
    assert_eq!(a.wait().status, WcStatus::Success);
    target.close().unwrap();
    a.close();
}

/// Any user can fill the queue of the process with the SRQ: its SRQ isn't missing for that.
fn a_process_that_cant_be_asked() {
    let (there, xrcd) = (There::start(), domain());
    let (a, target) = (Side::new(xrcd.context(), Service::Xrc, LEN), XrcTarget::create(&xrcd, 0).unwrap());
    // The retries of a request that isn't answered take 8 times 0.8 s.
    a.connect_with(target.qp().qpn(), |attr| attr.timeout = 16);
    accept(&a, &target);
    there.member.stop();
    fill(&format!("ferroce-2-slot-{}", there.srqn >> 12));
    send(&a, there.srqn, 1, SendOp::Write { va: there.va, rkey: there.rkey }, 64);
    std::thread::sleep(Duration::from_millis(300));
    there.member.go_on();
    assert_eq!(a.wait().status, WcStatus::Success);
    target.close().unwrap();
    a.close();
}

fn another_domain() {
    let there = There::start();
    let xrcd = Xrcd::open(&open(), None, true, false).unwrap();
    let a = Side::new(xrcd.context(), Service::Xrc, LEN);
    let target = XrcTarget::create(&xrcd, 0).unwrap();
    connect(&a, &target);
    send(&a, there.srqn, 1, SendOp::Send, 64);
    assert_eq!(a.wait().status, WcStatus::RemInvReqErr);
    target.close().unwrap();
    a.close();
}

/// The initiator can't carry them out: it doesn't know the protection domain.
fn large_writes() {
    const LEN: usize = 64 * 1024;
    let there = There::start();
    let (va, rkey) = (there.va, there.rkey);
    let (a, target, _xrcd) = here();
    // Before the first answer no request waits to be carried out.
    send(&a, there.srqn, 0, SendOp::Write { va, rkey }, 64);
    assert_eq!(a.wait().status, WcStatus::Success);
    write_twice(&there.member, &a, |wr_id| send(&a, there.srqn, wr_id, SendOp::Write { va, rkey }, LEN));
    target.close().unwrap();
    a.close();
}

/// Many requests are under way: the messages arrive in order, whatever is refused or lost meanwhile.
fn many_at_a_time() {
    const MESSAGES: usize = 20;
    const BYTES: usize = 9000;
    let mut there = There::start();
    let (mut a, target, _xrcd) = here();
    let word = (there.va + (MESSAGES * BYTES) as u64).next_multiple_of(8);
    for round in 0..2u8 {
        // WRITEs of many packets into the other process's memory. The word behind them counts every fourth one.
        for i in 0..MESSAGES {
            a.memory[..BYTES].fill(round + 1);
            let va = there.va + (i * BYTES) as u64;
            send(&a, there.srqn, i as u64, SendOp::Write { va, rkey: there.rkey }, BYTES);
            if i % 4 == 3 {
                let (va, rkey) = (word, there.rkey);
                send(&a, there.srqn, 1000, SendOp::FetchAdd { va, rkey, add: 1 }, 8);
                assert_eq!(wait_until(&a, 1000), i as u64 / 4 + u64::from(round) * MESSAGES as u64 / 4);
            }
        }
        let sum = (MESSAGES * BYTES) as u64 * u64::from(round + 1);
        assert_eq!(there.member.ask(&format!("sum {}", MESSAGES * BYTES)), sum.to_string());
        // Messages for which there is one receive at a time.
        for i in 0..8 {
            send(&a, there.srqn, i, SendOp::Send, BYTES);
        }
        let (qpn, initiator) = (target.qp().qpn(), a.qp.qpn());
        for i in 0..8 {
            assert_eq!(there.member.ask(&format!("recv {i}")), "ok");
            assert_eq!(there.member.ask("wait"), format!("{i} Success {BYTES} {qpn} {initiator}"));
        }
        wait_until(&a, 7);
    }
    target.close().unwrap();
    a.close();
}

/// Until the request with this number has ended; the first word of the memory then.
fn wait_until(a: &Side, wr_id: u64) -> u64 {
    loop {
        let done = a.wait();
        assert_eq!(done.status, WcStatus::Success);
        if done.wr_id == wr_id {
            return u64::from_ne_bytes(*a.memory.first_chunk().unwrap());
        }
    }
}

macro_rules! cases {
    ($($name:ident: $body:ident;)*) => {$(
        #[test]
        fn $name() {
            in_namespace(concat!("xrc::", stringify!($name)), || $body());
        }
    )*};
}

cases! {
    every_operation_reaches_another_processs_srq: every_operation;
    a_context_that_is_closed_ends_nothing_that_others_execute: another_context_of_the_other_process;
    rights_that_are_taken_back_are_none_in_another_process: rights_that_are_taken_back;
    the_end_of_an_srqs_process_ends_what_was_given_to_it: the_end_of_the_other_process;
    an_srq_of_another_domain_of_another_process_is_refused: another_domain;
    many_requests_reach_another_processs_srq_in_order: many_at_a_time;
    large_writes_do_not_wait_for_one_another: large_writes;
    a_process_that_is_stopped_gets_what_was_sent_to_it_when_it_goes_on: a_process_that_answers_late;
    an_srq_whose_process_has_too_many_waiting_is_asked_for_again: a_process_that_cant_be_asked;
}

#[test]
fn a_process_that_is_stopped_gets_what_was_sent_over_sockets_when_it_goes_on() {
    const NAME: &str = "xrc::a_process_that_is_stopped_gets_what_was_sent_over_sockets_when_it_goes_on";
    in_namespace(NAME, || {
        // SAFETY: no other thread of this process reads the environment yet.
        unsafe { std::env::set_var("FERROCE_FABRIC", "udp") };
        a_process_that_answers_late();
    });
}

#[test]
fn many_requests_reach_it_in_order_over_a_lossy_network_too() {
    in_namespace("xrc::many_requests_reach_it_in_order_over_a_lossy_network_too", || {
        // SAFETY: no other thread of this process reads the environment yet.
        unsafe { std::env::set_var("FERROCE_FAULT", "drop=2%,dup=2%,reorder=2%,seed=7") };
        many_at_a_time();
    });
}

#[test]
fn every_operation_reaches_it_over_sockets_too() {
    in_namespace("xrc::every_operation_reaches_it_over_sockets_too", || {
        // SAFETY: no other thread of this process reads the environment yet.
        unsafe { std::env::set_var("FERROCE_FABRIC", "udp") };
        every_operation();
    });
}
