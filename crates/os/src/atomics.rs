//! The atomics of this crate's files that loom checks: the models compile those files with loom's in a module of this name.

pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
