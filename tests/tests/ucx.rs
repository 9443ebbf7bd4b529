//! UCX, and Open MPI over UCX: Debian's, unmodified, between two processes of one host and between two hosts.

use ferroce_tests::{
    Artifacts, Fabric, PairOutcome, SERVER, Sides, Skip, World, mpi_program, mpi_run, require, tool,
};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(40);
const PORT: u16 = 13337;
/// UCX connects RC endpoints with the help of another transport.
const RC: &str = "rc_verbs,ud_verbs:aux,self";
const UD: &str = "ud_verbs,self";
/// UCX unmaps the receive buffers of UD before it deregisters them and destroys the queue pair. An adapter's pages are pinned; here a
/// datagram that comes in between fails, and its line is true.
const UNMAPPED_BEFORE_DEREGISTERED: &str = "FC038";

#[derive(Clone, Copy)]
enum Place {
    OneHost(Fabric),
    TwoHosts,
}

impl Place {
    fn world(self) -> Result<(World, Fabric), Skip> {
        match self {
            Self::OneHost(fabric) => Ok((World::one_host(9000)?, fabric)),
            Self::TwoHosts => Ok((World::two_hosts(1500)?, Fabric::Any)),
        }
    }
}

/// Protocols of UCP, small and large, with and without fragments and rendezvous; one connection for each.
const PROTOCOLS: &str = "\
tag_8 -t tag_lat -s 8 -n 100 -w 10
tag_3k -t tag_lat -s 3000 -n 100 -w 10
tag_1m -t tag_bw -s 1048576 -n 20 -w 2
tag_iov -t tag_lat -D iov,iov -s 1000,2000,70000 -n 20 -w 2
sync_64 -t tag_sync_lat -s 64 -n 100 -w 10
probe_8 -t tag_lat -U -s 8 -n 100 -w 10
put_8 -t ucp_put_lat -s 8 -n 100 -w 10
put_64k -t ucp_put_bw -s 65536 -n 50 -w 5
get_8 -t ucp_get -s 8 -n 100 -w 10
get_1m -t ucp_get -s 1048576 -n 20 -w 2
add_4 -t ucp_add -s 4 -n 100 -w 10
add_8 -t ucp_add -s 8 -n 100 -w 10
fadd_8 -t ucp_fadd -s 8 -n 100 -w 10
swap_8 -t ucp_swap -s 8 -n 100 -w 10
cswap_8 -t ucp_cswap -s 8 -n 100 -w 10
stream_8k -t stream_bw -s 8192 -n 100 -w 10
am_8 -t ucp_am_lat -s 8 -n 100 -w 10
am_64k -t ucp_am_bw -s 65536 -n 50 -w 5
";

/// The verbs themselves, by which UCP's atomics don't always go.
const VERBS: &str = "\
am_zcopy -t am_lat -D zcopy -s 1024 -n 100 -w 10
put_sh -t put_lat -D short -s 8 -n 100 -w 10
put_bc -t put_bw -D bcopy -s 8000 -n 100 -w 10
put_zc -t put_bw -D zcopy -s 65536 -n 100 -w 10
get_bc -t get -D bcopy -s 8000 -n 100 -w 10
get_zc -t get -D zcopy -s 65536 -n 100 -w 10
add -t add_mr -s 8 -n 100 -w 10
fadd -t fadd -s 8 -n 100 -w 10
cswap -t cswap -s 8 -n 100 -w 10
";

/// Runs both sides of `ucx_perftest`, which want the same options.
fn perftest(world: &World, fabric: Fabric, transports: &str, options: &[&str], run: &[&str]) -> PairOutcome {
    let server = [&["ucx_perftest"], options].concat();
    let client = [&["ucx_perftest", SERVER, "-f"], options].concat();
    let settings = [("UCX_TLS", transports)];
    let sides = Sides {
        server: &server,
        client: &client,
        port: PORT,
        options: run,
        settings: &settings,
        limit: LIMIT,
    };
    let outcome = sides.run(world, fabric);
    outcome.expect_success().expect_only_reason(UNMAPPED_BEFORE_DEREGISTERED);
    expect_no_warning(&outcome.client.stdout);
    expect_no_warning(&outcome.server.stdout);
    world.first().expect_no_traces();
    world.last().expect_no_traces();
    outcome
}

/// UCX writes its messages to standard output.
#[track_caller]
fn expect_no_warning(text: &str) {
    assert!(!["WARN", "ERROR", "FATAL"].iter().any(|level| text.contains(level)), "{text}");
}

/// Runs the lines of a batch, each of which has to give a row with its name.
fn batch(place: Place, transports: &str, name: &str, lines: &str, options: &[&str]) {
    batch_with(place, transports, name, lines, options, &[]);
}

/// The same with options of `ferroce run`.
fn batch_with(place: Place, transports: &str, name: &str, lines: &str, options: &[&str], run: &[&str]) {
    require!(tool("ucx_perftest", "ucx-utils"));
    let (world, fabric) = require!(place.world());
    let file = Artifacts::get().program_path(&format!("{name}.batch")).expect("the stage is writable");
    std::fs::write(&file, lines).expect("the stage is writable");
    let file = file.to_str().expect("a UTF-8 path");
    let outcome = perftest(&world, fabric, transports, &[options, &["-b", file]].concat(), run);
    let rows = || outcome.client.stdout.lines().filter_map(|line| line.split_whitespace().next());
    for test in lines.lines().filter_map(|line| line.split_whitespace().next()) {
        assert!(rows().any(|row| row == test), "no row for {test}:\n{outcome}");
    }
}

#[test]
fn ucx_info_lists_rc_with_atomics_and_ud_on_our_device() {
    require!(tool("ucx_info", "ucx-utils"));
    let world = require!(World::one_host(1500));
    let outcome = world.first().start_ferroce(&[], &["ucx_info", "-d"], &[]).wait(LIMIT);
    outcome.expect_success().expect_quiet();
    expect_no_warning(&outcome.stdout);
    let transport = |name: &str| {
        let mut parts = outcome.stdout.split("Transport: ").filter(|part| part.starts_with(name));
        parts.find(|part| part.contains("ferroce0:1")).unwrap_or_else(|| panic!("no {name}:\n{outcome}"))
    };
    let rc = transport("rc_verbs");
    for atomic in ["atomic_add: 64 bit", "atomic_fadd: 64 bit", "atomic_cswap: 64 bit"] {
        assert!(rc.contains(atomic), "no {atomic}:\n{rc}");
    }
    transport("ud_verbs");
}

/// Ports of InfiniBand: UCX exchanges LIDs, and makes address handles of them.
#[test]
fn protocols_between_ports_of_infiniband() {
    const LINES: &str = "\
tag_8 -t tag_lat -s 8 -n 100 -w 10
tag_1m -t tag_bw -s 1048576 -n 20 -w 2
put_64k -t ucp_put_bw -s 65536 -n 50 -w 5
fadd_8 -t ucp_fadd -s 8 -n 100 -w 10
";
    for place in [Place::OneHost(Fabric::Any), Place::OneHost(Fabric::Udp), Place::TwoHosts] {
        for (name, transports) in [("infiniband-rc", RC), ("infiniband-ud", UD)] {
            batch_with(place, transports, name, LINES, &[], &["--link-layer", "infiniband"]);
        }
    }
}

macro_rules! places {
    ($($place:ident: $value:expr;)*) => {$(
        mod $place {
            use super::*;

            #[test]
            fn protocols_over_rc() {
                batch($value, RC, concat!(stringify!($place), "-rc"), PROTOCOLS, &[]);
            }

            #[test]
            fn protocols_over_ud() {
                batch($value, UD, concat!(stringify!($place), "-ud"), PROTOCOLS, &[]);
            }

            #[test]
            fn verbs_of_rc() {
                let options = ["-d", "ferroce0:1", "-x", "rc_verbs"];
                batch($value, RC, concat!(stringify!($place), "-verbs"), VERBS, &options);
            }

            #[test]
            fn two_threads_with_endpoints_that_report_failures() {
                require!(tool("ucx_perftest", "ucx-utils"));
                let (world, fabric) = require!($value.world());
                for transports in [RC, UD] {
                    let options = ["-t", "tag_lat", "-n", "100", "-w", "10", "-T", "2", "-M", "multi", "-e"];
                    perftest(&world, fabric, transports, &options, &[]);
                }
            }

            #[test]
            fn sleeping_between_messages() {
                require!(tool("ucx_perftest", "ucx-utils"));
                let (world, fabric) = require!($value.world());
                for transports in [RC, UD] {
                    let options = ["-t", "tag_lat", "-n", "300", "-w", "10", "-E", "sleep"];
                    perftest(&world, fabric, transports, &options, &[]);
                }
            }

            #[test]
            fn open_mpi_over_rc() {
                open_mpi($value, RC);
            }

            #[test]
            fn open_mpi_over_ud() {
                open_mpi($value, UD);
            }
        }
    )*};
}

places! {
    one_host_shm: Place::OneHost(Fabric::Any);
    one_host_udp: Place::OneHost(Fabric::Udp);
    two_hosts: Place::TwoHosts;
}

/// UCX registers 13 MiB and more: the checker reports that where the machine's RLIMIT_MEMLOCK is less (FC107).
#[test]
fn the_checker_finds_nothing_in_ucx() {
    for (transports, name) in [(RC, "checked_rc"), (UD, "checked_ud")] {
        let place = Place::OneHost(Fabric::Any);
        batch_with(place, transports, name, PROTOCOLS, &[], &["--check=fatal,-FC107"]);
    }
}

#[test]
fn ucx_runs_on_a_strict_adapter() {
    for (transports, name) in [(RC, "strict_rc"), (UD, "strict_ud")] {
        batch_with(Place::OneHost(Fabric::Any), transports, name, PROTOCOLS, &[], &["--strict"]);
    }
}

/// A program that checks every byte, two- and one-sided.
fn open_mpi(place: Place, transports: &str) {
    let program = require!(mpi_program("exchange"));
    let (world, fabric) = require!(place.world());
    let program = program.to_str().expect("a UTF-8 path");
    let options = ["--mca", "pml", "ucx", "--mca", "osc", "ucx"];
    let outcome = mpi_run(&world, fabric, &options, &[program, "-1"], &[("UCX_TLS", transports)], LIMIT);
    outcome.expect_success().expect_only_reason(UNMAPPED_BEFORE_DEREGISTERED);
    expect_no_warning(&outcome.stdout);
    assert!(outcome.stdout.contains("exchange ok"), "{outcome}");
}
