//! A brake for log lines.

use crate::clock;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_brake_lets_the_first_through_and_not_the_second() {
        let brake = OncePerSecond::new();
        assert!(brake.allows_now());
        assert!(!brake.allows_now());
    }
}
