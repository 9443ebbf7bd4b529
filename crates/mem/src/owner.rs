//! Whose objects are: what protection domains, regions and queues need of the device context that they belong to.

use super::{Dm, Mr, MrInit, Pd, QueueKind};
use ferroce_types::AsyncEvent;
use std::any::Any;
use std::fmt::Debug;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// The owner of objects: an open device.
pub trait Owner: Any + Debug + Send + Sync {
    /// The name of the device.
    fn device_name(&self) -> &str;

    /// Gives a protection domain the handle by which others import it.
    fn add_pd(&self, pd: Weak<Pd>) -> u32;

    /// Gives device memory of `len` bytes behind the descriptor `fd` the handle by which others import it.
    fn add_dm(&self, dm: Weak<Dm>, fd: RawFd, len: u64) -> u32;

    /// Gives a region the handle by which others import it. Other processes don't see it before [`Owner::list_mr`].
    fn add_mr(&self, mr: Weak<Mr>) -> u32;

    /// Tells other processes what the region of `handle` is, or has become.
    fn list_mr(&self, handle: u32, region: ListedMr);

    /// Ends a handle: from here on nobody imports the object.
    fn remove(&self, handle: u32);

    /// Raises an asynchronous event. It may be called under the lock of a queue.
    fn raise(&self, event: AsyncEvent);

    /// Withdraws the unread events about the object with this user handle.
    fn withdraw(&self, object: usize);

    /// Counts a queue that has been made, and uncounts one that has ended.
    fn count(&self, kind: QueueKind, exists: bool);
}

/// What others learn of a region that they may import.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedMr {
    /// The handle of its protection domain.
    pub pd: u32,
    /// The handle of the device memory that it is on; 0: it is on plain memory.
    pub dm: u32,
    /// Range and rights. The address of a region on device memory is the offset there.
    pub init: MrInit,
}

/// Do both belong to the same open device?
#[must_use]
pub fn is_same(one: &dyn Owner, other: &dyn Owner) -> bool {
    std::ptr::addr_eq(one, other)
}

/// A queue's part in its owner's count, until the queue is destroyed or dropped.
#[derive(Debug)]
pub struct CountedQueue {
    owner: Arc<dyn Owner>,
    kind: QueueKind,
    ended: AtomicBool,
}

impl CountedQueue {
    /// Counts a queue of `owner`.
    pub fn new(owner: Arc<dyn Owner>, kind: QueueKind) -> Self {
        owner.count(kind, true);
        Self { owner, kind, ended: AtomicBool::new(false) }
    }

    /// The queue is destroyed.
    pub fn end(&self) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            self.owner.count(self.kind, false);
        }
    }
}

impl Drop for CountedQueue {
    fn drop(&mut self) {
        self.end();
    }
}
