//! Objects made, used and destroyed in random order by threads of two processes, against a model of what verbs promise
//! (`tests/c/random/calls.c`). `cargo xtask soak --api` does it for longer; a failure names its seed.

use ferroce_tests::{Artifacts, Fabric, World, require};
use std::time::Duration;

fn random_calls(seed: u32, threads: u32, settings: &[(&str, &str)]) {
    let program = require!(Artifacts::get().c_program("random/calls"));
    let world = require!(World::one_host(1500));
    let (seed, threads) = (seed.to_string(), threads.to_string());
    let words = [&*program, "-S", &seed, "-t", "5", "-T", &threads];
    // Requests that are refused on purpose are reported on standard error.
    let outcome = world.first().start_ferroce(&[], &words, settings).wait(Duration::from_secs(90));
    outcome.expect_success();
    assert_eq!(
        outcome.stdout.lines().filter(|line| line.contains(" requests succeeded, ")).count(),
        2,
        "{outcome}"
    );
    world.first().expect_no_traces();
}

#[test]
fn any_order_of_calls_keeps_what_verbs_promise() {
    random_calls(1, 4, &[]);
}

#[test]
fn any_order_of_calls_of_eight_threads_keeps_what_verbs_promise() {
    random_calls(2, 8, &[]);
}

#[test]
fn any_order_of_calls_over_udp_keeps_what_verbs_promise() {
    random_calls(3, 4, Fabric::Udp.settings());
}
