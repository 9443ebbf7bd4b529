//! Whose objects are: what protection domains, regions and queues need of the device context that they belong to.

use super::queue_memory::QueueKind;
use super::rights::MrInit;
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

    /// Gives an object the handle by which others import it. Other processes don't see it before [`Owner::list`].
    fn add(&self, object: Weak<dyn Any + Send + Sync>) -> u32;

    /// Lists the object of `handle`, or its changes, for other processes.
    fn list(&self, handle: u32, object: ListedObject);

    /// Ends a handle: from here on the object can't be imported.
    fn remove(&self, handle: u32);

    /// Raises an asynchronous event. It may be called under the lock of a queue.
    fn raise(&self, event: AsyncEvent);

    /// Withdraws the unread events about the object with this user handle.
    fn withdraw(&self, object: usize);

    /// Counts a queue that has been made, and uncounts one that has ended.
    fn count(&self, kind: QueueKind, exists: bool);
}

/// An object as other processes find it, to import it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListedObject {
    /// A protection domain.
    Pd,
    /// Device memory of `len` bytes behind the descriptor `fd`.
    Dm {
        /// The descriptor.
        fd: RawFd,
        /// Bytes.
        len: u64,
    },
    /// A region.
    Mr {
        /// The handle of its protection domain.
        pd: u32,
        /// The handle of the device memory that it is on; 0: it is on plain memory.
        dm: u32,
        /// Range and rights. The address of a region on device memory is the offset there.
        init: MrInit,
    },
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
