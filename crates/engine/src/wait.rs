//! A thread that waits for an event: it makes progress, watches memory for a moment, and sleeps on the sources and on its channel at
//! once.
//!
//! A peer that answers does so within microseconds; to sleep and to be woken takes ten times as long, and costs the peer a system
//! call. So a wait begins with a watch if memory is in use. Unsuccessful watches make the next ones rarer, and a watch ends when
//! other threads want the processor: a program that rarely gets a message sleeps at once.

use super::lease::LEASE;
use super::{Handler, Loop, Source};
use ferroce_os::{clock, sys};
use ferroce_types::Instant;
use std::os::fd::RawFd;
use std::time::Duration;

/// How long a thread that waits for an event promises to look after the sockets. If it is cancelled while it waits, no thread looks
/// after them for this long.
const WAIT: Duration = Duration::from_millis(20);
/// Rounds of progress before a thread that waits for an event looks at its channel.
const ROUNDS: u32 = 16;
/// How long nothing comes before the watch ends: about what it costs to sleep and to be woken.
const WATCH: Duration = Duration::from_micros(50);
/// … and if other things come than the event.
const LONGEST_WATCH: Duration = Duration::from_millis(1);
/// Unsuccessful looks before the processor is offered to others.
const LOOKS: u32 = 32;
/// If `sched_yield` takes this long, another thread has run.
const TAKEN: Duration = Duration::from_micros(20);

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
    /// Makes progress and returns what a thread that waits for an event of a channel is to sleep on; `None` if it `has_event`
    /// meanwhile. `may_wait` is asked if there is none: whether the thread waits until there is one. The caller polls, without a lock
    /// and without anything that needs a destructor (it may be cancelled there), then calls [`Loop::progress_of_waiter`].
    pub fn prepare_wait(
        handler: &'static H,
        channel: RawFd,
        may_wait: impl FnOnce() -> bool,
        has_event: impl Fn() -> bool,
    ) -> Option<WaitPlan> {
        for _ in 0..ROUNDS {
            if !Self::progress(handler, clock::now()) {
                break;
            }
        }
        let now = clock::now();
        let (engine, sources) = (handler.engine(), handler.sources());
        let watch = &engine.lease.watch;
        engine.lease.stamp_wait(now.after(WAIT));
        if has_event() || (may_wait() && watch.begins() && Self::watch_for_event(handler, now, &has_event)) {
            engine.lease.stamp_wait(clock::now().after(LEASE));
            return None;
        }
        let timer = Instant(engine.next(&sources)).since(now);
        let work = sources.about_to_wait() || !engine.run_queue.is_empty();
        let timeout = if work { Duration::ZERO } else { timer.min(WAIT / 2) };
        Some(WaitPlan { fds: [channel, engine.readable.raw()], timeout })
    }

    /// Watches memory. Whether the event has come.
    fn watch_for_event(handler: &'static H, begun: Instant, has_event: &impl Fn() -> bool) -> bool {
        let (engine, sources) = (handler.engine(), handler.sources());
        let mut last_find = begun;
        let came = loop {
            let found = (0..LOOKS).any(|_| {
                std::hint::spin_loop();
                sources.poll_memory()
            });
            if has_event() {
                break true;
            }
            let now = clock::now();
            if found {
                last_find = now;
            }
            if now.since(last_find) > WATCH
                || now.since(begun) > LONGEST_WATCH
                || !engine.run_queue.is_empty()
            {
                break false;
            }
            if !found {
                sys::yield_processor();
                if clock::now().since(now) > TAKEN {
                    break sources.poll_memory() && has_event();
                }
            }
        };
        engine.lease.watch.ends(came);
        if came {
            engine.lease.found_in_memory();
        }
        came
    }

    /// Makes progress on behalf of a thread that has slept as [`Loop::prepare_wait`] returned. `readable`: the sources' descriptor
    /// has woken it.
    pub fn progress_of_waiter(handler: &'static H, readable: bool) {
        let sources = handler.sources();
        sources.waited();
        sources.attend();
        let now = clock::now();
        if !Self::progress(handler, now) && readable {
            // It may be an unexpected packet. The background thread doesn't take it while this thread has a lease.
            sources.poll_all(now);
        }
        handler.engine().lease.stamp_wait(now.after(LEASE));
    }
}
