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

/// Builds the book and says where. `keep`: an mdBook that has to be installed goes where cargo puts programs, and serves other checkouts.
///
/// # Errors
/// There is no mdBook and none can be installed, or it complains of something.
pub fn book(keep: bool) -> io::Result<()> {
    let site = target().join("book");
    let mut builder = Command::new(mdbook(keep)?);
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
fn mdbook(keep: bool) -> io::Result<PathBuf> {
    if on_path("mdbook") {
        return Ok("mdbook".into());
    }
    let tools = target().join("tools");
    let ours = tools.join("bin/mdbook");
    if keep || !ours.exists() {
        println!("Installing {MDBOOK} (minutes)");
        let mut cargo = Command::new("cargo");
        cargo.args([
            "install",
            "--quiet",
            "--locked",
            "--debug",
            "--no-default-features",
            "--features",
            "search",
            MDBOOK,
        ]);
        // Without optimisation and what debuggers read it is there in half the time.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").stdin(Stdio::null());
        if !keep {
            cargo.arg("--root").arg(&tools);
        }
        let status = cargo.status()?;
        if !status.success() {
            return Err(io::Error::other("mdBook can't be installed here: put one into PATH"));
        }
    }
    Ok(if keep { "mdbook".into() } else { ours })
}
