//! A fork and the threads inside the library, as `fork::gate` uses their words.

use crate::words::{CLOSED, OPEN, Presence, close};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;
use std::sync::Arc;

/// What the library keeps. Loom finds every access to `data` that isn't ordered with the others.
struct Library {
    gate: AtomicU32,
    present: [Presence; 2],
    data: [UnsafeCell<u32>; 2],
}

// SAFETY: loom checks the accesses to the cells.
unsafe impl Sync for Library {}

/// membarrier(2) orders at least as much.
fn order() {
    fence(Ordering::SeqCst);
}

impl Library {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            gate: AtomicU32::new(OPEN),
            present: [Presence::new(), Presence::new()],
            data: [UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    fn wait_while_closed(&self, present: &Presence) {
        while self.gate.load(Ordering::Acquire) == CLOSED {
            let depth = present.step_out();
            thread::yield_now();
            present.come_back(depth, order);
        }
    }

    /// A call that changes something in two steps.
    fn call(&self, thread: usize) {
        let present = &self.present[thread];
        present.enter(order);
        self.wait_while_closed(present);
        // SAFETY: checked by loom.
        self.data[thread].with_mut(|data| unsafe { *data += 1 });
        self.data[thread].with_mut(|data| unsafe { *data += 1 });
        present.leave();
    }

    /// One that sleeps between two changes, and is called by another.
    fn nested_call_that_sleeps(&self, thread: usize) {
        let present = &self.present[thread];
        present.enter(order);
        self.wait_while_closed(present);
        present.enter(order);
        // SAFETY: checked by loom.
        self.data[thread].with_mut(|data| unsafe { *data += 2 });
        let depth = present.step_out();
        thread::yield_now();
        present.come_back(depth, order);
        self.wait_while_closed(present);
        self.data[thread].with_mut(|data| unsafe { *data += 2 });
        present.leave();
        present.leave();
    }

    /// What a child would find of each thread's work, if the fork got its turn.
    fn fork(&self) -> Option<[u32; 2]> {
        close(&self.gate).ok()?;
        order();
        for present in &self.present {
            while present.depth() > 0 {
                thread::yield_now();
            }
        }
        // SAFETY: checked by loom.
        let found = [0, 1].map(|thread| self.data[thread].with(|data| unsafe { *data }));
        self.gate.store(OPEN, Ordering::Release);
        Some(found)
    }
}

#[test]
fn a_fork_finds_nothing_half_done() {
    crate::models::explore(|| {
        let library = Library::new();
        let other = library.clone();
        let caller = thread::spawn(move || other.call(0));
        let found = library.fork().expect("the only fork");
        assert!(matches!(found, [0 | 2, 0]), "{found:?}");
        caller.join().unwrap();
    });
}

#[test]
fn a_fork_finds_a_sleeper_with_everything_complete() {
    crate::models::explore(|| {
        let library = Library::new();
        let other = library.clone();
        let caller = thread::spawn(move || other.nested_call_that_sleeps(0));
        let found = library.fork().expect("the only fork");
        assert!(matches!(found, [0 | 2 | 4, 0]), "{found:?}");
        caller.join().unwrap();
    });
}

#[test]
fn forks_take_turns() {
    crate::models::explore(|| {
        let library = Library::new();
        let other = library.clone();
        let forker = thread::spawn(move || other.fork());
        let own = library.fork();
        let others = forker.join().unwrap();
        assert!(own.is_some() || others.is_some());
        // Who hasn't got its turn comes again, when the gate is open.
        assert_eq!(library.gate.load(Ordering::Acquire), OPEN);
    });
}
