//! The protocol of shared words, in every order that threads and memory allow (loom). The tests compile
//! the files of the `shm` fabric themselves, with loom's atomics.

#![allow(clippy::arc_with_non_send_sync, reason = "loom runs its threads on one")]

#[path = "../../../engine/tests/handoff/alarm.rs"]
mod alarm;
mod answers;
mod attention;
mod awaited;
mod bell;
mod entry;
mod own;
#[path = "../../src/protocol/mod.rs"]
mod protocol;
mod results;
mod ring;

/// Stands for the crate's `sync`.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

    /// Loom's atomics are larger than the words that they stand for.
    macro_rules! shared_words {
        ($($structures:tt)*) => {};
    }
    pub(crate) use shared_words;
}

/// Runs `model` in every order with at most so many switches of threads at places where none has to wait: bugs with more
/// are rare, and the search is short.
fn explore(switches: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(model);
}
