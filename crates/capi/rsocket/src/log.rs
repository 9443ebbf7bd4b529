//! Where refusals are told: under `ferroce run` (`FERROCE_RUN=1`) on standard error, one line, at most one a second. Without
//! it nothing is ever printed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::call::Refusal;

fn runs_under_ferroce() -> bool {
    static RUNS: OnceLock<bool> = OnceLock::new();
    *RUNS.get_or_init(|| ferroce_os::setting("FERROCE_RUN").is_some_and(|v| v == "1"))
}

/// Seconds since the first call, from 1 on.
fn second() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs() + 1
}

/// Reports a refused call, unless errno says all.
pub(crate) fn refused(call: &'static str, refusal: &Refusal) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    if refusal.why.is_empty() || !runs_under_ferroce() {
        return;
    }
    let now = second();
    if LAST.swap(now, Ordering::Relaxed) != now {
        let line = format!("ferroce: {call}: {}\n", refusal.why);
        // SAFETY: a readable buffer of this length. Standard error may be closed; there is nobody left to tell.
        unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
    }
}
