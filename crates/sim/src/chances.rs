//! What happens by chance: numbers by the seed, and the faults that a run injects.

use crate::random::Random;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

/// Which faults a run injects, by their numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Allowed {
    All,
    /// A test that fails is repeated with fewer faults.
    Only(BTreeSet<u64>),
}

/// What happens by chance.
#[derive(Debug)]
pub(crate) struct Chances {
    random: Random,
    allowed: Allowed,
    /// Faults that the seed has chosen, also those that aren't allowed.
    chosen: u64,
    /// Faults that the trace doesn't contain yet.
    unnoted: Vec<(u64, String)>,
}

impl Chances {
    pub(crate) const fn new(seed: u64, allowed: Allowed) -> Self {
        Self { random: Random::new(seed), allowed, chosen: 0, unnoted: Vec::new() }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.random.next()
    }

    /// A number below `bound`, which isn't 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// A time within a range; its start if it is empty.
    pub(crate) fn time(&mut self, range: &Range<Duration>) -> Duration {
        self.random.time(range)
    }

    /// Whether a fault with this probability happens. `what` describes it.
    pub(crate) fn fault(&mut self, probability: f64, what: impl FnOnce() -> String) -> bool {
        self.random.chance(probability) && self.choose(what)
    }

    /// A fault whose time is drawn from a range. `None` if the range is that of no time.
    pub(crate) fn late(
        &mut self,
        range: &Range<Duration>,
        what: impl FnOnce(Duration) -> String,
    ) -> Option<Duration> {
        if range.end.is_zero() {
            return None;
        }
        let time = self.random.time(range);
        self.choose(|| what(time)).then_some(time)
    }

    /// A fault that happens unless the run leaves it out.
    pub(crate) fn choose(&mut self, what: impl FnOnce() -> String) -> bool {
        let number = self.chosen;
        self.chosen += 1;
        let allowed = match &self.allowed {
            Allowed::All => true,
            Allowed::Only(numbers) => numbers.contains(&number),
        };
        if allowed {
            self.unnoted.push((number, what()));
        }
        allowed
    }

    /// The faults since the last call.
    pub(crate) fn take_unnoted(&mut self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.unnoted)
    }
}
