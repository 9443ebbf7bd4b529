//! Device memory, domains, imports, targets of other processes, the calls of newer headers, events under way and devices
//! that are closed too early or can't be opened: programs of `tests/c/{calls,completions,lifecycle,memory}`.

use ferroce_tests::{Artifacts, Fabric, Outcome, World, on_both_fabrics, record_skip, require};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(50);

fn run(world: &World, words: &[&str], settings: &[(&str, &str)]) -> Outcome {
    let outcome = world.first().start_ferroce(&[], words, settings).wait(LIMIT);
    outcome.expect_success();
    assert_eq!(outcome.stdout.lines().last(), Some("ok"), "{outcome}");
    outcome
}

/// Every case of a program that lists them.
fn run_cases(fabric: Fabric, &[program]: &[&str; 1]) {
    let path = require!(Artifacts::get().c_program(program));
    let world = require!(World::one_host(1500));
    let listed = std::process::Command::new(&path).output().expect("the program runs");
    let listed = String::from_utf8(listed.stdout).expect("case names are ASCII");
    assert!(!listed.is_empty());
    for case in listed.lines() {
        let outcome = run(&world, &[&*path, case], fabric.settings());
        if let Some(why) = outcome.stdout.lines().find(|line| line.starts_with("skipped")) {
            record_skip(&format!("{case}: {why}"));
        }
    }
    world.first().expect_no_traces();
}

on_both_fabrics! {
    run_cases:
    device_memory_does_what_its_man_page_says: "memory/device_memory";
    domains_do_what_their_man_pages_say: "memory/parent_domains";
    a_device_that_is_closed_too_early_ends_what_is_left: "lifecycle/close_with_objects";
    a_device_that_could_not_be_opened_leaves_little_and_opens_later: "lifecycle/failed_open";
    calls_of_newer_headers_do_what_their_man_pages_say: "calls/newer_verbs";
}

fn run_alone(program: &str) {
    let path = require!(Artifacts::get().c_program(program));
    let world = require!(World::one_host(1500));
    for settings in [Fabric::Any, Fabric::Udp].map(Fabric::settings) {
        run(&world, &[&*path], settings);
    }
    world.first().expect_no_traces();
}

#[test]
fn another_process_uses_what_it_imports() {
    run_alone("memory/import");
}

#[test]
fn a_target_is_opened_by_another_process_and_ends_with_its_creator() {
    run_alone("lifecycle/xrc_targets");
}

#[test]
fn events_are_taken_while_their_objects_come_and_go() {
    run_alone("completions/events_while_destroying");
}

#[test]
fn a_send_completes_before_its_answer_comes_also_between_processes_that_connect_at_once() {
    run_alone("completions/send_before_answer");
}

#[test]
fn completions_of_a_connection_are_polled_in_its_order_however_they_are_polled() {
    run_alone("completions/order_of_polls");
}

#[test]
fn a_message_is_acknowledged_before_any_thread_learns_of_it() {
    run_alone("completions/counted_before_told");
}

#[test]
fn queue_pairs_of_different_services_take_nothing_from_each_other() {
    run_alone("completions/other_service");
}

#[test]
fn a_request_in_reset_is_refused_for_its_state_whatever_room_there_is() {
    run_alone("calls/post_after_reset");
}
