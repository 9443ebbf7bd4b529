//! What programs see that only look: ibv_devices, ibv_devinfo, pyverbs; and what `ferroce run` leaves alone.

use ferroce_tests::{World, require, tool};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn ibv_devices_lists_one_device_quietly() {
    require!(tool("ibv_devices", "ibverbs-utils"));
    let world = require!(World::one_host(1500));
    let outcome = world.first().start_ferroce(&[], &["ibv_devices"], &[]).wait(LIMIT);
    outcome.expect_success().expect_quiet();
    assert!(outcome.stdout.contains("ferroce0") && !outcome.stdout.contains("ferroce1"), "{outcome}");
    world.first().expect_no_traces();
}

#[test]
fn ibv_devinfo_shows_the_port_as_the_interface_is() {
    require!(tool("ibv_devinfo", "ibverbs-utils"));
    for (mtu, active_mtu) in [(1500, "1024 (3)"), (9000, "4096 (5)")] {
        let world = require!(World::one_host(mtu));
        let outcome = world.first().start_ferroce(&[], &["ibv_devinfo", "-v"], &[]).wait(LIMIT);
        outcome.expect_success().expect_quiet();
        let values = |name: &str| -> Vec<String> {
            let lines = outcome.stdout.lines().filter_map(|line| line.trim().strip_prefix(name));
            lines.map(|value| value.trim_start_matches(':').trim().to_owned()).collect()
        };
        assert_eq!(values("state"), ["PORT_ACTIVE (4)"], "{outcome}");
        assert_eq!(values("active_mtu"), [active_mtu], "{outcome}");
        assert_eq!(values("link_layer"), ["Ethernet"], "{outcome}");
        assert_eq!(values("transport"), ["InfiniBand (0)"], "{outcome}");
        let gids: Vec<&str> = outcome.stdout.lines().filter(|line| line.contains("GID[")).collect();
        assert!(gids.len() >= 2, "{outcome}");
        assert!(gids[0].contains("fe80:") && gids[0].contains("RoCE v2"), "{outcome}");
        assert!(gids[1].contains("::ffff:10.77.0.1") && gids[1].contains("RoCE v2"), "{outcome}");
        world.first().expect_no_traces();
    }
}

#[test]
fn names_given_in_ferroce_devices_are_used() {
    require!(tool("ibv_devices", "ibverbs-utils"));
    let world = require!(World::one_host(1500));
    let settings = [("FERROCE_DEVICES", "mlx5_0=eth0")];
    let outcome = world.first().start_ferroce(&[], &["ibv_devinfo", "-d", "mlx5_0"], &settings).wait(LIMIT);
    outcome.expect_success().expect_quiet();
    assert!(outcome.stdout.contains("mlx5_0"), "{outcome}");
}

#[test]
fn pyverbs_opens_the_device() {
    require!(tool("python3", "python3-minimal"));
    let world = require!(World::one_host(1500));
    if !world.first().start(&["python3", "-c", "import pyverbs.device"], &[]).wait(LIMIT).success() {
        return require!(Err(ferroce_tests::Skip(
            "pyverbs is not installed (Debian: python3-pyverbs)".into()
        )));
    }
    let script = "import pyverbs.device as d, pyverbs.pd as p, pyverbs.mr as m\n\
                  c = d.Context(name=d.get_device_list()[0].name.decode())\n\
                  mr = m.MR(p.PD(c), 4096, 1); mr.write('hello', 5); assert mr.read(5, 0) == b'hello'\n\
                  print(c.query_device().max_qp, c.query_port(1).state, c.query_gid(1, 1))";
    let outcome = world.first().start_ferroce(&[], &["python3", "-c", script], &[]).wait(LIMIT);
    outcome.expect_success();
    assert!(outcome.stdout.contains("10.77.0.1") || outcome.stdout.contains("0a4d:0001"), "{outcome}");
}

#[test]
fn run_passes_on_the_exit_code_and_the_arguments() {
    let world = require!(World::one_host(1500));
    let words = ["sh", "-c", "echo \"$@\"; exit 7", "sh", "a b", "--help"];
    let outcome = world.first().start_ferroce(&[], &words, &[]).wait(LIMIT);
    assert_eq!((outcome.status.code(), outcome.stdout.as_str()), (Some(7), "a b --help\n"), "{outcome}");
    outcome.expect_quiet();
}

#[test]
fn devices_and_doctor_describe_the_host() {
    let world = require!(World::one_host(1500));
    let ferroce = ferroce_tests::Artifacts::get().ferroce();
    let devices = world.first().start(&[ferroce.as_os_str(), "devices".as_ref()], &[]).wait(LIMIT);
    devices.expect_success().expect_quiet();
    for word in ["ferroce0", "eth0", "10.77.0.1", "fe80::1", "1024"] {
        assert!(devices.stdout.contains(word), "no {word}:\n{devices}");
    }
    let doctor = world.first().start(&[ferroce.as_os_str(), "doctor".as_ref()], &[]).wait(LIMIT);
    doctor.expect_success();
    world.first().expect_no_traces();
}

/// Another program's socket on port 4791: the open fails, and one line contains the reason.
#[test]
fn taken_port_is_said_by_errno_and_by_doctor() {
    require!(tool("ibv_devinfo", "ibverbs-utils"));
    let world = require!(World::one_host(1500));
    let script = "import socket,time; s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); \
                  s.bind(('0.0.0.0',4791)); print('bound',flush=True); time.sleep(60)";
    let mut other = world.first().start(&["python3", "-c", script], &[]);
    other.wait_for_output("bound", LIMIT);
    let outcome = world.first().start_ferroce(&[], &["ibv_devinfo"], &[]).wait(LIMIT);
    assert!(!outcome.success() && outcome.stderr.contains("4791"), "{outcome}");
    let ferroce = ferroce_tests::Artifacts::get().ferroce();
    let doctor = world.first().start(&[ferroce.as_os_str(), "doctor".as_ref()], &[]).wait(LIMIT);
    assert!(!doctor.success() && doctor.stdout.contains("4791"), "{doctor}");
}
