//! What happens to the interface while a program has the device open: ibv_asyncwatch prints the events, and all processes see the same.

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

#[test]
fn gid_indices_are_the_same_for_all_processes() {
    require!(tool("ibv_asyncwatch", "ibverbs-utils"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    let gids = || {
        let all = "for i in 0 1 2 3 4 5 6; do cat /sys/class/infiniband/ferroce0/ports/1/gids/$i; done";
        let shown = host.start_ferroce(&[], &["sh", "-c", all], &[]).wait(LIMIT);
        shown.expect_success();
        let listed = host.start_ferroce(&[], &["ibv_devinfo", "-v"], &[]).wait(LIMIT);
        listed.expect_success();
        let ends = |text: &str| text.rsplit(':').next().unwrap_or_default().to_owned();
        let shown: Vec<String> = shown.stdout.lines().map(ends).collect();
        (shown, listed.stdout)
    };
    host.admin("ip addr add 10.99.0.2/32 dev eth0; ip addr add 10.99.0.3/32 dev eth0");
    let mut watch = host.start_ferroce(&[], &["stdbuf", "-oL", "ibv_asyncwatch"], &[]);
    watch.wait_for_output("async event FD", LIMIT);
    let (before, _) = gids();
    let place = |gids: &[String], last: &str| gids.iter().position(|gid| gid == last);
    let (second, third) = (place(&before, "0002"), place(&before, "0003"));
    assert!(second.is_some() && third > second, "{before:?}");
    host.admin("ip addr del 10.99.0.2/32 dev eth0");
    watch.wait_for_output("IBV_EVENT_GID_CHANGE", LIMIT);
    let (hole, listed) = gids();
    assert_eq!(place(&hole, "0003"), third, "its index is still its own");
    assert_eq!(hole[second.unwrap()], "0000", "{hole:?}");
    assert!(listed.contains(&format!("GID[{:3}]", third.unwrap())), "{listed}");
    host.admin("ip addr add 10.99.0.4/32 dev eth0");
    let start = Instant::now();
    while events(&watch.stdout(), "IBV_EVENT_GID_CHANGE").len() < 2 {
        assert!(start.elapsed() < LIMIT, "{}", watch.stdout());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(place(&gids().0, "0004"), second, "the first free index");
    watch.signal(libc::SIGTERM);
    watch.wait(LIMIT);
    // No process is left that knows of the hole.
    host.admin("ip addr del 10.99.0.4/32 dev eth0");
    assert_eq!(place(&gids().0, "0003"), second);
}

/// Events whose names begin like this, in order.
fn events(said: &str, name: &str) -> Vec<String> {
    let all = said.lines().filter_map(|line| line.trim().strip_prefix("event_type "));
    all.filter(|event| event.starts_with(name)).map(str::to_owned).collect()
}
