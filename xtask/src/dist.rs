//! `cargo xtask dist`: builds the command and the libraries, under `dist/` of the target directory.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

#[path = "../../crates/capi/ibverbs/link/mod.rs"]
pub mod ibverbs;

#[path = "../../crates/capi/rdmacm/link/mod.rs"]
pub mod rdmacm;

#[path = "../../crates/capi/link/shared_library.rs"]
mod shared_library;
pub use shared_library::{baseline, machine::Machine};

#[path = "../../crates/preload/link/mod.rs"]
mod preload;

#[path = "../../crates/rsocket/preload/link/mod.rs"]
mod rsocket_preload;

/// The directory of the workspace.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// Cargo's target directory (`CARGO_TARGET_DIR`, else `target`).
#[must_use]
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), |dir| workspace().join(dir))
}

/// Builds `bin/ferroce` and the libraries in `lib/ferroce` with a cargo profile (`dev`, `release` …) and returns the
/// directory `dist` that holds them, and `share/ferroce`.
///
/// # Errors
/// cargo or the linker fails, or a file can't be written.
pub fn dist(profile: &str) -> io::Result<PathBuf> {
    build_into(&Machine::this(), profile, &target(), None)
}

/// What a build for packages has besides.
pub struct Packaged<'a> {
    /// For each call of rustc (`CARGO_ENCODED_RUSTFLAGS`).
    pub flags: &'a str,
    /// The commit that `ferroce version --verbose` names.
    pub commit: Option<&'a str>,
}

/// The same for a machine, and for another target directory than cargo's.
///
/// # Errors
/// As [`dist`].
pub fn build_into(
    machine: &Machine,
    profile: &str,
    target: &Path,
    packaged: Option<&Packaged<'_>>,
) -> io::Result<PathBuf> {
    // The profiles `dev` and `test` share a directory, as cargo documents.
    let folder = if matches!(profile, "dev" | "test") { "debug" } else { profile };
    let built = target.join(foreign_target(machine).unwrap_or_default()).join(folder);
    let cargo = Cargo { machine, profile, target, packaged };
    // An archive alone is optimised as one with the crates that it's made of. What is a Rust library as well isn't: their manifests
    // name both, for their tests.
    for package in ["ferroce-capi-rdmacm", "ferroce-rsocket", "ferroce-preload", "ferroce-rsocket-preload"] {
        cargo.run(&["rustc", "--package", package, "--lib", "--crate-type", "staticlib"])?;
    }
    // What follows `--` is for this program alone: what cargo has built of the others stays as it is. The command is nothing that
    // has to be fast, and most of it is libraries: it takes half the time to build so.
    let mut command: Vec<OsString> =
        ["rustc", "--package", "ferroce-cli", "--bin", "ferroce", "--", "-C", "opt-level=1"]
            .map(OsString::from)
            .into();
    for argument in shared_library::baseline::prepare(machine, &built.join("baseline"))? {
        let mut option = OsString::from("link-arg=");
        option.push(argument);
        command.extend(["-C".into(), option]);
    }
    cargo.run(&command)?;
    let dist = target.join("dist");
    let bin = dist.join("bin");
    fs::create_dir_all(&bin)?;
    // A running `ferroce` can't be overwritten, but it can be replaced.
    let unfinished = bin.join("ferroce.new");
    fs::copy(built.join("ferroce"), &unfinished)?;
    fs::rename(&unfinished, bin.join("ferroce"))?;
    let libraries = dist.join("lib").join("ferroce");
    // One engine: the archive of the communication manager has all of the adapter.
    let archive = built.join("libferroce_rdmacm.a");
    let ibverbs =
        ibverbs::link(machine, &archive, &rdmacm::engine(), &built.join("link-ibverbs"), &libraries)?;
    let rsocket = built.join("libferroce_rsocket.a");
    let rdmacm = rdmacm::link(machine, &rsocket, &ibverbs, &built.join("link-rdmacm"), &libraries)?;
    let sockets = built.join("libferroce_rsocket_preload.a");
    rsocket_preload::link(machine, &sockets, &rdmacm, &built.join("link-rsocket-preload"), &libraries)?;
    preload::link(machine, &built.join("libferroce_preload.a"), &built.join("link-preload"), &libraries)?;
    // `ferroce` answers to the name of the command whose place it takes under `ferroce run`.
    let commands = libraries.join("bin");
    fs::create_dir_all(&commands)?;
    let rdma = commands.join("rdma");
    if rdma.symlink_metadata().is_err() {
        std::os::unix::fs::symlink("../../../bin/ferroce", &rdma)?;
    }
    let share = dist.join("share/ferroce");
    fs::create_dir_all(&share)?;
    fs::copy(workspace().join("packaging/valgrind.supp"), share.join("valgrind.supp"))?;
    Ok(dist)
}

/// What cargo calls a machine that isn't this one.
fn foreign_target(machine: &Machine) -> Option<String> {
    (machine.arch() != env::consts::ARCH).then(|| format!("{}-unknown-linux-gnu", machine.arch()))
}

/// A program that was built for the machine; qemu-user runs one of another.
#[must_use]
pub fn program(machine: &Machine, program: &Path) -> Command {
    if foreign_target(machine).is_none() {
        return Command::new(program);
    }
    let [emulator, arguments @ ..] = emulator(machine);
    let mut command = Command::new(emulator);
    command.args(arguments).arg(program);
    command
}

/// The words before a program of a machine that isn't this one.
fn emulator(machine: &Machine) -> [String; 3] {
    [format!("qemu-{}", machine.arch()), "-L".into(), format!("/usr/{}-linux-gnu", machine.arch())]
}

/// Runs tests that are built for the machine in `target`; `arguments` are those of `cargo test`.
///
/// # Errors
/// The build or a test fails.
pub fn test(machine: &Machine, target: &Path, arguments: &[&str]) -> io::Result<()> {
    let cargo = Cargo { machine, profile: "dev", target, packaged: None };
    cargo.run(&[&["test"], arguments].concat())
}

/// How cargo is called.
struct Cargo<'a> {
    machine: &'a Machine,
    profile: &'a str,
    target: &'a Path,
    packaged: Option<&'a Packaged<'a>>,
}

impl Cargo<'_> {
    fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> io::Result<()> {
        let Some((what, others)) = arguments.split_first() else { return Ok(()) };
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(workspace()).arg(what).args(["--profile", self.profile]);
        // A person sees the progress of a build that takes minutes.
        if !io::stderr().is_terminal() {
            cargo.arg("--quiet");
        }
        cargo.arg("--target-dir").arg(self.target);
        if let Some(target) = foreign_target(self.machine) {
            let setting = |what| format!("CARGO_TARGET_{}_{what}", target.to_uppercase().replace('-', "_"));
            cargo.args(["--target", &target]).env(setting("RUNNER"), emulator(self.machine).join(" "));
            cargo.env(setting("LINKER"), self.machine.compiler().get_program());
        }
        cargo.args(others);
        if let Some(packaged) = self.packaged {
            cargo.env("CARGO_ENCODED_RUSTFLAGS", packaged.flags);
            if let Some(commit) = packaged.commit {
                cargo.env("FERROCE_COMMIT", commit);
            }
        }
        let status = cargo.status()?;
        if status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "cargo {} --profile {}: {status}",
            what.as_ref().display(),
            self.profile
        )))
    }
}
