//! What the transport does on a small network.

use ferroce_fabric::{Chances, Law, LinkSizes, RunOutcome, Shape, Traffic, World};

const SHAPE: Shape = Shape { leaves: 4, hosts_of_leaf: 8, spines: 4 };
const SIZES: LinkSizes = LinkSizes::DATA_CENTER;
const MTU: u32 = 4096;
const LIMIT: u64 = 2_000_000_000;

fn run(traffic: &Traffic, law: Law) -> RunOutcome {
    World::new(SHAPE, SIZES, (law, MTU), 1).run(traffic, LIMIT)
}

/// How often the least time that is possible the last flow took.
fn slowdown(outcome: &RunOutcome) -> f64 {
    outcome.end() as f64 / outcome.ideal() as f64
}

#[test]
fn equal_seeds_give_equal_runs() {
    let outcome = |seed| {
        let mut world = World::new(SHAPE, SIZES, (Law::Window, MTU), seed);
        world.lose(0, 0, 50_000);
        world.run(&Traffic::permutation(32, 1 << 20, &mut Chances::new(5)), LIMIT)
    };
    assert_eq!(outcome(1), outcome(1));
    assert_ne!(outcome(1), outcome(2));
}

#[test]
fn senders_that_meet_at_a_receiver_share_its_link() {
    let traffic = Traffic::incast(32, 24, 1 << 20, &mut Chances::new(1));
    for law in [Law::Window, Law::Selective] {
        let outcome = run(&traffic, law);
        assert_eq!((outcome.totals.failed, outcome.totals.timeouts), (0, 0));
        assert!(slowdown(&outcome) < 1.15, "{outcome:?}");
        assert!(outcome.fairness() > 0.95, "{}", outcome.fairness());
    }
    // Without the window the same traffic takes for ever: the network loses most of it.
    let unlimited = run(&traffic, Law::Unlimited);
    assert!(slowdown(&unlimited) > 10.0 && unlimited.totals.dropped > unlimited.totals.packets / 2);
}

#[test]
fn short_messages_that_meet_at_a_receiver_wait_for_milliseconds_at_most() {
    for (bytes, law) in [(16, Law::Window), (64, Law::Window), (16, Law::Selective), (64, Law::Selective)] {
        let outcome = run(&Traffic::incast(32, 24, bytes << 10, &mut Chances::new(1)), law);
        assert!(outcome.percentile(1000) < 3_000_000, "{bytes}: {outcome:?}");
    }
}

/// Without congestion notifications: of QPs that haven't agreed on them (ibv_set_ece(3)).
#[test]
fn senders_that_meet_at_a_receiver_share_its_link_where_no_switch_marks_packets() {
    let sizes = LinkSizes { mark: u64::MAX, ..SIZES };
    let laws = [Law::Window, Law::Selective];
    for (bytes, most, law) in laws.into_iter().flat_map(|law| [(64 << 10, 6.0, law), (1 << 20, 2.0, law)]) {
        let traffic = Traffic::incast(32, 24, bytes, &mut Chances::new(1));
        let outcome = World::new(SHAPE, sizes, (law, MTU), 1).run(&traffic, LIMIT);
        assert_eq!((outcome.totals.failed, outcome.totals.timeouts), (0, 0));
        assert!(slowdown(&outcome) < most, "{bytes}: {outcome:?}");
    }
}

#[test]
fn all_write_to_all_in_little_more_than_the_least_time() {
    for law in [Law::Window, Law::Selective] {
        let outcome = run(&Traffic::all_to_all(32, 64 << 10, &mut Chances::new(1)), law);
        assert_eq!((outcome.totals.failed, outcome.totals.timeouts), (0, 0));
        assert!(slowdown(&outcome) < 3.5, "{outcome:?}");
    }
}

/// A path with a round trip of a millisecond that loses packets without being full.
#[test]
fn losses_without_congestion_cost_little() {
    let shape = Shape { leaves: 2, hosts_of_leaf: 1, spines: 1 };
    let goodput = |law, socket, mtu, lost| {
        let mut world = World::new(shape, LinkSizes { socket, ..LinkSizes::LONG_PATH }, (law, mtu), 1);
        world.lose(0, 0, lost);
        let outcome = world.run(&Traffic::permutation(2, 64 << 20, &mut Chances::new(1)), 10 * LIMIT);
        assert_eq!(outcome.totals.failed, 0);
        outcome.goodput()
    };
    let usual = LinkSizes::LONG_PATH.socket;
    for (law, socket, mtu, least) in [
        (Law::Window, usual, 4096, [0.95, 0.8, 0.4]),
        (Law::Selective, usual, 4096, [0.95, 0.95, 0.9]),
        (Law::Selective, 1 << 20, 4096, [0.95, 0.9, 0.6]),
        (Law::Selective, 1 << 20, 1024, [0.95, 0.9, 0.6]),
    ] {
        let free = goodput(law, socket, mtu, 0);
        for (lost, least) in [100, 1000, 10_000].into_iter().zip(least) {
            let part = goodput(law, socket, mtu, lost) / free;
            assert!(part >= least, "{law:?}, {socket} in flight, {lost} of a million lost: {part:.2}");
        }
    }
}

/// Where only the oldest packet's loss is known, everything after it leaves again.
#[test]
fn a_peer_that_keeps_what_it_has_gets_no_more_than_was_lost() {
    let outcome = |law| {
        let mut world = World::new(SHAPE, SIZES, (law, MTU), 1);
        world.lose(0, 0, 10_000);
        world.run(&Traffic::permutation(32, 8 << 20, &mut Chances::new(1)), LIMIT).totals
    };
    let (selective, back) = (outcome(Law::Selective), outcome(Law::Window));
    assert_eq!((selective.failed, back.failed), (0, 0));
    let packets_lost = selective.lost + selective.dropped;
    assert!(selective.repeated < packets_lost * 5 / 4, "{selective:?}");
    assert!(back.repeated > 4 * (back.lost + back.dropped), "{back:?}");
}
