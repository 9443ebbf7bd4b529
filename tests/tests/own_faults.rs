//! The program's SIGSEGV and the adapter's: `tests/c/surroundings/own_faults.c` with and without requests, and
//! `tests/c/memory/vanishing.c` in threads and programs that leave the adapter no easy way to catch a fault.

use ferroce_tests::{Artifacts, Host, Outcome, Skip, World, require};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn run(host: &Host, program: &str, arguments: &[&str], settings: &[(&str, &str)]) -> Outcome {
    host.start_ferroce(&[], &[&[program], arguments].concat(), settings).wait(LIMIT)
}

/// A kind of handler is called, and the program ends, as without requests.
fn crashes_as_without_requests(kind: &str, says: &str) {
    let program = require!(Artifacts::get().c_program("surroundings/own_faults"));
    let world = require!(World::one_host(1500));
    let outcome = |when| run(world.first(), &program, &[kind, when], &[]);
    let never = outcome("never");
    assert!(never.stdout.contains(says), "{never}");
    for when in ["before", "after", "around"] {
        let with = outcome(when);
        let same = with.stdout == never.stdout && with.status == never.status;
        assert!(same, "with requests {when} the handler is installed:\n{with}\nwithout:\n{never}");
    }
}

macro_rules! kinds {
    ($($name:ident: $kind:literal says $says:literal;)*) => {
        $(
            #[test]
            fn $name() {
                crashes_as_without_requests($kind, $says);
            }
        )*
    };
}

kinds! {
    a_fault_without_a_handler_ends_the_program: "default" says "";
    a_sent_signal_without_a_handler_ends_the_program: "default_sent" says "";
    an_ignored_fault_ends_the_program: "ignored" says "";
    an_ignored_signal_that_is_sent_does_nothing: "ignored_sent" says "goes on";
    a_handler_for_one_signal_is_called_once: "returns" says "the address";
    a_handler_for_one_signal_raises_it_again: "raises" says "[crash report]";
    a_handler_for_one_signal_leaves_it_pending: "raises_later" says "after the signal";
    a_handler_that_faults_ends_the_program: "faults" says "[crash report]";
    a_handler_that_may_be_nested_is: "faults_within" says "called for ever";
    a_handler_without_siginfo_is_called: "leaves" says "[crash report]";
    a_handler_that_jumps_out_is_called_again: "jumps" says "[crash report]";
    a_handler_that_chains_is_called_once: "chains" says "[crash report]";
    a_handler_has_its_mask: "circumstances" says "blocked 1 1 0, own stack";
    a_handler_has_its_stack: "circumstances_else" says "blocked 0 0 1, alternate stack";
    a_sigsegv_that_all_threads_block_waits_for_the_program: "blocked_segv" says "fetched";
    a_sigbus_that_all_threads_block_waits_for_the_program: "blocked_bus" says "fetched";
    a_handler_knows_a_signal_that_was_sent: "circumstances_sent" says "blocked 1 0 1, alternate stack";
}

fn vanish(option: &str, place: &[&str]) -> Result<(), Skip> {
    let program = Artifacts::get().c_program("memory/vanishing")?;
    let world = World::one_host(1500)?;
    for operation in ["fadd", "cas", "write", "send", "own_write", "own_read"] {
        let outcome = run(world.first(), &program, &[&[option], place, &[operation]].concat(), &[]);
        outcome.expect_success().expect_only_reasons();
    }
    Ok(())
}

#[test]
fn requests_on_vanishing_memory_fail_in_threads_that_block_all_signals() {
    require!(vanish("-s", &["-l"]));
}

#[test]
fn requests_on_vanishing_memory_fail_beside_a_crash_handler_installed_later() {
    require!(vanish("-c", &["-l"]));
}

#[test]
fn address_sanitizer_reports_the_programs_faults_and_no_others() {
    // The runtime of the sanitizer wants to be the first library; `ferroce run` preloads one before it.
    let settings = [("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0")];
    let world = require!(World::one_host(1500));
    let crashing = require!(Artifacts::get().sanitized_program("surroundings/own_faults"));
    for when in ["never", "before"] {
        let outcome = run(world.first(), &crashing, &["nothing", when], &settings);
        assert!(outcome.stderr.contains("AddressSanitizer: SEGV on unknown address"), "{outcome}");
        assert_eq!(outcome.status.code(), Some(1), "{outcome}");
    }
    let vanish = require!(Artifacts::get().sanitized_program("memory/vanishing"));
    for operation in ["fadd", "write"] {
        run(world.first(), &vanish, &["-l", operation], &settings).expect_success();
    }
}
