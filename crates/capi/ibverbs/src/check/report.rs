//! The report of `--check-report`: several processes add to it, and it is whole at any moment.

use ferroce_explain::{Finding, ReportFormat};
use ferroce_nic::settings;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

/// Adds a finding, if there is a report.
pub(super) fn append(finding: &Finding) {
    let Some(path) = settings::value(settings::CHECK_REPORT) else { return };
    if let Err(error) = append_to(Path::new(&path), finding) {
        tracing::warn!(%error, path = %path.display(), "a finding isn't in the report");
    }
}

fn append_to(path: &Path, finding: &Finding) -> io::Result<()> {
    let format = ReportFormat::of(path);
    let (head, tail) = (format.head(), format.tail());
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    lock(&file)?;
    let length = match file.metadata()?.len() {
        0 => {
            file.write_all(head.as_bytes())?;
            head.len() as u64
        }
        length => length.saturating_sub(tail.len() as u64),
    };
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let entry = format.entry(finding, (std::process::id(), &program), length <= head.len() as u64) + tail;
    file.seek(SeekFrom::Start(length))?;
    file.write_all(entry.as_bytes())
}

/// Keeps other processes away until the file is closed.
fn lock(file: &File) -> io::Result<()> {
    // SAFETY: an open descriptor.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
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
}
