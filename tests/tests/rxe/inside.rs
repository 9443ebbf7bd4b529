//! Ferroce on the guest's kernel.

use crate::lab::{
    GIVE_UP_PORT, IPV4, IPV6, LIMIT, LINK_LOCAL, Lab, PATIENT, PERFTEST, perftest_tools, ping_pong_tools,
};
use crate::vlan;
use ferroce_tests::{Artifacts, Guest, World, require};
use std::path::PathBuf;
use std::time::Duration;

/// Everything that has the guest to itself in the end: its `rdma_rxe` is gone then. Linux 6.1 is the oldest that Debian maintains.
pub(crate) fn ferroce_is_right(lab: &Lab<'_>, vlan: &str, newer: &str, stream: &str) {
    let link = vlan::Link::make(lab);
    link.rxe_understands_ferroce_in_a_vlan();
    lab.guest.run(GIVE_UP_PORT);
    link.frames_of_vlans_are_right(vlan);
    link.traffic_in_a_vlan_is_right();
    dma_bufs_are_registered(lab, newer);
    udp_fabric_is_right(lab, stream);
    lab.expect_nothing_said();
}

/// The guest has `/dev/udmabuf`, or else `vgem`, unlike many a container's host.
fn dma_bufs_are_registered(lab: &Lab<'_>, program: &str) {
    lab.guest.run("[ -e /dev/udmabuf ] || modprobe vgem");
    let ferroce = Artifacts::get().ferroce();
    for case in ["dma_bufs_of_the_kernel_are_registered", "device_memory_is_exported_and_registered_again"] {
        for fabric in ["", "udp"] {
            let line = format!("FERROCE_FABRIC={fabric} {} run -- {program} {case}", ferroce.display());
            let outcome = lab.guest.start_script(&line).wait(LIMIT);
            outcome.expect_success();
            assert!(outcome.stdout.ends_with("ok\n") && !outcome.stdout.contains("skipped"), "{outcome}");
        }
    }
}

fn udp_fabric_is_right(lab: &Lab<'_>, stream: &str) {
    lab.run_inside("", &["ibv_rc_pingpong", "-c", "-n", "60", "-g", IPV6, "-s", "20000"]);
    lab.run_inside("", &["ibv_uc_pingpong", "-c", "-n", "60", "-g", IPV4, "-e"]);
    lab.run_inside("", &["ibv_ud_pingpong", "-c", "-n", "60", "-g", LINK_LOCAL]);
    lab.run_inside("", &["ibv_srq_pingpong", "-c", "-g", IPV4, "-n", "10"]);
    lab.run_inside("", &[stream, "-n", "150", "-s", "20000", "-t", PATIENT]);
    lab.run_inside(
        " --fault drop=1%,dup=1%,reorder=1%,corrupt=1%,seed=3",
        &[stream, "-n", "80", "-s", "8000", "-t", PATIENT],
    );
}

/// Few rounds each: two programs that poll in an emulated machine hand over to each other rarely.
#[test]
#[ignore = "takes minutes: every flavour, size and kind of GID"]
fn all_of_udp_fabric_is_right_on_the_guests_kernel() {
    require!(ping_pong_tools());
    require!(perftest_tools());
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    lab.guest.run(GIVE_UP_PORT);
    for (program, rounds) in [
        ("ibv_rc_pingpong", "200"),
        ("ibv_uc_pingpong", "200"),
        ("ibv_ud_pingpong", "200"),
        ("ibv_srq_pingpong", "10"),
    ] {
        let large = if program == "ibv_ud_pingpong" { "1024" } else { "65536" };
        for (gid, size) in [(LINK_LOCAL, "1"), (IPV4, "1000"), (IPV6, large)] {
            let words = [program, "-c", "-n", rounds, "-g", gid, "-s", size];
            lab.run_inside("", &words);
            lab.run_inside("", &[&words[..], &["-e"]].concat());
        }
    }
    for program in PERFTEST {
        lab.run_inside("", &[program, "-F", "-n", "100"]);
    }
    lab.expect_nothing_said();
}

macro_rules! suites_inside {
    ($($name:ident: $program:literal;)*) => {
        mod inside {$(
            #[test]
            #[ignore = "takes minutes: a test program of this workspace, on the guest's kernel"]
            fn $name() {
                super::suite_inside($program);
            }
        )*}
    };
}

suites_inside! {
    adapter_discovery: "net_discovery";
    adapter_fabric: "fabric";
    adapter_verbs: "verbs";
}

/// Runs a compiled test program of this workspace in a guest, one test at a time.
fn suite_inside(program: &str) {
    let artifacts = Artifacts::get();
    let program = artifacts.stage_program(&test_program(program)).expect("the stage is writable");
    let library = artifacts.library_dir();
    let stage = library.ancestors().nth(3).expect("STAGE/dist/lib/ferroce").display();
    let world = require!(World::one_host_with_tap(1500));
    let guest = require!(Guest::start(&world, 1500));
    let script = format!(
        "{GIVE_UP_PORT} && \
         FERROCE_TEST_DIR={stage} FERROCE_FABRIC=udp {} --test-threads=1",
        program.display()
    );
    let outcome = guest.start_script(&script).wait(Duration::from_secs(220));
    eprintln!("{}", outcome.stdout);
    let ok = "test result: ok. ";
    assert!(
        outcome.expect_success().stdout.contains(ok) && !outcome.stdout.contains("ok. 0 passed"),
        "{outcome}"
    );
}

/// The newest build of a test program, beside this one.
fn test_program(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this program has a path");
    let is_build = |path: &PathBuf| {
        let hash = path.file_name().and_then(|file| file.to_str()?.strip_prefix(name)?.strip_prefix('-'));
        hash.is_some_and(|hash| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let age = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    let files = std::fs::read_dir(own.parent().expect("a directory")).expect("our own directory");
    let builds = files.flatten().map(|entry| entry.path()).filter(is_build);
    builds.max_by_key(age).unwrap_or_else(|| panic!("{name} isn't built: run cargo test --no-run first"))
}
