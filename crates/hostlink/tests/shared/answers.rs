//! An answer to come is known of at any moment: its request hasn't been dealt with, or the peer owes, or the answer can be read.

use crate::explore;
use crate::protocol::DirectoryEntry;
use crate::ring::Ring;
use loom::thread;
use std::sync::Arc;

/// The entry of the QP that answers, and its word.
const NAME: u64 = 7;
const OWES: usize = 3;

/// The peer answers before it gives the request back, or owes the answer for a while.
fn never_forgotten(owes: bool) {
    explore(3, move || {
        let shared = Arc::new((Ring::new(), Ring::new(), DirectoryEntry::default()));
        let (there, back, entry) = &*shared;
        entry.publish(NAME, [0; DirectoryEntry::WORDS]);
        let end = there.try_send(&mut Ring::producer(), 0, 1).unwrap();
        let other = shared.clone();
        let peer = thread::spawn(move || {
            let (there, back, entry) = &*other;
            let (mut consumer, mut producer) = (Ring::consumer(), Ring::producer());
            if owes {
                entry.set(OWES, 1);
                assert_eq!(there.receive(&mut consumer, 1), Some((vec![0], false)));
            }
            back.try_send(&mut producer, 1, 1).unwrap();
            if owes {
                entry.set(OWES, 0);
            } else {
                assert_eq!(there.receive(&mut consumer, 1), Some((vec![0], false)));
            }
        });
        for _ in 0..2 {
            let is_to_come = !there.lines.is_consumed(end) || entry.get(OWES) != 0;
            assert!(is_to_come || back.has_cells());
        }
        peer.join().unwrap();
        assert!(there.lines.is_consumed(end));
        assert_eq!(entry.get(OWES), 0);
        assert!(back.has_cells());
        assert_eq!(back.receive(&mut Ring::consumer(), 1), Some((vec![1], false)));
        assert!(!back.has_cells());
    });
}

#[test]
fn an_answer_that_comes_with_the_end_of_its_request_is_never_forgotten() {
    never_forgotten(false);
}

#[test]
fn an_answer_that_is_owed_is_never_forgotten() {
    never_forgotten(true);
}
