//! What reports share: the machine, medians, JSON.

use crate::dist;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::{fmt, fs, io};

/// One figure, measured once a round.
#[derive(Clone, Default, Serialize, Deserialize)]
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

    /// The median of all rounds so far.
    pub fn median(&self) -> f64 {
        self.median
    }
}

/// What was measured, and where.
#[derive(Default, Serialize)]
pub struct Machine {
    version: &'static str,
    kernel: String,
    processor: String,
    cores: usize,
}

impl Machine {
    /// This machine, and the version of the product.
    pub fn this() -> Self {
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
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} cores), Linux {}", self.processor, self.cores, self.kernel)
    }
}

/// Writes a report to `bench/NAME.json` in the target directory, and prints its path.
///
/// # Errors
/// The file can't be written.
pub fn save(name: &str, report: &impl Serialize) -> io::Result<()> {
    let directory = dist::target().join("bench");
    fs::create_dir_all(&directory)?;
    write(&directory.join(name).with_extension("json"), report)
}

/// Writes a report to a file, and prints its path.
///
/// # Errors
/// The file can't be written.
pub fn write(path: &Path, report: &impl Serialize) -> io::Result<()> {
    fs::write(path, serde_json::to_string_pretty(report)? + "\n")?;
    println!("\nwritten to {}", path.display());
    Ok(())
}

/// In words, whether an aim is reached.
pub fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "NOT reached" }
}
