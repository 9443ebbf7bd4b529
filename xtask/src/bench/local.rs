//! Two processes of one host over shared memory, beside UCX's shared memory, TCP, and what the machine itself can do, in
//! the same run.

use super::peers::{POSIX, bare_copy, bare_copy_time, bare_latency, ucx_bandwidth, ucx_latency};
use super::programs::Programs;
use super::report::{Machine, Row, save};
use crate::apt;
use ferroce_tests::World;
use serde::Serialize;
use std::io;

const KIB_64: u32 = 65_536;
const MIB_1: u32 = 1 << 20;
const MIB_8: u32 = 8 << 20;
const SMALL: u32 = 8;
const ROUND_TRIPS: usize = 20_000;

/// Measures, prints the table and writes `bench/local.json` in the target directory.
///
/// # Errors
/// A program isn't installed, fails, or prints something that isn't understood.
pub fn local(seconds: u64, rounds: usize) -> io::Result<()> {
    apt::install_for_bench();
    let tools = [("iperf3", "iperf3"), ("ib_write_bw", "perftest"), ("ucx_perftest", "ucx-utils")];
    let programs = Programs::new(|| World::one_host(9000), seconds, &tools)?;
    let mut comparisons: Vec<Comparison> = rows().iter().map(Comparison::new).collect();
    let mut tcp = Row::default();
    for round in 1..=rounds {
        programs.begin_round(round, rounds);
        tcp.add(programs.tcp(KIB_64)?);
        for (row, comparison) in rows().iter().zip(&mut comparisons) {
            let limit = row.limit.as_ref().map(|limit| (limit.measure)(&programs)).transpose()?;
            let peer = (row.peer.measure)(&programs)?;
            comparison.add(limit, peer, (row.ours.measure)(&programs)?);
        }
    }
    let report = Report { machine: Machine::this(), seconds, tcp, comparisons };
    report.print();
    save("local", &report)
}

type Measure = Box<dyn Fn(&Programs) -> io::Result<f64>>;

/// Something that is measured, and its name.
struct Figure {
    is: &'static str,
    measure: Measure,
}

impl Figure {
    fn new(is: &'static str, measure: impl Fn(&Programs) -> io::Result<f64> + 'static) -> Self {
        Self { is, measure: Box::new(measure) }
    }
}

/// A figure of ours, one of another program, and what the machine can do, where that is known.
struct Comparand {
    what: &'static str,
    limit: Option<Figure>,
    peer: Figure,
    ours: Figure,
}

/// What is compared.
fn rows() -> Vec<Comparand> {
    let copy = |size| Some(Figure::new("`process_vm_writev`", move |programs| bare_copy(programs, size)));
    let line = || {
        Some(Figure::new("a polled cache line", |programs| bare_latency(programs, "ping-pong", ROUND_TRIPS)))
    };
    let put = |size| {
        Figure::new("UCX posix, `ucp_put_bw`", move |programs| {
            ucx_bandwidth(programs, POSIX, "ucp_put_bw", size)
        })
    };
    let tag = |size| {
        Figure::new("UCX posix, `tag_bw`", move |programs| ucx_bandwidth(programs, POSIX, "tag_bw", size))
    };
    let write = |size| Figure::new("`ib_write_bw`", move |programs| programs.bandwidth("ib_write_bw", size));
    let send = |size| Figure::new("`ib_send_bw`", move |programs| programs.bandwidth("ib_send_bw", size));
    let messages = |figure: Figure| {
        Figure::new(figure.is, move |programs| Ok((figure.measure)(programs)? * 1e3 / f64::from(8 * SMALL)))
    };
    let latency = |is, tool| Figure::new(is, move |programs| programs.latency(tool, SMALL, ROUND_TRIPS));
    let round_trip = || {
        Figure::new("two of `ib_send_lat`", |programs| {
            Ok(2.0 * programs.latency("ib_send_lat", SMALL, ROUND_TRIPS)?)
        })
    };
    let row = |what, limit, peer, ours| Comparand { what, limit, peer, ours };
    vec![
        row("64 KiB writes, Gbit/s", copy(KIB_64), put(KIB_64), write(KIB_64)),
        row("1 MiB writes, Gbit/s", copy(MIB_1), put(MIB_1), write(MIB_1)),
        row("8 MiB writes, Gbit/s", copy(MIB_8), put(MIB_8), write(MIB_8)),
        row("64 KiB messages, Gbit/s", copy(KIB_64), tag(KIB_64), send(KIB_64)),
        row("1 MiB messages, Gbit/s", copy(MIB_1), tag(MIB_1), send(MIB_1)),
        row("8-byte messages, million a second", None, messages(tag(SMALL)), messages(send(SMALL))),
        row(
            "8-byte writes, half a round trip, µs",
            Some(Figure::new("`process_vm_writev` and a polled cache line", |programs| {
                Ok(bare_copy_time(programs, SMALL)? + bare_latency(programs, "ping-pong", ROUND_TRIPS)?)
            })),
            Figure::new("UCX posix, `ucp_put_lat`", |programs| {
                ucx_latency(programs, POSIX, "ucp_put_lat", SMALL, ROUND_TRIPS)
            }),
            latency("`ib_write_lat`", "ib_write_lat"),
        ),
        row(
            "8-byte messages, half a round trip, µs",
            line(),
            Figure::new("UCX posix, `tag_lat`", |programs| {
                ucx_latency(programs, POSIX, "tag_lat", SMALL, ROUND_TRIPS)
            }),
            latency("`ib_send_lat`", "ib_send_lat"),
        ),
        row(
            "8-byte messages with events, half a round trip, µs",
            None,
            Figure::new("eventfds and epoll", |programs| bare_latency(programs, "events", ROUND_TRIPS)),
            Figure::new("`ib_send_lat -e`", |programs| {
                programs.latency_of("ib_send_lat", &["-e"], SMALL, ROUND_TRIPS)
            }),
        ),
        row(
            "64 KiB writes to memory that can be shared, Gbit/s",
            None,
            put(KIB_64),
            Figure::new("`ib_write_bw --mmap`", |programs| {
                programs.bandwidth_of_files("ib_write_bw", KIB_64)
            }),
        ),
        row(
            "8-byte writes to memory that can be shared, half a round trip, µs",
            line(),
            Figure::new("UCX posix, `ucp_put_lat`", |programs| {
                ucx_latency(programs, POSIX, "ucp_put_lat", SMALL, ROUND_TRIPS)
            }),
            Figure::new("`ib_write_lat --mmap`", |programs| {
                programs.latency_of_files("ib_write_lat", SMALL, ROUND_TRIPS)
            }),
        ),
        row("8-byte reads, µs", line(), round_trip(), latency("`ib_read_lat`", "ib_read_lat")),
        row("atomics, µs", line(), round_trip(), latency("`ib_atomic_lat`", "ib_atomic_lat")),
    ]
}

/// Everything measured in one run.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    machine: Machine,
    seconds: u64,
    /// iperf3 TCP with 64 KiB writes, Gbit/s.
    tcp: Row,
    comparisons: Vec<Comparison>,
}

/// A figure of ours beside two others.
#[derive(Serialize)]
struct Comparison {
    what: &'static str,
    limit_is: Option<&'static str>,
    limit: Option<Row>,
    peer_is: &'static str,
    peer: Row,
    ours_is: &'static str,
    ours: Row,
    ratio_to_limit: Option<f64>,
    ratio_to_peer: f64,
}

impl Comparison {
    fn new(row: &Comparand) -> Self {
        Self {
            what: row.what,
            limit_is: row.limit.as_ref().map(|limit| limit.is),
            limit: row.limit.as_ref().map(|_| Row::default()),
            peer_is: row.peer.is,
            peer: Row::default(),
            ours_is: row.ours.is,
            ours: Row::default(),
            ratio_to_limit: None,
            ratio_to_peer: 0.0,
        }
    }

    /// Adds a round.
    fn add(&mut self, limit: Option<f64>, peer: f64, ours: f64) {
        self.peer.add(peer);
        self.ours.add(ours);
        if let (Some(row), Some(limit)) = (&mut self.limit, limit) {
            row.add(limit);
            self.ratio_to_limit = Some(self.ours.median() / row.median());
        }
        self.ratio_to_peer = self.ours.median() / self.peer.median();
    }
}

impl Report {
    /// Prints the table, in Markdown.
    fn print(&self) {
        println!("\n{}\n", self.machine);
        println!("| | limit | peer | Ferroce | × peer | × limit |");
        println!("|---|---:|---:|---:|---:|---:|");
        for row in &self.comparisons {
            let limit = row.limit.as_ref().zip(row.limit_is);
            let limit = limit.map_or("–".into(), |(row, is)| format!("{:.2} ({is})", row.median()));
            println!(
                "| {} | {limit} | {:.2} ({}) | **{:.2}** ({}) | {:.2} | {} |",
                row.what,
                row.peer.median(),
                row.peer_is,
                row.ours.median(),
                row.ours_is,
                row.ratio_to_peer,
                row.ratio_to_limit.map_or("–".into(), |ratio| format!("{ratio:.2}")),
            );
        }
        println!("\niperf3, TCP within the host, 64 KiB writes: {:.2} Gbit/s", self.tcp.median());
    }
}
