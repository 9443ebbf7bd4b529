//! Locks with an order, and the atomics beside them.
//!
//! In here: locks that a child of fork(2) finds usable, each of a class with a rank. Out of here: what a lock keeps.
//! The files of structures that loom checks take their locks and atomics from a module of this name; the models compile
//! those files with loom's in their place.

mod critical_region;
mod global;
mod lock;
mod lock_words;
mod made_once;
mod published;
mod rank;

pub use crate::fork::{InUse, Reader, wait_for_readers, wait_for_users};
pub use critical_region::CriticalRegion;
pub use global::Global;
pub use lock::{Changed, Mutex, MutexGuard, RawLock, RwLock, sleep, wake};
pub use made_once::MadeOnce;
pub use published::{Published, Replaced};
pub(crate) use rank::check_none_held;
pub use rank::class;
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
