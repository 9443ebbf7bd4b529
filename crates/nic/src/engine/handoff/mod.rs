//! What threads leave for one another: packets in a QP's inbox, QPs that have more to do, deadlines; and how they know
//! whether the background thread has to be woken for it.
//!
//! In here: the data structures, on nothing but `crate::sync` and the standard library, so that `tests/handoff` can run
//! them in every order that threads and memory allow.
//! Out of here: QPs, clocks, descriptors.

mod deadlines;
mod inbox;
mod run_queue;
mod sleep;

pub(crate) use deadlines::{Deadline, Deadlines};
pub(crate) use inbox::{Bytes, Inbox};
pub(crate) use run_queue::{Queued, RunQueue, Runnable};
pub(crate) use sleep::Sleep;
