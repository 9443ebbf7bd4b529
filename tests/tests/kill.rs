//! `kill -9` of either side at any moment: the other ends with the right completion errors in its retry budget, the
//! next programs start at once, and nothing is left.

use ferroce_tests::{Artifacts, Fabric, Pair, Process, World, require};
use std::time::{Duration, Instant};

/// `stream -x` retries 3 times after 67 ms (a local ACK timeout may take up to four times its value).
const RETRY_BUDGET: Duration = Duration::from_millis(4 * 4 * 67);
/// Scheduling on a busy machine.
const SLACK: Duration = Duration::from_secs(8);
const LIMIT: Duration = Duration::from_secs(30);

struct Running {
    server: Process,
    client: Process,
}

fn start(world: &World, settings: &[(&str, &str)], program: &str, more: &[&str]) -> Running {
    let mut words = vec![program, "-x"];
    words.extend(more);
    let mut server = world.last().start_ferroce(&[], &words, settings);
    world.last().wait_for_listener(18515, &mut server, LIMIT);
    let address = world.last().ipv4();
    words.push(&address);
    let client = world.first().start_ferroce(&[], &words, settings);
    Running { server, client }
}

/// Kills one side after `delay` of traffic and looks at the other.
fn kill_one(world: &World, settings: &[(&str, &str)], more: &[&str], kill_server: bool, delay: Duration) {
    let program = require!(Artifacts::get().c_program("traffic/stream"));
    let mut running = start(world, settings, &program, more);
    running.client.wait_for_output("connected", LIMIT);
    running.server.wait_for_output("connected", LIMIT);
    std::thread::sleep(delay);
    let (victim, mut survivor) =
        if kill_server { (running.server, running.client) } else { (running.client, running.server) };
    let context =
        format!("{more:?}, {} killed after {delay:?}", if kill_server { "server" } else { "client" });
    victim.signal(libc::SIGKILL);
    let killed = Instant::now();
    drop(victim);
    let outcome = survivor.wait(LIMIT);
    let took = killed.elapsed();
    assert!(outcome.success(), "{context}: {outcome}");
    assert!(outcome.stdout.contains("ended with transport retry counter exceeded"), "{context}: {outcome}");
    assert!(took < RETRY_BUDGET + SLACK, "{context}: the survivor took {took:?}");
    world.first().expect_no_traces();
    world.last().expect_no_traces();
}

/// Eight moments, spread over 0 to 120 ms of traffic: each side with each kind of traffic.
fn matrix(world: &World, settings: &[(&str, &str)]) {
    let kinds: [&[&str]; 4] =
        [&["-s", "64"], &["-s", "65536", "-d", "8"], &["-o", "write", "-s", "100000", "-d", "4"], &["-e"]];
    for round in 0..8u64 {
        let delay = Duration::from_micros(round * round * 2400 + round * 97);
        kill_one(world, settings, kinds[round as usize % kinds.len()], round / 4 % 2 == 0, delay);
    }
    let program = require!(Artifacts::get().c_program("traffic/stream"));
    let next = [&*program, "-n", "600"];
    let fabric = if settings.is_empty() { Fabric::Any } else { Fabric::Udp };
    Pair::new(world, fabric).limit(LIMIT).run(&next).expect_success();
}

#[test]
fn killed_peer_on_one_host_ends_in_retry_exc() {
    let world = require!(World::one_host(1500));
    matrix(&world, &[]);
}

#[test]
fn killed_peer_on_one_host_over_udp_ends_in_retry_exc() {
    let world = require!(World::one_host(1500));
    matrix(&world, Fabric::Udp.settings());
}

#[test]
fn killed_peer_between_hosts_ends_in_retry_exc() {
    let world = require!(World::two_hosts(9000));
    matrix(&world, &[]);
}

/// Kills at moments of setting up, before there is any traffic: the other side may get no completion, but
/// nothing may stay behind and the next program must work.
#[test]
fn kills_during_set_up_leave_nothing_and_harm_nobody() {
    let program = &*require!(Artifacts::get().c_program("traffic/stream"));
    let world = require!(World::one_host(1500));
    for round in 0..20u64 {
        let victim = world.first().start_ferroce(&[], &[program, "-p", "20000", "-x"], &[]);
        std::thread::sleep(Duration::from_micros(round * 400));
        victim.signal(libc::SIGKILL);
        drop(victim);
        world.first().expect_no_traces();
    }
    Pair::new(&world, Fabric::Any).limit(LIMIT).run(&[program, "-n", "600"]).expect_success();
}

/// The first process of a host hands out the sockets; when it is killed, those that stay go on and others can join.
#[test]
fn killed_first_process_of_a_host_harms_no_other() {
    let program = &*require!(Artifacts::get().c_program("traffic/stream"));
    let world = require!(World::one_host(1500));
    for settings in [Fabric::Any, Fabric::Udp].map(Fabric::settings) {
        let first = {
            let mut first = world.first().start_ferroce(&[], &[program, "-p", "20000"], settings);
            world.first().wait_for_listener(20000, &mut first, LIMIT);
            first
        };
        let mut running = start(&world, settings, program, &["-s", "20000"]);
        running.client.wait_for_output("connected", LIMIT);
        running.server.wait_for_output("connected", LIMIT);
        first.signal(libc::SIGKILL);
        drop(first);
        std::thread::sleep(Duration::from_millis(200));
        assert!(!running.client.has_ended() && !running.server.has_ended(), "{}", running.client.wait(LIMIT));
        let words = [program, "-p", "20001", "-n", "600"];
        let mut second = world.first().start_ferroce(&[], &words, settings);
        world.first().wait_for_listener(20001, &mut second, LIMIT);
        let mut words = words.to_vec();
        words.push("10.77.0.1");
        world.first().start_ferroce(&[], &words, settings).wait(LIMIT).expect_success();
        second.wait(LIMIT).expect_success();
        assert!(!running.client.has_ended() && !running.server.has_ended(), "{}", running.client.wait(LIMIT));
        drop(running);
        world.first().expect_no_traces();
    }
}
