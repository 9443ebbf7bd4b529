//! The lock and the atomics of `engine::handoff` and `shm::protocol`. `tests/handoff` and `tests/shared` compile those
//! files with loom's in their place.

mod lock;

pub(crate) use lock::{Mutex, MutexGuard, RawLock, RwLock, sleep, wake};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
