//! Where lines about failures go: the C interface decides, and without one they go to the log.

use ferroce_explain::Report;
use ferroce_os::throttle::RateLimiter;
use ferroce_os::{clock, sys};
use ferroce_types::Instant;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// How many lines may be written at once.
const BURST: u32 = 20;
/// The time after which there may be one more.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often, and with what pause in between, a process that exits checks whether all lines have been written.
const LOOKS: u32 = 1000;
const PAUSE: Duration = Duration::from_micros(200);

static LISTENER: OnceLock<fn(&str)> = OnceLock::new();
static KEEPER: OnceLock<fn(&Report)> = OnceLock::new();
static TWO_LINES: AtomicBool = AtomicBool::new(false);
/// Failures whose lines haven't been written yet.
static UNTOLD: AtomicU32 = AtomicU32::new(0);
static LIMIT: Limit = Limit::new();

/// Limits the rate of lines: [`BURST`] at once, then one in each [`INTERVAL`].
#[derive(Debug)]
struct Limit {
    rate: RateLimiter,
    kept_back: AtomicU32,
}

impl Limit {
    const fn new() -> Self {
        Self { rate: RateLimiter::new(INTERVAL, BURST), kept_back: AtomicU32::new(0) }
    }

    /// Takes the place of a line at `now`; `None` if it is kept back.
    fn admit(&self, now: Instant) -> Option<Admitted> {
        let Some(left) = self.rate.take(now) else {
            self.kept_back.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        Some(Admitted { kept_back: self.kept_back.swap(0, Ordering::Relaxed), is_last: left == 0 })
    }
}

/// A line that may be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Admitted {
    /// So many before it were kept back.
    kept_back: u32,
    /// The next one is kept back, unless it takes its time.
    is_last: bool,
}

/// Has `listener` get the lines, which end without a line feed. With `two_lines` the fix is on the second one. The first listener stays.
pub fn listen(listener: fn(&str), two_lines: bool) {
    TWO_LINES.store(two_lines, Ordering::Relaxed);
    if LISTENER.set(listener).is_ok() {
        sys::at_exit(exiting);
    }
}

/// Has `keeper` get each report before the completions of its failure can be polled. A queue pair is locked then: the keeper
/// doesn't block, and doesn't call the adapter. The first keeper stays.
pub fn keep(keeper: fn(&Report)) {
    let _ = KEEPER.set(keeper);
}

/// A failure whose line is about to be written. The peer, and through it the rest of this process, may know of the failure already.
#[derive(Debug)]
pub struct Untold(Report);

impl Untold {
    /// A failure with this report, which the keeper gets.
    pub fn new(report: Report) -> Self {
        if let Some(keeper) = KEEPER.get() {
            keeper(&report);
        }
        UNTOLD.fetch_add(1, Ordering::Relaxed);
        Self(report)
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        UNTOLD.fetch_sub(1, Ordering::Release);
    }
}

/// The process exits: waits until other threads have written the lines of their failures, for a fifth of a second at most.
extern "C" fn exiting(_: *mut c_void) {
    for _ in 0..LOOKS {
        if UNTOLD.load(Ordering::Acquire) == 0 {
            return;
        }
        sys::pause(PAUSE);
    }
}

/// Writes the lines of failures. The caller has no QP locked.
#[cold]
pub fn say(reports: &mut Vec<Untold>) {
    for untold in reports.drain(..) {
        let Some(Admitted { kept_back, is_last }) = LIMIT.admit(clock::now()) else { continue };
        let mut line = match TWO_LINES.load(Ordering::Relaxed) {
            true => format!("{:#}", untold.0),
            false => untold.0.to_string(),
        };
        if kept_back > 0 {
            line.push_str(&format!(" ({kept_back} such lines before this one were kept back.)"));
        } else if is_last {
            line.push_str(" (More such lines are kept back, but for one a second.)");
        }
        tell(&line);
    }
}

/// Writes a line to the listener, or to the log without one.
#[cold]
pub fn tell(line: &str) {
    match LISTENER.get() {
        Some(listener) => listener(line),
        None => tracing::warn!("{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_exits_waits_for_who_is_about_to_tell() {
        let report = Report {
            qpn: 1,
            peer: None,
            subject: ferroce_explain::Subject::QueuePair,
            reason: ferroce_explain::Reason::Overrun,
            flushed: 0,
        };
        let untold = Untold::new(report);
        let (tell, told) = std::sync::mpsc::channel();
        let telling = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            tell.send(()).expect("the test waits");
            drop(untold);
        });
        exiting(std::ptr::null_mut());
        told.try_recv().expect("the other thread reports before the wait ends");
        telling.join().expect("it ends");
    }

    #[test]
    fn a_flood_is_kept_back_and_counted() {
        let limit = Limit::new();
        let now = Instant::default().after(100 * INTERVAL);
        let is_told = |kept_back, is_last| Some(Admitted { kept_back, is_last });
        assert!((1..BURST).all(|_| limit.admit(now) == is_told(0, false)));
        assert_eq!(limit.admit(now), is_told(0, true));
        assert_eq!((limit.admit(now), limit.admit(now)), (None, None));
        assert_eq!(limit.admit(now.after(INTERVAL)), is_told(2, true));
        assert_eq!(limit.admit(now.after(INTERVAL)), None);
        assert_eq!(limit.admit(now.after(1000 * INTERVAL)), is_told(1, false));
    }
}
