//! The same random programs of sockets on TCP of the kernel and on rsockets (`c/sockets/differential.c`): what they observe must be equal.
//!
//! `FERROCE_DIFFERENTIAL_SEEDS=10000 cargo nextest run -p ferroce-tests -E 'binary(differential)'` runs as many programs in all.

use ferroce_tests::{Artifacts, Fabric, Host, Skip, World, require};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How many programs all tests of this suite run together.
const SEEDS: u64 = 200;
/// The tests among which they are divided.
const SHARES: u64 = 4;
/// Seeds that one process runs: a program that ends or hangs takes the others of its process with it.
const BATCH: u64 = 10;
/// Batches of a share that run at the same time. Programs wait for effects to arrive, and use a twentieth of a processor each.
const AT_ONCE: usize = 5;
/// What a seed takes at most, with its waits: several times what a busy machine needs.
const EACH: Duration = Duration::from_secs(8);

/// Parts of the programs that rsockets do otherwise than TCP, each with the reason. They are left out of the other tests.
const DIFFERENCES: &[(&str, &str)] = &[];

fn seeds() -> u64 {
    let wanted = std::env::var("FERROCE_DIFFERENTIAL_SEEDS");
    wanted.map_or(SEEDS, |count| count.parse().expect("FERROCE_DIFFERENTIAL_SEEDS is a number"))
}

/// The words of a run of the program.
fn words(program: &str, options: &[&str], expected: Option<&str>, first: u64, last: u64) -> Vec<String> {
    let mut words = vec![program.to_owned()];
    words.extend(options.iter().map(|word| (*word).to_owned()));
    words.extend(expected.into_iter().flat_map(|path| ["-e".to_owned(), path.to_owned()]));
    words.extend([first.to_string(), last.to_string()]);
    words
}

/// The first seed and line that differ.
fn difference(tcp: &str, rsockets: &str) -> Option<String> {
    let mut seed = "";
    let (mut ours, mut before) = (rsockets.lines(), Vec::new());
    for line in tcp.lines() {
        let own = ours.next().unwrap_or("(no more)");
        if line.starts_with("seed ") {
            seed = line;
            before.clear();
        }
        if line != own {
            return Some(format!("{seed}\n  {}\nTCP:      {line}\nrsockets: {own}", before.join("\n  ")));
        }
        before.push(line);
    }
    ours.next().map(|line| format!("after {seed} more lines: {line}"))
}

/// How often the reference may be taken anew: on a busy machine, timing decides a step of some of the programs.
const REFERENCES: u32 = 5;

/// Runs the program on TCP until two runs in a row agree: what timing decides isn't a reference.
fn reference(host: &Host, words: &dyn Fn(Option<&str>) -> Vec<String>, limit: Duration) -> String {
    let run = |expected: Option<&str>| host.start(&words(expected), &[]).wait(limit);
    let mut differences = Vec::new();
    for _ in 0..REFERENCES {
        let first = run(None);
        first.expect_success().expect_quiet();
        std::fs::write(host.path("/tmp/tcp"), &first.stdout).expect("the host's /tmp");
        let second = run(Some("/tmp/tcp"));
        match difference(&first.stdout, &second.stdout) {
            Some(difference) => differences.push(difference),
            None => {
                second.expect_success().expect_quiet();
                return first.stdout;
            }
        }
    }
    panic!("TCP differs from TCP {REFERENCES} times, so the program is wrong:\n{}", differences.join("\n"));
}

/// What all batches of a share have in common.
struct Share<'a> {
    program: &'a str,
    processes: &'a str,
    fabric: Fabric,
    options: &'a [&'a str],
}

impl Share<'_> {
    /// Runs the seeds `from` to `to`.
    fn run(&self, from: u64, to: u64) -> Result<(), Skip> {
        let limit = EACH * u32::try_from(to - from + 10).expect("few");
        let world = World::one_host(1500)?;
        world.may_last((2 + 2 * REFERENCES) * limit);
        let host = world.first();
        let options = [&["-p", self.processes], self.options].concat();
        let line = |expected: Option<&str>| words(self.program, &options, expected, from, to);
        let tcp = reference(host, &line, limit);
        let address = host.ipv4();
        let settings = match self.fabric {
            Fabric::Udp => [self.fabric.settings(), &[("ADDRESS", &*address)]].concat(),
            _ => self.fabric.settings().to_vec(),
        };
        let outcome = host.start_ferroce(&["--sockets"], &line(Some("/tmp/tcp")), &settings).wait(limit);
        if let Some(difference) = difference(&tcp, &outcome.stdout) {
            panic!("{}\n{difference}\n{outcome}", line(None)[1..].join(" "));
        }
        outcome.expect_success().expect_quiet();
        std::fs::remove_file(host.path("/tmp/tcp")).expect("the host's /tmp");
        host.expect_no_traces();
        Ok(())
    }
}

/// Runs a share of the seeds, several batches at a time.
fn behaves_as_tcp(share: u64, processes: &str, fabric: Fabric, options: &[&str]) {
    let program = require!(Artifacts::get().c_program("sockets/differential"));
    let each = seeds().div_ceil(SHARES);
    let last = (share + 1) * each;
    let share = Share { program: &program, processes, fabric, options };
    let next = AtomicU64::new(last - each + 1);
    let batches = || {
        loop {
            let from = next.fetch_add(BATCH, Relaxed);
            if from > last {
                return Ok(());
            }
            let run = share.run(from, last.min(from + BATCH - 1));
            // A batch that is skipped ends the others after theirs.
            run.inspect_err(|_| next.store(u64::MAX / 2, Relaxed))?;
        }
    };
    let outcome = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(batches)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    require!(outcome);
}

/// What is left out, as the program has it.
fn without() -> String {
    DIFFERENCES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(",")
}

#[test]
fn one_process_behaves_as_on_tcp() {
    behaves_as_tcp(0, "1", Fabric::Any, &["-w", &without()]);
}

#[test]
fn two_processes_behave_as_on_tcp() {
    behaves_as_tcp(1, "2", Fabric::Any, &["-w", &without()]);
}

#[test]
fn one_process_over_udp_behaves_as_on_tcp() {
    behaves_as_tcp(2, "1", Fabric::Udp, &["-w", &without()]);
}

#[test]
fn two_processes_over_udp_behave_as_on_tcp() {
    behaves_as_tcp(3, "2", Fabric::Udp, &["-w", &without()]);
}

#[test]
fn a_difference_names_its_seed_and_its_line() {
    let tcp = "seed 1\n0 a\nseed 2\n0 a\n1 b\nend\n";
    assert_eq!(difference(tcp, tcp), None);
    let found = difference(tcp, "seed 1\n0 a\nseed 2\n0 a\n1 c\nend\n").expect("a difference");
    assert!(found.starts_with("seed 2") && found.ends_with("TCP:      1 b\nrsockets: 1 c"), "{found}");
    assert!(difference(tcp, "seed 1\n0 a\n").is_some_and(|found| found.ends_with("(no more)")));
}
