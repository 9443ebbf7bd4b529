//! Two processes of one host over shared memory, each on a core of its own, beside UCX's shared memory, TCP, and what the
//! machine itself can do, in the same run.

use super::compare::{self, Comparison, Figure, Floor, Plan};
use super::peers::{
    POSIX, POSIX_CMA, bare_copy, bare_copy_time, bare_latency, pipelined_copy, ucx_bandwidth, ucx_latency,
    ucx_messages,
};
use super::programs::Programs;
use super::report::{Machine, save};
use crate::apt;
use ferroce_tests::World;
use serde::Serialize;
use std::io;

const KIB_64: u32 = 65_536;
const MIB_1: u32 = 1 << 20;
const MIB_8: u32 = 8 << 20;
const SMALL: u32 = 8;
const ROUND_TRIPS: usize = 20_000;

/// Measures the rows whose name contains `only`, prints the table and writes `bench/local.json` in the target directory.
///
/// # Errors
/// A program isn't installed, fails, or prints something that isn't understood.
pub fn local(seconds: u64, rounds: usize, only: &str) -> io::Result<()> {
    apt::install_for_bench();
    let tools = [("iperf3", "iperf3"), ("ib_write_bw", "perftest"), ("ucx_perftest", "ucx-utils")];
    let mut programs = Programs::new(|| World::one_host(9000), seconds, &tools)?;
    programs.pin();
    let mut plans = plans();
    plans.retain(|plan| plan.what().contains(only));
    let mut comparisons: Vec<Comparison> = plans.iter().map(Comparison::new).collect();
    for round in 1..=rounds {
        programs.begin_round(round, rounds);
        compare::measure(&plans, &mut comparisons, &programs)?;
    }
    let report = Report { machine: Machine::this(), seconds, comparisons };
    println!("\n{}\n", report.machine);
    compare::print(&report.comparisons);
    save("local", &report)
}

/// Everything measured in one run.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    machine: Machine,
    seconds: u64,
    comparisons: Vec<Comparison>,
}

/// What is compared.
fn plans() -> Vec<Plan> {
    let copy = |size| {
        Figure::new("the better of `process_vm_writev` and a copy through a ring", move |programs| {
            Ok(bare_copy(programs, size)?.max(pipelined_copy(programs, size)?))
        })
    };
    let put = |size| {
        Figure::new("UCX posix, `ucp_put_bw`", move |programs| {
            ucx_bandwidth(programs, POSIX, "ucp_put_bw", size)
        })
    };
    let tag = |size| {
        Figure::new("UCX posix and cma, `tag_bw`", move |programs| {
            ucx_bandwidth(programs, POSIX_CMA, "tag_bw", size)
        })
    };
    let bandwidth = |is, tool, size| Figure::new(is, move |programs| programs.bandwidth(tool, size));
    let latency = |is, tool| Figure::new(is, move |programs| programs.latency(tool, SMALL, ROUND_TRIPS));
    let ucx =
        |is, test| Figure::new(is, move |programs| ucx_latency(programs, POSIX, test, SMALL, ROUND_TRIPS));
    let line =
        || Figure::new("a polled cache line", |programs| bare_latency(programs, "ping-pong", ROUND_TRIPS));
    let send_and_answer = || latency("two of `ib_send_lat`", "ib_send_lat").map(|half| 2.0 * half);
    let mut plans = Vec::new();
    let writes = ["64 KiB writes, Gbit/s", "1 MiB writes, Gbit/s", "8 MiB writes, Gbit/s"];
    let reads = ["64 KiB reads, Gbit/s", "1 MiB reads, Gbit/s", "8 MiB reads, Gbit/s"];
    for (is, tool, names) in [("`ib_write_bw`", "ib_write_bw", writes), ("`ib_read_bw`", "ib_read_bw", reads)]
    {
        for (what, size) in names.into_iter().zip([KIB_64, MIB_1, MIB_8]) {
            let plan = Plan::new(what, bandwidth(is, tool, size));
            plans.push(plan.beside(copy(size), Floor::AtLeast(0.95)).beside(put(size), Floor::None));
        }
    }
    let threads = |is, threads| Figure::new(is, move |programs| programs.threads(threads, MIB_1));
    plans.extend([
        Plan::new("1 MiB writes of two threads, Gbit/s", threads("two queue pairs", 2))
            .beside(threads("one thread and queue pair", 1), Floor::AtLeast(1.0)),
        Plan::new("64 KiB messages, Gbit/s", bandwidth("`ib_send_bw`", "ib_send_bw", KIB_64))
            .beside(tag(KIB_64), Floor::AtLeast(1.1))
            .beside(Figure::new("iperf3, TCP", |programs| programs.tcp(KIB_64)), Floor::None),
        Plan::new("1 MiB messages, Gbit/s", bandwidth("`ib_send_bw`", "ib_send_bw", MIB_1))
            .beside(tag(MIB_1), Floor::AtLeast(1.1)),
        Plan::new(
            "8-byte messages, million a second",
            Figure::new("`ib_send_bw`", |programs| programs.messages("ib_send_bw", &[], SMALL)),
        )
        .beside(
            Figure::new("UCX posix, `tag_bw`", |programs| ucx_messages(programs, POSIX, "tag_bw", SMALL)),
            Floor::AtLeast(1.0),
        ),
        Plan::new("8-byte messages, half a round trip, µs", latency("`ib_send_lat`", "ib_send_lat"))
            .beside(ucx("UCX posix, `tag_lat`", "tag_lat"), Floor::AtMost(1.1))
            .beside(line(), Floor::None),
        Plan::new(
            "8-byte messages with events, half a round trip, µs",
            Figure::new("`ib_send_lat -e`", |programs| {
                programs.latency_of("ib_send_lat", &["-e"], SMALL, ROUND_TRIPS)
            }),
        )
        .beside(
            Figure::new("eventfds and epoll", |programs| bare_latency(programs, "events", ROUND_TRIPS)),
            Floor::AtMost(0.5),
        ),
        Plan::new("8-byte writes, half a round trip, µs", latency("`ib_write_lat`", "ib_write_lat")).beside(
            Figure::new("`process_vm_writev` and a polled cache line", |programs| {
                Ok(bare_copy_time(programs, SMALL)? + bare_latency(programs, "ping-pong", ROUND_TRIPS)?)
            }),
            Floor::None,
        ),
        Plan::new(
            "64 KiB writes to memory that can be shared, Gbit/s",
            Figure::new("`ib_write_bw --mmap`", |programs| {
                programs.bandwidth_of_files("ib_write_bw", KIB_64)
            }),
        )
        .beside(put(KIB_64), Floor::AtLeast(0.9)),
        Plan::new(
            "8-byte writes to memory that can be shared, half a round trip, µs",
            Figure::new("`ib_write_lat --mmap`", |programs| {
                programs.latency_of_files("ib_write_lat", SMALL, ROUND_TRIPS)
            }),
        )
        .beside(ucx("UCX posix, `ucp_put_lat`", "ucp_put_lat"), Floor::AtMost(1.5))
        .beside(line(), Floor::None),
        Plan::new("8-byte reads, µs", latency("`ib_read_lat`", "ib_read_lat"))
            .beside(send_and_answer(), Floor::AtMost(1.0)),
        Plan::new("atomics, µs", latency("`ib_atomic_lat`", "ib_atomic_lat"))
            .beside(send_and_answer(), Floor::AtMost(1.0)),
    ]);
    plans
}
