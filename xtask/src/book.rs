//! `cargo xtask book`: the book as a web site, under `book/` of the target directory.
//!
//! Here: mdBook, and what it complains of. Not here: the programs of the book (`tests/tests/book`), its links (`docs`).

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::dist::{target, workspace};
use crate::packages::on_path;

/// The version that is installed where there is none.
const MDBOOK: &str = "mdbook@0.5.4";

/// Builds the book and says where.
///
/// # Errors
/// There is no mdBook and none can be installed, or it complains of something.
pub fn book() -> io::Result<()> {
    let site = target().join("book");
    let mut builder = Command::new(mdbook()?);
    builder.arg("build").arg("--dest-dir").arg(&site).arg(workspace().join("book"));
    let output = builder.stdin(Stdio::null()).output()?;
    let says = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || says.contains("WARN") || says.contains("ERROR") {
        return Err(io::Error::other(format!("mdbook complains:\n{says}")));
    }
    println!("{}", site.join("index.html").display());
    Ok(())
}

/// The program: that of the machine, or ours, which is built when it is first needed.
fn mdbook() -> io::Result<PathBuf> {
    if on_path("mdbook") {
        return Ok("mdbook".into());
    }
    let tools = target().join("tools");
    let ours = tools.join("bin/mdbook");
    if !ours.exists() {
        println!("Installing {MDBOOK} into {} (minutes)", tools.display());
        let mut cargo = Command::new("cargo");
        cargo.args([
            "install",
            "--quiet",
            "--locked",
            "--no-default-features",
            "--features",
            "search",
            MDBOOK,
        ]);
        let status = cargo.arg("--root").arg(&tools).stdin(Stdio::null()).status()?;
        if !status.success() {
            return Err(io::Error::other("mdBook can't be installed here: put one into PATH"));
        }
    }
    Ok(ours)
}
