//! Waits that have a bound, for what other threads or processes do.

use std::time::{Duration, Instant};

/// A round that takes this many pauses, and [`SHORTEST_GAP`], is a gap.
const GAP: u32 = 20;
/// No shorter round is a gap: processors that are busy with other programs cause those.
const SHORTEST_GAP: Duration = Duration::from_millis(100);

/// How long to wait for others, which is looked at in rounds with a pause. The clock decides. A round may be a *gap*: the process was
/// stopped or had no processor, and those that are waited for may have been as well. A wait whose last round is a gap takes one more
/// round, whatever the length of that.
#[derive(Debug)]
pub struct Patience {
    end: Instant,
    gap: Duration,
    looked: Instant,
    /// The round after the last gap has begun.
    is_extended: bool,
}

impl Patience {
    /// As long as `limit`, with a `pause` in each round.
    #[must_use]
    pub fn new(limit: Duration, pause: Duration) -> Self {
        let looked = Instant::now();
        Self { end: looked + limit, gap: (pause * GAP).max(SHORTEST_GAP), looked, is_extended: false }
    }

    /// Whether it is at its end, after one more round.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        self.has_ended_at(Instant::now())
    }

    fn has_ended_at(&mut self, now: Instant) -> bool {
        let was_gap = now.saturating_duration_since(self.looked) >= self.gap;
        self.looked = now;
        now >= self.end && (!was_gap || std::mem::replace(&mut self.is_extended, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(1);
    const LIMIT: Duration = Duration::from_secs(1);

    /// What a wait of a second says in rounds of these lengths.
    fn rounds(lengths: &[Duration]) -> Vec<bool> {
        let mut patience = Patience::new(LIMIT, PAUSE);
        let mut now = patience.looked;
        let round = |length: &Duration| {
            now += *length;
            patience.has_ended_at(now)
        };
        lengths.iter().map(round).collect()
    }

    #[test]
    fn the_clock_ends_a_wait_however_long_its_rounds_are() {
        for round in [PAUSE, PAUSE * 40, Duration::from_millis(90)] {
            let ended = rounds(&vec![round; 2000]);
            let count = LIMIT.as_nanos().div_ceil(round.as_nanos()) as usize;
            assert_eq!(ended.iter().position(|&ended| ended), Some(count - 1), "{round:?}");
        }
    }

    #[test]
    fn a_wait_of_nothing_but_gaps_ends_a_round_later() {
        let ended = rounds(&[LIMIT / 4; 8]);
        assert_eq!(ended, [false, false, false, false, true, true, true, true]);
    }

    #[test]
    fn a_stop_of_the_process_leaves_one_more_look() {
        let hour = Duration::from_secs(3600);
        assert_eq!(rounds(&[PAUSE * 9, hour, PAUSE, PAUSE]), [false, false, true, true]);
        // Before its end a wait isn't longer for it.
        let half = LIMIT / 2;
        assert_eq!(rounds(&[half, half - PAUSE, PAUSE]), [false, false, true]);
    }
}
