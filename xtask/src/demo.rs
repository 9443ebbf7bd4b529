//! `cargo xtask demo`: shows an unmodified verbs program that exchanges data between two processes, without root.

use crate::{apt, dist};
use ferroce_tests::{Headers, Outcome, Process, compile_ping_pong};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const ITERATIONS: u64 = 10_000;
const SIZE: u64 = 4096;
const LIMIT: Duration = Duration::from_secs(60);

/// Builds, runs the programs as two processes each and explains the result in plain words.
///
/// # Errors
/// The build fails, a process fails or doesn't end, or the output isn't what a successful run prints.
pub fn demo() -> io::Result<()> {
    println!("Building Ferroce (the first time takes minutes) ...");
    let dist = dist::dist("release")?;
    let ferroce = dist.join("bin/ferroce");
    if !apt::on_path("ibv_rc_pingpong") {
        apt::install_for_demo();
    }
    if apt::on_path("ibv_rc_pingpong") {
        println!("\n* ibv_rc_pingpong of Debian's ibverbs-utils, unmodified");
        run(
            &ferroce,
            "ibv_rc_pingpong",
            "its own check of the buffer (one byte a page, by the server) found no fault",
        )?;
    } else {
        println!(
            "\nibv_rc_pingpong (Debian: ibverbs-utils) is not installed and can't be installed from here."
        );
    }
    let own = compile_own(&dist)?;
    run(&ferroce, &own.display().to_string(), "both sides compared every byte of every message: all right")?;
    println!(
        "\nNo adapter, no kernel module, no root, no daemon: the programs loaded Ferroce's libibverbs.so.1."
    );
    Ok(())
}

/// Our own ping-pong checks everything it receives, and needs no package.
fn compile_own(dist: &Path) -> io::Result<PathBuf> {
    let path = dist::target().join("demo-pingpong");
    let (headers, name) = if Path::new("/usr/include/infiniband/verbs.h").exists() {
        (Headers::Installed, "the installed verbs headers")
    } else {
        (Headers::Minimal, "our own declarations of the verbs it uses")
    };
    println!("\n* tests/c/traffic/pingpong.c, compiled now against {name}");
    compile_ping_pong(headers, &dist.join("lib/ferroce"), &path)?;
    Ok(path)
}

/// Runs a program as a server and as a client of it on this host.
fn run(ferroce: &Path, program: &str, checked: &str) -> io::Result<()> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let (iterations, size, port_word) = (ITERATIONS.to_string(), SIZE.to_string(), port.to_string());
    let words = [program, "-c", "-g", "0", "-n", &iterations, "-s", &size, "-p", &port_word];
    println!("  server: {} run {}", ferroce.display(), words.join(" "));
    let mut server = start(ferroce, &words, None)?;
    wait_until_listening(&mut server, port)?;
    println!("  client: {} run {} localhost", ferroce.display(), words.join(" "));
    let mut client = start(ferroce, &words, Some("localhost"))?;
    let (client, server) = (client.wait(LIMIT), server.wait(LIMIT));
    let at_fault = |side: &Outcome| !side.success() || side.stdout.contains("invalid data");
    if at_fault(&client) || at_fault(&server) {
        return Err(io::Error::other(format!("server: {server}client: {client}")));
    }
    let figures = Figures::parse(&client.stdout)
        .ok_or_else(|| io::Error::other(format!("output that isn't understood:\n{client}")))?;
    println!("  {} messages of {SIZE} bytes each way, over a reliable connection", figures.iterations);
    println!("  {} bytes in all; {checked}", figures.bytes);
    println!("  {} µs for a message there and one back", figures.microseconds);
    Ok(())
}

fn start(ferroce: &Path, words: &[&str], server: Option<&str>) -> io::Result<Process> {
    let mut command = Command::new(ferroce);
    command.args(["run", "--"]).args(words).args(server).process_group(0);
    Process::spawn(command)
}

/// The program accepts one connection only, so this looks for the listener without connecting to it.
fn wait_until_listening(server: &mut Process, port: u16) -> io::Result<()> {
    let start = Instant::now();
    while !ferroce_tests::is_listening("self", port) {
        if server.has_ended() || start.elapsed() > LIMIT {
            return Err(io::Error::other(format!(
                "the server doesn't listen:\n{}",
                server.wait(Duration::ZERO)
            )));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The result in the program's closing lines.
struct Figures<'a> {
    bytes: &'a str,
    iterations: u64,
    microseconds: &'a str,
}

impl<'a> Figures<'a> {
    /// Reads `B bytes in … seconds = …` and `N iters in … seconds = U usec/iter`.
    fn parse(output: &'a str) -> Option<Self> {
        let line = |mark| output.lines().find(|line| line.contains(mark));
        let bytes = line(" bytes in ")?.split_whitespace().next()?;
        let mut timing = line(" iters in ")?.split_whitespace();
        let iterations = timing.next()?.parse().ok()?;
        let microseconds = timing.rev().nth(1)?;
        Some(Self { bytes, iterations, microseconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_a_ping_pong_are_understood() {
        let output = "local address: x\n8192000 bytes in 0.01 seconds = 7084.32 Mbit/sec\n\
                      1000 iters in 0.01 seconds = 9.25 usec/iter\n";
        let figures = Figures::parse(output).expect("figures");
        assert_eq!((figures.bytes, figures.iterations, figures.microseconds), ("8192000", 1000, "9.25"));
        assert!(Figures::parse("Couldn't get device list\n").is_none());
    }
}
