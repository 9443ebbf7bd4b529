//! Programs that may not copy from process to process: where a seccomp profile refuses it, as container runtimes have it,
//! and between containers that share a network but not their processes.

use ferroce_tests::{Artifacts, Fabric, Pair, PairOutcome, Skip, World, require, tool};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Which side is confined, and how.
#[derive(Clone, Copy)]
enum Confinement {
    /// Both sides may not call process_vm_readv and process_vm_writev.
    NoCopies,
    /// The same, and the kernel is to copy all the same.
    NoCopiesByKernel,
    /// Both sides run under a profile like those of container runtimes.
    Profile,
    /// The same, but only the client's.
    OneProfile,
    /// Neither side can have a process descriptor of the other: old kernels have none.
    NoProcessDescriptors,
    /// The kernel can't steer packets to their processes: both read from one socket, and packets go by UDP.
    NoSteering,
    /// Two PID namespaces: each side is process 1 of its own.
    Containers,
    /// The server in a PID namespace below the client's.
    OneContainer,
}

fn run(confinement: Confinement, words: &[&str]) -> Result<PairOutcome, Skip> {
    let world = World::one_host(9000)?;
    let host = world.first();
    let client_words = [words, &["10.77.0.1"]].concat();
    let outcome = match confinement {
        Confinement::NoCopies
        | Confinement::NoCopiesByKernel
        | Confinement::NoProcessDescriptors
        | Confinement::NoSteering
        | Confinement::Profile => {
            let deny = deny()?;
            let line = [&[&*deny, mode_of(confinement)], words].concat();
            let fabric =
                if matches!(confinement, Confinement::NoSteering) { Fabric::Udp } else { Fabric::Any };
            let mut pair = Pair::new(&world, fabric).limit(LIMIT);
            if matches!(confinement, Confinement::NoCopiesByKernel) {
                pair = pair.setting("FERROCE_COPIES", "kernel");
            }
            pair.run(&line)
        }
        Confinement::OneProfile => {
            let mut server = host.start_ferroce(&[], words, &[]);
            host.wait_for_listener(18515, &mut server, LIMIT);
            let deny = deny()?;
            let line = [&[&*deny, mode_of(confinement)], &*client_words].concat();
            let client = host.start_ferroce(&[], &line, &[]).wait(LIMIT);
            PairOutcome { client, server: server.wait(LIMIT) }
        }
        Confinement::Containers | Confinement::OneContainer => {
            let mut server = host.start_contained(words, &[])?;
            host.wait_for_listener(18515, &mut server, LIMIT);
            let mut client = match confinement {
                Confinement::OneContainer => host.start_ferroce(&[], &client_words, &[]),
                _ => host.start_contained(&client_words, &[])?,
            };
            PairOutcome { client: client.wait(LIMIT), server: server.wait(LIMIT) }
        }
    };
    host.expect_no_traces();
    Ok(outcome)
}

fn deny() -> Result<String, Skip> {
    Artifacts::get().c_program("surroundings/refused_syscalls")
}

fn mode_of(confinement: Confinement) -> &'static str {
    match confinement {
        Confinement::NoCopies | Confinement::NoCopiesByKernel => "vm",
        Confinement::NoProcessDescriptors => "pidfd",
        Confinement::NoSteering => "steering",
        _ => "container",
    }
}

/// Every operation of RC, checked byte by byte by both sides.
fn all_operations(confinement: Confinement) {
    let stream = &*require!(Artifacts::get().c_program("traffic/stream"));
    for more in [["-n", "3000", "-s", "100000"], ["-n", "20000", "-s", "64"]] {
        let outcome = require!(run(confinement, &[&[stream], &more[..]].concat()));
        outcome.expect_success().expect_quiet();
        assert!(outcome.client.stdout.contains("were right"), "{outcome}");
    }
}

fn cell(confinement: Confinement, words: &[&str], closing: &str) {
    require!(tool(words[0], "ibverbs-utils perftest"));
    let outcome = require!(run(confinement, words));
    outcome.expect_success();
    assert!(outcome.client.stdout.contains(closing), "{outcome}");
    for side in [&outcome.client, &outcome.server] {
        assert!(!side.stdout.contains("invalid data") && !side.stderr.contains("ferroce"), "{outcome}");
    }
}

macro_rules! cells {
    ($($name:ident: $($word:literal)+, closes with $closing:literal;)*) => {
        cells!(@place without_copies, Confinement::NoCopies; $($name: $($word)+, $closing;)*);
        cells!(@place without_copies_by_the_kernel, Confinement::NoCopiesByKernel; $($name: $($word)+, $closing;)*);
        cells!(@place under_a_container_profile, Confinement::Profile; $($name: $($word)+, $closing;)*);
        cells!(@place with_a_peer_under_a_container_profile, Confinement::OneProfile; );
        cells!(@place without_process_descriptors, Confinement::NoProcessDescriptors; );
        cells!(@place without_steering, Confinement::NoSteering; $($name: $($word)+, $closing;)*);
        cells!(@place between_containers, Confinement::Containers; $($name: $($word)+, $closing;)*);
        cells!(@place into_a_container, Confinement::OneContainer; );
    };
    (@place $place:ident, $value:expr; $($name:ident: $($word:literal)+, $closing:literal;)*) => {
        mod $place {
            use super::*;

            #[test]
            fn all_operations_of_rc_are_right() {
                all_operations($value);
            }

            $(
                #[test]
                fn $name() {
                    cell($value, &[$($word),+], $closing);
                }
            )*
        }
    };
}

cells! {
    rc_ping_pong: "ibv_rc_pingpong" "-c" "-g" "1" "-s" "65536" "-n" "1000", closes with "usec/iter";
    uc_ping_pong: "ibv_uc_pingpong" "-c" "-g" "1" "-n" "1000", closes with "usec/iter";
    ud_ping_pong: "ibv_ud_pingpong" "-c" "-g" "1" "-n" "1000", closes with "usec/iter";
    srq_ping_pong: "ibv_srq_pingpong" "-c" "-g" "1" "-n" "1000", closes with "usec/iter";
    write_bw: "ib_write_bw" "-F" "-n" "1000", closes with "65536";
    read_bw: "ib_read_bw" "-F" "-n" "1000", closes with "65536";
    send_bw: "ib_send_bw" "-F" "-n" "1000", closes with "65536";
    atomic_bw: "ib_atomic_bw" "-F" "-n" "1000", closes with "1000";
}

/// The Yama module's scope 1, as Debian's kernels had it: a process copies from another one only with its leave.
#[test]
fn a_process_gives_leave_to_copy_its_memory_only_when_it_shares_memory() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    require!(tool("strace", "strace"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    let kernel = "/proc/sys/kernel";
    host.admin(&format!(
        "mount -t tmpfs none {kernel}; mkdir {kernel}/yama; echo 1 > {kernel}/yama/ptrace_scope; chmod -R a+rX {kernel}"
    ));
    let start = |words: &[&str], settings: &[(&str, &str)]| {
        let traced = ["strace", "-f", "-e", "trace=prctl"];
        host.start_ferroce(&[], &[&traced, words].concat(), settings)
    };
    let gives_leave = |stderr: &str| stderr.contains("PR_SET_PTRACER");
    let alone = start(&["ibv_devinfo"], &[]).wait(LIMIT);
    assert!(!gives_leave(&alone.expect_success().stderr), "{alone}");
    let off = [("FERROCE_PTRACER", "off")];
    for (settings, expected) in [(&[][..], true), (&off[..], false), (Fabric::Udp.settings(), false)] {
        let words = ["ibv_rc_pingpong", "-g", "1", "-n", "100"];
        let mut server = start(&words, settings);
        host.wait_for_listener(18515, &mut server, LIMIT);
        let client = start(&[&words[..], &["10.77.0.1"]].concat(), settings).wait(LIMIT);
        for side in [client, server.wait(LIMIT)] {
            assert_eq!(gives_leave(&side.expect_success().stderr), expected, "{settings:?}: {side}");
        }
    }
}
