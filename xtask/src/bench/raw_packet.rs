//! Ethernet frames of raw packet QPs between two hosts joined by veth, beside a plain packet socket in C, in the same run.

use super::programs::{LIMIT, Programs, ended, number_in_line};
use super::report::{Machine, Row, save};
use ferroce_tests::{Artifacts, Host, Outcome, Process, Skip, World};
use serde::Serialize;
use std::io;

/// The shortest and the longest frame of the veth pair, without check sequence.
const SIZES: [u32; 2] = [60, 1514];
const MTU: u32 = 1500;
const ROUND_TRIPS: u32 = 20_000;

/// Measures, prints the table and writes `bench/raw.json` in the target directory.
///
/// # Errors
/// The build or a program fails, or this machine lets us make no hosts.
pub fn raw(seconds: u64, rounds: usize) -> io::Result<()> {
    let programs = Programs::new(|| World::two_hosts(MTU), seconds, &[])?;
    let program =
        Artifacts::get().c_program("bench/frames").map_err(|skip: Skip| io::Error::other(skip.0))?;
    let frames = Frames { world: &programs.world, program, seconds };
    let mut report = Report { machine: Machine::this(), seconds, ..Report::default() };
    report.sizes = SIZES.map(|size| Size { size, ..Size::default() });
    for round in 1..=rounds {
        programs.begin_round(round, rounds);
        for row in &mut report.sizes {
            row.limit.add(frames.unheard(row.size)?);
            row.socket.add(frames.rate("socket", row.size)?);
            row.verbs.add(frames.rate("verbs", row.size)?);
        }
        report.socket_latency.add(frames.latency("socket")?);
        report.verbs_latency.add(frames.latency("verbs")?);
    }
    report.print();
    save("raw", &report)
}

/// The C program, by queue pairs ("verbs") or by a packet socket ("socket").
struct Frames<'a> {
    world: &'a World,
    program: String,
    seconds: u64,
}

impl Frames<'_> {
    fn start(&self, host: &Host, by: &str, what: &str, size: u32, more: u64) -> Process {
        let (size, more) = (size.to_string(), more.to_string());
        let words = [self.program.as_str(), by, what, size.as_str(), more.as_str()];
        host.start_ferroce_privileged(&[], &words, &[])
    }

    /// Frames per second as received.
    fn rate(&self, by: &str, size: u32) -> io::Result<f64> {
        let mut receiver = self.start(self.world.last(), by, "receive", size, 0);
        receiver.wait_for_output("ready", LIMIT);
        ended(self.start(self.world.first(), by, "send", size, self.seconds).wait(LIMIT))?;
        per_second(&ended(receiver.wait(LIMIT))?, "received")
    }

    /// Frames per second that a packet socket sends without a receiver.
    fn unheard(&self, size: u32) -> io::Result<f64> {
        let sender = self.start(self.world.first(), "socket", "send", size, self.seconds).wait(LIMIT);
        per_second(&ended(sender)?, "sent")
    }

    /// Half a round trip, in µs (a median).
    fn latency(&self, by: &str) -> io::Result<f64> {
        let mut echo = self.start(self.world.last(), by, "echo", SIZES[0], 0);
        echo.wait_for_output("ready", LIMIT);
        let ping = self.start(self.world.first(), by, "ping", SIZES[0], ROUND_TRIPS.into()).wait(LIMIT);
        let median = number_in_line(&ended(ping)?, "median", 1)?;
        ended(echo.wait(LIMIT))?;
        Ok(median)
    }
}

fn per_second(outcome: &Outcome, what: &str) -> io::Result<f64> {
    Ok(number_in_line(outcome, what, 1)? / number_in_line(outcome, what, 4)?)
}

/// Everything measured in one run.
#[derive(Default, Serialize)]
struct Report {
    #[serde(flatten)]
    machine: Machine,
    seconds: u64,
    sizes: [Size; 2],
    /// A packet socket, polled, half a round trip of the shortest frame, µs.
    socket_latency: Row,
    /// Raw packet QPs, likewise.
    verbs_latency: Row,
    latency_ratio: f64,
}

/// Frames per second of one size.
#[derive(Default, Serialize)]
struct Size {
    /// Bytes of a frame.
    size: u32,
    /// sendmmsg without a receiver.
    limit: Row,
    /// sendmmsg and recvmmsg, as received.
    socket: Row,
    /// Raw packet QPs, as received.
    verbs: Row,
    ratio: f64,
}

impl Report {
    /// Prints the table, in Markdown.
    fn print(&mut self) {
        println!("\n{}, veth MTU {MTU}\n", self.machine);
        println!("| frame | sendmmsg, no receiver | packet socket | raw packet QP | of the socket's |");
        println!("|---:|---:|---:|---:|---:|");
        for row in &mut self.sizes {
            row.ratio = row.verbs.median() / row.socket.median();
            let [limit, socket, verbs] =
                [&row.limit, &row.socket, &row.verbs].map(|rate| rate.median() / 1000.0);
            let (size, ratio) = (row.size, row.ratio);
            println!("| {size} bytes | {limit:.0} k/s | {socket:.0} k/s | {verbs:.0} k/s | {ratio:.2} |");
        }
        self.latency_ratio = self.verbs_latency.median() / self.socket_latency.median();
        println!("\n| {}-byte frames, half a round trip, polled | µs |", SIZES[0]);
        println!("|---|---:|");
        println!("| packet socket | {:.2} |", self.socket_latency.median());
        println!("| raw packet QP | {:.2} ({:.2} x) |", self.verbs_latency.median(), self.latency_ratio);
    }
}
