//! Instructions, allocations and system calls of 8-byte operations, held to the committed figures.
//!
//! In here: running `tests/c/bench/counted.c` under callgrind on each fabric, and `tests/counted` (the Rust API, built as a user's crate
//! is). What callgrind writes is read in `reading`, what is
//! compared with what and how strictly is in `budget`. Callgrind counts what a program executes, not what a processor does, so
//! neither the machine's load nor its counters matter. It runs the library as it is: the signals' guard, `process_vm_readv` and
//! segmented sends work. Version 3.19 doesn't know `pidfd_open`; the library does without.

mod budget;
mod reading;

use super::programs::ended;
use super::report;
use crate::{apt, dist};
use budget::{Costs, Figures, Report, Tools};
use ferroce_tests::{Artifacts, Host, Skip, World, tool};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, io};

/// Where the committed figures are, from the workspace on.
const COMMITTED: &str = "docs/instructions.json";
const FABRICS: [Fabric; 11] = [
    Fabric { name: "local", program: Program::C, options: &[], settings: &[] },
    Fabric { name: "shm", program: Program::C, options: &["-2"], settings: &[] },
    Fabric { name: "udp", program: Program::C, options: &["-2"], settings: &[("FERROCE_FABRIC", "udp")] },
    Fabric {
        name: "shm with --check",
        program: Program::C,
        options: &["-2"],
        settings: &[("FERROCE_CHECK", "on")],
    },
    Fabric { name: "Rust, local", program: Program::Rust, options: &["native"], settings: &[] },
    Fabric { name: "Rust, shm", program: Program::Rust, options: &["-2", "native"], settings: &[] },
    Fabric {
        name: "Rust with LTO, local",
        program: Program::RustWithLto,
        options: &["native"],
        settings: &[],
    },
    Fabric {
        name: "Rust with LTO, shm",
        program: Program::RustWithLto,
        options: &["-2", "native"],
        settings: &[],
    },
    Fabric { name: "Rust, session, local", program: Program::Rust, options: &["session"], settings: &[] },
    Fabric { name: "Rust, session, shm", program: Program::Rust, options: &["-2", "session"], settings: &[] },
    Fabric { name: "Rust, system, shm", program: Program::Rust, options: &["-2", "system"], settings: &[] },
];
/// A figure is the median of so many batches: a packet that the kernel delivers late takes polls more in one of them.
const BATCHES: &str = "3";
/// The rounds of a batch, a multiple of 20 (`tests/c/bench/counted.c`).
const ROUNDS: u32 = 20;
/// The longest that a run on one fabric may take.
const LIMIT: Duration = Duration::from_secs(160);
/// The runs that new figures are taken from, and the most of a comparison: where two processes have met while the machine was busy,
/// each may have made a link to the other, and all polls look at both.
const RUNS: usize = 3;
/// Measurements of what seems to have grown, at most. A wait for an event takes one system call more in a third of the runs; what has grown in
/// fact has grown in all of them.
const ATTEMPTS: usize = 8;
/// By how much of the smallest run the runs may differ for new figures to be the median.
const MOST_SPREAD: f64 = 0.01;

/// Compares this build with the committed figures, or with `write` replaces these.
///
/// # Errors
/// A figure has grown or is missing, or a program that is being measured fails. If the machine lacks a tool, or the build has other
/// settings, a line reports that, nothing is compared, and there is no error.
pub fn instructions(write: bool) -> io::Result<()> {
    apt::install_for_tests();
    if let Some(setting) = foreign_setting(std::env::vars_os()) {
        println!("skipped: {setting} is set, and this build isn't what users get");
        return Ok(());
    }
    dist::dist("release")?;
    let bench = match Bench::new(rust_program("counted", &[])?, rust_program("counted-lto", &LTO)?) {
        Ok(bench) => bench,
        Err(Skip(why)) => {
            println!("skipped: {why}");
            return Ok(());
        }
    };
    let tools = Tools::this()?;
    let path = dist::workspace().join(COMMITTED);
    if write {
        let runs = (0..RUNS).map(|_| bench.run()).collect::<io::Result<Vec<_>>>()?;
        let figures = budget::median(&runs, MOST_SPREAD).map_err(io::Error::other)?;
        print(&figures);
        fs::write(&path, serde_json::to_string_pretty(&Report { tools, figures })? + "\n")?;
        println!("\nwritten to {}", path.display());
        return Ok(());
    }
    let committed: Report = serde_json::from_str(&fs::read_to_string(&path)?)?;
    if committed.tools.machine != tools.machine {
        println!(
            "skipped: the committed figures are of {}, this is {}",
            committed.tools.machine, tools.machine
        );
        return Ok(());
    }
    let mut measured = Report { tools, figures: bench.run()? };
    let mut found = budget::compare(&committed, &measured);
    for _ in 1..ATTEMPTS {
        if found.failures.is_empty() {
            break;
        }
        println!("measuring again what has grown: {}", found.failures.join("; "));
        budget::keep_smaller(&mut measured.figures, &bench.run()?);
        found = budget::compare(&committed, &measured);
    }
    print(&measured.figures);
    report::save("instructions", &measured)?;
    found.remarks.iter().for_each(|remark| println!("{remark}"));
    if found.failures.is_empty() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{}\nWhere: callgrind_annotate {}/FABRIC.OPERATION.SIDE, with this change and without.\n\
         If it must be so: `cargo xtask bench instructions --write`, and commit {COMMITTED} with the change that causes it.",
        found.failures.join("\n"),
        dumps().display()
    )))
}

/// A variable that makes cargo build another release than that of the workspace's manifest.
fn foreign_setting(variables: impl Iterator<Item = (OsString, OsString)>) -> Option<String> {
    let mut names = variables.map(|(name, _)| name.to_string_lossy().into_owned());
    names.find(|name| name.starts_with("CARGO_PROFILE_RELEASE_") || name.ends_with("RUSTFLAGS"))
}

fn print(figures: &Figures) {
    println!("\n8 bytes; both sides together\n\n| | | instructions | allocator calls | system calls |");
    println!("|---|---|---|---|---|");
    for (fabric, operations) in figures {
        for (operation, Costs { instructions, allocations, system_calls, .. }) in operations {
            println!("| {fabric} | {operation} | {instructions:.0} | {allocations:.2} | {system_calls:.2} |");
        }
    }
}

/// Where the last dumps are kept, for callgrind_annotate.
fn dumps() -> PathBuf {
    dist::target().join("bench/instructions")
}

/// A fabric, with the checker or without, and how `counted` comes to use it: its options and its environment.
struct Fabric {
    name: &'static str,
    program: Program,
    options: &'static [&'static str],
    settings: &'static [(&'static str, &'static str)],
}

/// What the workspace's manifest sets for the libraries, for another workspace's release profile.
const LTO: [(&str, &str); 2] =
    [("CARGO_PROFILE_RELEASE_LTO", "fat"), ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")];

/// Builds `tests/counted` with cargo's default profile but for these settings, of the packages that the workspace is built of.
fn rust_program(folder: &str, settings: &[(&str, &str)]) -> io::Result<String> {
    let (directory, target) = (dist::workspace().join("tests/counted"), dist::target().join(folder));
    fs::copy(dist::workspace().join("Cargo.lock"), directory.join("Cargo.lock"))?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--offline", "--target-dir"])
        .arg(&target)
        .envs(settings.iter().copied())
        .current_dir(directory)
        .status()?;
    if !built.success() {
        return Err(io::Error::other("tests/counted doesn't build"));
    }
    Ok(target.join("release/counted").display().to_string())
}

/// What does the operations.
#[derive(Clone, Copy)]
enum Program {
    /// `tests/c/bench/counted.c`, by the C interface.
    C,
    /// `tests/counted`, by the Rust API, as a user's crate is built.
    Rust,
    /// The same, built as the libraries of C are.
    RustWithLto,
}

/// The programs and their host.
struct Bench {
    world: World,
    c: String,
    rust: String,
    rust_with_lto: String,
}

impl Bench {
    fn new(rust: String, rust_with_lto: String) -> Result<Self, Skip> {
        tool("valgrind", "valgrind")?;
        if !Path::new("/usr/include/valgrind/callgrind.h").exists() {
            return Err(Skip("valgrind's headers are not installed (Debian: valgrind)".into()));
        }
        let c = Artifacts::get().c_program("bench/counted")?;
        Ok(Self { world: World::one_host(1500)?, c, rust, rust_with_lto })
    }

    fn run(&self) -> io::Result<Figures> {
        FABRICS.iter().map(|fabric| Ok((fabric.name.to_owned(), self.costs(fabric)?))).collect()
    }

    fn costs(&self, fabric: &Fabric) -> io::Result<BTreeMap<String, Costs>> {
        let host = self.world.first();
        let program = match fabric.program {
            Program::C => &self.c,
            Program::Rust => &self.rust,
            Program::RustWithLto => &self.rust_with_lto,
        };
        let rounds = ROUNDS.to_string();
        let mut words = vec![
            "valgrind",
            "-q",
            "--tool=callgrind",
            "--collect-atstart=no",
            "--trace-syscalls=yes",
            "--callgrind-out-file=/tmp/counted/%p.dump",
            "--log-file=/tmp/counted/%p.log",
            program,
        ];
        words.extend(fabric.options);
        words.extend([BATCHES, &rounds]);
        // Not through `ferroce run`: only the library of verbs is to be there.
        let libraries = Artifacts::get().library_dir().display().to_string();
        let mut environment = vec![("LD_LIBRARY_PATH", libraries.as_str())];
        environment.extend(fabric.settings);
        let written = Written::new(host);
        ended(host.start(&words, &environment).wait(LIMIT))?;
        written.keep(fabric.name)?;
        let sides = written.sides()?;
        reading::costs(&sides, ROUNDS).map_err(io::Error::other)
    }
}

/// The directory to which the program's processes write, on its host.
struct Written<'a> {
    host: &'a Host,
    directory: PathBuf,
}

impl<'a> Written<'a> {
    fn new(host: &'a Host) -> Self {
        host.admin("rm -rf /tmp/counted && mkdir -m 777 /tmp/counted");
        Self { host, directory: host.path("/tmp/counted") }
    }

    /// The names of the logs, without their ending: the processes, in order.
    fn processes(&self) -> io::Result<Vec<String>> {
        let mut processes = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            if let Some(process) = entry?.file_name().to_string_lossy().strip_suffix(".log") {
                processes.push(process.to_owned());
            }
        }
        processes.sort_by_key(|process| (process.len(), process.clone()));
        Ok(processes)
    }

    /// What each process has written: its log and its dumps, in order.
    fn sides(&self) -> io::Result<Vec<reading::Side>> {
        let read = |process: String| {
            let log = String::from_utf8_lossy(&fs::read(self.directory.join(format!("{process}.log")))?)
                .into_owned();
            let mut dumps = Vec::new();
            // The one without a number is of the program's end.
            while let Ok(dump) =
                fs::read_to_string(self.directory.join(format!("{process}.dump.{}", dumps.len() + 1)))
            {
                dumps.push(dump);
            }
            Ok(reading::Side { log, dumps })
        };
        self.processes()?.into_iter().map(read).collect()
    }

    /// Keeps a dump of each operation for callgrind_annotate.
    fn keep(&self, fabric: &str) -> io::Result<()> {
        let kept = dumps();
        fs::create_dir_all(&kept)?;
        for (process, side) in self.sides()?.iter().enumerate() {
            for dump in &side.dumps {
                if let Some(operation) = reading::operation(dump) {
                    let name = format!("{fabric}.{}.{}", operation.replace(' ', "-"), process + 1);
                    fs::write(kept.join(name), dump)?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        self.host.admin("rm -rf /tmp/counted");
    }
}
