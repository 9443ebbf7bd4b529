//! The operating system as the adapter needs it. Most of the `unsafe` of the adapter is here, in `ferroce-linux` and in `ferroce-access`.
//!
//! In here: forks, locks, what each thread has of its own, a descriptor for programs to poll. System calls are those of `ferroce-linux`.
//! Out of here: memory that may be gone when it is touched, verbs objects, packets, addresses of peers, policy and retries.
//! Nothing here is a cancellation point, and a child of fork(2) finds all of it usable.

mod atomics;
pub mod fork;
pub mod own_file;
mod patience;
pub mod per_thread;
mod rank;
mod readiness;
mod setting;
pub mod standard_error;
pub mod sync;
pub mod throttle;

/// The calls that a program of this crate makes besides.
pub use ferroce_linux::{clock, room, sys};
pub use patience::Patience;
pub use readiness::Readiness;
pub use setting::{has_gained_privileges, setting, settings};
