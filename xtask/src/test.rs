//! `cargo xtask test`: installs what the tests need, where that is allowed, and runs all of them.

use crate::{apt, dist};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

/// `forbid`: a test that is skipped fails the run, unless [`ALLOWED_SKIPS`] lists it.
const SKIPS: &str = "FERROCE_SKIPS";
/// A test and the reason for which it may be skipped in CI, a line each, with a tab between them.
const ALLOWED_SKIPS: &str = "tests/skips.tsv";
/// A test that may pass at its second try only, and the cause, a line each, with a tab between them. The list only shrinks.
const KNOWN_FLAKY: &str = "tests/flaky.tsv";

/// Installs, builds the dist tree in release, runs every test of the workspace and lists what was skipped or repeated.
/// `quick` runs those alone that answer within two minutes: `.config/nextest.toml` chooses them.
///
/// # Errors
/// The build or a test fails; `quick` without cargo-nextest.
pub fn test(filter: Option<&str>, quick: bool) -> io::Result<()> {
    apt::install_for_tests();
    println!("Building target/dist");
    dist::dist("release")?;
    let stage = Stage::new()?;
    let nextest = apt::on_path("cargo-nextest");
    let mut closing = Vec::new();
    let mut passed = true;
    if nextest {
        if !quick {
            let words = ["test", "--workspace", "--doc", "--quiet"];
            passed &= run(&mut cargo(&words, filter, &stage), &mut closing)?;
        }
        let profile = if quick { "quick" } else { "default" };
        let places = (2 * std::thread::available_parallelism()?.get() + 1).to_string();
        let words = ["nextest", "run", "--workspace", "--no-tests=warn", "--profile", profile];
        let mut command = cargo(&words, filter, &stage);
        passed &= run(command.args(["--test-threads", &places]), &mut closing)?;
    } else if quick {
        let why = "--quick needs cargo-nextest (cargo install --locked cargo-nextest), which chooses tests by their names";
        return Err(io::Error::other(why));
    } else {
        let elsewhere = ["test", "--workspace", "--exclude", "ferroce-tests", "--no-fail-fast"];
        passed &= run(&mut cargo(&elsewhere, filter, &stage), &mut closing)?;
        // One at a time: programs under test poll, and small machines have two cores.
        let mut real = cargo(&["test", "--package", "ferroce-tests", "--no-fail-fast"], filter, &stage);
        real.args(["--", "--test-threads=1"]);
        passed &= run(&mut real, &mut closing)?;
    }
    stage.print_logs();
    for line in &closing {
        println!("{line}");
    }
    if !passed {
        return Err(io::Error::other("tests failed"));
    }
    let flaky = unlisted_flaky(&closing, &fs::read_to_string(dist::workspace().join(KNOWN_FLAKY))?);
    if !flaky.is_empty() {
        let names = flaky.join(", ");
        let why = format!("passed at the second try only, and {KNOWN_FLAKY} doesn't list the cause: {names}");
        return Err(io::Error::other(why));
    }
    match stage.unlisted_skips(&fs::read_to_string(dist::workspace().join(ALLOWED_SKIPS))?) {
        skips if skips.is_empty() || env::var_os(SKIPS).is_none_or(|value| value != "forbid") => Ok(()),
        skips => {
            let not_tested = skips.join("; ");
            let why = format!(
                "{SKIPS}=forbid, and these were not tested: {not_tested} ({ALLOWED_SKIPS} lists what may be)"
            );
            Err(io::Error::other(why))
        }
    }
}

/// Runs the tests of one file, which write their page: `pyverbs` writes `docs/pyverbs.md`, `conformance` `docs/CONFORMANCE.md`.
///
/// # Errors
/// The build or a test fails.
pub fn write_page(tests: &str) -> io::Result<()> {
    apt::install_for_tests();
    dist::dist("release")?;
    let stage = Stage::new()?;
    let mut command = cargo(&["test", "--package", "ferroce-tests", "--test", tests], None, &stage);
    let passed = run(
        command.args(["--", "--include-ignored", "--test-threads=1"]).env("FERROCE_WRITE_PAGES", "1"),
        &mut Vec::new(),
    )?;
    stage.print_logs();
    if passed { Ok(()) } else { Err(io::Error::other("tests failed")) }
}

fn cargo(words: &[&str], filter: Option<&str>, stage: &Stage) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command
        .current_dir(dist::workspace())
        .args(words)
        .args(filter)
        .env("FERROCE_TEST_DIR", stage.path())
        .env("FERROCE_SKIP_LOG", stage.skip_log())
        .env("FERROCE_REPETITION_LOG", stage.repetition_log())
        // It is ours: `ferroce run` refuses variables that it doesn't know.
        .env_remove(SKIPS)
        .stdin(Stdio::null());
    command
}

/// Runs a test runner, showing its output, and keeps the lines with which it sums up: results, and tests that passed at a second try.
fn run(command: &mut Command, closing: &mut Vec<String>) -> io::Result<bool> {
    let (reader, writer) = io::pipe()?;
    let mut child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // The command holds the pipe's writing end, and the loop below ends only when all ends are closed.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        // Unindented: a failed test's output, shown indented, has such a line too.
        let result = line.starts_with("test result:") && !line.starts_with("test result: ok. 0 passed");
        if result || ["Summary [", "FLAKY "].iter().any(|word| line.trim_start().starts_with(word)) {
            closing.push(line);
        }
    }
    Ok(child.wait()?.success())
}

/// A directory outside the checkout that any user can read, removed at the end.
struct Stage(PathBuf);

impl Stage {
    fn new() -> io::Result<Self> {
        ferroce_tests::new_stage("stage").map(Self)
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn skip_log(&self) -> PathBuf {
        self.0.join("skipped")
    }

    fn repetition_log(&self) -> PathBuf {
        self.0.join("repeated")
    }

    /// The skips that `allowed` doesn't list, by reason.
    fn unlisted_skips(&self, allowed: &str) -> Vec<String> {
        unlisted(&fs::read_to_string(self.skip_log()).unwrap_or_default(), allowed)
    }

    /// Lists what was skipped, and what passed only when it was run again.
    fn print_logs(&self) {
        let skips = fs::read_to_string(self.skip_log()).unwrap_or_default();
        println!("\n{} test(s) skipped for want of something on this machine", skips.lines().count());
        print!("{skips}");
        let repetitions = fs::read_to_string(self.repetition_log()).unwrap_or_default();
        println!("{} repetition(s) were needed", repetitions.lines().count());
        print!("{repetitions}");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Each reason of a log of skips (`skipped TEST: REASON`), with its tests, without those that are a line of `allowed`.
/// Long lists of tests are cut.
fn unlisted(log: &str, allowed: &str) -> Vec<String> {
    const NAMED: usize = 12;
    let allowed: Vec<_> = allowed.lines().filter_map(|line| line.split_once('\t')).collect();
    let mut reasons = BTreeMap::<&str, BTreeSet<&str>>::new();
    for line in log.lines().filter_map(|line| line.strip_prefix("skipped ")) {
        let (test, reason) = line.split_once(": ").unwrap_or((line, "no reason"));
        if !allowed.contains(&(test, reason)) {
            reasons.entry(reason).or_default().insert(test);
        }
    }
    let describe = |(reason, tests): (&str, BTreeSet<&str>)| {
        let named = tests.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        match tests.len().saturating_sub(NAMED) {
            0 => format!("{named} ({reason})"),
            more => format!("{named} and {more} more, listed above ({reason})"),
        }
    };
    reasons.into_iter().map(describe).collect()
}

/// The tests that a runner's closing lines (`FLAKY 2/2 [   0.135s] BINARY TEST`) name, without those of `known`.
fn unlisted_flaky(closing: &[String], known: &str) -> Vec<String> {
    let known: Vec<_> =
        known.lines().filter_map(|line| line.split_once('\t')).map(|(test, _)| test).collect();
    let flaky = closing.iter().filter(|line| line.trim_start().starts_with("FLAKY "));
    let tests = flaky.filter_map(|line| line.split_whitespace().next_back());
    tests.filter(|test| !known.contains(test)).map(str::to_owned).collect()
}

#[test]
fn a_test_that_passes_at_its_second_try_fails_the_run_unless_its_cause_is_known() {
    let closing = [
        "     Summary [1s] 2 tests run",
        "   FLAKY 2/2 [   0.135s] ferroce-tests::kill one",
        " FLAKY 2/2 [ 1s] a::b two",
    ];
    let closing = closing.map(str::to_owned);
    assert_eq!(unlisted_flaky(&closing, "# comment\n"), ["one", "two"]);
    assert_eq!(unlisted_flaky(&closing, "two\tthe guest stands still\n"), ["one"]);
}

#[test]
fn a_skip_is_let_pass_for_the_listed_reason_alone() {
    let allowed = "# comment\nudp::steers\tno tbf\n";
    assert_eq!(unlisted("skipped udp::steers: no tbf\n", allowed), Vec::<String>::new());
    let log = "skipped udp::steers: no python3\nskipped other: no tbf\nskipped other: no tbf\n";
    assert_eq!(unlisted(log, allowed), ["udp::steers (no python3)", "other (no tbf)"]);
    let many: String = (10..30).map(|n| format!("skipped test_{n}: no namespaces\n")).collect();
    let [line] = &unlisted(&many, allowed)[..] else { panic!("one reason is one entry") };
    assert!(
        line.starts_with("test_10, ") && line.ends_with("test_21 and 8 more, listed above (no namespaces)")
    );
}
