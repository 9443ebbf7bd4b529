//! Clients that come as wheels from PyPI: into the target directory, never into the system's Python.

use crate::dist;
use std::path::PathBuf;
use std::process::Command;
use std::{fs, io};

/// The interpreter of the drivers, which every user can run.
pub const PYTHON: &str = "/usr/bin/python3";

/// Unpacks the wheels, if any, each as `NAME==VERSION`, into a folder of theirs for `PYTHONPATH`; once.
///
/// # Errors
/// There is no pip, or it can't fetch one of them: its last line.
pub fn unpacked(wheels: &[&str]) -> io::Result<PathBuf> {
    let version =
        output(Command::new(PYTHON).args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]))?;
    fetched(wheels, &["--python-version", version.trim(), "--target"])
}

/// Installs a wheel of programs into a folder of its own, which has its `bin` and `lib`; once.
///
/// # Errors
/// As [`unpacked`].
pub fn installed(wheel: &str) -> io::Result<PathBuf> {
    fetched(&[wheel], &["--prefix"])
}

/// `options` end in the one whose value is the folder.
fn fetched(wheels: &[&str], options: &[&str]) -> io::Result<PathBuf> {
    let folder = dist::target().join("compat/wheels").join(wheels.join("+"));
    if wheels.is_empty() || folder.exists() {
        return Ok(folder);
    }
    println!("Fetching {}", wheels.join(" "));
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--only-binary=:all:", "--timeout", "15", "--retries", "1"]);
    // Debian's pip would put a folder `local` between.
    pip.env("DEB_PYTHON_INSTALL_LAYOUT", "deb");
    if let Err(why) = output(pip.args(options).arg(&folder).args(wheels)) {
        // What is there of it isn't whole. It may be nothing.
        let _ = fs::remove_dir_all(&folder);
        return Err(why);
    }
    Ok(folder)
}

fn output(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| line.starts_with("ERROR")).unwrap_or("pip fails");
    Err(io::Error::other(last.to_owned()))
}
