//! Sanitizers over the whole library, as C programs call it: programs of `tests/c`, compiled by the system's compiler with
//! its instrumentation, linked with the library's code and the sanitizer's runtime of the nightly toolchain.
//!
//! The linker gives the names that programs call to the functions behind them: symbols of an executable have no versions. There are
//! no suppressions, but `seen_closes.c` reports closes to ThreadSanitizer that it can't see. ThreadSanitizer doesn't follow a fork of
//! several threads into the child, so the programs don't fork.

use super::{TARGET, nightly};
use crate::dist;
use ferroce_tests::{Artifacts, Skip, World, c_source};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, io};

/// What is run under both, with arguments.
const PROGRAMS: [(&str, &[&str]); 3] = [
    ("random/calls", &["-S", "1", "-t", "20", "-T", "8", "-f"]),
    ("random/calls", &["-S", "2", "-t", "10", "-T", "2", "-f"]),
    ("completions/events_while_destroying", &[]),
];
const LIMIT: Duration = Duration::from_secs(150);

/// Runs the programs under the sanitizer of a kind (`thread`, `address`).
///
/// # Errors
/// Nothing can be built or run, or the sanitizer found something.
pub(super) fn run(kind: &str) -> io::Result<()> {
    dist::dist("dev")?;
    let refused = |skip: Skip| io::Error::other(skip.0);
    let archive = archive(kind)?;
    for fabric in ["", "udp"] {
        let world = World::one_host(1500).map_err(refused)?;
        for (name, arguments) in PROGRAMS {
            let program = Artifacts::get().stage_program(&link(kind, name, &archive)?)?;
            let program = program.to_string_lossy();
            let words = [&[&*program], arguments].concat();
            // Memory that waits to be used again isn't a leak.
            let settings = [
                ("FERROCE_FABRIC", fabric),
                ("TSAN_OPTIONS", "die_after_fork=0"),
                ("ASAN_OPTIONS", "quarantine_size_mb=4"),
            ];
            let settings = if fabric.is_empty() { &settings[1..] } else { &settings[..] };
            let outcome = world.first().start(&words, settings).wait(LIMIT);
            if !outcome.success() {
                return Err(io::Error::other(format!("{name} {arguments:?} {fabric}:\n{outcome}")));
            }
            println!("{name} {}: {}", arguments.join(" "), outcome.stdout.trim().replace('\n', "; "));
        }
    }
    Ok(())
}

/// The library's code, instrumented.
fn archive(kind: &str) -> io::Result<PathBuf> {
    let mut command = nightly();
    command
        .current_dir(dist::workspace())
        .env("RUSTFLAGS", format!("-Zsanitizer={kind}"))
        .args(["rustc", "--quiet", "--target", TARGET, "--package", "ferroce-capi-ibverbs"])
        .args(["--lib", "--crate-type", "staticlib"])
        .stdin(Stdio::null());
    if kind == "thread" {
        command.arg("-Zbuild-std");
    }
    expect(&mut command, "the instrumented library")?;
    Ok(dist::target().join(TARGET).join("debug/libferroce_ibverbs.a"))
}

/// The runtime that the nightly compiler would link to a program of its own.
fn runtime(kind: &str) -> io::Result<PathBuf> {
    let mut command = Command::new("rustc");
    command.args(["+nightly", "--print", "target-libdir"]).env_remove("RUSTUP_TOOLCHAIN");
    let directory = String::from_utf8_lossy(&command.output()?.stdout).trim().to_owned();
    Ok(Path::new(&directory).join(format!("librustc-nightly_rt.{}san.a", &kind[..1])))
}

fn link(kind: &str, name: &str, archive: &Path) -> io::Result<PathBuf> {
    let directory = dist::target().join(format!("{kind}-sanitizer"));
    fs::create_dir_all(&directory)?;
    let program = directory.join(name.replace('/', "-"));
    let object = program.with_extension("o");
    let instrumented = format!("-fsanitize={kind}");
    compile(&c_source(name), &["-pthread", "-I", "tests/c", &instrumented], &object)?;
    let mut link = Command::new("cc");
    link.args(["-no-pie", "-rdynamic", "-o"]).arg(&program).arg(&object);
    if kind == "thread" {
        let closes = directory.join("seen_closes.o");
        compile(&dist::workspace().join("xtask/src/sanitize/seen_closes.c"), &[], &closes)?;
        link.arg("-Wl,--wrap=syscall").arg(closes);
    }
    for symbol in dist::ibverbs::parse(dist::ibverbs::TABLE) {
        if symbol.state != "data" {
            link.arg(format!(
                "-Wl,--defsym={}={}{}",
                symbol.name,
                dist::ibverbs::IMPLEMENTATION_PREFIX,
                symbol.code
            ));
        }
    }
    link.arg(archive).arg("-Wl,--whole-archive").arg(runtime(kind)?).arg("-Wl,--no-whole-archive");
    // The unwinder must be the one that the C library cancels threads with.
    link.args(["-lgcc_s", "-lpthread", "-ldl", "-lm", "-lrt"]);
    expect(&mut link, name)?;
    Ok(program)
}

fn compile(source: &Path, flags: &[&str], object: &Path) -> io::Result<()> {
    let mut compile = Command::new("cc");
    compile.current_dir(dist::workspace()).args(["-std=gnu11", "-O1", "-g", "-c"]).args(flags);
    compile.arg(source).arg("-o").arg(object);
    expect(&mut compile, &source.to_string_lossy())
}

fn expect(command: &mut Command, what: &str) -> io::Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{what}: {status}"))) }
}
