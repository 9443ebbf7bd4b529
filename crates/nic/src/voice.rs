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
    /// Takes the place of a line at `now`: how many were kept back before it; `None` if this one is.
    fn admit(&self, now: u64) -> Option<u32> {
        let next = |paid: u64| {
            let paid = paid.max(now);
            (paid - now < BURST * INTERVAL).then_some(paid + INTERVAL)
        };
        match self.paid_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(_) => Some(self.kept_back.swap(0, Ordering::Relaxed)),
            Err(_) => {
                self.kept_back.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

/// Has `listener` get the lines, which end without a line feed. The first one stays.
pub fn listen(listener: fn(&str)) {
    let _ = LISTENER.set(listener);
}

/// Tells of failures. No QP is locked.
#[cold]
pub(crate) fn say(reports: &mut Vec<Report>) {
    for report in reports.drain(..) {
        let Some(kept_back) = LIMIT.admit(clock::now().0) else { continue };
        let mut line = report.to_string();
        if kept_back > 0 {
            line.push_str(&format!(" ({kept_back} such lines before this one were kept back.)"));
        }
        match LISTENER.get() {
            Some(listener) => listener(&line),
            None => tracing::warn!("{line}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_kept_back_and_counted() {
        let limit = Limit { paid_until: AtomicU64::new(0), kept_back: AtomicU32::new(0) };
        let now = 100 * INTERVAL;
        assert!((0..BURST).all(|_| limit.admit(now) == Some(0)));
        assert_eq!((limit.admit(now), limit.admit(now)), (None, None));
        assert_eq!(limit.admit(now + INTERVAL), Some(2));
        assert_eq!(limit.admit(now + INTERVAL), None);
        assert_eq!(limit.admit(now + 1000 * INTERVAL), Some(1));
    }
}
