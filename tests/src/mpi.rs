//! Two MPI ranks, on one host or on two.

use crate::artifacts::repository;
use crate::{Artifacts, Fabric, Outcome, Skip, World, tool};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Takes the place of ssh on the first host: leaves there what the second is to run.
const AGENT: &str =
    "#!/bin/sh\nshift\nprintf '%s' \"$*\" >/tmp/command.new && mv /tmp/command.new /tmp/command\n";

/// Compiles `tests/mpi/NAME.c` with the installed MPI; compiles once a stage.
///
/// # Errors
/// There is no `mpicc`.
pub fn mpi_program(name: &str) -> Result<PathBuf, Skip> {
    tool("mpirun", "openmpi-bin")?;
    compiled(name, name, &tool("mpicc", "libopenmpi-dev")?)
}

/// The same with MPICH.
///
/// # Errors
/// There is no `mpicc.mpich`.
pub fn mpich_program(name: &str) -> Result<PathBuf, Skip> {
    compiled(name, &format!("{name}-mpich"), &tool("mpicc.mpich", "libmpich-dev")?)
}

/// The same with an MPI that isn't the distribution's; `staged` distinguishes its program from those of others.
///
/// # Errors
/// The compiler can't be run.
pub fn mpi_program_of(name: &str, staged: &str, compiler: &Path) -> Result<PathBuf, Skip> {
    compiled(name, &format!("{name}-{staged}"), compiler)
}

fn compiled(name: &str, staged: &str, compiler: &Path) -> Result<PathBuf, Skip> {
    Artifacts::get().compiled(staged, |program| {
        let mut command = Command::new(compiler);
        command.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
        // MPICH's own MPI_STATUSES_IGNORE.
        command.args(["-Wno-stringop-overflow", "-o"]).arg(program);
        command.arg(repository().join("tests/mpi").join(name).with_extension("c"));
        command
    })
}

/// Runs two ranks: on one host under one `ferroce run mpirun`; on two hosts `mpirun` starts a rank on each through
/// `ferroce run`, and what it would do over ssh is done by the caller of this.
pub fn mpi_run(
    world: &World,
    fabric: Fabric,
    options: &[&str],
    program: &[&str],
    settings: &[(&str, &str)],
    limit: Duration,
) -> Outcome {
    let start = Instant::now();
    let settings: Vec<_> = fabric.settings().iter().chain(settings).copied().collect();
    let mut line = vec!["mpirun", "--oversubscribe", "-n", "2"];
    line.extend(options);
    let (first, last) = (world.first(), world.last());
    if std::ptr::eq(first, last) {
        line.extend(program);
        return first.start_ferroce(&[], &line, &settings).wait(limit);
    }
    // Each host has a /tmp of its own, and Open MPI looks for the program on both.
    for host in [first, last] {
        let agent = host.path("/tmp/agent");
        fs::write(&agent, AGENT).expect("the host's /tmp is writable");
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).expect("our own file");
    }
    let hosts = format!("{},{}", first.ipv4(), last.ipv4());
    line.extend(["--host", &hosts, "--mca", "plm_rsh_agent", "/tmp/agent"]);
    line.extend(settings.iter().flat_map(|(name, _)| ["-x", *name]));
    let ferroce = Artifacts::get().ferroce().display().to_string();
    line.extend([ferroce.as_str(), "run", "--"]);
    line.extend(program);
    // mpirun takes the user's login shell for that of the second host (the user `nobody` has none), or this.
    let with_shell: Vec<_> = settings.iter().copied().chain([("SHELL", "/bin/sh")]).collect();
    let mut ranks = first.start(&line, &with_shell);
    let command = first.path("/tmp/command");
    while !command.exists() && !ranks.has_ended() && start.elapsed() < limit {
        thread::sleep(Duration::from_millis(5));
    }
    let remote = fs::read_to_string(&command).unwrap_or_default();
    let mut remote = last.start(&["sh", "-c", &remote], &settings);
    let outcome = ranks.wait(limit.saturating_sub(start.elapsed()));
    let remote = remote.wait(Duration::from_secs(5));
    if !outcome.success() {
        eprintln!("on the second host: {remote}");
    }
    for left in [command, first.path("/tmp/agent"), last.path("/tmp/agent")] {
        let _ = fs::remove_file(left);
    }
    outcome
}
