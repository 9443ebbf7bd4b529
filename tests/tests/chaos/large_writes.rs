//! Processes that write 8 MiB messages into each other's memory, one of which is killed or stopped.

use super::{LIMIT, Two, c_program};
use ferroce_tests::{Fabric, Host, Outcome, Process, World, require};
use std::time::{Duration, Instant};

/// `large_writes` retries 3 times after 67 ms (a local ACK timeout may take up to four times its value), and then there is the
/// scheduling of a busy machine.
const RETRY_BUDGET: Duration = Duration::from_millis(4 * 4 * 67 + 8000);

/// The messages that a `large_writes` has reported as written.
fn written(process: &Process) -> u64 {
    let stdout = process.stdout();
    let last = stdout.lines().rev().find_map(|line| line.strip_prefix("written "));
    last.map_or(0, |number| number.parse().expect("a number"))
}

/// Waits until both sides have written one message more than by now.
#[track_caller]
fn expect_progress(two: &mut Two) {
    let start = Instant::now();
    let mut before = None;
    loop {
        for process in two.both() {
            assert!(!process.has_ended(), "{}", process.wait(Duration::ZERO));
        }
        let now = [written(&two.server), written(&two.client)];
        let [server, client] = *before.get_or_insert(now);
        if now[0] > server && now[1] > client {
            return;
        }
        if start.elapsed() > LIMIT {
            let [server, client] = two.both().map(|process| process.wait(Duration::ZERO));
            panic!("stands still:\nserver: {server}client: {client}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[track_caller]
fn expect_ended(outcome: &Outcome, how: &str) {
    outcome.expect_success();
    assert!(outcome.stdout.contains(how) && outcome.stdout.contains("memory ok"), "{outcome}");
}

/// Stops both sides by SIGUSR1, and checks their memory.
#[track_caller]
fn stop_well(mut two: Two) {
    for process in two.both() {
        process.signal(libc::SIGUSR1);
    }
    for process in two.both() {
        let outcome = process.wait(LIMIT);
        expect_ended(&outcome, "asked to stop after");
        outcome.expect_quiet();
    }
}

const RETRY_EXC: &str = "ended with transport retry counter exceeded";

/// Two pairs write; a side of the first is killed at different moments.
fn killed_writer(world: &World, fabric: Fabric) {
    let program = require!(c_program("traffic/large_writes"));
    let mut others = Two::start(world, fabric, 20000, &[&program, "-w"]);
    expect_progress(&mut others);
    for round in 0..4u64 {
        let mut pair = Two::start(world, fabric, 20001, &[&program]);
        expect_progress(&mut pair);
        std::thread::sleep(Duration::from_micros(1700 * round));
        let Two { server, client } = pair;
        let (victim, mut survivor) = if round % 2 == 0 { (server, client) } else { (client, server) };
        victim.signal(libc::SIGKILL);
        let killed = Instant::now();
        drop(victim);
        let outcome = survivor.wait(LIMIT);
        expect_ended(&outcome, RETRY_EXC);
        assert!(killed.elapsed() < RETRY_BUDGET, "the survivor took {:?}:\n{outcome}", killed.elapsed());
        expect_progress(&mut others);
    }
    stop_well(others);
    world.first().expect_no_traces();
    world.last().expect_no_traces();
}

#[test]
fn killed_writer_harms_nobody_else() {
    killed_writer(&require!(World::one_host(1500)), Fabric::Any);
}

#[test]
fn killed_writer_over_udp_harms_nobody_else() {
    killed_writer(&require!(World::one_host(1500)), Fabric::Udp);
}

#[test]
fn killed_writer_between_hosts_harms_nobody_else() {
    killed_writer(&require!(World::two_hosts(9000)), Fabric::Any);
}

/// The kernel's table of names is read piece by piece: a name may be missing in it while others come and go.
fn expect_leader(host: &Host, process: &Process) {
    let start = Instant::now();
    loop {
        let leader = host.leader();
        if leader == Some(process.id()) {
            return;
        }
        assert!(leader.is_none() && start.elapsed() < LIMIT, "{leader:?} leads");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The first process of the host, its leader, is itself one of those that write. Then another process leads.
fn killed_leader(fabric: Fabric) {
    let program = require!(c_program("traffic/large_writes"));
    let world = require!(World::one_host(1500));
    let mut first = Two::start(&world, fabric, 20000, &[&program]);
    let mut others = Two::start(&world, fabric, 20001, &[&program, "-w"]);
    expect_progress(&mut first);
    expect_progress(&mut others);
    expect_leader(world.first(), &first.server);
    first.server.signal(libc::SIGKILL);
    drop(first.server);
    expect_ended(&first.client.wait(LIMIT), RETRY_EXC);
    expect_progress(&mut others);
    // With a leader or without one, others can join; a new one is there in a moment.
    let mut joined = Two::start(&world, fabric, 20002, &[&program, "-w"]);
    expect_progress(&mut joined);
    let start = Instant::now();
    while world.first().leader().is_none() {
        assert!(start.elapsed() < LIMIT, "no process leads");
        std::thread::sleep(Duration::from_millis(20));
    }
    stop_well(joined);
    stop_well(others);
    world.first().expect_no_traces();
}

#[test]
fn killed_leader_harms_only_its_own_peer() {
    killed_leader(Fabric::Any);
}

#[test]
fn killed_leader_over_udp_harms_only_its_own_peer() {
    killed_leader(Fabric::Udp);
}

/// A side stands still for a while. Over `udp` its peer ends as on a wire; else it waits, and goes on afterwards.
fn stopped_writer(world: &World, fabric: Fabric, lossless: bool, leader: bool, pause: Duration) {
    let program = require!(c_program("traffic/large_writes"));
    let words = [program.as_str(), "-t", "120"];
    let patient = [program.as_str(), "-t", "120", "-w"];
    let (mut others, mut pair);
    if leader {
        pair = Two::start(world, fabric, 20000, &words);
        others = Two::start(world, fabric, 20001, &patient);
        expect_leader(world.last(), &pair.server);
    } else {
        others = Two::start(world, fabric, 20001, &patient);
        pair = Two::start(world, fabric, 20000, &words);
    }
    expect_progress(&mut pair);
    pair.server.signal(libc::SIGSTOP);
    let stopped = Instant::now();
    let mut joined = 20002;
    while stopped.elapsed() < pause {
        expect_progress(&mut others);
        let mut pair = Two::start(world, fabric, joined, &patient);
        joined += 1;
        expect_progress(&mut pair);
        stop_well(pair);
        std::thread::sleep(Duration::from_millis(500));
    }
    if lossless {
        assert!(!pair.client.has_ended(), "{}", pair.client.wait(LIMIT));
        pair.server.signal(libc::SIGCONT);
        expect_progress(&mut pair);
        stop_well(pair);
    } else {
        expect_ended(&pair.client.wait(LIMIT), RETRY_EXC);
        pair.server.signal(libc::SIGCONT);
        expect_ended(&pair.server.wait(LIMIT), RETRY_EXC);
    }
    expect_progress(&mut others);
    stop_well(others);
    world.first().expect_no_traces();
    world.last().expect_no_traces();
}

const SHORT: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(30);

#[test]
fn stopped_writer_over_udp_ends_in_retry_exc_and_harms_nobody_else() {
    stopped_writer(&require!(World::one_host(1500)), Fabric::Udp, false, false, SHORT);
}

#[test]
fn stopped_writer_between_hosts_ends_in_retry_exc_and_harms_nobody_else() {
    stopped_writer(&require!(World::two_hosts(9000)), Fabric::Any, false, false, SHORT);
}

#[test]
fn stopped_leader_over_udp_harms_only_its_own_peer() {
    stopped_writer(&require!(World::one_host(1500)), Fabric::Udp, false, true, SHORT);
}

#[test]
#[ignore = "takes more than half a minute"]
fn stopped_leader_over_udp_harms_only_its_own_peer_for_thirty_seconds() {
    stopped_writer(&require!(World::one_host(1500)), Fabric::Udp, false, true, LONG);
}

#[test]
fn stopped_writer_on_one_host_is_waited_for_and_harms_nobody() {
    stopped_writer(&require!(World::one_host(1500)), Fabric::Any, true, false, SHORT);
}

#[test]
fn stopped_leader_on_one_host_is_waited_for_and_harms_nobody() {
    stopped_writer(&require!(World::one_host(1500)), Fabric::Any, true, true, SHORT);
}

#[test]
#[ignore = "takes more than half a minute"]
fn stopped_leader_on_one_host_is_waited_for_for_thirty_seconds() {
    stopped_writer(&require!(World::one_host(1500)), Fabric::Any, true, true, LONG);
}
