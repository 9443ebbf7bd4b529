//! Completion queues.

use crate::device::NativeDomain;
use crate::{failures, library};
use ferroce_buffers::{Ended, Error, Polled, Stamp, Stamped};
use ferroce_nic::{self as nic, Poll as _};
use ferroce_os::sys;
use ferroce_queues::CqInit;
use ferroce_types::reason_of;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Inner {
    cq: Arc<ferroce_queues::Cq>,
    channel: Arc<ferroce_queues::CompChannel>,
    /// Its completions have the time.
    stamped: bool,
    domain: NativeDomain,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Queue pairs have a handle, so none is left.
        library::until_done("destroy", || self.cq.destroy());
    }
}

/// A completion queue. It exists as long as a handle or a queue pair that uses it.
#[derive(Clone)]
pub struct NativeCq(Arc<Inner>);

impl NativeDomain {
    /// Makes a completion queue.
    ///
    /// # Errors
    /// A limit is reached, or no descriptor is left.
    pub fn cq(&self, entries: u32, stamped: Stamped) -> Result<NativeCq, Error> {
        let _inside = library::enter("cq")?;
        let refused = |error: ferroce_types::Error| library::error("cq", &error);
        let channel = ferroce_queues::CompChannel::new(self.context()).map_err(refused)?;
        let stamped = stamped != Stamped::default();
        let (channel_of, user_handle) = (Some(&channel), 0);
        let init = CqInit {
            cqe: entries,
            channel: channel_of,
            user_handle,
            stamped,
            ignore_overrun: false,
            pd: None,
        };
        let cq = ferroce_queues::Cq::create_as(self.context(), init).map_err(refused)?;
        Ok(NativeCq(Arc::new(Inner { cq, channel, stamped, domain: self.clone() })))
    }
}

impl NativeCq {
    pub(crate) fn inner(&self) -> &Arc<ferroce_queues::Cq> {
        &self.0.cq
    }

    pub(crate) fn domain(&self) -> &NativeDomain {
        &self.0.domain
    }

    /// Moves completions to `into`, which is empty.
    ///
    /// # Errors
    /// The adapter can't be used in this process.
    #[inline(always)]
    pub fn poll(&self, into: &mut Polled) -> Result<(), Error> {
        let inside = library::enter("poll")?;
        self.take(&inside, into)
    }

    #[inline(always)]
    fn take(&self, _inside: &ferroce_os::fork::InLibrary, into: &mut Polled) -> Result<(), Error> {
        let Inner { cq, stamped, .. } = &*self.0;
        let polled = cq.poll_stamped(Polled::MOST, |completion, at| {
            into.push(Ended::of(completion));
            if *stamped {
                into.stamp(Stamp { clock: at.clock, wall_clock: at.wall_clock });
            }
        });
        into.explain(|it| failures::fault(it.qp_num, it.status, reason_of(it.vendor_err)));
        polled.map(drop).map_err(|error| library::error("poll", &error))
    }

    /// Waits until completions have come, and moves them to `into`, which is empty. At most for `limit`: false if none came.
    ///
    /// # Errors
    /// The adapter can't be used in this process.
    pub fn wait(&self, into: &mut Polled, limit: Option<Duration>) -> Result<bool, Error> {
        // A limit beyond what the clock can express is none.
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let inside = library::enter("wait")?;
            self.take_events();
            self.take(&inside, into)?;
            if !into.is_empty() {
                return Ok(true);
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Ok(false);
            }
            self.0.cq.request_notify(false);
            let Some(mut plan) = self.plan() else { continue };
            drop(inside);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            plan.timeout = left.map_or(plan.timeout, |left| left.min(plan.timeout));
            let readable = sleep(&plan);
            let _inside = library::enter("wait")?;
            let _attending = self.0.channel.events().attend();
            nic::progress_of_waiter(readable);
        }
    }

    /// The descriptor that is readable while an event is announced.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel has it open for as long as it exists, which is at least as long as `self` is borrowed.
        #[allow(unsafe_code)]
        unsafe {
            BorrowedFd::borrow_raw(self.0.channel.events().fd())
        }
    }

    /// Takes the events that were announced, and asks for one with the next completion that hasn't been polled. A completion that
    /// has come since the last poll raises it at once.
    ///
    /// # Errors
    /// The adapter can't be used in this process.
    pub fn arm(&self) -> Result<(), Error> {
        let _inside = library::enter("arm")?;
        self.take_events();
        self.0.cq.request_notify(false);
        Ok(())
    }

    /// What to sleep on, unless an event comes before.
    fn plan(&self) -> Option<ferroce_engine::WaitPlan> {
        let events = self.0.channel.events();
        let _attending = events.attend();
        nic::prepare_wait(events.fd(), || true, || events.has_events())
    }

    /// Takes the events that were announced. Their completions are polled next.
    fn take_events(&self) {
        let events = self.0.channel.events();
        while let Some(cq) = events.take_with(Duration::ZERO, |cq| {
            cq.unacked().got();
            cq.clone()
        }) {
            cq.unacked().ack(1);
        }
        events.lower_if_empty();
    }
}

/// Sleeps as the adapter has planned it. Whether the adapter's sockets have something.
fn sleep(plan: &ferroce_engine::WaitPlan) -> bool {
    let mut fds = plan.fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    sys::poll(&mut fds, plan.timeout).is_ok() && fds[1].revents != 0
}

impl fmt::Debug for NativeCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NativeCq({})", self.0.cq.serial())
    }
}
