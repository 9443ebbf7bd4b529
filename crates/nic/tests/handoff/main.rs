//! The engine's hand-offs between threads, in every order that threads and memory allow (loom). These are the files of the
//! adapter themselves, compiled with loom's lock and atomics.

mod alarm;
#[path = "../../src/engine/handoff/mod.rs"]
mod handoff;
mod models;
mod sync;
