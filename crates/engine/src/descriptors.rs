//! Checks that the process's descriptors are still its own. A program may close descriptors that it hasn't opened; the files that
//! it opens next then have their numbers.

use super::{Handler, Loop};
use ferroce_os::{fork, sys};
use ferroce_types::Instant;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often one descriptor is checked while there is traffic: one is enough, since a program that closes them closes all at once.
const INTERVAL: Duration = Duration::from_millis(1);
/// How many the background thread checks for each [`INTERVAL`] that has passed.
const SHARE: u64 = 8;
/// … and at most at once.
const ROUND: u64 = 64;

/// When descriptors were last checked, and whether some were lost.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    looked: AtomicU64,
    lost: AtomicBool,
}

impl Descriptors {
    /// Some were lost: none is used any more, and no thread can be woken.
    pub(super) fn are_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// It is time for a check.
    #[inline]
    fn are_due(&self, now: Instant) -> bool {
        self.since_looked(now) >= INTERVAL
    }

    #[inline]
    fn since_looked(&self, now: Instant) -> Duration {
        now.since(Instant(self.looked.load(Ordering::Relaxed)))
    }
}

impl<H: Handler> Loop<H> {
    /// Checks one descriptor, if it is time to.
    #[inline]
    pub(super) fn look_at_a_descriptor(&self, handler: &'static H, now: Instant) {
        if self.descriptors.are_due(now) {
            self.look_at_descriptors(handler, now, 1);
        }
    }

    /// Checks many of them, if it is time to.
    pub(super) fn look_at_all_descriptors(&self, handler: &'static H, now: Instant) {
        if self.descriptors.are_due(now) {
            let intervals = self.descriptors.since_looked(now).as_millis() as u64;
            self.look_at_descriptors(handler, now, (SHARE * intervals).min(ROUND) as usize);
        }
    }

    fn look_at_descriptors(&self, handler: &'static H, now: Instant, count: usize) {
        self.descriptors.looked.store(now.0, Ordering::Relaxed);
        if self.generation != fork::generation() || self.descriptors.are_lost() {
            return;
        }
        if let Some(fd) = sys::find_lost(count)
            && !self.descriptors.lost.swap(true, Ordering::Relaxed)
        {
            sys::abandon_all();
            handler.descriptors_lost(fd);
        }
    }
}
