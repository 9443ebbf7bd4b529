//! Memory that one process opens to another and takes back, while it is used: `tests/c/memory/windows.c`,
//! `tests/c/memory/former_connection.c`, `tests/c/memory/other_numbers.c`.

use ferroce_tests::{Artifacts, Fabric, Pair, Skip, World, require};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(50);

fn open_and_take_back(world: &World, fabric: Fabric, options: &[&str], arguments: &[&str]) {
    let program = &*require!(Artifacts::get().c_program("memory/windows"));
    let outcome =
        Pair::new(world, fabric).options(options).limit(LIMIT).run(&[&[program], arguments].concat());
    outcome.expect_success();
    outcome.client.expect_ok();
    outcome.server.expect_ok();
    world.first().expect_no_traces();
    world.last().expect_no_traces();
}

#[test]
fn what_is_taken_back_is_the_owners_alone_with_shared_memory() {
    open_and_take_back(&require!(World::one_host(1500)), Fabric::Any, &[], &[]);
}

#[test]
fn what_is_taken_back_is_the_owners_alone_over_udp() {
    open_and_take_back(&require!(World::one_host(1500)), Fabric::Udp, &[], &[]);
}

#[test]
fn what_is_taken_back_is_the_owners_alone_between_hosts_that_lose_packets() {
    let faults = ["--fault", "drop=0.5%,dup=1%,reorder=1%"];
    open_and_take_back(&require!(World::two_hosts(9000)), Fabric::Any, &faults, &["-l"]);
}

/// `tests/c/memory/other_numbers.c`.
#[test]
fn shared_memory_of_a_peer_is_the_peers_though_proc_numbers_other_processes() {
    let program = &*require!(Artifacts::get().c_program("memory/other_numbers"));
    let world = require!(World::one_host(1500));
    let mut process = world.first().start_ferroce_privileged(&[], &[program], &[]);
    let outcome = process.wait(LIMIT);
    if let Some(why) = outcome.stdout.lines().find_map(|line| line.strip_prefix("skipped: ")) {
        return require!(Err(Skip(why.to_owned())));
    }
    outcome.expect_success();
    outcome.expect_ok();
}

#[test]
fn a_former_connection_reaches_nothing() {
    let program = &*require!(Artifacts::get().c_program("memory/former_connection"));
    let world = require!(World::one_host(1500));
    for fabric in [Fabric::Any, Fabric::Udp] {
        let outcome = Pair::new(&world, fabric).limit(LIMIT).run(&[program]);
        outcome.expect_success().expect_only_reasons();
    }
    world.first().expect_no_traces();
}
