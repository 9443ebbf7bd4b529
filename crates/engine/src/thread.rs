//! The background thread: it makes progress when no thread polls, and has some work of its own.

use super::watch::Watch;
use super::{Handler, Loop, Source};
use ferroce_access::{OwnFaults, pages};
use ferroce_os::sys::{self, EngineFd};
use ferroce_os::{clock, fork};
use ferroce_types::{Error, Instant, Result};
use std::os::fd::RawFd;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// How often it looks for work when no thread can wake it.
const NAP: Duration = Duration::from_millis(1);
/// How long it may work before it looks for processes that join and for peers that have ended.
const SHIFT: Duration = Duration::from_millis(1);
/// How often it has the process forget which pages of its memory were there.
const FORGET: Duration = Duration::from_secs(1);
/// The longest sleep.
const SLEEP: Duration = Duration::from_secs(1);
/// Panics after which the thread gives up.
const MAX_PANICS: u32 = 8;
const STACK: usize = 512 * 1024;
/// That of a main thread: the program's exit handlers run there.
const STACK_OF_EXIT: usize = 8 << 20;

/// Ends the process when all threads of the program have ended.
#[derive(Default)]
struct LastThread {
    /// When it looks again.
    next: Instant,
    ended: bool,
}

impl LastThread {
    /// Looks if it's time. Returns how long the thread may sleep.
    fn look(&mut self, now: Instant) -> Duration {
        let Some(every) = sys::how_often_to_look().filter(|_| !self.ended) else { return SLEEP };
        if now >= self.next {
            self.next = now.after(every);
            if sys::only_our_threads_are_left() {
                self.ended = true;
                // The program's exit handlers may use verbs: this thread goes on meanwhile.
                if sys::start_thread("ferroce-exit", STACK_OF_EXIT, || sys::end_process()).is_err() {
                    fork::outside_library(|| sys::end_process());
                }
            }
        }
        self.next.since(now)
    }
}

/// What wakes the thread besides sockets and timers.
#[derive(Debug)]
pub(super) struct ThreadControl {
    epoll: EngineFd,
    /// Always readable. The epoll watches it with EPOLLONESHOT, and rearming it is what wakes the thread: nothing is written to a
    /// number behind which the program could have opened something else.
    wake: EngineFd,
}

impl ThreadControl {
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new() -> Result<Self> {
        let epoll = sys::epoll_create().map_err(Error::os("epoll_create1"))?;
        let wake = sys::eventfd(1, libc::EFD_NONBLOCK).map_err(Error::os("eventfd"))?;
        let control = Self { epoll, wake };
        control.arm_wake(libc::EPOLL_CTL_ADD, 0)?;
        Ok(control)
    }

    /// # Errors
    /// The system refused.
    pub(super) fn watch(&self, fd: RawFd) -> Result<()> {
        sys::epoll_control(self.epoll.raw(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 0)
            .map_err(Error::os("epoll_ctl"))
    }

    fn arm_wake(&self, op: i32, events: i32) -> Result<()> {
        let events = (events | libc::EPOLLONESHOT) as u32;
        sys::epoll_control(self.epoll.raw(), op, self.wake.raw(), events, 0).map_err(Error::os("epoll_ctl"))
    }

    /// Ends the thread's sleep.
    pub(super) fn wake(&self) {
        // Fails only where descriptors have been lost, which the thread finds out by itself.
        let _ = self.arm_wake(libc::EPOLL_CTL_MOD, libc::EPOLLIN);
    }

    /// Takes the event that [`ThreadControl::wake`] has caused; other descriptors stay readable.
    fn awake(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        let _ = sys::epoll_wait(self.epoll.raw(), &mut events, Some(Duration::ZERO));
    }
}

/// Starts a thread of the adapter's ([`sys::start_thread`]).
///
/// # Errors
/// No thread can be made.
pub fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    sys::start_thread(name, STACK, run)
}

/// Runs the thread. A panic is a bug of ours: it is logged, [`Handler::panicked`] is called, and the thread goes on, a bounded
/// number of times.
///
/// A fork never sees half of a panic: the thread is in the library until it ends, except while it sleeps.
fn contain<H: Handler>(handler: &'static H) {
    let Ok(_inside) = fork::enter_library() else { return };
    for _ in 0..MAX_PANICS {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(handler))).is_err() {
            tracing::error!("the background thread has panicked: this is a bug in Ferroce");
            handler.panicked();
        }
    }
}

fn run<H: Handler>(handler: &'static H) {
    let (engine, sources) = (handler.engine(), handler.sources());
    let mut napped = false;
    let mut last_thread = LastThread::default();
    let mut watch = Watch::default();
    // While the thread is awake, the processor copies for it.
    let mut faults = None;
    let mut forgotten = clock::now();
    loop {
        faults.get_or_insert_with(OwnFaults::of_this_thread);
        let now = clock::now();
        if now.since(forgotten) >= FORGET {
            forgotten = now;
            pages::forget();
        }
        engine.look_at_all_descriptors(handler, now);
        let leased = engine.lease.is_fresh(now);
        let mut watches = false;
        if leased {
            watch.end(&sources);
        } else {
            let ended = engine.lease.was_ended();
            if std::mem::take(&mut napped) {
                // What pollers have taken doesn't begin a watch.
                sources.has_arrived();
                if sources.poll_neglected(now) && !ended {
                    engine.lease.broken(now);
                }
            }
            watches = watch.work(handler, &sources, now.after(SHIFT));
        }
        let (watched, mut timeout) = if watches {
            (1, Duration::ZERO)
        } else if leased {
            (1, engine.time_to_nap(&sources, now))
        } else {
            (2, engine.time_to_sleep(&sources, now))
        };
        timeout = timeout.min(last_thread.look(now));
        if engine.descriptors.are_lost() {
            // No thread can end the sleep.
            timeout = timeout.min(NAP);
        }
        let mut pollfds = [engine.control.epoll.raw(), engine.readable.raw()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        if !watches {
            faults = None;
        }
        let polled = fork::outside_library(|| {
            sys::poll(&mut pollfds[..watched], timeout).inspect_err(|_| sys::pause(timeout.min(NAP)))
        });
        faults.get_or_insert_with(OwnFaults::of_this_thread);
        // A sandbox has lowered RLIMIT_NOFILE, which poll(2) takes for the largest number of descriptors that it accepts. The
        // descriptors still work; only by trying each of them can the thread find what is readable.
        let unknown = polled.is_err();
        engine.sleep.end();
        if leased {
            engine.lease.woken(clock::now(), sources.has_impatient());
        } else if !watches {
            sources.woke();
        }
        sources.attend();
        if polled.map_or(true, |n| n > 0) {
            if unknown || pollfds[0].revents != 0 {
                engine.control.awake();
                sources.serve();
            }
            let readable = unknown || pollfds[1].revents != 0;
            if watched == 2 && readable && !engine.lease.is_fresh(clock::now()) {
                sources.poll_all(clock::now());
            }
        }
        napped = leased;
    }
}

/// The background thread of a handler that is still being made. The thread ends if this is dropped.
#[derive(Debug)]
pub struct Thread<H: Handler>(SyncSender<&'static H>);

impl<H: Handler> Thread<H> {
    /// Starts it. This is the last step that can fail: what follows in making a handler can't be undone.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn start() -> Result<Self> {
        let (sender, handler) = sync_channel(1);
        let run = move || {
            // An error: the sender was dropped, since the handler couldn't be made.
            if let Ok(handler) = handler.recv() {
                contain(handler);
            }
        };
        start_thread("ferroce", run).map_err(Error::os("starting the background thread"))?;
        Ok(Self(sender))
    }

    /// Gives it the handler that it makes progress for.
    pub fn drive(self, handler: &'static H) {
        // The thread waits for this, and for nothing else.
        let _ = self.0.send(handler);
    }
}

impl<H: Handler> Loop<H> {
    /// How long the background thread may leave all to a poller's promise.
    fn time_to_nap(&self, sources: &impl Source, now: Instant) -> Duration {
        let due = || if self.run_queue.is_empty() { self.next(sources) } else { now.0 };
        self.lease.nap(now, due)
    }

    /// Until the next timer. From now on, a thread that sets an earlier timer wakes this one.
    fn time_to_sleep(&self, sources: &impl Source, now: Instant) -> Duration {
        let next = || self.next(sources);
        let until = next().min(now.after(SLEEP).0);
        let due = || if self.run_queue.is_empty() && !sources.about_to_sleep() { next() } else { now.0 };
        Instant(self.sleep.begin(until, due)).since(now)
    }
}
