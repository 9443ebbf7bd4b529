//! Linux as the adapter needs it: system calls, descriptors, threads, the clock.
//!
//! In here: raw calls, of which none is a cancellation point, and the descriptors that a child of fork(2) closes.
//! Out of here: what forks and locks make of them (`ferroce_os`), policy and retries.

pub mod clock;
pub mod room;
pub mod sys;
