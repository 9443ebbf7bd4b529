//! Everything combined; `cargo xtask soak --guest` runs these.

use crate::connections::{programs_of_librdmacm_connect_with_the_kernel, servers_without_end_and_groups};
use crate::lab::{
    IPV4, IPV6, LINK_LOCAL, Lab, PERFTEST, PING_PONGS, Server, all_cells, perftest_tools, ping_pong_tools,
};
use crate::{GROUPS, LOSSY, every_operation_is_right_under_loss, multicast_goes_both_ways};
use ferroce_tests::{Artifacts, World, require, tool};

#[test]
#[ignore = "takes minutes: every combination"]
fn all_ping_pongs_with_rxe_at_path_mtu_1024_are_right() {
    all_ping_pongs("1024");
}

#[test]
#[ignore = "takes minutes: every combination"]
fn all_ping_pongs_with_rxe_at_path_mtu_4096_are_right() {
    all_ping_pongs("4096");
}

fn all_ping_pongs(path_mtu: &'static str) {
    require!(ping_pong_tools());
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    lab.set_path_mtu(path_mtu);
    let before = lab.guest.traffic();
    for cell in all_cells(path_mtu) {
        PING_PONGS.iter().for_each(|program| lab.ping_pong(program, cell));
    }
    lab.expect_nothing_refused(before);
}

#[test]
#[ignore = "takes minutes: every combination"]
fn all_of_perftest_with_rxe_at_path_mtu_1024_ends_well() {
    all_of_perftest("1024");
}

#[test]
#[ignore = "takes minutes: every combination"]
fn all_of_perftest_with_rxe_at_path_mtu_4096_ends_well() {
    all_of_perftest("4096");
}

fn all_of_perftest(path_mtu: &'static str) {
    require!(perftest_tools());
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    lab.set_path_mtu(path_mtu);
    let before = lab.guest.traffic();
    for cell in all_cells(path_mtu).filter(|cell| cell.gid != LINK_LOCAL) {
        PERFTEST.iter().for_each(|program| lab.perftest(program, cell));
    }
    lab.expect_nothing_refused(before);
}

/// The programs of librdmacm with each side as the server, all groups, and all operations under loss, with one boot.
#[test]
#[ignore = "takes minutes: every combination"]
fn all_connections_groups_and_operations_under_loss_are_right() {
    require!(tool("rping", "rdmacm-utils"));
    require!(tool("tshark", "tshark"));
    let stream = require!(Artifacts::get().c_program("traffic/stream"));
    let multicast = require!(Artifacts::get().c_program("traffic/multicast"));
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    programs_of_librdmacm_connect_with_the_kernel(&lab, true);
    servers_without_end_and_groups(&lab, true);
    multicast_goes_both_ways(&lab, &multicast, &GROUPS);
    every_operation_is_right_under_loss(&lab, &stream, &LOSSY, "1200");
}

/// What `rdma_rxe` has learnt since Linux 6.1. (Flushes don't get through: its ICRC of them differs.)
#[test]
#[ignore = "a second kernel takes a minute more"]
fn atomic_writes_with_newer_rxe_are_right() {
    let program = &*require!(Artifacts::get().c_program("traffic/atomic_writes"));
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::with_kernel(&world, "linux-image-6.12-amd64"));
    let before = lab.guest.traffic();
    for (server, gid) in [(Server::Rxe, IPV4), (Server::Ferroce, IPV6)] {
        let sides = lab.run(server, &[], &[program, "-g", gid]);
        sides.expect_success();
        for side in [&sides.ferroce, &sides.rxe] {
            assert!(side.stdout.contains("50 words were right"), "{sides}");
        }
    }
    lab.expect_nothing_refused(before);
}
