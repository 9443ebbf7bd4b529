//! Programs whose threads fork while others are in the middle of verbs calls.

use super::{c_program, settings};
use ferroce_tests::{Fabric, World, require};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Runs `tests/c/forking.c CASE FORKS`, with addresses that come and go all the time.
fn forks(fabric: Fabric, case: &str, forks: u32, limit: Duration) {
    let program = require!(c_program("forking"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                host.admin("ip addr add 10.99.0.1/32 dev eth0; ip addr del 10.99.0.1/32 dev eth0");
            }
        });
        let words = [program.as_str(), case, &forks.to_string()];
        let outcome = host.start_ferroce(&[], &words, settings(fabric)).wait(limit);
        ended.store(true, Ordering::Relaxed);
        outcome.expect_success();
        assert_eq!(outcome.stdout, format!("{case} ok\n"));
        // Of what children are refused there is a line.
        assert!(outcome.stderr.lines().all(|line| line.contains("verbs can't be used in it")), "{outcome}");
    });
    host.expect_no_traces();
}

const LIMIT: Duration = Duration::from_secs(240);

#[test]
fn children_end_whatever_the_parents_threads_were_doing() {
    forks(Fabric::Any, "all", 1000, LIMIT);
}

#[test]
fn children_end_whatever_the_parents_threads_were_doing_over_udp() {
    forks(Fabric::Udp, "all", 1000, LIMIT);
}

#[test]
fn handlers_of_a_fork_may_call_verbs() {
    forks(Fabric::Any, "handlers", 200, LIMIT);
}

#[test]
fn fork_in_the_middle_of_a_call_waits_for_nobody() {
    forks(Fabric::Any, "middle", 300, LIMIT);
}

#[test]
fn child_that_no_handler_has_prepared_is_refused() {
    forks(Fabric::Any, "cloned", 1, LIMIT);
}

#[test]
#[ignore = "takes a quarter of an hour"]
fn children_of_twenty_thousand_forks_end() {
    forks(Fabric::Any, "all", 20_000, Duration::from_secs(3600));
}
