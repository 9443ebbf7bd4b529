//! Destructions that wait for acknowledgements for long, and who is told of them.

use std::sync::OnceLock;

/// What a destruction waits for: events of one object, which is here by its user handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Late {
    /// Completion events of a completion queue.
    CompletionEvents(usize),
    /// Asynchronous events of a completion queue.
    OfCq,
    /// Those of a queue pair.
    OfQp,
    /// Those of a shared receive queue.
    OfSrq,
    /// Those of a work queue.
    OfWq,
}

static LISTENER: OnceLock<fn(Late, u32)> = OnceLock::new();

/// Has `listener` get what is late, with the number of events, from the thread that waits. The first one stays.
pub fn listen(listener: fn(Late, u32)) {
    let _ = LISTENER.set(listener);
}

/// A destruction has waited for a second for so many events. Without a listener the log says it.
#[cold]
pub fn tell(late: Late, count: u32) {
    match LISTENER.get() {
        Some(listener) => listener(late, count),
        None => tracing::warn!(?late, count, "a destruction waits until events are acknowledged"),
    }
}
