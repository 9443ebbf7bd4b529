//! `cargo xtask book`: builds the book as a web site, under `book/` of the target directory.
//!
//! In here: mdBook and its warnings; the code on the pages, which is copied from the files that a marker above the block names. Out of here:
//! the programs of the book (`tests/tests/book`), its links (`xtask/tests/it/docs.rs`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use crate::apt::on_path;
use crate::dist::{target, workspace};

/// The version that is installed where there is none.
const MDBOOK: &str = "mdbook@0.5.4";

/// What stands on the line above a block of code, followed by the files of that code, relative to the book, and ` -->`. `FILE:PART` is the
/// text between the comments `ANCHOR: PART` and `ANCHOR_END: PART`.
const MARKER: &str = "<!-- code: ";

/// Columns from one tab stop to the next on a page.
const TAB: usize = 4;

/// Copies the code of the programs to the pages that show it.
///
/// # Errors
/// A page names a file or a part that doesn't exist.
pub fn update() -> io::Result<()> {
    for path in pages()? {
        let text = fs::read_to_string(&path)?;
        let updated = with_code(&path, &text)?;
        if updated != text {
            fs::write(&path, updated)?;
            println!("{}", path.display());
        }
    }
    Ok(())
}

/// The pages of the book.
fn pages() -> io::Result<Vec<PathBuf>> {
    let source = workspace().join("book/src");
    let mut pages = Vec::new();
    for folder in [source.clone(), source.join("hour")] {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "md") {
                pages.push(path);
            }
        }
    }
    Ok(pages)
}

/// The text of a page in which each marked block contains the code of its files.
fn with_code(page: &Path, text: &str) -> io::Result<String> {
    let mut updated = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        updated += &format!("{line}\n");
        let Some(names) = line.strip_prefix(MARKER).and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        let wrong = |what: &str| io::Error::other(format!("{}: {names}: {what}", page.display()));
        let fence =
            lines.next().filter(|line| line.starts_with("```")).ok_or_else(|| wrong("no block below"))?;
        lines.by_ref().find(|line| *line == "```").ok_or_else(|| wrong("the block has no end"))?;
        let parts: Vec<String> = names
            .split(' ')
            .map(|name| part(name).map_err(|error| wrong(&error.to_string())))
            .collect::<io::Result<_>>()?;
        updated += &format!("{fence}\n{}```\n", parts.join("\n"));
    }
    Ok(updated)
}

/// The lines of `FILE` or of `FILE:PART`, without common indentation, comments of parts, and tabs.
fn part(name: &str) -> io::Result<String> {
    let (file, part) = name.split_once(':').map_or((name, None), |(file, part)| (file, Some(part)));
    let text = fs::read_to_string(workspace().join("book").join(file))?;
    let mut inside = part.is_none();
    let (mut begun, mut ended) = (inside, inside);
    let mut kept = Vec::new();
    for line in text.lines() {
        if let Some((_, anchor)) = line.split_once("ANCHOR") {
            let name = anchor.trim_start_matches("_END").trim_start_matches(": ").split(' ').next();
            if part.is_some() && name == part {
                inside = !anchor.starts_with("_END");
                begun |= inside;
                ended |= !inside;
            }
        } else if inside {
            kept.push(line);
        }
    }
    if !begun || !ended || kept.is_empty() {
        return Err(io::Error::other("the file has no such part"));
    }
    let indentation = |line: &&str| line.len() - line.trim_start_matches('\t').len();
    let common = kept.iter().filter(|line| !line.is_empty()).map(indentation).min().unwrap_or(0);
    Ok(kept.iter().map(|line| format!("{}\n", expand_tabs(line.get(common..).unwrap_or_default()))).collect())
}

fn expand_tabs(line: &str) -> String {
    let mut expanded = String::new();
    for c in line.chars() {
        if c == '\t' {
            let spaces = TAB - expanded.chars().count() % TAB;
            expanded.extend(std::iter::repeat_n(' ', spaces));
        } else {
            expanded.push(c);
        }
    }
    expanded
}

#[test]
fn code_on_the_pages_is_that_of_the_files() {
    let mut shown = 0;
    for path in pages().expect("the pages") {
        let text = fs::read_to_string(&path).expect("a page");
        let updated = with_code(&path, &text).unwrap_or_else(|error| panic!("{error}"));
        assert!(
            updated == text,
            "{}: the code differs; `cargo xtask book --update` copies it",
            path.display()
        );
        assert!(!text.contains("{{#"), "{}: isn't readable in the repository", path.display());
        shown += text.matches(MARKER).count();
    }
    assert!(shown > 20, "{shown}");
}

#[test]
fn a_part_is_dedented_and_has_spaces_for_tabs() {
    assert_eq!(expand_tabs("\tab\tc"), "    ab  c");
    let objects = part("programs/pair.c:objects").expect("a part");
    assert!(!objects.contains('\t') && !objects.contains("ANCHOR") && !objects.starts_with(' '), "{objects}");
    assert!(part("programs/pair.c:missing").is_err() && part("programs/missing.c").is_err());
}

/// Builds the book and prints its first page's path. `keep`: an mdBook that has to be installed goes where cargo puts programs, and serves other checkouts.
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
