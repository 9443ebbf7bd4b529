//! Waits that have a bound, for what other threads or processes do.

use std::time::{Duration, Instant};

/// How much of a round more than its pause counts: a scheduler gives each of some threads its turn in this time.
const MOST_OF_A_ROUND: u32 = 20;

/// How long to wait for others, which is looked at in rounds with a pause. Of a round that takes very long only a part counts: the
/// process was stopped, or had no processor, and those who are waited for may have been as well.
#[derive(Debug)]
pub struct Patience {
    left: Duration,
    most: Duration,
    looked: Instant,
}

impl Patience {
    /// As long as `limit`, with a `pause` in each round.
    #[must_use]
    pub fn new(limit: Duration, pause: Duration) -> Self {
        Self { left: limit, most: pause * MOST_OF_A_ROUND, looked: Instant::now() }
    }

    /// Whether it is at its end, after one more round.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        self.has_ended_at(Instant::now())
    }

    fn has_ended_at(&mut self, now: Instant) -> bool {
        let round = now.saturating_duration_since(self.looked).min(self.most);
        self.looked = now;
        self.left = self.left.saturating_sub(round);
        self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_of_the_process_counts_as_little_as_a_slow_round() {
        let pause = Duration::from_millis(1);
        let mut patience = Patience::new(Duration::from_millis(50), pause);
        let mut now = patience.looked;
        let mut after = |time| {
            now += time;
            patience.has_ended_at(now)
        };
        assert!(!after(pause * 9));
        assert!(!after(Duration::from_secs(3600)));
        assert!(!after(pause * 20));
        assert!(after(pause));
        assert!(after(Duration::ZERO));
    }
}
