//! What threads leave for one another: jobs that have more to do, deadlines; and how they know
//! whether the background thread has to be woken for it.
//!
//! In here: the data structures, on nothing but `crate::sync` and the standard library, so that `tests/handoff` can run
//! them in every order that threads and memory allow.
//! Out of here: what the objects are, clocks, descriptors.

mod deadlines;
mod run_queue;
mod sleep;

pub use deadlines::Deadline;
pub(crate) use deadlines::Deadlines;
pub(crate) use run_queue::RunQueue;
pub use run_queue::{Queued, Runnable};
pub(crate) use sleep::Sleep;
