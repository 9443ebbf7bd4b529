//! The book: the commands on its pages are typed here, in order, and must print what the pages show.
//!
//! With FERROCE_WRITE_PAGES=1 the pictures of messages are drawn anew from the captures that the pages have made.

mod flow;
mod page;
mod rendered;

use ferroce_tests::{Artifacts, World, require, tool, verbs_headers};
use page::Page;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
/// Where a reader is, on the host of the test.
const DIRECTORY: &str = "/tmp/book";

fn book() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../book")
}

/// Types all commands of a page; `tools` are what it needs, with their Debian packages.
fn follow(name: &str, tools: &[(&str, &str)]) {
    require!(verbs_headers());
    for (program, package) in tools.iter().chain(&[("cc", "gcc")]) {
        require!(tool(program, package));
    }
    let page = Page::read(&book(), name);
    assert!(!page.transcripts.is_empty(), "nothing is typed on {name}");
    let world = require!(World::one_host(1500));
    let host = world.first();
    page::lay_out(&book().join("programs"), &host.path(DIRECTORY));
    let bin = Artifacts::get().ferroce().with_file_name("");
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", bin.display());
    for transcript in &page.transcripts {
        let script = format!("cd {DIRECTORY}\n{}", transcript.script());
        let outcome = host.start(&["bash", "-e", "-c", &script], &[("PATH", path.as_str())]).wait(LIMIT);
        outcome.expect_success();
        transcript.compare(&outcome).unwrap_or_else(|says| panic!("{name}: {says}\n{outcome}"));
    }
    for picture in &page.pictures {
        let capture = host.path(DIRECTORY).join(picture).with_extension("pcapng");
        flow::compare(&capture, &book().join("src/pictures").join(picture).with_extension("svg"));
    }
    std::fs::remove_dir_all(host.path(DIRECTORY)).expect("the reader's directory");
    host.expect_no_traces();
}

macro_rules! pages {
    ($($test:ident: $name:literal $(with $($tool:literal of $package:literal)+)?;)*) => {
        /// The pages on which something is typed.
        const FOLLOWED: &[&str] = &[$($name),*];
        $(
            #[test]
            fn $test() {
                follow($name, &[$($(($tool, $package)),+)?]);
            }
        )*
    };
}

pages! {
    a_device: "hour/device.md";
    a_pair: "hour/pair.md";
    one_sided_operations: "hour/one_sided.md";
    atomics: "hour/atomics.md";
    events: "hour/events.md";
    datagrams: "hour/datagrams.md";
    polling_in_batches: "hour/polling.md";
    the_connection_manager: "hour/manager.md";
    debugging: "debugging.md" with "tshark" of "tshark";
    captures: "capture.md";
    performance: "performance.md" with "ib_send_lat" of "perftest";
    programs_for_infiniband: "infiniband.md" with "ibv_rc_pingpong" of "ibverbs-utils";
    reference: "reference.md";
}

/// What stands for the reader's program, and for one written for InfiniBand.
const PROGRAMS: [&str; 2] = ["your_program", "addresses_by_LID"];

/// The commands of the README after the two that build: those of `ferroce`.
#[test]
fn the_readme_types_commands_that_work() {
    require!(verbs_headers());
    for (program, package) in [("ib_write_bw", "perftest"), ("cc", "gcc")] {
        require!(tool(program, package));
    }
    let page = Page::read(&book(), "../../README.md");
    let typed: Vec<&str> = page.transcripts.iter().flat_map(page::Transcript::commands).collect();
    let (built, typed): (Vec<&str>, Vec<&str>) =
        typed.iter().partition(|line| line.starts_with("cargo xtask "));
    assert!(built.len() == 2 && typed.len() >= 5, "{built:?} {typed:?}");
    let world = require!(World::one_host(1500));
    let host = world.first();
    page::lay_out(&book().join("programs"), &host.path(DIRECTORY));
    std::os::unix::fs::symlink(".", host.path(DIRECTORY).join("programs")).expect("the reader's directory");
    std::os::unix::fs::symlink(".", host.path(DIRECTORY).join("book")).expect("the reader's directory");
    let bin = Artifacts::get().ferroce().with_file_name("");
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", bin.display());
    let compiled = PROGRAMS.map(|program| format!("cc -o {program} device.c -libverbs\n")).concat();
    let script =
        format!("cd {DIRECTORY}\n{compiled}{}\nwait\ntest -s a.pcapng && test -s a.html", typed.join("\n"));
    let outcome = host.start(&["bash", "-e", "-c", &script], &[("PATH", path.as_str())]).wait(LIMIT);
    outcome.expect_success();
    let failure = page.transcripts.last().expect("a failure, explained");
    failure.compare_wrapped(&outcome).unwrap_or_else(|says| panic!("{says}\n{outcome}"));
    std::fs::remove_dir_all(host.path(DIRECTORY)).expect("the reader's directory");
    host.expect_no_traces();
}

#[test]
fn each_page_on_which_something_is_typed_is_followed() {
    let typed: Vec<String> = page::names(&book())
        .into_iter()
        .filter(|name| !Page::read(&book(), name).transcripts.is_empty())
        .collect();
    let mut followed: Vec<&str> = FOLLOWED.to_vec();
    followed.sort_unstable();
    assert_eq!(typed, followed);
}

/// Other blocks are parts of files that a test runs: C of programs that a page compiles, the rest what
/// `cargo xtask package --test` carries out.
#[test]
fn each_block_is_typed_or_is_part_of_a_file_that_runs() {
    let mut complaints = Vec::new();
    let mut compiled = String::new();
    let mut shown = Vec::new();
    let readme =
        std::fs::read_to_string(book().join("../crates/api/README.md")).expect("the README of the Rust API");
    for name in page::names(&book()) {
        let page = Page::read(&book(), &name);
        compiled.extend(
            page.transcripts.iter().flat_map(|transcript| transcript.commands()).map(|c| format!("{c}\n")),
        );
        for block in &page.others {
            let runs = block.files.iter().all(|file| match &*block.language {
                // Those in Rust are tests of the Rust API's (`crates/api/tests`).
                "c" | "rust" => file.starts_with("programs/"),
                "python" => file.starts_with("../packaging/python/examples/"),
                "yaml" => file.starts_with("../packaging/"),
                // Compared with what a command prints, by the tests of the command.
                "text" => file.starts_with("shown/"),
                _ => file == "../README.md",
            });
            // Those of the README are doc tests.
            let is_doc_test = block.language.starts_with("rust") && readme.contains(&block.text);
            if (block.files.is_empty() || !runs) && !is_doc_test {
                complaints
                    .push(format!("{name}: a block of {:?} isn't part of a file that runs", block.language));
            }
            shown.extend(block.files.clone());
        }
    }
    for file in &shown {
        if !book().join(file).exists() {
            complaints.push(format!("{file} isn't there"));
        }
        if file.ends_with(".c") && !compiled.contains(&format!(" {}", file.trim_start_matches("programs/"))) {
            complaints.push(format!("no page compiles {file}"));
        }
    }
    for entry in std::fs::read_dir(book().join("programs")).expect("the programs") {
        let path = entry.expect("an entry").path();
        let file = format!("programs/{}", path.file_name().unwrap_or_default().display());
        if !shown.contains(&file) {
            complaints.push(format!("no page shows {file}"));
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}
