//! Completion queues: what they record, when they raise events, how they grow and overflow; and shared receive queues.

use crate::namespace::in_namespace;
use crate::pair::{over_sockets, pair};
use crate::side::{Side, open};
use ferroce_mem::Pd;
use ferroce_nic::Poll as _;
use ferroce_proto::SendOp;
use ferroce_queues::{CompChannel, Cq, CqInit, NewSize, Srq, SrqAttr, Stamp};
use ferroce_types::{AsyncEvent, Completion, QpState, RecvWqe, WcStatus};
use ferroce_wire::Service;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

/// Is there an unread event? Takes it.
fn take_event(channel: &CompChannel) -> bool {
    let mut poll = libc::pollfd { fd: channel.events().fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) == 1 };
    ready && channel.events().take().is_some()
}

/// A pair whose first side completes into `cq`.
fn pair_on(cq: impl FnOnce(&Arc<ferroce_nic::Context>) -> Arc<Cq>) -> (Side, Side) {
    let context = open();
    let cq = cq(&context);
    let (a, b) = (Side::with_cq(&context, Service::Uc, 4096, cq), Side::new(&context, Service::Uc, 4096));
    a.connect(b.qp.qpn());
    b.connect(a.qp.qpn());
    (a, b)
}

/// Completions in `side`'s queue, one after the other.
fn complete(side: &Side, ids: std::ops::Range<u64>) {
    for id in ids {
        let post = || side.post(id, SendOp::Write { va: 0, rkey: 0 }, side.sge(0, 0), None);
        // The socket of a busy peer takes a while.
        while let Err(error) = post() {
            assert_eq!(error.errno(), libc::ENOMEM);
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

fn clocks_are_recorded() {
    let (a, _b) = pair_on(|context| {
        let init =
            CqInit { cqe: 64, channel: None, user_handle: 0, pd: None, stamped: true, ignore_overrun: false };
        Cq::create_as(context, init).unwrap()
    });
    let read = || (ferroce_os::clock::now().0, ferroce_os::clock::wall_clock());
    let before = read();
    complete(&a, 0..8);
    std::thread::sleep(Duration::from_millis(20));
    let between = read();
    complete(&a, 8..16);
    let after = read();
    let mut stamps: Vec<Stamp> = Vec::new();
    while stamps.len() < 16 {
        let mut next = |wc: &Completion, stamp| {
            assert_eq!(wc.wr_id, stamps.len() as u64);
            stamps.push(stamp);
        };
        a.cq.poll_stamped(3, &mut next).unwrap();
    }
    assert!(stamps.is_sorted_by_key(|stamp| stamp.clock));
    for (from, to, stamps) in [(before, between, &stamps[..8]), (between, after, &stamps[8..])] {
        for stamp in stamps {
            assert!((from.0..=to.0).contains(&stamp.clock));
            assert!((from.1..=to.1).contains(&stamp.wall_clock));
            assert_eq!((stamp.tags.cvlan, stamp.tags.flow_tag), (0, 0));
        }
    }
}

fn a_queue_that_does_not_record_reads_zeros() {
    let (a, _b) = pair(Service::Uc, 4096);
    complete(&a, 0..1);
    let mut got = None;
    while got.is_none() {
        a.cq.poll_stamped(1, |_, stamp| got = Some(stamp)).unwrap();
    }
    assert_eq!(got, Some(Stamp::default()));
}

fn an_event_stands_for_the_moderated_count() {
    let context = open();
    let channel = CompChannel::new(&context).unwrap();
    let cq = Cq::create(&context, 64, Some(&channel), 0).unwrap();
    let side = Side::with_cq(&context, Service::Uc, 4096, cq.clone());
    side.connect(side.qp.qpn());
    cq.moderate(4, Duration::from_secs(60));
    for round in 0..3 {
        cq.request_notify(false);
        complete(&side, 0..3);
        assert!(!take_event(&channel), "round {round}: an event for three of four");
        complete(&side, 3..4);
        assert!(take_event(&channel), "round {round}: no event for four");
        complete(&side, 4..9);
        assert!(!take_event(&channel), "round {round}: an event without a request");
        cq.poll(64, |_| ()).unwrap();
    }
    // What is there when the event is asked for counts.
    complete(&side, 0..2);
    cq.request_notify(false);
    assert!(!take_event(&channel));
    complete(&side, 2..4);
    assert!(take_event(&channel));
    cq.poll(64, |_| ()).unwrap();
    // What waits when moderation ends isn't forgotten.
    cq.request_notify(false);
    complete(&side, 0..1);
    assert!(!take_event(&channel));
    cq.moderate(0, Duration::ZERO);
    assert!(take_event(&channel));
    cq.request_notify(false);
    complete(&side, 1..2);
    assert!(take_event(&channel), "without moderation each completion raises its event");
}

/// No thread polls: the background thread raises the event.
fn an_event_comes_when_the_period_ends() {
    let context = open();
    let channel = CompChannel::new(&context).unwrap();
    let cq = Cq::create(&context, 64, Some(&channel), 0).unwrap();
    let side = Side::with_cq(&context, Service::Uc, 4096, cq.clone());
    side.connect(side.qp.qpn());
    let period = Duration::from_millis(60);
    cq.moderate(1000, period);
    for solicited_only in [false, true] {
        cq.request_notify(solicited_only);
        std::thread::sleep(Duration::from_millis(5));
        let start = Instant::now();
        complete(&side, 0..3);
        if solicited_only {
            std::thread::sleep(2 * period);
            assert!(!take_event(&channel), "an event for what wasn't asked for");
            break;
        }
        while !take_event(&channel) {
            assert!(start.elapsed() < LIMIT, "the event never came");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(start.elapsed() >= period, "the event came before its time");
        std::thread::sleep(2 * period);
        assert!(!take_event(&channel), "one request, two events");
        cq.poll(64, |_| ()).unwrap();
    }
    // A queue that ends while an event waits for its time leaves none behind.
    cq.request_notify(false);
    complete(&side, 0..1);
    side.qp.destroy().unwrap();
    cq.destroy().unwrap();
    std::thread::sleep(2 * period);
    assert!(!take_event(&channel));
}

/// Every order of what a program does to a queue that has a channel: no wake-up is lost, there is no event more than was
/// asked for, and none for an empty queue that only arming has raised.
fn an_event_that_arming_alone_has_raised_lapses_and_none_is_lost() {
    const LENGTH: u32 = 6;
    let context = open();
    let channel = CompChannel::new(&context).unwrap();
    let cq = Cq::create(&context, 64, Some(&channel), 0).unwrap();
    let side = Side::with_cq(&context, Service::Uc, 4096, cq.clone());
    side.connect(side.qp.qpn());
    let unread = || {
        let mut poll = libc::pollfd { fd: channel.events().fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    };
    for order in 0..5u32.pow(LENGTH) {
        let (mut waiting, mut arms, mut events) = (0, 0, 0);
        // Completions in the queue that came after an event was asked for, and whether that was before the last event.
        let (mut awaited, mut asked) = (0, false);
        let steps: Vec<_> = (0..LENGTH).map(|at| order / 5u32.pow(at) % 5).collect();
        for (at, step) in steps.iter().enumerate() {
            match step {
                0 => {
                    complete(&side, 0..1);
                    (waiting, awaited) = (waiting + 1, awaited + usize::from(asked));
                }
                1 => {
                    cq.request_notify(false);
                    (arms, asked) = (arms + 1, true);
                }
                2 => {
                    waiting -= cq.poll(1, |_| ()).unwrap();
                    awaited = awaited.min(waiting);
                }
                3 => {
                    waiting -= cq.poll(64, |_| ()).unwrap();
                    awaited = 0;
                }
                _ => {
                    if take_event(&channel) {
                        (events, asked, awaited) = (events + 1, false, 0);
                    }
                }
            }
            assert!(events <= arms, "{steps:?} at {at}: an event without a request");
            assert!(awaited == 0 || unread(), "{steps:?} at {at}: a completion without an event");
        }
        if steps.windows(3).next_back() == Some(&[0, 1, 3]) && arms == 1 {
            assert!(!unread(), "{steps:?}: an event for an empty queue");
        }
        // As new: empty, unarmed, no event.
        cq.request_notify(false);
        complete(&side, 0..1);
        assert!(take_event(&channel), "{steps:?}: the queue is deaf");
        while take_event(&channel) {}
        cq.poll(64, |_| ()).unwrap();
    }
}

/// What is left in the queue, or was read before, doesn't lapse.
fn only_an_unread_event_of_an_emptied_queue_lapses() {
    let context = open();
    let channel = CompChannel::new(&context).unwrap();
    let [first, second] =
        [1, 2].map(|user_handle| Cq::create(&context, 64, Some(&channel), user_handle).unwrap());
    let sides = [&first, &second].map(|cq| Side::with_cq(&context, Service::Uc, 4096, cq.clone()));
    for side in &sides {
        side.connect(side.qp.qpn());
        complete(side, 0..2);
        side.cq.request_notify(false);
    }
    first.poll(1, |_| ()).unwrap();
    first.poll(1, |_| ()).unwrap();
    second.poll(1, |_| ()).unwrap();
    assert!(take_event(&channel), "one is left in the second queue");
    assert!(!take_event(&channel), "and none in the first");
    second.poll(1, |_| ()).unwrap();
    complete(&sides[1], 2..3);
    assert!(!take_event(&channel), "the second queue's event was read: it has to be asked for again");
    complete(&sides[0], 2..3);
    assert!(take_event(&channel), "the first one still is");
    first.poll(1, |_| ()).unwrap();
    complete(&sides[0], 3..4);
    first.request_notify(false);
    first.poll(1, |_| ()).unwrap();
    for side in &sides {
        side.qp.destroy().unwrap();
    }
    first.destroy().unwrap();
    second.destroy().unwrap();
    assert!(channel.check_unused().is_ok());
}

fn an_ignored_overrun_keeps_the_newest() {
    let (a, _b) = pair_on(|context| {
        let init =
            CqInit { cqe: 8, channel: None, user_handle: 0, pd: None, stamped: true, ignore_overrun: true };
        Cq::create_as(context, init).unwrap()
    });
    complete(&a, 0..20);
    let mut ids = Vec::new();
    let mut clocks = Vec::new();
    a.cq.poll_stamped(64, |wc, stamp| {
        ids.push(wc.wr_id);
        clocks.push(stamp.clock);
    })
    .unwrap();
    assert_eq!(ids, (12..20).collect::<Vec<_>>());
    assert!(clocks.is_sorted());
    assert_eq!(a.qp.query().unwrap().state, QpState::Rts);
    assert_eq!(a.cq.poll(64, |_| ()).unwrap(), 0, "the queue is in order");
    assert!(a.context.async_events().take().is_none());
}

fn an_overrun_stops_the_queue_pair_and_says_so() {
    let (a, b) = pair_on(|context| Cq::create(context, 8, None, 7).unwrap());
    complete(&a, 0..9);
    let events: Vec<_> = std::iter::from_fn(|| a.context.async_events().take()).collect();
    assert_eq!(events, [AsyncEvent::CqError(7), AsyncEvent::QpFatal(a.qp.user_handle())]);
    assert_eq!((a.qp.query().unwrap().state, b.qp.query().unwrap().state), (QpState::Err, QpState::Rts));
    complete(&a, 9..12);
    assert!(a.context.async_events().take().is_none(), "both events come once");
    let mut ids = Vec::new();
    assert_eq!(a.cq.poll(64, |wc| ids.push(wc.wr_id)).unwrap(), 8);
    assert_eq!(ids, (0..8).collect::<Vec<_>>());
    assert_eq!(a.cq.poll(64, |_| ()).unwrap_err().errno(), libc::EIO);
}

fn a_queue_is_resized_with_entries_in_it() {
    let (a, _b) = pair_on(|context| Cq::create(context, 8, None, 0).unwrap());
    complete(&a, 0..6);
    assert_eq!(a.cq.resize(5).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(a.cq.resize(0).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(a.cq.resize(ferroce_queues::MAX_CQE + 1).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(a.cq.capacity(), 8);
    a.cq.resize(20).unwrap();
    complete(&a, 6..20);
    assert_eq!(a.cq.resize(8).unwrap_err().errno(), libc::EINVAL);
    let mut ids = Vec::new();
    a.cq.poll(15, |wc| ids.push(wc.wr_id)).unwrap();
    a.cq.resize(5).unwrap();
    a.cq.poll(15, |wc| ids.push(wc.wr_id)).unwrap();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
    assert!(a.context.async_events().take().is_none());
}

fn a_queue_of_four_million_takes_no_memory_before_it_needs_it() {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let context = open();
    let before = resident();
    let queues: Vec<_> =
        (0..16).map(|_| Cq::create(&context, ferroce_queues::MAX_CQE, None, 0).unwrap()).collect();
    assert!(resident() - before < 4 << 20, "{} bytes for empty queues", resident() - before);
    let side = Side::with_cq(&context, Service::Uc, 4096, queues[0].clone());
    side.connect(side.qp.qpn());
    complete(&side, 0..100_000);
    let mut next = 0;
    while next < 100_000 {
        queues[0]
            .poll(1000, |wc| {
                assert_eq!((wc.wr_id, wc.status), (next, WcStatus::Success));
                next += 1;
            })
            .unwrap();
    }
}

fn wqe(side: &Side, wr_id: u64, elements: usize) -> RecvWqe {
    RecvWqe { wr_id, sges: (0..elements).map(|i| side.sge(64 * i, 64)).collect() }
}

fn a_shared_receive_queue_changes_while_requests_wait_in_it() {
    let context = open();
    let pd = Pd::alloc(&context).unwrap();
    let srq = Srq::create(&pd, SrqAttr { max_wr: 4, max_sge: 1, limit: 0 }, 9).unwrap();
    let a = Side::new(&context, Service::Rc, 4096);
    let cq = Cq::create(&context, 64, None, 0).unwrap();
    let b = Side::of(&pd, Service::Rc, 4096, cq, Some(srq.clone()));
    a.connect(b.qp.qpn());
    b.connect(a.qp.qpn());
    for id in 0..4 {
        srq.post(wqe(&b, id, 1)).unwrap();
    }
    assert_eq!(srq.post(wqe(&b, 4, 1)).unwrap_err().errno(), libc::ENOMEM);
    let size = |max_wr| Some(NewSize { max_wr, max_sge: 2 });
    assert_eq!(srq.modify(size(3), Some(1)).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(srq.modify(size(8), Some(9)).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(srq.modify(size(ferroce_queues::MAX_WR + 1), None).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(srq.query(), SrqAttr { max_wr: 4, max_sge: 1, limit: 0 }, "a refused change changes nothing");
    srq.modify(size(8), Some(6)).unwrap();
    assert_eq!(srq.query(), SrqAttr { max_wr: 8, max_sge: 2, limit: 6 });
    assert_eq!(srq.modify(size(5), None).unwrap_err().errno(), libc::EINVAL, "the limit is above");
    for id in 4..8 {
        srq.post(wqe(&b, id, 2)).unwrap();
    }
    assert_eq!(srq.post(wqe(&b, 8, 3)).unwrap_err().errno(), libc::EINVAL);
    let event = || context.async_events().take();
    for id in 0..8 {
        assert_eq!(event(), None, "{id} requests used");
        a.send(id, SendOp::Send, a.sge(0, 64), None);
        let got = b.wait();
        assert_eq!((got.wr_id, got.status), (id, WcStatus::Success));
        assert_eq!(a.wait().status, WcStatus::Success);
        if id == 2 {
            // Five are left, fewer than six.
            assert_eq!(event(), Some(AsyncEvent::SrqLimitReached(9)));
            assert_eq!(srq.query().limit, 0, "it is raised once");
        }
    }
    assert_eq!(event(), None);
    assert_eq!(srq.destroy().unwrap_err().errno(), libc::EBUSY);
    b.qp.destroy().unwrap();
    srq.destroy().unwrap();
}

fn a_refused_destruction_says_how_many_queues_complete_there() {
    let side = Side::new(&open(), Service::Rc, 4096);
    let error = side.cq.destroy().unwrap_err();
    assert_eq!(error.errno(), libc::EBUSY);
    assert_eq!(error.to_string(), "the completion queue still has send and receive queues (2)");
}

macro_rules! on_both_fabrics {
    ($($name:ident;)*) => {
        mod within_a_process {
            use super::*;
            $(#[test] fn $name() {
                in_namespace(concat!("queues::within_a_process::", stringify!($name)), || super::$name());
            })*
        }
        mod over_udp {
            use super::*;
            $(#[test] fn $name() {
                in_namespace(concat!("queues::over_udp::", stringify!($name)), || { over_sockets(); super::$name(); });
            })*
        }
    };
}

on_both_fabrics! {
    clocks_are_recorded;
    a_queue_that_does_not_record_reads_zeros;
    an_event_stands_for_the_moderated_count;
    an_event_comes_when_the_period_ends;
    an_ignored_overrun_keeps_the_newest;
    an_overrun_stops_the_queue_pair_and_says_so;
    a_queue_is_resized_with_entries_in_it;
    a_queue_of_four_million_takes_no_memory_before_it_needs_it;
    a_shared_receive_queue_changes_while_requests_wait_in_it;
}

/// What doesn't depend on the fabric.
mod whatever_the_fabric {
    use super::in_namespace;

    #[test]
    fn an_event_that_arming_alone_has_raised_lapses_and_none_is_lost() {
        in_namespace(
            "queues::whatever_the_fabric::an_event_that_arming_alone_has_raised_lapses_and_none_is_lost",
            super::an_event_that_arming_alone_has_raised_lapses_and_none_is_lost,
        );
    }

    #[test]
    fn only_an_unread_event_of_an_emptied_queue_lapses() {
        in_namespace(
            "queues::whatever_the_fabric::only_an_unread_event_of_an_emptied_queue_lapses",
            super::only_an_unread_event_of_an_emptied_queue_lapses,
        );
    }

    #[test]
    fn a_refused_destruction_says_how_many_queues_complete_there() {
        in_namespace(
            "queues::whatever_the_fabric::a_refused_destruction_says_how_many_queues_complete_there",
            super::a_refused_destruction_says_how_many_queues_complete_there,
        );
    }
}
