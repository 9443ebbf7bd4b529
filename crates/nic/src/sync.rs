//! The lock and the atomics of `engine::handoff`, `fork::words` and `shm::protocol`. `tests/handoff` and `tests/shared`
//! compile those files with loom's in their place.

mod lock;
mod rank;

pub(crate) use lock::{Changed, Mutex, MutexGuard, RawLock, RwLock, sleep, wake};
pub(crate) use rank::{check_none_held, class};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
