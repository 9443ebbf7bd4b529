//! The operating system as the adapter needs it, so that nearly all `unsafe` of the adapter is in this crate.
//!
//! In here: system calls and descriptors, forks, locks, the clock, threads, copies of memory that fail instead of
//! faulting.
//! Out of here: verbs objects, packets, addresses of peers, policy and retries.
//! Nothing here is a cancellation point, and a child of fork(2) finds all of it usable.

pub mod clock;
pub mod fork;
pub mod memory;
pub mod room;
pub mod sync;
pub mod sys;
pub mod throttle;
mod words;
