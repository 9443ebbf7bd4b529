//! What a loop runs: sources, jobs, and the handler that has them all.

use super::{Loop, Runnable};
use ferroce_types::Instant;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Something that work comes from: sockets, rings, packets held back. What a source doesn't need, it leaves out.
///
/// Sources in a tuple are one source, and take turns in the tuple's order, without a virtual call.
pub trait Source {
    /// One round, by whichever thread makes progress. Whether anything was done.
    fn poll(&self, now: Instant) -> bool {
        let _ = now;
        false
    }

    /// Peers retransmit what comes from it if it isn't read within some milliseconds.
    fn has_impatient(&self) -> bool {
        false
    }

    /// Something may come that [`Source::poll_memory`] doesn't find and a poller is to find at once.
    fn is_beyond_memory(&self) -> bool {
        false
    }

    /// As [`Source::poll`], of what lies in memory: what a poller looks at that has found something there lately, and a poller for
    /// which nothing comes from elsewhere.
    fn poll_memory(&self) -> bool {
        false
    }

    /// Whether [`Source::poll_memory`] would find something.
    fn has_memory(&self) -> bool {
        false
    }

    /// Whether packets have come from the kernel since this was asked last: what comes next is seen by [`Source::poll`] only.
    fn has_arrived(&self) -> bool {
        false
    }

    /// Whether others have announced, since this was last called, that something is there or will come.
    fn is_invited(&self) -> bool {
        false
    }

    /// As [`Source::poll_memory`], by a thread that does nothing else until [`Source::look_away`]: others may count on it.
    fn watch_memory(&self) -> bool {
        self.poll_memory()
    }

    /// Ends [`Source::watch_memory`].
    fn look_away(&self) {}

    /// As [`Source::poll`], after a time in which pollers had promised to look. True if their promise was broken.
    fn poll_neglected(&self, now: Instant) -> bool {
        self.poll(now)
    }

    /// As [`Source::poll`], when a watched descriptor is readable: also takes unexpected packets, which would keep it readable.
    fn poll_all(&self, now: Instant) {
        let _ = now;
    }

    /// Something was left that needs no descriptor, or a thread has slept. For work that isn't needed in each round.
    fn attend(&self) {}

    /// A control descriptor ([`Loop::watch_control`]) is readable. By the background thread.
    fn serve(&self) {}

    /// The background thread is about to sleep. True when there is work already.
    fn about_to_sleep(&self) -> bool {
        false
    }

    /// The background thread is awake.
    fn woke(&self) {}

    /// A thread is about to wait for an event. True when there is work already.
    fn about_to_wait(&self) -> bool {
        false
    }

    /// Such a thread is awake.
    fn waited(&self) {}

    /// When [`Source::poll`] has something to do by itself, in ns; `u64::MAX`: never.
    fn next(&self) -> u64 {
        u64::MAX
    }
}

macro_rules! tuple {
    ($($source:ident $at:tt),*) => {
        impl<$($source: Source),*> Source for ($($source,)*) {
            #[inline]
            fn poll(&self, now: Instant) -> bool {
                false $(| self.$at.poll(now))*
            }

            #[inline]
            fn has_impatient(&self) -> bool {
                false $(|| self.$at.has_impatient())*
            }

            #[inline]
            fn is_beyond_memory(&self) -> bool {
                false $(|| self.$at.is_beyond_memory())*
            }

            #[inline]
            fn poll_memory(&self) -> bool {
                false $(| self.$at.poll_memory())*
            }

            #[inline]
            fn has_memory(&self) -> bool {
                false $(|| self.$at.has_memory())*
            }

            #[inline]
            fn has_arrived(&self) -> bool {
                false $(| self.$at.has_arrived())*
            }

            #[inline]
            fn is_invited(&self) -> bool {
                false $(| self.$at.is_invited())*
            }

            #[inline]
            fn watch_memory(&self) -> bool {
                false $(| self.$at.watch_memory())*
            }

            #[inline]
            fn look_away(&self) {
                $(self.$at.look_away();)*
            }

            #[inline]
            fn poll_neglected(&self, now: Instant) -> bool {
                false $(| self.$at.poll_neglected(now))*
            }

            #[inline]
            fn poll_all(&self, now: Instant) {
                $(self.$at.poll_all(now);)*
            }

            #[inline]
            fn attend(&self) {
                $(self.$at.attend();)*
            }

            #[inline]
            fn serve(&self) {
                $(self.$at.serve();)*
            }

            #[inline]
            fn about_to_sleep(&self) -> bool {
                false $(| self.$at.about_to_sleep())*
            }

            #[inline]
            fn woke(&self) {
                $(self.$at.woke();)*
            }

            #[inline]
            fn about_to_wait(&self) -> bool {
                false $(| self.$at.about_to_wait())*
            }

            #[inline]
            fn waited(&self) {
                $(self.$at.waited();)*
            }

            #[inline]
            fn next(&self) -> u64 {
                u64::MAX $(.min(self.$at.next()))*
            }
        }
    };
}

tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5);

/// Something that has its turn when it has more to do, in the run queue of a [`Loop`].
pub trait Job: Runnable + Send + Sync {
    /// One turn.
    fn run(self: Arc<Self>, now: Instant);
}

/// What a [`Loop`] drives. Nothing of it ends before the process.
pub trait Handler: Send + Sync + Sized + 'static {
    /// What waits in the run queue.
    type Job: Job + ?Sized;
    /// What [`Loop::schedule_alarm`] is for.
    type Alarm: Send + Sync;

    /// The loop that drives it.
    fn engine(&self) -> &Loop<Self>;

    /// Its sources, in the order of their turns.
    fn sources(&'static self) -> impl Source;

    /// The deadline of an object has come. An implementation calls [`Deadline::taken`](super::Deadline::taken) first. Returns whether
    /// there was anything to do.
    fn due(&'static self, number: u32, now: Instant) -> bool;

    /// The time of an alarm has come.
    fn ring(&'static self, alarm: Arc<Self::Alarm>, now: Instant);

    /// The background thread has panicked, and goes on.
    fn panicked(&'static self);

    /// The program has closed descriptors of the process's adapter, `fd` among them. Nothing is woken by a descriptor any more.
    fn descriptors_lost(&'static self, fd: RawFd);
}
