//! What queue pairs cost that are made and not used.

use super::programs::{LIMIT, Programs, ended, number_in_line};
use super::report::{Machine, Row, save, verdict};
use ferroce_tests::{Artifacts, World};
use serde::Serialize;
use std::io;

/// Bytes that an idle RC queue pair may take.
const MOST_BYTES: f64 = 4096.0;
/// Microseconds that creating and destroying one may take.
const MOST_MICROSECONDS: f64 = 20.0;
/// File descriptors that all of them together may take: names by which other processes find them, 4,096 by each.
const MOST_DESCRIPTORS: f64 = 16.0;

/// Measures, prints the table and writes `bench/verbs.json` in the target directory.
///
/// # Errors
/// There are no headers, the program fails, or prints something that isn't understood.
pub fn verbs(count: u32, rounds: usize) -> io::Result<()> {
    let programs = Programs::new(|| World::one_host(1500), 1, &[])?;
    let program = Artifacts::get().c_program("bench/idle_qps").map_err(|skip| io::Error::other(skip.0))?;
    let mut report = Report { machine: Machine::this(), count, ..Report::default() };
    for round in 1..=rounds {
        programs.begin_round(round, rounds);
        let count = count.to_string();
        let words = [&*program, &count];
        let outcome = ended(programs.world.first().start_ferroce(&[], &words, &[]).wait(LIMIT))?;
        let figure = |name| number_in_line(&outcome, name, 1);
        report.bytes_each.add(figure("memory")?);
        report.descriptors.add(figure("descriptors")?);
        report.create_and_destroy_us.add(figure("create")?);
        report.connect_us.add(figure("connect")?);
        report.message_us.add(figure("message")?);
    }
    report.print();
    save("verbs", &report)
}

#[derive(Default, Serialize)]
struct Report {
    machine: Machine,
    count: u32,
    bytes_each: Row,
    descriptors: Row,
    create_and_destroy_us: Row,
    connect_us: Row,
    message_us: Row,
}

impl Report {
    fn print(&self) {
        let line = |what: &str, row: &Row, most: f64| {
            let value = row.median();
            println!("| {what} | {value:.2} | at most {most} | {} |", verdict(value <= most));
        };
        println!("\n{} connected RC queue pairs of one process; {}\n", self.count, self.machine);
        println!("| | | aim | |\n|---|---|---|---|");
        line("memory of each, bytes", &self.bytes_each, MOST_BYTES);
        line("file descriptors of all", &self.descriptors, MOST_DESCRIPTORS);
        line("creating and destroying one, µs", &self.create_and_destroy_us, MOST_MICROSECONDS);
        println!("| connecting one, µs | {:.2} | | |", self.connect_us.median());
        println!("| a message among all of them, µs | {:.2} | | |", self.message_us.median());
    }
}
