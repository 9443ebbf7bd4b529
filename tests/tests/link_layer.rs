//! Ports of InfiniBand (`--link-layer infiniband`): programs that address by LIDs run unmodified. What other suites run on
//! ports of Ethernet is repeated on these ports there: connections, UCX, pyverbs.

use ferroce_tests::{Artifacts, Fabric, Host, Outcome, Pair, SERVER, Sides, Skip, World, require, tool};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const INFINIBAND: &[&str] = &["--link-layer", "infiniband"];

/// Where both sides run, and how.
#[derive(Clone, Copy, Debug)]
enum Place {
    OneHost(Fabric),
    TwoHosts,
}

const PLACES: [Place; 3] = [Place::OneHost(Fabric::Any), Place::OneHost(Fabric::Udp), Place::TwoHosts];

impl Place {
    fn world(self) -> Result<(World, Fabric), Skip> {
        match self {
            Self::OneHost(fabric) => Ok((World::one_host(1500)?, fabric)),
            Self::TwoHosts => Ok((World::two_hosts(1500)?, Fabric::Any)),
        }
    }
}

/// Runs both sides of each line, which name no GID, in one world after another.
fn run_everywhere(package: &str, lines: &[&str]) {
    for place in PLACES {
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            require!(tool(words[0], package));
            let (world, fabric) = require!(place.world());
            let outcome = Pair::new(&world, fabric).options(INFINIBAND).limit(LIMIT).run(&words);
            assert!(outcome.client.success() && outcome.server.success(), "{place:?} {line}: {outcome}");
            let text = [&outcome.client, &outcome.server].map(|side| side.stdout.clone() + &side.stderr);
            assert!(!text.concat().contains("ferroce:"), "{place:?} {line}: {outcome}");
            world.first().expect_no_traces();
        }
    }
}

#[test]
fn ping_pongs_run_without_a_gid_index() {
    run_everywhere(
        "ibverbs-utils",
        &[
            "ibv_rc_pingpong -c -n 500",
            "ibv_uc_pingpong -c -n 500",
            "ibv_ud_pingpong -c -s 1024 -n 500",
            "ibv_srq_pingpong -c -n 500",
            "ibv_xsrq_pingpong -n 500",
        ],
    );
}

#[test]
fn perftest_connects_by_lids() {
    run_everywhere(
        "perftest",
        &[
            "ib_send_lat -F -C -n 200",
            "ib_write_bw -F -n 200",
            "ib_read_bw -F -n 200",
            "ib_atomic_bw -F -n 200",
            "ib_send_lat -F -C -c UD -n 200",
            "ib_write_bw -F -c XRC -n 200",
        ],
    );
}

/// Each case in a process of its own.
fn case(fabric: Fabric, name: &str) {
    let program = require!(Artifacts::get().c_program("calls/lids"));
    let world = require!(World::one_host(1500));
    let outcome = world.first().start_ferroce(INFINIBAND, &[&*program, name], fabric.settings()).wait(LIMIT);
    outcome.expect_success();
    assert!(outcome.stdout.contains("ok"), "{outcome}");
}

macro_rules! cases {
    ($($name:ident)*) => {
        #[test]
        fn every_case_is_run() {
            let program = require!(Artifacts::get().c_program("calls/lids"));
            let listed = std::process::Command::new(program).output().expect("the program runs");
            let listed = String::from_utf8(listed.stdout).expect("case names are ASCII");
            assert_eq!(listed.lines().collect::<Vec<_>>(), [$(stringify!($name)),*]);
        }

        $(
            #[test]
            fn $name() {
                for fabric in [Fabric::Any, Fabric::Udp] {
                    case(fabric, stringify!($name));
                }
            }
        )*
    };
}

cases! {
    the_port_is_one_of_infiniband
    datagram_by_lid_names_the_senders_lid_and_has_no_grh
    datagram_by_gid_has_a_grh_of_infiniband
    groups_of_all_kinds_are_reached_by_their_mgid
    connection_by_lid_carries_all_operations
    lids_that_no_host_can_have_are_refused
    requests_to_a_lid_without_a_host_end_with_retry_exc
}

fn output(host: &Host, words: &[&str]) -> Outcome {
    let outcome = host.start_ferroce(INFINIBAND, words, &[]).wait(LIMIT);
    outcome.expect_success();
    outcome
}

#[test]
fn tools_and_sysfs_show_a_port_of_infiniband() {
    require!(tool("ibv_devinfo", "ibverbs-utils"));
    let world = require!(World::two_hosts(1500));
    let host = world.last();
    let shown = output(host, &["ibv_devinfo", "-v"]);
    shown.expect_quiet();
    let lines: Vec<&str> = shown.stdout.lines().map(str::trim).collect();
    let value = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name)).map(str::trim);
    assert_eq!(value("link_layer:"), Some("InfiniBand"), "{shown}");
    assert_eq!(
        (value("port_lid:"), value("sm_lid:"), value("port_lmc:")),
        (Some("2"), Some("1"), Some("0x00"))
    );
    let gid = "fe80:0000:0000:0000:02f0:ce04:0a4d:0002";
    assert!(value("GID[  0]:").is_some_and(|text| text.starts_with(gid)), "{shown}");
    let port = "/sys/class/infiniband/ferroce0/ports/1";
    for (file, says) in [
        ("link_layer", "InfiniBand"),
        ("lid", "0x2"),
        ("sm_lid", "0x1"),
        ("lid_mask_count", "0"),
        ("cap_mask", "0x00010000"),
        ("gids/0", gid),
        ("gid_attrs/types/0", "IB/RoCE v1"),
    ] {
        let path = format!("{port}/{file}");
        assert_eq!(output(host, &["cat", &path]).stdout.trim(), says, "{file}");
    }
    let link = output(host, &["rdma", "link", "show"]).stdout;
    assert!(
        link.contains("ferroce0/1 subnet_prefix fe80:0000:0000:0000 lid 2 sm_lid 1 lmc 0 state ACTIVE"),
        "{link}"
    );
    let devices = output(host, &[&*Artifacts::get().ferroce().to_string_lossy(), "devices"]).stdout;
    assert!(devices.contains("LID 2") && devices.contains(gid), "{devices}");
}

/// Packets are the same: each side addresses as its own ports do.
#[test]
fn a_process_with_lids_and_one_without_exchange_messages() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    for place in PLACES {
        let (world, fabric) = require!(place.world());
        for program in ["ibv_rc_pingpong", "ibv_ud_pingpong"] {
            let words = |link_layer, gid| ["env", link_layer, program, "-s", "512", "-n", "200", "-g", gid];
            let sides = Sides {
                server: &words("FERROCE_LINK_LAYER=infiniband", "0"),
                client: &[&words("FERROCE_LINK_LAYER=ethernet", "1")[..], &[SERVER]].concat(),
                port: 18515,
                options: &[],
                settings: &[],
                limit: LIMIT,
            };
            let outcome = sides.run(&world, fabric);
            outcome.expect_success().expect_quiet();
        }
    }
}

#[test]
fn a_port_without_a_lid_says_why() {
    require!(tool("ibv_devinfo", "ibverbs-utils"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    host.admin("ip addr del 10.77.0.1/24 dev eth0; ip addr del fd77::1/64 dev eth0; ip addr add 10.77.0.1/32 dev eth0");
    let outcome = output(host, &["ibv_devinfo", "-v"]);
    assert!(outcome.stdout.contains("port_lid:\t\t0\n"), "{outcome}");
    let why =
        "eth0 has no LID: LIDs number the hosts of a subnet, and 10.77.0.1/32 is a subnet of one address";
    assert!(outcome.stderr.contains(why), "{outcome}");
}

#[test]
fn a_wrong_link_layer_is_refused() {
    let world = require!(World::one_host(1500));
    let start = |options: &[&str], settings: &[(&str, &str)]| {
        world.first().start_ferroce(options, &["true"], settings).wait(LIMIT)
    };
    let outcome = start(&[], &[("FERROCE_LINK_LAYER", "ib")]);
    assert!(
        outcome.stderr.contains("FERROCE_LINK_LAYER=ib: a link layer is ethernet or infiniband"),
        "{outcome}"
    );
    assert!(!outcome.success(), "{outcome}");
    let outcome = start(&["--link-layer", "ib"], &[]);
    assert!(outcome.stderr.contains("possible values: ethernet, infiniband"), "{outcome}");
    start(INFINIBAND, &[("FERROCE_LINK_LAYER", "ib")]).expect_success();
}

#[test]
fn on_ethernet_a_program_that_knows_lids_only_is_refused_with_the_fix() {
    let world = require!(World::one_host(1500));
    let program = require!(Artifacts::get().c_program("calls/lids"));
    let words = [&*program, "connection_by_lid_carries_all_operations"];
    let outcome = world.first().start_ferroce(&[], &words, &[]).wait(LIMIT);
    assert!(outcome.stderr.contains("ferroce run --link-layer infiniband"), "{outcome}");
}
