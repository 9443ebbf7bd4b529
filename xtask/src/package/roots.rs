//! Tests of the packages in clean roots of distributions, as their users install them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use crate::dist::workspace;
use crate::packages;

/// Releases of Debian, and the version of their Python: glibc 2.31, 2.36 and 2.41.
const SUITES: [(&str, &str); 3] = [("bullseye", "3.9"), ("bookworm", "3.11"), ("trixie", "3.13")];
/// The release over which the image's layer is put.
const IMAGE_BASE: &str = SUITES[1].0;
/// What a root has besides the least: a program of verbs, and what installs a wheel.
const INCLUDED: &str = "ibverbs-utils,iproute2,python3-venv,ca-certificates";
/// In seconds; one root takes a minute.
const LIMIT: &str = "600";

/// Runs `packaging/test/root.sh` in each root, in namespaces of its own. `packages`: the directory that has them; the roots are
/// kept there, and nothing is written to them.
///
/// # Errors
/// It isn't root who asks, no root can be made, or a test fails.
pub fn test(directory: &Path) -> io::Result<()> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Err(io::Error::other("--test makes clean roots of Debian, which only root can"));
    }
    packages::install_for_packages();
    let confine = confine(directory)?;
    let mut failed = Vec::new();
    for (suite, python) in SUITES {
        println!("== {suite}");
        let root = directory.join("roots").join(suite);
        prepare(&root, suite)?;
        let wheels = directory.join("wheels").join(suite);
        download(&wheels, python)?;
        let status = Command::new("timeout")
            .args([
                "--kill-after=10",
                LIMIT,
                "unshare",
                "--net",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
            ])
            .args(["--propagation", "private", "sh"])
            .arg(workspace().join("packaging/test/root.sh"))
            .args([&root, directory, &wheels, &confine])
            .stdin(Stdio::null())
            .status()?;
        if !status.success() {
            failed.push(suite);
        }
    }
    for (name, script, arguments) in [
        ("rpm", "rpm.sh", vec![directory.to_owned()]),
        ("image", "image.sh", vec![directory.to_owned(), directory.join("roots").join(IMAGE_BASE)]),
    ] {
        println!("== {name}");
        let mut shell = Command::new("timeout");
        shell.args(["--kill-after=10", LIMIT, "sh"]).arg(workspace().join("packaging/test").join(script));
        if !shell.args(arguments).stdin(Stdio::null()).status()?.success() {
            failed.push(name);
        }
    }
    if failed.is_empty() {
        println!("installed, used and removed: {}, rpm, image", SUITES.map(|(suite, _)| suite).join(", "));
        return Ok(());
    }
    Err(io::Error::other(format!("the packages fail in {}", failed.join(", "))))
}

/// Makes the root unless it is there.
fn prepare(root: &Path, suite: &str) -> io::Result<()> {
    if root.join("usr/bin/ibv_devinfo").exists() {
        return Ok(());
    }
    fs::create_dir_all(root)?;
    let include = format!("--include={INCLUDED}");
    super::output(Command::new("debootstrap").args(["--variant=minbase", &include, suite]).arg(root))
        .map(drop)
}

/// Compiles what runs a program under a container's profile, for roots with any C library.
fn confine(directory: &Path) -> io::Result<PathBuf> {
    let program = directory.join("confine");
    let source = workspace().join("tests/c/surroundings/refused_syscalls.c");
    super::output(Command::new("cc").args(["-std=gnu11", "-O1", "-static", "-o"]).arg(&program).arg(source))?;
    Ok(program)
}

/// Fetches pytest for the root's Python, as the root has no network.
fn download(to: &Path, python: &str) -> io::Result<()> {
    if to.exists() {
        return Ok(());
    }
    let unfinished = to.with_extension("new");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--only-binary=:all:"]);
    pip.args(["--python-version", python, "--dest"]).arg(&unfinished);
    // pip here doesn't see what pytest needs with an older Python.
    pip.args(["pytest", "exceptiongroup", "tomli", "typing_extensions"]);
    super::output(&mut pip)?;
    fs::rename(&unfinished, to)
}
