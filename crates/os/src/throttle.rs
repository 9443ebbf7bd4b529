//! Bounds on how often something is done: lines of the log, and what strangers have a process do.

use crate::clock;
use ferroce_types::Instant;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Lets one event through a second.
#[derive(Debug)]
pub struct OncePerSecond(AtomicU64);

impl OncePerSecond {
    /// A brake that lets the next event through.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it is made in statics")]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether an event may go through now.
    #[must_use]
    pub fn allows_now(&self) -> bool {
        let now = clock::now();
        let next = self.0.load(Ordering::Relaxed);
        let later = now.after(Duration::from_secs(1)).0;
        now.0 >= next && self.0.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Lets some events through at once, and one in each interval on average.
#[derive(Debug)]
pub struct RateLimiter {
    interval: Duration,
    at_once: u32,
    /// Up to when the events that were let through use up the rate, in ns.
    used: AtomicU64,
}

impl RateLimiter {
    /// Lets `at_once` events through at once.
    #[must_use]
    pub const fn new(interval: Duration, at_once: u32) -> Self {
        Self { interval, at_once, used: AtomicU64::new(0) }
    }

    /// Lets an event through at `now`, and returns how many more may follow at once; `None`: it is kept back.
    pub fn take(&self, now: Instant) -> Option<u32> {
        let most = now.after(self.interval * self.at_once);
        let with_one_more = |used: u64| Instant(used).max(now).after(self.interval);
        let next = |used| Some(with_one_more(used)).filter(|used| *used <= most).map(|used| used.0);
        let before = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        let left = most.since(with_one_more(before)).as_nanos() / self.interval.as_nanos();
        Some(left as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_events_go_through_at_once_and_then_one_in_each_interval() {
        let rate = RateLimiter::new(Duration::from_millis(5), 64);
        let begin = Instant(1_000_000_000);
        let through = |ms| {
            let now = begin.after(Duration::from_millis(ms));
            (0..1000).filter_map(|_| rate.take(now)).collect::<Vec<_>>()
        };
        assert_eq!(through(0), (0..64).rev().collect::<Vec<_>>());
        assert_eq!([4, 5, 50, 60_000].map(|ms| through(ms).len()), [0, 1, 9, 64]);
    }

    #[test]
    fn the_brake_lets_the_first_through_and_not_the_second() {
        let brake = OncePerSecond::new();
        assert!(brake.allows_now());
        assert!(!brake.allows_now());
    }
}
