//! Entries of a directory: what has been taken back is used by nobody, and what is found is never a mixture.

use crate::explore;
use crate::protocol::{Busy, DirectoryEntry, Ended};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

const OLD: u64 = 7;
const NEW: u64 = 8;

/// What entries of this name say.
const fn words(name: u64) -> [u64; DirectoryEntry::WORDS] {
    [name; DirectoryEntry::WORDS]
}

struct Shared {
    entry: DirectoryEntry,
    busy: Busy,
    /// What the entry leads to: loom sees to it that nobody uses it while another changes it.
    memory: UnsafeCell<u64>,
}

impl Shared {
    fn new() -> Arc<Self> {
        let shared =
            Self { entry: DirectoryEntry::default(), busy: Busy::default(), memory: UnsafeCell::new(OLD) };
        shared.entry.publish(OLD, words(OLD));
        Arc::new(shared)
    }

    /// The using process: what the memory holds, if the entry stands for `name`.
    fn access(&self, name: u64) -> Option<u64> {
        self.busy.enter();
        let found = self.entry.read(name);
        // SAFETY: loom panics if somebody writes at the same time.
        let memory = found.map(|_| self.memory.with(|memory| unsafe { *memory }));
        self.busy.leave();
        assert!(found.is_none_or(|found| found == words(name)), "{found:?} of {name}");
        memory
    }

    /// The owner: takes the entry back, waits until nobody uses it, and changes the memory.
    fn take_back(&self) {
        assert_eq!(self.entry.revoke(), OLD);
        let value = self.busy.value();
        while !self.busy.has_left(value) {
            thread::yield_now();
        }
        // SAFETY: loom panics unless this is the only access.
        self.memory.with_mut(|memory| unsafe { *memory = NEW });
    }
}

#[test]
fn nobody_uses_what_has_been_taken_back() {
    explore(3, || {
        let shared = Shared::new();
        let user = shared.clone();
        let user = thread::spawn(move || [user.access(OLD), user.access(OLD)]);
        shared.take_back();
        let [first, second] = user.join().unwrap();
        assert!(first.is_none_or(|memory| memory == OLD));
        assert!(second.is_none() || second == first);
        assert_eq!(shared.access(OLD), None);
    });
}

#[test]
fn an_entry_that_is_used_again_is_never_read_half_old_half_new() {
    explore(3, || {
        let shared = Shared::new();
        let user = shared.clone();
        let user = thread::spawn(move || (user.access(OLD), user.access(NEW)));
        shared.take_back();
        shared.entry.publish(NEW, words(NEW));
        let (old, new) = user.join().unwrap();
        assert!(old.is_none_or(|memory| memory == OLD));
        assert!(new.is_none_or(|memory| memory == NEW));
        assert_eq!((shared.access(OLD), shared.access(NEW)), (None, Some(NEW)));
    });
}

#[test]
fn an_entry_that_was_restored_says_what_it_said() {
    explore(3, || {
        let shared = Arc::new(Shared {
            entry: DirectoryEntry::default(),
            busy: Busy::default(),
            memory: UnsafeCell::new(OLD),
        });
        let user = shared.clone();
        let user = thread::spawn(move || [user.access(OLD), user.access(OLD)]);
        shared.entry.publish(OLD, words(OLD));
        let name = shared.entry.revoke();
        shared.entry.restore(name);
        for memory in user.join().unwrap() {
            assert!(memory.is_none_or(|memory| memory == OLD));
        }
        assert_eq!(shared.access(OLD), Some(OLD));
    });
}

#[test]
fn a_user_that_comes_and_goes_holds_nobody_up() {
    explore(3, || {
        let busy = Busy::default();
        busy.enter();
        let value = busy.value();
        assert!(!busy.has_left(value));
        busy.leave();
        assert!(busy.has_left(value));
        busy.enter();
        assert!(busy.has_left(value), "that is another access");
    });
}

#[test]
fn who_ends_a_link_knows_of_every_access_that_goes_on() {
    explore(3, || {
        let shared = Shared::new();
        let ended = Arc::new(Ended::default());
        let (user, seen) = (shared.clone(), ended.clone());
        let user = thread::spawn(move || {
            user.busy.enter();
            let finds = !seen.is_set();
            if finds {
                // SAFETY: loom panics if somebody writes at the same time.
                assert_eq!(user.memory.with(|memory| unsafe { *memory }), OLD);
            }
            user.busy.leave();
        });
        ended.set();
        let value = shared.busy.value();
        while !shared.busy.has_left(value) {
            thread::yield_now();
        }
        // SAFETY: loom panics unless this is the only access.
        shared.memory.with_mut(|memory| unsafe { *memory = NEW });
        user.join().unwrap();
    });
}
