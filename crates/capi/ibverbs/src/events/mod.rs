//! Completion channels and asynchronous events: ibv_create_comp_channel(3), ibv_get_cq_event(3),
//! ibv_get_async_event(3).
//!
//! The two functions that block may be cancelled by `pthread_cancel` at their beginning and in their poll, whose
//! unwinding then passes through them: at that point they hold nothing that would need a destructor, and nothing
//! catches. A call that finds no event at once holds the thread's signals back until it ends, but for its poll
//! (`sleep.rs`): the thread makes progress for all queue pairs of the process, with their locks.

mod sleep;

use std::ffi::{c_int, c_uint, c_void};
use std::time::{Duration, Instant};

use ferroce_nic as nic;
use ferroce_queues::late::Late;

use ferroce_abi::verbs::*;
use ferroce_check as check;
use ferroce_entry::call::{self, Outcome, entry, put};
use ferroce_objects::{self, ChannelBlock, ContextBlock, CqBlock, Headed, QpBlock, SrqBlock, WqBlock};
use ferroce_os::sys::HeldSignals;
pub use sleep::{EventSleep, Woken, end_call};

/// Logs that the destruction of an object waits until events are acknowledged.
pub(crate) fn late(late: Late, count: u32) {
    let (call, events) = match late {
        Late::CompletionEvents(_) => ("ibv_destroy_cq", "completion events"),
        Late::OfCq => ("ibv_destroy_cq", "asynchronous events"),
        Late::OfQp => ("ibv_destroy_qp", "asynchronous events"),
        Late::OfSrq => ("ibv_destroy_srq", "asynchronous events"),
        Late::OfWq => ("ibv_destroy_wq", "asynchronous events"),
    };
    let block = match late {
        // SAFETY: the user handle of a queue is the address of its block, which is freed after the destruction only.
        Late::CompletionEvents(cq) => unsafe { CqBlock::of(cq as *mut ibv_cq) }.ok(),
        _ => None,
    };
    let taken = block.and_then(CqBlock::watch).and_then(|watch| watch.taken_at());
    check::waits(call.to_owned(), format!("{events}: {count}"), taken);
}

entry! {
    pub fn ibv_create_comp_channel(context: *mut ibv_context) -> pointer ibv_comp_channel, {
        // SAFETY: by the man page an open context.
        let nic = ferroce_queues::CompChannel::new(unsafe { ContextBlock::of(context) }?.nic())?;
        ChannelBlock::allocate(|_| {
            Ok(ChannelBlock { c: ibv_comp_channel { context, fd: nic.events().fd(), refcnt: 0 }, nic })
        })
    }
}

entry! {
    pub fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> errno {
        // SAFETY: by the man page a channel that the caller gives up.
        unsafe {
            ChannelBlock::ending(channel)?.nic().check_unused()?;
            ChannelBlock::free(channel);
        }
        Ok(())
    }
}

// Declared as what it is: a cancellation point, from which a cancelled thread unwinds.
unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// What a step between two waits came to.
enum WaitStep {
    /// There is no event, or no longer: wait.
    Again,
    Done,
}

/// Runs a step that can't be cancelled; `None` after a refusal, with errno set.
#[inline(never)]
fn step(call: &'static str, body: impl FnOnce() -> Outcome<WaitStep>) -> Option<WaitStep> {
    call::guard(call, body).map_err(|refusal| call::set_errno(refusal.errno)).ok()
}

/// Takes a completion event for the program. `announced`: the descriptor was readable. `since`: when the call began to wait.
///
/// # Safety
/// A channel and the caller's variables.
unsafe fn take_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
    announced: bool,
    since: Option<Instant>,
) -> Outcome<WaitStep> {
    let waited = since.map_or(Duration::ZERO, |since| since.elapsed());
    // SAFETY: the caller's promise. The user handle of a completion queue is its address, and the queue lives: its
    // destruction waits for the event that is counted here.
    unsafe {
        let queue = ChannelBlock::of(channel)?.nic().events();
        let Some(user_handle) = queue.take_with(waited, |cq| {
            cq.unacked().got();
            cq.user_handle()
        }) else {
            return Ok(nothing_there(queue, announced));
        };
        let found = user_handle as *mut ibv_cq;
        let block = CqBlock::of(found)?;
        if let Some(watch) = block.watch() {
            let filled = || block.nic().try_fill().map_or(0, |fill| fill.filled);
            watch.event_taken((*channel).fd, filled);
        }
        put(cq, "cq", found)?;
        put(cq_context, "cq_context", (*found).cq_context)?;
    }
    Ok(WaitStep::Done)
}

fn nothing_there<T>(queue: &ferroce_queues::EventQueue<T>, announced: bool) -> WaitStep {
    if announced {
        queue.lower_if_empty();
    }
    WaitStep::Again
}

/// ibv_get_cq_event(3). Until the event comes the caller's thread looks after the adapter's sockets, so that a packet
/// wakes it without a hop over another thread.
#[unsafe(export_name = "ferroce_c_ibv_get_cq_event")]
unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: nothing on this frame needs a destructor.
    unsafe { pthread_testcancel() };
    // SAFETY: by the man page a channel.
    if unsafe { ChannelBlock::of(channel) }.is_ok_and(|block| block.nic().events().may_have_events()) {
        // SAFETY: by the man page a channel and the caller's variables.
        match step("ibv_get_cq_event", || unsafe { take_cq_event(channel, cq, cq_context, false, None) }) {
            Some(WaitStep::Done) => return 0,
            Some(WaitStep::Again) => {}
            None => return -1,
        }
    }
    let held = HeldSignals::begin();
    // SAFETY: by the man page a channel and the caller's variables. Nothing on this frame needs a destructor.
    end_call(held, unsafe { wait_for_cq_event(channel, cq, cq_context, held) })
}

/// # Safety
/// A channel and the caller's variables. Nothing on the frames above needs a destructor.
unsafe extern "C-unwind" fn wait_for_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
    held: HeldSignals,
) -> c_int {
    // SAFETY: numbers only.
    let mut sleep: EventSleep = unsafe { std::mem::zeroed() };
    let mut since = None;
    loop {
        let prepared = step("ibv_get_cq_event", || {
            // SAFETY: the caller's promise.
            let block = unsafe { ChannelBlock::of(channel) }?;
            let queue = block.nic().events();
            let _attending = queue.attend();
            sleep = EventSleep::with_progress(block.c.fd, || queue.has_events());
            if !sleep.nonblocking && check::is_on() {
                let slept = since.map_or(Duration::ZERO, |since: Instant| since.elapsed());
                sleep.bound(check::before_sleep(channel, block.nic().queues(), slept));
            }
            // SAFETY: the caller's promise.
            unsafe { take_cq_event(channel, cq, cq_context, false, since) }
        });
        match prepared {
            Some(WaitStep::Done) => return 0,
            Some(WaitStep::Again) => {}
            None => return -1,
        }
        if sleep.nonblocking {
            // Another thread may have announced one.
            // SAFETY: the caller's promise.
            return match step("ibv_get_cq_event", || unsafe {
                take_cq_event(channel, cq, cq_context, true, since)
            }) {
                Some(WaitStep::Done) => 0,
                Some(WaitStep::Again) => {
                    call::set_errno(libc::EAGAIN);
                    -1
                }
                None => -1,
            };
        }
        // If an event has come, another thread has taken it.
        if !sleep.event_came {
            since = since.or_else(|| Some(Instant::now()));
            // SAFETY: nothing on this frame needs a destructor.
            let announced = match unsafe { sleep.wait(held) } {
                Woken::ByEvent => true,
                Woken::ByAnother => false,
                Woken::InVain => return -1,
            };
            let woken = step("ibv_get_cq_event", || {
                // SAFETY: the caller's promise.
                let _attending = unsafe { ChannelBlock::of(channel) }?.nic().events().attend();
                nic::progress_of_waiter(sleep.has_sources_readable());
                // SAFETY: the caller's promise.
                unsafe { take_cq_event(channel, cq, cq_context, announced, since) }
            });
            match woken {
                Some(WaitStep::Done) => return 0,
                Some(WaitStep::Again) => {}
                None => return -1,
            }
        }
        // SAFETY: nothing on this frame needs a destructor.
        if let Woken::InVain = unsafe { EventSleep::let_signals_in(held) } {
            return -1;
        }
    }
}

entry! {
    fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) -> value () = (), {
        // SAFETY: by the man page a completion queue, whose destruction waits for this call.
        if let Ok(block) = unsafe { CqBlock::of(cq) } {
            // SAFETY: a counter of this structure, which C code may read.
            unsafe { ferroce_objects::count(&raw mut (*cq).comp_events_completed, nevents) };
            // The queue may be gone as soon as that is done.
            block.nic().unacked().ack(nevents);
        }
    }
}

/// The number and the object of an event, and marks it as got. Runs while the queue of events is locked: the
/// destruction of an object first withdraws its events there, so the object is alive.
fn announce(event: &ferroce_types::AsyncEvent) -> ibv_async_event {
    use ferroce_types::AsyncEvent as E;
    let port = |port: u8| ibv_async_element { port_num: c_int::from(port) };
    // SAFETY: user handles are addresses of live blocks, see above.
    let (qp, cq, srq, wq) = unsafe {
        (
            |user_handle: usize| {
                let qp = user_handle as *mut ibv_qp;
                QpBlock::of(qp).expect("a user handle").unacked_async().got();
                ibv_async_element { qp }
            },
            |user_handle: usize| {
                let cq = user_handle as *mut ibv_cq;
                CqBlock::of(cq).expect("a user handle").nic().unacked_async().got();
                ibv_async_element { cq }
            },
            |user_handle: usize| {
                let srq = user_handle as *mut ibv_srq;
                SrqBlock::of(srq).expect("a user handle").nic().unacked_async().got();
                ibv_async_element { srq }
            },
            |user_handle: usize| {
                let wq = user_handle as *mut ibv_wq;
                WqBlock::of(wq).expect("a user handle").nic().unacked_async().got();
                ibv_async_element { wq }
            },
        )
    };
    let (event_type, element) = match *event {
        E::QpFatal(c) => (IBV_EVENT_QP_FATAL, qp(c)),
        E::QpRequestError(c) => (IBV_EVENT_QP_REQ_ERR, qp(c)),
        E::QpAccessError(c) => (IBV_EVENT_QP_ACCESS_ERR, qp(c)),
        E::CommunicationEstablished(c) => (IBV_EVENT_COMM_EST, qp(c)),
        E::SqDrained(c) => (IBV_EVENT_SQ_DRAINED, qp(c)),
        E::QpLastWqeReached(c) => (IBV_EVENT_QP_LAST_WQE_REACHED, qp(c)),
        E::CqError(c) => (IBV_EVENT_CQ_ERR, cq(c)),
        E::SrqError(c) => (IBV_EVENT_SRQ_ERR, srq(c)),
        E::SrqLimitReached(c) => (IBV_EVENT_SRQ_LIMIT_REACHED, srq(c)),
        E::WqFatal(c) => (IBV_EVENT_WQ_FATAL, wq(c)),
        E::PortActive(p) => (IBV_EVENT_PORT_ACTIVE, port(p)),
        E::PortError(p) => (IBV_EVENT_PORT_ERR, port(p)),
        E::LidChange(p) => (IBV_EVENT_LID_CHANGE, port(p)),
        E::GidChange(p) => (IBV_EVENT_GID_CHANGE, port(p)),
        E::SpeedChange => (IBV_EVENT_DEVICE_SPEED_CHANGE, port(0)),
        E::DeviceFatal => (IBV_EVENT_DEVICE_FATAL, port(0)),
    };
    ibv_async_event { element, event_type }
}

/// Takes an asynchronous event for the program. `announced`: the descriptor was readable.
///
/// # Safety
/// An open context and the caller's structure.
unsafe fn take_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
    announced: bool,
) -> Outcome<WaitStep> {
    // SAFETY: the caller's promise.
    unsafe {
        let queue = ContextBlock::of(context)?.nic().async_events();
        match queue.take_with(Duration::ZERO, announce) {
            Some(found) => put(event, "event", found).map(|()| WaitStep::Done),
            None => Ok(nothing_there(queue, announced)),
        }
    }
}

/// ibv_get_async_event(3).
#[unsafe(export_name = "ferroce_c_ibv_get_async_event")]
unsafe extern "C-unwind" fn get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    // SAFETY: nothing on this frame needs a destructor.
    unsafe { pthread_testcancel() };
    let held = HeldSignals::begin();
    // SAFETY: by the man page an open context and the caller's structure. Nothing on this frame needs a destructor.
    end_call(held, unsafe { wait_for_async_event(context, event, held) })
}

/// # Safety
/// An open context and the caller's structure. Nothing on the frames above needs a destructor.
unsafe extern "C-unwind" fn wait_for_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
    held: HeldSignals,
) -> c_int {
    // SAFETY: numbers only.
    let mut sleep: EventSleep = unsafe { std::mem::zeroed() };
    let mut announced = false;
    loop {
        // SAFETY: the caller's promise.
        match step("ibv_get_async_event", || unsafe { take_async_event(context, event, announced) }) {
            Some(WaitStep::Done) => return 0,
            Some(WaitStep::Again) => {}
            None => return -1,
        }
        let prepared = step("ibv_get_async_event", || {
            // SAFETY: the caller's promise.
            let fd = unsafe { ContextBlock::of(context) }?.nic().async_events().fd();
            sleep = EventSleep::on([fd, -1], None);
            Ok(WaitStep::Done)
        });
        if prepared.is_none() {
            return -1;
        }
        if sleep.nonblocking {
            call::set_errno(libc::EAGAIN);
            return -1;
        }
        // SAFETY: nothing on this frame needs a destructor.
        match unsafe { sleep.wait(held) } {
            Woken::ByEvent => announced = true,
            Woken::ByAnother => announced = false,
            Woken::InVain => return -1,
        }
    }
}

entry! {
    fn ibv_ack_async_event(event: *mut ibv_async_event) -> value () = (), {
        // SAFETY: by the man page an event from `ibv_get_async_event`, so its object waits for this call and is alive.
        unsafe {
            let Some(event) = event.as_ref() else { return };
            match event.event_type {
                IBV_EVENT_CQ_ERR => {
                    if let Ok(block) = CqBlock::of(event.element.cq) {
                        block.nic().unacked_async().ack(1);
                    }
                }
                IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR | IBV_EVENT_COMM_EST
                | IBV_EVENT_SQ_DRAINED | IBV_EVENT_QP_LAST_WQE_REACHED => {
                    if let Ok(block) = QpBlock::of(event.element.qp) {
                        block.unacked_async().ack(1);
                    }
                }
                IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                    if let Ok(block) = SrqBlock::of(event.element.srq) {
                        block.nic().unacked_async().ack(1);
                    }
                }
                IBV_EVENT_WQ_FATAL => {
                    if let Ok(block) = WqBlock::of(event.element.wq) {
                        block.nic().unacked_async().ack(1);
                    }
                }
                _ => {}
            }
        }
    }
}
