//! rdma-core's own test suite, as Debian ships it with pyverbs: run unmodified, as an ordinary user and with all
//! capabilities over the host, on the default fabric, over UDP, and with losses.
//!
//! No test may fail, and one may be skipped only for a reason that lies outside the process: `docs/pyverbs.md` lists them.
//! `cargo xtask pyverbs` writes that page anew; here it is the list of what may be skipped.

mod page;
mod report;

use ferroce_tests::{Fabric, Host, Outcome, Skip, World, record_skip, require, tool};
use page::Page;
use report::Report;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where Debian's package puts the tests.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";
/// The suite ends within seconds; a test of it that hangs is killed with all others.
const LIMIT: Duration = Duration::from_secs(150);
/// Tests of one vendor's adapters: they must skip, cleanly.
const OF_VENDORS: &[&str] = &["tests.test_mlx5", "tests.test_efa", "tests.test_cuda"];

/// As whom the suite runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum User {
    /// No capability.
    Ordinary,
    /// All capabilities over the host's network, packet sockets among them.
    Root,
}

impl User {
    /// Those that the tests can be here: the suite asks for the user id 0, and only root has it.
    fn available() -> Vec<Self> {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() == 0 } {
            return vec![Self::Ordinary, Self::Root];
        }
        record_skip("the suite's tests for root, which we aren't");
        vec![Self::Ordinary]
    }

    /// Tests of any adapter that have to pass, with huge pages set up.
    fn least(self) -> usize {
        match self {
            Self::Ordinary => 130,
            Self::Root => 145,
        }
    }
}

fn is_of_vendor(test: &str) -> bool {
    // But for its last step this one asks for nothing that one vendor has.
    !test.starts_with("tests.test_mlx5_timestamp.")
        && OF_VENDORS.iter().any(|vendor| test.starts_with(vendor))
}

/// The suite, unpacked on the host, and the full names of its tests.
struct Suite {
    directory: String,
    tests: Vec<String>,
}

impl Suite {
    fn unpack(host: &Host) -> Result<Self, Skip> {
        tool("python3", "python3-minimal")?;
        if !Path::new(SUITE).join("run_tests.py").exists() {
            return Err(Skip(format!("rdma-core's tests aren't in {SUITE} (Debian: python3-pyverbs)")));
        }
        // As `cp` and `gunzip` would, and readable for every user.
        let directory = "/tmp/tests";
        let script = format!(
            "import glob, gzip, os, shutil\n\
             shutil.copytree('{SUITE}', '{directory}')\n\
             for packed in glob.glob('{directory}/*.gz'):\n\
             \x20   with gzip.open(packed) as source, open(packed[:-3], 'wb') as target: shutil.copyfileobj(source, target)\n\
             \x20   os.remove(packed)\n"
        );
        host.start(&["python3", "-c", &script], &[]).wait(LIMIT).expect_success();
        let mut suite = Self { directory: directory.into(), tests: Vec::new() };
        let listed = suite.run(host, User::Ordinary, &[], &["--list-tests"], &[]);
        let names = listed.expect_success().stdout.lines().filter(|line| line.starts_with("tests."));
        suite.tests = names.map(str::to_owned).collect();
        Ok(suite)
    }

    fn run(
        &self,
        host: &Host,
        user: User,
        options: &[&str],
        words: &[&str],
        settings: &[(&str, &str)],
    ) -> Outcome {
        let program = format!("{}/run_tests.py", self.directory);
        let mut line = vec!["python3", "-B", &program, "--dev", "ferroce0", "--gid", "1", "-v"];
        line.extend(words);
        let mut process = match user {
            User::Ordinary => host.start_ferroce(options, &line, settings),
            User::Root => host.start_ferroce_privileged(options, &line, settings),
        };
        process.wait(LIMIT)
    }

    /// Runs the tests that `wanted` picks; panics when one fails, or is skipped for a reason that the page doesn't list.
    fn check(
        &self,
        host: &Host,
        user: User,
        options: &[&str],
        settings: &[(&str, &str)],
        wanted: impl Fn(&str) -> bool,
    ) -> Report {
        let names: Vec<&str> = self.tests.iter().map(String::as_str).filter(|name| wanted(name)).collect();
        assert!(!names.is_empty(), "the suite has none of the tests that are wanted");
        let outcome = self.run(host, user, options, &names, settings);
        let report = Report::read(&outcome.stderr);
        let failed: Vec<&str> = report.failed().collect();
        assert!(failed.is_empty(), "as {user:?} {settings:?}: {failed:#?}\n{outcome}");
        assert!(outcome.success(), "{outcome}");
        assert_eq!((report.ran, report.verdicts.len()), (names.len(), names.len()), "{outcome}");
        report
    }
}

/// The machine's pages of 2 MiB, as many as the suite wants where root may ask for them, for as long as this lives.
struct HugePages {
    before: Option<String>,
}

impl HugePages {
    const SETTING: &str = "/proc/sys/vm/nr_hugepages";
    const WANTED: u32 = 64;

    fn reserve() -> Self {
        let before = fs::read_to_string(Self::SETTING).ok();
        let enough = before
            .as_deref()
            .and_then(|now| now.trim().parse().ok())
            .is_some_and(|now: u32| now >= Self::WANTED);
        let changed = !enough && fs::write(Self::SETTING, Self::WANTED.to_string()).is_ok();
        Self { before: before.filter(|_| changed) }
    }

    fn are_there() -> bool {
        fs::read_to_string(Self::SETTING)
            .is_ok_and(|now| now.trim().parse().is_ok_and(|now: u32| now >= Self::WANTED))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = fs::write(Self::SETTING, before);
        }
    }
}

fn page_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pyverbs.md")
}

/// Panics when a test of any adapter is skipped without being listed, or a vendor's test isn't skipped.
fn expect_listed(page: &Page, user: User, report: &Report) {
    let unlisted: Vec<_> = report
        .skipped()
        .filter(|(name, _)| !is_of_vendor(name))
        .filter(|(name, reason)| !page.lists(user, name, reason))
        .collect();
    assert!(unlisted.is_empty(), "skipped as {user:?}, not listed in docs/pyverbs.md: {unlisted:#?}");
    let passed: Vec<_> = report.passed().filter(|name| is_of_vendor(name)).collect();
    assert!(passed.is_empty(), "another vendor's adapter was found: {passed:?}");
}

fn expect_enough(user: User, report: &Report) {
    let passed = report.passed().count();
    println!("as {user:?}: {passed} passed, {} skipped", report.skipped().count());
    if HugePages::are_there() {
        assert!(passed >= user.least(), "{passed} tests passed as {user:?}, {} are asked for", user.least());
    }
}

#[test]
fn the_suite_passes_as_ordinary_user_and_as_root() {
    let world = require!(World::one_host(1500));
    let host = world.first();
    let suite = require!(Suite::unpack(host));
    let _pages = HugePages::reserve();
    let mut seen = Page::default();
    let written =
        Page::read(&fs::read_to_string(page_path()).expect("docs/pyverbs.md is part of the project"));
    let rewrite = std::env::var_os("FERROCE_WRITE_PAGES").is_some();
    for user in User::available() {
        let report = suite.check(host, user, &[], &[], |_| true);
        seen.add(user, &report);
        if !rewrite {
            expect_listed(&written, user, &report);
        }
        expect_enough(user, &report);
    }
    if rewrite {
        fs::write(page_path(), seen.write()).expect("docs/pyverbs.md is writable");
    }
}

#[test]
fn the_suite_passes_over_udp() {
    let world = require!(World::one_host(1500));
    let host = world.first();
    let suite = require!(Suite::unpack(host));
    let _pages = HugePages::reserve();
    let written =
        Page::read(&fs::read_to_string(page_path()).expect("docs/pyverbs.md is part of the project"));
    for user in User::available() {
        let report = suite.check(host, user, &[], Fabric::Udp.settings(), |_| true);
        expect_listed(&written, user, &report);
        expect_enough(user, &report);
    }
}

/// With LIDs the suite addresses without a GRH, and leaves out what is for RoCE alone.
#[test]
fn the_suite_passes_on_infiniband() {
    let world = require!(World::one_host(1500));
    let host = world.first();
    let suite = require!(Suite::unpack(host));
    for fabric in [Fabric::Any, Fabric::Udp] {
        let options = ["--link-layer", "infiniband"];
        let report = suite.check(host, User::Ordinary, &options, fabric.settings(), |_| true);
        assert!(report.passed().count() >= 80, "{report:?}");
    }
}

#[test]
fn the_checker_finds_nothing_in_the_suite() {
    let world = require!(World::one_host(1500));
    let host = world.first();
    let suite = require!(Suite::unpack(host));
    let report = suite.check(host, User::Ordinary, &["--check=fatal"], &[], |_| true);
    assert!(report.passed().count() >= 100, "{report:?}");
}

#[test]
fn the_suite_passes_on_a_strict_adapter() {
    let world = require!(World::one_host(1500));
    let host = world.first();
    let suite = require!(Suite::unpack(host));
    let report = suite.check(host, User::Ordinary, &["--strict"], &[], |_| true);
    assert!(report.passed().count() >= 100, "{report:?}");
}

#[test]
fn tests_of_rc_pass_with_one_percent_loss() {
    let world = require!(World::one_host(1500));
    let host = world.first();
    let suite = require!(Suite::unpack(host));
    let reliable = |name: &str| {
        let name = name.to_ascii_lowercase();
        // This one asks for a status that a refusal brings, and the only packet with it may be lost.
        let waits_for_a_refusal = name.ends_with("_rc_bind_mw");
        !is_of_vendor(&name)
            && !waits_for_a_refusal
            && (name.contains("_rc_") || name.contains("xrc") || name.contains("test_atomic."))
            && !name.contains("raw")
    };
    let report = suite.check(host, User::Ordinary, &["--fault", "drop=1%,seed=1"], &[], reliable);
    println!("{} tests passed", report.passed().count());
    assert!(report.passed().count() >= 40, "{report:?}");
}
