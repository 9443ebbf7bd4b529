//! A lock and the threads that want it, as `sync::lock` uses their words, in every order that threads and memory allow (loom). The
//! words are the file of the library itself, compiled with loom's atomics.

#[path = "../src/sync/lock_words.rs"]
mod lock_words;

/// Stands for the crate's `atomics`.
mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
}

use crate::lock_words::LockWords;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;

/// What the lock keeps. Loom finds every access to `data` that isn't ordered with the others.
struct Locked {
    words: LockWords,
    queue: Mutex<()>,
    woken: Condvar,
    data: UnsafeCell<u32>,
}

// SAFETY: loom checks the accesses to the cell.
unsafe impl Sync for Locked {}

/// membarrier(2) orders at least as much.
fn order() {
    fence(Ordering::SeqCst);
}

impl Locked {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            words: LockWords::new(AtomicU32::new(0), AtomicU32::new(0)),
            queue: Mutex::new(()),
            woken: Condvar::new(),
            data: UnsafeCell::new(0),
        })
    }

    /// futex(2), without a time limit: a wake-up that is missed is a deadlock, which loom finds.
    fn sleep(&self) {
        let queue = self.queue.lock().unwrap();
        if self.words.asleep.load(Ordering::Relaxed) == LockWords::ASLEEP {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    fn change(&self) {
        while !(self.words.is_free() && self.words.try_lock()) {
            if self.words.about_to_sleep(order) {
                self.sleep();
            }
        }
        // SAFETY: checked by loom.
        self.data.with_mut(|data| unsafe { *data += 1 });
        if self.words.unlock(order) {
            drop(self.queue.lock().unwrap());
            self.woken.notify_all();
        }
    }
}

fn explore(others: usize, changes: usize, preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let locked = Locked::new();
        let threads: Vec<_> = (0..others)
            .map(|_| {
                let locked = locked.clone();
                thread::spawn(move || (0..changes).for_each(|_| locked.change()))
            })
            .collect();
        locked.change();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // SAFETY: no other thread is left.
        assert_eq!(locked.data.with(|data| unsafe { *data }) as usize, others * changes + 1);
    });
}

#[test]
fn two_threads_get_the_lock_in_turns() {
    explore(1, 2, 3);
}

#[test]
fn of_three_threads_none_sleeps_for_ever() {
    explore(2, 1, 1);
}
