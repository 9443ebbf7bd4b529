//! What Ferroce is measured beside within a host: what two processes can do without a library, UCX, and libfabric.

use super::programs::{LIMIT, Programs, Role, ended, not_understood, number_in_line};
use ferroce_tests::Outcome;
use std::io;

/// UCX over shared memory, as UCX_TLS has it.
pub const POSIX: &str = "posix,self";
/// … with copies by the kernel from one process into the other.
pub const POSIX_CMA: &str = "posix,cma,self";
/// UCX over TCP.
pub const TCP: &str = "tcp,self";

/// How much UCX sends a second of measurement: it counts messages, not seconds.
const UCX_BYTES_A_SECOND: u64 = 4 << 30;
/// … over TCP.
const UCX_TCP_BYTES_A_SECOND: u64 = 512 << 20;
/// … at most.
const UCX_MESSAGES_A_SECOND: u64 = 10_000_000;
/// … over TCP.
const UCX_TCP_MESSAGES_A_SECOND: u64 = 500_000;
const UCX_PORT: u16 = 13_337;
const LIBFABRIC_PORT: u16 = 47_592;

/// Gbit/s of process_vm_writev.
pub fn bare_copy(programs: &Programs, size: u32) -> io::Result<f64> {
    copied(programs, "copy", size)
}

/// µs of one process_vm_writev.
pub fn bare_copy_time(programs: &Programs, size: u32) -> io::Result<f64> {
    Ok(microseconds(size, bare_copy(programs, size)?))
}

/// Gbit/s of memcpy within a process.
pub fn memcpy(programs: &Programs, size: u32) -> io::Result<f64> {
    copied(programs, "memcpy", size)
}

/// µs of one memcpy within a process.
pub fn memcpy_time(programs: &Programs, size: u32) -> io::Result<f64> {
    Ok(microseconds(size, memcpy(programs, size)?))
}

/// How long `size` bytes take at a rate in Gbit/s.
fn microseconds(size: u32, rate: f64) -> f64 {
    f64::from(size) * 8.0 / (rate * 1e3)
}

/// Gbit/s of a pipelined copy from one process to another: into a ring in shared memory, and out of it.
pub fn pipelined_copy(programs: &Programs, size: u32) -> io::Result<f64> {
    copied(programs, "pipeline", size)
}

/// A cache line's round trip between two cores, in ns.
pub fn core_distance(programs: &Programs) -> io::Result<f64> {
    /// Some milliseconds.
    const ROUND_TRIPS: usize = 20_000;
    Ok(2e3 * bare_latency(programs, "ping-pong", ROUND_TRIPS)?)
}

fn copied(programs: &Programs, how: &str, size: u32) -> io::Result<f64> {
    let words = ["raw-memory", how, &size.to_string(), &programs.seconds.to_string()];
    let outcome = ended(programs.own(programs.world.first(), &words).wait(LIMIT))?;
    let (bytes, seconds) = (number_in_line(&outcome, "copied", 1)?, number_in_line(&outcome, "copied", 4)?);
    Ok(bytes * 8.0 / seconds / 1e9)
}

/// Half a round trip between two processes without a library, in µs (a median).
pub fn bare_latency(programs: &Programs, how: &str, round_trips: usize) -> io::Result<f64> {
    let words = ["raw-memory", how, &round_trips.to_string()];
    let outcome = ended(programs.own(programs.world.first(), &words).wait(LIMIT))?;
    number_in_line(&outcome, "median", 1)
}

/// Gbit/s of one of UCX's bandwidth tests.
pub fn ucx_bandwidth(programs: &Programs, transports: &str, test: &str, size: u32) -> io::Result<f64> {
    /// `overall_bw`, in MiB/s.
    const COLUMN: usize = 5;
    let (bytes, messages) = if transports == TCP {
        (UCX_TCP_BYTES_A_SECOND, UCX_TCP_MESSAGES_A_SECOND)
    } else {
        (UCX_BYTES_A_SECOND, UCX_MESSAGES_A_SECOND)
    };
    let iterations = (bytes / u64::from(size)).min(messages) * programs.seconds;
    let mib = ucx(programs, transports, test, size, iterations, COLUMN)?;
    Ok(mib * f64::from(1 << 20) * 8.0 / 1e9)
}

/// Million messages a second of one of UCX's bandwidth tests.
pub fn ucx_messages(programs: &Programs, transports: &str, test: &str, size: u32) -> io::Result<f64> {
    Ok(ucx_bandwidth(programs, transports, test, size)? * 1e3 / (8.0 * f64::from(size)))
}

/// Half a round trip of one of UCX's latency tests, in µs (a median).
pub fn ucx_latency(
    programs: &Programs,
    transports: &str,
    test: &str,
    size: u32,
    round_trips: usize,
) -> io::Result<f64> {
    /// `50.0_percentile_lat`.
    const COLUMN: usize = 1;
    ucx(programs, transports, test, size, round_trips as u64, COLUMN)
}

/// A column of what ucx_perftest prints with `-f -v`: a line of names, a line of figures.
fn ucx(
    programs: &Programs,
    transports: &str,
    test: &str,
    size: u32,
    iterations: u64,
    column: usize,
) -> io::Result<f64> {
    let settings = [("UCX_TLS", transports), ("UCX_LOG_LEVEL", "error")];
    let (size, iterations, warm_up) =
        (size.to_string(), iterations.to_string(), (iterations / 20).max(1).to_string());
    let words = ["ucx_perftest", "-t", test, "-s", &size, "-n", &iterations, "-w", &warm_up, "-f", "-v"];
    let client = with_server(programs, &words, UCX_PORT, &settings)?;
    let figures = client.stdout.lines().last().and_then(|line| line.split(',').nth(column));
    figures.and_then(|figure| figure.trim().parse().ok()).ok_or_else(|| not_understood(&client))
}

/// Half a round trip of fi_pingpong on libfabric's shared memory, in µs (a mean: it prints no median).
pub fn libfabric_latency(programs: &Programs, size: u32, round_trips: usize) -> io::Result<f64> {
    /// `usec/xfer`.
    const COLUMN: usize = 6;
    let (size, round_trips) = (size.to_string(), round_trips.to_string());
    let words = ["fi_pingpong", "-p", "shm", "-e", "rdm", "-S", &size, "-I", &round_trips];
    let client = with_server(programs, &words, LIBFABRIC_PORT, &[])?;
    let line = client.stdout.lines().last().unwrap_or_default();
    let figure = line.split_whitespace().nth(COLUMN).and_then(|figure| figure.parse().ok());
    figure.ok_or_else(|| not_understood(&client))
}

/// Runs a program twice in one host: as a server that listens at a TCP port, and as its client, which gets the host's address.
fn with_server(
    programs: &Programs,
    words: &[&str],
    port: u16,
    settings: &[(&str, &str)],
) -> io::Result<Outcome> {
    let host = programs.world.first();
    let mut server = host.start(&programs.on_its_core(Role::Server, words), settings);
    host.wait_for_listener(port, &mut server, LIMIT);
    let address = host.ipv4();
    let words: Vec<&str> = words.iter().copied().chain([address.as_str()]).collect();
    let client = ended(host.start(&programs.on_its_core(Role::Client, &words), settings).wait(LIMIT))?;
    server.wait(LIMIT);
    Ok(client)
}
