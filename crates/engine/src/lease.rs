//! Which thread makes progress: a program's thread that polls, a thread that waits in ibv_get_cq_event(3), or the background
//! thread.
//!
//! Each poll renews a lease. While the lease is fresh, the background thread stays off the sockets; when it has expired, the
//! background thread sleeps on them. A program that polls and then waits for something else (for example a word of its memory that
//! the peer writes) breaks its promise: packets are found only after the lease has expired. Leases then aren't trusted for a while,
//! and the background thread sleeps on the sockets beside the poller. Kept promises make the next leases longer, so that the
//! background thread disturbs the poller less; broken promises make them shorter, and the distrust longer.

use super::wait_watch::WaitWatch;
use super::{Handler, Loop, Source as _};
use ferroce_os::sync::fence;
use ferroce_os::{clock, sys};
use ferroce_types::Instant;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How long a lease is at first: each poll promises another one within this time.
pub(super) const LEASE: Duration = Duration::from_millis(1);
/// … when all promises have been kept for a while, and nothing comes that its sender would send again soon.
const LONGEST_LEASE: Duration = Duration::from_millis(25);
/// … when something may: well below the shortest local ACK timeout.
const LONGEST_LEASE_OF_SOCKETS: Duration = Duration::from_millis(2);
/// How long no lease is trusted after one was broken: the poller may have been kept waiting by others for its processor.
const DISTRUST: Duration = Duration::from_millis(3);
/// … when they are broken again and again.
const LONGEST_DISTRUST: Duration = Duration::from_millis(100);
/// A broken lease is forgotten after this time.
const FORGIVEN: Duration = Duration::from_secs(1);
/// A poller that finds completions looks at the sockets this often all the same.
const BUSY_INTERVAL: Duration = Duration::from_micros(20);
/// A poller that has found nothing for this long offers its processor to others at every round: where there are more
/// pollers than processors, one of them is the peer.
const SPIN: Duration = Duration::from_micros(50);
/// … after so many rounds in a row for polls in vain. A program that drains a queue ends with one such poll, and offers nothing.
const IN_VAIN: u32 = 16;

/// Polls that look at memory only, after one that has found something there, where something may come from elsewhere too.
const QUICK_POLLS: u32 = 32;
/// Among so many polls, at least one looks at everything. Where all comes through memory, no more than one does.
const ROUND_EVERY: u32 = 64;
/// … and at least one looks how long ago that was. A program that polls less often than four times per shortest lease leaves
/// packets to the background thread now and then.
const TICKS_EVERY: u32 = 4;

/// The promises of pollers and of waiting threads.
#[derive(Debug)]
pub(super) struct Lease {
    /// The end of the pollers' lease.
    until: AtomicU64,
    /// … and of the lease of threads that wait for an event.
    waited_until: AtomicU64,
    /// The end of the background thread's nap; 0: it doesn't nap, or it is being woken.
    nap: AtomicU64,
    /// A lease was taken back, not broken.
    ended: AtomicBool,
    /// How long a lease is, in ns.
    length: AtomicU64,
    /// For how long leases aren't trusted when the next one is broken, in ns, and when one was broken last.
    distrust: AtomicU64,
    broken: AtomicU64,
    last_progress: AtomicU64,
    /// When progress last did anything.
    last_success: AtomicU64,
    /// Rounds in a row for polls in vain, up to [`IN_VAIN`].
    in_vain: AtomicU32,
    distrusted_until: AtomicU64,
    /// Queues armed for an event that hasn't come: the thread that waits for it doesn't poll.
    sleepers: AtomicUsize,
    /// Polls that may look at memory only from here on.
    quick_polls: AtomicU32,
    /// Polls since the last that looked at everything.
    polls_since_round: AtomicU32,
    /// When that was, in ticks.
    round_at: AtomicU64,
    /// One of these has found something.
    found_since_round: AtomicBool,
    /// Of threads that wait for an event.
    pub(super) watch: WaitWatch,
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            until: AtomicU64::new(0),
            waited_until: AtomicU64::new(0),
            nap: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            length: AtomicU64::new(LEASE.as_nanos() as u64),
            distrust: AtomicU64::new(DISTRUST.as_nanos() as u64),
            broken: AtomicU64::new(0),
            last_progress: AtomicU64::new(0),
            last_success: AtomicU64::new(0),
            in_vain: AtomicU32::new(0),
            distrusted_until: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            quick_polls: AtomicU32::new(0),
            polls_since_round: AtomicU32::new(0),
            round_at: AtomicU64::new(0),
            found_since_round: AtomicBool::new(false),
            watch: WaitWatch::default(),
        }
    }
}

impl Lease {
    #[inline]
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        self.until().0 > now.0 && self.distrusted_until.load(Ordering::Relaxed) <= now.0
    }

    /// Whether the latest lease ended more than `ago` before `now`.
    pub(super) fn ended_before(&self, now: Instant, ago: Duration) -> bool {
        now.since(self.until()) > ago
    }

    /// The end of the latest lease.
    fn until(&self) -> Instant {
        Instant(self.until.load(Ordering::Acquire).max(self.waited_until.load(Ordering::Acquire)))
    }

    /// How long the background thread naps while a lease is fresh; `due` returns the next deadline. [`Lease::woken`] ends the nap.
    pub(super) fn nap(&self, now: Instant, due: impl FnOnce() -> u64) -> Duration {
        let left = self.until().since(now).min(Duration::from_nanos(self.length.load(Ordering::Relaxed)));
        self.nap.store(now.after(left).0, Ordering::Relaxed);
        // SYNC: pairs with `Sleep::interrupt` and `Lease::end` (store buffering): either this thread sees the new deadline or lease, or
        // `interrupts_nap` sees `nap`.
        fence(Ordering::SeqCst);
        let left = left.min(self.until().since(now));
        left.min(Instant(due()).since(now).max(LEASE))
    }

    /// The background thread is awake. A thread that has polled without pause through all of its nap has longer leases from now on;
    /// `sockets`: packets may come that their senders send again soon.
    pub(super) fn woken(&self, now: Instant, sockets: bool) {
        let nap = self.nap.swap(0, Ordering::SeqCst);
        let polls = now.since(Instant(self.last_progress.load(Ordering::Relaxed))) < LEASE;
        let longer = Duration::from_nanos(2 * self.length.load(Ordering::Relaxed));
        let length = match (polls && self.sleepers.load(Ordering::Relaxed) == 0, sockets) {
            (true, _) if nap == 0 || now.0 < nap => return,
            (true, false) => longer.min(LONGEST_LEASE),
            (true, true) => longer.min(LONGEST_LEASE_OF_SOCKETS),
            (false, _) => LEASE,
        };
        self.length.store(length.as_nanos() as u64, Ordering::Relaxed);
    }

    /// For a new deadline `at`: true if the background thread naps beyond it and must be woken. Naps are short again then.
    #[inline]
    pub(super) fn interrupts_nap(&self, at: Instant) -> bool {
        let late = |nap: u64| nap > at.after(LEASE).0;
        if !late(self.nap.load(Ordering::Relaxed)) {
            return false;
        }
        self.length.store(LEASE.as_nanos() as u64, Ordering::Relaxed);
        late(self.nap.swap(0, Ordering::SeqCst))
    }

    /// Whether the last lease was taken back.
    pub(super) fn was_ended(&self) -> bool {
        self.ended.swap(false, Ordering::Relaxed)
    }

    /// Packets were waiting when a lease had run out.
    pub(super) fn broken(&self, now: Instant) {
        let last = Instant(self.broken.swap(now.0, Ordering::Relaxed));
        let again = last.0 != 0 && now.since(last) < FORGIVEN;
        let distrust = if again { self.distrust.load(Ordering::Relaxed) } else { DISTRUST.as_nanos() as u64 };
        let longer = (2 * distrust).min(LONGEST_DISTRUST.as_nanos() as u64);
        self.distrust.store(longer, Ordering::Relaxed);
        self.length.store(LEASE.as_nanos() as u64, Ordering::Relaxed);
        self.distrusted_until.store(now.0 + distrust, Ordering::Relaxed);
    }

    /// The program is about to wait for an event, so that the lease won't be kept. True when the background thread would find
    /// that out late.
    fn end(&self, now: Instant) -> bool {
        self.length.store(LEASE.as_nanos() as u64, Ordering::Relaxed);
        if self.until.load(Ordering::Relaxed) > now.after(LEASE).0 {
            self.until.store(now.after(LEASE).0, Ordering::Release);
            self.ended.store(true, Ordering::Relaxed);
        }
        // SYNC: pairs with `Lease::nap`: either it sees the shorter lease, or this thread sees its `nap`.
        fence(Ordering::SeqCst);
        self.interrupts_nap(now)
    }

    /// Something has come through memory: what comes next will too.
    #[inline]
    pub(super) fn found_in_memory(&self) {
        self.quick_polls.store(QUICK_POLLS, Ordering::Relaxed);
        self.watch.found();
    }

    /// Counts a poll. Returns whether it needn't look at everything, and at memory only if its queue was `empty`. Threads that
    /// poll at the same time may count wrong, to no harm.
    #[inline]
    fn is_quick(&self, empty: bool) -> bool {
        let polls = self.polls_since_round.load(Ordering::Relaxed);
        let quick = self.quick_polls.load(Ordering::Relaxed);
        let looks_at_ticks = polls % TICKS_EVERY == TICKS_EVERY - 1;
        if polls >= ROUND_EVERY || (empty && quick == 0) || (looks_at_ticks && self.is_round_long_ago()) {
            return false;
        }
        self.polls_since_round.store(polls + 1, Ordering::Relaxed);
        if empty {
            self.quick_polls.store(quick - 1, Ordering::Relaxed);
        }
        true
    }

    /// A poll wasn't in vain: there were completions, or progress has done something.
    #[inline]
    fn polls_pay(&self) {
        if self.in_vain.load(Ordering::Relaxed) != 0 {
            self.in_vain.store(0, Ordering::Relaxed);
        }
    }

    /// One more round was for a poll in vain. Returns whether the program does nothing else.
    fn polls_in_vain(&self, now: Instant) -> bool {
        let rounds = self.in_vain.load(Ordering::Relaxed);
        if rounds < IN_VAIN {
            self.in_vain.store(rounds + 1, Ordering::Relaxed);
            return false;
        }
        now.since(Instant(self.last_success.load(Ordering::Relaxed))) > SPIN
    }

    #[inline]
    fn is_round_long_ago(&self) -> bool {
        clock::ticks().wrapping_sub(self.round_at.load(Ordering::Acquire))
            >= clock::ticks_of_half_millisecond_at_most()
    }

    /// As [`Loop::lately`].
    #[inline]
    fn lately(&self) -> Instant {
        if self.is_round_long_ago() {
            return clock::now();
        }
        Instant(self.last_progress.load(Ordering::Relaxed))
    }

    pub(super) fn stamp_wait(&self, until: Instant) {
        self.waited_until.store(until.0, Ordering::Release);
    }

    #[inline]
    fn stamp(&self, until: Instant) {
        self.until.store(until.0, Ordering::Release);
    }
}

impl<H: Handler> Loop<H> {
    /// Makes progress on behalf of a thread that polls a queue. `empty`: it found nothing. `sleeper`: it has asked for an event.
    /// `poll_memory` is [`Source::poll_memory`](crate::Source::poll_memory) of all sources, on this thread's behalf.
    #[inline(always)]
    pub fn progress_of_poller(
        handler: &'static H,
        empty: bool,
        sleeper: bool,
        poll_memory: impl FnOnce() -> bool,
    ) {
        let lease = &handler.engine().lease;
        // First of all, even if it is time to look at everything: what is there is for this thread.
        let found = empty && poll_memory();
        if found {
            lease.found_in_memory();
            lease.found_since_round.store(true, Ordering::Relaxed);
        } else if !empty {
            lease.polls_pay();
        }
        let in_vain = empty && !found;
        let has_jobs = !handler.engine().run_queue.is_empty();
        if sleeper || has_jobs || !lease.is_quick(in_vain) {
            // Each poll that finds no completion in the queue gives jobs a turn, even if it has found some in memory.
            Self::round_of_poller(handler, in_vain || (has_jobs && found), sleeper);
        }
    }

    /// As [`Loop::progress_of_poller`], when it is time to look at everything.
    #[inline(never)]
    fn round_of_poller(handler: &'static H, empty: bool, sleeper: bool) {
        let lease = &handler.engine().lease;
        // In this order: a thread that is held up in between makes the round seem older than it is, not younger.
        let (ticks, now) = (clock::ticks(), clock::now());
        let last = Instant(lease.last_progress.load(Ordering::Relaxed));
        if !empty && (sleeper || now.since(last) < BUSY_INTERVAL) {
            // A thread that has armed the queue waits for an event once the queue is empty, or polls then.
            return;
        }
        if !sleeper {
            lease.stamp(Instant(now.0 + lease.length.load(Ordering::Relaxed)));
        }
        // Of two concurrent rounds the later time stays. `Release` pairs with `is_round_long_ago`: a thread that reads these ticks
        // also reads this time.
        lease.last_progress.fetch_max(now.0, Ordering::Relaxed);
        lease.polls_since_round.store(0, Ordering::Relaxed);
        lease.round_at.store(ticks, Ordering::Release);
        let found = lease.found_since_round.load(Ordering::Relaxed);
        if found {
            lease.found_since_round.store(false, Ordering::Relaxed);
        }
        if Self::progress(handler, now) | found {
            lease.last_success.store(now.0, Ordering::Relaxed);
            lease.polls_pay();
        } else if empty && lease.polls_in_vain(now) {
            sys::yield_processor();
        }
        if !handler.sources().is_beyond_memory() {
            lease.quick_polls.store(ROUND_EVERY, Ordering::Relaxed);
        }
    }

    /// The time of the last round if that was at most half a millisecond ago, else the time now: a timer that is set by it comes that
    /// much early. It costs less than to look at the clock.
    #[inline]
    pub fn lately(&self) -> Instant {
        self.lease.lately()
    }

    /// The program has armed one more queue for an event, and will wait for it by its own means: no thread polls then.
    pub fn expect_sleeper(&self) {
        self.lease.sleepers.fetch_add(1, Ordering::Relaxed);
        // Most programs have no lease yet: then the clock isn't read.
        if self.lease.until.load(Ordering::Relaxed) != 0 && self.lease.end(clock::now()) {
            self.control.wake();
        }
    }

    /// Undoes [`Loop::expect_sleeper`] for one queue.
    pub fn forget_sleeper(&self) {
        let less = |sleepers: usize| sleepers.checked_sub(1);
        // There is none in the child of a fork, whose queues may be older.
        let _ = self.lease.sleepers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_polls_until_its_queue_is_empty_keeps_its_processor() {
        let lease = Lease::default();
        let later = Instant(SPIN.as_nanos() as u64 + 1);
        for _ in 0..100 {
            lease.polls_pay();
            assert!((0..IN_VAIN).all(|_| !lease.polls_in_vain(later)));
        }
    }

    #[test]
    fn the_time_of_the_last_round_is_good_for_a_while_and_no_longer() {
        let lease = Lease::default();
        assert!(lease.lately() >= Instant(1), "there was no round");
        let (ticks, now) = (clock::ticks(), clock::now());
        lease.last_progress.store(now.0, Ordering::Relaxed);
        lease.round_at.store(ticks, Ordering::Relaxed);
        while lease.lately() == now {
            assert!(clock::now().since(now) < Duration::from_secs(1));
        }
        assert!(clock::ticks().wrapping_sub(ticks) >= clock::ticks_of_half_millisecond_at_most());
        assert!(lease.lately() > now);
    }

    #[test]
    fn a_round_that_was_long_ago_is_followed_by_another_within_four_polls() {
        let lease = Lease::default();
        assert!(lease.is_round_long_ago());
        for empty in [true, false] {
            lease.found_in_memory();
            lease.polls_since_round.store(0, Ordering::Relaxed);
            assert_eq!((0..TICKS_EVERY).take_while(|_| lease.is_quick(empty)).count(), 3);
        }
    }

    #[test]
    fn a_program_that_only_polls_in_vain_offers_its_processor() {
        let lease = Lease::default();
        let soon = Instant(SPIN.as_nanos() as u64);
        assert!((0..10 * IN_VAIN).all(|_| !lease.polls_in_vain(soon)), "the last find was only now");
        assert!((0..10 * IN_VAIN).all(|_| lease.polls_in_vain(Instant(soon.0 + 1))));
        lease.polls_pay();
        assert!(!lease.polls_in_vain(Instant(soon.0 + 1)));
    }
}
