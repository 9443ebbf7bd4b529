//! Extended reliable connections: domains, targets with several SRQs, and targets that several openers share.

use crate::namespace::in_namespace;
use crate::pair::over_sockets;
use crate::receiver::{Receiver, connect, send};
use crate::side::{Side, open};
use ferroce_nic::{Context, XrcTarget, Xrcd};
use ferroce_parts::{QpAttr, mask};
use ferroce_proto::SendOp;
use ferroce_types::{AsyncEvent, Error, QpState, WcOpcode, WcStatus};
use ferroce_wire::Service;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn anonymous(context: &Arc<Context>) -> Arc<Xrcd> {
    Xrcd::open(context, None, true, false).unwrap()
}

fn one_target_serves_two_srqs() {
    let context = open();
    let xrcd = anonymous(&context);
    let mut a = Side::new(&context, Service::Xrc, 1 << 18);
    let target = XrcTarget::create(&xrcd, 0).unwrap();
    let receivers = [Receiver::new(&xrcd, 0), Receiver::new(&xrcd, 0)];
    connect(&a, &target);
    let number = |i: usize| receivers[i].srq.number().unwrap();
    assert_ne!(number(0), number(1));
    for (i, len) in [0, 1, 5000, 70_001, 1 << 18, 9].into_iter().enumerate() {
        let r = &receivers[i % 2];
        a.memory.fill(i as u8 + 1);
        r.recv(7);
        send(&a, number(i % 2), 8, SendOp::SendWithImmediate { immediate: [i as u8; 4] }, len);
        let (qp_num, got) = r.wait();
        assert_eq!((qp_num, got.src_qp), (target.qp().qpn(), a.qp.qpn()));
        assert_eq!((got.wr_id, got.status, got.byte_len), (7, WcStatus::Success, len as u32));
        assert_eq!(got.immediate(), Some([i as u8; 4]));
        assert!(r.memory[..len] == a.memory[..len], "{len} bytes arrived damaged");
        assert_eq!(a.wait().status, WcStatus::Success);

        a.memory.fill(i as u8 + 100);
        let (va, rkey) = (r.memory.as_ptr() as u64, r.mr.key());
        send(&a, number(i % 2), 9, SendOp::Write { va, rkey }, len);
        assert_eq!(a.wait().status, WcStatus::Success);
        assert!(r.memory[..len] == a.memory[..len], "{len} bytes written damaged");
        a.memory.fill(0);
        send(&a, number(i % 2), 10, SendOp::Read { va, rkey }, len);
        assert_eq!(a.wait().opcode, WcOpcode::RdmaRead);
        assert!(r.memory[..len] == a.memory[..len], "{len} bytes read damaged");
        send(&a, number(i % 2), 11, SendOp::FetchAdd { va, rkey, add: 1 }, 8);
        assert_eq!(a.wait().status, WcStatus::Success);
    }
    // The key is of one SRQ's protection domain, the request names the other.
    let (va, rkey) = (receivers[0].memory.as_ptr() as u64, receivers[0].mr.key());
    send(&a, number(1), 12, SendOp::Write { va, rkey }, 8);
    assert_eq!(a.wait().status, WcStatus::RemAccessErr);
    assert_eq!(target.qp().query().unwrap().state, QpState::Err);
    target.close().unwrap();
    receivers.into_iter().for_each(Receiver::close);
    xrcd.check_unused().unwrap();
    a.close();
}

fn an_srq_of_another_domain_or_none_is_refused() {
    let context = open();
    let (xrcd, other) = (anonymous(&context), anonymous(&context));
    let mine = Receiver::new(&xrcd, 0);
    let theirs = Receiver::new(&other, 0);
    theirs.recv(1);
    for number in [theirs.srq.number().unwrap(), mine.srq.number().unwrap() ^ 0x800] {
        let a = Side::new(&context, Service::Xrc, 4096);
        let target = XrcTarget::create(&xrcd, 77).unwrap();
        connect(&a, &target);
        send(&a, number, 2, SendOp::Send, 64);
        assert_eq!(a.wait().status, WcStatus::RemInvReqErr);
        assert_eq!(events(&context), [AsyncEvent::QpAccessError(77), AsyncEvent::QpLastWqeReached(77)]);
        target.close().unwrap();
        a.close();
    }
    mine.close();
    // A queue that has gone is as good as none.
    let a = Side::new(&context, Service::Xrc, 4096);
    let target = XrcTarget::create(&other, 0).unwrap();
    connect(&a, &target);
    let number = theirs.srq.number().unwrap();
    theirs.close();
    send(&a, number, 2, SendOp::Send, 64);
    assert_eq!(a.wait().status, WcStatus::RemInvReqErr);
    target.close().unwrap();
    a.close();
}

fn events(context: &Arc<Context>) -> Vec<AsyncEvent> {
    let start = Instant::now();
    let mut all = Vec::new();
    while start.elapsed() < Duration::from_millis(100) {
        all.extend(context.async_events().take());
    }
    all
}

fn a_target_is_shared_by_all_who_open_it() {
    let (context, second) = (open(), open());
    let file = File::open("/proc/self/exe").unwrap();
    let of_file = |context, create| Xrcd::open(context, Some(file.as_raw_fd()), create, false);
    let xrcd = of_file(&context, true).unwrap();
    let same = of_file(&second, false).unwrap();
    let target = XrcTarget::create(&xrcd, 1).unwrap();
    let qpn = target.qp().qpn();
    let opened = XrcTarget::open(&same, qpn, 2).unwrap();
    let foreign = XrcTarget::open(&anonymous(&context), qpn, 3).unwrap_err();
    assert!(matches!(foreign, Error::Invalid(_)), "{foreign}");
    for (handle, busy) in [(&xrcd, true), (&same, true)] {
        assert_eq!(matches!(handle.check_unused(), Err(Error::Busy(_))), busy);
    }
    let a = Side::new(&context, Service::Xrc, 4096);
    connect(&a, &opened);
    assert_eq!(target.qp().query().unwrap().state, QpState::Rts);
    // The creator goes: the QP stays, and goes on to work.
    target.close().unwrap();
    xrcd.check_unused().unwrap();
    let r = Receiver::new(&xrcd, 0);
    r.recv(5);
    send(&a, r.srq.number().unwrap(), 6, SendOp::Send, 100);
    assert_eq!((r.wait().1.wr_id, a.wait().status), (5, WcStatus::Success));
    let again = XrcTarget::open(&xrcd, qpn, 4).unwrap();
    let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
    again.qp().modify(&error, mask::STATE).unwrap();
    assert_eq!(events(&context), [AsyncEvent::QpLastWqeReached(4)]);
    assert_eq!(events(&second), [AsyncEvent::QpLastWqeReached(2)]);
    opened.close().unwrap();
    again.close().unwrap();
    assert!(XrcTarget::open(&xrcd, qpn, 5).is_err());
    r.close();
    a.close();
    same.check_unused().unwrap();
}

/// The program has given up the handle, the domain and the context that it has made the target by, and has another of each.
fn a_target_outlives_the_context_of_its_creator() {
    let (context, second) = (open(), open());
    let file = File::open("/proc/self/exe").unwrap();
    let of_file = |context, create| Xrcd::open(context, Some(file.as_raw_fd()), create, false).unwrap();
    let (xrcd, same) = (of_file(&context, true), of_file(&second, false));
    let target = XrcTarget::create(&xrcd, 1).unwrap();
    let opened = XrcTarget::open(&same, target.qp().qpn(), 2).unwrap();
    target.close().unwrap();
    xrcd.check_unused().unwrap();
    assert_eq!(context.close().qps, 0);
    let a = Side::new(&second, Service::Xrc, 4096);
    connect(&a, &opened);
    let r = Receiver::new(&same, 0);
    r.recv(5);
    send(&a, r.srq.number().unwrap(), 6, SendOp::Send, 100);
    assert_eq!((r.wait().1.wr_id, a.wait().status), (5, WcStatus::Success));
    // A handle that is left when its context is closed is given up.
    r.close();
    a.close();
    second.close();
    assert_eq!(opened.qp().query().unwrap().state, QpState::Reset);
    assert!(XrcTarget::open(&of_file(&open(), true), opened.qp().qpn(), 3).is_err());
}

/// A target that has found the queue before may still look into it, and complete what it has taken from it.
fn what_comes_for_queues_that_are_destroyed_goes_nowhere() {
    let context = open();
    let xrcd = anonymous(&context);
    let r = Receiver::new(&xrcd, 7);
    let a = Side::new(&context, Service::Xrc, 4096);
    let target = XrcTarget::create(&xrcd, 1).unwrap();
    connect(&a, &target);
    r.recv(1);
    send(&a, r.srq.number().unwrap(), 6, SendOp::Send, 100);
    let (_, completion) = r.wait();
    r.recv(2);
    r.recv(3);
    r.srq.modify(None, Some(2)).unwrap();
    let (srq, cq) = (r.srq.clone(), r.cq.clone());
    r.close();
    assert!(srq.pop().is_none());
    assert!(cq.push(completion), "it has no room to lack");
    assert!(!cq.has_overrun());
    assert_eq!(events(&context), []);
    target.close().unwrap();
    a.close();
}

fn domains_are_those_of_files() {
    let context = open();
    let file = File::open("/proc/self/exe").unwrap();
    let errno =
        |fd, create, exclusive| Xrcd::open(&context, Some(fd), create, exclusive).map_err(|e| e.errno());
    let fd = file.as_raw_fd();
    assert_eq!(errno(fd, false, false).unwrap_err(), libc::EAGAIN);
    assert_eq!(errno(12_345, true, false).unwrap_err(), libc::EBADF);
    let first = errno(fd, true, true).unwrap();
    assert_eq!(errno(fd, true, true).unwrap_err(), libc::EINVAL);
    let another = File::open("/proc/self/exe").unwrap();
    let second = errno(another.as_raw_fd(), false, false).unwrap();
    let r = Receiver::new(&first, 0);
    first.check_unused().unwrap_err();
    second.check_unused().unwrap();
    assert!(matches!(r.cq.destroy(), Err(Error::Busy(_))));
    r.close();
    drop((first, second));
    assert_eq!(errno(fd, false, false).unwrap_err(), libc::EAGAIN);
}

macro_rules! cases {
    ($($name:ident,)*) => {
        mod local {$(
            #[test]
            fn $name() {
                crate::namespace::in_namespace(concat!("xrc::local::", stringify!($name)), super::$name);
            }
        )*}
        mod sockets {$(
            #[test]
            fn $name() {
                crate::namespace::in_namespace(concat!("xrc::sockets::", stringify!($name)), || {
                    super::over_sockets();
                    super::$name();
                });
            }
        )*}
    };
}

cases! {
    one_target_serves_two_srqs,
    an_srq_of_another_domain_or_none_is_refused,
    a_target_is_shared_by_all_who_open_it,
    a_target_outlives_the_context_of_its_creator,
}

#[test]
fn queues_that_are_destroyed() {
    in_namespace("xrc::queues_that_are_destroyed", what_comes_for_queues_that_are_destroyed_goes_nowhere);
}

#[test]
fn domains_belong_to_files() {
    in_namespace("xrc::domains_belong_to_files", domains_are_those_of_files);
}
