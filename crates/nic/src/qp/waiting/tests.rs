use super::*;
use crate::namespace::in_namespace;
use crate::side::{Side, open};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn packet(len: usize) -> Waiting {
    Waiting::Answer { psn: 0, answer: vec![0; len] }
}

/// Of an adapter.
fn counter() -> &'static AtomicUsize {
    Box::leak(Box::default())
}

#[test]
fn the_first_packet_has_room_where_other_queue_pairs_have_used_it_up() {
    let of_all = counter();
    of_all.store(MOST_OF_ALL, Ordering::Relaxed);
    for answers in [true, false] {
        let mut waiting = WaitingPackets::default();
        waiting.push(of_all, answers, packet(1));
        waiting.push(of_all, answers, packet(2));
        assert!(waiting.has(answers) && !waiting.take_loss(answers), "its memory is looked at again");
        assert_eq!(waiting.pop(answers).map(|packet| packet.bytes()), Some(OVERHEAD + 1));
        assert!(waiting.pop(answers).is_none(), "there was no room for the second one");
        assert!(waiting.take_loss(answers), "the peer is asked again");
        assert!(!waiting.take_loss(answers));
        // It comes again.
        waiting.push(of_all, answers, packet(2));
        assert!(waiting.pop(answers).is_some() && !waiting.take_loss(answers));
    }
}

#[test]
fn packets_that_were_kept_wait_before_those_that_have_come_later() {
    let of_all = counter();
    let mut waiting = WaitingPackets::default();
    let lengths = |waiting: &mut WaitingPackets| {
        std::iter::from_fn(|| waiting.pop(false)).map(|packet| packet.bytes() - OVERHEAD).collect::<Vec<_>>()
    };
    [3, 4].into_iter().for_each(|len| waiting.push(of_all, false, packet(len)));
    waiting.list_of(of_all, false).push_before_all([1, 2].into_iter().map(packet));
    assert_eq!(lengths(&mut waiting), [1, 2, 3, 4]);
    assert!(!waiting.take_loss(false) && of_all.load(Ordering::Relaxed) == 0);
    // Where others have used the room up, the peer sends them again.
    waiting.push(of_all, false, packet(3));
    of_all.fetch_add(MOST_OF_ALL, Ordering::Relaxed);
    waiting.list_of(of_all, false).push_before_all([1, 2].into_iter().map(packet));
    assert_eq!(lengths(&mut waiting), [3]);
    assert!(waiting.take_loss(false));
}

#[test]
fn what_waits_in_one_process_takes_no_room_from_another() {
    let (parent, child) = (counter(), counter());
    parent.store(MOST_OF_ALL, Ordering::Relaxed);
    let mut waiting = WaitingPackets::default();
    for len in 1..=2 {
        waiting.push(child, true, packet(len));
    }
    assert_eq!(child.load(Ordering::Relaxed), 2 * OVERHEAD + 3);
    waiting.clear();
    assert_eq!([parent, child].map(|counter| counter.load(Ordering::Relaxed)), [MOST_OF_ALL, 0]);
}

#[test]
fn a_queue_pair_after_a_panic_gives_the_room_of_what_waits_back() {
    const NAME: &str = "qp::waiting::tests::a_queue_pair_after_a_panic_gives_the_room_of_what_waits_back";
    in_namespace(NAME, || {
        let side = Side::new(&open(), Service::Rc, 64);
        let (qp, adapter) = (&side.qp, side.qp.adapter);
        let panics = || {
            adapter.with_work(|work| {
                qp.work(work, clock::now(), |_, env| {
                    env.waiting.push(&adapter.waiting_bytes, false, packet(1));
                    assert_eq!(adapter.waiting_bytes.load(Ordering::Relaxed), OVERHEAD + 1);
                    panic!("injected");
                });
            });
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        adapter.with_work(|work| qp.work(work, clock::now(), |_, _| ()));
        assert_eq!(adapter.waiting_bytes.load(Ordering::Relaxed), 0);
        side.close();
    });
}
