//! Whether the adapter's descriptors are still its own. A program may close descriptors that it doesn't know, and its next
//! files then have their numbers.

use super::{Engine, contexts, existing};
use crate::device::fail_devices;
use crate::sys;
use ferroce_proto::Instant;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often one descriptor is looked at while there is traffic: a program closes them all at once, if any.
const INTERVAL: Duration = Duration::from_millis(1);
/// How many the background thread looks at whenever it comes to it.
const ROUND: usize = 64;

/// When descriptors were last looked at, and whether some were lost.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    looked: AtomicU64,
    lost: AtomicBool,
}

impl Descriptors {
    /// Some were lost: none is used any more, and nobody can be woken.
    pub(super) fn are_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Engine {
    /// Looks at one descriptor, if it is time to.
    pub(super) fn look_at_a_descriptor(&'static self, now: Instant) {
        let looked = Instant(self.descriptors.looked.load(Ordering::Relaxed));
        if now.since(looked) >= INTERVAL {
            self.look_at_descriptors(now, 1);
        }
    }

    /// Looks at many of them, if it is time to.
    pub(super) fn look_at_all_descriptors(&'static self, now: Instant) {
        let looked = Instant(self.descriptors.looked.load(Ordering::Relaxed));
        if now.since(looked) >= INTERVAL {
            self.look_at_descriptors(now, ROUND);
        }
    }

    fn look_at_descriptors(&'static self, now: Instant, count: usize) {
        self.descriptors.looked.store(now.0, Ordering::Relaxed);
        if self.generation != super::generation() || self.descriptors.are_lost() {
            return;
        }
        if let Some(fd) = sys::find_lost(count)
            && !self.descriptors.lost.swap(true, Ordering::Relaxed)
        {
            sys::abandon_all();
            self.give_up(fd);
        }
    }

    /// Nothing gets in or out any more: the devices fail, and so do the queue pairs.
    #[cold]
    fn give_up(&'static self, fd: i32) {
        tracing::error!(
            fd,
            "the program has closed file descriptors of the adapter, so its devices have failed: let the program close \
             descriptors (closefrom, close_range, daemon) before it opens a device, or start it with `ferroce run`, \
             which keeps those of the adapter open"
        );
        fail_devices();
        for existing in contexts().iter().map(|context| existing(context)) {
            for qp in existing.qps {
                self.with_work(|work| qp.fail(work));
            }
            existing.raw_qps.iter().for_each(|qp| qp.give_up());
        }
    }
}
