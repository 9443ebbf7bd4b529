//! The progress engine: gives the sources and jobs of a process their turns, in threads that poll or wait, else in one of its own.
//!
//! In here: which thread makes progress and when (lease, background thread, sleep), turns that one thread leaves for another (run
//! queue), deadlines, alarms, and whether the process's descriptors are still its own.
//! Out of here: what sources and jobs are. The adapter defines them by implementing [`Handler`].
#![forbid(unsafe_code)]

mod alarms;
mod descriptors;
mod handoff;
mod lease;
mod pool;
mod progress;
mod source;
mod thread;
mod wait;
mod wait_watch;
mod watch;

pub use handoff::{Deadline, Queued, Runnable};
pub use pool::Pool;
pub use source::{Handler, Job, Source};
pub use thread::{Thread, start_thread};
pub use wait::WaitPlan;

use alarms::Alarms;
use descriptors::Descriptors;
use ferroce_os::fork::generation;
use ferroce_os::sys::{self, EngineFd};
use ferroce_os::{clock, sync};
use ferroce_types::{Error, Instant, Result};
use handoff::{Deadlines, RunQueue, Sleep};
use lease::Lease;
use std::os::fd::RawFd;
use std::sync::Arc;
use thread::ThreadControl;

/// The loop that gives a handler's sources and jobs their turns. It lives as long as the process.
pub struct Loop<H: Handler> {
    generation: u32,
    lease: Lease,
    run_queue: RunQueue<H::Job>,
    deadlines: Deadlines,
    alarms: Alarms<H::Alarm>,
    sleep: Sleep,
    /// An epoll of what sources read in each round: the background thread and threads that wait for an event sleep on it.
    readable: EngineFd,
    /// What only the background thread serves.
    control: ThreadControl,
    descriptors: Descriptors,
}

impl<H: Handler> std::fmt::Debug for Loop<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loop").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl<H: Handler> Loop<H> {
    /// A loop without a thread, which [`Thread::start`] starts.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> Result<Self> {
        Ok(Self {
            generation: generation(),
            lease: Lease::default(),
            run_queue: RunQueue::default(),
            deadlines: Deadlines::default(),
            alarms: Alarms::default(),
            sleep: Sleep::default(),
            readable: sys::epoll_create().map_err(Error::os("epoll_create1"))?,
            control: ThreadControl::new()?,
            descriptors: Descriptors::default(),
        })
    }

    /// How many forks lie between the first process and this loop's.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// A source has found something in memory: pollers look there first for a while.
    #[inline]
    pub fn found_in_memory(&self) {
        self.lease.found_in_memory();
    }

    /// Wakes sleepers when a descriptor is readable that [`Source::poll`] reads.
    ///
    /// # Errors
    /// That of `epoll_ctl(2)`.
    pub fn watch(&self, fd: RawFd) -> std::io::Result<()> {
        sys::epoll_control(self.readable.raw(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 0)
    }

    /// Wakes sleepers also when a watched descriptor is writable, or no longer.
    ///
    /// # Errors
    /// That of `epoll_ctl(2)`.
    pub fn watch_writable(&self, fd: RawFd, writable: bool) -> std::io::Result<()> {
        let events = libc::EPOLLIN | if writable { libc::EPOLLOUT } else { 0 };
        sys::epoll_control(self.readable.raw(), libc::EPOLL_CTL_MOD, fd, events as u32, 0)
    }

    /// Has the background thread call [`Source::serve`] when a descriptor is readable.
    ///
    /// # Errors
    /// The system refused.
    pub fn watch_control(&self, fd: RawFd) -> Result<()> {
        self.control.watch(fd)
    }

    /// Puts a job that has more to do behind the others.
    pub fn enqueue(&self, job: &Arc<H::Job>) {
        if self.run_queue.push(job) {
            self.wake_for(clock::now());
        }
    }

    /// Calls [`Handler::due`] with `number` when `at` has come. The caller holds the lock of the object with this number.
    #[inline]
    pub fn schedule(&self, deadline: &Deadline, at: Instant, number: u32) {
        if self.deadlines.schedule(deadline, at.0, number) {
            self.wake_for(at);
        }
    }

    /// Calls [`Handler::ring`] when `at` has come, if `alarm` still exists then.
    pub fn schedule_alarm(&self, alarm: &Arc<H::Alarm>, at: Instant) {
        if self.alarms.schedule(alarm, at.0) {
            self.wake_for(at);
        }
    }

    /// Wakes the background thread if it would sleep past `at`, or nap for much longer.
    pub fn wake_for(&self, at: Instant) {
        if self.sleep.interrupt(at.0) || self.lease.interrupts_nap(at) {
            self.control.wake();
        }
    }
}
