//! Datagrams to a multicast group: several processes and hosts receive them, each attached queue pair once.

use ferroce_tests::{Artifacts, Fabric, Host, Process, World, require};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(50);

/// The index of a GID and a group that is reached from there.
const GROUPS: [(&str, &str); 4] =
    [("1", "239.77.1.2"), ("0", "ff02::7777"), ("2", "ff05::7777"), ("2", "ff0e::1:7777")];

struct Setting<'a> {
    program: &'a str,
    fabric: &'a [(&'a str, &'a str)],
    gid: &'a str,
    group: &'a str,
    messages: &'a str,
}

impl Setting<'_> {
    fn start(&self, host: &Host, role: &str, more: &[&str]) -> Process {
        let mut words = vec![self.program, "-g", self.gid, "-n", self.messages];
        words.extend(more);
        words.extend([role, self.group]);
        host.start_ferroce(&[], &words, self.fabric)
    }

    fn receiver(&self, host: &Host, role: &str, qps: &str) -> Process {
        let mut process = self.start(host, role, &["-q", qps]);
        process.wait_for_output("attached", LIMIT);
        process
    }

    /// Whether the kernel lists the host in the group.
    fn is_member(&self, host: &Host) -> bool {
        let (table, address) = match self.group.parse().expect("a group is an address") {
            std::net::IpAddr::V4(ip) => ("igmp", format!("{:08X}", u32::from_ne_bytes(ip.octets()))),
            std::net::IpAddr::V6(ip) => ("igmp6", format!("{:032x}", u128::from(ip))),
        };
        let text = host.admin(&format!("cat /proc/net/{table}"));
        text.lines().any(|line| line.contains(&address))
    }

    fn wait_for_end_of_membership(&self, host: &Host) {
        let start = Instant::now();
        while self.is_member(host) {
            assert!(start.elapsed() < LIMIT, "the host stays in {}", self.group);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn expect_all(process: &mut Process, qps: &str, messages: &str) {
    let outcome = process.wait(LIMIT);
    outcome.expect_success().expect_quiet();
    assert!(outcome.stdout.contains(&format!("each of {qps} got all of {messages}")), "{outcome}");
    assert!(outcome.stdout.contains("left"), "{outcome}");
}

/// Three processes of a host receive, one of them sends at the same time.
fn on_one_host(fabric: &[(&str, &str)]) {
    let program = &*require!(Artifacts::get().c_program("traffic/multicast"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    for (gid, group) in GROUPS {
        let setting = Setting { program, fabric, gid, group, messages: "1500" };
        assert!(!setting.is_member(host));
        let mut receivers = ["3", "1"].map(|qps| (setting.receiver(host, "receive", qps), qps));
        assert!(setting.is_member(host));
        expect_all(&mut setting.receiver(host, "both", "4"), "4", "1500");
        for (receiver, qps) in &mut receivers {
            expect_all(receiver, qps, "1500");
        }
        setting.wait_for_end_of_membership(host);
    }
    host.expect_no_traces();
}

#[test]
fn every_queue_pair_of_every_process_gets_one_copy() {
    on_one_host(&[]);
}

#[test]
fn every_queue_pair_of_every_process_gets_one_copy_over_udp() {
    on_one_host(Fabric::Udp.settings());
}

/// The process that came first and leads the others of the host is as dispensable as any.
#[test]
fn process_that_is_killed_takes_nothing_from_the_others() {
    let program = &*require!(Artifacts::get().c_program("traffic/multicast"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    let setting = Setting { program, fabric: &[], gid: "1", group: "239.77.1.2", messages: "4000" };
    for victim in [0, 1] {
        let mut receivers: Vec<Process> = (0..3).map(|_| setting.receiver(host, "receive", "3")).collect();
        let mut sender = setting.start(host, "send", &[]);
        receivers[victim].wait_for_output("half", LIMIT);
        receivers[victim].signal(libc::SIGKILL);
        drop(receivers.remove(victim));
        for receiver in &mut receivers {
            expect_all(receiver, "3", "4000");
        }
        sender.wait(LIMIT).expect_success().expect_quiet();
        setting.wait_for_end_of_membership(host);
    }
    host.expect_no_traces();
}

/// Receivers on both hosts; they leave while the sender goes on.
#[test]
fn groups_reach_from_host_to_host() {
    let program = &*require!(Artifacts::get().c_program("traffic/multicast"));
    let world = require!(World::two_hosts(1500));
    for (gid, group) in GROUPS {
        let setting = Setting { program, fabric: &[], gid, group, messages: "1500" };
        let mut near = setting.receiver(world.first(), "receive", "2");
        let mut far = ["2", "3"].map(|qps| (setting.receiver(world.last(), "receive", qps), qps));
        assert!(setting.is_member(world.first()) && setting.is_member(world.last()));
        let mut sender = setting.start(world.first(), "send", &[]);
        expect_all(&mut near, "2", "1500");
        for (receiver, qps) in &mut far {
            expect_all(receiver, qps, "1500");
        }
        sender.wait(LIMIT).expect_success().expect_quiet();
        setting.wait_for_end_of_membership(world.first());
        setting.wait_for_end_of_membership(world.last());
    }
}
