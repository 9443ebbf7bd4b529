//! RC between two hosts joined by veth, beside iperf3 TCP and plain UDP sockets over the same veth, in the same run; and on a
//! network that delays and loses packets, beside one that only delays them.

use super::compare::{self, Comparison, Figure, Floor, Plan};
use super::programs::{LIMIT, PORT, Programs, ended, number_in_line};
use super::report::{Machine, save};
use crate::apt;
use ferroce_tests::World;
use serde::Serialize;
use std::io;

/// The size of a bandwidth message, and of iperf3's writes.
const BLOCK: u32 = 65_536;
/// The size of a message whose time is measured.
const SMALL: u32 = 8;
/// … and of one of many.
const FEW_BYTES: u32 = 64;
const ROUND_TRIPS: usize = 20_000;
/// BTH and ICRC, which every RoCEv2 packet carries beside its payload.
const PACKET_OVERHEAD: u32 = 16;
/// The largest packets on a veth of MTU 9000, and on one of 1500: RoCE's path MTUs.
const JUMBO: u32 = 4096;
const USUAL: u32 = 1024;
/// One way; the other is as long.
const DELAY: &str = "delay=500us";

/// Measures, prints the tables and writes `bench/wire.json` in the target directory.
///
/// # Errors
/// A program isn't installed, fails, or prints something that isn't understood.
pub fn wire(seconds: u64, rounds: usize) -> io::Result<()> {
    apt::install_for_bench();
    let tools = [("iperf3", "iperf3"), ("ib_write_bw", "perftest")];
    let mut networks = Vec::new();
    for (mtu, plans) in [(9000, jumbo_plans()), (1500, usual_plans())] {
        let programs = Programs::new(|| World::two_hosts(mtu), seconds, &tools)?;
        let comparisons = plans.iter().map(Comparison::new).collect();
        networks.push((programs, plans, Network { mtu, comparisons }));
    }
    for round in 1..=rounds {
        for (programs, plans, network) in &mut networks {
            programs.begin_round(round, rounds);
            compare::measure(plans, &mut network.comparisons, programs)?;
        }
    }
    let networks = networks.into_iter().map(|(_, _, network)| network).collect();
    let report = Report { machine: Machine::this(), seconds, networks };
    println!("\n{}", report.machine);
    for network in &report.networks {
        println!("\nveth, MTU {}\n", network.mtu);
        compare::print(&network.comparisons);
    }
    save("wire", &report)
}

/// Everything measured in one run.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    machine: Machine,
    seconds: u64,
    networks: Vec<Network>,
}

/// What was measured on one pair of hosts.
#[derive(Serialize)]
struct Network {
    mtu: u32,
    comparisons: Vec<Comparison>,
}

fn jumbo_plans() -> Vec<Plan> {
    let under_loss = |what, fault: &'static str, floor| {
        let delayed = |is, fault: &'static str| {
            Figure::new(is, move |programs| programs.bandwidth_with_fault("ib_write_bw", fault, BLOCK))
        };
        Plan::new(what, delayed("`ib_write_bw`", fault)).beside(delayed("without losses", DELAY), floor)
    };
    vec![
        Plan::new("64 KiB writes, Gbit/s", writes())
            .beside(tcp(), Floor::AtLeast(1.3))
            .beside(trains(JUMBO), Floor::AtLeast(0.6)),
        Plan::new("8-byte messages, half a round trip, µs", latency())
            .beside(ping_pong(), Floor::AtMost(1.6)),
        Plan::new("64-byte messages, million a second", messages()).beside(datagrams(), Floor::AtLeast(3.0)),
        under_loss(
            "64 KiB writes, 1 ms, 0.01 % lost, Gbit/s",
            "delay=500us,drop=0.01%",
            Floor::AtLeast(0.95),
        ),
        under_loss("64 KiB writes, 1 ms, 0.1 % lost, Gbit/s", "delay=500us,drop=0.1%", Floor::AtLeast(0.8)),
        under_loss("64 KiB writes, 1 ms, 1 % lost, Gbit/s", "delay=500us,drop=1%", Floor::AtLeast(0.4)),
    ]
}

fn usual_plans() -> Vec<Plan> {
    vec![
        Plan::new("64 KiB writes, Gbit/s", writes())
            .beside(tcp(), Floor::AtLeast(1.1))
            .beside(trains(USUAL), Floor::None),
        Plan::new("8-byte messages, half a round trip, µs", latency())
            .beside(ping_pong(), Floor::AtMost(1.6)),
    ]
}

fn writes() -> Figure {
    Figure::new("`ib_write_bw`", |programs| programs.bandwidth("ib_write_bw", BLOCK))
}

fn latency() -> Figure {
    Figure::new("`ib_send_lat`", |programs| programs.latency("ib_send_lat", SMALL, ROUND_TRIPS))
}

fn messages() -> Figure {
    Figure::new("`ib_send_bw`", |programs| programs.messages("ib_send_bw", &[], FEW_BYTES))
}

fn tcp() -> Figure {
    Figure::new("iperf3, TCP, 64 KiB writes", |programs| programs.tcp(BLOCK))
}

/// Gbit/s of a UDP_SEGMENT sender, as received by a UDP_GRO receiver, with datagrams of the size of our packets.
fn trains(path_mtu: u32) -> Figure {
    Figure::new("plain UDP, UDP_SEGMENT and UDP_GRO", move |programs| {
        let segment = path_mtu + PACKET_OVERHEAD;
        let (bytes, seconds) = one_way(programs, "sink", "source", segment)?;
        Ok(bytes * 8.0 / seconds / 1e9)
    })
}

/// Million datagrams a second of the size of our packets, by sendmmsg and recvmmsg.
fn datagrams() -> Figure {
    Figure::new("plain UDP, sendmmsg and recvmmsg", |programs| {
        let (messages, seconds) = one_way(programs, "count", "shower", FEW_BYTES + PACKET_OVERHEAD)?;
        Ok(messages / seconds / 1e6)
    })
}

/// Runs a sender and a receiver of plain UDP; returns what was received, and in how many seconds.
fn one_way(programs: &Programs, receiver: &str, sender: &str, size: u32) -> io::Result<(f64, f64)> {
    let (world, port, size) = (&programs.world, PORT.to_string(), size.to_string());
    let mut received = programs.own(world.last(), &["raw-udp", receiver, &port]);
    received.wait_for_output("ready", LIMIT);
    let (address, seconds) = (world.last().ipv4(), programs.seconds.to_string());
    let words = ["raw-udp", sender, &address, &port, &seconds, &size];
    ended(programs.own(world.first(), &words).wait(LIMIT))?;
    let received = ended(received.wait(LIMIT))?;
    Ok((number_in_line(&received, "received", 1)?, number_in_line(&received, "received", 4)?))
}

/// Half a round trip of a datagram between two polling processes, in µs (a median).
fn ping_pong() -> Figure {
    Figure::new("plain UDP, polled", |programs| {
        let (port, world) = (PORT.to_string(), &programs.world);
        let mut echo = programs.own(world.last(), &["raw-udp", "echo", &port]);
        echo.wait_for_output("ready", LIMIT);
        let (iterations, size) = (ROUND_TRIPS.to_string(), (SMALL + PACKET_OVERHEAD).to_string());
        let address = world.last().ipv4();
        let words = ["raw-udp", "ping", &address, &port, &iterations, &size];
        let ping = ended(programs.own(world.first(), &words).wait(LIMIT))?;
        ended(echo.wait(LIMIT))?;
        number_in_line(&ping, "median", 1)
    })
}
