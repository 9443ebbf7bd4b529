//! Interoperability with the kernel's soft-RoCE: Ferroce on a host, `rdma_rxe` in a guest beside it; and Ferroce on the
//! guest's kernel.
//!
//! A guest takes a while to boot and is emulated, so the one test that isn't ignored does some of everything with one. The ignored tests
//! are the same with everything combined; `cargo xtask soak --guest` runs them.

mod all;
mod connections;
mod inside;
mod lab;
mod vlan;

use ferroce_tests::{Artifacts, World, require, tool};
use lab::{
    Cell, IPV4, IPV6, LIMIT, LINK_LOCAL, Lab, PERFTEST, PING_PONGS, Server, Sides, cell_of, perftest_tools,
    ping_pong_tools,
};

/// Some of everything: each program once, with addresses, path MTUs and sides that differ from program to program.
#[test]
fn ferroce_and_the_kernel_understand_each_other_and_ferroce_is_right_there() {
    require!(ping_pong_tools());
    require!(perftest_tools());
    require!(tool("rping", "rdmacm-utils"));
    require!(tool("tshark", "tshark"));
    let stream = require!(Artifacts::get().c_program("traffic/stream"));
    let multicast = require!(Artifacts::get().c_program("traffic/multicast"));
    let newer = require!(Artifacts::get().c_program("calls/newer_verbs"));
    let vlan = require!(Artifacts::get().c_program("raw/vlan"));
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    connections::programs_of_librdmacm_connect_with_the_kernel(&lab, false);
    connections::servers_without_end_and_groups(&lab, false);
    ping_pongs_and_perftest_end_well(&lab);
    multicast_goes_both_ways(&lab, &multicast, &GROUPS[2..]);
    every_operation_is_right_under_loss(&lab, &stream, &LOSSY[..2], "150");
    inside::ferroce_is_right(&lab, &vlan, &newer, &stream);
}

/// Runs each ping-pong and each tool of perftest once.
fn ping_pongs_and_perftest_end_well(lab: &Lab<'_>) {
    let mut before = lab.guest.traffic();
    for path_mtu in ["1024", "4096"] {
        lab.set_path_mtu(path_mtu);
        let has_it = |cell: &Cell| cell.path_mtu == path_mtu;
        let of_perftest = PERFTEST.iter().enumerate().map(|(n, program)| (program, cell_of(n, n % 2 == 1)));
        for (program, cell) in of_perftest.filter(|(_, cell)| has_it(cell)) {
            lab.perftest(program, cell);
        }
        before = lab.expect_nothing_refused(before);
        let ping_pongs = PING_PONGS.iter().enumerate().map(|(n, words)| (words, cell_of(n, n % 2 == 0)));
        for (words, cell) in ping_pongs.filter(|(_, cell)| has_it(cell)) {
            lab.ping_pong(words, cell);
        }
        before = lab.expect_nothing_refused(before);
    }
}

/// A server, a path MTU and options of `stream`. The first two have all operations.
type Lossy = (Server, &'static str, &'static [&'static str]);
const LOSSY: [Lossy; 4] = [
    (Server::Ferroce, "1024", &["-g", IPV6]),
    (Server::Rxe, "4096", &["-g", IPV4]),
    (Server::Rxe, "1024", &["-g", IPV4, "-o", "send"]),
    (Server::Ferroce, "4096", &["-g", IPV6, "-o", "write_imm"]),
];

/// Operations are checked byte by byte by both sides; READs and atomics are asked for again in the midst of everything else.
fn every_operation_is_right_under_loss(lab: &Lab<'_>, stream: &str, runs: &[Lossy], messages: &str) {
    let before = lab.guest.traffic();
    lab.guest.run("tc qdisc add dev eth0 root netem loss 1%");
    for &(server, path_mtu, words) in runs {
        eprintln!("{server:?} {path_mtu} {words:?}");
        lab.set_path_mtu(path_mtu);
        lab.stream_under_loss(stream, server, &[words, &["-m", path_mtu, "-n", messages]].concat());
    }
    lab.expect_nothing_refused(before);
    lab.guest.run("tc qdisc del dev eth0 root");
}

/// Groups, and the GIDs of those who send to them.
const GROUPS: [(&str, &str); 3] = [(IPV4, "239.77.1.2"), (LINK_LOCAL, "ff02::7777"), (IPV6, "ff05::7777")];

/// Each side sends to a group that the other is attached to.
fn multicast_goes_both_ways(lab: &Lab<'_>, program: &str, groups: &[(&str, &str)]) {
    for &(gid, group) in groups {
        let words = |role| [program, "-g", gid, "-n", "200", "-q", "2", "-i", "1000", role, group];
        let got_all = "each of 2 got all of 200";

        let mut rxe = lab.guest.start_script(&[&words("receive")[..], &["-j"]].concat().join(" "));
        rxe.wait_for_output("attached", LIMIT);
        let ferroce = lab.host.start_ferroce(&[], &words("send"), &[]).wait(LIMIT);
        let sides = Sides { ferroce, rxe: rxe.wait(LIMIT) };
        sides.expect_success();
        assert!(sides.rxe.stdout.contains(got_all), "{group}: {sides}");

        let mut ferroce = lab.host.start_ferroce(&[], &words("receive"), &[]);
        ferroce.wait_for_output("attached", LIMIT);
        let rxe = lab.guest.start_script(&words("send").join(" ")).wait(LIMIT);
        let sides = Sides { ferroce: ferroce.wait(LIMIT), rxe };
        sides.expect_success().ferroce.expect_quiet();
        assert!(sides.ferroce.stdout.contains(got_all), "{group}: {sides}");
    }
    lab.expect_nothing_said();
}
