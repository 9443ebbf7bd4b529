//! Requests without a retry to spare, whose peers stop and go on: over shared memory, and within a process, no time passes for an answer
//! that may still come. Of one that can't come, the request fails.

use super::many_peers::Random;
use super::{LIMIT, Two, c_program};
use ferroce_tests::{Fabric, Process, World, require};
use std::thread::sleep;
use std::time::Duration;

/// How often a process stops. Each stop lasts longer than the local ACK timeout of `stream`, 201 ms.
const STOPS: u64 = 12;

fn stop_for_a_while(process: &Process, random: &mut Random) {
    process.signal(libc::SIGSTOP);
    sleep(Duration::from_millis(250 + random.below(200)));
    process.signal(libc::SIGCONT);
    sleep(Duration::from_millis(random.below(50)));
}

/// Two sides exchange messages, with the options in `words`, and stop at random; no request of theirs fails.
fn exchange_with_stops(words: &[&str], seed: u64) {
    let program = require!(c_program("traffic/stream"));
    let world = require!(World::one_host(1500));
    let mut random = Random(seed);
    let line: Vec<&str> = [program.as_str(), "-r", "0"].iter().chain(words).copied().collect();
    let mut two = Two::start(&world, Fabric::Any, 20000, &line);
    for process in two.both() {
        process.wait_for_output("connected", LIMIT);
    }
    for _ in 0..STOPS {
        let side = random.below(2) as usize;
        stop_for_a_while(two.both()[side], &mut random);
    }
    for process in two.both() {
        assert!(!process.has_ended(), "too soon: {}", process.wait(Duration::ZERO));
    }
    for process in two.both() {
        let outcome = process.wait(LIMIT);
        outcome.expect_success().expect_quiet();
        assert!(outcome.stdout.contains("were right"), "seed {seed}: {outcome}");
    }
    world.first().expect_no_traces();
}

#[test]
fn no_request_fails_because_a_side_stops_in_the_middle_of_large_answers() {
    exchange_with_stops(&["-o", "write", "-s", "8388608", "-d", "3", "-n", "450"], 0x51);
}

#[test]
fn no_request_fails_because_a_side_stops_among_many_messages() {
    exchange_with_stops(&["-o", "send", "-s", "4000", "-d", "800", "-n", "150000"], 0x52);
}

#[test]
fn no_request_fails_because_a_side_stops_among_requests_of_all_kinds() {
    exchange_with_stops(&["-s", "4000", "-d", "64", "-n", "60000"], 0x53);
}

#[test]
fn no_request_within_a_process_fails_because_the_process_stops() {
    let program = require!(c_program("traffic/impatient"));
    let world = require!(World::one_host(1500));
    let mut process = world.first().start_ferroce(&[], &[&program, "8"], Fabric::Any.settings());
    process.wait_for_output("exchanging", LIMIT);
    let mut random = Random(0x54);
    for _ in 0..STOPS {
        stop_for_a_while(&process, &mut random);
    }
    assert!(!process.has_ended(), "too soon: {}", process.wait(Duration::ZERO));
    process.wait(LIMIT).expect_success().expect_quiet();
    world.first().expect_no_traces();
}

#[test]
fn request_that_nobody_answers_fails_beside_any_traffic() {
    let program = require!(c_program("traffic/dead_request"));
    let world = require!(World::one_host(1500));
    for processes in ["one", "two"] {
        let mut process = world.first().start_ferroce(&[], &[&program, processes], Fabric::Any.settings());
        process.wait(LIMIT).expect_success().expect_only_reason("FC012");
    }
    world.first().expect_no_traces();
}
