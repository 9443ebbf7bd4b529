//! `ferroce run --check` and `--strict`: what is to be checked, the report that processes add to, and how strict the adapter is.

use ferroce_doctor::path_error;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use ferroce_explain::{Check, ReportFormat};
use ferroce_os::own_file;
use ferroce_parts::settings;
use ferroce_queues::LimitsOf;

/// Options of `ferroce run` that bring mistakes to light.
#[derive(Args, Clone, Debug)]
pub struct Checking {
    /// Report what works here and would fail on an adapter; LIST: fatal, memory, -FCnnn (separated by commas)
    ///
    /// One line for each finding, with an ID for `ferroce explain`.{n}
    ///   fatal    exit 99 on the first finding except FC110{n}
    ///   memory   detect writes to buffers in flight too{n}
    ///   -FCnnn   ignore a finding, as -FC102
    #[arg(long, value_name = "LIST", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    check: Option<String>,
    /// Write the findings to FILE too: as JSON if it ends in .json, as SARIF if in .sarif, else as text
    #[arg(long, value_name = "FILE", requires = "check")]
    check_report: Option<std::path::PathBuf>,
    /// Permit only what every adapter permits; with an adapter's name, apply that adapter's limits too
    ///
    /// Processes of one host exchange packets, as over a wire. docs/STRICT.md lists the differences.
    #[arg(
        long, value_name = "ADAPTER", num_args = 0..=1, require_equals = true, default_missing_value = "1",
        value_parser = adapters()
    )]
    strict: Option<String>,
}

/// `1` keeps the usual limits.
fn adapters() -> PossibleValuesParser {
    let named = LimitsOf::ALL.map(|adapter| PossibleValue::new(adapter.name()));
    PossibleValuesParser::new(named.into_iter().chain([PossibleValue::new("1").hide(true)]))
}

impl Checking {
    /// Nothing is checked.
    pub const NONE: Self = Self { check: None, check_report: None, strict: None };

    /// Sets the variables for `command`, and begins the report.
    ///
    /// # Errors
    /// The list means nothing, or the file can't be written.
    pub fn set(&self, command: &mut Command) -> Result<(), String> {
        if let Some(list) = &self.check {
            list.parse::<Check>().map_err(|error| format!("--check={list}: {error}"))?;
            command.env(settings::CHECK, list);
        }
        if let Some(file) = &self.check_report {
            let absolute = begin_report(file).map_err(|error| {
                format!("--check-report {}: {}", file.display(), path_error(file, &error))
            })?;
            command.env(settings::CHECK_REPORT, absolute);
        }
        if let Some(adapter) = &self.strict {
            settings::strictness(adapter.as_ref()).map_err(|error| format!("--strict={adapter}: {error}"))?;
            command.env(settings::STRICT, adapter);
        }
        Ok(())
    }

    /// Whether an option stands in for the variable that a sentence is about.
    pub fn replaces(&self, mistake: &str) -> bool {
        (self.check.is_some() && mistake.starts_with(settings::CHECK))
            || (self.strict.is_some() && mistake.starts_with(settings::STRICT))
    }
}

fn begin_report(file: &Path) -> io::Result<std::path::PathBuf> {
    let absolute = std::path::absolute(file)?;
    let format = ReportFormat::of(&absolute);
    // A pipe without a reader is an error here: the open doesn't wait for one.
    let opened = own_file::open(&absolute, libc::O_WRONLY);
    let is_pipe = |error: &io::Error| error.raw_os_error() == Some(libc::ENXIO);
    let mut report = opened.map_err(|error| if is_pipe(&error) { not_a_file() } else { error })?;
    let metadata = report.metadata()?;
    if !metadata.is_file() {
        return Err(not_a_file());
    }
    let is_report = |output: BorrowedFd<'_>| {
        let output = output.try_clone_to_owned().map(File::from).and_then(|output| output.metadata());
        output.is_ok_and(|output| (output.dev(), output.ino()) == (metadata.dev(), metadata.ino()))
    };
    if is_report(io::stdout().as_fd()) || is_report(io::stderr().as_fd()) {
        return Err(io::Error::other("it is the command's output: choose another file"));
    }
    report.set_len(0)?;
    report.write_all((format.head() + format.tail()).as_bytes())?;
    Ok(absolute)
}

fn not_a_file() -> io::Error {
    io::Error::other(
        "not a regular file; processes add findings before its end (standard error has each finding as a line)",
    )
}
