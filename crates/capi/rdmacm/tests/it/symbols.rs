//! What libraries export.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a program prints about a file.
pub fn output(program: &str, args: &[&str], file: &Path) -> String {
    let output = Command::new(program).args(args).arg(file).output().expect(program);
    assert!(
        output.status.success(),
        "{program} {}: {}",
        file.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// Defined dynamic symbols with their versions.
pub fn exports(file: &Path) -> BTreeSet<String> {
    output("nm", &["--dynamic", "--defined-only", "--with-symbol-versions"], file)
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|symbol| symbol.contains('@'))
        .map(str::to_owned)
        .collect()
}

/// The distribution's library, if it is installed.
pub fn installed(library: &str) -> Option<PathBuf> {
    let found = ["x86_64", "aarch64"]
        .map(|arch| PathBuf::from(format!("/usr/lib/{arch}-linux-gnu/{library}")))
        .into_iter()
        .find(|path| path.exists());
    if found.is_none() {
        println!("no {library} of a distribution here; nothing to compare with");
    }
    found
}
