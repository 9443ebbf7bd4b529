//! The engine's hand-offs between threads, and those between threads and a fork, in every order that threads and memory
//! allow (loom). These are the files of the adapter themselves, compiled with loom's lock and atomics.

mod alarm;
mod gate;
#[path = "../../src/engine/handoff/mod.rs"]
mod handoff;
mod models;
mod sync;
#[path = "../../src/fork/words.rs"]
#[allow(dead_code, reason = "what only a child of a fork needs")]
mod words;
