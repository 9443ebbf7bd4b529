//! The slots of a queue, in every order that threads and memory allow (loom). This is the file of the crate itself, compiled
//! with loom's atomics and cells.

#[path = "../../src/slots.rs"]
mod slots;

/// Stands for the crate's `sync`.
mod sync {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    pub(crate) use loom::thread::yield_now as pause;
}

use loom::thread;

/// Switches of threads at places where none has to wait: bugs with more are rare, and the search is short.
const PREEMPTIONS: usize = 3;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// The poster posts, and sends the number of each entry as a completion does.
#[test]
fn entries_retire_once_and_in_order_while_the_poster_posts() {
    explore(|| {
        let (mut poster, retirer) = slots::ring::<Box<u32>>(2);
        let posting = thread::spawn(move || {
            let mut entry = 0;
            while entry < 3 {
                match poster.push(Box::new(entry)) {
                    Ok(number) => assert_eq!(number, entry),
                    Err(_) => {
                        thread::yield_now();
                        continue;
                    }
                }
                entry += 1;
            }
        });
        let mut expected = 0;
        while expected < 3 {
            match retirer.pop() {
                Some(entry) => {
                    assert_eq!(*entry, expected);
                    expected += 1;
                }
                None => thread::yield_now(),
            }
        }
        posting.join().unwrap();
        assert!(!retirer.is_outstanding(2) && !retirer.is_outstanding(3));
        assert!(retirer.pop().is_none());
    });
}

/// A queue pair is destroyed by a thread while another one polls.
#[test]
fn an_entry_is_taken_by_one_of_two_threads() {
    explore(|| {
        let (mut poster, retirer) = slots::ring::<Box<u32>>(2);
        let retirer = loom::sync::Arc::new(retirer);
        let polls = retirer.clone();
        for entry in 1..3 {
            poster.push(Box::new(entry)).unwrap();
        }
        let polling = thread::spawn(move || {
            let mut entry = Box::new(0);
            polls.retire(0, &mut entry).map_or(0, |_| *entry)
        });
        let drained: u32 = std::iter::from_fn(|| retirer.pop()).map(|entry| *entry).sum();
        assert_eq!(drained + polling.join().unwrap(), 3);
    });
}

/// A queue pair is destroyed while requests are outstanding: either end may be dropped last.
#[test]
fn what_is_outstanding_is_dropped_with_the_last_end() {
    explore(|| {
        let entry = loom::sync::Arc::new(());
        let (mut poster, retirer) = slots::ring(2);
        poster.push(entry.clone()).unwrap();
        assert_eq!(poster.room(), 1);
        let mine = entry.clone();
        let posting = thread::spawn(move || {
            let _ = poster.push(mine);
        });
        drop(retirer.pop());
        drop(retirer);
        posting.join().unwrap();
        assert_eq!(loom::sync::Arc::strong_count(&entry), 1);
    });
}
