//! Completion channels and asynchronous events: ibv_create_comp_channel(3), ibv_get_cq_event(3),
//! ibv_get_async_event(3).
//!
//! The two functions that block may be cancelled by `pthread_cancel` in their read, whose unwinding then passes through
//! them: at that point they hold nothing that would need a destructor, and nothing catches.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use ferroce_nic as nic;
use libc::{nfds_t, pollfd, sigset_t, size_t, ssize_t, timespec};

use crate::abi::*;
use crate::call::{self, Outcome, entry, put};
use crate::context::ContextBlock;
use crate::cq::CqBlock;
use crate::object::{Headed, Identity};
use crate::qp::QpBlock;
use crate::srq::SrqBlock;
use crate::wq::WqBlock;

#[repr(C)]
pub(crate) struct ChannelBlock {
    c: ibv_comp_channel,
    nic: Arc<nic::CompChannel>,
}

// SAFETY: `repr(C)` with an `ibv_comp_channel` first.
unsafe impl Headed for ChannelBlock {
    type C = ibv_comp_channel;
    const WHAT: &'static str = "channel";

    fn identity(c: &ibv_comp_channel) -> Identity {
        Identity { context: c.context, handle: 0 }
    }
}

impl ChannelBlock {
    pub(crate) fn nic(&self) -> &Arc<nic::CompChannel> {
        &self.nic
    }
}

entry! {
    fn ibv_create_comp_channel(context: *mut ibv_context) -> pointer ibv_comp_channel, {
        // SAFETY: by the man page an open context.
        let nic = nic::CompChannel::new(unsafe { ContextBlock::of(context) }?.nic())?;
        ChannelBlock::allocate(|_| {
            Ok(ChannelBlock { c: ibv_comp_channel { context, fd: nic.events().fd(), refcnt: 0 }, nic })
        })
    }
}

entry! {
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> errno {
        // SAFETY: by the man page a channel that the caller gives up.
        unsafe {
            ChannelBlock::ending(channel)?.nic.check_unused()?;
            ChannelBlock::free(channel);
        }
        Ok(())
    }
}

// Declared as what they are: cancellation points, from which a cancelled thread unwinds.
unsafe extern "C-unwind" {
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    fn ppoll(fds: *mut pollfd, nfds: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
}

/// Takes one event from the descriptor, waiting as its O_NONBLOCK says. False: errno tells why not.
unsafe extern "C-unwind" fn take_one(fd: c_int) -> bool {
    let mut count = 0u64;
    // SAFETY: eight writable bytes, which is what an eventfd gives. Nothing on this frame needs a destructor.
    unsafe { read(fd, (&raw mut count).cast(), size_of::<u64>()) == size_of::<u64>() as ssize_t }
}

/// What a step between two waits came to.
enum Step {
    /// The event that was announced has been withdrawn: wait again.
    Again,
    Done,
}

/// Runs a step that can't be cancelled; `None` after a refusal, with errno set.
#[inline(never)]
fn step(call: &'static str, body: impl FnOnce() -> Outcome<Step>) -> Option<Step> {
    call::guard(call, body).map_err(|refusal| call::set_errno(refusal.errno)).ok()
}

/// What a waiter for completion events sleeps on.
struct Sleep {
    fds: [pollfd; 2],
    timeout: timespec,
    /// The channel's O_NONBLOCK, which is looked up at each call.
    nonblocking: bool,
}

impl Sleep {
    /// Makes progress, then says what to sleep on.
    fn on(channel: &ChannelBlock) -> Self {
        let plan = nic::prepare_wait(channel.c.fd);
        // SAFETY: no memory is passed.
        let flags = unsafe { libc::fcntl(channel.c.fd, libc::F_GETFL) };
        Self {
            fds: plan.fds.map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 }),
            timeout: timespec {
                tv_sec: plan.timeout.as_secs() as libc::time_t,
                tv_nsec: plan.timeout.subsec_nanos().into(),
            },
            nonblocking: flags >= 0 && flags & libc::O_NONBLOCK != 0,
        }
    }
}

/// Would the read of a kernel's channel have gone on after the signal that has just ended a poll? It would with
/// SA_RESTART, which poll(2) doesn't honour. Which handler ran can't be known: yes if there are handlers and all of
/// them restart.
fn signal_restarts() -> bool {
    let mut handlers = false;
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: numbers and a nullable pointer; sigaction fills it in or fails.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &mut action) != 0 {
                continue;
            }
            action
        };
        if !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
            handlers = true;
            if action.sa_flags & libc::SA_RESTART == 0 {
                return false;
            }
        }
    }
    handlers
}

/// ibv_get_cq_event(3). Until the event comes the caller's thread looks after the adapter's sockets, so that a packet
/// wakes it without a hop over another thread.
#[unsafe(export_name = "ferroce_c_ibv_get_cq_event")]
unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: numbers only.
    let mut sleep: Sleep = unsafe { std::mem::zeroed() };
    loop {
        let prepared = step("ibv_get_cq_event", || {
            // SAFETY: by the man page a channel.
            sleep = Sleep::on(unsafe { ChannelBlock::of(channel) }?);
            Ok(Step::Done)
        });
        if prepared.is_none() {
            return -1;
        }
        if !sleep.nonblocking {
            // SAFETY: two valid entries and a timeout; nothing on this frame needs a destructor.
            let n = unsafe { ppoll(sleep.fds.as_mut_ptr(), 2, &sleep.timeout, std::ptr::null()) };
            if n < 0 && (call::last_errno() != libc::EINTR || !signal_restarts()) {
                return -1;
            }
            if n <= 0 || sleep.fds[0].revents == 0 {
                if step("ibv_get_cq_event", || Ok(progress())).is_none() {
                    return -1;
                }
                continue;
            }
        }
        // SAFETY: nothing on this frame needs a destructor.
        if unsafe { !take_one(sleep.fds[0].fd) } {
            return -1;
        }
        let taken = step("ibv_get_cq_event", || {
            // SAFETY: by the man page a channel and the caller's variables. The cookie of a completion queue is its
            // address, and the queue lives: its destruction waits for the event that is counted here.
            unsafe {
                let queue = ChannelBlock::of(channel)?.nic.events();
                let Some(cookie) = queue.take_with(|cq| {
                    cq.unacked().got();
                    cq.cookie()
                }) else {
                    return Ok(Step::Again);
                };
                let found = cookie as *mut ibv_cq;
                put(cq, "cq", found)?;
                put(cq_context, "cq_context", (*found).cq_context)?;
            }
            Ok(Step::Done)
        });
        match taken {
            Some(Step::Done) => return 0,
            Some(Step::Again) => {}
            None => return -1,
        }
    }
}

fn progress() -> Step {
    nic::progress_of_waiter();
    Step::Again
}

entry! {
    fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) -> value () = (), {
        // SAFETY: by the man page a completion queue, whose destruction waits for this call.
        if let Ok(block) = unsafe { CqBlock::of(cq) } {
            // SAFETY: a counter of this structure, which C code may read.
            unsafe { crate::object::count(&raw mut (*cq).comp_events_completed, nevents) };
            // The queue may be gone as soon as that is done.
            block.nic().unacked().ack(nevents);
        }
    }
}

/// The number and the object of an event, and marks it as got. Runs while the queue of events is locked: the
/// destruction of an object first withdraws its events there, so the object is alive.
fn announce(event: &nic::AsyncEvent) -> ibv_async_event {
    use nic::AsyncEvent as E;
    let port = |port: u8| ibv_async_element { port_num: c_int::from(port) };
    // SAFETY: cookies are addresses of live blocks, see above.
    let (qp, cq, srq, wq) = unsafe {
        (
            |cookie: usize| {
                let qp = cookie as *mut ibv_qp;
                QpBlock::of(qp).expect("a cookie").unacked_async().got();
                ibv_async_element { qp }
            },
            |cookie: usize| {
                let cq = cookie as *mut ibv_cq;
                CqBlock::of(cq).expect("a cookie").nic().unacked_async().got();
                ibv_async_element { cq }
            },
            |cookie: usize| {
                let srq = cookie as *mut ibv_srq;
                SrqBlock::of(srq).expect("a cookie").nic().unacked_async().got();
                ibv_async_element { srq }
            },
            |cookie: usize| {
                let wq = cookie as *mut ibv_wq;
                WqBlock::of(wq).expect("a cookie").nic().unacked_async().got();
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
        E::GidChange(p) => (IBV_EVENT_GID_CHANGE, port(p)),
        E::SpeedChange => (IBV_EVENT_DEVICE_SPEED_CHANGE, port(0)),
        E::DeviceFatal => (IBV_EVENT_DEVICE_FATAL, port(0)),
    };
    ibv_async_event { element, event_type }
}

/// ibv_get_async_event(3).
#[unsafe(export_name = "ferroce_c_ibv_get_async_event")]
unsafe extern "C-unwind" fn get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    loop {
        let mut fd = -1;
        let ready = step("ibv_get_async_event", || {
            // SAFETY: by the man page an open context.
            fd = unsafe { ContextBlock::of(context) }?.nic().async_events().fd();
            Ok(Step::Done)
        });
        // SAFETY: nothing on this frame needs a destructor.
        if ready.is_none() || unsafe { !take_one(fd) } {
            return -1;
        }
        let taken = step("ibv_get_async_event", || {
            // SAFETY: by the man page an open context and the caller's structure.
            unsafe {
                match ContextBlock::of(context)?.nic().async_events().take_with(announce) {
                    Some(found) => put(event, "event", found).map(|()| Step::Done),
                    None => Ok(Step::Again),
                }
            }
        });
        match taken {
            Some(Step::Done) => return 0,
            Some(Step::Again) => {}
            None => return -1,
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
