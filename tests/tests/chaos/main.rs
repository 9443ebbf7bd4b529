//! Many processes, and processes killed or stopped at any moment: the others go on, every message reaches its addressee, no
//! byte changes outside of the WRITEs, and nothing is left.
//!
//! Tests that are ignored by default are the long forms; `cargo xtask soak --chaos` runs them too.

mod forks;
mod large_writes;
mod many_peers;
mod stopped;

use ferroce_tests::{Artifacts, Fabric, Process, Skip, World, require};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

fn c_program(name: &str) -> Result<String, Skip> {
    Artifacts::get().c_program(name)
}

/// Server and client of a program, on the last and the first host.
struct Two {
    server: Process,
    client: Process,
}

impl Two {
    fn start(world: &World, fabric: Fabric, port: u16, words: &[&str]) -> Self {
        let port_word = port.to_string();
        let mut line = vec![words[0], "-p", &port_word];
        line.extend(&words[1..]);
        let mut server = world.last().start_ferroce(&[], &line, fabric.settings());
        world.last().wait_for_listener(port, &mut server, LIMIT);
        let address = world.last().ipv4();
        line.push(&address);
        let client = world.first().start_ferroce(&[], &line, fabric.settings());
        Self { server, client }
    }

    fn both(&mut self) -> [&mut Process; 2] {
        [&mut self.server, &mut self.client]
    }
}

fn thirty_two_pairs(fabric: Fabric, messages: u32) {
    let program = require!(c_program("lifecycle/many_peers"));
    let world = require!(World::one_host(1500));
    let start = Instant::now();
    let number = messages.to_string();
    let words = [program.as_str(), "-1", "-n", &number];
    let mut pairs: Vec<Two> = (0..32).map(|pair| Two::start(&world, fabric, 20000 + pair, &words)).collect();
    for process in pairs.iter_mut().flat_map(Two::both) {
        let outcome = process.wait(LIMIT.saturating_sub(start.elapsed()));
        outcome.expect_success().expect_quiet();
        assert!(outcome.stdout.contains(&format!(" {messages} messages,")), "{outcome}");
    }
    world.first().expect_no_traces();
}

#[test]
fn thirty_two_pairs_exchange_two_thousand_messages_each() {
    thirty_two_pairs(Fabric::Any, 2000);
}

#[test]
fn thirty_two_pairs_over_udp_exchange_two_thousand_messages_each() {
    thirty_two_pairs(Fabric::Udp, 2000);
}

#[test]
#[ignore = "takes half a minute"]
fn thirty_two_pairs_exchange_ten_thousand_messages_each() {
    thirty_two_pairs(Fabric::Any, 10_000);
    thirty_two_pairs(Fabric::Udp, 10_000);
}
