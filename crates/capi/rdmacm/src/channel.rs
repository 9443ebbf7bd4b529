//! Event channels: rdma_create_event_channel(3), rdma_destroy_event_channel(3).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ferroce_ibverbs::call::{Outcome, Refusal};
use ferroce_ibverbs::entry;
use ferroce_nic::EventQueue;
use ferroce_os::sync::{Mutex, class};

use crate::abi::rdma_event_channel;
use crate::devices;
use crate::event::News;
use crate::id::Id;

/// An event that the program hasn't fetched.
#[derive(Clone)]
pub(crate) struct Queued {
    /// Whom it counts against: who is destroyed waits until it is acknowledged.
    pub(crate) id: Arc<Id>,
    pub(crate) news: Arc<News>,
}

/// What a channel keeps.
pub(crate) type Queue = EventQueue<Queued>;

/// The channels that exist, by the program's pointer. A pointer is looked up, not followed: programs destroy a channel while a
/// thread of theirs is about to wait at it again (rping does, when its connection ends).
static CHANNELS: Mutex<class::CmChannels, BTreeMap<usize, Arc<Queue>>> = Mutex::new(BTreeMap::new());

/// Makes a channel.
pub(crate) fn allocate() -> Outcome<*mut rdma_event_channel> {
    let queue = Arc::new(Queue::new()?);
    let channel = Box::into_raw(Box::new(rdma_event_channel { fd: queue.fd() }));
    CHANNELS.lock().insert(channel.addr(), queue);
    Ok(channel)
}

/// Ends a channel, and tells whether it was one.
pub(crate) fn free(channel: *mut rdma_event_channel) -> bool {
    let Some(queue) = CHANNELS.lock().remove(&channel.addr()) else { return false };
    queue.close();
    // SAFETY: `allocate` made it of a box, and only one thread finds it in the table.
    drop(unsafe { Box::from_raw(channel) });
    true
}

/// What the channel behind a program's pointer keeps. `None` of NULL, and of a channel that is destroyed.
pub(crate) fn find(channel: *mut rdma_event_channel) -> Option<Arc<Queue>> {
    CHANNELS.lock().get(&channel.addr()).cloned()
}

/// As [`find`], with the refusal.
pub(crate) fn queue_of(channel: *mut rdma_event_channel) -> Outcome<Arc<Queue>> {
    find(channel).ok_or_else(|| no_channel(channel))
}

/// Why a pointer is refused that leads to no channel: EBADF where one may have been.
pub(crate) fn no_channel(channel: *mut rdma_event_channel) -> Refusal {
    if channel.is_null() {
        return Refusal::invalid("channel is NULL");
    }
    Refusal::new(libc::EBADF, "channel isn't an event channel; it may have been destroyed")
}

/// Adds an event.
pub(crate) fn put(queue: &Queue, queued: Queued) {
    queued.id.unread.fetch_add(1, Ordering::AcqRel);
    queue.push(queued);
}

/// The oldest event of `queue`, counted against its id.
pub(crate) fn take(queue: &Queue) -> Option<Queued> {
    queue.take_with(Duration::ZERO, |queued| {
        queued.id.unacked.got();
        queued.id.unread.fetch_sub(1, Ordering::AcqRel);
        queued.clone()
    })
}

/// Takes the unread events of `id` out of `queue`. Without any, it doesn't look through those of others.
pub(crate) fn withdraw(queue: &Queue, id: &Arc<Id>) -> Vec<Queued> {
    let mut found = Vec::new();
    if id.unread.load(Ordering::Acquire) == 0 {
        return found;
    }
    queue.withdraw(|queued| {
        let is_its = Arc::ptr_eq(&queued.id, id);
        if is_its {
            found.push(queued.clone());
        }
        is_its
    });
    id.unread.fetch_sub(found.len(), Ordering::AcqRel);
    found
}

entry! {
    fn rdma_create_event_channel() -> pointer rdma_event_channel, {
        devices::need_one()?;
        allocate()
    }
}

entry! {
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) -> value () = (), {
        if !channel.is_null() && !free(channel) {
            tracing::warn!("rdma_destroy_event_channel: channel isn't an event channel; it may have been destroyed");
        }
    }
}
