//! Points in time.

use core::time::Duration;

/// A point in time, in nanoseconds since an origin of the caller's choice. Only `os` reads a clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// This point plus `d`, at most the end of time.
    #[must_use]
    pub const fn after(self, d: Duration) -> Self {
        let ns = d.as_nanos();
        Self(if ns > u64::MAX as u128 { u64::MAX } else { self.0.saturating_add(ns as u64) })
    }

    /// How long after `earlier` this point is; zero when it isn't.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
