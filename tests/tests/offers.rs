//! Large SENDs that the receiver reads from the sender's memory, and what ends while one is outstanding: `tests/c/traffic/offered_sends.c`.

use ferroce_tests::{Artifacts, World, require};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(50);

fn run(case: &str) {
    let path = require!(Artifacts::get().c_program("traffic/offered_sends"));
    let world = require!(World::one_host(1500));
    let outcome = world.first().start_ferroce(&[], &[&*path, case], &[]).wait(LIMIT);
    outcome.expect_ok().expect_only_reasons();
    world.first().expect_no_traces();
}

macro_rules! cases {
    ($($case:ident)*) => {
        /// Fails when a case of the C program has no test here.
        #[test]
        fn every_case_is_run() {
            let path = require!(Artifacts::get().c_program("traffic/offered_sends"));
            let listed = std::process::Command::new(path).output().expect("the program runs");
            let listed = String::from_utf8(listed.stdout).expect("case names are ASCII");
            assert_eq!(listed.lines().collect::<Vec<_>>(), [$(stringify!($case)),*]);
        }

        $(
            #[test]
            fn $case() {
                run(stringify!($case));
            }
        )*
    };
}

cases! {
    bytes_are_read_from_the_sender_until_copies_are_refused
    elements_of_a_receive_are_filled_by_one_copy
    shared_receives
    receive_that_is_too_short
    receives_that_come_late
    sender_deregisters
    sender_destroys_its_queue_pair
    sender_flushes_its_queue_pair
    sender_forks
    sender_executes_another_program
    sender_is_killed
    receiver_is_killed
    receiver_destroys_its_queue_pair
    receiver_deregisters
}
