//! `cargo xtask prose`: checks the rules of plain English in CONTRIBUTING.md that a program can check.
//!
//! In here: which files are checked, and the list of exceptions. Text is cut out of files in `text`, the rules are in `rules`.

mod rules;
#[cfg(test)]
mod tests;
mod text;

use crate::dist;
use rules::Finding;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// The list of exceptions.
const ALLOWED: &str = "xtask/prose.allow";

/// Files that users read: the list of exceptions must not contain them.
const FOR_USERS: [&str; 13] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "action.yml",
    ".github/",
    "book/",
    "docs/errors/",
    "packaging/",
    "crates/cli/src/",
    "crates/doctor/src/",
    "crates/explain/src/",
];

/// Files whose text isn't ours or isn't prose: licences, the lists of exceptions, rules quoted with their examples.
const NOT_CHECKED: [&str; 4] = ["LICENSE-", "Cargo.lock", "xtask/prose.allow", "xtask/src/prose/"];

/// The crates of the public Rust API: they name verbs as users do, so rule 10 doesn't hold between them and the other crates.
const PUBLIC_API: [&str; 4] = ["crates/api/", "crates/buffers/", "crates/native/", "crates/sim/"];

/// What to do about findings.
const ADVICE: &str = "\
CONTRIBUTING.md (\"Plain English\") has the rules with examples. A finding is fixed by rewriting the sentence. xtask/prose.allow counts what
is left in older files; its counts only shrink (`cargo xtask prose --shrink` writes lower counts).";

/// Findings by rule and file (rule 10: by name of the type).
type Counts = BTreeMap<(u32, String), usize>;

/// Checks all files of the repository.
///
/// # Errors
/// A file has more findings than the list of exceptions allows, or fewer, or can't be read.
pub fn prose(shrink: bool, list: bool) -> io::Result<()> {
    let root = dist::workspace();
    let findings = findings(root)?;
    if list {
        findings.iter().for_each(|finding| println!("{finding}"));
        return Ok(());
    }
    let path = root.join(ALLOWED);
    let allowed = exceptions(&fs::read_to_string(&path)?)?;
    let found = counts(&findings);
    let over = |finding: &&Finding| {
        let key = finding.key();
        found[&key] > allowed.get(&key).copied().unwrap_or(0)
    };
    let new: Vec<&Finding> = findings.iter().filter(over).collect();
    new.iter().for_each(|finding| println!("{finding}"));
    if !new.is_empty() {
        println!("\n{ADVICE}\n");
        return Err(io::Error::other(format!(
            "{} findings in files with more than {ALLOWED} allows",
            new.len()
        )));
    }
    let stale = allowed.iter().filter(|(key, count)| found.get(*key).copied().unwrap_or(0) < **count).count();
    if shrink && stale > 0 {
        fs::write(&path, written(&found))?;
        println!("{stale} line(s) of {ALLOWED} shrunk");
    } else if stale > 0 {
        return Err(io::Error::other(format!(
            "{stale} line(s) of {ALLOWED} allow more than there is; `cargo xtask prose --shrink` writes the lower counts"
        )));
    }
    println!("{} findings in older text are left, on {} lines of {ALLOWED}", findings.len(), found.len());
    Ok(())
}

/// All findings in the files that git tracks.
fn findings(root: &Path) -> io::Result<Vec<Finding>> {
    let output = Command::new("git").current_dir(root).args(["ls-files", "-z"]).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut findings = Vec::new();
    let mut types = rules::Types::default();
    for name in names.split_terminator('\0').filter(|name| is_checked(name)) {
        // A tracked file may have been deleted from the work tree.
        let Ok(source) = fs::read_to_string(root.join(name)) else { continue };
        let path = PathBuf::from(name);
        for paragraph in text::paragraphs(&path, &source) {
            rules::sentences(&path, &paragraph, &mut findings);
        }
        if name.starts_with("crates/") && name.contains("/src/") && name.ends_with(".rs") {
            rules::fences(&path, &source, &mut findings);
            if !PUBLIC_API.iter().any(|crate_| name.starts_with(crate_)) {
                types.read(&path, &source).map_err(|error| io::Error::other(format!("{name}: {error}")))?;
            }
        }
    }
    types.repeated(&mut findings);
    Ok(findings)
}

fn is_checked(name: &str) -> bool {
    !NOT_CHECKED.iter().any(|prefix| name.starts_with(prefix))
}

fn is_for_users(name: &str) -> bool {
    let page = name.strip_prefix("docs/").is_some_and(|rest| rest.ends_with(".md") && !rest.contains('/'));
    page || FOR_USERS.iter().any(|prefix| name.starts_with(prefix))
}

fn counts(findings: &[Finding]) -> Counts {
    let mut counts = Counts::new();
    for finding in findings {
        *counts.entry(finding.key()).or_default() += 1;
    }
    counts
}

/// The exceptions of a list: `RULE FILE COUNT` on each line that isn't empty or a comment.
fn exceptions(list: &str) -> io::Result<Counts> {
    let mut counts = Counts::new();
    for (number, line) in (1..).zip(list.lines()) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: &str| io::Error::other(format!("{ALLOWED}:{number}: {why}: {line}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[rule, file, count] = words.as_slice() else {
            return Err(wrong("not `RULE FILE COUNT`"));
        };
        if is_for_users(file) {
            return Err(wrong("users read this file, so it has no exceptions"));
        }
        let (Ok(rule), Ok(count)) = (rule.parse(), count.parse()) else {
            return Err(wrong("rule and count are numbers"));
        };
        counts.insert((rule, file.to_owned()), count);
    }
    Ok(counts)
}

/// The list of exceptions that allows just what is found.
fn written(found: &Counts) -> String {
    let mut list = String::from(
        "# Findings of `cargo xtask prose` in older text: RULE FILE COUNT (rule 10: RULE TYPE COUNT). Counts only shrink.\n",
    );
    for ((rule, file), count) in found.iter().filter(|((_, file), _)| !is_for_users(file)) {
        list += &format!("{rule} {file} {count}\n");
    }
    list
}
