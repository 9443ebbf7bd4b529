//! Results: a producer that finds the result of a cell finds what the consumer has done before, and never the result of another cell.

use crate::explore;
use crate::protocol::{Broken, CellResult, result, set_result};
use crate::ring::Ring;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use std::sync::Arc;

/// What becomes of the cells.
const RESULTS: [CellResult; 3] = [CellResult::Done, CellResult::Left, CellResult::Done];

/// The ring, the results, and what the consumer has executed.
struct Shared {
    ring: Ring,
    results: [AtomicU64; RESULTS.len()],
    executed: [UnsafeCell<bool>; RESULTS.len()],
}

#[test]
fn what_is_left_is_never_taken_for_executed_and_a_cell_that_was_given_back_has_its_result() {
    explore(3, || {
        let shared = Arc::new(Shared {
            ring: Ring::new(),
            results: std::array::from_fn(|_| AtomicU64::new(0)),
            executed: std::array::from_fn(|_| UnsafeCell::new(false)),
        });
        let mut producer = Ring::producer();
        let ends: Vec<u64> =
            (0..RESULTS.len()).map(|id| shared.ring.try_send(&mut producer, id, 1).unwrap()).collect();
        let other = shared.clone();
        let peer = thread::spawn(move || {
            let mut consumer = Ring::consumer();
            for (id, &made) in RESULTS.iter().enumerate() {
                if made == CellResult::Done {
                    // SAFETY: loom panics unless this is the only access.
                    other.executed[id].with_mut(|executed| unsafe { *executed = true });
                }
                set_result(&other.results[id], id as u64, made);
                assert_eq!(other.ring.receive(&mut consumer, 1).unwrap().0, [id]);
            }
        });
        let look = |id: usize| {
            let found = result(&shared.results[id], id as u64).unwrap();
            if found == Some(CellResult::Done) {
                // SAFETY: loom panics if the consumer isn't done with it.
                assert!(shared.executed[id].with(|executed| unsafe { *executed }));
            }
            assert!(found.is_none_or(|found| found == RESULTS[id]));
            found
        };
        for (id, &end) in ends.iter().enumerate() {
            let is_given_back = shared.ring.lines.is_consumed(end);
            assert!(look(id).is_some() || !is_given_back);
        }
        peer.join().unwrap();
        assert!((0..RESULTS.len()).all(|id| look(id).is_some()));
    });
}

#[test]
fn results_of_other_cells_and_numbers_that_are_no_result_are_neither() {
    explore(1, || {
        for position in [0, 1, 4095, 4096, u64::MAX >> 2] {
            let word = AtomicU64::new(0);
            assert_eq!(result(&word, position), Ok(None));
            for made in [CellResult::Done, CellResult::Left] {
                set_result(&word, position, made);
                assert_eq!(result(&word, position), Ok(Some(made)));
                for other in [position.wrapping_add(4096), position.wrapping_sub(4096), position ^ 1] {
                    assert_eq!(result(&word, other & u64::MAX >> 2), Ok(None));
                }
            }
            assert_eq!(result(&AtomicU64::new(position << 2 | 3), position), Err(Broken));
        }
    });
}
