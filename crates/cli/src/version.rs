//! `ferroce version`: what a bug report should contain.

use std::ffi::CStr;
use std::fs;
use std::process::ExitCode;

use crate::output;
use ferroce_doctor::install;

/// Prints the version, and with `verbose` what it runs on.
pub fn version(verbose: bool) -> ExitCode {
    let mut text = format!("ferroce {}\n", env!("CARGO_PKG_VERSION"));
    if verbose {
        let commit = option_env!("FERROCE_COMMIT").unwrap_or("not recorded in this build");
        let libraries = install::library_directory();
        let libraries =
            libraries.map_or_else(|missing| missing.to_string(), |there| there.display().to_string());
        for (name, value) in [
            ("commit", commit.to_owned()),
            ("build", format!("{} {}", std::env::consts::ARCH, profile())),
            ("libraries", libraries),
            ("system", system()),
            ("kernel", read("/proc/sys/kernel/osrelease")),
            ("glibc", glibc()),
        ] {
            text.push_str(&format!("{name}: {value}\n"));
        }
    }
    output::print(&text)
}

const fn profile() -> &'static str {
    if cfg!(debug_assertions) { "with debug assertions" } else { "optimised" }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|error| format!("{path}: {error}"), |text| text.trim().to_owned())
}

/// The distribution's name of itself (os-release(5)).
fn system() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "unknown".to_owned(), |name| name.trim_matches('"').to_owned())
}

fn glibc() -> String {
    // SAFETY: no arguments; the text is a constant of the library.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    version.to_string_lossy().into_owned()
}
