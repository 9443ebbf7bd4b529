//! Acknowledgement by position: the sender acts on the peer's word only when it has read the records with which the peer disowns.

use crate::alarm::Alarm;
use crate::explore;
use crate::protocol::{Consumer, Producer, RingWords};
use crate::ring::Ring;
use loom::thread;
use std::sync::Arc;

/// Records that the consumer has, one grain each; whether it executes them.
const EXECUTES: [bool; 3] = [true, false, true];
const SIZE: usize = 8 * RingWords::GRAIN;

#[test]
fn what_is_disowned_is_never_taken_for_executed() {
    explore(3, || {
        // The ring whose records are acknowledged, and that of the way back.
        let shared = Arc::new((Ring::new(), Ring::new(), Alarm::new()));
        let (there, back, news) = &*shared;
        let mut producer = Producer::new(SIZE);
        let ends: Vec<u64> =
            (0..EXECUTES.len()).map(|id| there.try_send(&mut producer, id, 1).unwrap()).collect();
        let other = shared.clone();
        let peer = thread::spawn(move || {
            let (there, back, news) = &*other;
            let (mut consumer, mut producer) = (Consumer::new(SIZE), Producer::new(SIZE));
            let mut disowned = 0;
            while let Some((ids, _)) = there.receive(&mut consumer, 1) {
                if !EXECUTES[ids[0]] {
                    back.try_send(&mut producer, ids[0], 1).unwrap();
                    disowned += 1;
                }
                there.lines.acknowledge(consumer.head(), disowned);
                news.ring();
            }
        });
        let mut consumer = Consumer::new(SIZE);
        let (mut known, mut disowned) = (0, Vec::new());
        while known < producer.tail() {
            let executed = there.lines.executed();
            let counted = there.lines.disowned();
            if executed != known && counted <= disowned.len() as u64 {
                known = executed;
                for (id, _) in ends.iter().enumerate().filter(|(_, end)| **end <= known) {
                    assert!(EXECUTES[id] || disowned.contains(&id), "{id} is taken for executed");
                }
                continue;
            }
            match back.receive(&mut consumer, 1) {
                Some((ids, _)) => disowned.extend(ids),
                None if counted > disowned.len() as u64 => panic!("counted, and not there"),
                None => news.wait(),
            }
        }
        peer.join().unwrap();
    });
}
