//! How threads wait for events: rdma_get_cm_event(3); and the event that a program writes: rdma_write_cm_event(3).

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce_entry::call::{self, Outcome, Refusal, put};
use ferroce_entry::entry;
use ferroce_ibverbs::calls::{EventSleep, Woken, end_call};
use ferroce_os::sys::HeldSignals;

use crate::abi::*;
use crate::block::IdBlock;
use crate::channel;
use crate::deliver::deliver;
use crate::id::{self, Queue};
use crate::news::IdNews;

/// What a step between two waits came to.
enum Looked {
    Nothing,
    Found(*mut rdma_cm_event),
}

/// Takes the next event for the program.
///
/// # Safety
/// As [`deliver`].
unsafe fn next(queue: &Queue, announced: bool) -> Looked {
    while let Some(queued) = id::take(queue) {
        // SAFETY: the caller's promise.
        if let Some(event) = unsafe { deliver(queued) } {
            return Looked::Found(event);
        }
    }
    if announced {
        queue.lower_if_empty();
    }
    Looked::Nothing
}

/// How long a thread waits before it logs that it does.
const SPEAKS_AFTER: Duration = Duration::from_secs(1);

/// Waits for the next event of a synchronous id. `None`: the channel's descriptor is non-blocking and no event is pending.
///
/// # Safety
/// As [`deliver`].
pub(crate) unsafe fn wait(
    channel: *mut rdma_event_channel,
    call: &'static str,
) -> Outcome<Option<*mut rdma_cm_event>> {
    let queue = channel::queue_of(channel)?;
    let held = HeldSignals::begin();
    // SAFETY: the caller's promise.
    let outcome = unsafe { wait_with(&queue, call, held) };
    held.end();
    outcome
}

/// # Safety
/// As [`deliver`].
unsafe fn wait_with(
    queue: &Queue,
    call: &'static str,
    held: HeldSignals,
) -> Outcome<Option<*mut rdma_cm_event>> {
    let (since, mut spoken, mut announced) = (Instant::now(), false, false);
    loop {
        // SAFETY: the caller's promise.
        if let Looked::Found(event) = unsafe { next(queue, announced) } {
            return Ok(Some(event));
        }
        let mut sleep = asleep(queue.fd());
        if sleep.nonblocking {
            return Ok(None);
        }
        // SAFETY: this thread can't be cancelled here.
        match ferroce_os::fork::outside_library(|| unsafe { sleep.wait(held) }) {
            Woken::ByEvent => announced = true,
            Woken::ByAnother => announced = false,
            Woken::InVain => {
                return Err(Refusal::new(call::last_errno(), "waiting for an event was interrupted"));
            }
        }
        if !spoken && since.elapsed() > SPEAKS_AFTER {
            spoken = true;
            tracing::info!("{call} waits for the peer");
        }
    }
}

/// Runs a step that can't be cancelled; `None` after a refusal, with errno set.
#[inline(never)]
fn step<T>(body: impl FnOnce() -> Outcome<T>) -> Option<T> {
    call::guard("rdma_get_cm_event", body).map_err(|refusal| call::set_errno(refusal.errno)).ok()
}

// Declared as what it is: a cancellation point, from which a cancelled thread unwinds.
unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Looks for an event, and puts it where the program wants it.
///
/// # Safety
/// `event` is null or the caller's variable.
unsafe fn look(queue: &Queue, event: *mut *mut rdma_cm_event, announced: bool) -> Outcome<bool> {
    if event.is_null() {
        return Err(Refusal::invalid("event is NULL"));
    }
    // SAFETY: the caller's promise.
    unsafe {
        match next(queue, announced) {
            Looked::Found(found) => put(event, "event", found).map(|()| true),
            Looked::Nothing => Ok(false),
        }
    }
}

/// How a thread sleeps until there is an event. It makes no progress: connections aren't in a hurry, and a thread that waits for
/// completions as well, as most programs have one, would be in its way.
fn asleep(fd: c_int) -> EventSleep {
    let timeout = libc::timespec { tv_sec: SPEAKS_AFTER.as_secs() as libc::time_t, tv_nsec: 0 };
    EventSleep::on([fd, -1], Some(timeout))
}

/// rdma_get_cm_event(3). Nothing on its frames needs a destructor.
#[unsafe(export_name = "ferroce_c_rdma_get_cm_event")]
unsafe extern "C-unwind" fn get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    // SAFETY: nothing on this frame needs a destructor.
    unsafe { pthread_testcancel() };
    let held = HeldSignals::begin();
    // SAFETY: by the man page the caller's variable, or null. Nothing on this frame needs a destructor.
    end_call(held, unsafe { get_of_channel(channel, event, held) })
}

/// # Safety
/// As [`get`].
unsafe extern "C-unwind" fn get_of_channel(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
    held: HeldSignals,
) -> c_int {
    // A program may destroy the channel while a thread waits (cmtime does): the thread keeps the queue, for ever if it is cancelled.
    let Some(queue) = step(|| Ok(channel::find(channel).map_or(null(), Arc::into_raw))) else { return -1 };
    if queue.is_null() {
        // A thread that comes just after the channel was destroyed waits, as it would have waited had it come before: the program is
        // about to end, and takes an error here for a failure.
        if let Some(mut sleep) = step(|| Ok(asleep(-1)))
            && !channel.is_null()
        {
            // SAFETY: nothing on this frame needs a destructor.
            unsafe { sleep.wait(held) };
        }
        step::<()>(|| Err(channel::no_channel(channel)));
        return -1;
    }
    // SAFETY: kept, and the caller's variable; the count was taken above.
    unsafe {
        let result = get(&*queue, event, held);
        Arc::decrement_strong_count(queue);
        result
    }
}

/// # Safety
/// `event` is null or the caller's variable. Nothing on the frames above needs a destructor.
unsafe extern "C-unwind" fn get(queue: &Queue, event: *mut *mut rdma_cm_event, held: HeldSignals) -> c_int {
    // SAFETY: numbers only.
    let mut sleep: EventSleep = unsafe { zeroed() };
    let mut announced = false;
    let mut since = None;
    loop {
        // SAFETY: the caller's promise.
        match step(|| unsafe { look(queue, event, announced) }) {
            Some(true) => return 0,
            Some(false) => {}
            None => return -1,
        }
        if sleep.nonblocking {
            call::set_errno(libc::EAGAIN);
            return -1;
        }
        let prepared = step(|| {
            sleep = asleep(queue.fd());
            Ok(())
        });
        if prepared.is_none() {
            return -1;
        }
        if sleep.nonblocking {
            // The descriptor's flag is known now.
            continue;
        }
        if queue.fd() < 0 {
            // The program has destroyed the channel under this thread, as rping does, which takes an error here for its own.
            // SAFETY: nothing on this frame needs a destructor.
            unsafe { EventSleep::for_ever(held) };
        }
        since = since.or_else(|| Some(Instant::now()));
        // SAFETY: nothing on this frame needs a destructor.
        match unsafe { sleep.wait(held) } {
            Woken::ByEvent => announced = true,
            Woken::InVain if queue.fd() < 0 => {}
            Woken::ByAnother
                if step(|| {
                    speak(&mut since);
                    Ok(())
                })
                .is_some() =>
            {
                announced = false
            }
            _ => return -1,
        }
    }
}

/// Logs after a second that the thread waits.
fn speak(since: &mut Option<Instant>) {
    if since.is_some_and(|since| since.elapsed() > SPEAKS_AFTER) {
        tracing::debug!("rdma_get_cm_event waits for an event of the channel");
        // Once a call, but for one that lasts for centuries.
        *since = Some(Instant::now() + Duration::from_secs(1 << 32));
    }
}

entry! {
    fn rdma_write_cm_event(id: *mut rdma_cm_id, event: c_int, status: c_int, arg: u64) -> minus_one {
        // SAFETY: by the man page an id.
        let shared = unsafe { IdBlock::of(id) }?;
        if event != RDMA_CM_EVENT_USER {
            return Err(Refusal::invalid(format!("event {event}: only RDMA_CM_EVENT_USER can be written")));
        }
        shared.push(IdNews::User { status, arg });
        Ok(0)
    }
}
