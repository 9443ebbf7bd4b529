//! Results: a producer that finds the result of a cell finds what the consumer has done before, and never the result of another cell. It
//! reads the answer that has come with a result before it uses the answer's room again.

use crate::explore;
use crate::protocol::{Broken, CELL, CellResult, NO_CELL, Producer, result, set_result};
use crate::ring::Ring;
use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::collections::VecDeque;
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

/// Lines of an answer: two answers take all of the bulk.
const ANSWER: usize = 4;

/// A ring with two cells whose answers go to their bulk.
struct Asked {
    ring: Ring,
    results: [AtomicU64; 2],
    /// The cells whose results are awaited.
    unacked: Mutex<VecDeque<u64>>,
}

impl Asked {
    fn answer(&self, position: u64) -> impl Iterator<Item = &UnsafeCell<usize>> {
        self.ring.bulk(position * (ANSWER * CELL) as u64, ANSWER)
    }

    /// Reads the answer in the oldest cell, if its result is there.
    fn read_answer(&self) {
        let mut unacked = self.unacked.lock().unwrap();
        let Some(&position) = unacked.front().filter(|&&position| position < 2) else { return };
        if result(&self.results[position as usize], position) != Ok(Some(CellResult::Done)) {
            return;
        }
        self.ring.awaited.begin_notifying();
        self.ring.awaited.begin_reading(position);
        unacked.pop_front();
        self.ring.awaited.set_first(unacked.front().copied().unwrap_or(NO_CELL));
        drop(unacked);
        for line in self.answer(position) {
            // SAFETY: loom panics if another thread writes at the same time.
            assert_eq!(line.with(|line| unsafe { *line }), position as usize);
        }
        self.ring.awaited.end_notifying();
    }

    /// Sends a cell with bulk, whose result is awaited too, if there is room.
    fn try_send(&self, producer: &mut Producer) {
        if let Some(end) = self.ring.try_send(producer, 7, ANSWER) {
            let mut unacked = self.unacked.lock().unwrap();
            if unacked.is_empty() {
                self.ring.awaited.set_first(end - 1);
            }
            unacked.push_back(end - 1);
        }
    }
}

#[test]
fn an_answer_is_read_before_its_room_is_used_again() {
    explore(3, || {
        let asked = Asked {
            ring: Ring::new(),
            results: std::array::from_fn(|_| AtomicU64::new(0)),
            unacked: Mutex::new(VecDeque::from([0, 1])),
        };
        let mut producer = Ring::producer();
        asked.ring.awaited.set_first(0);
        for id in 0..2 {
            asked.ring.try_send(&mut producer, id, ANSWER).unwrap();
        }
        let asked = Arc::new(asked);
        let other = asked.clone();
        let peer = thread::spawn(move || {
            let mut consumer = Ring::consumer();
            for id in 0..2 {
                for line in other.answer(id as u64) {
                    // SAFETY: loom panics unless this is the only access.
                    line.with_mut(|line| unsafe { *line = id });
                }
                set_result(&other.results[id], id as u64, CellResult::Done);
                assert_eq!(other.ring.receive(&mut consumer, 1).unwrap().0, [id]);
            }
        });
        let other = asked.clone();
        let sender = thread::spawn(move || {
            for _ in 0..2 {
                other.try_send(&mut producer);
            }
        });
        for _ in 0..2 {
            asked.read_answer();
        }
        peer.join().unwrap();
        sender.join().unwrap();
    });
}

/// Cells of which one takes the last room that a producer that waits needs.
const SENT: usize = 5;

/// The producer finds the room that the thread which reads results frees, or that thread finds that the producer waits.
fn is_found(has_answers: bool) {
    explore(3, move || {
        let shared = Arc::new((Ring::new(), Mutex::new(Ring::producer()), AtomicU64::new(0)));
        let (ring, producer, waits) = &*shared;
        ring.awaited.set_first(0);
        for id in 0..SENT {
            ring.try_send(&mut producer.lock().unwrap(), id, 0).unwrap();
        }
        ring.receive(&mut Ring::consumer(), SENT).unwrap();
        let other = shared.clone();
        let sender = thread::spawn(move || {
            let (ring, producer, waits) = &*other;
            let mut producer = producer.lock().unwrap();
            waits.store(1, Ordering::SeqCst);
            ring.lines.wait();
            producer.has_room(&ring.lines, &ring.awaited).unwrap()
        });
        ring.awaited.begin_notifying();
        if has_answers {
            ring.awaited.begin_reading(0);
        }
        ring.awaited.set_first(NO_CELL);
        ring.awaited.end_notifying();
        ring.awaited.have_freed_room();
        let finds = waits.load(Ordering::SeqCst) == 1;
        assert!(sender.join().unwrap() || finds);
        assert!(producer.lock().unwrap().has_room(&ring.lines, &ring.awaited).unwrap());
    });
}

#[test]
fn a_queue_pair_that_waits_is_found_by_the_thread_that_reads_results() {
    is_found(false);
    is_found(true);
}
