//! A headless Chromium, for pages that this project writes.

use crate::{Skip, tool};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Several times what a page takes on a machine that is shared.
const LIMIT: Duration = Duration::from_secs(120);

/// The browser, with a profile of its own for each page.
pub struct Browser {
    program: PathBuf,
}

impl Browser {
    /// # Errors
    /// Chromium isn't installed.
    pub fn new() -> Result<Self, Skip> {
        tool("chromium", "chromium").map(|program| Self { program })
    }

    /// The document after its scripts have run for `time` of the browser's own clock, as HTML. `url` may end with a query or a fragment.
    ///
    /// # Panics
    /// The browser fails or exceeds its limit.
    #[track_caller]
    pub fn document(&self, url: &str, time: Duration) -> String {
        let budget = format!("--virtual-time-budget={}", time.as_millis());
        self.run(&[&budget, "--dump-dom", url])
    }

    /// Writes a picture of the page, `width` by `height` pixels, to `file`.
    ///
    /// # Panics
    /// The browser fails, exceeds its limit, or writes nothing.
    #[track_caller]
    pub fn screenshot(&self, url: &str, (width, height): (u32, u32), file: &Path) {
        let size = format!("--window-size={width},{height}");
        let picture = format!("--screenshot={}", file.display());
        self.run(&["--hide-scrollbars", &size, &picture, url]);
        assert!(file.exists(), "{} wasn't written", file.display());
    }

    #[track_caller]
    fn run(&self, words: &[&str]) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let profile = std::env::temp_dir().join(format!("ferroce-browser-{}-{count}", std::process::id()));
        std::fs::create_dir(&profile).expect("a directory for temporary files");
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", &LIMIT.as_secs().to_string()]).arg(&self.program);
        // Root has no sandbox, a container has little /dev/shm, and pages of the file system may load one another.
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        command.args(["--allow-file-access-from-files", "--no-first-run", "--disable-extensions"]);
        command.arg(format!("--user-data-dir={}", profile.display())).args(words);
        let output = command.env("HOME", &profile).stdin(Stdio::null()).output().expect("timeout starts");
        let _ = std::fs::remove_dir_all(&profile);
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "chromium: {}\n{complaints}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}
