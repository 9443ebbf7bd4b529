//! The operating system as the adapter needs it. Most of the `unsafe` of the adapter is here and in `ferroce-access`.
//!
//! In here: system calls and descriptors, forks, locks, the clock, threads, what each of them has of its own.
//! Out of here: memory that may be gone when it is touched, verbs objects, packets, addresses of peers, policy and retries.
//! Nothing here is a cancellation point, and a child of fork(2) finds all of it usable.

mod atomics;
pub mod clock;
pub mod fork;
pub mod own_file;
mod patience;
pub mod per_thread;
mod rank;
mod readiness;
pub mod room;
mod setting;
pub mod standard_error;
pub mod sync;
pub mod sys;
pub mod throttle;

pub use patience::Patience;
pub use readiness::Readiness;
pub use setting::{has_gained_privileges, setting, settings};
