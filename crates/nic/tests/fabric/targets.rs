//! Target queue pairs that one process creates and another opens.

use super::member::answer_commands;
use super::namespace::in_namespace;
use super::receiver::{Receiver, connect, send};
use super::scribble;
use super::side::{Side, open};
use ferroce_nic::{XrcTarget, Xrcd};
use ferroce_os::sys;
use ferroce_parts::{QpAttr, mask};
use ferroce_proto::SendOp;
use ferroce_tests::helper::Helper;
use ferroce_tests::wait::eventually;
use ferroce_types::{AsyncEvent, QpState, WcStatus};
use ferroce_wire::Service;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const COOKIE: usize = 4711;
const LEN: usize = 100_000;
/// Bytes of a call that changes attributes.
const MODIFY: usize = 83;
const SECOND: Duration = Duration::from_secs(1);

fn domain(path: &str) -> Arc<Xrcd> {
    let file = File::open(path).unwrap();
    Xrcd::open(&open(), Some(file.as_raw_fd()), true, false).unwrap()
}

fn ours() -> Arc<Xrcd> {
    domain("/proc/self/exe")
}

/// The process of a helper.
pub fn creator() {
    let mut made: Option<(Option<XrcTarget>, Receiver, Side)> = None;
    answer_commands(|words| {
        if let ["make"] = *words {
            let xrcd = ours();
            let (target, receiver) = (XrcTarget::create(&xrcd, 0).unwrap(), Receiver::new(&xrcd, 0));
            let side = Side::new(xrcd.context(), Service::Xrc, 64);
            let (target_qpn, side_qpn) = (target.qp().qpn(), side.qp.qpn());
            let answer = format!("{target_qpn} {} {side_qpn}", receiver.srq.number().unwrap());
            made = Some((Some(target), receiver, side));
            return answer;
        }
        let (target, receiver, _) = made.as_mut().unwrap();
        match *words {
            ["state"] => format!("{:?}", target.as_ref().unwrap().query().unwrap().state),
            ["fail"] => {
                let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
                target.as_ref().unwrap().modify(&attr, mask::STATE).unwrap();
                "ok".into()
            }
            ["close"] => {
                target.take().unwrap().close().unwrap();
                "ok".into()
            }
            ["recv"] => {
                receiver.recv(1);
                "ok".into()
            }
            ["wait"] => {
                let (_, wc) = receiver.wait();
                let sum: u64 = receiver.memory[..LEN].iter().map(|byte| u64::from(*byte)).sum();
                format!("{:?} {} {sum}", wc.status, wc.byte_len)
            }
            _ => "what?".into(),
        }
    });
}

/// Another process with a target.
struct There {
    member: Helper,
    qpn: u32,
    srqn: u32,
    initiator: u32,
}

impl There {
    fn start() -> Self {
        let mut member = Helper::start("creator");
        let made = member.ask("make");
        let numbers: Vec<u32> = made.split(' ').map(|number| number.parse().unwrap()).collect();
        Self { member, qpn: numbers[0], srqn: numbers[1], initiator: numbers[2] }
    }
}

fn errno_of<T>(result: ferroce_types::Result<T>) -> i32 {
    result.map(drop).expect_err("refused").errno()
}

fn message_arrives(there: &mut There, a: &mut Side, byte: u8) {
    a.memory.fill(byte);
    assert_eq!(there.member.ask("recv"), "ok");
    send(a, there.srqn, 1, SendOp::Send, LEN);
    assert_eq!(there.member.ask("wait"), format!("Success {LEN} {}", LEN as u64 * u64::from(byte)));
    assert_eq!(a.wait().status, WcStatus::Success);
}

fn opener_connects_it() {
    let mut there = There::start();
    let xrcd = ours();
    let mut a = Side::new(xrcd.context(), Service::Xrc, LEN);
    let opened = XrcTarget::open(&xrcd, there.qpn, COOKIE).unwrap();
    let second = XrcTarget::open(&xrcd, there.qpn, COOKIE + 1).unwrap();
    assert_eq!(opened.qp().qpn(), there.qpn);
    assert_eq!(opened.query().unwrap().state, QpState::Reset);
    // What the kernel refuses is refused there.
    let attr = QpAttr { state: QpState::Rts, ..QpAttr::default() };
    assert_eq!(errno_of(opened.modify(&attr, mask::STATE)), libc::EINVAL);
    connect(&a, &opened);
    assert_eq!(there.member.ask("state"), "Rts");
    let queried = second.query().unwrap();
    assert_eq!((queried.state, queried.dest_qpn, queried.av), (QpState::Rts, a.qp.qpn(), a.av()));
    message_arrives(&mut there, &mut a, 3);
    second.close().unwrap();
    message_arrives(&mut there, &mut a, 4);

    // The creator's handle isn't the last.
    assert_eq!(there.member.ask("close"), "ok");
    message_arrives(&mut there, &mut a, 5);
    opened.close().unwrap();
    assert_eq!(errno_of(XrcTarget::open(&xrcd, there.qpn, COOKIE)), libc::EINVAL);
    a.close();
    xrcd.check_unused().unwrap();
}

/// An initiator whose target and whose SRQ two other processes have. The one with the SRQ has executed message 2, and the one with the target
/// is stopped before it knows.
fn executed_unknown_to_the_target() -> (There, Helper, Side) {
    let (there, mut third) = (There::start(), Helper::start("receiver"));
    let srqn = third.ask("make").split(' ').next().unwrap().parse().unwrap();
    let xrcd = ours();
    let a = Side::new(xrcd.context(), Service::Xrc, 64);
    let opened = XrcTarget::open(&xrcd, there.qpn, COOKIE).unwrap();
    connect(&a, &opened);
    assert_eq!(third.ask("recv 1"), "ok");
    send(&a, srqn, 1, SendOp::Send, 64);
    arrives(&mut third, 1);
    assert_eq!(a.wait().status, WcStatus::Success);
    assert_eq!(third.ask("recv 2"), "ok");
    third.stop();
    send(&a, srqn, 2, SendOp::Send, 64);
    // The target's process gives it to the third one.
    std::thread::sleep(Duration::from_millis(100));
    there.member.stop();
    third.go_on();
    (there, third, a)
}

fn arrives(third: &mut Helper, number: u64) {
    assert!(third.ask("wait").starts_with(&format!("{number} Success 64 ")));
}

/// The third process has no completion for so long that a message would have come.
fn nothing_arrives(third: &mut Helper) {
    for _ in 0..15 {
        assert_eq!(third.ask("poll"), "0");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A third process has the SRQ, and reports the message by other means.
fn what_a_third_process_has_received() {
    let (there, mut third, a) = executed_unknown_to_the_target();
    nothing_arrives(&mut third);
    there.member.go_on();
    arrives(&mut third, 2);
    a.qp.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, mask::STATE).unwrap();
    assert_eq!(a.wait().status, WcStatus::Success);
}

fn what_a_third_process_has_of_a_creator_that_ends() {
    let (there, mut third, ..) = executed_unknown_to_the_target();
    drop(there);
    arrives(&mut third, 2);
}

fn srq_that_a_third_process_destroys_meanwhile() {
    let (there, mut third, a) = executed_unknown_to_the_target();
    nothing_arrives(&mut third);
    assert_eq!(third.ask("destroy"), "ok");
    there.member.go_on();
    assert_eq!(a.wait().status, WcStatus::Success);
    nothing_arrives(&mut third);
    // Another SRQ of that process receives.
    let srqn = third.ask("make").split(' ').next().unwrap().parse().unwrap();
    assert_eq!(third.ask("recv 3"), "ok");
    send(&a, srqn, 3, SendOp::Send, 64);
    arrives(&mut third, 3);
    assert_eq!(a.wait().status, WcStatus::Success);
}

fn event_of(xrcd: &Xrcd) -> AsyncEvent {
    let mut event = None;
    eventually("an event comes", || {
        event = xrcd.context().async_events().take();
        event.is_some()
    });
    event.unwrap()
}

fn end_of_the_creator() {
    let mut there = There::start();
    let xrcd = ours();
    let a = Side::new(xrcd.context(), Service::Xrc, LEN);
    let opened = XrcTarget::open(&xrcd, there.qpn, COOKIE).unwrap();
    connect(&a, &opened);
    assert_eq!(there.member.ask("fail"), "ok");
    assert_eq!(opened.query().unwrap().state, QpState::Err);

    assert_eq!(event_of(&xrcd), AsyncEvent::QpLastWqeReached(COOKIE));

    // Calls wait for a stopped process, but for a second each at most.
    there.member.stop();
    let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    let start = Instant::now();
    assert_eq!(errno_of(opened.query()), libc::EBUSY);
    assert_eq!(errno_of(opened.modify(&attr, mask::STATE)), libc::EBUSY);
    assert_eq!(errno_of(XrcTarget::open(&xrcd, there.qpn, COOKIE + 1)), libc::EINVAL);
    let waited = start.elapsed();
    assert!(waited >= 3 * SECOND - SECOND / 10 && waited < 10 * SECOND, "{waited:?}");
    there.member.go_on();
    // Changes that were given up aren't made later, and a late answer to an older call isn't taken for the answer to a new one.
    eventually("it answers again", || opened.query().is_ok());
    for _ in 0..20 {
        assert_eq!(opened.query().unwrap().state, QpState::Err);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(there.member.ask("state"), "Err");
    opened.modify(&attr, mask::STATE).unwrap();
    assert_eq!(opened.query().unwrap().state, QpState::Reset);
    assert!(xrcd.context().async_events().take().is_none());

    there.member.kill();
    assert_eq!(event_of(&xrcd), AsyncEvent::QpFatal(COOKIE));
    assert_eq!(errno_of(opened.modify(&attr, mask::STATE)), libc::EIO);
    assert_eq!(opened.query().unwrap().state, QpState::Err);
    assert!(xrcd.context().async_events().take().is_none(), "one event");
    opened.close().unwrap();
    a.close();
    xrcd.check_unused().unwrap();
}

fn refusals() {
    let mut there = There::start();
    let xrcd = ours();
    let start = Instant::now();
    for wrong in [there.qpn ^ 0x7ff, there.initiator, 0, 1, 0xff_ffff, u32::MAX] {
        assert_eq!(errno_of(XrcTarget::open(&xrcd, wrong, COOKIE)), libc::EINVAL, "{wrong:#x}");
    }
    for other in [domain("/"), Xrcd::open(&open(), None, true, false).unwrap()] {
        assert_eq!(errno_of(XrcTarget::open(&other, there.qpn, COOKIE)), libc::EINVAL);
        other.check_unused().unwrap();
    }
    assert!(start.elapsed() < 7 * SECOND, "none of the eight is waited for");
    // A handle that is dropped is given up, so the creator's is the last.
    drop(XrcTarget::open(&xrcd, there.qpn, COOKIE).unwrap());
    assert_eq!(there.member.ask("state"), "Reset");
    assert_eq!(there.member.ask("close"), "ok");
    ends_with_its_last_handle(&xrcd, there.qpn);
}

/// The creator has closed its handle already.
fn ends_with_its_last_handle(xrcd: &Arc<Xrcd>, qpn: u32) {
    eventually("the last handle is closed", || match XrcTarget::open(xrcd, qpn, COOKIE) {
        Ok(handle) => handle.close().is_err(),
        Err(error) => error.errno() == libc::EINVAL,
    });
}

/// A connection to the creator, and what it answers to a request for a handle.
fn opened_by_hand(qpn: u32, message: &[u8]) -> (File, Option<u8>) {
    let mut connection = File::from(scribble::connect(qpn >> 12).unwrap());
    connection.write_all(message).unwrap();
    assert!(sys::wait_for(connection.as_raw_fd(), libc::POLLIN, 5 * SECOND), "the creator doesn't answer");
    let mut answer = [0; 32];
    let length = connection.read(&mut answer).unwrap();
    (connection, answer[..length].get(5).copied())
}

fn hostile_openers() {
    let mut there = There::start();
    let xrcd = ours();
    let (qpn, file) = (there.qpn, std::fs::metadata("/proc/self/exe").unwrap());
    let mut hello = b"FRCE\x02\x05\0\0".to_vec();
    hello.extend([qpn.to_ne_bytes(), [0; 4]].concat());
    hello.extend([file.dev().to_ne_bytes(), file.ino().to_ne_bytes()].concat());
    hello.extend(xrcd.context().device().info().name.bytes());
    hello.resize(96, 0);

    assert_eq!(opened_by_hand(qpn, &hello).1, Some(0), "granted");
    for len in [8, 12, 16, 32, 95, 97] {
        let bytes: Vec<u8> = hello.iter().copied().chain([0]).take(len).collect();
        assert_eq!(opened_by_hand(qpn, &bytes).1, Some(2), "{len} bytes are refused");
    }
    // Calls of every kind and length, with bytes of every value.
    for round in 0..600u32 {
        let mut call = vec![(round % 10) as u8];
        call.extend((1..round / 4).map(|n| (n.wrapping_mul(round) ^ round >> 3) as u8));
        let (mut connection, granted) = opened_by_hand(qpn, &hello);
        assert_eq!(granted, Some(0));
        let _ = connection.write(&call);
    }
    // Queries whose answers aren't read, and changes over all connections at once.
    let flooding: Vec<File> = (0..40).map(|_| opened_by_hand(qpn, &hello).0).collect();
    let mut modify = vec![2, 9, 0, 0, 0];
    modify.resize(MODIFY, 0);
    for calls in [&[vec![1, 9, 0, 0, 0]][..], &[modify, vec![7, 9, 0, 0, 0]]] {
        for mut connection in flooding.iter().cycle().take(20_000) {
            for call in calls {
                let _ = connection.write(call);
            }
        }
    }
    let opened = XrcTarget::open(&xrcd, qpn, COOKIE).unwrap();
    drop(flooding);
    eventually("the creator answers again", || opened.query().is_ok_and(|a| a.state == QpState::Reset));
    let mut a = Side::new(xrcd.context(), Service::Xrc, LEN);
    connect(&a, &opened);
    message_arrives(&mut there, &mut a, 7);
    // None of their handles is left.
    assert_eq!(there.member.ask("close"), "ok");
    opened.close().unwrap();
    ends_with_its_last_handle(&xrcd, qpn);
    a.close();
}

macro_rules! cases {
    ($($name:ident: $body:ident;)*) => {$(
        #[test]
        fn $name() {
            in_namespace(concat!("targets::", stringify!($name)), || $body());
        }
    )*};
}

cases! {
    a_target_works_as_another_process_has_connected_it: opener_connects_it;
    a_target_ends_with_its_creator_and_its_openers_are_told: end_of_the_creator;
    hostile_openers_leave_a_target_to_the_others: hostile_openers;
    what_another_process_does_not_have_cant_be_opened: refusals;
    a_message_that_a_third_process_has_received_is_acknowledged: what_a_third_process_has_received;
    what_a_third_process_has_executed_completes_when_the_targets_process_ends:
        what_a_third_process_has_of_a_creator_that_ends;
    an_srq_that_is_destroyed_gets_no_late_completion: srq_that_a_third_process_destroys_meanwhile;
}
