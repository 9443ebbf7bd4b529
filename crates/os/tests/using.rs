//! Something that a thread uses by name and that other threads take away, as `fork::reading` uses their words, in every order that
//! threads and memory allow (loom). The word is the file of the library itself, compiled with loom's atomics.

#[path = "../src/fork/using_word.rs"]
mod using_word;

/// Stands for the crate's `atomics`.
mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}

use crate::using_word::Using;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;
use std::sync::Arc;

const NAME: u32 = 7;
const OTHER: u32 = 8;

/// Something that is there while `found` is 1. Loom finds every access to `data` that isn't ordered with the others.
struct Taken {
    found: AtomicU32,
    using: Using,
    data: UnsafeCell<u32>,
}

// SAFETY: loom checks the accesses to the cell.
unsafe impl Sync for Taken {}

/// membarrier(2) orders at least as much.
fn order() {
    fence(Ordering::SeqCst);
}

impl Taken {
    fn new() -> Arc<Self> {
        Arc::new(Self { found: AtomicU32::new(1), using: Using::new(), data: UnsafeCell::new(0) })
    }

    fn use_it(&self) {
        assert!(self.using.enter(NAME, order));
        if self.found.load(Ordering::Acquire) == 1 {
            // SAFETY: checked by loom.
            let data = self.data.with(|data| unsafe { *data });
            assert_eq!(data % 2, 0);
        }
        self.using.leave();
    }

    /// Uses something else.
    fn use_other(&self) {
        assert!(self.using.enter(OTHER, order));
        self.using.leave();
    }

    /// Takes it away, changes it in two steps, and lets it be found again.
    fn change(&self) {
        self.found.store(0, Ordering::Release);
        order();
        let seen = self.using.seen();
        while Using::names(seen, NAME) && !self.using.has_left(seen) {
            thread::yield_now();
        }
        // SAFETY: checked by loom.
        self.data.with_mut(|data| unsafe { *data += 1 });
        // SAFETY: checked by loom.
        self.data.with_mut(|data| unsafe { *data += 1 });
        self.found.store(1, Ordering::Release);
    }
}

/// The thread also goes from one thing to another: a word with another name shows that the use before it is complete.
#[test]
fn what_is_being_changed_is_not_in_use() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let taken = Taken::new();
        let of_user = taken.clone();
        let uses = thread::spawn(move || {
            of_user.use_it();
            of_user.use_other();
            of_user.use_it();
        });
        taken.change();
        uses.join().unwrap();
    });
}

#[test]
fn a_use_that_never_ends_holds_up_its_own_name_alone() {
    loom::model(|| {
        let using = Using::new();
        assert!(using.enter(NAME, order));
        let seen = using.seen();
        assert!(Using::names(seen, NAME) && !using.has_left(seen));
        assert!(!Using::names(seen, OTHER) && !Using::names(seen, 0));
        assert!(!using.enter(OTHER, order), "the handler of a signal has to take a lock");
        using.leave();
        assert!(using.has_left(seen) && !Using::names(using.seen(), NAME));
        assert!(using.enter(NAME, order) && using.has_left(seen), "that is another use");
    });
}

/// In the child of a fork no thread waits for a thread of the parent.
#[test]
fn a_cleared_word_holds_no_thread_up() {
    loom::model(|| {
        let using = Using::new();
        assert!(using.enter(NAME, order));
        using.clear();
        assert!(!Using::names(using.seen(), NAME) && using.enter(OTHER, order));
    });
}
