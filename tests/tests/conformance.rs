//! The conformance suite, `tests/conformance`: what the man pages promise, checked on Ferroce and on the kernel's `rdma_rxe`.
//!
//! A check that fails on Ferroce is a defect. Where `rdma_rxe` and the specification differ, `rxe-differs.tsv` says so.
//! `FERROCE_WRITE_PAGES` (`cargo xtask conformance`) has the last test write `docs/CONFORMANCE.md`.

use ferroce_tests::{Artifacts, Guest, Outcome, Skip, World, require};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(55);
/// The differences of `rdma_rxe`: check, what it does, why the specification says otherwise.
const DIFFERENCES: &str = include_str!("../conformance/rxe-differs.tsv");

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Skipped(String),
}

/// What a program printed, by check, in its order.
#[derive(Debug)]
struct Report(Vec<(String, Verdict)>);

impl Report {
    /// Reads a program's lines.
    ///
    /// # Errors
    /// The program hasn't come to its end, or named two checks alike.
    fn read(program: &str, outcome: &Outcome) -> Result<Self, String> {
        let checks: Vec<_> = outcome.stdout.lines().filter_map(line).collect();
        let plan = outcome.stdout.lines().find_map(|line| line.strip_prefix("1.."));
        if plan != Some(checks.len().to_string().as_str()) {
            return Err(format!("{program} ended early: {outcome}"));
        }
        let mut names = BTreeSet::new();
        match checks.iter().find(|(name, _)| !names.insert(name)) {
            Some((name, _)) => Err(format!("{program} has two checks of the name \"{name}\"")),
            None => Ok(Self(checks)),
        }
    }

    fn failed(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, verdict)| *verdict == Verdict::Failed).map(|(name, _)| name.as_str())
    }

    /// Passed, failed, skipped.
    fn counts(&self) -> [usize; 3] {
        self.0.iter().fold([0; 3], |mut counts, (_, verdict)| {
            counts[match verdict {
                Verdict::Passed => 0,
                Verdict::Failed => 1,
                Verdict::Skipped(_) => 2,
            }] += 1;
            counts
        })
    }
}

/// A check's line: `ok N - NAME`, `not ok N - NAME` or `ok N - NAME # skip WHY`.
fn line(line: &str) -> Option<(String, Verdict)> {
    let (good, rest) = match line.strip_prefix("not ok ") {
        Some(rest) => (false, rest),
        None => (true, line.strip_prefix("ok ")?),
    };
    let (_, name) = rest.split_once(" - ")?;
    Some(match name.split_once(" # skip ") {
        Some((name, why)) => (name.into(), Verdict::Skipped(why.into())),
        None => (name.into(), if good { Verdict::Passed } else { Verdict::Failed }),
    })
}

/// The suite's programs: every C file there is one.
fn programs() -> Vec<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance");
    let files = std::fs::read_dir(directory).expect("the suite").map(|entry| entry.expect("an entry").path());
    let mut names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The programs, compiled.
fn compiled() -> Result<Vec<(String, PathBuf)>, Skip> {
    let compile = |name: String| Ok((name.clone(), Artifacts::get().conformance_program(&name)?));
    programs().into_iter().map(compile).collect()
}

/// With what a program runs on Ferroce.
#[derive(Clone, Copy)]
enum How {
    Ordinary,
    /// Over the `udp` fabric.
    Udp,
    /// With all capabilities over the host's network, as frames need them.
    Privileged,
}

/// Runs every program on Ferroce; panics when a check fails.
fn on_ferroce(how: How) -> Result<BTreeMap<String, Report>, Skip> {
    let programs = compiled()?;
    let world = World::one_host(1500)?;
    let mut reports = BTreeMap::new();
    let mut failed = String::new();
    for (name, path) in programs {
        let words = [path.as_os_str(), "-d".as_ref(), "ferroce0".as_ref(), "-g".as_ref(), "1".as_ref()];
        let host = world.first();
        let mut process = match how {
            How::Ordinary => host.start_ferroce(&[], &words, &[]),
            How::Udp => host.start_ferroce(&[], &words, &[("FERROCE_FABRIC", "udp")]),
            How::Privileged => host.start_ferroce_privileged(&[], &words, &[]),
        };
        let outcome = process.wait(LIMIT);
        match Report::read(&name, &outcome) {
            Ok(report) if report.failed().next().is_none() => drop(reports.insert(name, report)),
            Ok(_) => writeln!(failed, "{name}: {outcome}").expect("writing to a string"),
            Err(why) => failed.push_str(&why),
        }
    }
    assert!(failed.is_empty(), "{failed}");
    world.first().expect_no_traces();
    Ok(reports)
}

#[test]
fn what_the_man_pages_promise_holds() {
    require!(on_ferroce(How::Ordinary));
}

#[test]
fn what_the_man_pages_promise_holds_over_udp() {
    require!(on_ferroce(How::Udp));
}

#[test]
fn what_the_man_pages_promise_holds_for_the_privileged() {
    require!(on_ferroce(How::Privileged));
}

/// Runs every program on `rdma_rxe` in a guest.
fn on_rxe() -> Result<BTreeMap<String, Report>, Skip> {
    if std::env::var_os("FERROCE_RXE_KERNEL").is_some() {
        return Err(Skip(
            "rxe-differs.tsv is about Debian's Linux 6.1, and FERROCE_RXE_KERNEL names another".into(),
        ));
    }
    let programs = compiled()?;
    let world = World::one_host_with_tap(1500)?;
    let guest = Guest::start(&world, 1500)?;
    let (mut reports, mut unfinished) = (BTreeMap::new(), Vec::new());
    for (name, path) in programs {
        let outcome = guest.start_script(&format!("{} -d rxe0 -g 1", path.display())).wait(LIMIT);
        eprintln!("{name}:\n{}", outcome.stdout);
        match Report::read(&name, &outcome) {
            Ok(report) => drop(reports.insert(name, report)),
            Err(why) => unfinished.push(why),
        }
    }
    assert!(unfinished.is_empty(), "{unfinished:#?}");
    Ok(reports)
}

/// The suite proves itself: an adapter that isn't ours passes it too, but for what is known.
#[test]
fn rxe_differs_from_the_man_pages_where_the_table_says_so() {
    let reports = require!(on_rxe());
    let table: BTreeSet<&str> = differences().map(|[check, _, _]| check).collect();
    let found: BTreeSet<&str> = reports.values().flat_map(Report::failed).collect();
    let new: Vec<_> = found.difference(&table).collect();
    assert!(new.is_empty(), "rdma_rxe differs, and rxe-differs.tsv doesn't say so: {new:#?}");
    let gone: Vec<_> = table.difference(&found).collect();
    assert!(gone.is_empty(), "rdma_rxe doesn't differ any more: {gone:#?}");
    if std::env::var_os("FERROCE_WRITE_PAGES").is_some() {
        let page = page(&require!(on_ferroce(How::Privileged)), &reports);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/CONFORMANCE.md");
        std::fs::write(path, page).expect("the page can be written");
    }
}

/// The rows of the table.
fn differences() -> impl Iterator<Item = [&'static str; 3]> {
    DIFFERENCES.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        fields.try_into().unwrap_or_else(|_| panic!("rxe-differs.tsv: not three fields: {line}"))
    })
}

fn page(ours: &BTreeMap<String, Report>, rxe: &BTreeMap<String, Report>) -> String {
    let mut page = String::from(
        "# Conformance\n\n\
         `tests/conformance` holds plain C programs that check what the man pages of the verbs promise, with data that really moves. They run on\n\
         any device (`PROGRAM -d DEVICE -g GIDINDEX`, output like TAP). `cargo xtask test conformance` runs them on Ferroce, by default and with\n\
         `FERROCE_FABRIC=udp`, where no check may fail, and on the kernel's `rdma_rxe` in a guest, where those fail that are listed below. This page\n\
         is written by `cargo xtask conformance`. [MATRIX.md](MATRIX.md) says which program checks which function.\n\n\
         | program | checks | Ferroce: passed | skipped | rdma_rxe: passed | differs | skipped |\n|---|---|---|---|---|---|---|\n",
    );
    let mut sums = [0; 6];
    for (name, report) in ours {
        let ([passed, _, skipped], theirs) = (report.counts(), rxe[name].counts());
        let row = [report.0.len(), passed, skipped, theirs[0], theirs[1], theirs[2]];
        writeln!(page, "| `{name}` |{}", cells(&row)).expect("writing to a string");
        sums.iter_mut().zip(row).for_each(|(sum, count)| *sum += count);
    }
    writeln!(page, "| all |{}", cells(&sums)).expect("writing to a string");
    page.push_str("\n## Skipped on Ferroce\n\n");
    for (name, report) in ours {
        for (check, verdict) in &report.0 {
            if let Verdict::Skipped(why) = verdict {
                writeln!(page, "- `{name}`: {check}: {why}").expect("writing to a string");
            }
        }
    }
    page.push_str(
        "\n## Where rdma_rxe differs\n\nSeen on Debian's Linux 6.1. The specification wins.\n\n\
         | check | what rdma_rxe does | why the check says otherwise |\n|---|---|---|\n",
    );
    for row in differences() {
        writeln!(page, "| {} |", row.join(" | ")).expect("writing to a string");
    }
    page
}

fn cells(row: &[usize]) -> String {
    row.iter().map(|count| format!(" {count} |")).collect()
}
