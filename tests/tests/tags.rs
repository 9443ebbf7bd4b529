//! Tag matching between two processes: `tests/c/traffic/tags.c`.

use ferroce_tests::{Artifacts, Fabric, Pair, World, require};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(50);

fn match_tags(world: &World, fabric: Fabric, options: &[&str]) {
    let program = &*require!(Artifacts::get().c_program("traffic/tags"));
    let outcome = Pair::new(world, fabric).options(options).limit(LIMIT).run(&[program]);
    outcome.expect_success();
    outcome.client.expect_ok();
    outcome.server.expect_ok();
    world.first().expect_no_traces();
    world.last().expect_no_traces();
}

#[test]
fn messages_go_where_their_tags_say_with_shared_memory() {
    match_tags(&require!(World::one_host(1500)), Fabric::Any, &[]);
}

#[test]
fn messages_go_where_their_tags_say_over_udp() {
    match_tags(&require!(World::one_host(1500)), Fabric::Udp, &[]);
}

#[test]
fn messages_go_where_their_tags_say_between_hosts_that_lose_packets() {
    match_tags(&require!(World::two_hosts(1500)), Fabric::Any, &["--fault", "drop=1%,dup=1%,reorder=1%"]);
}
