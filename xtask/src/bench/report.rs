//! Figures of a run: medians, ratios, a table, JSON.

use serde::Serialize;
use std::path::Path;
use std::{fs, io};

/// The least share of iperf3's bandwidth that is aimed at.
const LEAST_BANDWIDTH: f64 = 0.5;
/// The largest multiple of plain UDP's latency that is aimed at.
const MOST_LATENCY: f64 = 3.0;

/// One figure, measured once a round.
#[derive(Default, Serialize)]
pub struct Row {
    rounds: Vec<f64>,
    median: f64,
}

impl Row {
    /// Adds a round's value.
    pub fn add(&mut self, value: f64) {
        self.rounds.push(value);
        let mut sorted = self.rounds.clone();
        sorted.sort_by(f64::total_cmp);
        self.median = sorted[sorted.len() / 2];
    }
}

/// Everything measured in one run of `bench wire`.
#[derive(Serialize)]
pub struct Report {
    version: &'static str,
    kernel: String,
    processor: String,
    cores: usize,
    mtu: u32,
    seconds: u64,
    /// iperf3 TCP, Gbit/s.
    pub tcp: Row,
    /// Plain UDP with UDP_SEGMENT and UDP_GRO, Gbit/s as received.
    pub raw_udp: Row,
    /// ib_write_bw, Gbit/s.
    pub write_bw: Row,
    /// Plain UDP, half a round trip, µs.
    pub raw_latency: Row,
    /// ib_send_lat, half a round trip, µs.
    pub send_lat: Row,
    bandwidth_ratio: f64,
    latency_ratio: f64,
}

impl Report {
    /// An empty report of this machine.
    pub fn new(mtu: u32, seconds: u64) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let processor = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| {
                line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name.to_owned())
            })
            .unwrap_or_else(|| "unknown".into());
        Self {
            version: env!("CARGO_PKG_VERSION"),
            kernel: read("/proc/sys/kernel/osrelease").trim().into(),
            processor,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            mtu,
            seconds,
            tcp: Row::default(),
            raw_udp: Row::default(),
            write_bw: Row::default(),
            raw_latency: Row::default(),
            send_lat: Row::default(),
            bandwidth_ratio: 0.0,
            latency_ratio: 0.0,
        }
    }

    /// Prints the table, in Markdown.
    pub fn print(&mut self) {
        self.bandwidth_ratio = self.write_bw.median / self.tcp.median;
        self.latency_ratio = self.send_lat.median / self.raw_latency.median;
        println!(
            "\n{} ({} cores), Linux {}, veth MTU {}\n",
            self.processor, self.cores, self.kernel, self.mtu
        );
        println!("| 64 KiB messages, one way | Gbit/s |");
        println!("|---|---:|");
        println!("| iperf3, TCP, 64 KiB writes | {:.2} |", self.tcp.median);
        println!("| plain UDP, UDP_SEGMENT and UDP_GRO | {:.2} |", self.raw_udp.median);
        println!("| `ib_write_bw`, RC | {:.2} |", self.write_bw.median);
        println!("\n| 2-byte messages, half a round trip | µs |");
        println!("|---|---:|");
        println!("| plain UDP, polled | {:.2} |", self.raw_latency.median);
        println!("| `ib_send_lat`, RC | {:.2} |", self.send_lat.median);
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

    /// Writes everything as JSON.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, serde_json::to_string_pretty(self)? + "\n")
    }
}

fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "NOT reached" }
}
