//! `cargo xtask sanitize`: runs loom, Miri, ThreadSanitizer and AddressSanitizer on the code that each of them can check.

mod through_c;

use crate::dist;
use std::env;
use std::ffi::OsString;
use std::io;
use std::process::{Command, Stdio};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// What Miri can run: tests that make no system call which it doesn't know, and end in seconds.
const MIRI: [(&str, &[&str]); 7] = [
    ("ferroce-types", &[]),
    ("ferroce-linux", &["sys::address::", "sys::control::"]),
    ("ferroce-os", &["per_thread::", "sync::made_once::"]),
    ("ferroce-engine", &["progress::"]),
    ("ferroce-netdev", &["netlink::"]),
    ("ferroce-host", &["encoding::"]),
    ("ferroce-qp-context", &["psn::", "timers::", "window::"]),
];

/// What loom runs: the fork gate, the engine's hand-offs, the words that two processes share, and the slots of the Rust API.
const LOOM: [(&str, &str); 4] = [
    ("ferroce-os", "gate"),
    ("ferroce-engine", "handoff"),
    ("ferroce-hostlink", "shared"),
    ("ferroce-buffers", "slots"),
];

/// Test binaries of the Rust API that Miri runs. A test of each forgets memory, so leaks aren't counted.
const MIRI_API: [(&str, &str, &[&str]); 2] = [
    ("ferroce-buffers", "it", &[]),
    // The adapter in the process makes system calls that Miri doesn't know.
    ("ferroce", "conformance", &["--no-default-features", "--features", "sim"]),
];

/// Runs all that this machine can, and prints what it can't.
///
/// # Errors
/// One of them found something.
pub fn sanitize() -> io::Result<()> {
    let mut failed = Vec::new();
    let mut check = |name: &'static str, commands: Vec<Command>| -> io::Result<()> {
        println!("== {name}");
        for mut command in commands {
            if !command.current_dir(dist::workspace()).stdin(Stdio::null()).status()?.success() {
                failed.push(name);
            }
        }
        Ok(())
    };
    check("loom", LOOM.iter().map(|(package, test)| loom(package, test)).collect())?;
    if succeeds(&["+nightly", "miri", "--version"]) {
        check("Miri", MIRI.iter().map(|(package, tests)| miri(package, tests)).collect())?;
        check("Miri", MIRI_API.iter().map(|of| miri_api(*of)).collect())?;
    } else {
        println!("skipped: Miri (rustup toolchain install nightly --component miri,rust-src)");
    }
    // The address sanitizer needs nothing of the standard library's.
    let kinds: &[&str] =
        match (cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")), has_sources()) {
            (false, _) => &[],
            (true, true) => &["thread", "address"],
            (true, false) if succeeds(&["+nightly", "--version"]) => &["address"],
            (true, false) => &[],
        };
    for kind in kinds {
        check(if *kind == "thread" { "ThreadSanitizer" } else { "AddressSanitizer" }, vec![sanitizer(kind)])?;
    }
    for kind in kinds {
        println!("== {kind} sanitizer through the C interface");
        if let Err(why) = through_c::run(kind) {
            println!("{why}");
            failed.push("the C interface");
        }
    }
    if kinds.len() < 2 {
        let left_out = if kinds.is_empty() { "sanitizers" } else { "ThreadSanitizer" };
        println!(
            "skipped: {left_out} (on x86-64 glibc, rustup toolchain install nightly --component rust-src)"
        );
    }
    if failed.is_empty() { Ok(()) } else { Err(io::Error::other(failed.join(", "))) }
}

/// Models, on any toolchain, in seconds.
fn loom(package: &str, test: &str) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.args(["test", "--quiet", "--package", package, "--test", test]);
    command
}

fn miri(package: &str, tests: &[&str]) -> Command {
    let mut command = nightly();
    // The clock and the random numbers of the machine are used as they are.
    command
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .args(["miri", "test", "--quiet", "--package", package, "--lib", "--"])
        .args(tests);
    command
}

/// A test binary of the Rust API.
fn miri_api((package, binary, features): (&str, &str, &[&str])) -> Command {
    let mut command = nightly();
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-ignore-leaks").args([
        "miri",
        "test",
        "--quiet",
        "--package",
        package,
        "--test",
        binary,
    ]);
    command.args(features);
    command
}

/// The verbs tests of the adapter.
fn sanitizer(kind: &str) -> Command {
    let mut command = nightly();
    command.env("RUSTFLAGS", format!("-Zsanitizer={kind}")).args([
        "test",
        "--quiet",
        "--target",
        TARGET,
        "--package",
        "ferroce-nic",
        "--test",
        "verbs",
    ]);
    if kind == "thread" {
        // It has to see the standard library's synchronisation.
        command.arg("-Zbuild-std");
    }
    command
}

/// Cargo of the nightly toolchain. Without the variables by which `cargo xtask` points its children to its own.
fn nightly() -> Command {
    let mut command = Command::new("cargo");
    command.arg("+nightly").env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    command
}

fn succeeds(words: &[&str]) -> bool {
    let mut command = Command::new("cargo");
    command.args(words).env_remove("RUSTUP_TOOLCHAIN").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The nightly toolchain is there with the standard library's sources.
fn has_sources() -> bool {
    let output = Command::new("rustc")
        .args(["+nightly", "--print", "sysroot"])
        .env_remove("RUSTUP_TOOLCHAIN")
        .output();
    output.is_ok_and(|output| {
        let sysroot = String::from_utf8_lossy(&output.stdout);
        let sources = std::path::Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/Cargo.lock");
        output.status.success() && sources.exists()
    })
}
