//! Numbers by a seed.

use std::ops::Range;
use std::time::Duration;

/// A generator (splitmix64). Equal seeds give equal numbers on every machine.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`, which isn't 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        // The number is drawn in any case, so that a probability of 0 doesn't change the numbers after it.
        let drawn = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        drawn < probability
    }

    /// A time within a range; its start if it is empty.
    pub(crate) fn time(&mut self, range: &Range<Duration>) -> Duration {
        let span = range.end.saturating_sub(range.start).as_nanos() as u64;
        range.start + Duration::from_nanos(self.below(span.max(1)))
    }
}
