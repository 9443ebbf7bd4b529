//! The slots of a queue (rule S5), against a model.

use ferroce_buffers::Shelf;
use ferroce_buffers::slots::ring;
use std::collections::VecDeque;
use std::rc::Rc;

/// A generator of numbers (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27) % bound
    }
}

#[test]
fn unsignalled_entries_retire_with_a_later_one_in_order() {
    for seed in 0..if cfg!(miri) { 4 } else { 200 } {
        let mut numbers = Numbers(seed);
        let depth = 1 + numbers.below(9) as u32;
        let (mut poster, retirer) = ring(depth);
        // What the adapter has accepted and not completed: number, entry, whether its completion is reported.
        let mut adapter: VecDeque<(u32, u64, bool)> = VecDeque::new();
        let (mut posted, mut retired) = (0, 0);
        for _ in 0..200 {
            if numbers.below(2) == 0 {
                match poster.push(posted) {
                    Ok(number) => {
                        assert!(posted - retired < u64::from(depth));
                        adapter.push_back((number, posted, numbers.below(3) == 0));
                        posted += 1;
                    }
                    Err(entry) => assert_eq!((entry, posted - retired), (posted, u64::from(depth))),
                }
            } else if let Some(through) = adapter.iter().position(|(_, _, signalled)| *signalled) {
                let (number, last, _) = adapter[through];
                adapter.drain(..=through);
                assert!(retirer.is_outstanding(number));
                while retirer.is_outstanding(number) {
                    assert_eq!(retirer.pop(), Some(retired));
                    retired += 1;
                }
                assert_eq!(retired, last + 1);
                assert!(!retirer.is_outstanding(number), "a completion is matched once");
                assert!(!retirer.is_outstanding(number.wrapping_add(depth)));
            }
            assert_eq!(u64::from(poster.room()), u64::from(depth) - (posted - retired));
        }
    }
}

#[test]
fn entries_that_are_left_are_dropped_once() {
    let entry = Rc::new(());
    let (mut poster, retirer) = ring(3);
    for _ in 0..5 {
        while poster.push(entry.clone()).is_ok() {}
        assert_eq!(Rc::strong_count(&entry), 4);
        drop((retirer.pop(), retirer.pop()));
    }
    drop(poster);
    assert!(Rc::strong_count(&entry) > 1);
    drop(retirer);
    assert_eq!(Rc::strong_count(&entry), 1);
}

#[test]
fn entries_of_a_shelf_are_taken_once_by_their_own_numbers() {
    for seed in 0..if cfg!(miri) { 4 } else { 100 } {
        let mut numbers = Numbers(seed);
        let depth = 1 + numbers.below(6) as u32;
        let mut shelf = Shelf::new(depth);
        let mut outstanding: Vec<(u32, u64)> = Vec::new();
        let mut past: Vec<u32> = Vec::new();
        for entry in 0..200 {
            if numbers.below(2) == 0 {
                match shelf.push(entry) {
                    Ok(number) => {
                        assert!(!past.contains(&number), "a number of the past");
                        outstanding.push((number, entry));
                    }
                    Err(back) => assert_eq!((back, outstanding.len()), (entry, depth as usize)),
                }
            } else if !outstanding.is_empty() {
                let at = numbers.below(outstanding.len() as u64) as usize;
                let (number, entry) = outstanding.swap_remove(at);
                assert!(shelf.is_outstanding(number));
                assert_eq!(shelf.take(number), Some(entry));
                assert_eq!(shelf.take(number), None, "a stale number");
                past.push(number);
            }
            assert_eq!(shelf.room() as usize, depth as usize - outstanding.len());
        }
        let mut left: Vec<u64> = std::iter::from_fn(|| shelf.pop()).collect();
        let mut expected: Vec<u64> = outstanding.iter().map(|(_, entry)| *entry).collect();
        left.sort_unstable();
        expected.sort_unstable();
        assert_eq!(left, expected);
    }
}
