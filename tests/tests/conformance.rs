//! The conformance suite, `tests/conformance`: what the man pages of libibverbs and librdmacm promise, checked on Ferroce and on
//! the kernel's `rdma_rxe` and `rdma_cm`.
//!
//! A check that fails on Ferroce is a defect. Where `rdma_rxe` and the specification differ, `rxe-differs.tsv` lists the check.
//! `FERROCE_WRITE_PAGES` (`cargo xtask conformance`) has the last test write `docs/CONFORMANCE.md`.

use ferroce_tests::pages::{Check, Fact, facts};
use ferroce_tests::{Artifacts, Fabric, Guest, Outcome, Skip, World, require};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(55);
/// The differences of `rdma_rxe` and `rdma_cm`: check, kernels that have it, what they do, why the specification requires otherwise.
const DIFFERENCES: &str = include_str!("../conformance/rxe-differs.tsv");

/// The kernels that the table is about.
const KERNELS: [&str; 2] = ["6.1", "6.12"];
/// Debian's package of the second.
const NEWER: &str = "linux-image-6.12-amd64";

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
fn compiled() -> Result<Vec<(String, String)>, Skip> {
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
    /// With these options of `ferroce run`.
    Options(&'static [&'static str]),
}

/// What `--check` finds in the suite's programs: they overrun a queue of completions, and fill a queue of requests, to see what comes of
/// it. They end without destroying what they have made.
const FOUND: &[(&str, &str)] = &[("cq", "FC102"), ("states", "FC102"), ("wr_flags", "FC100")];

/// Runs every program on Ferroce; panics when a check fails.
fn on_ferroce(how: How) -> Result<BTreeMap<String, Report>, Skip> {
    let programs = compiled()?;
    let world = World::one_host(1500)?;
    let mut reports = BTreeMap::new();
    let mut failed = String::new();
    for (name, path) in programs {
        let words = [&*path, "-d", "ferroce0", "-g", "1"];
        let host = world.first();
        let mut process = match how {
            How::Ordinary => host.start_ferroce(&[], &words, &[]),
            How::Udp => host.start_ferroce(&[], &words, Fabric::Udp.settings()),
            How::Privileged => host.start_ferroce_privileged(&[], &words, &[]),
            How::Options(options) => host.start_ferroce(options, &words, &[]),
        };
        let outcome = process.wait(LIMIT);
        let found: BTreeSet<_> = outcome.stderr.lines().filter_map(finding).collect();
        let known = FOUND.iter().filter(|of| of.0 == name).map(|of| of.1);
        if found.iter().any(|id| known.clone().all(|known| known != *id)) {
            writeln!(failed, "{name} has {found:?}: {outcome}").expect("writing to a string");
        }
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

/// The ID of a finding of `--check`, which a line begins with.
fn finding(line: &str) -> Option<&str> {
    let id = line.strip_prefix("ferroce: FC1")?.split(' ').next()?;
    line.get("ferroce: ".len().."ferroce: FC1".len() + id.len())
}

#[test]
fn what_the_man_pages_promise_holds_on_a_strict_adapter_and_the_checker_finds_nothing_else() {
    require!(on_ferroce(How::Options(&["--strict", "--check=-FC106"])));
}

#[test]
fn what_the_man_pages_promise_holds_over_udp() {
    require!(on_ferroce(How::Udp));
}

#[test]
fn what_the_man_pages_promise_holds_for_the_privileged() {
    let reports = require!(on_ferroce(How::Privileged));
    let unchecked: Vec<Fact> = facts().into_iter().filter(|fact| !was_checked(fact, &reports)).collect();
    assert!(unchecked.is_empty(), "pages.tsv names checks that haven't been run: {unchecked:#?}");
}

/// The program whose sides can be on two hosts.
const SIDES: &str = "cm_sides";

#[test]
fn what_the_man_pages_promise_of_connections_holds_between_hosts() {
    let program = require!(Artifacts::get().conformance_program(SIDES));
    let world = require!(World::two_hosts(1500));
    let (near, far) = (world.first(), world.last());
    let mut passive = far.start_ferroce(&[], &[&program, "-l", "-d", "ferroce0", "-g", "1"], &[]);
    passive.wait_for_output("# listening\n", LIMIT);
    let mut active =
        near.start_ferroce(&[], &[&program, "-s", &far.ipv4(), "-d", "ferroce0", "-g", "1"], &[]);
    let outcomes = [active.wait(LIMIT), passive.wait(LIMIT)];
    let reports = outcomes.each_ref().map(|outcome| Report::read(SIDES, outcome));
    let good =
        reports.iter().all(|report| report.as_ref().is_ok_and(|report| report.failed().next().is_none()));
    assert!(good, "active: {}passive: {}", outcomes[0], outcomes[1]);
    for host in [near, far] {
        host.expect_no_traces();
    }
}

/// Whether the check that a fact names has been run. A program that skips something may have left out more.
fn was_checked(fact: &Fact, reports: &BTreeMap<String, Report>) -> bool {
    let Check::Program { program, name } = fact.check else { return true };
    reports.get(program).is_some_and(|report| {
        report.0.iter().any(|(check, verdict)| check == name || matches!(verdict, Verdict::Skipped(_)))
    })
}

/// `pages.tsv` names checks that are in the sources, and has rows for every public function.
#[test]
fn every_fact_of_the_man_pages_names_a_check_that_exists() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let facts = facts();
    let mut wrong: Vec<String> = Vec::new();
    for fact in &facts {
        let (file, name) = match fact.check {
            Check::Program { program, name } => (format!("tests/conformance/{program}.c"), name),
            Check::Elsewhere { file, name } => (file.to_owned(), name),
            Check::NotApplicable(_) => continue,
        };
        let source = std::fs::read_to_string(repository.join(&file)).unwrap_or_default();
        let found = match fact.check {
            Check::Program { .. } => literals(&source).iter().any(|format| prints(format, name)),
            _ => source.contains(name),
        };
        if !found {
            wrong.push(format!("{}: {} isn't in {file}", fact.function, name));
        }
    }
    let named: BTreeSet<&str> = facts.iter().map(|fact| fact.function).collect();
    let functions = public_functions(&repository);
    let missing = functions.iter().filter(|function| !named.contains(function.as_str()));
    wrong.extend(missing.map(|function| format!("{function} has no row")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The functions that programs can call, of the tables that the libraries are made from.
fn public_functions(repository: &Path) -> Vec<String> {
    let rows = |table: &str| {
        let path = repository.join("crates/capi").join(table);
        let text = std::fs::read_to_string(path).expect("the table");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let exported = rows("ibverbs/symbols.tsv");
    // A private version is `@@P65`. What the inline functions of the header call has their name behind an underscore.
    let exported = exported.into_iter().filter(|row| row[1].split(',').any(|version| !version.contains('P')));
    let inline: Vec<String> = rows("ibverbs/inline.tsv").into_iter().map(|row| row[0].clone()).collect();
    let exported = exported.map(|row| row[0].clone());
    let exported: Vec<String> =
        exported.filter(|name| !inline.iter().any(|inline| name.strip_prefix('_') == Some(inline))).collect();
    let connections = rows("rdmacm/symbols.tsv").into_iter().map(|row| row[0].clone());
    exported.into_iter().chain(inline).chain(connections).collect()
}

/// The string literals of C source, neighbours put together.
fn literals(source: &str) -> Vec<String> {
    let mut literals: Vec<String> = Vec::new();
    let mut rest = source;
    let mut joined = false;
    while let Some(start) = rest.find('"') {
        joined &= rest[..start].trim().is_empty();
        let body = &rest[start + 1..];
        let end = body
            .char_indices()
            .find(|&(at, c)| c == '"' && !body[..at].ends_with('\\'))
            .map_or(body.len(), |(at, _)| at);
        match literals.last_mut().filter(|_| joined) {
            Some(last) => last.push_str(&body[..end]),
            None => literals.push(body[..end].to_owned()),
        }
        joined = true;
        rest = body.get(end + 1..).unwrap_or_default();
    }
    literals
}

/// Whether a format can print a name: each conversion stands for anything.
fn prints(format: &str, name: &str) -> bool {
    let mut parts = format.split('%');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut open = false;
    for part in parts {
        let text = part.trim_start_matches(['#', 'l', 'z']).get(1..).unwrap_or_default();
        match rest.find(text) {
            Some(at) => rest = &rest[at + text.len()..],
            None => return false,
        }
        open = text.is_empty();
    }
    open || rest.is_empty()
}

/// What `rdma_rxe` of a kernel does.
struct Rxe {
    /// As the table writes it: "6.1".
    kernel: String,
    reports: BTreeMap<String, Report>,
}

impl Rxe {
    /// Runs every program in a guest with the kernel of a Debian package, or by default the usual kernel of guests.
    fn run(package: Option<&str>) -> Result<Self, Skip> {
        let programs = compiled()?;
        let world = World::one_host_with_tap(1500)?;
        let guest = match package {
            Some(package) => Guest::start_kernel(&world, 1500, package)?,
            None => Guest::start(&world, 1500)?,
        };
        let kernel = guest.kernel();
        if !KERNELS.contains(&kernel.as_str()) {
            return Err(Skip(format!("rxe-differs.tsv isn't about Linux {kernel}")));
        }
        let (mut reports, mut unfinished) = (BTreeMap::new(), Vec::new());
        for (name, path) in programs {
            let outcome = guest.start_script(&format!("{} -d rxe0 -g 1", path)).wait(LIMIT);
            eprintln!("{name}:\n{}", outcome.stdout);
            match Report::read(&name, &outcome) {
                Ok(report) => drop(reports.insert(name, report)),
                Err(why) => unfinished.push(why),
            }
        }
        assert!(unfinished.is_empty(), "{unfinished:#?}");
        Ok(Self { kernel, reports })
    }

    /// The checks that fail are those that the table lists for this kernel.
    fn expect_listed_differences(&self) {
        let kernel = &self.kernel;
        let listed = |row: &Difference| row.kernels.split(' ').any(|listed| listed == kernel);
        let table: BTreeSet<&str> = differences().filter(listed).map(|row| row.check).collect();
        let found: BTreeSet<&str> = self.reports.values().flat_map(Report::failed).collect();
        let new: Vec<_> = found.difference(&table).collect();
        let gone: Vec<_> = table.difference(&found).collect();
        assert!(
            new.is_empty() && gone.is_empty(),
            "Linux {kernel} differs, and rxe-differs.tsv doesn't list it: {new:#?}\n\
             it doesn't differ, and rxe-differs.tsv lists it: {gone:#?}"
        );
    }
}

/// The suite proves itself: an adapter that isn't ours passes it too, but for what is known.
#[test]
#[ignore = "every page on an emulated kernel takes three minutes; the guest's soak and the page's command run it"]
fn rxe_differs_from_the_man_pages_where_the_table_says_so() {
    let rxe = require!(Rxe::run(None));
    rxe.expect_listed_differences();
    if std::env::var_os("FERROCE_WRITE_PAGES").is_some() {
        let newer = require!(Rxe::run(Some(NEWER)));
        newer.expect_listed_differences();
        let page = page(&require!(on_ferroce(How::Privileged)), &[rxe, newer]);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/CONFORMANCE.md");
        std::fs::write(path, page).expect("the page can be written");
    }
}

#[test]
#[ignore = "a second kernel takes a minute more"]
fn newer_rxe_differs_from_the_man_pages_where_the_table_says_so() {
    require!(Rxe::run(Some(NEWER))).expect_listed_differences();
}

/// A row of the table.
struct Difference {
    check: &'static str,
    /// Those of `KERNELS` that have it, with a space between them.
    kernels: &'static str,
    does: &'static str,
    why: &'static str,
}

/// The rows of the table.
fn differences() -> impl Iterator<Item = Difference> {
    DIFFERENCES.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let fields: Result<[&str; 4], _> = fields.try_into();
        let [check, kernels, does, why] =
            fields.unwrap_or_else(|_| panic!("rxe-differs.tsv: not four fields: {line}"));
        assert!(
            kernels.split(' ').all(|kernel| KERNELS.contains(&kernel)),
            "rxe-differs.tsv: not a kernel it is about: {line}"
        );
        Difference { check, kernels, does, why }
    })
}

fn page(ours: &BTreeMap<String, Report>, kernels: &[Rxe]) -> String {
    let mut page = String::from(
        "# Conformance\n\n\
         `tests/conformance` holds plain C programs that check what the man pages of libibverbs and librdmacm promise, with data that really\n\
         moves. They run on any device (`PROGRAM -d DEVICE -g GIDINDEX`, output like TAP). `cargo xtask test conformance` runs them on Ferroce,\n\
         by default and with `FERROCE_FABRIC=udp`, where no check may fail, and on the kernel's `rdma_rxe` and `rdma_cm` in a guest, where those\n\
         fail that are listed below for its version. The two sides of `cm_sides` run on two hosts, too. This page is written by `cargo xtask conformance`. [MATRIX.md](MATRIX.md) lists the program that checks each function.\n\
         *skipped* counts once for the remaining checks of a program that needs what the device doesn't have.\n\n\
         | program | checks | Ferroce: passed | skipped |",
    );
    for Rxe { kernel, .. } in kernels {
        write!(page, " rdma_rxe {kernel}: passed | differs | skipped |").expect("writing to a string");
    }
    writeln!(page, "\n{}|", "|---".repeat(4 + 3 * kernels.len())).expect("writing to a string");
    let mut sums = vec![0; 3 + 3 * kernels.len()];
    for (name, report) in ours {
        let [passed, _, skipped] = report.counts();
        let theirs = kernels.iter().flat_map(|rxe| rxe.reports[name].counts());
        let row: Vec<_> = [report.0.len(), passed, skipped].into_iter().chain(theirs).collect();
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
        "\n## Where the kernel differs\n\nSeen on Debian's kernels of the versions named. The specification wins.\n\n\
         | check | Linux | what the kernel does | why the check expects otherwise |\n|---|---|---|---|\n",
    );
    for Difference { check, kernels, does, why } in differences() {
        writeln!(page, "| {check} | {} | {does} | {why} |", kernels.replace(' ', ", "))
            .expect("writing to a string");
    }
    page
}

fn cells(row: &[usize]) -> String {
    row.iter().map(|count| format!(" {count} |")).collect()
}
