//! Connections end.

use super::pair::{Fate, Pair, lose_all, lose_first, ms};
use ferroce_cm::{ConnectionEvent, Handle};
use std::time::Duration;

const ENDED: ConnectionEvent = ConnectionEvent::Disconnected { timed_out: false };

/// Both sides are in time-wait, and leave it.
fn wait_and_forget(pair: &mut Pair, handles: [Handle; 2]) {
    pair.run(ms(2100));
    for (side, handle) in handles.into_iter().enumerate() {
        pair.expect(side, handle, |h| *h == ConnectionEvent::TimewaitExit);
        pair.destroy(side, handle);
        assert_eq!(pair.cms[side].count(), 0);
    }
    pair.expect_silence();
    assert!(pair.cms.iter().all(|cm| cm.poll_timeout().is_none()));
}

#[test]
fn the_peer_agrees_when_its_program_does() {
    for asking in [0, 1] {
        let mut pair = Pair::listening();
        let handles = pair.connected();
        pair.disconnect(asking, handles[asking]);
        pair.run(ms(10));
        pair.expect(1 - asking, handles[1 - asking], |h| *h == ENDED);
        pair.expect_silence();
        pair.disconnect(1 - asking, handles[1 - asking]);
        pair.run(ms(10));
        pair.expect(asking, handles[asking], |h| *h == ENDED);
        assert_eq!(pair.traffic(), [(asking, "DREQ"), (1 - asking, "DREP")]);
        // Once more, to no effect.
        pair.disconnect(asking, handles[asking]);
        wait_and_forget(&mut pair, handles);
    }
}

#[test]
fn who_asks_for_the_end_was_ready_before() {
    for overtaken in [false, true] {
        let mut pair = Pair::listening();
        let [mine, theirs] = pair.answered();
        let fate = move |what| match (what, overtaken) {
            ("RTU", true) => Fate::Late(50),
            ("RTU", false) => Fate::Lost,
            _ => Fate::Arrives,
        };
        pair.judge = Box::new(move |mad| fate(mad.message.name()));
        pair.establish(mine);
        // Its RTU is lost, or overtaken by the DREQ.
        pair.disconnect(0, mine);
        pair.run(ms(100));
        pair.expect(1, theirs, |h| *h == ConnectionEvent::Established);
        pair.expect(1, theirs, |h| *h == ENDED);
        pair.expect_silence();
        pair.disconnect(1, theirs);
        pair.run(ms(10));
        pair.expect(0, mine, |h| *h == ENDED);
        wait_and_forget(&mut pair, [mine, theirs]);
    }
}

#[test]
fn who_takes_its_reply_back_ends_what_the_peer_takes_for_established() {
    for asks_for_the_end in [false, true] {
        let mut pair = Pair::listening();
        let [mine, theirs] = pair.answered();
        pair.judge = lose_all(&["RTU", "DREQ"]);
        pair.establish(mine);
        if asks_for_the_end {
            pair.disconnect(0, mine);
        }
        pair.run(ms(10));
        pair.destroy(1, theirs);
        pair.run(ms(10));
        pair.expect(0, mine, |h| matches!(h, ConnectionEvent::Rejected(_)));
        pair.destroy(0, mine);
        pair.run(ms(20_000));
        pair.expect_silence();
        assert_eq!((pair.cms[0].count(), pair.cms[1].count()), (0, 0));
    }
}

#[test]
fn both_may_ask_at_the_same_time() {
    let mut pair = Pair::listening();
    let handles = pair.connected();
    pair.disconnect(0, handles[0]);
    pair.disconnect(1, handles[1]);
    pair.run(ms(10));
    pair.expect(0, handles[0], |h| *h == ENDED);
    pair.expect(1, handles[1], |h| *h == ENDED);
    wait_and_forget(&mut pair, handles);
}

#[test]
fn a_silent_peer_is_given_up() {
    let mut pair = Pair::listening();
    let [mine, _] = pair.connected();
    pair.judge = lose_all(&["DREQ"]);
    pair.disconnect(0, mine);
    pair.run(Duration::from_secs(99));
    pair.expect(0, mine, |h| *h == ConnectionEvent::Disconnected { timed_out: true });
    assert_eq!(pair.times(0, "DREQ"), (0..16).map(|n| n * 6144).collect::<Vec<_>>());
    pair.run(ms(2100));
    pair.expect(0, mine, |h| *h == ConnectionEvent::TimewaitExit);
}

#[test]
fn lost_messages_of_the_end_come_again() {
    for what in ["DREQ", "DREP"] {
        let mut pair = Pair::listening();
        let handles = pair.connected();
        pair.judge = lose_first(what);
        pair.disconnect(0, handles[0]);
        pair.run(ms(6200));
        pair.expect(1, handles[1], |h| *h == ENDED);
        pair.disconnect(1, handles[1]);
        pair.run(ms(12_400));
        pair.expect(0, handles[0], |h| *h == ENDED);
    }
}

#[test]
fn a_destroyed_connection_is_ended_with_its_peer() {
    for (asking, lost) in [(0, ""), (1, ""), (0, "DREQ"), (0, "DREP")] {
        let mut pair = Pair::listening();
        let handles = pair.connected();
        pair.judge = lose_first(lost);
        pair.destroy(asking, handles[asking]);
        pair.run(ms(6200));
        pair.expect(1 - asking, handles[1 - asking], |h| *h == ENDED);
        pair.destroy(1 - asking, handles[1 - asking]);
        pair.run(ms(6200));
        pair.expect_silence();
        assert_eq!((pair.cms[0].count(), pair.cms[1].count()), (0, 0), "{asking} {lost}");
    }
}

#[test]
fn a_connection_that_nobody_remembers_is_ended_at_once() {
    let mut pair = Pair::listening();
    let [mine, theirs] = pair.connected();
    // The asked process has died.
    pair.cms[1] = ferroce_cm::Cm::new(super::pair::config(1));
    pair.disconnect(0, mine);
    pair.run(ms(10));
    pair.expect(0, mine, |h| *h == ENDED);
    assert_eq!(pair.traffic(), [(0, "DREQ"), (1, "DREP")]);
    let _ = theirs;
}

#[test]
fn what_a_dead_peer_would_have_said_is_told() {
    // Established.
    let mut pair = Pair::listening();
    let [mine, theirs] = pair.connected();
    let gone = |pair: &mut Pair, side: usize, peer: Handle| {
        let now = pair.now;
        pair.cms[side].peer_gone(now, |id, _| id == peer.0);
        pair.pump();
    };
    gone(&mut pair, 0, Handle(1));
    pair.expect_silence();
    gone(&mut pair, 0, theirs);
    pair.expect(0, mine, |h| *h == ENDED);
    pair.run(ms(2100));
    pair.expect(0, mine, |h| *h == ConnectionEvent::TimewaitExit);
    // Accepted.
    let mut pair = Pair::listening();
    pair.judge = lose_all(&["REP"]);
    let mine = pair.connect(0x11);
    pair.run(ms(10));
    let theirs = pair.request();
    pair.accept(theirs);
    gone(&mut pair, 1, mine);
    pair.expect(1, theirs, |h| matches!(h, ConnectionEvent::Rejected(_)));
    // Asked only.
    let mine = pair.connect(0x12);
    pair.run(ms(10));
    let theirs = pair.request();
    gone(&mut pair, 1, mine);
    pair.expect_silence();
    assert!(pair.cms[1].accept(pair.now, theirs, &super::pair::answer()).is_err());
}

#[test]
fn every_state_can_be_destroyed() {
    for steps in 0..4 {
        for side in [0, 1] {
            let mut pair = Pair::listening();
            let mine = pair.connect(0x11);
            pair.run(ms(10));
            let theirs = pair.request();
            if steps > 0 {
                pair.accept(theirs);
                pair.run(ms(10));
                pair.events[0].clear();
            }
            if steps > 1 {
                pair.establish(mine);
                pair.run(ms(10));
                pair.events[1].clear();
            }
            if steps > 2 {
                pair.disconnect(0, mine);
                pair.run(ms(10));
                pair.events[1].clear();
            }
            let handles = [mine, theirs];
            pair.destroy(side, handles[side]);
            pair.run(Duration::from_secs(200));
            pair.destroy(1 - side, handles[1 - side]);
            pair.run(Duration::from_secs(200));
            let left = (pair.cms[0].count(), pair.cms[1].count());
            assert_eq!(left, (0, 0), "{steps} steps, side {side}");
        }
    }
}

#[test]
fn a_request_to_a_process_that_may_be_gone_is_sent_again_soon_and_not_counted() {
    let mut pair = Pair::new();
    pair.judge = lose_all(&["REQ"]);
    let mine = pair.connect(0x11);
    pair.run(ms(500));
    let now = pair.now;
    for expected in [true, false] {
        pair.cms[0].ask_again(now, |_| expected);
        pair.run(ms(200));
    }
    assert_eq!(pair.times(0, "REQ"), [0, 600]);
    // All repetitions follow.
    pair.run(Duration::from_secs(99));
    assert_eq!(pair.times(0, "REQ").len(), 2 + 15);
    pair.expect(0, mine, |h| *h == ConnectionEvent::Unreachable);
}

#[test]
fn a_process_that_ends_says_so_on_all_its_connections() {
    let mut pair = Pair::listening();
    let [mine, _] = pair.connected();
    // Asked, and not fetched.
    let another = pair.connect(0x12);
    pair.run(ms(10));
    let now = pair.now;
    pair.cms[1].destroy_all(now);
    pair.run(ms(10));
    let mut told = std::mem::take(&mut pair.events[0]);
    told.sort_by_key(|event| matches!(event, ferroce_cm::Event::Of(of, _) if *of == another));
    let ferroce_cm::Event::Of(of, happening) = &told[0] else { panic!("{told:?}") };
    assert_eq!((of, happening), (&mine, &ENDED));
    let ferroce_cm::Event::Of(of, ConnectionEvent::Rejected(reject)) = &told[1] else { panic!("{told:?}") };
    assert_eq!((of, reject.reason), (&another, ferroce_wire::cm::RejectReason::CONSUMER));
    assert!(pair.cms[0].is_over(another) && !pair.cms[0].is_over(mine));
    // There is no listener any more.
    let late = pair.connect(0x13);
    pair.run(ms(10));
    pair.expect(0, late, |h| matches!(h, ConnectionEvent::Rejected(r) if r.reason.0 == 8));
    pair.disconnect(0, mine);
    pair.run(ms(10));
    assert_eq!(pair.cms[1].count(), 0);
}
