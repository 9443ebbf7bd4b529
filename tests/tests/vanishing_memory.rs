//! Registered memory that goes away while it is used: unmapped, protected, truncated or deregistered by its owner,
//! before and in the middle of requests. Error completions as documented, never a signal, and no byte elsewhere changes.

use ferroce_tests::{Artifacts, Fabric, Pair, World, require};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(50);

/// Where the two sides of `tests/c/memory/vanishing.c` are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Two threads of one process, so that both QPs are in it.
    OneProcess,
    OneHost(Fabric),
    /// The same, with copies by the kernel.
    OneHostByKernel,
    TwoHosts,
}

fn vanish(place: Place, options: &[&str], operation: &str) {
    let program = &*require!(Artifacts::get().c_program("memory/vanishing"));
    let world = require!(match place {
        Place::TwoHosts => World::two_hosts(9000),
        _ => World::one_host(1500),
    });
    let mut words = vec![program];
    words.extend(options);
    let fabric = match place {
        Place::OneProcess => {
            words.extend(["-l", operation]);
            let outcome = world.first().start_ferroce(&[], &words, &[]).wait(LIMIT);
            outcome.expect_success().expect_only_reasons();
            world.first().expect_no_traces();
            return;
        }
        Place::OneHost(fabric) => fabric,
        Place::TwoHosts | Place::OneHostByKernel => Fabric::Any,
    };
    words.push(operation);
    let mut pair = Pair::new(&world, fabric).limit(LIMIT);
    if place == Place::OneHostByKernel {
        pair = pair.setting("FERROCE_COPIES", "kernel");
    }
    pair.run(&words).expect_success().expect_only_reasons();
    world.first().expect_no_traces();
    world.last().expect_no_traces();
}

/// Fails when an operation of the C program has no test here.
#[test]
fn every_operation_is_run() {
    let program = require!(Artifacts::get().c_program("memory/vanishing"));
    let listed = std::process::Command::new(program).output().expect("the program runs");
    let listed = String::from_utf8(listed.stdout).expect("operations are ASCII");
    let mut named: Vec<&str> = OPERATIONS.into_iter().chain(ATOMICS).collect();
    let mut listed: Vec<&str> = listed.lines().collect();
    named.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, named);
}

const ATOMICS: [&str; 2] = ["fadd", "cas"];

macro_rules! operations {
    ($($name:ident: $operation:literal;)*) => {
        const OPERATIONS: [&str; [$($operation),*].len()] = [$($operation),*];
        operations!(@place in_one_process, Place::OneProcess; $($name: $operation;)*);
        operations!(@place any_fabric, Place::OneHost(Fabric::Any); $($name: $operation;)*);
        operations!(@place copies_by_the_kernel, Place::OneHostByKernel; $($name: $operation;)*);
        operations!(@place udp_fabric, Place::OneHost(Fabric::Udp); $($name: $operation;)*);
        operations!(@place two_hosts, Place::TwoHosts; $($name: $operation;)*);
    };
    (@place $place:ident, $value:expr; $($name:ident: $operation:literal;)*) => {
        mod $place {
            use super::*;
            $(
                #[test]
                fn $name() {
                    vanish($value, &[], $operation);
                }
            )*

            #[test]
            fn atomics_into_memory_that_is_gone_fail() {
                for operation in ATOMICS {
                    vanish($value, &["-b"], operation);
                }
            }

            #[test]
            fn atomics_into_vanishing_memory_fail() {
                for operation in ATOMICS {
                    vanish($value, &[], operation);
                }
            }
        }
    };
}

operations! {
    write_into_vanishing_memory_fails: "write";
    read_from_vanishing_memory_fails: "read";
    send_into_vanishing_memory_fails_on_both_sides: "send";
    write_from_vanishing_memory_fails_with_loc_prot_err: "own_write";
    send_from_vanishing_memory_fails_with_loc_prot_err: "own_send";
    read_into_vanishing_memory_fails_with_loc_prot_err: "own_read";
    atomic_with_a_vanishing_result_fails_with_loc_prot_err: "own_fadd";
    uc_send_into_vanishing_memory_fails_at_the_receiver: "uc_send";
    uc_write_into_vanishing_memory_is_dropped: "uc_write";
    uc_send_from_vanishing_memory_fails_with_loc_prot_err: "uc_own_send";
    ud_send_into_vanishing_memory_fails_at_the_receiver: "ud_send";
    ud_send_from_vanishing_memory_fails_with_loc_prot_err: "ud_own_send";
}
