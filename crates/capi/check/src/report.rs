//! The report of `--check-report`: several processes add to it, one after the other, and each leaves it whole.

use ferroce_entry::log;
use ferroce_explain::{Finding, ReportFormat};
use ferroce_os::{own_file, sys};
use ferroce_parts::settings;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a process waits for another one that adds a finding, and may be stopped.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks whether that one is done.
const ROUND: Duration = Duration::from_millis(1);

/// Adds a finding, if there is a report.
pub(super) fn append(finding: &Finding) {
    let Some(path) = settings::value(settings::CHECK_REPORT) else { return };
    static TOLD: AtomicBool = AtomicBool::new(false);
    if let Err(error) = append_to(Path::new(&path), finding)
        && !TOLD.swap(true, Ordering::Relaxed)
    {
        log::found(&format!("findings are missing in the report {}: {error}", path.display()));
    }
}

fn append_to(path: &Path, finding: &Finding) -> io::Result<()> {
    let format = ReportFormat::of(path);
    let (head, tail) = (format.head(), format.tail());
    let file = own_file::open(path, libc::O_RDWR)?;
    lock(&file, PATIENCE)?;
    // A file without room for a head and a tail isn't a report yet.
    let kept = file.metadata()?.len().checked_sub(tail.len() as u64).filter(|kept| *kept > head.len() as u64);
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let entry = format.entry(finding, (std::process::id(), &program), kept.is_none());
    let text = if kept.is_none() { head } else { String::new() } + &entry + tail;
    // One write: a process that is killed leaves all of it or nothing.
    file.write_all_at(text.as_bytes(), kept.unwrap_or(0)).inspect_err(|_| {
        // What was there is put back; no room is needed for it.
        let len = kept.map_or(0, |kept| kept + tail.len() as u64);
        let _ = file.set_len(len);
        let _ = kept.map(|kept| file.write_all_at(tail.as_bytes(), kept));
    })
}

/// Keeps other processes away until the file is closed.
///
/// # Errors
/// Another one has kept this one away for so long, or did so before; what else the system refused.
fn lock(file: &File, patience: Duration) -> io::Result<()> {
    static IN_VAIN: AtomicBool = AtomicBool::new(false);
    let begun = Instant::now();
    let patience = if IN_VAIN.load(Ordering::Relaxed) { Duration::ZERO } else { patience };
    loop {
        // SAFETY: an open descriptor.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(error);
        }
        if begun.elapsed() >= patience {
            IN_VAIN.store(true, Ordering::Relaxed);
            return Err(io::Error::new(error.kind(), "another process keeps the file locked"));
        }
        sys::pause(ROUND);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_grows_between_its_head_and_its_tail() {
        let finding = Finding { number: 100, about: "QP 1".into(), known: "2 of 1".into(), place: None };
        for name in ["a.json", "a.sarif", "a.txt"] {
            let path = std::env::temp_dir().join(format!("ferroce-report-{}-{name}", std::process::id()));
            for _ in 0..3 {
                append_to(&path, &finding).expect("a file");
            }
            let text = std::fs::read_to_string(&path).expect("a file");
            std::fs::remove_file(&path).expect("removing");
            let format = ReportFormat::of(&path);
            assert!(text.starts_with(&format.head()) && text.ends_with(format.tail()), "{text}");
            assert_eq!(text.matches("QP 1").count(), 3, "{text}");
            assert_eq!(
                text.matches(format.tail()).count(),
                if format.tail().is_empty() { text.len() + 1 } else { 1 }
            );
        }
    }

    #[test]
    fn a_report_that_was_only_begun_is_begun_anew() {
        let finding = Finding { number: 100, about: "QP 1".into(), known: "2 of 1".into(), place: None };
        let path = std::env::temp_dir().join(format!("ferroce-begun-{}.json", std::process::id()));
        let format = ReportFormat::of(&path);
        std::fs::write(&path, format.head()).expect("a file");
        append_to(&path, &finding).expect("a finding");
        append_to(&path, &finding).expect("another one");
        let text = std::fs::read_to_string(&path).expect("a file");
        std::fs::remove_file(&path).expect("removing");
        assert!(text.starts_with("[\n{") && text.ends_with("}\n]\n"), "{text}");
        assert_eq!(text.matches("QP 1").count(), 2, "{text}");
    }

    #[test]
    fn who_keeps_the_report_is_waited_for_with_a_bound() {
        let path = std::env::temp_dir().join(format!("ferroce-kept-{}", std::process::id()));
        let (holder, other) = (File::create(&path).expect("a file"), File::open(&path).expect("the file"));
        std::fs::remove_file(&path).expect("removing");
        lock(&holder, Duration::ZERO).expect("free");
        let refused = lock(&other, Duration::from_millis(5)).expect_err("kept");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(holder);
        lock(&other, PATIENCE).expect("free again");
    }
}
