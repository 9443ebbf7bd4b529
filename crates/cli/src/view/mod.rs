//! `ferroce view`: a capture as one HTML page, with a sequence diagram of the hosts.
//!
//! The packets become JSON inside the page (`page.html`), whose script draws them. In here: the choice of packets, and their
//! texts. Not here: reading captures (`trace::capture`), and packets (`trace::packet`).

mod rows;

use crate::output;
use crate::trace::capture;
use ferroce_doctor::path_error;
use rows::Rows;
use serde_json::json;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

const PAGE: &str = include_str!("page.html");
/// Where the packets go.
const MARK: &str = "/*DATA*/";

/// Writes the page of a capture to a file, or to standard output; at most `count` packets are in it.
pub fn view(file: &Path, page: Option<&Path>, count: usize) -> ExitCode {
    let written = rows_of(file, count).and_then(|rows| {
        if rows.is_empty() {
            eprintln!("ferroce view: {} contains no RoCEv2 packet", file.display());
        }
        let text = html(file, &rows);
        match page {
            None => Ok(output::print(&text)),
            Some(page) => match fs::write(page, text) {
                Ok(()) => Ok(ExitCode::SUCCESS),
                Err(error) => Err(format!("{}: {}", page.display(), path_error(page, &error))),
            },
        }
    });
    written.unwrap_or_else(|says| {
        eprintln!("ferroce view: {says}");
        ExitCode::FAILURE
    })
}

fn rows_of(file: &Path, count: usize) -> Result<Rows, String> {
    let mut rows = Rows::new(count);
    let read = capture::read(file, false, |packet, _| {
        rows.take(packet);
        Ok(ControlFlow::Continue(()))
    });
    read.map_err(|says| format!("{}: {says}", file.display()))?;
    Ok(rows)
}

/// The page. Nothing in the data ends the script element that contains it.
fn html(file: &Path, rows: &Rows) -> String {
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    let data = json!({ "name": name, "hosts": rows.hosts(), "packets": rows.packets(), "left_out": rows.left_out() });
    PAGE.replacen(MARK, &data.to_string().replace('<', "\\u003c"), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_file_ends_no_script() {
        let page = html(Path::new("/tmp/<script><b>.pcapng"), &Rows::new(1));
        assert!(page.contains("\\u003cscript>\\u003cb>.pcapng"), "{page}");
        assert_eq!(page.matches("</script>").count(), PAGE.matches("</script>").count());
    }

    #[test]
    fn the_page_needs_no_network() {
        for part in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!PAGE.contains(part), "{part}");
        }
    }
}
