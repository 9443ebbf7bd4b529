//! Completion queues.

use crate::device::{SystemContext, SystemDomain};
use crate::library;
use ferroce_abi::verbs::*;
use ferroce_buffers::{Ended, Error, Fault, Kind, Polled, Stamp, Stamped, Status};
use std::ffi::c_int;
use std::fmt;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Asserts that the library can write a completion where it is read.
macro_rules! assert_layout {
    ($($ours:ident $theirs:ident;)*) => {
        const _: () = {
            assert!(size_of::<Ended>() == size_of::<ibv_wc>() && align_of::<Ended>() == align_of::<ibv_wc>());
            $(assert!(offset_of!(Ended, $ours) == offset_of!(ibv_wc, $theirs));)*
        };
    };
}
assert_layout! {
    wr_id wr_id;
    status status;
    opcode opcode;
    vendor_err vendor_err;
    byte_len byte_len;
    imm_data imm_data;
    qp_num qp_num;
    src_qp src_qp;
    wc_flags wc_flags;
    indices pkey_index;
    levels sl;
}

struct SystemQueue {
    /// An extended one if completions have the time.
    cq: NonNull<ibv_cq>,
    stamped: Stamped,
    channel: SystemChannel,
    context: Arc<SystemContext>,
}

// SAFETY: the library's objects may be used by any thread.
unsafe impl Send for SystemQueue {}
// SAFETY: as `SystemContext`.
unsafe impl Sync for SystemQueue {}

impl Drop for SystemQueue {
    fn drop(&mut self) {
        if self.context.maker.is_here() {
            // SAFETY: queue pairs have a handle, so none is left, and all events were acknowledged.
            unsafe { (self.context.library.ibv_destroy_cq)(self.cq.as_ptr()) };
        }
    }
}

/// A completion channel for one completion queue.
struct SystemChannel {
    channel: NonNull<ibv_comp_channel>,
    context: Arc<SystemContext>,
}

impl SystemChannel {
    fn new(context: &Arc<SystemContext>) -> Result<Self, Error> {
        // SAFETY: an open device.
        let channel = unsafe { (context.library.ibv_create_comp_channel)(context.get()) };
        let channel =
            NonNull::new(channel).ok_or_else(|| library::last_error("cq", "ibv_create_comp_channel"))?;
        let channel = Self { channel, context: context.clone() };
        // SAFETY: a descriptor of the channel's own.
        let set = unsafe {
            let flags = libc::fcntl(channel.fd(), libc::F_GETFL);
            libc::fcntl(channel.fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        if set < 0 {
            return Err(library::last_error("cq", "fcntl"));
        }
        Ok(channel)
    }

    fn fd(&self) -> c_int {
        // SAFETY: the library has initialised it.
        unsafe { (*self.channel.as_ptr()).fd }
    }
}

impl Drop for SystemChannel {
    fn drop(&mut self) {
        if self.context.maker.is_here() {
            // SAFETY: its completion queue was destroyed before.
            unsafe { (self.context.library.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        }
    }
}

/// A completion queue. It exists as long as a handle or a queue pair that uses it.
#[derive(Clone)]
pub struct SystemCq(Arc<SystemQueue>);

impl SystemDomain {
    /// Makes a completion queue.
    ///
    /// # Errors
    /// A limit is reached, or no descriptor is left.
    pub fn cq(&self, entries: u32, stamped: Stamped) -> Result<SystemCq, Error> {
        SystemCq::new(self.context(), entries, stamped)
    }
}

impl SystemCq {
    pub(crate) fn new(context: &Arc<SystemContext>, entries: u32, stamped: Stamped) -> Result<Self, Error> {
        context.maker.check("cq")?;
        let channel = SystemChannel::new(context)?;
        let plain = stamped == Stamped::default();
        let cq = if plain { None } else { Some(Self::new_extended(context, &channel, entries, stamped)?) };
        let cq = match cq {
            Some(extended) => extended.cast(),
            None => {
                let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
                let create = context.library.ibv_create_cq;
                // SAFETY: an open device, and a channel of it.
                let cq = unsafe { create(context.get(), entries, null_mut(), channel.channel.as_ptr(), 0) };
                NonNull::new(cq).ok_or_else(|| library::last_error("cq", "ibv_create_cq"))?
            }
        };
        Ok(Self(Arc::new(SystemQueue { cq, stamped, channel, context: context.clone() })))
    }

    /// A queue whose completions have the time.
    fn new_extended(
        context: &Arc<SystemContext>,
        channel: &SystemChannel,
        entries: u32,
        stamped: Stamped,
    ) -> Result<NonNull<ibv_cq_ex>, Error> {
        let of_clock = if stamped.clock { IBV_WC_EX_WITH_COMPLETION_TIMESTAMP } else { 0 };
        let of_wall = if stamped.wall_clock { IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK } else { 0 };
        let mut attr = ibv_cq_init_attr_ex {
            cqe: entries,
            cq_context: null_mut(),
            channel: channel.channel.as_ptr(),
            comp_vector: 0,
            wc_flags: u64::from(IBV_WC_STANDARD_FLAGS) | of_clock | of_wall,
            comp_mask: 0,
            flags: 0,
            parent_domain: null_mut(),
        };
        let create = context.extended(offset_of!(verbs_context, create_cq_ex)).and_then(|it| it.create_cq_ex);
        let none = || Error::new(Kind::Unsupported, "cq", "the device has no times of completions");
        // SAFETY: an open device, a channel of it, and attributes.
        let cq = unsafe { create.ok_or_else(none)?(context.get(), &raw mut attr) };
        NonNull::new(cq).ok_or_else(|| library::last_error("cq", "ibv_create_cq_ex"))
    }

    /// As [`SystemCq::poll`], of a queue whose completions have the time.
    fn poll_extended(&self, into: &mut Polled) -> Result<(), Error> {
        let SystemQueue { cq, stamped, .. } = &*self.0;
        let cq = cq.as_ptr().cast::<ibv_cq_ex>();
        let dead = |call: &str| Error::new(Kind::Dead, "poll", format!("{call} of an extended queue failed"));
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: an extended queue, whose functions the provider has set. They are called between start and end.
        unsafe {
            let queue = &*cq;
            let (Some(start), Some(next), Some(end)) = (queue.start_poll, queue.next_poll, queue.end_poll)
            else {
                return Err(missing("poll", "start_poll"));
            };
            match start(cq, &raw mut attr) {
                0 => {}
                libc::ENOENT => return Ok(()),
                _ => return Err(dead("ibv_start_poll")),
            }
            let polled = loop {
                let Some((ended, stamp)) = Self::read(cq, *stamped) else {
                    break Err(missing("poll", "read_byte_len"));
                };
                into.push(ended);
                into.stamp(stamp);
                if into.len() == Polled::MOST {
                    break Ok(());
                }
                match next(cq) {
                    0 => {}
                    libc::ENOENT => break Ok(()),
                    _ => break Err(dead("ibv_next_poll")),
                }
            };
            end(cq);
            polled
        }
    }

    /// The completion that is polled. `None` if the provider lacks a function.
    ///
    /// # Safety
    /// An extended queue of this provider, between the start and the end of a poll.
    unsafe fn read(cq: *mut ibv_cq_ex, stamped: Stamped) -> Option<(Ended, Stamp)> {
        // SAFETY: the caller's promise.
        unsafe {
            let queue = &*cq;
            let opcode = queue.read_opcode?(cq).cast_unsigned();
            let ended = Ended {
                wr_id: queue.wr_id,
                status: queue.status.cast_unsigned(),
                opcode,
                vendor_err: if queue.status == 0 { 0 } else { queue.read_vendor_err?(cq) },
                byte_len: queue.read_byte_len?(cq),
                imm_data: queue.read_imm_data?(cq),
                qp_num: queue.read_qp_num?(cq),
                src_qp: queue.read_src_qp?(cq),
                wc_flags: queue.read_wc_flags?(cq),
                ..Ended::default()
            };
            let mut stamp = Stamp::default();
            if stamped.clock {
                stamp.clock = queue.read_completion_ts?(cq);
            }
            if stamped.wall_clock {
                stamp.wall_clock = queue.read_completion_wallclock_ns?(cq);
            }
            Some((ended, stamp))
        }
    }

    pub(crate) fn get(&self) -> *mut ibv_cq {
        self.0.cq.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<SystemContext> {
        &self.0.context
    }

    /// Moves completions to `into`, which is empty.
    ///
    /// # Errors
    /// The device is gone, or the queue is the parent's of a fork.
    #[inline]
    pub fn poll(&self, into: &mut Polled) -> Result<(), Error> {
        let SystemQueue { context, stamped, .. } = &*self.0;
        context.maker.check("poll")?;
        let polled =
            if *stamped == Stamped::default() { self.poll_plain(into) } else { self.poll_extended(into) };
        into.explain(|ended| self.fault(ended));
        polled
    }

    /// As [`SystemCq::poll`], of a queue whose completions have no time.
    #[inline(always)]
    fn poll_plain(&self, into: &mut Polled) -> Result<(), Error> {
        // SAFETY: a completion queue, whose context's functions the library has set, and a place for so many completions, each of which has the
        // layout of the library's, and takes any numbers.
        let filled = unsafe {
            let poll = (*self.0.context.get()).ops.poll_cq.ok_or_else(|| missing("poll", "poll_cq"))?;
            into.fill(|places| poll(self.get(), places.len() as c_int, places.as_mut_ptr().cast()))
        };
        filled.map_err(|returned| Error::new(Kind::Dead, "poll", format!("ibv_poll_cq returned {returned}")))
    }

    #[cold]
    fn fault(&self, ended: &Ended) -> Fault {
        let status = Status::from_number(ended.status).unwrap_or(Status::Other(ended.status));
        self.0.context.failures.fault(ended.qp_num, status, ended.vendor_err)
    }

    /// Waits until completions have come, and moves them to `into`, which is empty. At most for `limit`: false if none came.
    ///
    /// # Errors
    /// As [`SystemCq::poll`].
    pub fn wait(&self, into: &mut Polled, limit: Option<Duration>) -> Result<bool, Error> {
        // A limit beyond what the clock can express is none.
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            self.poll(into)?;
            if !into.is_empty() {
                return Ok(true);
            }
            self.arm()?;
            // What has come before raises no event.
            self.poll(into)?;
            if !into.is_empty() {
                return Ok(true);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            self.sleep(left);
        }
    }

    fn sleep(&self, left: Option<Duration>) {
        let mut one = libc::pollfd { fd: self.0.channel.fd(), events: libc::POLLIN, revents: 0 };
        // Rounded up: a wait of less than a millisecond would be none.
        let millis =
            left.map_or(-1, |left| c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX));
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut one, 1, millis) };
    }

    /// The descriptor that is readable while an event is announced.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel has it open for as long as it exists, which is at least as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.0.channel.fd()) }
    }

    /// Takes the events that were announced, and asks for one with the next completion.
    ///
    /// # Errors
    /// As [`SystemCq::poll`].
    pub fn arm(&self) -> Result<(), Error> {
        let SystemQueue { context, channel, .. } = &*self.0;
        context.maker.check("arm")?;
        let (mut cq, mut unused) = (null_mut(), null_mut());
        // SAFETY: a channel that doesn't block, and places for the queue and its context. The only queue of the channel is this one.
        while unsafe {
            (context.library.ibv_get_cq_event)(channel.channel.as_ptr(), &raw mut cq, &raw mut unused)
        } == 0
        {
            // SAFETY: the event was of this queue.
            unsafe { (context.library.ibv_ack_cq_events)(self.get(), 1) };
        }
        // SAFETY: a completion queue, whose context's functions the library has set.
        let returned = unsafe {
            let notify = (*context.get()).ops.req_notify_cq.ok_or_else(|| missing("arm", "req_notify_cq"))?;
            notify(self.get(), 0)
        };
        library::check("arm", "ibv_req_notify_cq", returned)
    }
}

/// The provider lacks a function that all have.
#[cold]
fn missing(verb: &'static str, function: &'static str) -> Error {
    Error::new(Kind::Unsupported, verb, format!("the device's provider has no {function}"))
}

impl fmt::Debug for SystemCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SystemCq").field(&self.0.cq).finish()
    }
}
