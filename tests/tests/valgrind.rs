//! Programs that are right, under valgrind's tools: the library leaves nothing for them to report.
//!
//! `memcheck` needs no suppressions. helgrind and drd have those that the packages contain.

use ferroce_tests::{Artifacts, Fabric, Pair, PairOutcome, World, on_both_fabrics, require, tool};
use std::time::Duration;

/// A program is slowed down a hundredfold, on machines that may do other things besides.
const LIMIT: Duration = Duration::from_secs(240);

const MEMCHECK: &[&str] = &[
    "valgrind",
    "-q",
    "--error-exitcode=99",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite,possible",
];

/// Neither side has made valgrind report something, which `-q` leaves alone on standard error.
#[track_caller]
fn expect_no_report(outcome: &PairOutcome) {
    outcome.expect_success();
    assert!(!outcome.client.stderr.contains("== ") && !outcome.server.stderr.contains("== "), "{outcome}");
}

fn ping_pong(fabric: Fabric) {
    require!(tool("valgrind", "valgrind"));
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(World::one_host(1500));
    world.may_last(LIMIT + Duration::from_secs(30));
    let words = [MEMCHECK, &["ibv_rc_pingpong", "-c", "-g", "1", "-n", "50"]].concat();
    expect_no_report(&Pair::new(&world, fabric).limit(LIMIT).run(&words));
}

fn connection(fabric: Fabric) {
    const TCP: u16 = 0x0106;
    require!(tool("valgrind", "valgrind"));
    require!(tool("rdma_server", "rdmacm-utils"));
    let world = require!(World::one_host(1500));
    world.may_last(LIMIT + Duration::from_secs(30));
    let (host, address) = (world.first(), world.first().ipv4());
    let words = |program| [MEMCHECK, &[program, "-s", &address]].concat();
    let mut server = host.start_ferroce(&[], &words("rdma_server"), fabric.settings());
    host.wait_for_rdma_port(TCP, 7471, &mut server, LIMIT);
    let client = host.start_ferroce(&[], &words("rdma_client"), fabric.settings()).wait(LIMIT);
    expect_no_report(&PairOutcome { client, server: server.wait(LIMIT) });
}

/// One of the tools for threads, with the suppressions of the packages.
fn threads(fabric: Fabric, checker: &str) {
    require!(tool("valgrind", "valgrind"));
    let program = require!(Artifacts::get().c_program("traffic/two_threads"));
    let world = require!(World::one_host(1500));
    world.may_last(LIMIT + Duration::from_secs(30));
    let words = [
        "valgrind".to_owned(),
        "-q".to_owned(),
        "--error-exitcode=99".to_owned(),
        format!("--tool={checker}"),
        format!("--suppressions={}", Artifacts::get().suppressions().display()),
        program,
    ];
    let outcome = world.first().start_ferroce(&[], &words, fabric.settings()).wait(LIMIT);
    outcome.expect_success();
    assert!(!outcome.stderr.contains("== "), "{outcome}");
}

fn run(fabric: Fabric, &[what]: &[&str; 1]) {
    match what {
        "ping-pong" => ping_pong(fabric),
        "connection" => connection(fabric),
        checker => threads(fabric, checker),
    }
}

on_both_fabrics! {
    run:
    memcheck_finds_no_error_and_no_leak_in_a_ping_pong: "ping-pong";
    memcheck_finds_no_error_and_no_leak_in_a_connection: "connection";
    helgrind_finds_no_race_between_two_threads: "helgrind";
    drd_finds_no_race_between_two_threads: "drd";
}
