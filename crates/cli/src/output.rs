//! Standard output, whose reader may go away.

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

/// Prints `text`. A closed pipe isn't a failure.
pub fn print(text: &str) -> ExitCode {
    match write(text) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferroce: standard output: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a line; false: the reader has seen enough.
///
/// # Errors
/// What else keeps it from being printed.
pub fn line(text: &str) -> io::Result<bool> {
    write(&format!("{text}\n"))
}

fn write(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}
