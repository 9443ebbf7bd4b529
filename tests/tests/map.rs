//! `tests/README.md`, which maps rooms to tests, is complete: it names every suite and every C program, and nothing else.

use std::collections::BTreeSet;
use std::path::Path;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The paths that the page names, relative to its folder; `c/raw/{flows,vlan}.c` stands for two.
fn named() -> BTreeSet<String> {
    let page = std::fs::read_to_string(here().join("README.md")).expect("the page");
    let quoted = page.split('`').skip(1).step_by(2);
    let roots = ["tests/", "c/", "conformance/", "mpi/", "src/", "../"];
    let paths = quoted.filter(|text| roots.iter().any(|root| text.starts_with(root)));
    // Placeholders of what a reader puts in.
    paths.filter(|path| !path.contains("SUITE")).flat_map(expanded).collect()
}

fn expanded(path: &str) -> Vec<String> {
    match path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
        Some((before, (names, after))) => {
            names.split(',').map(|name| format!("{before}{name}{after}")).collect()
        }
        None => vec![path.to_owned()],
    }
}

fn entries(directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(here().join(directory)).expect("a directory of the suite");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
}

/// The suites of `tests`, as the page names them.
fn suites() -> Vec<String> {
    let name = |entry: String| {
        let is_suite = entry.ends_with(".rs");
        if is_suite { format!("tests/{entry}") } else { format!("tests/{entry}/") }
    };
    entries("tests").into_iter().map(name).collect()
}

/// The programs below a folder.
fn programs(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in entries(folder) {
        let path = format!("{folder}/{entry}");
        if here().join(&path).is_dir() {
            found.extend(programs(&path));
        } else if path.ends_with(".c") {
            found.push(path);
        }
    }
    found
}

#[test]
fn every_suite_and_every_program_has_its_place_on_the_map() {
    let named = named();
    let there = suites().into_iter().chain(["c", "conformance", "mpi"].into_iter().flat_map(programs));
    let missing: Vec<String> = there.filter(|path| !named.contains(path)).collect();
    assert!(missing.is_empty(), "tests/README.md doesn't name {missing:#?}");
}

#[test]
fn everything_on_the_map_is_there() {
    let gone: Vec<String> = named().into_iter().filter(|path| !here().join(path).exists()).collect();
    assert!(gone.is_empty(), "tests/README.md names what isn't there: {gone:#?}");
}

/// A program that no suite runs proves nothing.
#[test]
fn every_program_is_run_by_somebody() {
    let mut sources = String::new();
    let mut folders = vec![here().join("tests"), here().join("src"), here().join("../xtask/src")];
    folders.push(here().join("../crates/api/tests"));
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                sources.push_str(&std::fs::read_to_string(&path).expect("UTF-8"));
            }
        }
    }
    let name = |path: &String| path.trim_start_matches("c/").trim_end_matches(".c").to_owned();
    // A string that ends with its name or its file, or its cases in `calls.rs`.
    let called = |name: &String| {
        let ends = [format!("{name}\""), format!("{name}.c\""), format!("    {name} {{\n")];
        ends.iter().any(|end| sources.contains(end))
    };
    let idle: Vec<String> = programs("c").iter().map(name).filter(|name| !called(name)).collect();
    assert!(idle.is_empty(), "no suite runs {idle:?}");
}
