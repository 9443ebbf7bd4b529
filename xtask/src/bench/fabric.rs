//! Hundreds of hosts, simulated: what congestion and loss do to messages, with the transport's window, without one, and at best.

use super::report::{save, write};
use crate::dist;
use ferroce_fabric::{Chances, Law, LinkSizes, RunOutcome, Shape, Traffic, World};
use ferroce_tests::svg::Svg;
use serde::Serialize;
use std::io;

/// Bytes of payload in a packet.
const MTU: u32 = 4096;
const SHAPE: Shape = Shape { leaves: 32, hosts_of_leaf: 16, spines: 16 };
const SIZES: LinkSizes = LinkSizes::DATA_CENTER;
/// Two seconds of virtual time: flows that go on by then have failed.
const LIMIT: u64 = 2_000_000_000;
const SEED: u64 = 1;
/// A law, whether switches mark packets, and the colour of its bars.
const LAWS: [(Law, bool, &str, &str); 5] = [
    (Law::Selective, true, "selective repeat", "#2e7d4f"),
    (Law::Selective, false, "selective repeat, no marks", "#74b38f"),
    (Law::Window, true, "go-back-N", "#2f5d8a"),
    (Law::Window, false, "go-back-N, no marks", "#6d9dc5"),
    (Law::Unlimited, false, "no window", "#b3541e"),
];
/// Laws of which the goodput on a long path is shown.
const LAWS_OF_PATH: [(Law, &str); 2] = [(Law::Selective, "selective repeat"), (Law::Window, "go-back-N")];

/// Runs each scenario, prints a table and writes `bench/fabric.json` in the target directory; `replace`: and what is in `docs/benchmarks`.
///
/// # Errors
/// A file can't be written.
pub fn fabric(replace: bool) -> io::Result<()> {
    let hosts = SHAPE.hosts();
    let chances = &mut Chances::new(SEED);
    let permutation = Traffic::permutation(hosts, 1 << 20, &mut Chances::new(SEED));
    let scenarios = [
        ("64 hosts write 64 KiB each to one host", Traffic::incast(hosts, 64, 64 << 10, chances), 0),
        ("64 hosts write 1 MiB each to one host", Traffic::incast(hosts, 64, 1 << 20, chances), 0),
        ("all hosts write 16 KiB to all others", Traffic::all_to_all(hosts, 16 << 10, chances), 0),
        ("each host writes 1 MiB to one other", permutation.clone(), 0),
        ("the same, a leaf's links lose 1 %", permutation, 10_000),
    ];
    let mut rows = Vec::new();
    for (name, traffic, lost) in &scenarios {
        for (law, marks, of, _) in LAWS {
            let mark = if marks { SIZES.mark } else { u64::MAX };
            let mut world = World::new(SHAPE, LinkSizes { mark, ..SIZES }, (law, MTU), SEED);
            (0..SHAPE.spines).for_each(|spine| world.lose(0, spine, *lost));
            rows.push(Row::new(name, of, &world.run(traffic, LIMIT)));
        }
    }
    let report = Report { hosts, seed: SEED, rows, path: path() };
    report.print();
    save("fabric", &report)?;
    if replace {
        let directory = dist::workspace().join("docs/benchmarks");
        write(&directory.join("fabric.json"), &report)?;
        std::fs::write(directory.join("fabric.svg"), report.draw())?;
    }
    Ok(())
}

/// Goodput on a path with a round trip of a millisecond that loses packets without being full, beside that without losses.
fn path() -> Vec<Path> {
    let shape = Shape { leaves: 2, hosts_of_leaf: 1, spines: 1 };
    let goodput = |law, lost| {
        let mut world = World::new(shape, LinkSizes::LONG_PATH, (law, MTU), SEED);
        world.lose(0, 0, lost);
        world.run(&Traffic::permutation(2, 64 << 20, &mut Chances::new(SEED)), 10 * LIMIT).goodput()
    };
    let paths = LAWS_OF_PATH.map(|(law, name)| {
        let free = goodput(law, 0);
        let path = |lost| Path { law: name, lost_in_a_million: lost, of_free: goodput(law, lost) / free };
        [100, 1000, 10_000].map(path)
    });
    paths.concat()
}

#[derive(Serialize)]
struct Report {
    hosts: u32,
    seed: u64,
    rows: Vec<Row>,
    path: Vec<Path>,
}

#[derive(Serialize, Clone)]
struct Path {
    law: &'static str,
    lost_in_a_million: u32,
    of_free: f64,
}

/// One scenario with one law. Times are microseconds.
#[derive(Serialize)]
struct Row {
    scenario: &'static str,
    law: &'static str,
    ideal: f64,
    median: f64,
    p99: f64,
    p999: f64,
    end: f64,
    goodput_gbps: f64,
    fairness: f64,
    repeated: f64,
    dropped: u64,
    timeouts: u64,
    failed: u64,
}

impl Row {
    fn new(scenario: &'static str, law: &'static str, outcome: &RunOutcome) -> Self {
        let micros = |ns: u64| ns as f64 / 1000.0;
        let totals = outcome.totals;
        Self {
            scenario,
            law,
            ideal: micros(outcome.ideal()),
            median: micros(outcome.percentile(500)),
            p99: micros(outcome.percentile(990)),
            p999: micros(outcome.percentile(999)),
            end: micros(outcome.end()),
            goodput_gbps: outcome.goodput(),
            fairness: outcome.fairness(),
            repeated: totals.repeated as f64 / totals.requests.max(1) as f64,
            dropped: totals.dropped,
            timeouts: totals.timeouts,
            failed: totals.failed,
        }
    }
}

/// A number of microseconds with a unit.
fn time(micros: f64) -> String {
    if micros > 0.99 * LIMIT as f64 / 1000.0 {
        return "> 2 s".into();
    }
    if micros < 10_000.0 { format!("{micros:.0} µs") } else { format!("{:.0} ms", micros / 1000.0) }
}

/// Where the bars begin, how wide a factor of ten is, and the height of a bar.
const LEFT: f64 = 300.0;
const DECADE: f64 = 110.0;
const BAR: f64 = 14.0;

impl Report {
    fn print(&self) {
        println!("\n{} hosts of 25 Gbit/s in virtual time, seed {}\n", self.hosts, self.seed);
        println!(
            "| | | the last at best | median | 99 % | the last | Gbit/s | fairness | sent again | unfinished |"
        );
        println!("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|");
        for row in &self.rows {
            let Row { scenario, law, goodput_gbps, fairness, failed, .. } = row;
            let [ideal, median, p99, end] = [row.ideal, row.median, row.p99, row.end].map(time);
            let again = 100.0 * row.repeated;
            println!(
                "| {scenario} | {law} | {ideal} | {median} | {p99} | {end} | {goodput_gbps:.1} | {fairness:.2} | {again:.1} % | {failed} |"
            );
        }
        for Path { law, lost_in_a_million, of_free } in &self.path {
            let percent = f64::from(*lost_in_a_million) / 10_000.0;
            println!(
                "\n{law}, {percent} % lost on a path of 1 ms: {of_free:.2} of the goodput without losses"
            );
        }
    }

    /// Bars of the end of each scenario: at best, and by each law. The axis is logarithmic, from 100 µs.
    fn draw(&self) -> String {
        let mut svg = Svg::default();
        let title = format!("The last write has completed: {} simulated hosts of 25 Gbit/s", self.hosts);
        svg.text(20, 26, "font-size=\"14\" font-weight=\"bold\"", &title);
        let mut y = 50.0;
        let bar = |svg: &mut Svg, y: f64, micros: f64, colour: &str, what: &str| {
            let width = (micros / 100.0).log10().max(0.02) * DECADE;
            svg.shape(
                "rect",
                format_args!(
                    "x=\"{LEFT}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\""
                ),
            );
            let text = format!("{} ({what})", time(micros));
            svg.text(format_args!("{:.1}", LEFT + width + 6.0), format_args!("{:.0}", y + 11.0), "", &text);
        };
        for rows in self.rows.chunks(LAWS.len()) {
            let Some(first) = rows.first() else { continue };
            svg.text(20, format_args!("{:.0}", y + 26.0), "", first.scenario);
            bar(&mut svg, y, first.ideal, "#9aa9b8", "at best");
            for (row, (_, _, law, colour)) in rows.iter().zip(LAWS) {
                y += BAR + 2.0;
                bar(&mut svg, y, row.end, colour, law);
            }
            y += BAR + 16.0;
        }
        svg.finish(LEFT + 4.6 * DECADE + 120.0, y + 4.0, "font-size=\"12\"")
    }
}
