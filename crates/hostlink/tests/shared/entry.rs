//! Entries of a directory: no access uses a withdrawn entry, and the words that one finds are never a mixture.

use crate::explore;
use crate::protocol::{AccessWord, DirectoryEntry, EndedFlag, RevokedObject};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

const OLD: u64 = 7;
const NEW: u64 = 8;
/// The QP that is used with every entry.
const QPN: u32 = 5;

/// The words of entries with this name.
const fn words(name: u64) -> [u64; DirectoryEntry::WORDS] {
    [name; DirectoryEntry::WORDS]
}

struct Shared {
    entry: DirectoryEntry,
    word: AccessWord,
    /// The memory of the object: loom panics if a thread uses it while another changes it.
    memory: UnsafeCell<u64>,
}

impl Shared {
    fn new() -> Arc<Self> {
        let shared = Self {
            entry: DirectoryEntry::default(),
            word: AccessWord::default(),
            memory: UnsafeCell::new(OLD),
        };
        shared.entry.publish(OLD, words(OLD));
        Arc::new(shared)
    }

    /// The using process: what the memory holds, if the entry stands for `name`.
    fn access(&self, name: u64) -> Option<u64> {
        self.word.enter(QPN, name as u32);
        let found = self.entry.read(name);
        // SAFETY: loom panics if another thread writes at the same time.
        let memory = found.map(|_| self.memory.with(|memory| unsafe { *memory }));
        self.word.leave();
        assert!(found.is_none_or(|found| found == words(name)), "{found:?} of {name}");
        memory
    }

    /// The owner: waits until no access to `object` is under way that began before the object was taken back.
    fn wait_for_users(&self, object: RevokedObject) {
        let value = self.word.value();
        while AccessWord::names(value, object) && !self.word.has_left(value) {
            thread::yield_now();
        }
    }

    /// The owner: takes the entry back, waits until it isn't used, and changes the memory.
    fn take_back(&self) {
        assert_eq!(self.entry.revoke(), OLD);
        self.wait_for_users(RevokedObject::Region(OLD as u32));
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
            word: AccessWord::default(),
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

/// A queue pair fails while a thread waits to take its entry back, and gives up.
#[test]
fn an_entry_that_was_withdrawn_meanwhile_is_not_restored() {
    explore(3, || {
        let shared = Shared::new();
        let failing = shared.clone();
        let failing = thread::spawn(move || failing.entry.withdraw());
        let name = shared.entry.revoke();
        shared.entry.restore(name);
        failing.join().unwrap();
        assert_eq!(shared.access(OLD), None);
        shared.entry.publish(OLD, words(OLD));
        assert_eq!(shared.access(OLD), Some(OLD));
    });
}

/// The user goes from one region to another. The owner takes the first back while the user is at the first, at the second, or at neither.
#[test]
fn what_is_taken_back_is_not_in_use_when_the_word_names_something_else() {
    explore(3, || {
        let shared = Shared::new();
        let user = shared.clone();
        let user = thread::spawn(move || (user.access(OLD), user.access(NEW), user.access(OLD)));
        shared.take_back();
        let (first, other, last) = user.join().unwrap();
        assert!(first.is_none_or(|memory| memory == OLD) && last.is_none_or(|memory| memory == OLD));
        assert_eq!(other, None);
    });
}

#[test]
fn an_access_that_never_ends_holds_up_its_own_objects_alone() {
    explore(3, || {
        let word = AccessWord::default();
        word.enter(QPN, OLD as u32);
        let value = word.value();
        assert!(!word.has_left(value));
        for (object, is_used) in [
            (RevokedObject::Region(OLD as u32), true),
            (RevokedObject::Qp(QPN), true),
            (RevokedObject::Region(NEW as u32), false),
            (RevokedObject::Region(QPN), false),
            (RevokedObject::Qp(OLD as u32), false),
            (RevokedObject::Region(0), false),
            (RevokedObject::Qp(0), false),
        ] {
            assert_eq!(AccessWord::names(value, object), is_used, "{object:?}");
        }
    });
}

#[test]
fn a_user_that_comes_and_goes_holds_no_owner_up() {
    explore(3, || {
        let word = AccessWord::default();
        word.enter(QPN, OLD as u32);
        let value = word.value();
        assert!(!word.has_left(value));
        word.leave();
        assert!(word.has_left(value) && !AccessWord::is_in_use(word.value()));
        word.enter(QPN, OLD as u32);
        assert!(word.has_left(value), "that is another access");
    });
}

#[test]
fn who_ends_a_link_knows_of_every_access_that_goes_on() {
    explore(3, || {
        let shared = Shared::new();
        let ended = Arc::new(EndedFlag::default());
        let (user, seen) = (shared.clone(), ended.clone());
        let user = thread::spawn(move || {
            user.word.enter(QPN, OLD as u32);
            let finds = !seen.is_set();
            if finds {
                // SAFETY: loom panics if another thread writes at the same time.
                assert_eq!(user.memory.with(|memory| unsafe { *memory }), OLD);
            }
            user.word.leave();
        });
        ended.set();
        let value = shared.word.value();
        while !shared.word.has_left(value) {
            thread::yield_now();
        }
        // SAFETY: loom panics unless this is the only access.
        shared.memory.with_mut(|memory| unsafe { *memory = NEW });
        user.join().unwrap();
    });
}
