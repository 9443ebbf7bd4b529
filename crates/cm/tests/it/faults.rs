//! Whatever the wire loses, repeats and reorders, each connection ends as documented.

use super::pair::{Fate, Pair, ms};
use ferroce_cm::{ConnectionEvent, Event, Handle};
use ferroce_wire::cm::Rejected;
use proptest::prelude::*;
use std::collections::HashMap;
use std::time::Duration;

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Arrives),
        2 => Just(Fate::Lost),
        1 => Just(Fate::Twice),
        2 => (1_u64..8000).prop_map(Fate::Late),
    ]
}

/// The events of a connection that a user has got.
#[derive(Default, Debug)]
struct Told {
    begun: u32,
    ended: u32,
    left: u32,
}

/// Programs that accept what comes, and end what they have after a while.
struct Programs {
    pair: Pair,
    told: [HashMap<Handle, Told>; 2],
}

impl Programs {
    fn react(&mut self) {
        for side in 0..2 {
            for event in std::mem::take(&mut self.pair.events[side]) {
                self.event(side, event);
            }
        }
    }

    fn event(&mut self, side: usize, event: Event) {
        let pair = &mut self.pair;
        match event {
            Event::Request { handle, .. } => {
                assert_eq!(side, 1);
                assert!(self.told[1].insert(handle, Told::default()).is_none(), "two events of {handle:?}");
                pair.cms[1].take(handle);
                // The peer may have gone.
                let _ = pair.cms[1].accept(pair.now, handle, &super::pair::answer());
            }
            Event::Lookup { .. } => panic!("there is no lookup"),
            Event::Of(handle, happening) => {
                let told = self.told[side].get_mut(&handle).expect("a connection");
                match happening {
                    ConnectionEvent::Reply(_) => {
                        assert_eq!((told.begun, told.ended), (0, 0));
                        told.begun += 1;
                        pair.cms[0].establish(handle).expect("established");
                    }
                    ConnectionEvent::Established => {
                        assert_eq!((told.begun, told.ended), (0, 0));
                        told.begun += 1;
                    }
                    ConnectionEvent::Rejected(reject) => {
                        assert!(told.begun == 0 || reject.rejected != Rejected::Request);
                        told.ended += 1;
                    }
                    ConnectionEvent::Unreachable => told.ended += 1,
                    ConnectionEvent::Disconnected { .. } => {
                        assert_eq!(told.ended, 0);
                        told.ended += 1;
                        let _ = pair.cms[side].disconnect(pair.now, handle);
                    }
                    ConnectionEvent::TimewaitExit => {
                        assert_eq!((told.ended, told.left), (1, 0));
                        told.left += 1;
                    }
                    ConnectionEvent::Answer(_) => panic!("there is no lookup"),
                }
                assert!(told.ended <= 1, "{told:?}");
            }
        }
        self.pair.pump();
    }

    fn run(&mut self, time: Duration) {
        let end = self.pair.now + time;
        self.react();
        while self.pair.step(end) {
            self.react();
        }
        self.pair.now = end;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_connection_ends_as_documented(
        fates in proptest::collection::vec(fate(), 0..60),
        connections in 1_u32..6,
        ending in proptest::collection::vec(0_usize..4, 6),
        pause in 0_u64..20_000,
    ) {
        let mut programs = Programs { pair: Pair::listening(), told: Default::default() };
        let mut fates = fates.into_iter();
        programs.pair.judge = Box::new(move |_| fates.next().unwrap_or(Fate::Arrives));
        let mut mine = Vec::new();
        for qpn in 1..=connections {
            let handle = programs.pair.connect(qpn);
            programs.told[0].insert(handle, Told::default());
            mine.push(handle);
            programs.run(ms(pause));
        }
        programs.run(Duration::from_secs(150));
        // One side asks for the end, or goes without a word.
        for (at, handle) in mine.iter().enumerate() {
            let now = programs.pair.now;
            match ending[at] {
                0 => programs.pair.cms[0].disconnect(now, *handle).expect("disconnected"),
                1 => programs.pair.cms[0].destroy(now, *handle),
                _ => {}
            }
            programs.run(ms(pause / 10));
        }
        for handle in programs.told[1].keys().copied().collect::<Vec<_>>() {
            let now = programs.pair.now;
            let _ = programs.pair.cms[1].disconnect(now, handle);
            programs.run(ms(pause / 10));
        }
        programs.run(Duration::from_secs(600));
        // All that began has ended, on both sides; nothing waits.
        for (side, told) in programs.told.iter().enumerate() {
            for (handle, told) in told {
                let destroyed = side == 0 && mine.iter().position(|h| h == handle).is_some_and(|at| ending[at] == 1);
                prop_assert!(destroyed || told.ended == 1, "side {}: {:?}", side, told);
            }
        }
        for side in 0..2 {
            prop_assert!(programs.pair.cms[side].poll_timeout().is_none());
            let now = programs.pair.now;
            for handle in programs.told[side].keys().copied().collect::<Vec<_>>() {
                programs.pair.cms[side].destroy(now, handle);
            }
            prop_assert_eq!(programs.pair.cms[side].count(), 0);
        }
    }
}
