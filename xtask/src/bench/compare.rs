//! Figures of ours beside references of the same run, in one state of the machine.
//!
//! The two cores of a virtual machine can share a physical core or a cache, and be far apart some seconds later, without a sign of it in the guest. Bandwidths
//! and latencies change by factors with it. So each comparison measures the distance of the cores before and after its figures, and a ratio combines figures
//! of one state only.

use super::peers::core_distance;
use super::programs::Programs;
use super::report::{Row, verdict};
use serde::Serialize;
use std::fmt;
use std::io;

/// A cache line's round trip between cores that are near takes at most so many nanoseconds (about 100; far ones take 160 to 500).
const NEAR: f64 = 160.0;
/// How often a comparison is repeated whose cores moved meanwhile.
const ATTEMPTS: usize = 3;

type Measure = Box<dyn Fn(&Programs) -> io::Result<f64>>;

/// Something that is measured, and its name.
pub struct Figure {
    is: &'static str,
    measure: Measure,
}

impl Figure {
    /// Names what `measure` returns.
    pub fn new(is: &'static str, measure: impl Fn(&Programs) -> io::Result<f64> + 'static) -> Self {
        Self { is, measure: Box::new(measure) }
    }

    /// The same figure, converted.
    pub fn map(self, convert: impl Fn(f64) -> f64 + 'static) -> Self {
        Self::new(self.is, move |programs| Ok(convert((self.measure)(programs)?)))
    }
}

/// What a ratio to a reference has to be.
#[derive(Clone, Copy)]
pub enum Floor {
    AtLeast(f64),
    AtMost(f64),
    /// The reference is there for orientation.
    None,
}

impl Floor {
    /// Whether a ratio will do.
    pub fn is_reached(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
            Self::None => true,
        }
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "at least {least}"),
            Self::AtMost(most) => write!(f, "at most {most}"),
            Self::None => Ok(()),
        }
    }
}

/// A figure of ours and what it is compared with.
pub struct Plan {
    what: &'static str,
    ours: Figure,
    references: Vec<(Figure, Floor)>,
}

impl Plan {
    /// Compares `ours` with nothing yet.
    pub fn new(what: &'static str, ours: Figure) -> Self {
        Self { what, ours, references: Vec::new() }
    }

    /// The name of its row.
    pub fn what(&self) -> &'static str {
        self.what
    }

    /// Adds a reference.
    pub fn beside(mut self, reference: Figure, floor: Floor) -> Self {
        self.references.push((reference, floor));
        self
    }
}

/// How far the two cores were from each other during a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Near,
    Far,
    /// They moved: such figures aren't compared.
    Moved,
}

impl State {
    fn of(before: f64, after: f64) -> Self {
        match (before <= NEAR, after <= NEAR) {
            (true, true) => Self::Near,
            (false, false) => Self::Far,
            _ => Self::Moved,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Moved => "moved",
        })
    }
}

/// One round of a comparison.
#[derive(Serialize)]
struct Sample {
    state: State,
    /// A cache line's round trip between the cores, in ns, before and after.
    distances: [f64; 2],
    references: Vec<f64>,
    ours: f64,
}

/// A plan and its samples.
#[derive(Serialize)]
pub struct Comparison {
    what: &'static str,
    ours_is: &'static str,
    references_are: Vec<&'static str>,
    samples: Vec<Sample>,
    #[serde(skip)]
    floors: Vec<Floor>,
}

impl Comparison {
    /// A comparison without samples.
    pub fn new(plan: &Plan) -> Self {
        Self {
            what: plan.what,
            ours_is: plan.ours.is,
            references_are: plan.references.iter().map(|(figure, _)| figure.is).collect(),
            samples: Vec::new(),
            floors: plan.references.iter().map(|(_, floor)| *floor).collect(),
        }
    }

    /// Measures everything once, and again where the cores moved meanwhile.
    ///
    /// # Errors
    /// A program fails, or prints something that isn't understood.
    pub fn measure(&mut self, plan: &Plan, programs: &Programs) -> io::Result<()> {
        let mut before = core_distance(programs)?;
        for _ in 0..ATTEMPTS {
            let references = plan.references.iter().map(|(figure, _)| (figure.measure)(programs));
            let references = references.collect::<io::Result<Vec<_>>>()?;
            let ours = (plan.ours.measure)(programs)?;
            let after = core_distance(programs)?;
            let state = State::of(before, after);
            self.samples.push(Sample { state, distances: [before, after], references, ours });
            if state != State::Moved {
                break;
            }
            before = after;
        }
        Ok(())
    }

    /// Prints a line of the table for each state that was seen.
    fn print(&self) {
        for state in [State::Near, State::Far] {
            let samples: Vec<&Sample> = self.samples.iter().filter(|sample| sample.state == state).collect();
            if samples.is_empty() {
                continue;
            }
            let ours = median(samples.iter().map(|sample| sample.ours));
            print!("| {} | {state} ({}) | **{ours:.2}** ({}) |", self.what, samples.len(), self.ours_is);
            for (at, (is, floor)) in self.references_are.iter().zip(&self.floors).enumerate() {
                let reference = median(samples.iter().map(|sample| sample.references[at]));
                let ratio = median(samples.iter().map(|sample| sample.ours / sample.references[at]));
                print!(" {reference:.2} ({is}): **{ratio:.2}** ×");
                if !matches!(floor, Floor::None) {
                    print!(", {floor}: {}", verdict(floor.is_reached(ratio)));
                }
                print!(" |");
            }
            println!();
        }
        if self.samples.iter().all(|sample| sample.state == State::Moved) {
            println!("| {} | the cores moved in each round | – |", self.what);
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut row = Row::default();
    values.for_each(|value| row.add(value));
    row.median()
}

/// Measures a round of each plan.
///
/// # Errors
/// A program fails, or prints something that isn't understood.
pub fn measure(plans: &[Plan], comparisons: &mut [Comparison], programs: &Programs) -> io::Result<()> {
    plans.iter().zip(comparisons).try_for_each(|(plan, comparison)| comparison.measure(plan, programs))
}

/// Prints the table of some comparisons, in Markdown. Ratios are medians of the rounds' ratios.
pub fn print(comparisons: &[Comparison]) {
    println!("| | cores (rounds) | Ferroce | references |\n|---|---|---:|---|");
    comparisons.iter().for_each(Comparison::print);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_cores_that_moved_belong_to_neither_state() {
        assert_eq!(State::of(100.0, 110.0), State::Near);
        assert_eq!(State::of(300.0, 170.0), State::Far);
        assert_eq!(State::of(100.0, 300.0), State::Moved);
        assert_eq!(State::of(300.0, 100.0), State::Moved);
    }
}
