//! Promises of single calls, one by one, with right and wrong arguments: the programs of cases in `tests/c`, each case in a
//! process of its own.

use ferroce_tests::{Artifacts, Fabric, World, require};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(50);

fn run(fabric: Fabric, program: &str, case: &str) {
    let path = require!(Artifacts::get().c_program(program));
    let world = require!(World::one_host(1500));
    let outcome = world.first().start_ferroce(&[], &[&*path, case], fabric.settings()).wait(LIMIT);
    outcome.expect_ok();
}

/// Fails when a case of a C program has no test here.
fn compare_with_list(program: &str, named: &[&str]) {
    let path = require!(Artifacts::get().c_program(program));
    let listed = std::process::Command::new(path).output().expect("the program runs");
    let listed = String::from_utf8(listed.stdout).expect("case names are ASCII");
    assert_eq!(listed.lines().collect::<Vec<_>>(), named);
}

macro_rules! programs {
    ($($folder:ident/$program:ident { $($case:ident)* ; udp only: $($udp_case:ident)* })*) => {$(
        mod $program {
            const PROGRAM: &str = concat!(stringify!($folder), "/", stringify!($program));

            #[test]
            fn every_case_is_run() {
                super::compare_with_list(PROGRAM, &[$(stringify!($case),)* $(stringify!($udp_case),)*]);
            }

            mod any_fabric {$(
                #[test]
                fn $case() {
                    super::super::run(super::super::Fabric::Any, super::PROGRAM, stringify!($case));
                }
            )*}

            mod udp_fabric {
                $(
                    #[test]
                    fn $case() {
                        super::super::run(super::super::Fabric::Udp, super::PROGRAM, stringify!($case));
                    }
                )*
                $(
                    #[test]
                    fn $udp_case() {
                        super::super::run(super::super::Fabric::Udp, super::PROGRAM, stringify!($udp_case));
                    }
                )*
            }
        }
    )*};
}

programs! {
    connections/ids {
        bad_input_is_refused
        calls_in_the_wrong_state_are_refused
        ports_are_exclusive
        both_sides_hear_what_the_other_says
        a_rejection_says_why
        a_synchronous_id_that_was_rejected_does_not_wait_for_its_end
        an_id_that_was_ended_asks_for_no_connection_again
        a_process_that_has_ended_asks_for_no_connection_again
        a_group_that_was_left_is_not_joined
        a_datagram_service_is_looked_up
        a_channel_is_readable_while_an_event_is_unread
        a_destroyed_channel_is_told_from_one_that_lives
        destruction_waits_for_events_that_were_fetched
        ids_share_their_devices
        a_backlog_is_a_bound
        an_id_may_go_while_its_request_is_made_again
        ; udp only:
    }
    completions/before_the_flush {
        acknowledged_requests_succeed_when_the_queue_pair_goes_to_err
        acknowledged_requests_succeed_when_it_drains_before
        acknowledged_requests_succeed_when_their_id_disconnects
        messages_that_came_before_err_are_received
        messages_that_came_before_a_destruction_are_acknowledged
        both_ends_agree_on_what_was_received_when_rings_are_full
        ; udp only:
    }
    calls/setup {
        rc_transitions_need_every_required_attribute
        uc_transitions_need_every_required_attribute
        ud_transitions_need_every_required_attribute
        attributes_that_a_transition_does_not_take_are_refused
        transitions_that_do_not_exist_are_refused
        every_state_goes_to_error_and_reset_and_can_be_used_again
        current_state_that_is_not_current_is_refused
        attribute_values_out_of_range_are_refused
        query_qp_tells_what_was_set
        capacities_beyond_the_device_are_refused
        receive_capacities_without_a_receive_queue_are_ignored
        registering_what_is_not_there_or_not_permitted_is_refused
        objects_in_use_are_not_destroyed
        queries_of_what_does_not_exist_are_refused
        address_handles_that_lead_nowhere_are_refused
        ; udp only: path_mtu_above_the_active_mtu_is_refused
    }
    calls/posting {
        send_in_a_state_before_rts_is_refused
        recv_in_reset_is_refused_and_in_init_taken
        full_send_queue_is_enomem_and_names_the_request
        full_receive_queue_is_enomem_and_names_the_request
        too_many_sges_are_refused
        list_with_a_bad_request_in_the_middle_is_taken_up_to_it
        opcodes_that_the_transport_lacks_are_refused
        ud_message_larger_than_the_mtu_is_refused
        inline_data_beyond_the_limit_is_refused
        inline_buffer_needs_no_lkey_and_may_be_reused_at_once
        qp_with_an_srq_refuses_receives
        full_srq_is_enomem_and_too_many_sges_are_refused
        requests_posted_in_error_are_flushed
        ; udp only:
    }
    calls/wr_api {
        every_operation_of_rc_does_what_it_says
        a_region_posts_all_its_requests_in_order_and_flags_belong_to_each
        aborted_requests_are_never_posted
        one_bad_call_keeps_all_from_being_posted
        inline_data_of_a_kibibyte_may_be_reused_at_once
        ud_needs_an_address_with_each_request
        operations_that_a_service_lacks_are_refused_at_creation
        threads_share_a_queue_and_their_regions_stay_apart
        a_child_is_not_locked_out_by_a_thread_it_does_not_have
        ; udp only:
    }
    calls/flush_and_atomic_write {
        atomic_write_stores_eight_bytes
        atomic_write_needs_the_right_to_write
        flush_makes_writes_visible_where_it_is_permitted
        persistent_flush_is_for_mapped_files
        device_says_that_it_writes_atomically_flushes_and_paces
        ; udp only:
    }
    calls/rate_limits {
        a_rate_limit_paces_until_it_is_taken_away
        rate_limits_that_cannot_be_are_refused
        ; udp only:
    }
    calls/datagrams {
        groups_that_cannot_be_attached_are_refused
        sender_that_blocks_its_own_multicast_gets_none
        connection_to_a_group_is_refused
        traffic_class_and_hop_limit_arrive
        flow_label_arrives
        a_static_rate_paces_what_goes_to_the_address
        sender_is_answered_by_way_of_its_completion
        datagram_with_another_q_key_is_dropped
        controlled_q_key_needs_a_privilege
        wrong_datagrams_are_refused
        ud_datagram_arrives_behind_forty_bytes_and_names_its_sender
        ud_datagram_with_the_wrong_qkey_is_dropped
        ; udp only:
    }
    completions/statuses {
        send_from_an_unknown_lkey_fails_with_loc_prot_err
        send_from_outside_the_mr_fails_with_loc_prot_err
        send_from_an_mr_of_another_pd_fails_with_loc_prot_err
        receive_into_read_only_memory_fails_on_both_sides
        message_longer_than_the_receive_fails_on_both_sides
        unknown_rkeys_fail_with_rem_access_err
        write_beyond_mr_fails_with_rem_access_err
        read_beyond_mr_fails_with_rem_access_err
        access_that_the_mr_does_not_permit_fails_with_rem_access_err
        access_that_the_qp_does_not_permit_fails
        misaligned_atomic_fails_with_rem_inv_req_err
        deregistered_memory_is_out_of_reach
        missing_receive_uses_up_rnr_retries
        missing_receive_with_rnr_retry_7_is_waited_for
        qp_that_does_not_exist_uses_up_retries
        requests_after_a_failure_are_flushed_in_order
        unsignaled_requests_complete_only_when_they_fail
        message_of_no_bytes_is_delivered
        error_state_flushes_everything_in_order
        destroyed_qp_completes_nothing
        scattered_and_gathered_pieces_arrive_in_order
        ; udp only:
    }
    completions/async_events {
        cq_overrun_raises_an_event
        srq_limit_raises_one_event
        last_wqe_of_an_srq_is_announced
        ; udp only:
    }
    completions/queue_changes {
        an_event_stands_for_as_many_completions_as_asked
        a_queue_is_resized_around_what_it_holds
        a_queue_that_overruns_stops_its_queue_pairs
        the_port_tells_its_speed
        a_shared_receive_queue_changes_with_requests_in_it
        ; udp only:
    }
    calls/handles {
        what_names_another_object_destroys_nothing
        what_names_another_object_has_no_children
        a_windows_key_is_its_own_but_for_the_low_8_bits
        a_region_of_no_byte_begins_inside_of_a_page
        a_null_region_does_not_hold_its_domain
        a_change_that_the_adapter_refuses_is_err_cmd
        what_was_made_since_has_its_names_and_bits
        an_event_of_which_nothing_is_left_to_tell_lapses
        ; udp only:
    }
    completions/extended_cq {
        every_field_of_a_completion_can_be_read
        an_empty_extended_queue_stays_usable
        threads_share_an_extended_queue
        flags_of_an_extended_queue_are_taken_or_refused
        ignored_overrun_loses_the_oldest_completions_only
        the_clock_runs_at_the_frequency_the_device_names
        ; udp only:
    }
}
