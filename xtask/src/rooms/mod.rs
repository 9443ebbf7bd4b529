//! `cargo xtask rooms`: fails on an arrow between crates that points upwards, and on a circle between the modules of one.
//!
//! In here: finding the crates, and the list of exceptions. The order is in `house`, the reading of modules in `imports`, the rules in `check`.
//! Code that only tests use doesn't count.

mod check;
mod house;
mod imports;
#[cfg(test)]
mod tests;

use crate::dist;
use check::{Exception, Found};
use house::Storey;
use imports::{Place, Rooms};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// The list of exceptions.
const ALLOWED: &str = "xtask/rooms.allow";

/// What to do about arrows.
const ADVICE: &str = "\
To turn an arrow: move what is wanted to a crate or room below both, have it handed over as an argument, or as a trait that
the lower one declares and the upper one implements. Of a circle one arrow is enough. xtask/src/rooms/house.rs contains
the order; what can't be turned yet has a line in xtask/rooms.allow, which only gets shorter.";

/// What to do with what has been found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Print what is wrong.
    Check,
    /// Delete exceptions that nothing needs first.
    Shrink,
    /// Print the house and all arrows.
    List,
}

/// Holds the workspace's crates against the house.
///
/// # Errors
/// An arrow points upwards or is part of a circle, an exception isn't needed, or a file can't be read.
pub fn rooms(action: Action) -> io::Result<()> {
    let root = dist::workspace();
    let tree = tree(root)?;
    if action == Action::List {
        list(&tree);
        return Ok(());
    }
    let path = root.join(ALLOWED);
    let list = fs::read_to_string(&path)?;
    let mut complaints = complaints(house::HOUSE, &tree, &list)?;
    if action == Action::Shrink && !complaints.stale.is_empty() {
        let lines = list.lines().enumerate().filter(|(index, _)| !complaints.stale.contains(&(index + 1)));
        let shrunk: String = lines.map(|(_, line)| format!("{line}\n")).collect();
        fs::write(&path, &shrunk)?;
        println!("{} line(s) deleted from {ALLOWED}", complaints.stale.len());
        complaints = self::complaints(house::HOUSE, &tree, &shrunk)?;
    }
    match complaints.complaints.len() {
        0 => Ok(()),
        count => {
            complaints.complaints.iter().for_each(|complaint| println!("{complaint}\n"));
            println!("{ADVICE}\n");
            Err(io::Error::other(format!("the house doesn't allow {count} of these")))
        }
    }
}

fn complaints(house: &[Storey], tree: &[Found], list: &str) -> io::Result<check::Wrong> {
    Ok(check::check(house, tree, &exceptions(list)?))
}

/// Prints what each crate is, from the roof down, which of its rooms may know one another and why, and all arrows.
fn list(tree: &[Found]) {
    for crate_ in house::HOUSE.iter().rev().copied().flatten() {
        println!("{}: {}", crate_.name, crate_.what);
        for together in crate_.together {
            println!("    {}: {}", together.rooms.join(" "), together.why);
        }
    }
    for found in tree {
        for (to, place) in &found.dependencies {
            println!("{}: {} -> {to}  {}:{}", check::CRATES, found.name, place.file.display(), place.line);
        }
        for ((from, to), place) in &found.rooms.arrows {
            println!("{}: {from} -> {to}  {}:{}", found.name, place.file.display(), place.line);
        }
    }
}

/// The exceptions of a list: `SCOPE: FROM -> TO  WHY` on each line that isn't empty or a comment. The scope is a crate, or
/// `crates` for what is between them.
fn exceptions(list: &str) -> io::Result<Vec<Exception>> {
    let lines = list.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(exception).collect()
}

fn exception((line, text): (usize, &str)) -> io::Result<Exception> {
    let place = Place { file: ALLOWED.into(), line };
    let parsed = || {
        let (scope, arrow) = text.split_once(": ")?;
        let (from, rest) = arrow.split_once(" -> ")?;
        let (to, why) = rest.split_once(char::is_whitespace)?;
        let place = place.clone();
        (!why.trim().is_empty()).then(|| Exception {
            scope: scope.into(),
            from: from.trim().into(),
            to: to.into(),
            place,
        })
    };
    parsed()
        .ok_or_else(|| io::Error::other(format!("{ALLOWED}:{line}: not `SCOPE: FROM -> TO  WHY`: {text}")))
}

/// The crates under `crates/` of a workspace, with paths as from the workspace on.
fn tree(root: &Path) -> io::Result<Vec<Found>> {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
        .current_dir(root)
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout)?;
    let crates = metadata.workspace_root.join("crates");
    let packages: Vec<Package> =
        metadata.packages.into_iter().filter(|package| package.manifest_path.starts_with(&crates)).collect();
    let names: BTreeMap<&str, &str> =
        packages.iter().map(|package| (package.name.as_str(), short(&package.name))).collect();
    let relative = |path: &Path| path.strip_prefix(&metadata.workspace_root).unwrap_or(path).to_owned();
    let mut tree = Vec::new();
    for package in &packages {
        let manifest = fs::read_to_string(&package.manifest_path)?;
        let file = relative(&package.manifest_path);
        let dependencies =
            package.dependencies.iter().filter(|dependency| dependency.kind.as_deref() != Some("dev"));
        let dependencies = dependencies.filter_map(|dependency| {
            let line = manifest.lines().position(|line| line.starts_with(&dependency.name)).unwrap_or(0) + 1;
            Some((names.get(dependency.name.as_str())?.to_string(), Place { file: file.clone(), line }))
        });
        let mut rooms = Rooms::default();
        let built = |target: &&Target| {
            target
                .kind
                .iter()
                .any(|kind| matches!(kind.as_str(), "lib" | "rlib" | "staticlib" | "cdylib" | "bin"))
        };
        for target in package.targets.iter().filter(built) {
            let read = imports::read(&target.src_path)?;
            rooms.names.extend(read.names);
            rooms.arrows.extend(read.arrows);
        }
        for place in rooms.arrows.values_mut() {
            place.file = relative(&place.file);
        }
        tree.push(Found {
            name: short(&package.name).to_owned(),
            manifest: Place { file: file.clone(), line: 1 },
            dependencies: dependencies.collect(),
            rooms,
        });
    }
    Ok(tree)
}

fn short(package: &str) -> &str {
    package.strip_prefix("ferroce-").unwrap_or(package)
}

/// The part of cargo's metadata that is used here.
#[derive(serde::Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

#[derive(serde::Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(serde::Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

#[derive(serde::Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}
