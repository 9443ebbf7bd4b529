//! Who makes progress: a program that polls, a thread that waits in ibv_get_cq_event(3), or the background thread.
//!
//! A poller stamps a lease. While it is fresh the background thread stays off the sockets; when it has run out, the
//! background thread sleeps on them. A program that polls and then waits for something else (a word of its memory that
//! the peer writes, say) breaks its promise: packets are found when the lease has run out. For a while then leases
//! aren't trusted, and the background thread sleeps on the sockets beside the poller.

use super::{Handler, Loop, Source};
use ferroce_os::{clock, sys};
use ferroce_proto::Instant;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a poll promises the next one.
const LEASE: Duration = Duration::from_millis(1);
/// How long no lease is trusted after one was broken.
const DISTRUST: Duration = Duration::from_millis(100);
/// How long a thread that waits for an event promises to look after the sockets. It may be cancelled while it waits:
/// then this is how long nobody does.
const WAIT: Duration = Duration::from_millis(20);
/// Rounds of progress before a thread that waits for an event looks at its channel.
const WAITER_ROUNDS: u32 = 16;
/// A poller that finds completions looks at the sockets this often all the same.
const BUSY_INTERVAL: Duration = Duration::from_micros(20);
/// A poller that has found nothing for this long offers its processor to others at every poll: where there are more
/// pollers than processors, one of them is the peer.
const SPIN: Duration = Duration::from_micros(50);

/// Who has promised what.
#[derive(Debug, Default)]
pub(super) struct Lease {
    until: AtomicU64,
    last_progress: AtomicU64,
    /// When progress last did anything.
    last_success: AtomicU64,
    distrusted_until: AtomicU64,
}

impl Lease {
    #[inline]
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        self.until.load(Ordering::Acquire) > now.0 && self.distrusted_until.load(Ordering::Relaxed) <= now.0
    }

    /// Packets were waiting when a lease had run out.
    pub(super) fn broken(&self, now: Instant) {
        self.distrusted_until.store(now.after(DISTRUST).0, Ordering::Relaxed);
    }

    #[inline]
    fn stamp(&self, until: Instant) {
        self.until.store(until.0, Ordering::Release);
    }
}

/// What a thread that waits for an event sleeps on.
#[derive(Debug)]
pub struct WaitPlan {
    /// The descriptor of the event's channel, and that of the loop's sources: poll(2) both for POLLIN. The second is −1 when
    /// there is nothing to look after.
    pub fds: [RawFd; 2],
    /// Wake up after this time at the latest.
    pub timeout: Duration,
}

impl<H: Handler> Loop<H> {
    /// Makes progress on behalf of a thread that polls a queue. `empty`: it found nothing. `sleeper`: it has asked for an event.
    pub fn progress_of_poller(handler: &'static H, empty: bool, sleeper: bool) {
        let lease = &handler.engine().lease;
        let now = clock::now();
        let last = Instant(lease.last_progress.load(Ordering::Relaxed));
        if !empty && (sleeper || now.since(last) < BUSY_INTERVAL) {
            // Whoever has asked for an event waits for it when the queue is empty, or polls then.
            return;
        }
        if !sleeper {
            lease.stamp(now.after(LEASE));
        }
        lease.last_progress.store(now.0, Ordering::Relaxed);
        if Self::progress(handler, now) {
            lease.last_success.store(now.0, Ordering::Relaxed);
        } else if empty && now.since(Instant(lease.last_success.load(Ordering::Relaxed))) > SPIN {
            sys::yield_processor();
        }
    }

    /// Makes progress and says what a thread that waits for an event is to sleep on. The caller polls, without a lock and
    /// without anything that needs a destructor (it may be cancelled there), then calls [`Loop::progress_of_waiter`].
    pub fn prepare_wait(handler: &'static H, channel: RawFd) -> WaitPlan {
        for _ in 0..WAITER_ROUNDS {
            if !Self::progress(handler, clock::now()) {
                break;
            }
        }
        let now = clock::now();
        let (engine, sources) = (handler.engine(), handler.sources());
        engine.lease.stamp(now.after(WAIT));
        let timer = Instant(engine.next(&sources)).since(now);
        let work = sources.about_to_wait() || !engine.run_queue.is_empty();
        let timeout = if work { Duration::ZERO } else { timer.min(WAIT / 2) };
        WaitPlan { fds: [channel, engine.readable.raw()], timeout }
    }

    /// Makes progress on behalf of a thread that has waited as [`Loop::prepare_wait`] said.
    pub fn progress_of_waiter(handler: &'static H) {
        let sources = handler.sources();
        sources.waited();
        sources.attend();
        let now = clock::now();
        Self::progress(handler, now);
        handler.engine().lease.stamp(now.after(LEASE));
    }
}
