//! Two processes of one host over shared memory, beside UCX's shared memory, TCP, and what the machine itself can do, in
//! the same run.

use super::programs::{LIMIT, Programs, ended, not_understood, number_in_line};
use super::report::{Machine, Row, save};
use crate::packages;
use ferroce_tests::World;
use serde::Serialize;
use std::io;

const KIB_64: u32 = 65_536;
const MIB_1: u32 = 1 << 20;
const SMALL: u32 = 8;
const ROUND_TRIPS: usize = 20_000;
/// How much UCX sends a second of measurement: it counts messages, not seconds.
const UCX_BYTES_A_SECOND: u64 = 4 << 30;
const UCX_PORT: u16 = 13_337;

/// Measures, prints the table and writes `bench/local.json` in the target directory.
///
/// # Errors
/// A program isn't installed, fails, or prints something that isn't understood.
pub fn local(seconds: u64, rounds: usize) -> io::Result<()> {
    packages::install_for_bench();
    let tools = [("iperf3", "iperf3"), ("ib_write_bw", "perftest"), ("ucx_perftest", "ucx-utils")];
    let programs = Programs::new(|| World::one_host(9000), seconds, &tools)?;
    let copy = "`process_vm_writev`";
    let line = "a polled cache line";
    let mut comparisons = [
        Comparison::new("64 KiB writes, Gbit/s", copy, "UCX posix, `ucp_put_bw`", "`ib_write_bw`"),
        Comparison::new("1 MiB writes, Gbit/s", copy, "UCX posix, `ucp_put_bw`", "`ib_write_bw`"),
        Comparison::new("64 KiB messages, Gbit/s", copy, "UCX posix, `tag_bw`", "`ib_send_bw`"),
        Comparison::new(
            "8-byte writes, half a round trip, µs",
            line,
            "UCX posix, `ucp_put_lat`",
            "`ib_write_lat`",
        ),
        Comparison::new(
            "8-byte messages, half a round trip, µs",
            line,
            "UCX posix, `tag_lat`",
            "`ib_send_lat`",
        ),
    ];
    let mut tcp = Row::default();
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        let [write, large_write, send, write_latency, send_latency] = &mut comparisons;
        tcp.add(programs.tcp(KIB_64)?);
        let bare = bare_copy(&programs, KIB_64)?;
        write.add(
            bare,
            ucx_bandwidth(&programs, "ucp_put_bw", KIB_64)?,
            programs.bandwidth("ib_write_bw", KIB_64)?,
        );
        send.add(
            bare,
            ucx_bandwidth(&programs, "tag_bw", KIB_64)?,
            programs.bandwidth("ib_send_bw", KIB_64)?,
        );
        large_write.add(
            bare_copy(&programs, MIB_1)?,
            ucx_bandwidth(&programs, "ucp_put_bw", MIB_1)?,
            programs.bandwidth("ib_write_bw", MIB_1)?,
        );
        let bare = bare_latency(&programs)?;
        write_latency.add(
            bare,
            ucx_latency(&programs, "ucp_put_lat")?,
            programs.latency("ib_write_lat", SMALL, ROUND_TRIPS)?,
        );
        send_latency.add(
            bare,
            ucx_latency(&programs, "tag_lat")?,
            programs.latency("ib_send_lat", SMALL, ROUND_TRIPS)?,
        );
    }
    let report = Report { machine: Machine::this(), seconds, tcp, comparisons };
    report.print();
    save("local", &report)
}

/// Everything measured in one run.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    machine: Machine,
    seconds: u64,
    /// iperf3 TCP with 64 KiB writes, Gbit/s.
    tcp: Row,
    comparisons: [Comparison; 5],
}

/// A figure of ours beside two others.
#[derive(Serialize)]
struct Comparison {
    what: &'static str,
    limit_is: &'static str,
    limit: Row,
    peer_is: &'static str,
    peer: Row,
    ours_is: &'static str,
    ours: Row,
    ratio_to_limit: f64,
    ratio_to_peer: f64,
}

impl Comparison {
    fn new(what: &'static str, limit_is: &'static str, peer_is: &'static str, ours_is: &'static str) -> Self {
        let (limit, peer, ours) = <(Row, Row, Row)>::default();
        Self { what, limit_is, limit, peer_is, peer, ours_is, ours, ratio_to_limit: 0.0, ratio_to_peer: 0.0 }
    }

    /// Adds a round.
    fn add(&mut self, limit: f64, peer: f64, ours: f64) {
        self.limit.add(limit);
        self.peer.add(peer);
        self.ours.add(ours);
        self.ratio_to_limit = self.ours.median() / self.limit.median();
        self.ratio_to_peer = self.ours.median() / self.peer.median();
    }
}

impl Report {
    /// Prints the table, in Markdown.
    fn print(&self) {
        println!("\n{}\n", self.machine);
        println!("| | limit | UCX | Ferroce | × UCX | × limit |");
        println!("|---|---:|---:|---:|---:|---:|");
        for row in &self.comparisons {
            println!(
                "| {} | {:.2} ({}) | {:.2} ({}) | **{:.2}** ({}) | {:.2} | {:.2} |",
                row.what,
                row.limit.median(),
                row.limit_is,
                row.peer.median(),
                row.peer_is,
                row.ours.median(),
                row.ours_is,
                row.ratio_to_peer,
                row.ratio_to_limit
            );
        }
        println!("\niperf3, TCP within the host, 64 KiB writes: {:.2} Gbit/s", self.tcp.median());
    }
}

/// Gbit/s of process_vm_writev.
fn bare_copy(programs: &Programs, size: u32) -> io::Result<f64> {
    let words = ["raw-memory", "copy", &size.to_string(), &programs.seconds.to_string()];
    let outcome = ended(programs.own(programs.world.first(), &words).wait(LIMIT))?;
    let (bytes, seconds) = (number_in_line(&outcome, "copied", 1)?, number_in_line(&outcome, "copied", 4)?);
    Ok(bytes * 8.0 / seconds / 1e9)
}

/// Half a round trip of a cache line between two polling processes, in µs (a median).
fn bare_latency(programs: &Programs) -> io::Result<f64> {
    let words = ["raw-memory", "ping-pong", &ROUND_TRIPS.to_string()];
    let outcome = ended(programs.own(programs.world.first(), &words).wait(LIMIT))?;
    number_in_line(&outcome, "median", 1)
}

/// Gbit/s of one of UCX's bandwidth tests.
fn ucx_bandwidth(programs: &Programs, test: &str, size: u32) -> io::Result<f64> {
    /// `overall_bw`, in MiB/s.
    const COLUMN: usize = 5;
    let iterations = UCX_BYTES_A_SECOND * programs.seconds / u64::from(size);
    let mib = ucx(programs, test, size, iterations, COLUMN)?;
    Ok(mib * f64::from(1 << 20) * 8.0 / 1e9)
}

/// Half a round trip of one of UCX's latency tests, in µs (a median).
fn ucx_latency(programs: &Programs, test: &str) -> io::Result<f64> {
    /// `50.0_percentile_lat`.
    const COLUMN: usize = 1;
    ucx(programs, test, SMALL, ROUND_TRIPS as u64, COLUMN)
}

/// A column of what ucx_perftest prints with `-f -v`: a line of names, a line of figures.
fn ucx(programs: &Programs, test: &str, size: u32, iterations: u64, column: usize) -> io::Result<f64> {
    let settings = [("UCX_TLS", "posix,self"), ("UCX_LOG_LEVEL", "error")];
    let (size, iterations, warm_up) =
        (size.to_string(), iterations.to_string(), (iterations / 20).to_string());
    let host = programs.world.first();
    let words = ["ucx_perftest", "-t", test, "-s", &size, "-n", &iterations, "-w", &warm_up, "-f", "-v"];
    let mut server = host.start(&words, &settings);
    host.wait_for_listener(UCX_PORT, &mut server, LIMIT);
    let address = host.ipv4();
    let words: Vec<&str> = words.into_iter().chain([address.as_str()]).collect();
    let client = ended(host.start(&words, &settings).wait(LIMIT))?;
    server.wait(LIMIT);
    let figures = client.stdout.lines().last().and_then(|line| line.split(',').nth(column));
    figures.and_then(|figure| figure.trim().parse().ok()).ok_or_else(|| not_understood(&client))
}
