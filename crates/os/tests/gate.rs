//! A fork and the threads inside the library, as `fork::gate` uses their words, in every order that threads and memory
//! allow (loom). The words are the file of the library itself, compiled with loom's atomics.

#[path = "../src/fork/words.rs"]
mod words;

/// Stands for the crate's `atomics`.
mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
}

use crate::words::{CLOSED, OPEN, Presence, UNUSABLE, WIPED, close};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;

/// Switches of threads at places where none has to wait: bugs with more are rare, and the search is short.
const PREEMPTIONS: usize = 3;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// What the library keeps. Loom finds every access to `data` that isn't ordered with the others.
struct Library {
    gate: AtomicU32,
    futex: Futex,
    present: [Presence; 2],
    data: [UnsafeCell<u32>; 2],
}

// SAFETY: loom checks the accesses to the cells.
unsafe impl Sync for Library {}

/// futex(2): a thread that sleeps has compared the word under the lock of the queue, which a waker takes too. Without a time limit:
/// a missed wakeup is a deadlock, which loom finds.
struct Futex {
    queue: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    fn sleep(&self, word: &AtomicU32, value: u32) {
        let queue = self.queue.lock().unwrap();
        if word.load(Ordering::Relaxed) == value {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    fn wake_all(&self) {
        drop(self.queue.lock().unwrap());
        self.woken.notify_all();
    }
}

/// membarrier(2) orders at least as much.
fn order() {
    fence(Ordering::SeqCst);
}

impl Library {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            gate: AtomicU32::new(OPEN),
            futex: Futex { queue: Mutex::new(()), woken: Condvar::new() },
            present: [Presence::new(), Presence::new()],
            data: [UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    fn is_closed(&self) -> bool {
        self.gate.load(Ordering::Acquire) == CLOSED
    }

    /// A call that changes something in two steps. Where it would wait for the gate, it is given up.
    fn call(&self, thread: usize) {
        let present = &self.present[thread];
        present.enter(order);
        if !self.is_closed() {
            // SAFETY: checked by loom.
            self.data[thread].with_mut(|data| unsafe { *data += 1 });
            // SAFETY: checked by loom.
            self.data[thread].with_mut(|data| unsafe { *data += 1 });
        }
        present.leave();
    }

    /// One that waits for the gate.
    fn call_that_waits(&self, thread: usize) {
        let present = &self.present[thread];
        present.enter(order);
        while self.is_closed() {
            let depth = present.step_out();
            self.futex.sleep(&self.gate, CLOSED);
            present.come_back(depth, order);
        }
        // SAFETY: checked by loom.
        self.data[thread].with_mut(|data| unsafe { *data += 2 });
        present.leave();
    }

    /// One within another that sleeps outside between two changes.
    fn nested_call_that_sleeps(&self, thread: usize) {
        let present = &self.present[thread];
        present.enter(order);
        if !self.is_closed() {
            present.enter(order);
            // SAFETY: checked by loom.
            self.data[thread].with_mut(|data| unsafe { *data += 2 });
            let depth = present.step_out();
            thread::yield_now();
            present.come_back(depth, order);
            if !self.is_closed() {
                // SAFETY: checked by loom.
                self.data[thread].with_mut(|data| unsafe { *data += 2 });
            }
            present.leave();
        }
        present.leave();
    }

    /// The state of each thread's work that a child would find, if the fork gets its turn and no thread is inside. Where it would
    /// wait, it is given up.
    fn fork(&self) -> Option<[u32; 2]> {
        close(&self.gate).ok()?;
        order();
        let nobody = self.present.iter().all(|present| present.depth() == 0);
        // SAFETY: checked by loom.
        let found = nobody.then(|| [0, 1].map(|thread| self.data[thread].with(|data| unsafe { *data })));
        self.gate.store(OPEN, Ordering::Release);
        self.futex.wake_all();
        found
    }
}

#[test]
fn a_fork_finds_nothing_half_done() {
    explore(|| {
        let library = Library::new();
        let other = library.clone();
        let caller = thread::spawn(move || other.call(0));
        let found = library.fork();
        assert!(matches!(found, None | Some([0 | 2, 0])), "{found:?}");
        caller.join().unwrap();
    });
}

#[test]
fn a_fork_finds_a_sleeper_with_everything_complete() {
    explore(|| {
        let library = Library::new();
        let other = library.clone();
        let caller = thread::spawn(move || other.nested_call_that_sleeps(0));
        let found = library.fork();
        assert!(matches!(found, None | Some([0 | 2 | 4, 0])), "{found:?}");
        caller.join().unwrap();
    });
}

#[test]
fn a_fork_wakes_who_waits_for_it() {
    explore(|| {
        let library = Library::new();
        let other = library.clone();
        let caller = thread::spawn(move || other.call_that_waits(0));
        let found = library.fork();
        assert!(matches!(found, None | Some([0 | 2, 0])), "{found:?}");
        caller.join().unwrap();
        // SAFETY: checked by loom.
        assert_eq!(library.data[0].with(|data| unsafe { *data }), 2);
    });
}

#[test]
fn forks_take_turns() {
    explore(|| {
        let library = Library::new();
        let other = library.clone();
        let forker = thread::spawn(move || other.fork());
        let (own, others) = (library.fork(), forker.join().unwrap());
        assert!(own.is_some() || others.is_some());
        assert_eq!(library.gate.load(Ordering::Acquire), OPEN);
    });
}

/// A gate that no thread may pass any more, or that the kernel has wiped for a child it made itself, is left as it is.
#[test]
fn only_an_open_gate_is_closed() {
    loom::model(|| {
        for word in [WIPED, CLOSED, UNUSABLE] {
            let gate = AtomicU32::new(word);
            assert_eq!(close(&gate), Err(word));
            assert_eq!(gate.load(Ordering::Relaxed), word);
        }
        assert_eq!(close(&AtomicU32::new(OPEN)), Ok(()));
    });
}

/// In the child of a fork the threads of its parent are in no call.
#[test]
fn a_cleared_word_is_of_a_thread_outside() {
    loom::model(|| {
        let present = Presence::new();
        present.enter(order);
        present.enter(order);
        assert_eq!(present.depth(), 2);
        present.clear();
        assert_eq!(present.depth(), 0);
    });
}
