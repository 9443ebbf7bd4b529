//! Threads that read something without a lock and a thread that removes it, as `fork::reading` uses their words, in every order
//! that threads and memory allow (loom). The word is the file of the library itself, compiled with loom's atomics.

#[path = "../src/fork/reading_word.rs"]
mod reading_word;

/// Stands for the crate's `atomics`.
mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
}

use crate::reading_word::ReadingFlag;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;
use std::sync::Arc;

/// Something that is there while `found` is 1. Loom finds every access to `data` that isn't ordered with the others.
struct Taken {
    found: AtomicU32,
    reading: ReadingFlag,
    data: UnsafeCell<u32>,
}

// SAFETY: loom checks the accesses to the cell.
unsafe impl Sync for Taken {}

/// membarrier(2) orders at least as much.
fn order() {
    fence(Ordering::SeqCst);
}

impl Taken {
    fn read(&self) {
        self.reading.enter(order);
        if self.found.load(Ordering::Acquire) == 1 {
            // SAFETY: checked by loom.
            let data = self.data.with(|data| unsafe { *data });
            assert_eq!(data % 2, 0);
        }
        self.reading.leave();
    }

    /// Takes it away, changes it in two steps, and lets it be found again.
    fn change(&self) {
        self.found.store(0, Ordering::Release);
        order();
        let seen = self.reading.seen();
        while !self.reading.has_left(seen) {
            thread::yield_now();
        }
        // SAFETY: checked by loom.
        self.data.with_mut(|data| unsafe { *data += 1 });
        // SAFETY: checked by loom.
        self.data.with_mut(|data| unsafe { *data += 1 });
        self.found.store(1, Ordering::Release);
    }
}

fn explore(reader: impl Fn(&Taken) + Sync + Send + Copy + 'static, changes: u32) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let taken = Arc::new(Taken {
            found: AtomicU32::new(1),
            reading: ReadingFlag::new(),
            data: UnsafeCell::new(0),
        });
        let of_reader = taken.clone();
        let reads = thread::spawn(move || reader(&of_reader));
        (0..changes).for_each(|_| taken.change());
        reads.join().unwrap();
    });
}

#[test]
fn nobody_reads_what_is_being_changed() {
    explore(
        |taken| {
            taken.read();
            taken.read();
        },
        2,
    );
}

/// The handler of a signal reads in the middle of the thread's reading.
#[test]
fn reading_within_reading_ends_with_the_outer_one() {
    explore(
        |taken| {
            taken.reading.enter(order);
            taken.read();
            if taken.found.load(Ordering::Acquire) == 1 {
                // SAFETY: checked by loom.
                taken.data.with(|data| assert_eq!(unsafe { *data } % 2, 0));
            }
            taken.reading.leave();
        },
        1,
    );
}

/// In the child of a fork no thread waits for a thread of the parent that was reading.
#[test]
fn a_cleared_word_holds_nobody_up() {
    loom::model(|| {
        let reading = ReadingFlag::new();
        reading.enter(order);
        assert!(!reading.has_left(reading.seen()));
        reading.clear();
        assert!(reading.has_left(reading.seen()));
    });
}
