//! Where refusals and tracing go: `FERROCE_LOG` (a filter such as `debug` or `ferroce_nic=trace`) sends tracing to
//! standard error; under `ferroce run` (`FERROCE_RUN=1`) a refused call prints one plain line, at most one a second for
//! each call, and errors that make the devices fail are shown. An invalid variable of ours is reported once, in any
//! case. Otherwise nothing is ever printed.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

use ferroce_os::{
    standard_error,
    sync::{Mutex, class},
};
use ferroce_parts::settings;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// The part of the library that the lines are of, as `FERROCE_LOG` names it.
const TARGET: &str = "ferroce_ibverbs";
/// How often the same call may complain on standard error.
const QUIET: Duration = Duration::from_secs(1);

/// Standard error, as tracing writes to it. It isn't a cancellation point: a thread that is being cancelled may be in the middle of a verbs
/// call that logs a line.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        standard_error::write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The name of the process, for lines on a terminal. It is read where the caller can't be cancelled.
static PROGRAM: OnceLock<String> = OnceLock::new();

/// Sets tracing up, the first time a program looks for devices. Loading the library doesn't come here.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        if is_terminal() {
            let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
            let _ = PROGRAM.set(name.trim_end().to_owned());
        }
        ferroce_parts::voice::listen(explained, is_terminal());
        for mistake in settings::mistakes() {
            print(mistake);
        }
        let filter = match settings::value(settings::LOG) {
            Some(filter) => filter,
            None if runs_under_ferroce() => "ferroce_engine=error,ferroce_nic=error".into(),
            None => return,
        };
        let filter = filter.to_string_lossy();
        let directives = filter.split(',').map(str::trim).filter(|directive| !directive.is_empty());
        // What means nothing is among the mistakes.
        let Ok(filter) = directives.collect::<Vec<_>>().join(",").parse::<Targets>() else { return };
        let lines = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .with_writer(|| StandardError)
            .with_ansi(false);
        // An error means that the process has a subscriber already, which then gets the events.
        let _ = lines.finish().with(filter).try_init();
    });
}

/// Prints a line on standard error. On a terminal, which several processes may share, it names the process.
fn print(line: impl Display) {
    let text = match is_terminal() {
        true => {
            let program = PROGRAM.get().map_or("", String::as_str);
            format!("ferroce[{} {program}]: {line}\n", std::process::id())
        }
        false => format!("ferroce: {line}\n"),
    };
    standard_error::write(text.as_bytes());
}

/// Standard error was a terminal when this was first asked.
fn is_terminal() -> bool {
    static IS_TERMINAL: OnceLock<bool> = OnceLock::new();
    // SAFETY: takes no pointer.
    *IS_TERMINAL.get_or_init(|| unsafe { libc::isatty(libc::STDERR_FILENO) } == 1)
}

/// Reports a refused call.
pub fn refused(call: &'static str, errno: i32, why: &str) {
    if answers_a_probe(call, errno) {
        tracing::debug!(target: TARGET, call, errno, "{why}");
        return;
    }
    tracing::warn!(target: TARGET, call, errno, "{why}");
    if runs_under_ferroce() && may_print(call) {
        print(format_args!("{call}: {why}"));
    }
}

/// Reports why requests fail: with `FERROCE_LOG` in the log, else, under `ferroce run`, by a plain line.
pub fn explained(line: &str) {
    if settings::value(settings::LOG).is_some() {
        tracing::warn!(target: TARGET, "{line}");
    } else if runs_under_ferroce() {
        print(line);
    }
}

/// Reports a finding of the checker: with `FERROCE_LOG` in the log, else by a plain line.
pub fn found(line: &str) {
    if settings::value(settings::LOG).is_some() {
        tracing::warn!(target: TARGET, "{line}");
    } else {
        print(line);
    }
}

/// Whether correct programs make such calls as well, to find something out.
fn answers_a_probe(call: &str, errno: i32) -> bool {
    match errno {
        libc::EOPNOTSUPP | libc::ENODATA => true,
        // Whether there is a completion. From other calls it is an error, for example an object that the device doesn't have.
        libc::ENOENT => matches!(call, "ibv_start_poll" | "ibv_next_poll"),
        // Whether a file has a domain already. From other calls it is an error, for example the system's refusal of a thread.
        libc::EAGAIN => call == "ibv_open_xrcd",
        _ => false,
    }
}

fn runs_under_ferroce() -> bool {
    static RUNS: OnceLock<bool> = OnceLock::new();
    *RUNS.get_or_init(|| settings::value(settings::RUN).is_some_and(|v| v == "1"))
}

/// Reports, once, that verbs can't be used in this process. Its locks, those of the C library too, may be held by threads
/// that it doesn't have: so this takes none and allocates nothing.
pub fn unusable(why: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    // SAFETY: a C string; nothing else of the environment is touched.
    let run = unsafe { libc::getenv(c"FERROCE_RUN".as_ptr()) };
    // SAFETY: null, or a C string of the environment.
    let shown =
        !ferroce_os::has_gained_privileges() && !run.is_null() && unsafe { CStr::from_ptr(run) } == c"1";
    if shown && !SAID.swap(true, Ordering::Relaxed) {
        for part in ["ferroce: ", why, "\n"] {
            standard_error::write(part.as_bytes());
        }
    }
}

fn may_print(call: &'static str) -> bool {
    static LAST: Mutex<class::SpokenCalls, BTreeMap<&'static str, Instant>> = Mutex::new(BTreeMap::new());
    let now = Instant::now();
    let mut last = LAST.lock();
    if last.get(call).is_some_and(|&at| now.duration_since(at) < QUIET) {
        return false;
    }
    last.insert(call, now);
    true
}

#[cfg(test)]
mod tests {
    use super::{answers_a_probe, may_print};

    #[test]
    fn a_refused_thread_is_no_answer_to_a_probe() {
        assert!(!answers_a_probe("ibv_open_device", libc::EAGAIN));
        assert!(answers_a_probe("ibv_open_xrcd", libc::EAGAIN));
        assert!(answers_a_probe("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP));
    }

    #[test]
    fn an_object_that_was_destroyed_before_is_no_answer_to_a_probe() {
        assert!(!answers_a_probe("ibv_destroy_cq", libc::ENOENT));
        assert!(answers_a_probe("ibv_start_poll", libc::ENOENT));
        assert!(answers_a_probe("ibv_next_poll", libc::ENOENT));
    }

    #[test]
    fn the_same_call_complains_once_a_second() {
        assert!(may_print("a_call_of_this_test"));
        assert!(!may_print("a_call_of_this_test"));
        assert!(may_print("another_call_of_this_test"));
    }
}
