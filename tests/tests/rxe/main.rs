//! Interoperability with the kernel's soft-RoCE: Ferroce on a host, `rdma_rxe` in a guest beside it; and Ferroce on the
//! guest's kernel.
//!
//! A guest takes a while to boot and is emulated, so the one test that isn't ignored does some of everything with one. The ignored tests
//! are the same with more, and with everything combined; `cargo xtask soak --guest` runs them.

mod all;
mod connections;
mod inside;
mod lab;
mod vlan;

use ferroce_tests::{Artifacts, World, require, tool};
use lab::{
    Cell, IPV4, IPV6, LATE, LIMIT, LINK_LOCAL, Lab, NEVER, PERFTEST, PING_PONGS, Server, Sides,
    perftest_tools, ping_pong_tools, two_cells,
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
    ping_pongs_and_perftest_end_well(&lab, |n| vec![two_cells(n)[1 - n % 2]], |n| vec![two_cells(n)[n % 2]]);
    multicast_goes_both_ways(&lab, &multicast, &GROUPS[2..]);
    every_operation_is_right_under_loss(&lab, &stream, &["300", "0", "300", "0"]);
    inside::ferroce_is_right(&lab, &vlan, &newer, &stream);
}

#[test]
#[ignore = "takes a minute: two cells of each program"]
fn programs_with_rxe_end_well() {
    require!(ping_pong_tools());
    require!(perftest_tools());
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    ping_pongs_and_perftest_end_well(&lab, |n| two_cells(n).to_vec(), |n| two_cells(n).to_vec());
    lab.set_path_mtu("1024");
    lab.ping_pong(PING_PONGS[0], Cell { server: Server::Rxe, gid: LINK_LOCAL, path_mtu: "1024" });
}

/// Runs each ping-pong and each tool of perftest in the cells that are given for its number.
fn ping_pongs_and_perftest_end_well(
    lab: &Lab<'_>,
    of_ping_pong: impl Fn(usize) -> Vec<Cell>,
    of_perftest: impl Fn(usize) -> Vec<Cell>,
) {
    let mut before = lab.guest.traffic();
    for path_mtu in ["1024", "4096"] {
        lab.set_path_mtu(path_mtu);
        let has_it = |cell: &Cell| cell.path_mtu == path_mtu;
        for (n, program) in PERFTEST.iter().enumerate() {
            of_perftest(n).into_iter().filter(has_it).for_each(|cell| lab.perftest(program, cell));
        }
        before = lab.expect_nothing_refused(before, NEVER);
        for (n, program) in PING_PONGS.iter().enumerate() {
            of_ping_pong(n).into_iter().filter(has_it).for_each(|cell| lab.ping_pong(program, cell));
        }
        before = lab.expect_nothing_refused(before, LATE);
    }
}

/// Operations are checked byte by byte by both sides; READs and atomics are asked for again in the midst of everything else.
#[test]
#[ignore = "takes a minute: all groups, and more messages"]
fn multicast_and_every_operation_under_loss_with_rxe_are_right() {
    require!(tool("tshark", "tshark"));
    let stream = require!(Artifacts::get().c_program("traffic/stream"));
    let multicast = require!(Artifacts::get().c_program("traffic/multicast"));
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    multicast_goes_both_ways(&lab, &multicast, &GROUPS);
    every_operation_is_right_under_loss(&lab, &stream, &["1200", "600", "1200", "600"]);
}

/// `numbers`: of messages of each of four runs; "0": the run is left out.
fn every_operation_is_right_under_loss(lab: &Lab<'_>, stream: &str, numbers: &[&str; 4]) {
    let before = lab.guest.traffic();
    lab.guest.run("tc qdisc add dev eth0 root netem loss 1%");
    let runs: [(Server, &str, &[&str]); 4] = [
        (Server::Ferroce, "1024", &["-g", IPV6]),
        (Server::Rxe, "1024", &["-g", IPV4, "-o", "send"]),
        (Server::Rxe, "4096", &["-g", IPV4]),
        (Server::Ferroce, "4096", &["-g", IPV6, "-o", "write_imm"]),
    ];
    for ((server, path_mtu, words), number) in runs.into_iter().zip(numbers).filter(|(_, n)| **n != "0") {
        eprintln!("{server:?} {path_mtu} {words:?}");
        lab.set_path_mtu(path_mtu);
        lab.stream_under_loss(stream, server, &[words, &["-m", path_mtu, "-n", number]].concat());
    }
    lab.expect_nothing_refused(before, NEVER);
    lab.guest.run("tc qdisc del dev eth0 root");
}

/// Groups, and the GIDs of those who send to them.
const GROUPS: [(&str, &str); 3] = [(IPV4, "239.77.1.2"), (LINK_LOCAL, "ff02::7777"), (IPV6, "ff05::7777")];

/// Each side sends to a group that the other is attached to.
fn multicast_goes_both_ways(lab: &Lab<'_>, program: &str, groups: &[(&str, &str)]) {
    for &(gid, group) in groups {
        let words = |role| [program, "-g", gid, "-n", "400", "-q", "2", "-i", "1000", role, group];
        let got_all = "each of 2 got all of 400";

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
