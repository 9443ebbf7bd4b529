//! Tests in many worlds, and the faults that a failure needs.

use crate::chances::Allowed;
use crate::current::{self, message};
use crate::state::State;
use crate::trace::{TraceEvent, What};
use crate::world::World;
use std::any::Any;
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

/// The environment variable that has [`explore`] run one seed, and of its faults only some.
const SEED: &str = "FERROCE_SEED";

/// How often a test that fails is repeated with fewer faults.
const REPETITIONS: u32 = 120;

/// A seed, and which of its faults are injected.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Run {
    seed: u64,
    allowed: Allowed,
}

impl Run {
    /// From `SEED` or `SEED:FAULT,FAULT`.
    fn parse(text: &str) -> Option<Self> {
        let (seed, faults) = text.split_once(':').map_or((text, None), |(seed, faults)| (seed, Some(faults)));
        let numbers = |faults: &str| -> Option<BTreeSet<u64>> {
            faults.split(',').filter(|fault| !fault.is_empty()).map(|fault| fault.parse().ok()).collect()
        };
        let allowed = match faults {
            None => Allowed::All,
            Some(faults) => Allowed::Only(numbers(faults)?),
        };
        Some(Self { seed: seed.parse().ok()?, allowed })
    }
}

/// A test that has failed.
struct Failure {
    panic: Box<dyn Any + Send>,
    /// What each program and each queue pair waited for.
    state: Option<String>,
    faults: Vec<TraceEvent>,
}

impl Failure {
    /// The first line of the message without its numbers, which differ with fewer faults.
    fn kind(&self) -> String {
        let line = message(&*self.panic).lines().next().unwrap_or_default();
        line.chars().filter(|char| !char.is_ascii_digit()).collect()
    }

    fn numbers(&self) -> Vec<u64> {
        let number = |event: &TraceEvent| match event.what {
            What::Fault { number, .. } => Some(number),
            _ => None,
        };
        self.faults.iter().filter_map(number).collect()
    }
}

/// Runs a test in a world. Panics print nothing if it is repeated.
fn attempt(
    test: &impl Fn(World),
    run: &Run,
    repeated: bool,
    capture: Option<&Path>,
) -> Result<(), Box<Failure>> {
    let world = World::with(State { quiet: repeated, ..State::new(run.seed, run.allowed.clone()) });
    if let Some(path) = capture {
        // The report doesn't name a file that can't be written.
        let _ = world.capture(path);
    }
    current::set(world.shared(), 0);
    let result = catch_unwind(AssertUnwindSafe(|| test(world.clone())));
    current::unset();
    world.end();
    result.map_err(|panic| {
        let is_fault = |event: &TraceEvent| matches!(event.what, What::Fault { .. });
        let faults = world.trace().0.into_iter().filter(is_fault).collect();
        let state = world.lock().at_panic.take();
        Box::new(Failure { panic, state, faults })
    })
}

/// Finds few of the faults of a run with which it fails in the same way.
fn shrink(test: &impl Fn(World), run: &Run, failure: &Failure) -> Vec<u64> {
    let mut needed = failure.numbers();
    let mut repetitions = 0;
    let mut fails = |faults: &[u64]| {
        repetitions += 1;
        let allowed = Allowed::Only(faults.iter().copied().collect());
        let again = attempt(test, &Run { allowed, ..*run }, true, None).err();
        again.filter(|again| again.kind() == failure.kind()).map(|again| again.numbers())
    };
    let mut size = needed.len();
    let mut tried = 0;
    while size > 0 && tried < REPETITIONS {
        // From the end: up to the first fault that is left out, the run is the same.
        let mut end = needed.len();
        while end > 0 && tried < REPETITIONS {
            let start = end.saturating_sub(size);
            let fewer: Vec<u64> = needed[..start].iter().chain(&needed[end..]).copied().collect();
            tried += 1;
            if let Some(left) = fails(&fewer) {
                needed = left;
            }
            end = start.min(needed.len());
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    needed
}

/// The capture of a seed: tests of a process run in threads with their names.
fn capture_of(seed: u64) -> PathBuf {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("test").replace(|char: char| !char.is_ascii_alphanumeric(), "-");
    std::env::temp_dir().join(format!("ferroce-{name}-{}-seed-{seed}.pcapng", std::process::id()))
}

/// Prints a failure, and how to repeat it.
fn report(test: &impl Fn(World), run: &Run, failure: &Failure) {
    let seed = run.seed;
    eprintln!("the test fails with seed {seed}; {SEED}={seed} runs it alone");
    let (shrunk, count) = (run.allowed == Allowed::All, failure.faults.len());
    let needed = if shrunk { shrink(test, run, failure) } else { failure.numbers() };
    let path = capture_of(seed);
    let few = Run { seed, allowed: Allowed::Only(needed.iter().copied().collect()) };
    let again = attempt(test, &few, true, Some(&path)).err();
    let failure = again.as_deref().unwrap_or(failure);
    if needed.is_empty() {
        eprintln!("it fails without any fault that the seed chooses");
    } else {
        let list: Vec<String> = needed.iter().map(u64::to_string).collect();
        eprintln!(
            "{} of {count} faults suffice; {SEED}={seed}:{} injects these alone:",
            needed.len(),
            list.join(",")
        );
        failure.faults.iter().for_each(|fault| eprintln!("{fault}"));
    }
    if let Some(state) = &failure.state {
        eprintln!("when it failed:\n{state}");
    }
    if path.exists() {
        eprintln!("its packets, for Wireshark and tshark: {}", path.display());
    }
}

/// Runs a test in a world for each seed, one after another, and reports the first seed that fails: what each program and each queue
/// pair waited for, a capture of the packets, and the faults that suffice for the failure. To find these, it repeats the test with fewer
/// faults. So a test must depend on its world alone.
///
/// With the environment variable `FERROCE_SEED` it runs that seed alone: `FERROCE_SEED=41`, or with these faults only
/// `FERROCE_SEED=41:3,17`.
///
/// # Panics
/// The test panics.
pub fn explore(seeds: Range<u64>, test: impl Fn(World)) {
    current::watch_panics();
    let wanted = std::env::var(SEED).ok().map(|text| {
        Run::parse(&text).unwrap_or_else(|| panic!("{SEED}={text}: expected a number, as 41, or 41:3,17"))
    });
    let all = seeds.map(|seed| Run { seed, allowed: Allowed::All });
    let runs: Box<dyn Iterator<Item = Run>> = match wanted {
        Some(run) => Box::new(std::iter::once(run)),
        None => Box::new(all),
    };
    for run in runs {
        if let Err(failure) = attempt(&test, &run, false, None) {
            report(&test, &run, &failure);
            resume_unwind(failure.panic);
        }
    }
}
