//! `ferroce run --strict`: what only some adapters forgive fails, and correct programs do their work all the same.

use ferroce_tests::{Artifacts, Fabric, Pair, World, require, tool};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(50);

/// Cases of `c/calls/strict.c`.
const CASES: &[&str] = &[
    "keys",
    "event_of_old_completion",
    "full_send_queue",
    "full_receive_queue",
    "path_mtu",
    "failed_completion",
    "last_byte",
];

#[test]
fn each_difference_is_there_when_asked_for_and_only_then() {
    let path = require!(Artifacts::get().c_program("calls/strict"));
    let listed = Command::new(&path).output().expect("the program runs").stdout;
    assert_eq!(String::from_utf8_lossy(&listed).lines().collect::<Vec<_>>(), CASES);
    let world = require!(World::one_host(1500));
    for case in CASES {
        for (options, finds) in [(&["--strict"][..], "strict\nok\n"), (&[], "usual\nok\n")] {
            let outcome = world.first().start_ferroce(options, &[&*path, case], &[]).wait(LIMIT);
            outcome.expect_success();
            assert_eq!(outcome.stdout, finds, "{case}: {outcome}");
        }
    }
}

#[test]
fn limits_are_those_of_the_adapter_that_is_named() {
    let path = require!(Artifacts::get().c_program("calls/limits_of"));
    let world = require!(World::one_host(1500));
    for (adapter, limits) in [
        ("connectx-6", "wr 32768 sge 30 cqe 4194303 srq_wr 32767 srq_sge 31 rd_atomic 16 inline 1024\n"),
        ("e810", "wr 32768 sge 13 cqe 1048575 srq_wr 32768 srq_sge 32 rd_atomic 127 inline 101\n"),
        ("fastlinq", "wr 32767 sge 4 cqe 4194304 srq_wr 32768 srq_sge 32 rd_atomic 32 inline 1024\n"),
        ("rxe", "wr 32768 sge 32 cqe 32767 srq_wr 32768 srq_sge 27 rd_atomic 128 inline 512\n"),
        ("1", "wr 32768 sge 32 cqe 4194304 srq_wr 32768 srq_sge 32 rd_atomic 128 inline 1024\n"),
    ] {
        let option = format!("--strict={adapter}");
        let outcome = world.first().start_ferroce(&[&*option], &[&*path], &[]).wait(LIMIT);
        outcome.expect_success();
        assert_eq!(outcome.stdout, limits, "{adapter}: {outcome}");
    }
    let unknown = world.first().start_ferroce(&["--strict=connectx"], &["true"], &[]).wait(LIMIT);
    assert_eq!(unknown.status.code(), Some(2), "{unknown}");
    assert!(unknown.stderr.contains("connectx-6, e810, fastlinq, rxe"), "{unknown}");
}

/// A program that uses verbs correctly. Its packets are those of a wire, whatever the fabric.
fn client(words: &[&str]) {
    let package = if words[0].starts_with("ibv_") { "ibverbs-utils" } else { "perftest" };
    require!(tool(words[0], package));
    let world = require!(World::one_host(1500));
    Pair::new(&world, Fabric::Any).options(&["--strict"]).limit(LIMIT).run(words).expect_success();
    world.first().expect_no_traces();
}

macro_rules! clients {
    ($($name:ident: $($word:literal)*;)*) => {$(
        #[test]
        fn $name() {
            client(&[$($word),*]);
        }
    )*};
}

clients! {
    send_lat: "ib_send_lat" "-n" "50" "-F" "-C";
    write_bw: "ib_write_bw" "-n" "50" "-s" "4096" "-F";
    rc_pingpong: "ibv_rc_pingpong" "-c" "-g" "1" "-n" "50";
    rc_pingpong_with_events: "ibv_rc_pingpong" "-c" "-g" "1" "-e" "-n" "50";
}
