//! `cargo xtask compat`: runs real clients on one host and on two, and writes `docs/COMPATIBILITY.md`.
//!
//! In here: running the clients of the table and writing the page. Out of here: the table (`clients.rs`); fetching wheels (`wheels.rs`);
//! perftest's many options (`cargo xtask perftest`).

mod clients;
mod wheels;

use crate::{apt, dist};
use clients::{CLIENTS, Client, How};
use ferroce_tests::{
    Fabric, PairOutcome, SERVER, Sides, Skip, World, client_program, mpi_program, mpi_program_of, mpi_run,
    mpich_program, tool,
};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, io};

/// A client ends within this, also on a machine that does something else beside it.
const LIMIT: Duration = Duration::from_secs(60);
/// One that isn't expected to.
const SHORT_LIMIT: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Shm,
    Udp,
    TwoHosts,
}

impl Mode {
    const ALL: [Self; 3] = [Self::Shm, Self::Udp, Self::TwoHosts];

    fn title(self) -> &'static str {
        match self {
            Self::Shm => "one host: shm",
            Self::Udp => "one host: udp",
            Self::TwoHosts => "two hosts",
        }
    }

    fn world(self) -> Result<World, Skip> {
        if self == Self::TwoHosts { World::two_hosts(9000) } else { World::one_host(9000) }
    }

    fn fabric(self) -> Fabric {
        if self == Self::Udp { Fabric::Udp } else { Fabric::Any }
    }
}

enum Outcome {
    Passes,
    /// The output of both sides.
    Fails(String),
    /// A client without a peer has nothing to do there.
    NotMeant,
    /// Its wheels or its package can't be had here, for this reason.
    NotHere(String),
}

/// Runs the clients whose command contains `only` in all modes; writes the page when that was all of them. `quick`: only clients of the
/// distribution, each in one mode, where this machine has them.
///
/// What a failing client wrote lies in `compat/` of the target directory.
///
/// # Errors
/// The build fails, this machine lacks a client or namespaces, or a client fails that should pass.
pub fn compat(only: Option<&str>, quick: bool) -> io::Result<()> {
    apt::install_for_compat(quick);
    dist::dist("release")?;
    let logs = dist::target().join("compat");
    fs::create_dir_all(&logs)?;
    let mut rows = Vec::new();
    let mut failing = 0;
    let chosen = CLIENTS.iter().filter(|client| only.is_none_or(|part| client.command().contains(part)));
    for (n, client) in chosen.filter(|client| !quick || client.is_of_distribution()).enumerate() {
        let mut results = Vec::new();
        let meant: Vec<Mode> = Mode::ALL.into_iter().filter(|mode| client.is_meant_for(*mode)).collect();
        let modes = if quick { &[meant[n % meant.len()]][..] } else { &Mode::ALL };
        for &mode in modes {
            let outcome = match run(client, mode) {
                Ok(outcome) => outcome,
                Err(Skip(why)) if quick => {
                    println!("{}: skipped: {why}", client.command());
                    continue;
                }
                Err(Skip(why)) => return Err(io::Error::other(why)),
            };
            let result = match &outcome {
                Outcome::Passes => "pass".to_owned(),
                Outcome::NotMeant => String::new(),
                Outcome::NotHere(why) => format!("not run: {why}"),
                Outcome::Fails(said) => {
                    fs::write(logs.join(log_name(client, mode)), said)?;
                    failing += usize::from(client.not_yet.is_none());
                    client.not_yet.map_or("**fail**".into(), |why| format!("not yet: {why}"))
                }
            };
            if !result.is_empty() {
                println!("{}, {}: {result}", client.command(), mode.title());
            }
            results.push(result);
        }
        rows.push((client, results));
    }
    if only.is_none() && !quick {
        fs::write(dist::workspace().join("docs/COMPATIBILITY.md"), page(&rows))?;
    }
    match failing {
        0 => Ok(()),
        _ => Err(io::Error::other(format!("{failing} failed: see {}", logs.display()))),
    }
}

fn log_name(client: &Client, mode: Mode) -> String {
    let name = format!("{} {}", mode.title(), client.command());
    let mut name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    name.truncate(150);
    name
}

fn run(client: &Client, mode: Mode) -> Result<Outcome, Skip> {
    if !client.is_meant_for(mode) {
        return Ok(Outcome::NotMeant);
    }
    tool(client.program(), client.package)?;
    let limit = if client.not_yet.is_some() { SHORT_LIMIT } else { LIMIT };
    let said = |passes: bool, said: String| if passes { Outcome::Passes } else { Outcome::Fails(said) };
    let pair = |server: &[&str], words: &[&str], port, settings: &[(&str, &str)]| {
        let sides = Sides { server, client: words, port, options: client.options, settings, limit };
        let outcome = sides.run(&mode.world()?, mode.fabric());
        Ok(said(passes(&outcome), outcome.to_string()))
    };
    match client.how {
        How::Alone { words, says } => {
            let world = mode.world()?;
            let outcome = world.first().start_ferroce(client.options, words, client.settings).wait(limit);
            Ok(said(outcome.success() && outcome.stdout.contains(says), outcome.to_string()))
        }
        How::Sides { server, client: words, port } => pair(server, words, port, client.settings),
        How::Connects { server, client: words, space, port } => {
            let options = client.options;
            let (world, fabric) = (mode.world()?, mode.fabric());
            let settings: Vec<_> = fabric.settings().iter().chain(client.settings).copied().collect();
            let address = world.last().ipv4();
            let named = |words: &[&'static str]| -> Vec<String> {
                words.iter().map(|word| word.replace(SERVER, &address)).collect()
            };
            let mut server = world.last().start_ferroce(options, &named(server), &settings);
            world.last().wait_for_rdma_port(space, port, &mut server, limit);
            let client = world.first().start_ferroce(options, &named(words), &settings).wait(limit);
            let outcome = PairOutcome { client, server: server.wait(limit) };
            Ok(said(passes(&outcome), outcome.to_string()))
        }
        How::Script { wheels, program, port } => {
            if wheels.is_empty() && !apt::is_installed(client.package) {
                return Ok(Outcome::NotHere(format!("{} isn't installed", client.package)));
            }
            let folder = match wheels::unpacked(wheels) {
                Ok(folder) => folder.display().to_string(),
                Err(why) => return Ok(Outcome::NotHere(why.to_string())),
            };
            let script = dist::workspace().join(script_path(program)).display().to_string();
            let server = [wheels::PYTHON, &script];
            let settings =
                [client.settings, &[("PYTHONPATH", &folder), ("PYTHONDONTWRITEBYTECODE", "1")]].concat();
            pair(&server, &[&server[..], &[SERVER]].concat(), port, &settings)
        }
        How::Compiled { libraries, program, port } => {
            if !apt::is_installed(client.package) {
                return Ok(Outcome::NotHere(format!("{} isn't installed", client.package)));
            }
            let path = client_program(program, libraries)?.display().to_string();
            pair(&[&path], &[&path, SERVER], port, client.settings)
        }
        How::Ranks { launcher, mpich, program, arguments } => {
            let path = if mpich { mpich_program(program) } else { mpi_program(program) }?;
            let path = path.display().to_string();
            let line = [launcher, &[path.as_str()], arguments].concat();
            let settings: Vec<_> = mode.fabric().settings().iter().chain(client.settings).copied().collect();
            let outcome = mode.world()?.first().start_ferroce(client.options, &line, &settings).wait(limit);
            let passes = outcome.success() && outcome.stdout.contains("exchange ok");
            Ok(said(passes, outcome.to_string()))
        }
        How::WheelRanks { wheel, launcher, program } => {
            let bin = match wheels::installed(wheel) {
                Ok(folder) => folder.join("bin"),
                Err(why) => return Ok(Outcome::NotHere(why.to_string())),
            };
            let (command, options) = launcher.split_first().expect("a launcher has a name");
            let command = bin.join(command).display().to_string();
            let path = mpi_program_of(program, &wheel.replace('=', "-"), &bin.join("mpicc"))?;
            let path = path.display().to_string();
            let line = [&[command.as_str()], options, &[&path, "-1"]].concat();
            let settings: Vec<_> = mode.fabric().settings().iter().chain(client.settings).copied().collect();
            let outcome = mode.world()?.first().start_ferroce(client.options, &line, &settings).wait(limit);
            let passes = outcome.success() && outcome.stdout.contains("exchange ok");
            Ok(said(passes, outcome.to_string()))
        }
        How::Mpi { options, program, arguments } => {
            let path = mpi_program(program)?.display().to_string();
            let line: Vec<&str> = [path.as_str()].iter().chain(arguments).copied().collect();
            let outcome = mpi_run(&mode.world()?, mode.fabric(), options, &line, client.settings, limit);
            let passes = outcome.success() && outcome.stdout.contains("exchange ok");
            Ok(said(passes, outcome.to_string()))
        }
    }
}

/// Exit codes, and error messages of programs that exit with 0 in any case.
fn passes(outcome: &PairOutcome) -> bool {
    let sides = [&outcome.client, &outcome.server];
    let complains = |text: &str| {
        ["invalid data", "failed to", "UCX  ERROR", "UCX  WARN"].iter().any(|word| text.contains(word))
    };
    sides.iter().all(|side| side.success() && !complains(&side.stdout) && !complains(&side.stderr))
}

fn page(rows: &[(&Client, Vec<String>)]) -> String {
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
    let mut page = format!(
        "# Clients\n\n\
         Generated by `cargo xtask compat` on {}; do not edit.\n\n\
         Unmodified programs of the distribution and wheels from PyPI, and what became of them between two processes of one host over shared \
         memory, the same over UDP (`FERROCE_FABRIC=udp`), and between two hosts joined by a veth pair. *pass*: all \
         sides ended with exit code 0 and complained of nothing; the MPI program, the ping-pongs and `tests/clients/` check the data that \
         they receive. *not run*: its wheel or its package could not be fetched. Rows that begin with *as* are programs of ours, which make the calls of a client that no registry has, in its order; their version is that of the headers. Each is run as `ferroce run COMMAND` by an ordinary user, a server before its client; {SERVER} is \
         the server's address. Between two hosts `mpirun` starts `ferroce run tests/mpi/exchange` on each. What all options of perftest do is in [PERFTEST.md](PERFTEST.md), what the library exports \
         in [MATRIX.md](MATRIX.md).\n\n\
         | client | version | {} | command |\n|---|---|---|---|---|---|\n",
        system.trim_matches('"'),
        Mode::ALL.map(Mode::title).join(" | "),
    );
    for (client, results) in rows {
        let results = results.join(" | ");
        writeln!(
            page,
            "| {} | {} | {results} | `{}` |",
            client.name,
            version(client.package),
            client.command()
        )
        .expect("writing to a string");
    }
    page.push_str(NOT_THERE);
    page
}

/// The page's part about other clients.
const NOT_THERE: &str = "
## What isn't in the table

Looked for in Debian 12 and on PyPI:

- **qperf's `uc_*` and `ud_*`** make addresses without a GRH, which RoCE needs: they fail on RoCE, and run with `--link-layer infiniband`.
- **valkey** isn't in Debian 12, and its PyPI packages are clients without RDMA. Debian's redis 7.0 is built without RDMA.
- **SPDK** isn't in Debian; `spdk` on PyPI has Python bindings only.
- **GlusterFS** 10.3 has the socket transport only.
- **Samba** is built without RDMA: smbdirect is in the kernel.
- **DPDK**'s `mlx5` takes devices of the PCI and auxiliary buses, and writes to their queues itself (direct verbs). Debian's `dpdk-testpmd` finds no device here:
  \"No probed ethernet devices\".
- **tgt** and **libiscsi** (iSER): `iscsi-readcapacity16` reads a `tgtd`'s capacity when tried by hand as root. They have no row yet.
- **librpma**'s package has no examples, and Debian's fio no `librpma` engines. Built by hand, its repository's 17 examples pass on one host, and so
  do all 52 threaded tests of release 1.2.0, with 1 and 10 threads: 31 of calls (`rpma_*`), 20 of configurations in memory, and an example.
- **GPI-2**, **LCI**, **DiSNI** and **easyRDMA** are in no registry. A program of ours makes the same calls in the same order.
- **Charm++** isn't in Debian, and `charm4py` 1.1 on PyPI is built without verbs. A program of ours makes the calls of its verbs layer.
- **MPICH** of Debian is built for UCX only, not for libfabric; its wheel has both.
- The **Open MPI** wheel's `osc ucx` with `rc_verbs` reads with the key 0xff, which no region has; it is run with `osc rdma` there.
- **torch**'s wheel on PyPI (2.9.1, 900 MB) has TensorPipe's `ibv` as Debian's torch has it, and gloo without `ibverbs`; Debian's gloo has it.
- **NCCL**'s collectives need a GPU. Its `net_ib` is called as they call it, with host memory. With `NCCL_IB_USE_INLINE=1` it asks for 64 bytes inline
  and posts 512 for a grouped receive, which an adapter refuses. Its one-sided transport (`GIN`) asks CUDA before it connects.
";

fn script_path(program: &str) -> PathBuf {
    Path::new("tests/clients").join(program).with_extension("py")
}

/// Of a Debian package or a wheel.
fn version(package: &str) -> String {
    if let Some((wheel, version)) = package.split_once("==") {
        return format!("{wheel} {version}");
    }
    let output = Command::new("dpkg-query").args(["-W", "-f=${Version}", package]).output();
    let version =
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    if version.is_empty() { "?".into() } else { format!("{package} {version}") }
}

impl Client {
    /// It is a package of the distribution, and none that takes long.
    fn is_of_distribution(&self) -> bool {
        !matches!(self.how, How::Script { .. } | How::Compiled { .. } | How::WheelRanks { .. })
    }

    fn is_meant_for(&self, mode: Mode) -> bool {
        match self.how {
            How::Alone { .. } => mode == Mode::Shm,
            How::Ranks { .. } | How::WheelRanks { .. } => mode != Mode::TwoHosts,
            How::Sides { .. }
            | How::Connects { .. }
            | How::Script { .. }
            | How::Compiled { .. }
            | How::Mpi { .. } => true,
        }
    }

    fn program(&self) -> &'static str {
        match self.how {
            How::Alone { words, .. }
            | How::Sides { server: words, .. }
            | How::Connects { server: words, .. } => words[0],
            How::Ranks { launcher, .. } => launcher[0],
            How::Mpi { .. } => "mpirun",
            How::Script { .. } | How::WheelRanks { .. } => "python3",
            How::Compiled { .. } => "c++",
        }
    }

    /// As a person would type it, without `ferroce run`.
    fn command(&self) -> String {
        let options = self.options.iter().map(|option| format!("ferroce run {option} ")).collect::<String>();
        let mut line: String = self.settings.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        line.push_str(&options);
        match self.how {
            How::Alone { words, .. } => line.push_str(&words.join(" ")),
            How::Sides { server, client, .. } | How::Connects { server, client, .. } => {
                line = format!("{line}{}` and `{line}{}", server.join(" "), client.join(" "));
            }
            How::WheelRanks { launcher, program, .. } => {
                let program = Path::new("tests/mpi").join(program);
                write!(line, "{} {} -1", launcher.join(" "), program.display()).expect("writing to a string");
            }
            How::Script { program, .. } => {
                line = format!("{line}python3 {}", script_path(program).display());
                line = format!("{line}` and `{line} {SERVER}");
            }
            How::Compiled { program, .. } => {
                line = format!("{line}tests/clients/{program}");
                line = format!("{line}` and `{line} {SERVER}");
            }
            How::Ranks { launcher, program, arguments, .. } => {
                let program = Path::new("tests/mpi").join(program);
                write!(line, "{} {} {}", launcher.join(" "), program.display(), arguments.join(" "))
                    .expect("writing to a string");
            }
            How::Mpi { options, program, arguments } => {
                let program = Path::new("tests/mpi").join(program);
                let words = [&["mpirun", "-n", "2"], options].concat().join(" ");
                write!(line, "{words} {} {}", program.display(), arguments.join(" "))
                    .expect("writing to a string");
            }
        }
        line.trim_end().to_owned()
    }
}
