//! The lock and the atomics of `engine::handoff` and `shm::protocol`. `tests/handoff` and `tests/shared` compile those
//! files with loom's in their place.

pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
