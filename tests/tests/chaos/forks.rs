//! Programs whose threads fork while others are in the middle of verbs calls.

use super::c_program;
use ferroce_tests::{Fabric, Outcome, World, require};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The lines about children that are refused verbs.
#[derive(PartialEq, Eq)]
enum Refusals {
    None,
    Some,
}

/// Runs a case of a program of `tests/c/fork`, with addresses that come and go all the time.
fn forks(fabric: Fabric, [program, case, forks]: [&str; 3], refusals: Refusals, limit: Duration) {
    let program = require!(c_program(program));
    let world = require!(World::one_host(1500));
    let host = world.first();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                host.admin("ip addr add 10.99.0.1/32 dev eth0; ip addr del 10.99.0.1/32 dev eth0");
            }
        });
        let outcome = host.start_ferroce(&[], &[&program, case, forks], fabric.settings()).wait(limit);
        ended.store(true, Ordering::Relaxed);
        expect(&outcome, refusals);
    });
    host.expect_no_traces();
}

/// The case has passed. Of what children are refused there is a line.
fn expect(outcome: &Outcome, refusals: Refusals) {
    outcome.expect_ok();
    assert!(outcome.stderr.lines().all(|line| line.contains("verbs can't be used in it")), "{outcome}");
    assert!(outcome.stderr.is_empty() == (refusals == Refusals::None), "{outcome}");
}

const LIMIT: Duration = Duration::from_secs(240);

#[test]
fn children_end_whatever_the_parents_threads_were_doing() {
    forks(Fabric::Any, ["fork/under_load", "all", "500"], Refusals::None, LIMIT);
}

#[test]
fn children_end_whatever_the_parents_threads_were_doing_over_udp() {
    forks(Fabric::Udp, ["fork/under_load", "all", "500"], Refusals::None, LIMIT);
}

#[test]
fn handlers_of_a_fork_may_call_verbs() {
    forks(Fabric::Any, ["fork/under_load", "handlers", "200"], Refusals::None, LIMIT);
}

#[test]
fn fork_in_the_middle_of_a_call_waits_for_nobody() {
    forks(Fabric::Any, ["fork/unprepared", "middle", "300"], Refusals::Some, LIMIT);
}

#[test]
fn child_that_no_handler_has_prepared_is_refused() {
    forks(Fabric::Any, ["fork/unprepared", "cloned", "1"], Refusals::Some, LIMIT);
}

/// Runs `tests/c/fork/bad_moments.c CASE`. The addresses stay: their events are not those that the program waits for.
fn one_fork(case: &str, refusals: Refusals) {
    let program = require!(c_program("fork/bad_moments"));
    let world = require!(World::one_host(1500));
    let outcome = world.first().start_ferroce(&[], &[&program, case], &[]).wait(LIMIT);
    expect(&outcome, refusals);
    world.first().expect_no_traces();
}

#[test]
fn fork_waits_for_a_lock_of_handlers_registered_before_the_library_was_loaded() {
    one_fork("lock_registered_before", Refusals::Some);
}

#[test]
fn fork_waits_for_a_lock_of_handlers_registered_before_the_first_call() {
    one_fork("lock_registered_first", Refusals::None);
}

#[test]
fn fork_waits_for_a_lock_of_handlers_registered_after_the_first_call() {
    one_fork("lock_registered_later", Refusals::None);
}

#[test]
fn child_takes_no_event_from_its_parent() {
    one_fork("unread", Refusals::None);
}

#[test]
fn child_announces_no_event_to_its_parent() {
    one_fork("announced", Refusals::None);
}

#[test]
fn child_waits_for_no_acknowledgement_of_its_parent() {
    one_fork("unacknowledged", Refusals::None);
}

#[test]
fn fork_in_the_middle_of_a_fork_waits_for_nobody() {
    one_fork("nested", Refusals::Some);
}

#[test]
fn call_in_the_middle_of_a_fork_waits_for_nobody() {
    one_fork("called", Refusals::None);
}

#[test]
#[ignore = "takes a quarter of an hour"]
fn children_of_twenty_thousand_forks_end() {
    forks(Fabric::Any, ["fork/under_load", "all", "20000"], Refusals::None, Duration::from_secs(3600));
}
