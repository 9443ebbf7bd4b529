//! Debian's ping-pongs, unmodified: two processes on one host, over whatever fabric they choose and over `udp`.

use ferroce_tests::{Fabric, Pair, World, on_both_fabrics, require, tool};
use std::time::Duration;

fn ping_pong(fabric: Fabric, words: &[&str]) {
    ping_pong_at_mtu(9000, fabric, words);
}

fn ping_pong_at_mtu(mtu: u32, fabric: Fabric, words: &[&str]) {
    require!(tool(words[0], "ibverbs-utils"));
    let world = require!(World::one_host(mtu));
    let outcome = Pair::new(&world, fabric).limit(Duration::from_secs(90)).run(words);
    outcome.expect_success().expect_quiet();
    assert!(outcome.client.stdout.contains(" usec/iter"), "no closing line:\n{outcome}");
    let wrong = |text: &str| text.contains("invalid data");
    assert!(!wrong(&outcome.client.stdout) && !wrong(&outcome.server.stdout), "{outcome}");
    world.first().expect_no_traces();
}

on_both_fabrics! {
    ping_pong:
    rc_1_byte: "ibv_rc_pingpong" "-c" "-g" "1" "-s" "1" "-n" "10000";
    rc_4096_bytes: "ibv_rc_pingpong" "-c" "-g" "1" "-s" "4096" "-n" "10000";
    rc_65536_bytes: "ibv_rc_pingpong" "-c" "-g" "1" "-s" "65536" "-n" "2000";
    rc_1_mebibyte: "ibv_rc_pingpong" "-c" "-g" "1" "-s" "1048576" "-n" "200";
    rc_link_local_gid: "ibv_rc_pingpong" "-c" "-g" "0" "-n" "2000";
    rc_with_events: "ibv_rc_pingpong" "-c" "-g" "1" "-e" "-n" "10000";
    rc_mtu_256: "ibv_rc_pingpong" "-c" "-g" "1" "-m" "256" "-n" "2000";
    rc_mtu_512: "ibv_rc_pingpong" "-c" "-g" "1" "-m" "512" "-n" "2000";
    rc_mtu_2048: "ibv_rc_pingpong" "-c" "-g" "1" "-m" "2048" "-n" "2000";
    rc_mtu_4096: "ibv_rc_pingpong" "-c" "-g" "1" "-m" "4096" "-s" "65536" "-n" "2000";
    rc_timestamps: "ibv_rc_pingpong" "-c" "-g" "1" "-t" "-n" "2000";
    rc_new_send: "ibv_rc_pingpong" "-c" "-g" "1" "-N" "-n" "2000";
    rc_new_send_timestamps: "ibv_rc_pingpong" "-c" "-g" "1" "-N" "-t" "-n" "1000";
    rc_odp: "ibv_rc_pingpong" "-c" "-g" "1" "-o" "-n" "1000";
    rc_odp_1_mebibyte: "ibv_rc_pingpong" "-c" "-g" "1" "-o" "-s" "1048576" "-n" "100";
    rc_odp_implicit: "ibv_rc_pingpong" "-c" "-g" "1" "-O" "-n" "1000";
    rc_odp_prefetched: "ibv_rc_pingpong" "-c" "-g" "1" "-o" "-P" "-n" "1000";
    rc_odp_implicit_prefetched: "ibv_rc_pingpong" "-c" "-g" "1" "-O" "-P" "-n" "1000";
    rc_device_memory: "ibv_rc_pingpong" "-c" "-g" "1" "-j" "-n" "1000";
    rc_device_memory_new_send: "ibv_rc_pingpong" "-c" "-g" "1" "-j" "-N" "-s" "65536" "-n" "1000";
    uc_1_byte: "ibv_uc_pingpong" "-c" "-g" "1" "-s" "1" "-n" "2000";
    uc_4096_bytes: "ibv_uc_pingpong" "-c" "-g" "1" "-s" "4096" "-n" "10000";
    uc_65536_bytes: "ibv_uc_pingpong" "-c" "-g" "1" "-s" "65536" "-n" "2000";
    uc_1_mebibyte: "ibv_uc_pingpong" "-c" "-g" "1" "-s" "1048576" "-n" "200";
    uc_link_local_gid: "ibv_uc_pingpong" "-c" "-g" "0" "-n" "2000";
    uc_with_events: "ibv_uc_pingpong" "-c" "-g" "1" "-e" "-n" "2000";
    uc_mtu_256: "ibv_uc_pingpong" "-c" "-g" "1" "-m" "256" "-n" "2000";
    uc_mtu_4096: "ibv_uc_pingpong" "-c" "-g" "1" "-m" "4096" "-n" "2000";
    ud_1_byte: "ibv_ud_pingpong" "-c" "-g" "1" "-s" "1" "-n" "2000";
    ud_2048_bytes: "ibv_ud_pingpong" "-c" "-g" "1" "-s" "2048" "-n" "10000";
    ud_4096_bytes: "ibv_ud_pingpong" "-c" "-g" "1" "-s" "4096" "-n" "2000";
    ud_link_local_gid: "ibv_ud_pingpong" "-c" "-g" "0" "-n" "2000";
    ud_with_events: "ibv_ud_pingpong" "-c" "-g" "1" "-e" "-n" "2000";
    srq_1_byte: "ibv_srq_pingpong" "-c" "-g" "1" "-s" "1" "-n" "1000";
    srq_4096_bytes: "ibv_srq_pingpong" "-c" "-g" "1" "-s" "4096" "-n" "10000";
    srq_65536_bytes: "ibv_srq_pingpong" "-c" "-g" "1" "-s" "65536" "-n" "1000";
    srq_1_mebibyte: "ibv_srq_pingpong" "-c" "-g" "1" "-s" "1048576" "-n" "100";
    srq_link_local_gid: "ibv_srq_pingpong" "-c" "-g" "0" "-n" "1000";
    srq_with_events: "ibv_srq_pingpong" "-c" "-g" "1" "-e" "-n" "1000";
    srq_odp: "ibv_srq_pingpong" "-c" "-g" "1" "-o" "-n" "1000";
    srq_mtu_256: "ibv_srq_pingpong" "-c" "-g" "1" "-m" "256" "-n" "1000";
    srq_mtu_4096: "ibv_srq_pingpong" "-c" "-g" "1" "-m" "4096" "-n" "1000";
}

/// Sends through an XRC target into the SRQ that the peer has named.
fn xsrq_ping_pong(world: &World, fabric: Fabric, options_of_ferroce: &[&str], options: &[&str]) {
    let words = [&["ibv_xsrq_pingpong", "-g", "1"], options].concat();
    let pair = Pair::new(world, fabric).limit(Duration::from_secs(90));
    let outcome = pair.options(options_of_ferroce).run(&words);
    outcome.expect_success().expect_quiet();
    assert!(
        outcome.client.stdout.contains("success") && outcome.server.stdout.contains("success"),
        "{outcome}"
    );
    world.first().expect_no_traces();
}

#[test]
fn xsrq_over_every_fabric_between_hosts_and_with_loss() {
    require!(tool("ibv_xsrq_pingpong", "ibverbs-utils"));
    let world = require!(World::one_host(9000));
    for fabric in [Fabric::Any, Fabric::Udp] {
        xsrq_ping_pong(&world, fabric, &[], &["-n", "3000"]);
        xsrq_ping_pong(&world, fabric, &[], &["-n", "50", "-s", "1048576"]);
        xsrq_ping_pong(&world, fabric, &[], &["-n", "1000", "-e"]);
    }
    xsrq_ping_pong(&world, Fabric::Any, &["--fault", "drop=1%,seed=7"], &["-n", "2000"]);
    let world = require!(World::two_hosts(1500));
    xsrq_ping_pong(&world, Fabric::Any, &[], &["-n", "5000", "-m", "1024"]);
}

/// The server sends to each client by way of another client's target QP: the clients have one XRC domain.
#[test]
fn xsrq_by_way_of_other_processes() {
    require!(tool("ibv_xsrq_pingpong", "ibverbs-utils"));
    let world = require!(World::one_host(9000));
    let (host, limit) = (world.first(), Duration::from_secs(60));
    let options = ["ibv_xsrq_pingpong", "-g", "1", "-n", "200", "-s", "20000"];
    for fabric in [Fabric::Any, Fabric::Udp].map(Fabric::settings) {
        let start = |more: &[&str]| host.start_ferroce(&[], &[&options, more].concat(), fabric);
        let mut server = start(&["-c", "3"]);
        host.wait_for_listener(18515, &mut server, limit);
        let mut clients = [(); 3].map(|()| start(&[&host.ipv4()]));
        for process in clients.iter_mut().chain([&mut server]) {
            let outcome = process.wait(limit);
            outcome.expect_success().expect_quiet();
            assert!(outcome.stdout.contains("success"), "{outcome}");
        }
        host.expect_no_traces();
    }
}

/// An interface of MTU 1500 carries path MTUs up to 1024.
#[test]
fn rc_over_an_interface_of_mtu_1500() {
    ping_pong_at_mtu(1500, Fabric::Udp, &["ibv_rc_pingpong", "-c", "-g", "1", "-m", "1024", "-n", "2000"]);
}

#[test]
fn rc_between_two_hosts_over_ipv4_and_link_local() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(World::two_hosts(1500));
    for gid_index in ["0", "1"] {
        let words = ["ibv_rc_pingpong", "-c", "-g", gid_index, "-n", "2000"];
        Pair::new(&world, Fabric::Any).run(&words).expect_success().expect_quiet();
    }
    world.first().expect_no_traces();
    world.last().expect_no_traces();
}

/// The commonest mistake on RoCE: the program fails as on an adapter, and one line contains the fix.
#[test]
fn missing_gid_index_is_explained_on_standard_error() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(World::one_host(1500));
    let outcome = Pair::new(&world, Fabric::Any).run(&["ibv_rc_pingpong"]);
    // The server is the first to connect its QP; the client sees it go.
    assert!(
        outcome.server.status.code() == Some(1) && outcome.server.stderr.contains("-g INDEX"),
        "{outcome}"
    );
    assert!(!outcome.client.success() && outcome.client.over_limit.is_none(), "{outcome}");
}
