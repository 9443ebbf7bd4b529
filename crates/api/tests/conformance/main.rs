//! What the public API promises, on every backend: the cases are generic over a [`fixture::Fixture`] of two devices.

mod by_address;
#[cfg(feature = "native")]
mod c_peers;
mod cancelled;
mod cases;
mod datagrams;
#[cfg(feature = "native")]
mod differential;
mod drivers;
mod ends;
mod extras;
mod failures;
mod fixture;
#[cfg(feature = "system")]
mod hostile;
mod line;
mod loans;
mod memory;
#[cfg(feature = "native")]
mod of_c_programs;
#[cfg(feature = "system")]
mod of_the_system;
#[cfg(feature = "native")]
mod of_this_process;
mod pairs;
mod scopes;
mod sessions;
mod settings;
mod shared;
mod simulated;
mod worlds;

#[cfg(feature = "native")]
use fixture::Native;
use fixture::Simulated;
#[cfg(feature = "system")]
use fixture::System;

/// Threads may share all objects (rule S12). Those that post and poll do it by `&mut`.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<ferroce::verbs::Device>();
    shared::<ferroce::verbs::Domain>();
    shared::<ferroce::verbs::RcQp>();
    shared::<ferroce::verbs::UcQp>();
    shared::<ferroce::verbs::UdQp>();
    shared::<ferroce::verbs::Srq>();
    shared::<ferroce::verbs::Loan<ferroce::rights::All>>();
    shared::<ferroce::verbs::Address>();
    shared::<ferroce::verbs::Setup<ferroce::verbs::Reliable>>();
    shared::<ferroce::verbs::Cq>();
    shared::<ferroce::session::Driver>();
    shared::<ferroce::session::Connection>();
    shared::<ferroce::session::Message>();
    shared::<ferroce::cm::Listener>();
    shared::<ferroce::cm::Incoming>();
    shared::<ferroce::session::Permit<'_>>();
    shared::<ferroce::session::Op<ferroce::verbs::Send<ferroce::Buffer>>>();
    shared::<ferroce::Buffer>();
    shared::<ferroce::Frozen>();
    shared::<ferroce::Pool>();
    shared::<ferroce::Exposed<ferroce::rights::All>>();
    shared::<ferroce::Remote<ferroce::rights::All>>();
    shared::<ferroce::Error>();
    shared::<ferroce::sim::World>();
};

/// A test of each case on each backend.
macro_rules! conformance {
    ($($case:path => $name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                for fixture in Simulated::all() {
                    $case(&fixture);
                }
            }
        )*

        /// Two queue pairs of this process.
        #[cfg(feature = "native")]
        mod native {
            use super::*;

            $(
                #[test]
                fn $name() {
                    ferroce_tests::inside::in_namespace(concat!("native::", stringify!($name)), || {
                        $case(&Native::new());
                    });
                }
            )*
        }

        /// Two queue pairs of this process, whose packets go over UDP as between hosts.
        #[cfg(feature = "native")]
        mod native_over_udp {
            use super::*;

            $(
                #[test]
                fn $name() {
                    ferroce_tests::inside::in_namespace(concat!("native_over_udp::", stringify!($name)), || {
                        $case(&Native::over_udp());
                    });
                }
            )*
        }

        /// Two queue pairs of this process on Ferroce's library for C.
        #[cfg(feature = "system")]
        mod system {
            use super::*;

            $(
                #[test]
                fn $name() {
                    System::choose();
                    ferroce_tests::inside::in_namespace(concat!("system::", stringify!($name)), || {
                        $case(&System::new());
                    });
                }
            )*
        }

        /// Two queue pairs of this process, on Ferroce's library for C, whose packets go over UDP.
        #[cfg(feature = "system")]
        mod system_over_udp {
            use super::*;

            $(
                #[test]
                fn $name() {
                    System::choose();
                    ferroce_tests::inside::in_namespace(concat!("system_over_udp::", stringify!($name)), || {
                        $case(&System::over_udp());
                    });
                }
            )*
        }
    };
}

conformance! {
    cases::messages => messages_arrive_in_order_with_their_lengths_and_immediate_data,
    cases::one_sided => a_peers_memory_is_read_and_written_without_its_program,
    cases::write_with_immediate => a_write_with_immediate_takes_a_receive,
    cases::atomics => atomics_return_the_word_before,
    cases::parts => messages_of_several_parts_are_gathered_and_scattered,
    cases::inline => inline_data_needs_no_registered_memory,
    cases::frozen => one_buffer_goes_to_many_peers,
    cases::quiet => quiet_requests_are_reported_with_a_later_one,
    cases::full => a_full_queue_gives_the_request_back,
    cases::two_queues => receives_complete_in_a_queue_of_their_own,
    failures::no_receive => a_message_without_a_receive_fails_after_the_retries,
    failures::too_long => a_message_longer_than_its_receive_fails_on_both_sides,
    failures::revoked => a_revoked_key_gives_no_access,
    failures::wrong_domain => a_key_of_another_domain_gives_no_access,
    failures::lengths => lengths_are_checked_before_a_request_is_posted,
    failures::flushed => a_flush_names_the_first_failure,
    failures::built_wrong => attributes_out_of_range_are_refused,
    ends::abort => an_aborted_read_gives_its_buffer_back,
    ends::destroy => a_destroyed_queue_pair_returns_what_was_outstanding,
    ends::dropped => a_dropped_queue_pair_returns_buffers_to_their_pool,
    ends::forgotten => a_forgotten_queue_pair_keeps_its_buffers,
    ends::forgotten_completion => a_forgotten_completion_ends_with_the_next,
    ends::dropped_cq => a_queue_pair_outlives_its_completion_queue,
    ends::reserved => a_completion_queue_has_room_for_all_its_queue_pairs,
    memory::guessed_keys => a_wrong_key_never_leads_to_memory,
    memory::bounds => an_exposed_buffer_is_reached_and_nothing_beside_it,
    memory::many => random_requests_do_what_a_model_does,
    shared::two_clients => receives_of_a_shared_queue_go_to_the_queue_pairs_that_take_them,
    shared::refills => a_shared_queue_is_refilled_while_queue_pairs_take_from_it,
    shared::full => a_full_shared_queue_gives_the_memory_back,
    shared::failed => a_queue_pair_that_fails_leaves_a_shared_queue_alone,
    shared::ended => a_shared_queue_returns_its_memory_at_its_end,
    shared::reserved => a_completion_queue_has_room_for_a_shared_queue_once,
    shared::never_full => completion_queues_never_get_more_than_they_hold,
    shared::low_water => a_shared_queue_reports_its_low_water_once,
    shared::foreign => a_shared_queue_of_another_domain_is_refused,
    loans::returned => a_loan_returns_with_its_buffer,
    loans::again => windows_are_used_again_under_other_keys,
    loans::recalled => a_recalled_loan_is_not_written,
    loans::rights_of_loans => a_loan_has_no_more_rights_and_bytes_than_were_lent,
    loans::of_another => a_loan_is_of_no_use_to_another_queue_pair,
    loans::guessed => a_guessed_key_of_a_window_never_leads_to_memory,
    loans::stale => a_completion_from_before_a_recall_returns_no_later_loan,
    loans::ends => loans_end_with_what_they_depend_on,
    loans::refused => what_cannot_be_lent_or_returned_is_refused,
    scopes::borrowed => a_scope_sends_and_receives_borrowed_memory,
    scopes::many => a_scope_waits_for_room_and_keeps_other_completions,
    scopes::failed => a_scope_returns_the_first_failure,
    scopes::panicked => memory_of_a_scope_that_panics_is_not_written,
    scopes::elsewhere => a_scope_needs_the_queue_in_which_its_requests_complete,
    scopes::batches => a_batch_is_posted_as_a_whole_or_not_at_all,
    extras::stamped => completions_have_the_time_that_the_queue_was_made_for,
    datagrams::answered => a_datagram_is_answered_by_its_source,
    datagrams::parts => datagrams_are_gathered_and_scattered_without_their_header,
    datagrams::wrong_qkey => a_datagram_with_another_qkey_is_dropped,
    datagrams::too_long => a_datagram_longer_than_a_packet_is_refused,
    datagrams::foreign => an_address_of_another_domain_is_refused,
    datagrams::outstanding => receives_of_datagrams_come_back_without_their_header,
    datagrams::unreliable => messages_of_an_unreliable_connection_arrive_or_are_lost,
    sessions::echo => a_connection_carries_messages_back_and_forth,
    sessions::one_sided => a_connection_reads_and_writes_its_peers_memory,
    sessions::beyond_the_depth => sends_beyond_the_queues_depth_wait_and_never_fail,
    sessions::full => a_permit_holds_its_place_in_the_queue,
    sessions::given_up => a_wait_that_is_given_up_lets_the_next_one_have_its_turn,
    sessions::dropped => a_dropped_request_of_a_connection_keeps_its_memory_until_its_end,
    sessions::never_polled => a_request_whose_future_is_never_polled_leaves_nothing_behind,
    sessions::own_receives => a_queue_pair_with_receives_of_its_own_joins_nothing,
    sessions::timeout => a_request_that_takes_too_long_is_aborted,
    sessions::closed => a_failure_ends_a_connection_for_all_that_wait,
    sessions::closed_early => requests_of_a_closed_connection_return_their_memory,
    sessions::kept => a_buffer_that_comes_back_late_is_posted_without_a_call,
    by_address::made => connections_are_made_by_address,
    by_address::rejected => a_rejected_connection_says_why,
    by_address::several => several_connections_are_made_and_ended_by_either_side,
    sessions::blocking => a_connection_is_used_without_futures,
}
