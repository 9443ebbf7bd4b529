//! What watching costs a pair that is busy: messages a second, alone and with each of the watchers, in turns.

use super::programs::Programs;
use super::report::{Machine, Row, save, verdict};
use ferroce_tests::{Artifacts, World};
use serde::Serialize;
use std::io;

/// Bytes of a message.
const SIZE: u32 = 8;
/// Of its rate alone, a watched pair keeps at least this.
const LEAST: f64 = 0.95;
/// What the watchers are started by: they find the pair when its queue pairs are connected.
const WATCHERS: [(&str, &str); 4] = [
    ("`ferroce ps`, once a second", "while sleep 1; do \"$0\" ps; done"),
    ("`ferroce top --json`", "exec \"$0\" top --json"),
    (
        "`ferroce trace --pid PID` of the sender",
        "sleep 1; exec \"$0\" trace --pid \"$(pgrep -nx ib_send_bw)\"",
    ),
    (
        "`ferroce trace --pid PID` of the receiver",
        "sleep 1; exec \"$0\" trace --pid \"$(pgrep -ox ib_send_bw)\"",
    ),
];

/// Measures, prints the table and writes `bench/watching.json` in the target directory.
///
/// # Errors
/// A program isn't installed, fails, or prints something that isn't understood; a watcher has shown nothing.
pub fn watching(seconds: u64, rounds: usize) -> io::Result<()> {
    let programs =
        Programs::new(|| World::one_host(1500), seconds, &[("ib_send_bw", "perftest"), ("pgrep", "procps")])?;
    let rate = || Ok::<f64, io::Error>(programs.bandwidth("ib_send_bw", SIZE)? * 1e3 / f64::from(8 * SIZE));
    let mut alone = Row::default();
    let mut watched: Vec<Watched> =
        WATCHERS.iter().map(|(by, _)| Watched { by, ..Watched::default() }).collect();
    for round in 1..=rounds {
        programs.begin_round(round, rounds);
        let unwatched = rate()?;
        alone.add(unwatched);
        for (row, (by, script)) in watched.iter_mut().zip(WATCHERS) {
            let command = Artifacts::get().ferroce().display().to_string();
            let watcher = programs.world.first().start(&["sh", "-c", script, &command], &[]);
            let watched = rate()?;
            row.rate.add(watched);
            row.ratio.add(watched / unwatched);
            if watcher.stdout().is_empty() {
                return Err(io::Error::other(format!("{by} has shown nothing: {}", watcher.stderr())));
            }
        }
    }
    let report = Report { machine: Machine::this(), seconds, alone, watched };
    report.print();
    save("watching", &report)
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    machine: Machine,
    seconds: u64,
    /// Millions of messages a second.
    alone: Row,
    watched: Vec<Watched>,
}

/// The rate of a pair with a watcher, and its part of the rate without in the same round.
#[derive(Default, Serialize)]
struct Watched {
    by: &'static str,
    rate: Row,
    ratio: Row,
}

impl Report {
    fn print(&self) {
        println!("\n`ib_send_bw -s {SIZE}`, {} s each; {}\n", self.seconds, self.machine);
        println!(
            "| watched by | million messages a second | × alone | at least {LEAST} |\n|---|---:|---:|---|"
        );
        println!("| none | {:.2} | 1 | |", self.alone.median());
        for Watched { by, rate, ratio } in &self.watched {
            let ratio = ratio.median();
            println!("| {by} | {:.2} | {ratio:.2} | {} |", rate.median(), verdict(ratio >= LEAST));
        }
    }
}
