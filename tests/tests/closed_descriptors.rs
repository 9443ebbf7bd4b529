//! What the program has opened is never touched, whatever it has closed of the adapter's:
//! `tests/c/surroundings/closed_descriptors.c`.

use ferroce_tests::{Artifacts, Fabric, World, on_both_fabrics, require};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(50);

/// Where the C library's functions are ours, the adapter's descriptors stay open, and it goes on. System calls made by hand
/// reach them: then it fails, and reports that.
fn run_with(fabric: Fabric, preload: bool, words: &[&str]) {
    let program = require!(Artifacts::get().c_program("surroundings/closed_descriptors"));
    let world = require!(World::one_host(1500));
    let options: &[&str] = if preload { &[] } else { &["--no-preload"] };
    let kept = preload && words[0] != "raw";
    let fate = if kept { "kept" } else { "lost" };
    let words: Vec<&str> = [&*program].into_iter().chain(words.iter().copied()).collect();
    let words: Vec<&str> = if ["limit", "cloned"].contains(&words[1]) {
        words
    } else {
        words.into_iter().chain([fate]).collect()
    };
    let outcome = world.first().start_ferroce(options, &words, fabric.settings()).wait(LIMIT);
    outcome.expect_success();
    if ["limit", "cloned"].contains(&words[1]) || kept {
        outcome.expect_quiet();
    } else {
        let lines = outcome.stderr.lines().filter(|line| line.contains("closed file descriptors")).count();
        assert_eq!(lines, 1, "{outcome}");
    }
    world.first().expect_no_traces();
}

fn run(fabric: Fabric, words: &[&str]) {
    run_with(fabric, true, words);
    run_with(fabric, false, words);
}

on_both_fabrics! {
    run:
    closing_each_number_leaves_the_programs_files_alone: "close" "file";
    closing_a_range_leaves_the_programs_files_alone: "range" "file";
    closing_from_a_number_on_leaves_the_programs_files_alone: "from" "file";
    closing_by_hand_leaves_the_programs_files_alone: "raw" "file";
    closing_by_hand_leaves_the_programs_sockets_alone: "raw" "socket";
    closing_by_hand_leaves_the_programs_event_counters_alone: "raw" "counter";
    child_of_clone_can_close_what_it_has_inherited: "cloned";
    limit_of_file_sizes_set_after_opening_does_no_harm: "limit";
}
