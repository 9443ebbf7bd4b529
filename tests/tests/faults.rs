//! A wire that loses, and a wire that is recorded.

use ferroce_tests::{Artifacts, Fabric, Outcome, Pair, PairOutcome, Skip, World, require, tool, tshark};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(100);
const ONE_PERCENT: [&str; 2] = ["--fault", "drop=1%,seed=7"];

fn stream() -> Result<String, Skip> {
    Artifacts::get().c_program("traffic/stream")
}

/// Every operation of RC, checked byte by byte by both sides.
fn all_operations(world: &World, options: &[&str], more: &[&str]) {
    let stream = require!(stream());
    let mut words = vec![stream.as_str()];
    words.extend(more);
    let outcome = Pair::new(world, Fabric::Udp).options(options).limit(LIMIT).run(&words);
    outcome.expect_success();
    assert!(outcome.client.stdout.contains("were right"), "{outcome}");
}

#[test]
fn all_operations_of_rc_are_right_without_loss() {
    for (mtu, path_mtu) in [(1500, "1024"), (9000, "4096")] {
        let world = require!(World::two_hosts(mtu));
        all_operations(&world, &[], &["-n", "2000", "-s", "20000", "-m", path_mtu]);
        all_operations(&world, &[], &["-n", "2000", "-s", "20000", "-e"]);
        all_operations(&world, &[], &["-n", "20000", "-s", "64", "-d", "32"]);
        world.first().expect_no_traces();
    }
}

#[test]
fn all_operations_of_rc_are_right_on_one_host_over_any_fabric() {
    let stream = require!(stream());
    let world = require!(World::one_host(9000));
    for more in [["-n", "2000", "-s", "20000"], ["-n", "20000", "-s", "64"]] {
        let mut words = vec![stream.as_str()];
        words.extend(more);
        Pair::new(&world, Fabric::Any).limit(LIMIT).run(&words).expect_success().expect_quiet();
    }
}

#[test]
fn one_percent_loss_on_both_sides_leaves_every_operation_right() {
    let world = require!(World::two_hosts(1500));
    for operation in ["send", "send_imm", "write", "write_imm", "fadd", "cas"] {
        all_operations(&world, &ONE_PERCENT, &["-n", "500", "-s", "20000", "-o", operation]);
    }
    all_operations(&world, &ONE_PERCENT, &["-n", "3000", "-s", "8000"]);
}

#[test]
fn loss_duplication_reordering_and_corruption_together_leave_every_operation_right() {
    let world = require!(World::two_hosts(9000));
    let fault = ["--fault", "drop=1%,dup=1%,reorder=1%,corrupt=1%,seed=11"];
    all_operations(&world, &fault, &["-n", "3000", "-s", "20000"]);
}

/// A ping-pong's side exits at its last completion. When the acknowledgement of the other's last message is lost then,
/// no process is left to repeat it, on any adapter: that side may end in RETRY_EXC, but only after the first has ended well.
fn expect_right_up_to_the_last_acknowledgement(outcome: &PairOutcome) {
    let sides = [&outcome.client, &outcome.server];
    assert!(sides.iter().any(|side| side.success()), "{outcome}");
    for side in sides {
        let last = side.stderr.contains("transport retry counter exceeded (12) for wr_id 2");
        assert!(side.success() || (side.status.code() == Some(1) && last), "{outcome}");
        assert!(!side.stdout.contains("invalid data"), "{outcome}");
    }
}

fn with_one_percent_loss(words: &[&str]) -> Result<PairOutcome, Skip> {
    tool(words[0], "ibverbs-utils perftest")?;
    let world = World::two_hosts(1500)?;
    Ok(Pair::new(&world, Fabric::Any).options(&ONE_PERCENT).limit(LIMIT).run(words))
}

#[test]
fn one_percent_loss_leaves_ping_pongs_right() {
    for words in [
        ["ibv_rc_pingpong", "-c", "-g", "1", "-n", "2000"],
        ["ibv_srq_pingpong", "-c", "-g", "1", "-n", "200"],
    ] {
        expect_right_up_to_the_last_acknowledgement(&require!(with_one_percent_loss(&words)));
    }
}

#[test]
fn one_percent_loss_leaves_sends_right() {
    require!(with_one_percent_loss(&["ib_send_bw", "-F", "-s", "70000", "-n", "200"])).expect_success();
}

#[test]
fn one_percent_loss_leaves_writes_of_every_size_right() {
    require!(with_one_percent_loss(&["ib_write_bw", "-F", "-a", "-n", "5"])).expect_success();
}

#[test]
fn one_percent_loss_leaves_reads_right() {
    require!(with_one_percent_loss(&["ib_read_bw", "-F", "-s", "70000", "-n", "200"])).expect_success();
}

#[test]
fn one_percent_loss_leaves_atomics_right() {
    require!(with_one_percent_loss(&["ib_atomic_bw", "-F", "-n", "500"])).expect_success();
}

/// Both files of a run decode, hold InfiniBand packets, and hold nothing that tshark calls malformed.
fn expect_clean_capture(world: &World, server: &Outcome, client: &Outcome) {
    assert!(server.success() && client.success(), "server: {server}client: {client}");
    for host in [world.first(), world.last()] {
        let capture = host.path("/tmp/capture.pcapng");
        let packets = tshark(&capture, &["-Y", "infiniband"]).lines().count();
        let malformed = tshark(&capture, &["-Y", "_ws.malformed || (udp && !infiniband)"]);
        assert!(packets > 50, "only {packets} InfiniBand packets");
        assert!(malformed.is_empty(), "{malformed}");
    }
}

fn capture(mtu: u32, words: &[&str]) {
    require!(tool("tshark", "tshark"));
    require!(tool(words[0], "ibverbs-utils perftest"));
    let world = require!(World::two_hosts(mtu));
    let options = ["--capture", "/tmp/capture.pcapng"];
    let outcome = Pair::new(&world, Fabric::Any).options(&options).limit(LIMIT).run(words);
    expect_clean_capture(&world, &outcome.server, &outcome.client);
}

#[test]
fn capture_of_rc_sends_decodes() {
    capture(1500, &["ibv_rc_pingpong", "-g", "1", "-n", "200", "-s", "5000"]);
    capture(9000, &["ibv_rc_pingpong", "-g", "0", "-n", "200", "-s", "5000"]);
}

#[test]
fn capture_of_uc_and_ud_decodes() {
    capture(1500, &["ibv_uc_pingpong", "-g", "1", "-n", "200"]);
    capture(1500, &["ibv_ud_pingpong", "-g", "0", "-n", "200", "-s", "1000"]);
}

#[test]
fn capture_of_writes_reads_and_atomics_decodes() {
    for program in ["ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
        capture(9000, &[program, "-F", "-n", "50"]);
    }
    let stream = require!(stream());
    capture(1500, &[&stream, "-n", "600", "-s", "3000"]);
}
