//! `cargo xtask soak`: repeats tests for longer, with random moments and faults.

use crate::{apt, dist};
use ferroce_tests::random::Random;
use ferroce_tests::{Artifacts, Fabric, Pair, Skip, World};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, io};

/// The longest that one round may take.
const ROUND_LIMIT: Duration = Duration::from_secs(120);

/// Runs rounds until the time is over; each has its traffic, MTU, faults and place drawn from its seed.
///
/// # Errors
/// The build fails, namespaces can't be made, or a round fails; the error names the round's seed.
pub fn soak(minutes: u64, seed: u64) -> io::Result<()> {
    dist::dist("release")?;
    let refused = |skip: Skip| io::Error::other(skip.0);
    let program = Artifacts::get().c_program("traffic/stream").map_err(refused)?;
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let mut round = seed;
    while Instant::now() < end {
        let mut random = Random(round);
        let mtu = *random.pick(&[1500, 9000]);
        let one_host = *random.pick(&[true, false]);
        let world = if one_host { World::one_host(mtu) } else { World::two_hosts(mtu) }.map_err(refused)?;
        let fabric = *random.pick(&[Fabric::Any, Fabric::Udp]);
        let fault = random.pick(&["", "drop=1%", "drop=3%,dup=2%,reorder=2%", "corrupt=1%,delay=100us"]);
        let size = random.pick(&["8", "300", "5000", "70000"]).to_string();
        let depth = random.pick(&["1", "4", "16", "64"]).to_string();
        let events = *random.pick(&["", "-e"]);
        let mut words = vec![&*program, "-n", "2000", "-s", &size, "-d", &depth];
        words.extend(Some(events).filter(|word| !word.is_empty()));
        let fault = if fault.is_empty() { String::new() } else { format!("{fault},seed={round}") };
        let options: &[&str] = if fault.is_empty() { &[] } else { &["--fault", &fault] };
        let place = if one_host { "one host" } else { "two hosts" };
        println!("seed {round}: {place}, MTU {mtu}, {fabric:?} fabric, {} [{fault}]", words[1..].join(" "));
        let outcome = Pair::new(&world, fabric).options(options).limit(ROUND_LIMIT).run(&words);
        if !(outcome.client.success() && outcome.server.success()) {
            return Err(io::Error::other(format!("the round of seed {round} failed:\n{outcome}")));
        }
        world.first().expect_no_traces();
        round += 1;
    }
    println!("{} rounds passed", round - seed);
    Ok(())
}

/// Runs rounds of random calls of verbs by threads of two processes, each with its own seed and fabric, and with `given` threads or a number
/// of its own.
///
/// # Errors
/// The build fails, namespaces can't be made, or a round fails; the error names the round's seed.
pub fn api(minutes: u64, seed: u64, given: Option<u32>) -> io::Result<()> {
    dist::dist("release")?;
    let refused = |skip: Skip| io::Error::other(skip.0);
    let program = Artifacts::get().c_program("random/calls").map_err(refused)?;
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let mut round = seed;
    while Instant::now() < end {
        let mut random = Random(round);
        let threads = *random.pick(&[1, 2, 4, 8]);
        let threads = given.unwrap_or(threads).to_string();
        let settings = random.pick(&[Fabric::Any, Fabric::Udp]).settings();
        let world = World::one_host(*random.pick(&[1500, 9000])).map_err(refused)?;
        let number = round.to_string();
        let words = [&*program, "-S", &number, "-t", "10", "-T", &threads];
        let outcome = world.first().start_ferroce(&[], &words, settings).wait(ROUND_LIMIT);
        println!("seed {round}, {threads} threads {settings:?}: {}", outcome.stdout.replace('\n', "; "));
        if !outcome.success() {
            return Err(io::Error::other(format!("the round of seed {round} failed:\n{outcome}")));
        }
        world.first().expect_no_traces();
        round += 1;
    }
    println!("{} rounds passed", round - seed);
    Ok(())
}

/// Runs the tests of one program of `tests/tests`, one after the other, with those that take minutes.
///
/// # Errors
/// The build or a test fails.
pub fn long(tests: &str) -> io::Result<()> {
    apt::install_for_tests();
    dist::dist("release")?;
    let cargo = |words: &[&str]| {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let status =
            command.current_dir(dist::workspace()).args(["test", "--release"]).args(words).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("cargo test: {status}"))) }
    };
    // Those on the guest's kernel run the adapter's own tests, which must be built.
    cargo(&[
        "--no-run",
        "--package",
        "ferroce-tests",
        "--package",
        "ferroce-netdev",
        "--package",
        "ferroce-nic",
    ])?;
    cargo(&["--package", "ferroce-tests", "--test", tests, "--", "--include-ignored", "--test-threads=1"])
}
