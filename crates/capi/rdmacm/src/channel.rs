//! Event channels: rdma_create_event_channel(3), rdma_destroy_event_channel(3).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ferroce_ibverbs::call::{Outcome, Refusal};
use ferroce_ibverbs::entry;
use ferroce_nic::EventQueue;

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

#[repr(C)]
pub(crate) struct ChannelBlock {
    c: rdma_event_channel,
    queue: Arc<Queue>,
}

impl ChannelBlock {
    /// The block behind a program's pointer.
    ///
    /// # Safety
    /// `channel` is null or a channel that isn't destroyed.
    pub(crate) unsafe fn of<'a>(channel: *mut rdma_event_channel) -> Outcome<&'a Self> {
        // SAFETY: the head of a block has the block's address; blocks are shared only.
        unsafe { channel.cast::<Self>().as_ref() }.ok_or_else(|| Refusal::invalid("channel is NULL"))
    }

    /// Makes a channel.
    pub(crate) fn allocate() -> Outcome<*mut rdma_event_channel> {
        let queue = Arc::new(Queue::new()?);
        let block = Self { c: rdma_event_channel { fd: queue.fd() }, queue };
        Ok(Box::into_raw(Box::new(block)).cast())
    }

    /// Ends a channel.
    ///
    /// # Safety
    /// `channel` is a channel that nobody uses any more.
    pub(crate) unsafe fn free(channel: *mut rdma_event_channel) {
        // SAFETY: `allocate` made it of a box.
        let block = unsafe { Box::from_raw(channel.cast::<Self>()) };
        block.queue.close();
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }
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
        ChannelBlock::allocate()
    }
}

entry! {
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) -> value () = (), {
        if !channel.is_null() {
            // SAFETY: by the man page a channel that the caller gives up.
            unsafe { ChannelBlock::free(channel) };
        }
    }
}
