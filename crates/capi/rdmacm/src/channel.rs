//! Event channels: rdma_create_event_channel(3), rdma_destroy_event_channel(3).

use std::collections::BTreeMap;
use std::sync::Arc;

use ferroce_entry::call::{Outcome, Refusal};
use ferroce_entry::entry;
use ferroce_os::sync::{Mutex, class};

use crate::abi::rdma_event_channel;
use crate::devices;
use crate::id::Queue;

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

/// Ends a channel. False: it isn't a channel.
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
