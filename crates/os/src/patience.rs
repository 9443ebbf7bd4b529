//! Waits that have a bound, for what other threads or processes do.

use std::time::{Duration, Instant};

/// A round that takes this many pauses, and [`SHORTEST_GAP`], is a gap.
const GAP: u32 = 20;
/// No shorter round is a gap: processors that are busy with other programs cause those.
const SHORTEST_GAP: Duration = Duration::from_millis(100);

/// A bounded wait for other threads or processes, which looks in rounds with a pause. The clock decides. A round may be a *gap*: the
/// process was stopped or had no processor, and so may have been the threads that the wait is for. A wait that ends with a gap goes on
/// for the length of the shortest gap, once.
#[derive(Debug)]
pub struct Patience {
    end: Instant,
    gap: Duration,
    looked: Instant,
    is_extended: bool,
}

impl Patience {
    /// A wait of `limit`, with a `pause` in each round.
    #[must_use]
    pub fn new(limit: Duration, pause: Duration) -> Self {
        let looked = Instant::now();
        Self { end: looked + limit, gap: (pause * GAP).max(SHORTEST_GAP), looked, is_extended: false }
    }

    /// Whether the wait is over, after one more round.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        self.has_ended_at(Instant::now())
    }

    fn has_ended_at(&mut self, now: Instant) -> bool {
        let was_gap = now.saturating_duration_since(self.looked) >= self.gap;
        self.looked = now;
        let has_ended = now >= self.end;
        if has_ended && was_gap && !std::mem::replace(&mut self.is_extended, true) {
            self.end = now + self.gap;
            return false;
        }
        has_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(1);
    const LIMIT: Duration = Duration::from_secs(1);

    /// What `has_ended_at` returns after rounds of these lengths, in a wait of a second.
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
    fn a_stop_of_the_process_leaves_others_the_time_of_a_gap() {
        let hour = Duration::from_secs(3600);
        let after = SHORTEST_GAP.as_millis() as usize;
        let ended = rounds(&[&[PAUSE * 9, hour][..], &[PAUSE; 200]].concat());
        assert_eq!(ended.iter().position(|&ended| ended), Some(1 + after));
        // Before its end a wait isn't longer for it.
        let half = LIMIT / 2;
        assert_eq!(rounds(&[half, half - PAUSE, PAUSE]), [false, false, true]);
    }
}
