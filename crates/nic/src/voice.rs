//! Where lines about failures go: the C interface decides, and without one they go to the log.

use ferroce_explain::Report;
use ferroce_os::clock;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Lines at once.
const BURST: u64 = 20;
/// Nanoseconds after which there may be one more.
const INTERVAL: u64 = 1_000_000_000;

static LISTENER: OnceLock<fn(&str)> = OnceLock::new();
static LIMIT: Limit = Limit { paid_until: AtomicU64::new(0), kept_back: AtomicU32::new(0) };

/// How often somebody may speak.
#[derive(Debug)]
struct Limit {
    /// The time up to which all intervals are used.
    paid_until: AtomicU64,
    kept_back: AtomicU32,
}

impl Limit {
    /// Takes the place of a line at `now`; `None` if it is kept back.
    fn admit(&self, now: u64) -> Option<Admitted> {
        let next = |paid: u64| {
            let paid = paid.max(now);
            (paid - now < BURST * INTERVAL).then_some(paid + INTERVAL)
        };
        match self.paid_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(paid) => {
                let is_last = paid.max(now) - now >= (BURST - 1) * INTERVAL;
                Some(Admitted { kept_back: self.kept_back.swap(0, Ordering::Relaxed), is_last })
            }
            Err(_) => {
                self.kept_back.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

/// A line that may be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Admitted {
    /// So many before it were kept back.
    kept_back: u32,
    /// The next one is kept back, unless it takes its time.
    is_last: bool,
}

/// Has `listener` get the lines, which end without a line feed. The first one stays.
pub fn listen(listener: fn(&str)) {
    let _ = LISTENER.set(listener);
}

/// Tells of failures. No QP is locked.
#[cold]
pub(crate) fn say(reports: &mut Vec<Report>) {
    for report in reports.drain(..) {
        let Some(Admitted { kept_back, is_last }) = LIMIT.admit(clock::now().0) else { continue };
        let mut line = report.to_string();
        if kept_back > 0 {
            line.push_str(&format!(" ({kept_back} such lines before this one were kept back.)"));
        } else if is_last {
            line.push_str(" (More such lines are kept back, but for one a second.)");
        }
        tell(&line);
    }
}

/// Tells something that isn't of one queue pair.
#[cold]
pub(crate) fn tell(line: &str) {
    match LISTENER.get() {
        Some(listener) => listener(line),
        None => tracing::warn!("{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_kept_back_and_counted() {
        let limit = Limit { paid_until: AtomicU64::new(0), kept_back: AtomicU32::new(0) };
        let now = 100 * INTERVAL;
        let is_told = |kept_back, is_last| Some(Admitted { kept_back, is_last });
        assert!((1..BURST).all(|_| limit.admit(now) == is_told(0, false)));
        assert_eq!(limit.admit(now), is_told(0, true));
        assert_eq!((limit.admit(now), limit.admit(now)), (None, None));
        assert_eq!(limit.admit(now + INTERVAL), is_told(2, true));
        assert_eq!(limit.admit(now + INTERVAL), None);
        assert_eq!(limit.admit(now + 1000 * INTERVAL), is_told(1, false));
    }
}
