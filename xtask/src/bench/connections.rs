//! Connections a second through librdmacm, by rdma-core's `cmtime`, and perftest's bandwidth and latency, beside `rdma_rxe` in the
//! same guest.

use super::compare::Floor;
use super::programs::{
    GBITS, LIMIT, PERFTEST_PORT, Programs, ROUND_LIMIT, TYPICAL, column, ended, number_in_line,
};
use super::report::{Machine, Row, save, verdict};
use ferroce_tests::{Artifacts, Fabric, Guest, Outcome, Skip, World};
use serde::Serialize;
use std::io;

/// `RDMA_PS_TCP`.
const TCP: u16 = 0x0106;
/// That of `cmtime`.
const PORT: u16 = 7471;
/// Connections in the guest, whose processor is emulated.
const COUNT_IN_GUEST: u32 = 200;
/// Bytes of a message in the guest whose bandwidth is measured, and of one whose time is.
const BLOCK: u32 = 65_536;
const SMALL: u32 = 8;
/// `rdma_rxe` has UDP port 4791 of the guest until it is gone.
const GIVE_UP_PORT: &str = "rdma link delete rxe0 && rmmod rdma_rxe";

/// Measures, prints the table and writes `bench/connections.json` in the target directory.
///
/// # Errors
/// The build fails, `cmtime` or the guest is missing, or a run ends badly.
pub fn connections(count: u32, rounds: usize) -> io::Result<()> {
    let tools = [("cmtime", "rdmacm-utils"), ("ib_write_bw", "perftest")];
    let one = Programs::new(|| World::one_host(1500), 1, &tools)?;
    let two = Programs::new(|| World::two_hosts(1500), 1, &tools)?;
    let mut report =
        Report { machine: Machine::this(), count, guest_count: COUNT_IN_GUEST, ..Report::default() };
    for round in 1..=rounds {
        one.begin_round(round, rounds);
        two.world.may_last(ROUND_LIMIT);
        report.one_host_shm.add(&between(&one.world, Fabric::Any, count)?)?;
        report.one_host_udp.add(&between(&one.world, Fabric::Udp, count)?)?;
        report.two_hosts.add(&between(&two.world, Fabric::Any, count)?)?;
        // A guest each round: the kernel's adapter has to go before ours can have its port.
        let missing = |skip: Skip| io::Error::other(skip.0);
        let world = World::one_host_with_tap(1500).map_err(missing)?;
        let guest = Guest::start(&world, 1500).map_err(missing)?;
        report.guest_rxe.add(&inside(&guest, "")?)?;
        report.streams_rxe.add(&guest, "")?;
        guest.run(GIVE_UP_PORT);
        let ferroce = Artifacts::get().ferroce();
        let udp = format!("FERROCE_FABRIC=udp {} run -- ", ferroce.display());
        report.guest_udp.add(&inside(&guest, &udp)?)?;
        report.streams_udp.add(&guest, &udp)?;
        report.guest_shm.add(&inside(&guest, &format!("{} run -- ", ferroce.display()))?)?;
    }
    report.print();
    save("connections", &report)
}

/// Connects two processes on a world's hosts.
fn between(world: &World, fabric: Fabric, count: u32) -> io::Result<Outcome> {
    let (address, count) = (world.last().ipv4(), count.to_string());
    let line = |option| ["cmtime", option, &address, "-c", &count];
    let mut server = world.last().start_ferroce(&[], &line("-b"), fabric.settings());
    world.last().wait_for_rdma_port(TCP, PORT, &mut server, LIMIT);
    // The server waits for ever; it ends where it is dropped.
    ended(world.first().start_ferroce(&[], &line("-s"), fabric.settings()).wait(LIMIT))
}

/// Connects two processes in the guest.
fn inside(guest: &Guest<'_>, before: &str) -> io::Result<Outcome> {
    let (address, count) = (guest.ipv4(), COUNT_IN_GUEST);
    let line = |option| format!("{before}cmtime {option} {address} -c {count}");
    let script = format!("{} & sleep 5; {}; code=$?; kill -9 $!; exit $code", line("-b"), line("-s"));
    ended(guest.start_script(&script).wait(3 * LIMIT))
}

/// perftest between two processes of the guest.
#[derive(Default, Serialize)]
struct Streams {
    /// `ib_write_bw`, Gbit/s.
    bandwidth: Row,
    /// `ib_send_lat`, half a round trip, µs.
    latency: Row,
}

impl Streams {
    fn add(&mut self, guest: &Guest<'_>, before: &str) -> io::Result<()> {
        let tool = |words: &str, size: u32, index| {
            let words = format!("{before}{words} -s {size}");
            let mut server = guest.start_server(&[&words], PERFTEST_PORT);
            let client = ended(guest.start_script(&format!("{words} {}", guest.ipv4())).wait(3 * LIMIT));
            server.wait(LIMIT);
            column(&client?, size, index)
        };
        self.bandwidth.add(tool("ib_write_bw -F -D 3 --report_gbits", BLOCK, GBITS)?);
        self.latency.add(tool("ib_send_lat -F -n 2000", SMALL, TYPICAL)?);
        Ok(())
    }
}

/// Milliseconds of all connections together, step by step.
#[derive(Default, Serialize)]
struct Steps {
    resolve_address: Row,
    connect: Row,
    disconnect: Row,
}

impl Steps {
    fn add(&mut self, outcome: &Outcome) -> io::Result<()> {
        self.resolve_address.add(number_in_line(outcome, "resolve", 3)?);
        self.connect.add(number_in_line(outcome, "connect", 2)?);
        self.disconnect.add(number_in_line(outcome, "disconnect", 2)?);
        Ok(())
    }
}

#[derive(Default, Serialize)]
struct Report {
    machine: Machine,
    count: u32,
    guest_count: u32,
    one_host_shm: Steps,
    one_host_udp: Steps,
    two_hosts: Steps,
    guest_rxe: Steps,
    guest_shm: Steps,
    guest_udp: Steps,
    streams_rxe: Streams,
    streams_udp: Streams,
}

impl Report {
    fn print(&self) {
        println!(
            "\n{} connections at once, {} in the guest, whose processor is emulated; {}\n",
            self.count, self.guest_count, self.machine
        );
        println!("| | connections a second | ended a second |\n|---|---|---|");
        let line = |what: &str, count: u32, steps: &Steps| {
            let rate = |row: &Row| f64::from(count) * 1e3 / row.median();
            println!("| {what} | {:.0} | {:.0} |", rate(&steps.connect), rate(&steps.disconnect));
        };
        line("one host, shared memory", self.count, &self.one_host_shm);
        line("one host, UDP", self.count, &self.one_host_udp);
        line("two hosts", self.count, &self.two_hosts);
        line("the kernel's rdma_rxe, in the guest", self.guest_count, &self.guest_rxe);
        line("shared memory, in the guest", self.guest_count, &self.guest_shm);
        line("UDP, in the guest", self.guest_count, &self.guest_udp);
        println!("\n| in the guest | rdma_rxe | Ferroce, UDP | ratio |\n|---|---:|---:|---|");
        let line = |what, [rxe, ours]: [f64; 2], floor: Floor| {
            let ratio = ours / rxe;
            let verdict = verdict(floor.is_reached(ratio));
            println!("| {what} | {rxe:.2} | {ours:.2} | **{ratio:.2}** ({floor}: {verdict}) |");
        };
        let rate = |steps: &Steps| f64::from(self.guest_count) * 1e3 / steps.connect.median();
        let (rxe, udp) = (&self.streams_rxe, &self.streams_udp);
        line("connections a second", [rate(&self.guest_rxe), rate(&self.guest_udp)], Floor::AtLeast(1.0));
        let bandwidths = [rxe.bandwidth.median(), udp.bandwidth.median()];
        line("64 KiB writes, Gbit/s", bandwidths, Floor::AtLeast(2.0));
        let latencies = [rxe.latency.median(), udp.latency.median()];
        line("8-byte messages, half a round trip, µs", latencies, Floor::AtMost(1.2));
    }
}
