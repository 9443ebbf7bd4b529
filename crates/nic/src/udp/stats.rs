//! Counters of one local address, and a brake for log lines.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What an [`super::Endpoint`] has counted since it was made. Written with relaxed ordering.
#[derive(Debug, Default)]
pub struct Stats {
    /// Packets received and handed on, those for other processes included.
    pub received: AtomicU64,
    /// Datagrams and segments too short to be a packet.
    pub malformed: AtomicU64,
    /// Packets the kernel took.
    pub sent: AtomicU64,
    /// Packets the kernel didn't take (buffers full, no route, too long, forbidden …): lost, as on a wire.
    pub dropped: AtomicU64,
    /// Trains of two or more packets among those sent.
    pub trains: AtomicU64,
}

/// Lets one event through a second.
#[derive(Debug)]
pub(crate) struct OncePerSecond(AtomicU64);

impl OncePerSecond {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn now(&self) -> bool {
        let now = milliseconds() + 1000;
        let last = self.0.load(Ordering::Relaxed);
        now >= last + 1000 && self.0.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Since the first call in this process.
pub(crate) fn milliseconds() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_brake_lets_the_first_through_and_not_the_second() {
        let brake = OncePerSecond::new();
        assert!(brake.now());
        assert!(!brake.now());
    }
}
