//! Equal calls have equal messages and events, in the same order: a simulation depends on it.

use super::pair::{Fate, Pair, answer, ms};
use ferroce_cm::{ConnectionEvent, Event, Handle};
use ferroce_tests::random::Random;

/// Connections that are made and ended at random, a peer that is gone, and requests that are repeated: all messages and events.
fn history(seed: u64) -> String {
    let mut numbers = Random(seed);
    let mut pair = Pair::new();
    // Several listeners fit the same requests.
    for backlog in 1..4 {
        pair.listen(backlog);
    }
    let mut fates = numbers.clone();
    pair.judge = Box::new(move |_| match fates.below(10) {
        0 => Fate::Lost,
        1 => Fate::Twice,
        2 => Fate::Late(40),
        _ => Fate::Arrives,
    });
    let mut told = String::new();
    let mut handles: [Vec<Handle>; 2] = Default::default();
    for _ in 0..40 {
        match numbers.below(8) {
            0..=2 => handles[0].push(pair.connect(numbers.below(1 << 20) as u32)),
            3 => pair.run(ms(numbers.below(3000))),
            4 => {
                let side = numbers.below(2) as usize;
                let now = pair.now;
                pair.cms[side].ask_again(now, |_| true);
            }
            5 if numbers.below(3) == 0 => {
                let (side, now) = (numbers.below(2) as usize, pair.now);
                pair.cms[side].peer_gone(now, |id, _| id % 3 != 0);
            }
            _ => {
                let side = numbers.below(2) as usize;
                let count = handles[side].len() as u64;
                if count > 0 {
                    let (handle, now) = (handles[side][numbers.below(count) as usize], pair.now);
                    let _ = pair.cms[side].disconnect(now, handle);
                }
            }
        }
        pair.run(ms(5));
        for side in 0..2 {
            for event in std::mem::take(&mut pair.events[side]) {
                told += &format!("{:?} {side} {event:?}\n", pair.now);
                match event {
                    Event::Request { handle, .. } => {
                        handles[1].push(handle);
                        pair.cms[1].take(handle);
                        let _ = pair.cms[1].accept(pair.now, handle, &answer());
                    }
                    Event::Of(handle, ConnectionEvent::Reply(_)) => {
                        let _ = pair.cms[0].establish(handle);
                    }
                    _ => {}
                }
            }
        }
    }
    format!("{told}{:?}", pair.sent)
}

#[test]
fn equal_calls_have_equal_messages_and_events() {
    let mut established = 0;
    for seed in 0..1000 {
        let first = history(seed);
        established += u32::from(first.contains("Established"));
        assert_eq!(first, history(seed), "seed {seed}");
    }
    assert!(established > 900, "{established} seeds made a connection");
}
