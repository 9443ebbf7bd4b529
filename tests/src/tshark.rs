//! What tshark makes of a capture.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs tshark with these words on a capture, which may lie where a host has a private directory; returns its output.
///
/// # Panics
/// tshark fails, or there is no capture.
#[track_caller]
pub fn tshark(capture: &Path, words: &[&str]) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Copied out, because tshark gives up its rights and can't look into a host.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let copy = std::env::temp_dir().join(format!("ferroce-capture-{}-{count}.pcapng", std::process::id()));
    std::fs::copy(capture, &copy).expect("the capture was written");
    // Without the user's own preferences.
    let mut command = Command::new("tshark");
    command.env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME").arg("-r").arg(&copy).args(words);
    let output = command.output().expect("tshark runs");
    let _ = std::fs::remove_file(&copy);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "tshark: {}\n{text}", String::from_utf8_lossy(&output.stderr));
    text
}
