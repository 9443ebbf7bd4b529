//! Processes that come, exchange messages with their sender and addressee in them, and are killed at random.

use super::{LIMIT, c_program};
use ferroce_tests::{Fabric, Process, World, require};
use std::time::{Duration, Instant};

/// xorshift64*: a failure names its seed.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// A process whose end has been decided.
struct Doomed {
    process: Process,
    end: Instant,
    stop_first: bool,
    /// It is a client of a server that stays, and leaves by itself: that must go well.
    must_succeed: bool,
}

impl Doomed {
    /// Whether it has ended, or been ended.
    #[track_caller]
    fn see_to(&mut self, now: Instant) -> bool {
        if self.process.has_ended() {
            let outcome = self.process.wait(Duration::ZERO);
            let gone = !self.must_succeed && outcome.stderr.lines().all(is_about_a_lost_server);
            assert!(outcome.success() || gone, "{outcome}");
            return true;
        }
        if self.must_succeed {
            assert!(now < self.end + LIMIT, "{}", self.process.wait(Duration::ZERO));
            return false;
        }
        if self.stop_first && now + Duration::from_millis(300) > self.end {
            self.process.signal(libc::SIGSTOP);
            self.stop_first = false;
        }
        if now >= self.end {
            self.process.signal(libc::SIGKILL);
        }
        now >= self.end
    }
}

fn is_about_a_lost_server(line: &str) -> bool {
    line.starts_with("the server is gone") || line.starts_with("connecting to ")
}

/// Asks a server for what it has seen, until it has no client any more.
#[track_caller]
fn wait_until_alone(server: &mut Process) -> String {
    let start = Instant::now();
    loop {
        let before = server.stdout().len();
        server.signal(libc::SIGUSR1);
        while server.stdout().len() == before {
            assert!(!server.has_ended() && start.elapsed() < LIMIT, "{}", server.wait(Duration::ZERO));
            std::thread::sleep(Duration::from_millis(5));
        }
        let state = server.stdout().lines().last().unwrap_or_default().to_owned();
        if state.starts_with("state: 0 connections") {
            return state;
        }
        assert!(start.elapsed() < LIMIT, "a client that has died is still there: {state}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// `count` processes come and are killed, or leave, within `duration`; two stay.
fn chaos(fabric: Fabric, count: u64, duration: Duration, seed: u64) {
    let program = require!(c_program("lifecycle/many_peers"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    let mut random = Random(seed);
    let limit = (duration.as_secs() + 100).to_string();
    let start_peer = |port: u16, more: &[&str], mixed: bool| {
        let port = port.to_string();
        let mut words = vec![program.as_str(), "-t", &limit, "-p", &port];
        words.extend(more);
        // Processes that insist on packets are among the others.
        host.start_ferroce(&[], &words, (if mixed { Fabric::Udp } else { fabric }).settings())
    };
    // The first of all, the leader, is one of those that die.
    let mut next_port = 20002;
    let mut passing = vec![(start_peer(next_port, &[], false), next_port)];
    host.wait_for_listener(next_port, &mut passing[0].0, LIMIT);
    let mut staying: Vec<Process> = (20000..20002).map(|port| start_peer(port, &[], false)).collect();
    for (port, process) in (20000..).zip(&mut staying) {
        host.wait_for_listener(port, process, LIMIT);
        for mixed in [false, true] {
            start_peer(port, &["-n", "200", "10.77.0.1"], mixed).wait(LIMIT).expect_success();
        }
        wait_until_alone(process);
    }
    let before: Vec<_> = staying.iter().map(Process::holdings).collect();

    let start = Instant::now();
    let mut living: Vec<Doomed> = Vec::new();
    let mut born = 0;
    while start.elapsed() < duration || !living.is_empty() {
        let now = Instant::now();
        living.retain_mut(|doomed| !doomed.see_to(now));
        for process in &mut staying {
            assert!(!process.has_ended(), "seed {seed}: {}", process.wait(Duration::ZERO));
        }
        let due = start.elapsed().as_secs_f64() / duration.as_secs_f64() * count as f64;
        if start.elapsed() >= duration || born as f64 >= due {
            std::thread::sleep(Duration::from_millis(2));
            continue;
        }
        born += 1;
        let end = now + Duration::from_millis(random.below(2500));
        let mixed = random.below(4) == 0;
        if random.below(12) == 0 {
            // Another server, and the end of the one before.
            next_port += 1;
            let mut new = start_peer(next_port, &[], mixed);
            host.wait_for_listener(next_port, &mut new, LIMIT);
            let (old, _) = passing.pop().expect("there is always one");
            passing.push((new, next_port));
            living.push(Doomed { process: old, end, stop_first: random.below(3) == 0, must_succeed: false });
            continue;
        }
        let stays = random.below(4) != 0;
        let port = if stays { 20000 + random.below(2) as u16 } else { passing[0].1 };
        let leaves = random.below(5) == 0;
        let number = random.below(3000).to_string();
        let words = if leaves { &["-n", &number, "10.77.0.1"][..] } else { &["10.77.0.1"] };
        let process = start_peer(port, words, mixed);
        let must_succeed = leaves && stays && number != "0";
        living.push(Doomed { process, end, stop_first: random.below(5) == 0, must_succeed });
    }
    drop(passing);
    for (process, before) in staying.iter_mut().zip(before) {
        let state = wait_until_alone(process);
        let after = process.holdings();
        println!("{state}\n  {before:?}\n  {after:?}");
        // One source port per steering of the peers, made when it is first needed, and no more than these.
        assert!(
            after.sockets <= before.sockets + 64,
            "seed {seed}: sockets leak: {before:?}, then {after:?}"
        );
        assert!(
            after.other_descriptors <= before.other_descriptors + 2
                && after.threads <= before.threads
                && after.mappings <= before.mappings + 16
                && after.resident_kib <= before.resident_kib + 6 * 1024,
            "seed {seed}: something leaks: {before:?}, then {after:?}"
        );
        process.signal(libc::SIGTERM);
        process.wait(LIMIT).expect_success().expect_quiet();
    }
    println!("{born} processes came and went");
    host.expect_no_traces();
}

#[test]
fn processes_killed_at_random_leave_nothing_and_get_nobody_elses_messages() {
    chaos(Fabric::Any, 30, Duration::from_secs(4), 1);
}

#[test]
fn processes_killed_at_random_over_udp_leave_nothing_and_get_nobody_elses_messages() {
    chaos(Fabric::Udp, 30, Duration::from_secs(3), 2);
}

#[test]
#[ignore = "takes two minutes for each fabric"]
fn chaos_full() {
    chaos(Fabric::Any, 500, Duration::from_secs(120), 3);
}

#[test]
#[ignore = "takes two minutes"]
fn chaos_full_over_udp() {
    chaos(Fabric::Udp, 500, Duration::from_secs(120), 4);
}
