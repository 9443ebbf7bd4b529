//! The committed figures, and what a build's figures may be beside them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::process::Command;

/// By how much a figure may grow.
const MOST_GROWTH: f64 = 0.02;
/// By how much instructions may grow beside figures of another compiler, C library or valgrind: theirs aren't ours.
const MOST_GROWTH_OF_OTHERS: f64 = 0.10;
/// What may be added to each figure: one more of what happens now and then, in a batch of twenty rounds.
const SLACK: f64 = 0.05;

/// The figures of each operation of each fabric.
pub type Figures = BTreeMap<String, BTreeMap<String, Costs>>;

/// Figures, and what they were made with.
#[derive(Serialize, Deserialize)]
pub struct Report {
    /// What the figures depend on beside the sources.
    pub tools: Tools,
    /// The figures.
    pub figures: Figures,
}

/// What a round of an operation takes, both sides together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Instructions of the threads that call verbs, outside of the kernel.
    pub instructions: f64,
    /// Calls of malloc, calloc, realloc, posix_memalign and free.
    pub allocations: f64,
    /// System calls.
    pub system_calls: f64,
    /// By how much of the smallest the instructions of several runs differ.
    pub spread: f64,
}

/// What figures depend on beside the sources.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Tools {
    /// The processor's architecture, and whether it has AVX2, by which libraries choose their code.
    pub machine: String,
    /// The compiler.
    pub rustc: String,
    /// The C library.
    pub glibc: String,
    /// What counts.
    pub valgrind: String,
}

impl Tools {
    /// Those of this machine.
    ///
    /// # Errors
    /// One of the programs can't be run.
    pub fn this() -> io::Result<Self> {
        // SAFETY: the function returns a string that lives as long as the C library.
        let glibc = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
        Ok(Self {
            machine: machine(),
            rustc: first_line(&std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into()))?,
            glibc: glibc.to_string_lossy().into_owned(),
            valgrind: first_line("valgrind")?,
        })
    }

    /// What differs, in words.
    fn differences(&self, other: &Self) -> Vec<String> {
        [
            ("rustc", &self.rustc, &other.rustc),
            ("glibc", &self.glibc, &other.glibc),
            ("valgrind", &self.valgrind, &other.valgrind),
        ]
        .iter()
        .filter(|(_, ours, others)| ours != others)
        .map(|(name, ours, others)| format!("{name} ({ours} there, {others} here)"))
        .collect()
    }
}

fn machine() -> String {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        return "x86_64 with AVX2".into();
    }
    std::env::consts::ARCH.into()
}

fn first_line(program: &str) -> io::Result<String> {
    let output = Command::new(program).arg("--version").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
}

/// What a comparison has found.
#[derive(Debug, Default)]
pub struct Found {
    /// What mustn't be.
    pub failures: Vec<String>,
    /// What a person may want to know.
    pub remarks: Vec<String>,
}

/// Holds a build's figures against the committed ones.
pub fn compare(committed: &Report, measured: &Report) -> Found {
    let mut found = Found::default();
    let differences = committed.tools.differences(&measured.tools);
    let of_instructions = if differences.is_empty() { MOST_GROWTH } else { MOST_GROWTH_OF_OTHERS };
    if !differences.is_empty() {
        found.remarks.push(format!(
            "The committed figures were made with others of these: {}. So instructions may be up to {:.0} % more.",
            differences.join(", "),
            of_instructions * 100.0
        ));
    }
    let mut smaller = false;
    for (fabric, operation, was) in each(&committed.figures) {
        let Some(is) = measured.figures.get(fabric).and_then(|operations| operations.get(operation)) else {
            found.failures.push(format!("{fabric}, {operation}: committed and not measured"));
            continue;
        };
        for (what, was, is, most) in [
            ("instructions", was.instructions, is.instructions, of_instructions),
            ("calls of the allocator", was.allocations, is.allocations, MOST_GROWTH),
            ("system calls", was.system_calls, is.system_calls, MOST_GROWTH),
        ] {
            if is > was * (1.0 + most) + SLACK {
                let growth =
                    if was > 0.0 { format!("{:+.1} %", (is / was - 1.0) * 100.0) } else { "new".into() };
                found.failures.push(format!(
                    "{fabric}, {operation}: {was:.2} {what} have become {is:.2} ({growth}; at most {:.0} % are let pass)",
                    most * 100.0
                ));
            }
            smaller |= is < was * (1.0 - most) - SLACK;
        }
    }
    for (fabric, operation, _) in each(&measured.figures) {
        if committed.figures.get(fabric).is_none_or(|operations| !operations.contains_key(operation)) {
            found.failures.push(format!("{fabric}, {operation}: measured and not committed"));
        }
    }
    if smaller && differences.is_empty() {
        found.remarks.push("Some are less than committed: with --write it stays so.".into());
    }
    found
}

/// The median of several runs, with their spread; the largest where they differ by more than `most_spread`, as where it depends on
/// the machine which of two threads does the work.
///
/// # Errors
/// The runs don't have the same figures.
pub fn median(runs: &[Figures], most_spread: f64) -> Result<Figures, String> {
    let mut figures = runs.first().ok_or("no runs")?.clone();
    for (fabric, operations) in &mut figures {
        for (operation, costs) in operations {
            let mut of_runs = Vec::new();
            for run in runs {
                let costs = run.get(fabric).and_then(|operations| operations.get(operation));
                of_runs.push(*costs.ok_or_else(|| format!("{fabric}, {operation}: not in each run"))?);
            }
            let sorted = |figure: fn(&Costs) -> f64| {
                let mut values: Vec<f64> = of_runs.iter().map(figure).collect();
                values.sort_by(f64::total_cmp);
                values
            };
            let instructions = sorted(|costs| costs.instructions);
            let spread = instructions[instructions.len() - 1] / instructions[0].max(1.0) - 1.0;
            let at = if spread > most_spread { of_runs.len() - 1 } else { of_runs.len() / 2 };
            *costs = Costs {
                instructions: instructions[at],
                allocations: sorted(|costs| costs.allocations)[at],
                system_calls: sorted(|costs| costs.system_calls)[at],
                spread: (spread * 1e4).round() / 1e4,
            };
        }
    }
    Ok(figures)
}

/// Replaces what is larger than in another run.
pub fn keep_smaller(figures: &mut Figures, other: &Figures) {
    for (fabric, operations) in figures {
        for (operation, costs) in operations {
            let Some(other) = other.get(fabric).and_then(|operations| operations.get(operation)) else {
                continue;
            };
            costs.instructions = costs.instructions.min(other.instructions);
            costs.allocations = costs.allocations.min(other.allocations);
            costs.system_calls = costs.system_calls.min(other.system_calls);
        }
    }
}

fn each(figures: &Figures) -> impl Iterator<Item = (&str, &str, &Costs)> {
    figures.iter().flat_map(|(fabric, operations)| {
        operations.iter().map(move |(operation, costs)| (fabric.as_str(), operation.as_str(), costs))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(costs: &[(&str, [f64; 3])]) -> Report {
        let costs = costs.iter().map(|&(operation, [instructions, allocations, system_calls])| {
            (operation.to_owned(), Costs { instructions, allocations, system_calls, spread: 0.0 })
        });
        let of = |name: &str| format!("{name} 1");
        Report {
            tools: Tools { machine: of("x"), rustc: of("rustc"), glibc: of("glibc"), valgrind: of("v") },
            figures: BTreeMap::from([("shm".to_owned(), costs.collect())]),
        }
    }

    fn send(instructions: f64, allocations: f64, system_calls: f64) -> Report {
        report(&[("send", [instructions, allocations, system_calls])])
    }

    #[test]
    fn growth_of_three_percent_fails_and_of_one_passes() {
        let committed = send(10_000.0, 4.0, 2.0);
        let found = compare(&committed, &send(10_300.0, 4.0, 2.0));
        assert_eq!(found.failures.len(), 1);
        assert!(found.failures[0].contains("shm, send: 10000.00 instructions have become 10300.00 (+3.0 %"));
        assert!(compare(&committed, &send(10_100.0, 4.0, 2.0)).failures.is_empty());
    }

    #[test]
    fn one_allocation_or_system_call_more_fails() {
        let committed = send(10_000.0, 0.0, 2.0);
        assert_eq!(compare(&committed, &send(10_000.0, 1.0, 2.0)).failures.len(), 1);
        assert_eq!(compare(&committed, &send(10_000.0, 0.0, 3.0)).failures.len(), 1);
        assert!(compare(&committed, &send(10_000.0, 0.01, 2.05)).failures.is_empty());
    }

    #[test]
    fn figure_that_is_missing_on_either_side_fails() {
        let both = report(&[("send", [1.0; 3]), ("read", [1.0; 3])]);
        let one = report(&[("send", [1.0; 3])]);
        assert_eq!(compare(&both, &one).failures, ["shm, read: committed and not measured"]);
        assert_eq!(compare(&one, &both).failures, ["shm, read: measured and not committed"]);
    }

    #[test]
    fn other_tools_are_named_and_widen_the_margin_of_instructions_only() {
        let committed = send(10_000.0, 4.0, 2.0);
        let with = |mut report: Report| {
            report.tools.rustc = "rustc 2".into();
            report
        };
        let found = compare(&committed, &with(send(10_900.0, 4.0, 2.0)));
        assert!(found.failures.is_empty());
        assert!(found.remarks[0].contains("rustc (rustc 1 there, rustc 2 here)"), "{:?}", found.remarks);
        assert_eq!(compare(&committed, &with(send(11_100.0, 5.0, 2.0))).failures.len(), 2);
    }

    #[test]
    fn smaller_figure_passes_with_a_remark() {
        let found = compare(&send(10_000.0, 4.0, 2.0), &send(9_000.0, 4.0, 2.0));
        assert!(found.failures.is_empty() && found.remarks.len() == 1);
    }

    #[test]
    fn of_two_runs_each_smaller_figure_is_kept() {
        let mut report = send(10_000.0, 5.0, 2.0);
        keep_smaller(&mut report.figures, &send(9_000.0, 4.0, 3.0).figures);
        let expected = Costs { instructions: 9_000.0, allocations: 4.0, system_calls: 2.0, spread: 0.0 };
        assert_eq!(report.figures["shm"]["send"], expected);
    }

    #[test]
    fn new_figures_are_medians_of_runs_that_agree_and_else_the_largest() {
        let runs = [1000.0, 1004.0, 1002.0].map(|instructions| send(instructions, 4.0, 2.0).figures);
        let median = median(&runs, 0.01).expect("the same figures");
        let expected = Costs { instructions: 1002.0, allocations: 4.0, system_calls: 2.0, spread: 0.004 };
        assert_eq!(median["shm"]["send"], expected);
        let largest = super::median(&runs, 0.001).expect("the same figures");
        assert!(largest["shm"]["send"].instructions > 1002.0);
        assert!(super::median(&[], 0.01).is_err());
    }
}
