//! Threads that wait for memory whose pages don't come, peers that are stopped, and what goes on beside them: `tests/c/surroundings/held_up.c`.

use ferroce_tests::{Artifacts, Fabric, Skip, World, on_both_fabrics, require};
use std::time::Duration;

/// Of the C program, when the machine lacks what a case needs.
const SKIPPED: &str = "skipped: ";
const LIMIT: Duration = Duration::from_secs(80);

fn run(fabric: Fabric, &[case]: &[&str; 1]) {
    run_of("surroundings/held_up", fabric, case);
}

/// Needs memory that isn't there: `tests/c/surroundings/absent_pages.c`.
fn run_absent(fabric: Fabric, &[case]: &[&str; 1]) {
    run_of("surroundings/absent_pages", fabric, case);
}

/// Receives whose memory isn't there: `tests/c/surroundings/absent_receives.c`.
fn run_receives(fabric: Fabric, &[case]: &[&str; 1]) {
    run_of("surroundings/absent_receives", fabric, case);
}

/// One-sided operations on memory of the other side that isn't there: `tests/c/surroundings/peers_pages.c`.
fn run_peers(fabric: Fabric, &[case]: &[&str; 1]) {
    run_of("surroundings/peers_pages", fabric, case);
}

fn run_of(program: &str, fabric: Fabric, case: &str) {
    run_command(program, &[], fabric, case);
}

/// As [`run_of`], as the command that the words of `by` run.
fn run_command(program: &str, by: &[&str], fabric: Fabric, case: &str) {
    let path = require!(Artifacts::get().c_program(program));
    let world = require!(World::one_host(1500));
    let words = [by, &[&*path, case]].concat();
    let mut process = world.first().start_ferroce_privileged(&[], &words, fabric.settings());
    let outcome = process.wait(LIMIT);
    if let Some(why) = outcome.stdout.lines().find_map(|line| line.strip_prefix(SKIPPED)) {
        return require!(Err(Skip(why.to_owned())));
    }
    outcome.expect_success();
    outcome.expect_ok();
}

on_both_fabrics! {
    run:
    a_stopped_peer_holds_up_no_object_but_those_it_uses: "stopped_peer";
    calls_on_a_region_that_is_written_end_though_its_page_does_not_come: "page_that_is_written";
    calls_on_a_region_that_receives_end_though_its_page_does_not_come: "page_that_receives";
    a_sender_whose_page_does_not_come_holds_up_no_other_object: "sender_of_a_page";
    a_thread_that_leaves_a_poll_by_siglongjmp_stops_no_other_queue: "nowhere";
    a_fork_beside_a_thread_that_waits_for_a_page_holds_up_no_other_thread: "fork_beside_a_page";
    a_message_for_a_sender_of_a_list_whose_inline_page_does_not_come_holds_up_no_other_queue_pair: "record_for_a_sender_of_a_list";
    a_line_that_a_peer_causes_and_no_process_reads_holds_up_no_other_queue_pair: "unread_lines";
}

/// `tests/c/surroundings/stopped_itself.c`.
#[test]
fn a_process_that_was_stopped_itself_finds_its_queue_pair_free() {
    let path = require!(Artifacts::get().c_program("surroundings/stopped_itself"));
    let world = require!(World::one_host(1500));
    world.first().start_ferroce(&[], &[path], &[]).wait(LIMIT).expect_ok();
}

/// Has UDP port 4791 of an address that the host doesn't have yet, and shares it with no process.
const TAKEN: &str = "
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(socket.SOL_IP, 15, 1)
s.bind(('10.77.0.99', 4791)); print('taken', flush=True); time.sleep(100)";

/// `tests/c/surroundings/taken_address.c`. Shared memory is copied to without the other side's adapter.
#[test]
fn a_new_address_whose_port_a_program_has_holds_up_no_queue_pair() {
    let path = &*require!(Artifacts::get().c_program("surroundings/taken_address"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    let mut taker = host.start(&["python3", "-c", TAKEN], &[]);
    taker.wait_for_output("taken", LIMIT);
    let mut process = host.start_ferroce(&[], &[path, "10.77.0.99"], Fabric::Udp.settings());
    process.wait_for_output("ready", LIMIT);
    host.admin("ip addr add 10.77.0.99/24 dev eth0");
    let outcome = process.wait(LIMIT);
    assert_eq!(outcome.expect_success().stdout, "ready\nok\n", "{outcome}");
}

#[test]
fn a_thread_that_leaves_a_poll_of_many_completions_by_siglongjmp_holds_up_no_fork() {
    run(Fabric::Any, &["nowhere_at_the_end"]);
}

#[test]
fn a_write_to_a_page_that_does_not_come_holds_up_no_other_queue_pair() {
    run(Fabric::Any, &["write_beside_a_page"]);
}

#[test]
fn a_post_returns_though_the_peers_page_does_not_come() {
    run(Fabric::Any, &["post_to_a_page"]);
}

#[test]
fn a_message_for_a_sender_of_a_page_holds_up_no_other_queue_pair() {
    run(Fabric::Any, &["record_for_a_sender_of_a_page"]);
}

/// The pages of a queue pair's buffers come slowly.
mod slow {
    use super::*;

    #[test]
    fn a_queue_pair_with_slow_pages_slows_down_no_other_with_shared_memory() {
        run(Fabric::Any, &["slow_pages"]);
    }

    #[test]
    fn a_queue_pair_with_slow_pages_slows_down_no_other_over_udp() {
        run(Fabric::Udp, &["slow_pages"]);
    }

    #[test]
    fn a_write_to_a_page_that_does_not_come_holds_up_no_other_queue_pair_over_udp() {
        run(Fabric::Udp, &["write_beside_a_page"]);
    }
}

mod absent {
    use super::*;

    on_both_fabrics! {
        run_absent:
        an_operation_whose_memory_is_not_there_waits_for_it_and_holds_up_no_other_queue_pair: "each_operation";
        a_queue_pair_and_its_memory_end_while_requests_wait_for_memory: "ends";
        requests_wait_for_no_memory_of_the_other_direction_and_end_with_the_queue_pair: "two_directions";
        packets_beyond_what_a_queue_pair_keeps_come_again: "more_than_waits";
        requests_succeed_that_an_answer_acknowledges_which_waits_for_memory: "acknowledged_by_an_answer";
        a_page_that_is_waited_for_comes_though_the_program_maps_it_anew: "mapped_again";
        memory_that_is_registered_at_the_address_of_other_memory_is_looked_at: "registered_again";
        a_page_that_comes_is_not_held_up_by_one_that_does_not: "one_of_two";
        an_operation_waits_for_memory_whose_handler_serves_user_mode_alone: "each_operation_of_user_mode";
    }

    #[test]
    fn a_page_that_comes_is_not_held_up_by_one_that_does_not_where_the_kernel_copies_nothing() {
        let refusing = &*require!(Artifacts::get().c_program("surroundings/refused_syscalls"));
        run_command("surroundings/absent_pages", &[refusing, "vm"], Fabric::Any, "one_of_two");
    }
}

mod absent_receives {
    use super::*;

    on_both_fabrics! {
        run_receives:
        a_receive_of_a_shared_queue_is_its_messages_while_its_memory_comes: "next_of_a_shared_queue";
        a_receive_of_a_shared_queue_is_its_datagrams_while_its_memory_comes: "next_datagram_of_a_shared_queue";
        a_queue_pair_that_ends_leaves_the_receive_of_a_message_that_waits: "shared_receive_of_an_end";
        messages_of_uc_wait_for_memory_in_their_order: "unreliable_connection";
        datagrams_wait_for_memory_in_their_order: "datagrams";
        a_shared_queue_and_a_device_end_while_messages_wait_for_memory: "ends_of_all";
        more_messages_than_a_process_keeps_come_again_in_their_order: "full_lists";
    }

    /// Shared memory loses nothing.
    #[test]
    fn packets_beyond_a_gap_wait_for_memory_when_their_turn_has_come() {
        run_receives(Fabric::Udp, &["beyond_gaps"]);
    }
}

mod absent_at_the_peer {
    use super::*;

    on_both_fabrics! {
        run_peers:
        an_operation_on_memory_of_the_peer_that_is_not_there_waits_and_its_post_returns: "each_operation";
        a_page_of_the_peer_that_has_gone_holds_up_no_post: "page_that_goes";
        memory_that_the_peer_registers_at_the_address_of_other_memory_is_looked_at: "page_registered_again";
        memory_of_a_file_has_what_the_peers_handler_of_faults_gives: "page_of_a_mapped_file";
    }
}
