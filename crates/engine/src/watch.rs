//! The background thread watches memory and sockets for a while after something has come: what comes next is then dealt with
//! at once, and neither a peer nor the kernel has to wake the thread. A thread that sleeps is woken in ten times the time of a small
//! message.
//!
//! Memory is looked at all the time, and everything else now and then. Sockets are looked at all the time while what comes is
//! packets of theirs: a look is a system call.
//!
//! A watch ends when nothing has come for [`WATCH`], or when others want the processor. Watches in which nothing has come, or that others
//! have cut short, are made more seldom, so that a process that is spoken to now and then doesn't spin.

use super::{Handler, Loop, Source};
use ferroce_os::{clock, sys};
use ferroce_types::Instant;
use std::time::Duration;

/// How long nothing comes before the watch ends: about what it costs to sleep and to be woken.
const WATCH: Duration = Duration::from_micros(50);
/// Looks in vain before others are offered the processor.
const LOOKS: u32 = 32;
/// An offer that takes so long was taken.
const TAKEN: Duration = Duration::from_micros(20);
/// A program that hasn't polled for so long leaves its work to the background thread.
const ALONE: Duration = Duration::from_millis(10);
/// A look at everything comes after so long, or so many looks, whichever is first.
const ROUND: Duration = Duration::from_micros(20);
const ROUND_EVERY: u32 = 64;
/// Finds for which a watch has paid though others have cut it short.
const PAYS_ANYWAY: u32 = 32;
/// Times of work without a watch, at most, after watches that were in vain: a power of two.
const MOST_SKIPPED: u32 = 6;

/// The background thread's watches.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The thread is at it.
    is_open: bool,
    /// How often something was there since it began.
    finds: u32,
    /// Others wanted the processor.
    was_cut: bool,
    /// It has begun without anything there.
    was_invited: bool,
    /// The last find was in a socket.
    finds_packets: bool,
    last_find: Instant,
    last_round: Instant,
    /// Watches in a row that were in vain.
    vain: u32,
    /// Times of work that are left without one.
    skipped: u32,
}

impl Watch {
    /// Works until there is nothing left to do and the watch is over, or until a time. True: the watch goes on, if no other thread
    /// makes progress then.
    pub(super) fn work<H: Handler>(
        &mut self,
        handler: &'static H,
        sources: &impl Source,
        until: Instant,
    ) -> bool {
        let engine = handler.engine();
        let mut looks = 0u32;
        let mut may_begin = !self.is_open;
        if may_begin {
            let is_invited = sources.is_invited();
            let has_memory = sources.has_memory();
            let has_arrived = sources.has_arrived();
            if is_invited || has_memory || has_arrived {
                self.begin(!has_memory && !has_arrived);
                self.finds_packets = has_arrived && !has_memory;
                may_begin = false;
            }
        }
        loop {
            let found_in_memory = self.is_open && sources.watch_memory();
            looks += 1;
            let now = clock::now();
            let quick = self.is_open
                && !self.finds_packets
                && !looks.is_multiple_of(ROUND_EVERY)
                && now.since(self.last_round) < ROUND
                && engine.run_queue.is_empty();
            // A job with more to do, such as an answer of several turns, was begun by something that had come. A program that polls works on
            // the job itself.
            let goes_on = !engine.run_queue.is_empty() && engine.lease.ended_before(now, ALONE);
            let done = found_in_memory | (!quick && Loop::progress(handler, now));
            let has_arrived = !quick && sources.has_arrived();
            if !quick {
                self.last_round = now;
            }
            if has_arrived && std::mem::take(&mut may_begin) {
                self.begin(false);
            }
            if found_in_memory || has_arrived {
                self.last_find = now;
                self.finds = self.finds.saturating_add(1);
                self.finds_packets = !found_in_memory;
            } else if goes_on && done {
                self.last_find = now;
            }
            if engine.lease.is_fresh(now) {
                self.end(sources);
                return false;
            }
            if !self.is_open && !done || self.is_open && self.is_over(now, looks) {
                self.end(sources);
                return false;
            }
            if !engine.run_queue.is_empty() {
                // Perhaps it waits for a peer that wants this processor.
                sys::yield_processor();
            }
            if now >= until {
                return self.is_open;
            }
        }
    }

    /// Something has come: it is time for a watch, or for one to be left out. A source that only `invites` gets watches less and less often.
    fn begin(&mut self, invites: bool) {
        if self.skipped > 0 && !invites {
            self.skipped -= 1;
        } else {
            self.is_open = true;
            self.finds = 0;
            self.last_find = clock::now();
            self.was_invited = invites;
            self.was_cut = false;
        }
    }

    /// Whether nothing has come for too long, or others want the processor.
    fn is_over(&mut self, now: Instant, looks: u32) -> bool {
        if now.since(self.last_find) > WATCH {
            return true;
        }
        if now == self.last_find || !looks.is_multiple_of(LOOKS) {
            std::hint::spin_loop();
            return false;
        }
        sys::yield_processor();
        self.was_cut = clock::now().since(now) > TAKEN;
        self.was_cut
    }

    /// Ends the watch, if there is one.
    pub(super) fn end(&mut self, sources: &impl Source) {
        if std::mem::take(&mut self.is_open) {
            sources.look_away();
            // What has begun it was there anyway; and others may always want the processor for a moment.
            let paid = self.finds > if self.was_cut { PAYS_ANYWAY } else { 1 };
            if paid {
                self.vain = 0;
            } else if !self.was_invited {
                self.vain = (self.vain + 1).min(MOST_SKIPPED);
            }
            self.skipped = (1 << self.vain) - 1;
        }
    }
}
