//! The engine's hand-offs between threads, in every order that threads and memory allow (loom). These are the files of the
//! engine itself, compiled with loom's lock and atomics.

mod alarm;
#[path = "../../src/handoff/mod.rs"]
mod handoff;
mod models;
mod sync;
