//! RC between two hosts joined by veth, beside iperf3 TCP and plain UDP sockets over the same veth, in the same run.

use super::programs::{LIMIT, PORT, Programs, ended, number_in_line};
use super::report::{Machine, Row, save, verdict};
use crate::apt;
use ferroce_tests::World;
use serde::Serialize;
use std::io;

/// The size of a bandwidth message, and of iperf3's writes.
const BLOCK: u32 = 65_536;
/// The size of a latency message: perftest's default.
const SMALL: u32 = 2;
const ROUND_TRIPS: usize = 20_000;
/// BTH and ICRC, which every RoCEv2 packet carries beside its payload.
const PACKET_OVERHEAD: u32 = 16;
/// The least share of iperf3's bandwidth that is aimed at.
const LEAST_BANDWIDTH: f64 = 0.5;
/// The largest multiple of plain UDP's latency that is aimed at.
const MOST_LATENCY: f64 = 3.0;

/// Measures, prints the table and writes `bench/wire.json` in the target directory.
///
/// # Errors
/// A program isn't installed, fails, or prints something that isn't understood.
pub fn wire(seconds: u64, rounds: usize, mtu: u32) -> io::Result<()> {
    apt::install_for_bench();
    let tools = [("iperf3", "iperf3"), ("ib_write_bw", "perftest")];
    let programs = Programs::new(|| World::two_hosts(mtu), seconds, &tools)?;
    let mut report = Report { machine: Machine::this(), mtu, seconds, ..Report::default() };
    for round in 1..=rounds {
        programs.begin_round(round, rounds);
        report.tcp.add(programs.tcp(BLOCK)?);
        report.raw_udp.add(raw_udp(&programs, mtu)?);
        report.write_bw.add(programs.bandwidth("ib_write_bw", BLOCK)?);
        report.raw_latency.add(raw_latency(&programs)?);
        report.send_lat.add(programs.latency("ib_send_lat", SMALL, ROUND_TRIPS)?);
    }
    report.print();
    save("wire", &report)
}

/// Everything measured in one run.
#[derive(Default, Serialize)]
struct Report {
    #[serde(flatten)]
    machine: Machine,
    mtu: u32,
    seconds: u64,
    /// iperf3 TCP, Gbit/s.
    tcp: Row,
    /// Plain UDP with UDP_SEGMENT and UDP_GRO, Gbit/s as received.
    raw_udp: Row,
    /// ib_write_bw, Gbit/s.
    write_bw: Row,
    /// Plain UDP, half a round trip, µs.
    raw_latency: Row,
    /// ib_send_lat, half a round trip, µs.
    send_lat: Row,
    bandwidth_ratio: f64,
    latency_ratio: f64,
}

impl Report {
    /// Prints the table, in Markdown.
    fn print(&mut self) {
        self.bandwidth_ratio = self.write_bw.median() / self.tcp.median();
        self.latency_ratio = self.send_lat.median() / self.raw_latency.median();
        println!("\n{}, veth MTU {}\n", self.machine, self.mtu);
        println!("| 64 KiB messages, one way | Gbit/s |");
        println!("|---|---:|");
        println!("| iperf3, TCP, 64 KiB writes | {:.2} |", self.tcp.median());
        println!("| plain UDP, UDP_SEGMENT and UDP_GRO | {:.2} |", self.raw_udp.median());
        println!("| `ib_write_bw`, RC | {:.2} |", self.write_bw.median());
        println!("\n| 2-byte messages, half a round trip | µs |");
        println!("|---|---:|");
        println!("| plain UDP, polled | {:.2} |", self.raw_latency.median());
        println!("| `ib_send_lat`, RC | {:.2} |", self.send_lat.median());
        println!(
            "\nbandwidth: {:.2} x iperf3 (aim: at least {LEAST_BANDWIDTH}: {})",
            self.bandwidth_ratio,
            verdict(self.bandwidth_ratio >= LEAST_BANDWIDTH)
        );
        println!(
            "latency:   {:.2} x plain UDP (aim: at most {MOST_LATENCY}: {})",
            self.latency_ratio,
            verdict(self.latency_ratio <= MOST_LATENCY)
        );
    }
}

/// Gbit/s of a UDP_SEGMENT sender, as received by a UDP_GRO receiver, with datagrams of the size of our packets.
fn raw_udp(programs: &Programs, mtu: u32) -> io::Result<f64> {
    let path_mtu = if mtu >= 4096 + 80 { 4096 } else { 1024 };
    let (port, segment) = (PORT.to_string(), (path_mtu + PACKET_OVERHEAD).to_string());
    let world = &programs.world;
    let mut sink = programs.own(world.last(), &["raw-udp", "sink", &port]);
    sink.wait_for_output("ready", LIMIT);
    let (address, seconds) = (world.last().ipv4(), programs.seconds.to_string());
    let words = ["raw-udp", "source", &address, &port, &seconds, &segment];
    ended(programs.own(world.first(), &words).wait(LIMIT))?;
    let sink = ended(sink.wait(LIMIT))?;
    let (bytes, seconds) = (number_in_line(&sink, "received", 1)?, number_in_line(&sink, "received", 4)?);
    Ok(bytes * 8.0 / seconds / 1e9)
}

/// Half a round trip of a datagram between two polling processes, in µs (a median).
fn raw_latency(programs: &Programs) -> io::Result<f64> {
    let (port, world) = (PORT.to_string(), &programs.world);
    let mut echo = programs.own(world.last(), &["raw-udp", "echo", &port]);
    echo.wait_for_output("ready", LIMIT);
    let (iterations, size) = (ROUND_TRIPS.to_string(), (SMALL + PACKET_OVERHEAD).to_string());
    let address = world.last().ipv4();
    let words = ["raw-udp", "ping", &address, &port, &iterations, &size];
    let ping = ended(programs.own(world.first(), &words).wait(LIMIT))?;
    ended(echo.wait(LIMIT))?;
    number_in_line(&ping, "median", 1)
}
