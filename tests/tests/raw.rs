//! Raw packet queue pairs: `tests/c/raw` within a process, between processes of a host and between hosts; perftest's tools
//! for Ethernet frames.

use ferroce_tests::{Artifacts, Host, World, record_repetition, require, tool, tshark};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(50);
const SOON: Duration = Duration::from_secs(20);

fn within_a_process(program: &str, case: &str) {
    let path = require!(Artifacts::get().c_program(program));
    let world = require!(World::one_host(1500));
    let words = [&*path, case];
    let outcome = world.first().start_ferroce_privileged(&[], &words, &[]).wait(LIMIT);
    outcome.expect_ok();
    world.first().expect_no_traces();
}

macro_rules! cases {
    ($($program:literal: $($case:ident)*;)*) => {$($(
        #[test]
        fn $case() {
            within_a_process($program, stringify!($case));
        }
    )*)*};
}

cases! {
    "raw/flows":
    frames_go_where_flows_say
    tags_counters_and_drops
    default_flows_get_what_no_other_takes
    frames_are_spread_over_work_queues
    wrong_arguments_are_refused;
    "raw/segmentation":
    segments_are_what_tcp_would_have_sent
    what_cannot_be_segmented_is_refused
    frames_keep_to_the_rate;
}

#[test]
fn without_the_capability_it_is_eperm() {
    let path = require!(Artifacts::get().c_program("raw/flows"));
    let world = require!(World::one_host(1500));
    let words = [&*path, "without_the_capability_it_is_eperm"];
    let outcome = world.first().start_ferroce(&[], &words, &[]).wait(LIMIT);
    outcome.expect_ok();
}

fn frames_arrive(program: &str, from: &Host, to: &Host) {
    let words = |case: &'static str| [program, case];
    let mut receiver = to.start_ferroce_privileged(&[], &words("receives"), &[]);
    receiver.wait_for_output("ready", SOON);
    from.start_ferroce_privileged(&[], &words("sends"), &[]).wait(LIMIT).expect_success().expect_quiet();
    receiver.wait(LIMIT).expect_success().expect_quiet();
}

#[test]
fn frames_arrive_in_another_process_of_the_host() {
    let program = require!(Artifacts::get().c_program("raw/flows"));
    let world = require!(World::one_host(1500));
    frames_arrive(&program, world.first(), world.first());
}

#[test]
fn frames_arrive_at_another_host() {
    let program = require!(Artifacts::get().c_program("raw/flows"));
    let world = require!(World::two_hosts(1500));
    frames_arrive(&program, world.first(), world.last());
    frames_arrive(&program, world.last(), world.first());
}

#[test]
fn captured_frames_decode() {
    require!(tool("tshark", "tshark"));
    let program = require!(Artifacts::get().c_program("raw/flows"));
    let world = require!(World::two_hosts(1500));
    let start = |host: &Host, case: &str| {
        let words = [&*program, case];
        host.start_ferroce_privileged(&["--capture", "/tmp/capture.pcapng"], &words, &[])
    };
    let mut receiver = start(world.last(), "receives");
    receiver.wait_for_output("ready", SOON);
    start(world.first(), "sends").wait(LIMIT).expect_success().expect_quiet();
    receiver.wait(LIMIT).expect_success().expect_quiet();
    for (host, direction) in [(world.first(), 2), (world.last(), 1)] {
        let right = format!(
            "frame.len == 200 && frame.packet_flags_direction == {direction} && eth.dst == 02:fe:00:00:00:01 && \
             udp.dstport == 7000 && udp.checksum.status == good"
        );
        let capture = host.path("/tmp/capture.pcapng");
        let words = |filter| ["-o", "udp.check_checksum:TRUE", "-Y", filter];
        assert_eq!(tshark(&capture, &words(&right)).lines().count(), 64, "{direction}");
        let wrong = format!("!({right})");
        assert_eq!(tshark(&capture, &words(&wrong)), "", "{direction}");
    }
}

/// How often a run is made in which a frame may have come before the server had a receive request.
const ATTEMPTS: u32 = 3;

/// Runs one of perftest's tools at both ends, and checks that both report.
fn perftest(tool: &str, options: &[&str], from: &Host, to: &Host) {
    const MACS: [&str; 2] = ["02:fe:00:00:00:0a", "02:fe:00:00:00:0b"];
    let iterations = options.iter().skip_while(|option| **option != "-n").nth(1).map(|n| format!(" {n} "));
    let iterations = iterations.expect("a number of iterations");
    let words = |role, own: usize| {
        let mut words = vec!["stdbuf", "-oL", tool, role, "-B", MACS[own], "-E", MACS[1 - own]];
        words.extend_from_slice(options);
        words
    };
    for attempt in 1..=ATTEMPTS {
        let mut server = to.start_ferroce_privileged(&[], &words("--server", 1), &[]);
        server.wait_for_output("MAC attached", SOON);
        // The server takes a while from its flow to its first receive request, and prints nothing then.
        std::thread::sleep(Duration::from_secs(2) * attempt);
        let client = from.start_ferroce_privileged(&[], &words("--client", 0), &[]).wait(SOON);
        // Ethernet repeats nothing, and both wait for a lost frame for ever.
        if client.over_limit.is_some() && attempt < ATTEMPTS {
            record_repetition(&format!(
                "{tool}: a frame may have come before the server's first receive request"
            ));
            continue;
        }
        let server = server.wait(SOON);
        for side in [&client, &server] {
            side.expect_success();
        }
        assert!(client.stdout.contains(&iterations), "{client}");
        // The server of this one has nothing to report.
        assert!(tool == "raw_ethernet_burst_lat" || server.stdout.contains(&iterations), "{server}");
        return;
    }
}

#[test]
fn perftest_measures_latency_between_hosts() {
    require!(tool("raw_ethernet_lat", "perftest"));
    let world = require!(World::two_hosts(1500));
    perftest("raw_ethernet_lat", &["-s", "64", "-n", "1000"], world.first(), world.last());
}

#[test]
fn perftest_measures_latency_on_one_host() {
    require!(tool("raw_ethernet_lat", "perftest"));
    let world = require!(World::one_host(1500));
    perftest("raw_ethernet_lat", &["-s", "1500", "-n", "1000"], world.first(), world.first());
}

#[test]
fn perftest_measures_bandwidth_between_hosts() {
    require!(tool("raw_ethernet_bw", "perftest"));
    let world = require!(World::two_hosts(1500));
    // As many receive requests as frames: Ethernet has no flow control here.
    let options = ["-s", "1024", "-n", "1000", "-r", "1000"];
    perftest("raw_ethernet_bw", &options, world.first(), world.last());
}

/// Bursts of 16 frames, paced by the queue pair: the tool's own limiter refuses this test. Client and server wait for each other's
/// frames for ever, so there are no more than a socket has room for.
#[test]
fn perftest_measures_the_latency_of_bursts_between_hosts() {
    require!(tool("raw_ethernet_burst_lat", "perftest"));
    let world = require!(World::two_hosts(1500));
    let pace = ["--rate_limit_type=PP", "--rate_limit=1", "--rate_units=M", "--burst_size=16"];
    let options = [&["-s", "64", "-n", "200", "-Q", "1"][..], &pace].concat();
    perftest("raw_ethernet_burst_lat", &options, world.first(), world.last());
}

#[test]
fn perftest_makes_flows() {
    require!(tool("raw_ethernet_fs_rate", "perftest"));
    let world = require!(World::one_host(1500));
    let words = [
        "raw_ethernet_fs_rate",
        "--server",
        "-B",
        "02:fe:00:00:00:0b",
        "-E",
        "02:fe:00:00:00:0a",
        "-n",
        "1000",
    ];
    let outcome = world.first().start_ferroce_privileged(&[], &words, &[]).wait(LIMIT);
    outcome.expect_success();
    assert!(outcome.stdout.contains("1000 "), "{outcome}");
}
