//! Waiting for what other processes do.

use std::time::{Duration, Instant};

/// Waits until `condition` holds, at most half a minute.
///
/// # Panics
/// It never holds.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
