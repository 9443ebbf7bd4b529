//! The device's limits: each can be reached, and one more is refused (`tests/c/calls/limits.c`).

use ferroce_tests::{Artifacts, Fabric, World, require};
use std::time::Duration;

fn limits_hold(of: &[&str], settings: &[(&str, &str)]) {
    let program = require!(Artifacts::get().c_program("calls/limits"));
    let world = require!(World::one_host(9000));
    // Requests that are refused on purpose are reported on standard error.
    let words = [&[&*program], of].concat();
    world.first().start_ferroce(&[], &words, settings).wait(Duration::from_secs(190)).expect_success();
    world.first().expect_no_traces();
}

#[test]
fn device_limits_can_be_reached_and_not_exceeded() {
    limits_hold(&[], &[]);
}

#[test]
fn limits_of_messages_hold_over_udp() {
    limits_hold(&["messages"], Fabric::Udp.settings());
}
