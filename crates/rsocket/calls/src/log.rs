//! Lines for refused calls: under `ferroce run` (`FERROCE_RUN=1`) on standard error, at most one a second. Without it nothing is
//! printed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

fn runs_under_ferroce() -> bool {
    static RUNS: OnceLock<bool> = OnceLock::new();
    *RUNS.get_or_init(|| ferroce_os::setting("FERROCE_RUN").is_some_and(|v| v == "1"))
}

/// Seconds since the first call, from 1 on.
fn second() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs() + 1
}

/// Reports a refused call, unless errno suffices.
pub fn refused(call: &'static str, why: &str) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    if why.is_empty() || !runs_under_ferroce() {
        return;
    }
    let now = second();
    if LAST.swap(now, Ordering::Relaxed) != now {
        let line = format!("ferroce: {call}: {why}\n");
        ferroce_os::standard_error::write(line.as_bytes());
    }
}
