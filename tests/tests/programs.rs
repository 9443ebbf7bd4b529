//! Programs that fork, cancel, take signals, use many threads or leave in a hurry.

use ferroce_tests::{Artifacts, Fabric, Headers, Pair, World, compile_ping_pong, on_both_fabrics, require};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(50);

/// Runs `tests/c/PROGRAM.c CASE` and waits for `said`, which a daemon may print after its parent has ended.
fn run(fabric: Fabric, &[program, case, said]: &[&str; 3]) {
    let path = require!(Artifacts::get().c_program(program));
    let world = require!(World::one_host(1500));
    let mut process = world.first().start_ferroce(&[], &[&*path, case], fabric.settings());
    let outcome = process.wait(LIMIT);
    outcome.expect_success();
    let complains = |line: &str| match case {
        // Requests to the peer that has become another program fail.
        "writer" => !line.starts_with("ferroce: FC01"),
        "no_descriptor" => !line.contains("the process has no descriptor left"),
        _ => true,
    };
    let start = std::time::Instant::now();
    while !process.stdout().contains(said) {
        let stdout = process.stdout();
        let stderr = process.stderr();
        assert!(
            start.elapsed() < LIMIT && !stderr.lines().any(complains),
            "never printed \"{said}\":\n{stdout}\n{stderr}"
        );
        assert!(
            !world.first().residents().is_empty() || process.stdout().contains(said),
            "ended without printing \"{said}\":\n{stdout}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!process.stderr().lines().any(complains), "{}", process.stderr());
    while !world.first().residents().is_empty() {
        assert!(start.elapsed() < LIMIT, "a process stays behind: {:?}", world.first().residents());
        std::thread::sleep(Duration::from_millis(10));
    }
    world.first().expect_no_traces();
}

on_both_fabrics! {
    run:
    program_that_opens_then_daemonises_works: "fork/both_sides" "daemonise" "daemon ok";
    parent_and_child_both_work: "fork/both_sides" "both" "both ok";
    child_that_outlives_its_parent_works: "fork/both_sides" "outlive" "child ok";
    child_that_dies_harms_nobody: "fork/both_sides" "dies" "parent ok";
    inherited_qp_sends_nothing_from_the_child: "fork/both_sides" "inherited" "parent ok";
    inherited_qp_sends_nothing_to_another_process: "fork/both_sides" "inherited_link" "parent ok";
    fork_and_exec_harms_nobody: "fork/both_sides" "execs" "parent ok";
    memory_of_a_program_that_a_peer_executes_is_its_own: "lifecycle/peer_execs" "writer" "ok";
    process_ends_with_its_main_thread_while_a_device_is_open: "lifecycle/last_thread" "device_open" "ok";
    process_ends_with_its_main_thread_when_a_device_was_open: "lifecycle/last_thread" "device_closed" "ok";
    process_whose_main_thread_has_ended_works_on: "lifecycle/last_thread" "main_ends_first" "ok";
    process_whose_main_thread_has_ended_opens_a_device: "lifecycle/last_thread" "main_without_verbs_ends_first" "ok";
    process_ends_with_a_main_thread_that_has_used_no_verbs: "lifecycle/last_thread" "main_without_verbs_ends_last" "ok";
    processes_whose_main_threads_have_ended_reach_each_other: "lifecycle/last_thread" "two_processes" "ok";
    processes_whose_main_threads_end_at_work_go_on: "lifecycle/last_thread" "two_processes_at_work" "ok";
    child_ends_with_its_last_thread: "lifecycle/last_thread" "child_of_a_fork" "ok";
    posting_and_polling_need_a_small_stack_only: "surroundings/small_stack" "traffic" "ok";
    program_with_large_thread_local_variables_opens_the_device: "surroundings/odd_opener" "thread_locals" "ok";
    process_without_a_descriptor_lets_others_start: "surroundings/odd_opener" "no_descriptor" "ok";
    blocked_threads_can_be_cancelled: "completions/blocked_waits" "cancelled" "ok";
    signal_without_restart_interrupts: "completions/blocked_waits" "interrupted" "ok";
    signal_with_restart_goes_on_waiting: "completions/blocked_waits" "restarted" "ok";
    waiting_needs_no_limit_of_descriptors: "completions/blocked_waits" "sandboxed" "ok";
    handler_that_leaves_a_wait_leaves_no_lock: "completions/left_waits" "left" "ok";
    handler_that_interrupts_a_wait_may_use_other_objects: "completions/left_waits" "handled" "ok";
    thread_that_is_cancelled_in_a_wait_amid_traffic_leaves_no_lock: "completions/left_waits" "cancelled" "ok";
    channel_fd_serves_an_event_loop: "completions/event_descriptors" "event_loop" "ok";
    event_descriptors_are_readable_while_an_event_is_unread_and_never_writable: "completions/event_descriptors" "readiness" "ok";
    solicited_events_come_for_solicited_messages_only: "completions/event_descriptors" "solicited" "ok";
    eight_threads_with_a_qp_each: "traffic/threads" "own-qps" "ok";
    eight_threads_on_one_qp: "traffic/threads" "one-qp" "ok";
}

fn leave_in_a_hurry(world: &World, fabric: Fabric) {
    let program = &*require!(Artifacts::get().c_program("lifecycle/exit_after_last_completion"));
    for (count, size) in [("1", "1"), ("1", "65536"), ("20", "100000"), ("300", "16"), ("5", "1048576")] {
        for _ in 0..4 {
            let outcome = Pair::new(world, fabric).limit(LIMIT).run(&[program, count, size]);
            outcome.expect_success().expect_quiet();
        }
    }
}

#[test]
fn exit_right_after_the_last_completion_goes_unnoticed_on_one_host() {
    let world = require!(World::one_host(1500));
    leave_in_a_hurry(&world, Fabric::Any);
    leave_in_a_hurry(&world, Fabric::Udp);
    world.first().expect_no_traces();
}

#[test]
fn exit_right_after_the_last_completion_goes_unnoticed_between_hosts() {
    let world = require!(World::two_hosts(9000));
    leave_in_a_hurry(&world, Fabric::Any);
}

/// What `cargo xtask demo` falls back on; the second round is for a machine without the verbs headers.
#[test]
fn own_ping_pong_compiles_and_runs_with_and_without_installed_headers() {
    let world = require!(World::one_host(1500));
    for headers in [Headers::Installed, Headers::Minimal] {
        if headers == Headers::Installed && !std::path::Path::new("/usr/include/infiniband/verbs.h").exists()
        {
            continue;
        }
        let artifacts = Artifacts::get();
        let program =
            artifacts.program_path(&format!("pingpong-{headers:?}")).expect("the stage is writable");
        compile_ping_pong(headers, &artifacts.library_dir(), &program).expect("it compiles");
        let program = program.to_str().expect("a UTF-8 path");
        let outcome = Pair::new(&world, Fabric::Any).limit(LIMIT).run(&[program, "-c", "-n", "2000"]);
        outcome.expect_success().expect_quiet();
        assert!(outcome.client.stdout.contains("2000 iters in "), "{outcome}");
    }
}

#[test]
fn process_that_cannot_share_memory_just_now_is_reached_all_the_same() {
    let world = require!(World::one_host(9000));
    let program = &*require!(Artifacts::get().c_program("surroundings/late_shared_memory"));
    for size in ["100", "100000"] {
        for tight in ["tight-server", "tight-client"] {
            for first in ["server-first", "client-first"] {
                let outcome = Pair::new(&world, Fabric::Any).limit(LIMIT).run(&[program, size, tight, first]);
                outcome.expect_success().expect_quiet();
            }
        }
    }
    world.first().expect_no_traces();
}

#[test]
fn messages_of_all_kinds_arrive_and_nothing_of_an_earlier_connection_counts() {
    let program = &*require!(Artifacts::get().c_program("traffic/mixed_sends"));
    let world = require!(World::one_host(1500));
    for fabric in [Fabric::Any, Fabric::Udp] {
        Pair::new(&world, fabric).limit(LIMIT).run(&[program]).expect_success().expect_quiet();
    }
    world.first().expect_no_traces();
}

#[test]
fn large_messages_arrive_whole_though_copies_are_refused_from_some_time_on() {
    let program = &*require!(Artifacts::get().c_program("traffic/large_sends"));
    let world = require!(World::one_host(1500));
    for fabric in [Fabric::Any, Fabric::Udp] {
        Pair::new(&world, fabric).limit(LIMIT).run(&[program]).expect_success().expect_only_reasons();
    }
    world.first().expect_no_traces();
}

#[test]
fn one_sided_requests_of_all_lengths_reach_the_peers_memory_in_order() {
    let program = &*require!(Artifacts::get().c_program("traffic/one_sided"));
    let world = require!(World::one_host(1500));
    for fabric in [Fabric::Any, Fabric::Udp] {
        for words in [&[program][..], &[program, "memfd"]] {
            let outcome = Pair::new(&world, fabric).limit(LIMIT).run(words);
            outcome.expect_success();
            // What isn't allowed or taken is reported: requests that the peer carries out may fill the send queue first.
            let told = [
                "ferroce: FC",
                "ferroce: ibv_post_send: the completion queue may be full",
                "ferroce: ibv_post_send: the send queue of 32 work requests is full",
            ];
            for line in outcome.server.stderr.lines().chain(outcome.client.stderr.lines()) {
                assert!(told.iter().any(|beginning| line.starts_with(beginning)), "{outcome}");
            }
        }
    }
    world.first().expect_no_traces();
}

#[test]
fn messages_before_a_bad_receive_arrive_and_those_after_it_are_flushed() {
    let program = &*require!(Artifacts::get().c_program("traffic/bad_receives"));
    let world = require!(World::one_host(1500));
    // Within a host: on a wire the one packet with the cause may be lost.
    Pair::new(&world, Fabric::Any).limit(LIMIT).run(&[program]).expect_success().expect_only_reasons();
    world.first().expect_no_traces();
}

#[test]
fn memory_that_can_be_shared_is_written_where_its_program_sees_it() {
    let program = &*require!(Artifacts::get().c_program("memory/shared"));
    let world = require!(World::one_host(1500));
    for (fabric, views) in [(Fabric::Any, "views"), (Fabric::Udp, "none")] {
        Pair::new(&world, fabric).limit(LIMIT).run(&[program, views]).expect_success().expect_only_reasons();
    }
    world.first().expect_no_traces();
}
