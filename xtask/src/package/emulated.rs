//! Tests of the crates, built for another processor and run by qemu-user: what is written for each processor by itself, and what
//! hangs on its system calls.

use std::io;
use std::path::Path;

use crate::dist::{self, Machine};

/// Their own tests ...
const CRATES: [&str; 10] = [
    "ferroce-access",
    "ferroce-linux",
    "ferroce-os",
    "ferroce-mem",
    "ferroce-queues",
    "ferroce-hostlink",
    "ferroce-udp",
    "ferroce-qp-context",
    "ferroce-proto",
    "ferroce-wire",
];
/// ... and these beside them.
const BESIDE: [&str; 4] = ["gate", "lock", "reading", "wire"];

/// What qemu-user can't carry out: parts of the names of tests.
const SKIPPED: [(&str, &[&str]); 3] = [
    ("it has no process_vm_readv", &["peer_memory::", "peer_view::", "regions_that_were_used_once"]),
    ("programs of this machine can't start the test again", &["the_environment_turns_the_taps_on"]),
    (
        "it doesn't report a pending signal of a fault",
        &[
            "a_signal_that_comes_to_a_thread_of_the_adapters",
            "a_thread_of_the_adapters_is_open",
            "a_thread_that_blocks_the_signals_has_a_guard",
        ],
    ),
];

/// Builds them in `target`, and runs them.
///
/// # Errors
/// The build or a test fails.
pub fn test(machine: &Machine, target: &Path) -> io::Result<()> {
    println!("== tests of the crates for {}", machine.arch());
    let mut arguments = vec!["--lib"];
    arguments.extend(CRATES.iter().flat_map(|name| ["--package", name]));
    arguments.extend(BESIDE.iter().flat_map(|name| ["--test", name]));
    arguments.push("--");
    for (why, names) in SKIPPED {
        println!("not by qemu-user, as {why}: {}", names.join(", "));
        arguments.extend(names.iter().flat_map(|name| ["--skip", name]));
    }
    dist::test(machine, target, &arguments)
}
