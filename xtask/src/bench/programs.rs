//! The programs that are measured: starting them on the hosts of a world, and reading their figures.

use crate::dist;
use ferroce_tests::{Artifacts, Fabric, Host, Outcome, Process, SERVER, Sides, Skip, World, tool};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The longest that one program may take.
pub const LIMIT: Duration = Duration::from_secs(60);
/// The longest that one round of everything may take.
pub const ROUND_LIMIT: Duration = Duration::from_secs(1200);
/// The TCP or UDP port of what isn't perftest.
pub const PORT: u16 = 5201;
/// That of perftest.
pub const PERFTEST_PORT: u16 = 18_515;
/// That of `tests/c/bench/writers.c`.
const WRITERS_PORT: u16 = 18_516;
/// Columns of perftest's lines: the mean bandwidth, million messages a second, and a latency's median.
pub const GBITS: usize = 3;
const MESSAGES: usize = 4;
pub const TYPICAL: usize = 4;
/// Bytes of a file that is a buffer.
const FILE: u64 = 64 << 20;

/// The hosts of a benchmark, and what runs there.
pub struct Programs {
    /// Servers run on its last host, clients on its first.
    pub world: World,
    /// Seconds of each bandwidth measurement.
    pub seconds: u64,
    /// Whether client and server have a core each, and no other.
    pinned: bool,
    own: PathBuf,
}

/// A side of a measurement.
#[derive(Clone, Copy)]
pub enum Role {
    Client,
    Server,
}

impl Programs {
    /// Builds the product, looks for `tools` (program and Debian package) and stages this program itself.
    ///
    /// # Errors
    /// The build fails, a tool is missing, or this machine lets us make no hosts.
    pub fn new(
        world: impl FnOnce() -> Result<World, Skip>,
        seconds: u64,
        tools: &[(&str, &str)],
    ) -> io::Result<Self> {
        let missing = |skip: Skip| io::Error::other(skip.0);
        dist::dist("release")?;
        for (program, package) in tools {
            tool(program, package).map_err(missing)?;
        }
        let own = Artifacts::get().stage_program(&std::env::current_exe()?)?;
        Ok(Self { world: world().map_err(missing)?, seconds, pinned: false, own })
    }

    /// Has clients and servers run on a core each from now on.
    pub fn pin(&mut self) {
        self.pinned = true;
    }

    /// The words that start a side's program on the core of that side.
    pub fn on_its_core<'a>(&self, role: Role, words: &[&'a str]) -> Vec<&'a str> {
        let core = match role {
            Role::Client => "0",
            Role::Server => "1",
        };
        let before: &[&str] = if self.pinned { &["taskset", "-c", core] } else { &[] };
        [before, words].concat()
    }

    /// A round of everything begins.
    pub fn begin_round(&self, round: usize, rounds: usize) {
        println!("round {round} of {rounds}");
        self.world.may_last(ROUND_LIMIT);
    }

    /// Gbit/s of iperf3 with one connection and writes of `block` bytes, as received.
    pub fn tcp(&self, block: u32) -> io::Result<f64> {
        let server = ["iperf3", "-s", "-1", "-p", &PORT.to_string()];
        let mut server = self.world.last().start(&server, &[]);
        self.world.last().wait_for_listener(PORT, &mut server, LIMIT);
        let (address, port) = (self.world.last().ipv4(), PORT.to_string());
        let (seconds, block) = (self.seconds.to_string(), block.to_string());
        let words = ["iperf3", "-c", &address, "-p", &port, "-t", &seconds, "-l", &block, "-J"];
        let client = ended(self.world.first().start(&words, &[]).wait(LIMIT))?;
        server.wait(LIMIT);
        let report: serde_json::Value = serde_json::from_str(&client.stdout)?;
        report["end"]["sum_received"]["bits_per_second"]
            .as_f64()
            .map(|bits| bits / 1e9)
            .ok_or_else(|| not_understood(&client))
    }

    /// Gbit/s of one of perftest's bandwidth tools.
    pub fn bandwidth(&self, tool: &str, size: u32) -> io::Result<f64> {
        column(&self.stream(&[], tool, &[], size)?, size, GBITS)
    }

    /// Gbit/s of one of perftest's bandwidth tools on a network that damages packets once each way: at the client.
    pub fn bandwidth_with_fault(&self, tool: &str, fault: &str, size: u32) -> io::Result<f64> {
        let fault = format!("FERROCE_FAULT={fault}");
        column(&self.stream(&["env", &fault], tool, &[], size)?, size, GBITS)
    }

    /// Million messages a second of one of perftest's bandwidth tools.
    pub fn messages(&self, tool: &str, options: &[&str], size: u32) -> io::Result<f64> {
        column(&self.stream(&[], tool, options, size)?, size, MESSAGES)
    }

    /// Runs a bandwidth tool on both sides; `before` starts the client.
    fn stream(&self, before: &[&str], tool: &str, options: &[&str], size: u32) -> io::Result<Outcome> {
        let (size_word, seconds) = (size.to_string(), self.seconds.to_string());
        let words = [&[tool, "-F", "-s", &size_word, "-D", &seconds, "--report_gbits"], options].concat();
        self.sides(&words, &[before, &words, &[SERVER]].concat())
    }

    /// Half a round trip of one of perftest's latency tools, in µs (its `t_typical`, a median).
    pub fn latency(&self, tool: &str, size: u32, iterations: usize) -> io::Result<f64> {
        self.latency_of(tool, &[], size, iterations)
    }

    /// As [`Programs::latency`], with options.
    pub fn latency_of(&self, tool: &str, options: &[&str], size: u32, iterations: usize) -> io::Result<f64> {
        let (size_word, iterations) = (size.to_string(), iterations.to_string());
        let words = [&[tool, "-F", "-s", &size_word, "-n", &iterations], options].concat();
        column(&self.sides(&words, &[&words[..], &[SERVER]].concat())?, size, TYPICAL)
    }

    /// As [`Programs::latency`], of memory that processes can share.
    pub fn latency_of_files(&self, tool: &str, size: u32, iterations: usize) -> io::Result<f64> {
        let (size_word, iterations) = (size.to_string(), iterations.to_string());
        column(&self.on_files(&[tool, "-F", "-s", &size_word, "-n", &iterations])?, size, TYPICAL)
    }

    /// As [`Programs::bandwidth`], of memory that processes can share.
    pub fn bandwidth_of_files(&self, tool: &str, size: u32) -> io::Result<f64> {
        let (size_word, seconds) = (size.to_string(), self.seconds.to_string());
        column(
            &self.on_files(&[tool, "-F", "-s", &size_word, "-D", &seconds, "--report_gbits"])?,
            size,
            GBITS,
        )
    }

    /// Gbit/s of threads of one client that write to one server (`tests/c/bench/writers.c`), on any core: two threads have both.
    pub fn threads(&self, threads: u32, size: u32) -> io::Result<f64> {
        let program = Artifacts::get().c_program("bench/writers").map_err(|skip| io::Error::other(skip.0))?;
        let (threads, size, seconds) = (threads.to_string(), size.to_string(), self.seconds.to_string());
        let words = [&*program, &threads, &size, &seconds];
        let client = run_sides(&self.world, &words, &[&words[..], &[SERVER]].concat(), WRITERS_PORT)?;
        Ok(number_in_line(&client, "wrote", 1)? * 8.0 / number_in_line(&client, "wrote", 4)? / 1e9)
    }

    /// Runs a tool of perftest whose buffers are files of tmpfs, one for each side.
    fn on_files(&self, words: &[&str]) -> io::Result<Outcome> {
        let host = self.world.last();
        // In the host's own tmpfs, which ends with it.
        let paths = ["/dev/shm/server", "/dev/shm/client"];
        let make = ["truncate", "-s", &FILE.to_string(), paths[0], paths[1]];
        ended(host.start(&make, &[]).wait(LIMIT))?;
        let options = paths.map(|path| format!("--mmap={path}"));
        let side = |option: usize, rest: &[&'static str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            [words, vec![options[option].clone()], rest.iter().map(ToString::to_string).collect()].concat()
        };
        let (server, client) = (side(0, &[]), side(1, &[SERVER]));
        self.sides(&words_of(&server), &words_of(&client))
    }

    fn sides(&self, server: &[&str], client: &[&str]) -> io::Result<Outcome> {
        let (server, client) =
            (self.on_its_core(Role::Server, server), self.on_its_core(Role::Client, client));
        run_sides(&self.world, &server, &client, PERFTEST_PORT)
    }

    /// Starts this program on a host, with the words behind `bench`.
    pub fn own(&self, host: &Host, words: &[&str]) -> Process {
        let own = self.own.display().to_string();
        let line: Vec<&str> = [own.as_str(), "bench"].iter().chain(words).copied().collect();
        host.start(&line, &[])
    }
}

/// The client's outcome, if both sides end well; the server listens at a TCP port.
fn run_sides(world: &World, server: &[&str], client: &[&str], port: u16) -> io::Result<Outcome> {
    let sides = Sides { server, client, port, options: &[], settings: &[], limit: LIMIT };
    let outcome = sides.run(world, Fabric::Any);
    if outcome.client.success() && outcome.server.success() {
        Ok(outcome.client)
    } else {
        Err(io::Error::other(outcome.to_string()))
    }
}

fn words_of(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// An outcome, if it is a good one.
pub fn ended(outcome: Outcome) -> io::Result<Outcome> {
    if outcome.success() { Ok(outcome) } else { Err(io::Error::other(outcome.to_string())) }
}

/// The error for a program that succeeded without the expected output.
pub fn not_understood(outcome: &Outcome) -> io::Error {
    io::Error::other(format!("output that isn't understood:\n{outcome}"))
}

/// The number at a place among the words of the line that begins with `first`.
pub fn number_in_line(outcome: &Outcome, first: &str, index: usize) -> io::Result<f64> {
    let words = outcome.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut lines = words.filter(|words| words.first() == Some(&first));
    let number = lines.find_map(|words| words.get(index)?.parse().ok());
    number.ok_or_else(|| not_understood(outcome))
}

/// A column of perftest's line for messages of `size` bytes.
pub fn column(outcome: &Outcome, size: u32, index: usize) -> io::Result<f64> {
    number_in_line(outcome, &size.to_string(), index)
}
