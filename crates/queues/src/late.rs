//! Destructions that wait long for acknowledgements, and the listener that is called for them.

use std::sync::OnceLock;

/// The events that a destruction waits for, all of one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Late {
    /// Completion events of the completion queue with this user handle.
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

/// Sets the function that is called for each late destruction, with the number of events, in the thread that waits. The first one
/// stays.
pub fn listen(listener: fn(Late, u32)) {
    let _ = LISTENER.set(listener);
}

/// A destruction has waited for a second for `count` events. Without a listener it is logged.
#[cold]
pub fn tell(late: Late, count: u32) {
    match LISTENER.get() {
        Some(listener) => listener(late, count),
        None => tracing::warn!(?late, count, "a destruction waits until events are acknowledged"),
    }
}
