//! Debian's ibv_asyncwatch tells what happens to the interface.

use ferroce_tests::{World, require, tool};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn ibv_asyncwatch_prints_what_happens_to_the_port() {
    require!(tool("ibv_asyncwatch", "ibverbs-utils"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    // It buffers what it prints unless that goes to a terminal.
    let words = ["stdbuf", "-oL", "ibv_asyncwatch"];
    let mut watch = host.start_ferroce(&[], &words, &[]);
    watch.wait_for_output("async event FD", LIMIT);
    let mut told = Vec::new();
    for (script, event) in [
        ("ip link set eth0 down", "IBV_EVENT_PORT_ERR (10), port 1"),
        ("ip link set eth0 up", "IBV_EVENT_PORT_ACTIVE (9), port 1"),
        ("ip link set eth0 down", "IBV_EVENT_PORT_ERR (10), port 1"),
    ] {
        host.admin(script);
        told.push(event);
        let start = Instant::now();
        while events(&watch.stdout(), "IBV_EVENT_PORT_") != told {
            assert!(start.elapsed() < LIMIT, "{told:?}, not: {}", watch.stdout());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let gid_changes = || events(&watch.stdout(), "IBV_EVENT_GID_CHANGE").len();
    let before = gid_changes();
    host.admin("ip addr add 10.99.0.1/24 dev eth0");
    let start = Instant::now();
    while gid_changes() == before {
        assert!(start.elapsed() < LIMIT, "{}", watch.stdout());
        std::thread::sleep(Duration::from_millis(10));
    }
    watch.signal(libc::SIGTERM);
    watch.wait(LIMIT);
}

/// Events whose names begin like this, in order.
fn events(said: &str, name: &str) -> Vec<String> {
    let all = said.lines().filter_map(|line| line.trim().strip_prefix("event_type "));
    all.filter(|event| event.starts_with(name)).map(str::to_owned).collect()
}
