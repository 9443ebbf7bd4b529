//! Why a path can't be used.

use std::io::{self, ErrorKind};
use std::path::Path;

/// Why a file can't be opened or created: names the first part of its path that is missing or isn't a directory.
#[must_use]
pub fn path_error(file: &Path, error: &io::Error) -> String {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let missing = |error: ErrorKind| matches!(error, ErrorKind::NotFound | ErrorKind::NotADirectory);
    // The root comes first.
    let mut above = absolute.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev();
    match above.find(|part| !part.is_dir()).filter(|_| missing(error.kind())) {
        Some(part) if part.exists() => format!("{} isn't a directory", part.display()),
        Some(part) => format!("there is no directory {}", part.display()),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_of_a_path_is_named() {
        let says = |file: &str| {
            let file = Path::new(file);
            path_error(file, &std::fs::File::open(file).unwrap_err())
        };
        assert_eq!(says("/nonexistent/a/b.json"), "there is no directory /nonexistent");
        assert_eq!(says("/etc/passwd/b.json"), "/etc/passwd isn't a directory");
        assert_eq!(says("/etc/nonexistent"), "No such file or directory (os error 2)");
    }
}
