//! Synchronous ids, whose calls wait for their events, and the change from one channel to another: rdma_migrate_id(3).

use std::ffi::c_int;
use std::ptr::null_mut;

use ferroce_entry::call::{Outcome, Refusal, set_errno};
use ferroce_entry::entry;

use crate::abi::*;
use crate::block::IdBlock;
use crate::channel;
use crate::event;
use crate::id;
use crate::names;
use crate::wait;

/// The call has begun something: a synchronous id's waits for the event, which becomes `id->event`.
///
/// # Safety
/// `id` is an id.
pub(crate) unsafe fn complete(id: *mut rdma_cm_id, call: &'static str) -> Outcome<c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        if !IdBlock::of(id)?.is_sync() {
            return Ok(0);
        }
        if !next_event(id, call)? {
            return Ok(-1);
        }
        check_status(id)
    }
}

/// As [`complete`], for calls that wait in the middle.
///
/// # Safety
/// `id` is an id.
pub(crate) unsafe fn done(id: *mut rdma_cm_id, call: &'static str) -> Outcome<()> {
    // SAFETY: the caller's promise.
    match unsafe { complete(id, call) }? {
        0 => Ok(()),
        _ => Err(Refusal::new(libc::EAGAIN, "the id's channel is non-blocking, and no event is pending")),
    }
}

/// Waits for the next event of a synchronous id. False, with errno EAGAIN: the channel is non-blocking, and no event is pending.
///
/// # Safety
/// `id` is a synchronous id.
pub(crate) unsafe fn next_event(id: *mut rdma_cm_id, call: &'static str) -> Outcome<bool> {
    // SAFETY: the caller's promise; by the man page this call gives up the event before.
    unsafe {
        event::acknowledge(std::mem::replace(&mut (*id).event, null_mut()));
        match wait::wait((*id).channel, call)? {
            Some(event) => {
                (*id).event = event;
                Ok(true)
            }
            None => {
                set_errno(libc::EAGAIN);
                Ok(false)
            }
        }
    }
}

/// The status of a synchronous id's event as the errno of a call.
///
/// # Safety
/// `id` is an id with an event.
pub(crate) unsafe fn check_status(id: *mut rdma_cm_id) -> Outcome<c_int> {
    // SAFETY: the caller's promise.
    let (event, status) = unsafe { ((*(*id).event).event, (*(*id).event).status) };
    let errno = match event {
        RDMA_CM_EVENT_DEVICE_REMOVAL => libc::ENODEV,
        _ if status == 0 => return Ok(0),
        RDMA_CM_EVENT_REJECTED => libc::ECONNREFUSED,
        _ => status.abs(),
    };
    let name = names::name(event).to_string_lossy();
    Err(Refusal::new(errno, format!("{name} with status {status}")))
}

entry! {
    fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> minus_one {
        // SAFETY: by the man page an id, and NULL or a channel.
        unsafe {
            let shared = IdBlock::of(id)?;
            let was_sync = shared.is_sync();
            if was_sync && channel.is_null() {
                return Err(Refusal::invalid("the id is synchronous already"));
            }
            let is_sync = channel.is_null();
            let to = if is_sync { channel::allocate()? } else { channel };
            let queue = channel::queue_of(to)?;
            if was_sync {
                event::acknowledge(std::mem::replace(&mut (*id).event, null_mut()));
            }
            let mut state = shared.state.lock();
            let from = std::mem::replace(&mut state.queue, queue.clone());
            // What the program hasn't fetched moves along, in order, before anything newer.
            for queued in id::withdraw(&from, &shared) {
                id::put(&queue, queued);
            }
            drop(state);
            // Events that it has fetched are the old channel's.
            shared.unacked.wait(|| shared.named("rdma_migrate_id", id));
            let old = std::mem::replace(&mut (*id).channel, to);
            if was_sync {
                channel::free(old);
            }
            shared.set_sync(is_sync);
        }
        Ok(0)
    }
}
