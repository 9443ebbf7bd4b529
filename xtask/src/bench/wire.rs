//! RC between two hosts joined by veth, beside iperf3 TCP and plain UDP sockets over the same veth, in the same run.

use super::report::Report;
use crate::{dist, packages};
use ferroce_tests::{Artifacts, Fabric, Host, Outcome, Pair, World, tool};
use std::io;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 5201;
/// The size of a bandwidth message, and of iperf3's writes.
const BLOCK: u32 = 65_536;
/// The size of a latency message: perftest's default.
const SMALL: usize = 2;
const ROUND_TRIPS: usize = 20_000;
/// BTH and ICRC, which every RoCEv2 packet carries beside its payload.
const PACKET_OVERHEAD: u16 = 16;

/// Measures, prints the table and writes `bench/wire.json` in the target directory.
///
/// # Errors
/// A program isn't installed, fails, or prints something that isn't understood.
pub fn wire(seconds: u64, rounds: usize, mtu: u32) -> io::Result<()> {
    packages::install_for_bench();
    dist::dist("release")?;
    let needed = |program, package| tool(program, package).map_err(|skip| io::Error::other(skip.0));
    needed("iperf3", "iperf3")?;
    needed("ib_write_bw", "perftest")?;
    let own = Artifacts::get().stage_program(&std::env::current_exe()?)?;
    let world = World::two_hosts(mtu).map_err(|skip| io::Error::other(skip.0))?;
    let bench = Wire { world: &world, own: &own, seconds, mtu };

    let mut report = Report::new(mtu, seconds);
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        report.tcp.add(bench.tcp()?);
        report.raw_udp.add(bench.raw_udp()?);
        report.write_bw.add(bench.write_bandwidth()?);
        report.raw_latency.add(bench.raw_latency()?);
        report.send_lat.add(bench.send_latency()?);
    }
    report.print();
    let path = dist::target().join("bench/wire.json");
    report.write(&path)?;
    println!("\nwritten to {}", path.display());
    Ok(())
}

struct Wire<'w> {
    world: &'w World,
    own: &'w Path,
    seconds: u64,
    mtu: u32,
}

impl Wire<'_> {
    /// Gbit/s of iperf3 with one connection, as received.
    fn tcp(&self) -> io::Result<f64> {
        let mut server = self.world.last().start(&["iperf3", "-s", "-1", "-p", &PORT.to_string()], &[]);
        self.world.last().wait_for_listener(PORT, &mut server, LIMIT);
        let (address, port) = (self.world.last().ipv4(), PORT.to_string());
        let (seconds, block) = (self.seconds.to_string(), BLOCK.to_string());
        let words = ["iperf3", "-c", &address, "-p", &port, "-t", &seconds, "-l", &block, "-J"];
        let client = ended(self.world.first().start(&words, &[]).wait(LIMIT))?;
        server.wait(LIMIT);
        let report: serde_json::Value = serde_json::from_str(&client.stdout)?;
        report["end"]["sum_received"]["bits_per_second"]
            .as_f64()
            .map(|bits| bits / 1e9)
            .ok_or_else(|| not_understood(&client))
    }

    /// Gbit/s of a UDP_SEGMENT sender, as received by a UDP_GRO receiver, with datagrams of the size of our packets.
    fn raw_udp(&self) -> io::Result<f64> {
        let path_mtu = if self.mtu >= 4096 + 80 { 4096 } else { 1024 };
        let segment = (path_mtu + PACKET_OVERHEAD).to_string();
        let mut sink = self.raw(self.world.last(), &["sink", &PORT.to_string()]);
        sink.wait_for_output("ready", LIMIT);
        let address = self.world.last().ipv4();
        let words = ["source", &address, &PORT.to_string(), &self.seconds.to_string(), &segment];
        ended(self.raw(self.world.first(), &words).wait(LIMIT))?;
        let sink = ended(sink.wait(LIMIT))?;
        let line = sink.stdout.lines().find(|line| line.starts_with("received "));
        let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
        match (
            words.get(1).and_then(|w| w.parse::<f64>().ok()),
            words.get(4).and_then(|w| w.parse::<f64>().ok()),
        ) {
            (Some(bytes), Some(seconds)) if seconds > 0.0 => Ok(bytes * 8.0 / seconds / 1e9),
            _ => Err(not_understood(&sink)),
        }
    }

    /// Gbit/s of ib_write_bw.
    fn write_bandwidth(&self) -> io::Result<f64> {
        let (size, seconds) = (BLOCK.to_string(), self.seconds.to_string());
        let words = ["ib_write_bw", "-F", "-s", &size, "-D", &seconds, "--report_gbits"];
        let client = self.perftest(&words)?;
        column(&client, BLOCK as usize, 3)
    }

    /// Half a round trip of ib_send_lat, in µs (its `t_typical`, a median).
    fn send_latency(&self) -> io::Result<f64> {
        let words = ["ib_send_lat", "-F", "-s", &SMALL.to_string(), "-n", &ROUND_TRIPS.to_string()];
        let client = self.perftest(&words)?;
        column(&client, SMALL, 4)
    }

    /// Half a round trip of a datagram between two polling processes, in µs (a median).
    fn raw_latency(&self) -> io::Result<f64> {
        let mut echo = self.raw(self.world.last(), &["echo", &PORT.to_string()]);
        echo.wait_for_output("ready", LIMIT);
        let size = (SMALL + usize::from(PACKET_OVERHEAD)).to_string();
        let address = self.world.last().ipv4();
        let words = ["ping", &address, &PORT.to_string(), &ROUND_TRIPS.to_string(), &size];
        let ping = ended(self.raw(self.world.first(), &words).wait(LIMIT))?;
        ended(echo.wait(LIMIT))?;
        let figure = ping.stdout.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        figure.ok_or_else(|| not_understood(&ping))
    }

    fn perftest(&self, words: &[&str]) -> io::Result<Outcome> {
        let outcome = Pair::new(self.world, Fabric::Any).run(words);
        if outcome.client.success() && outcome.server.success() {
            Ok(outcome.client)
        } else {
            Err(io::Error::other(outcome.to_string()))
        }
    }

    fn raw(&self, host: &Host, words: &[&str]) -> ferroce_tests::Process {
        let own = self.own.display().to_string();
        let line: Vec<&str> = [own.as_str(), "bench", "raw-udp"].iter().chain(words).copied().collect();
        host.start(&line, &[])
    }
}

fn ended(outcome: Outcome) -> io::Result<Outcome> {
    if outcome.success() { Ok(outcome) } else { Err(io::Error::other(outcome.to_string())) }
}

fn not_understood(outcome: &Outcome) -> io::Error {
    io::Error::other(format!("output that isn't understood:\n{outcome}"))
}

/// A column of perftest's line for messages of `size` bytes.
fn column(outcome: &Outcome, size: usize, index: usize) -> io::Result<f64> {
    let size = size.to_string();
    outcome
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|columns| columns.first() == Some(&size.as_str()) && columns.len() > index)
        .and_then(|columns| columns[index].parse().ok())
        .ok_or_else(|| not_understood(outcome))
}
