//! Asynchronous events: each that can happen happens once, names its object, and can be waited for by the descriptor.

use crate::namespace::in_namespace;
use crate::pair::{over_sockets, pair};
use crate::side::{Side, open};
use ferroce_mem::Pd;
use ferroce_netdev::PortState;
use ferroce_nic::{Context, fail_devices};
use ferroce_parts::{QpAttr, mask};
use ferroce_proto::SendOp;
use ferroce_queues::{Cq, Srq, SrqAttr};
use ferroce_types::{AsyncEvent, Error, QpState, RecvWqe, WcStatus};
use ferroce_wire::Service;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
/// In this time an event that shouldn't come would have.
const WHILE: Duration = Duration::from_millis(150);

/// What is asked of a peer.
type Request = fn(&Side) -> SendOp;

/// The next event, if one comes within `limit`.
fn next(context: &Context, limit: Duration) -> Option<AsyncEvent> {
    let fd = context.async_events().fd();
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    if unsafe { libc::poll(&raw mut poll, 1, limit.as_millis() as libc::c_int) } != 1 {
        return None;
    }
    Some(context.async_events().take().expect("an event, since the descriptor is readable"))
}

/// All events that come, in order: as many as expected, and no more for a while.
#[track_caller]
fn expect(context: &Context, events: &[AsyncEvent]) {
    let came: Vec<_> = events.iter().map_while(|_| next(context, LIMIT)).collect();
    assert_eq!(came, events);
    assert_eq!(next(context, WHILE), None);
}

#[track_caller]
fn ip(commands: &str) {
    for line in commands.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let output = Command::new("ip").args(line.split_whitespace()).output().unwrap();
        assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn to(side: &Side, state: QpState, bits: u32) {
    let attr = QpAttr { state, en_sqd_async_notify: true, ..QpAttr::default() };
    side.qp.modify(&attr, mask::STATE | bits).unwrap();
}

/// The receiver stays in RTR.
fn the_first_packet_in_rtr_is_told() {
    for op in [
        |_: &Side| SendOp::Send,
        |b: &Side| SendOp::Write { va: b.addr(), rkey: b.mr.key() },
        |b: &Side| SendOp::Read { va: b.addr(), rkey: b.mr.key() },
    ] {
        let context = open();
        let (a, b) = (Side::new(&context, Service::Rc, 4096), Side::new(&context, Service::Rc, 4096));
        b.connect_to_rtr(a.qp.qpn(), b.av());
        a.connect(b.qp.qpn());
        for _ in 0..3 {
            b.recv(1, b.sge(0, 4096));
            a.send(2, op(&b), a.sge(0, 64), None);
            assert_eq!(a.wait().status, WcStatus::Success);
        }
        expect(&context, &[AsyncEvent::CommunicationEstablished(0)]);
        assert_eq!(b.qp.query().unwrap().state, QpState::Rtr);
        a.close();
        b.close();
    }
}

/// One request is under way when the queue is to drain; the second waits for RTS.
fn a_send_queue_that_has_drained_is_told_to_who_asked() {
    for asked in [true, false] {
        let (a, b) = pair(Service::Rc, 4096);
        a.send(0, SendOp::Send, a.sge(0, 64), None);
        to(&a, QpState::Sqd, if asked { mask::EN_SQD_ASYNC_NOTIFY } else { 0 });
        a.send(1, SendOp::Send, a.sge(0, 64), None);
        // `b` has posted no receive yet.
        assert_eq!(next(&a.context, WHILE), None);
        b.recv(0, b.sge(0, 4096));
        b.recv(1, b.sge(0, 4096));
        assert_eq!((a.wait().wr_id, b.wait().wr_id), (0, 0));
        expect(&a.context, if asked { &[AsyncEvent::SqDrained(0)] } else { &[] });
        to(&a, QpState::Rts, 0);
        assert_eq!((a.wait().wr_id, b.wait().wr_id), (1, 1));
        expect(&a.context, &[]);
    }
}

/// A request that is refused has no receive completion at the responder, so an event reports it.
fn a_refused_request_is_told_to_its_responder() {
    let refused: [(Request, AsyncEvent); 3] = [
        (|b| SendOp::Write { va: b.addr(), rkey: b.mr.key() ^ 0x100 }, AsyncEvent::QpAccessError(0)),
        (|b| SendOp::Read { va: b.addr() - 1, rkey: b.mr.key() }, AsyncEvent::QpAccessError(0)),
        (|b| SendOp::FetchAdd { va: b.addr() + 4, rkey: b.mr.key(), add: 1 }, AsyncEvent::QpRequestError(0)),
    ];
    for (op, event) in refused {
        let (a, b) = pair(Service::Rc, 4096);
        a.send(1, op(&b), a.sge(0, 8), None);
        assert_ne!(a.wait().status, WcStatus::Success);
        expect(&a.context, &[event]);
    }
}

fn the_last_request_of_a_shared_queue_is_told() {
    let context = open();
    let pd = Pd::alloc(&context).unwrap();
    let srq = Srq::create(&pd, SrqAttr { max_wr: 8, max_sge: 1, limit: 0 }, 5).unwrap();
    let cq = Cq::create(&context, 64, None, 0).unwrap();
    let a = Side::new(&context, Service::Rc, 4096);
    let b = Side::of(&pd, Service::Rc, 4096, cq, Some(srq.clone()));
    a.connect(b.qp.qpn());
    b.connect(a.qp.qpn());
    srq.post(RecvWqe { wr_id: 1, sges: [b.sge(0, 64)].into_iter().collect() }).unwrap();
    a.send(1, SendOp::Send, a.sge(0, 64), None);
    assert_eq!((a.wait().status, b.wait().status), (WcStatus::Success, WcStatus::Success));
    to(&b, QpState::Err, 0);
    expect(&context, &[AsyncEvent::QpLastWqeReached(0)]);
    to(&b, QpState::Err, 0);
    expect(&context, &[]);
}

/// An event of an object that is destroyed first is withdrawn; one that was taken keeps it until it is acknowledged.
fn events_of_destroyed_objects_are_withdrawn() {
    let (a, b) = pair(Service::Rc, 4096);
    a.send(1, SendOp::Write { va: b.addr(), rkey: 0 }, a.sge(0, 8), None);
    assert_ne!(a.wait().status, WcStatus::Success);
    let context = b.context.clone();
    b.close();
    expect(&context, &[]);

    let (a, b) = pair(Service::Rc, 4096);
    a.send(1, SendOp::Write { va: b.addr(), rkey: 0 }, a.sge(0, 8), None);
    assert_ne!(a.wait().status, WcStatus::Success);
    let qp = b.qp.clone();
    a.context.async_events().take_with(Duration::ZERO, |_| qp.unacked_async().got()).unwrap();
    let destroyer = std::thread::spawn(move || b.close());
    std::thread::sleep(WHILE);
    assert!(!destroyer.is_finished(), "the event isn't acknowledged yet");
    // A thread that has taken the event may change the QP before it acknowledges. That call must not wait for the destroyer, which
    // waits for the acknowledgement.
    let (error, begun) = (QpAttr { state: QpState::Err, ..QpAttr::default() }, Instant::now());
    assert!(matches!(qp.modify(&error, mask::STATE), Err(Error::Invalid(_))));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    qp.unacked_async().ack(1);
    destroyer.join().unwrap();
}

/// A device on one end of a cable.
fn veth() {
    // SAFETY: no other thread reads the environment: the adapter's thread doesn't.
    unsafe { std::env::set_var("FERROCE_DEVICES", "ferroce0=d0") };
    ip("link add d0 type veth peer name d1
        link set d1 up
        link set d0 up
        addr add 10.1.0.1/24 dev d0");
    // Duplicate address detection of the link-local address ends within a second or two.
    let start = Instant::now();
    let settled = || open().gid(0).is_some_and(|gid| gid.scope_id != 0);
    while !settled() {
        assert!(start.elapsed() < LIMIT, "no link-local address");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A link that goes down loses its IPv6 addresses, which are GIDs too.
fn without_gid_changes(context: &Context, n: usize) -> Vec<AsyncEvent> {
    let mut events = Vec::new();
    while events.len() < n
        && let Some(event) = next(context, LIMIT)
    {
        if event != AsyncEvent::GidChange(1) {
            events.push(event);
        }
    }
    events
}

fn a_port_that_goes_down_and_up_is_told() {
    veth();
    let contexts: [Arc<Context>; 2] = std::array::from_fn(|_| open());
    let all = |events: &[AsyncEvent]| {
        for context in &contexts {
            assert_eq!(without_gid_changes(context, events.len()), events);
        }
    };
    ip("link set d0 down");
    all(&[AsyncEvent::PortError(1)]);
    assert_eq!(contexts[0].port().state, PortState::Down);
    ip("link set d0 up");
    all(&[AsyncEvent::PortActive(1)]);
    assert_eq!(contexts[0].port().state, PortState::Active);
    // The peer's end is the cable.
    ip("link set d1 down");
    all(&[AsyncEvent::PortError(1)]);
    ip("link set d1 up");
    all(&[AsyncEvent::PortActive(1)]);
    // A change that is over before the adapter reads the interface raises its events all the same.
    for _ in 0..5 {
        ip("link set d0 down");
        ip("link set d0 up");
    }
    all(&[AsyncEvent::PortError(1), AsyncEvent::PortActive(1)]);
    std::thread::sleep(2 * WHILE);
    for context in &contexts {
        let rest: Vec<_> = std::iter::from_fn(|| next(context, WHILE)).collect();
        let ports: Vec<_> = rest.into_iter().filter(|event| *event != AsyncEvent::GidChange(1)).collect();
        let pairs = ports.chunks(2).all(|pair| pair == [AsyncEvent::PortError(1), AsyncEvent::PortActive(1)]);
        assert!(pairs && ports.len() <= 8, "{ports:?}");
    }
}

fn a_change_of_addresses_is_told() {
    veth();
    let context = open();
    let before = context.gids();
    ip("addr add 10.1.0.2/24 dev d0");
    expect(&context, &[AsyncEvent::GidChange(1)]);
    let added = context.gids();
    assert_eq!((added.len(), &added[..before.len()]), (before.len() + 1, &before[..]));
    ip("addr del 10.1.0.2/24 dev d0");
    expect(&context, &[AsyncEvent::GidChange(1)]);
    assert_eq!(context.gids(), before);
    // An interface that isn't the device's.
    ip("addr add 10.2.0.2/24 dev d1");
    expect(&context, &[]);
}

/// A hole in the table stays a hole in contexts that are opened later, and the next address fills it.
fn a_gid_keeps_its_index_for_all() {
    veth();
    ip("addr add 10.1.0.2/24 dev d0
        addr add 10.1.0.3/24 dev d0");
    let first = open();
    let index = |context: &Context, last: u8| {
        let gid = ferroce_netdev::gid_of(std::net::IpAddr::from([10, 1, 0, last]));
        context.gids().iter().find(|(_, entry)| entry.gid == gid).map(|(index, _)| *index)
    };
    assert_eq!([1, 2, 3].map(|last| index(&first, last)), [Some(1), Some(2), Some(3)]);
    ip("addr del 10.1.0.2/24 dev d0");
    expect(&first, &[AsyncEvent::GidChange(1)]);
    let devices = ferroce_nic::devices().unwrap();
    ip("addr add 10.1.0.4/24 dev d0
        addr add 10.1.0.5/24 dev d0");
    while index(&first, 5).is_none() {
        assert_eq!(next(&first, LIMIT), Some(AsyncEvent::GidChange(1)));
    }
    // Listed before the addresses came, opened after.
    let second = devices[0].open().unwrap();
    for context in [&first, &second] {
        assert_eq!([1, 2, 3].map(|last| index(context, last)), [Some(1), None, Some(3)]);
        assert_eq!([4, 5].map(|last| index(context, last)), [Some(2), Some(4)]);
    }
    let table = ferroce_nic::gid_table(devices[0].info());
    assert!(table.iter().all(|(index, entry)| first.gid(index) == Some(*entry)));
}

fn an_interface_that_disappears_is_fatal() {
    for down_before in [false, true] {
        veth();
        let context = open();
        let side = Side::new(&context, Service::Ud, 4096);
        if down_before {
            ip("link set d0 down");
            assert_eq!(without_gid_changes(&context, 1), [AsyncEvent::PortError(1)]);
        }
        ip("link del d0");
        let mut last = without_gid_changes(&context, 1);
        if last == [AsyncEvent::PortError(1)] {
            last = without_gid_changes(&context, 1);
        }
        assert_eq!(last, [AsyncEvent::DeviceFatal]);
        assert_eq!(context.port().state, PortState::Down);
        // One of that name is another interface.
        ip("link add d0 type veth peer name d1
            link del d0");
        expect(&context, &[]);
        side.close();
    }
}

fn an_internal_failure_is_told_once_to_each_open_device() {
    let contexts: [Arc<Context>; 2] = std::array::from_fn(|_| open());
    fail_devices();
    fail_devices();
    for context in &contexts {
        expect(context, &[AsyncEvent::DeviceFatal]);
    }
    let later = open();
    fail_devices();
    expect(&later, &[AsyncEvent::DeviceFatal]);
    expect(&contexts[0], &[]);
}

macro_rules! on_both_fabrics {
    ($($name:ident;)*) => {
        mod within_a_process {
            use super::*;
            $(#[test] fn $name() {
                in_namespace(concat!("events::within_a_process::", stringify!($name)), || super::$name());
            })*
        }
        mod over_udp {
            use super::*;
            $(#[test] fn $name() {
                in_namespace(concat!("events::over_udp::", stringify!($name)), || { over_sockets(); super::$name(); });
            })*
        }
    };
}

on_both_fabrics! {
    the_first_packet_in_rtr_is_told;
    a_send_queue_that_has_drained_is_told_to_who_asked;
    a_refused_request_is_told_to_its_responder;
    the_last_request_of_a_shared_queue_is_told;
    events_of_destroyed_objects_are_withdrawn;
}

macro_rules! of_the_device {
    ($($name:ident;)*) => {
        mod of_the_device {
            use super::*;
            $(#[test] fn $name() {
                in_namespace(concat!("events::of_the_device::", stringify!($name)), || super::$name());
            })*
        }
    };
}

of_the_device! {
    a_port_that_goes_down_and_up_is_told;
    a_change_of_addresses_is_told;
    a_gid_keeps_its_index_for_all;
    an_interface_that_disappears_is_fatal;
    an_internal_failure_is_told_once_to_each_open_device;
}
