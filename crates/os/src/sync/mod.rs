//! Locks with an order, and the atomics beside them.
//!
//! In here: locks that a child of fork(2) finds usable, each of a class with a rank. Out of here: what a lock keeps.

mod critical_region;
mod global;
mod lock;
mod lock_words;
mod made_once;
mod published;

pub use crate::atomics::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub use crate::fork::{ForkReader, InUse, wait_for_readers, wait_for_users};
pub use crate::rank::class;
pub use crate::sys::{sleep, wake};
pub use critical_region::CriticalRegion;
pub use global::Global;
pub use lock::{Changed, Mutex, MutexGuard, RawLock, RwLock};
pub use made_once::MadeOnce;
pub use published::{Published, Replaced};
