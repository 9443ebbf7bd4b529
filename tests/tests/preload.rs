//! What programs find that look into /sys/class/infiniband and /dev/infiniband instead of asking the library.

use ferroce_tests::{Artifacts, Headers, Host, Outcome, Skip, World, compile_ping_pong, require, tool};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

fn run(host: &Host, options: &[&str], words: &[&str]) -> Outcome {
    host.start_ferroce(options, words, &[]).wait(LIMIT)
}

#[test]
fn every_way_of_the_c_library_leads_to_our_entries() {
    let files = &*require!(Artifacts::get().c_program("preload/files"));
    let directories = &*require!(Artifacts::get().c_program("preload/directories"));
    let world = require!(World::one_host(1500));
    run(world.first(), &[], &[files, "ways", "ferroce0"]).expect_success().expect_quiet();
    run(world.first(), &[], &[directories, "ways", "ferroce0"]).expect_success().expect_quiet();
    run(world.first(), &["--no-preload"], &[files, "absent"]).expect_success().expect_quiet();
    world.first().expect_no_traces();
}

#[test]
fn names_given_in_ferroce_devices_are_those_of_the_entries() {
    let world = require!(World::one_host(1500));
    for program in ["preload/files", "preload/directories"] {
        let program = require!(Artifacts::get().c_program(program));
        let words = [&*program, "ways", "mlx5_0"];
        let settings = [("FERROCE_DEVICES", "mlx5_0=eth0")];
        let outcome = world.first().start_ferroce(&[], &words, &settings).wait(LIMIT);
        outcome.expect_success().expect_quiet();
    }
}

#[test]
fn ucx_finds_its_verbs_transports() {
    require!(tool("ucx_info", "ucx-utils"));
    let world = require!(World::one_host(1500));
    let outcome = run(world.first(), &[], &["ucx_info", "-d"]);
    outcome.expect_success();
    let lines: Vec<&str> = outcome.stdout.lines().map(|line| line.trim_start_matches('#').trim()).collect();
    for transport in ["rc_verbs", "ud_verbs"] {
        let at = lines.iter().position(|line| *line == format!("Transport: {transport}"));
        let at = at.unwrap_or_else(|| panic!("no {transport}: {outcome}"));
        assert_eq!(lines[at + 1], "Device: ferroce0:1", "{outcome}");
    }
    assert!(!outcome.stdout.contains("ERROR") && !outcome.stderr.contains("ERROR"), "{outcome}");
    let outcome = run(world.first(), &["--no-preload"], &["ucx_info", "-d"]);
    assert!(!outcome.stdout.contains("verbs"), "the test would pass without the entries: {outcome}");
}

#[test]
fn python_lists_reads_and_resolves_our_entries() {
    require!(tool("python3", "python3-minimal"));
    let world = require!(World::one_host(1500));
    let script = r#"
import glob, os, stat, subprocess
root = "/sys/class/infiniband"
assert os.listdir(root) == ["ferroce0"], os.listdir(root)
assert [(e.name, e.is_symlink(), e.is_dir()) for e in os.scandir(root)] == [("ferroce0", True, True)]
assert os.listdir(root + "/ferroce0/device/net") == ["eth0"]
assert os.path.realpath(root + "/ferroce0/device") == "/sys/devices/virtual/ferroce/ferroce0"
assert os.path.exists(root + "/ferroce0/ports/1/net/eth0") and not os.path.exists(root + "/mlx5_0")
assert stat.S_ISCHR(os.stat("/dev/infiniband/uverbs0").st_mode)
assert len(glob.glob(root + "/*/ports/*/gids/*")) == 64
assert "ferroce0" in [d for _, ds, _ in os.walk("/sys/class/infiniband") for d in ds]
with open(root + "/ferroce0/ports/1/gids/1") as f:
    assert f.read() == "0000:0000:0000:0000:0000:ffff:0a4d:0001\n"
here = os.open(root + "/ferroce0", os.O_RDONLY)
assert "node_guid" in os.listdir(here) and os.stat("ports", dir_fd=here).st_nlink == 2
assert subprocess.check_output(["cat", root + "/ferroce0/node_type"]) == b"1: CA\n"
assert subprocess.check_output("cd /; ls " + root, shell=True) == b"ferroce0\n"
"#;
    run(world.first(), &[], &["python3", "-c", script]).expect_success().expect_quiet();
    let none = r#"import os; assert not os.path.exists("/dev/infiniband/ferroce0")"#;
    run(world.first(), &["--no-preload"], &["python3", "-c", none]).expect_success().expect_quiet();
}

/// What ibstatus does.
#[test]
fn shell_script_changes_into_our_directories() {
    let world = require!(World::one_host(1500));
    let script =
        "cd /sys/class/infiniband && for device in *; do (cd $device/ports && pwd && cat */state); done";
    let outcome = run(world.first(), &[], &["sh", "-c", script]);
    outcome.expect_success().expect_quiet();
    assert_eq!(outcome.stdout, "/sys/class/infiniband/ferroce0/ports\n4: ACTIVE\n");
    world.first().expect_no_traces();
}

#[test]
fn addresses_that_come_and_go_are_seen_by_the_next_look() {
    require!(tool("python3", "python3-minimal"));
    let world = require!(World::one_host(1500));
    let script = r#"
import sys, time
path = "/sys/class/infiniband/ferroce0/ports/1/gid_attrs/types/3"
def looks():
    try:
        return open(path).read().strip()
    except OSError as error:
        return error.strerror
before = looks()
print(before, flush=True)
end = time.monotonic() + 10
while looks() == before and time.monotonic() < end:
    time.sleep(0.01)
print("then " + looks())
"#;
    let host = world.first();
    let mut program = host.start_ferroce(&[], &["python3", "-c", script], &[]);
    program.wait_for_output("Invalid argument", LIMIT);
    host.admin("ip addr add 10.77.9.9/32 dev eth0");
    let outcome = program.wait(LIMIT);
    outcome.expect_success().expect_quiet();
    assert_eq!(outcome.stdout, "Invalid argument\nthen RoCE v2\n", "{outcome}");
}

#[test]
fn rdma_link_show_names_our_devices_without_iproute2() {
    require!(tool("python3", "python3-minimal"));
    let world = require!(World::one_host(1500));
    let script = r#"
import json, os, subprocess
os.environ["PATH"] = os.environ["PATH"].split(":")[0]
links = json.loads(subprocess.check_output(["rdma", "link", "show", "-j"]))
assert [(l["ifname"], l["port"], l["state"], l["netdev"]) for l in links] == [("ferroce0", 1, "ACTIVE", "eth0")], links
devices = json.loads(subprocess.check_output(["rdma", "-j", "dev"]))
assert [(d["ifindex"], d["ifname"], d["node_type"]) for d in devices] == [(0, "ferroce0", "ca")], devices
text = subprocess.check_output(["rdma", "link", "show", "ferroce0/1"], text=True)
assert text.split() == "link ferroce0/1 state ACTIVE physical_state LINK_UP netdev eth0".split(), text
assert subprocess.run(["rdma", "link", "show", "mlx5_0"], stderr=subprocess.DEVNULL).returncode == 1
"#;
    run(world.first(), &[], &["python3", "-c", script]).expect_success().expect_quiet();
}

#[test]
fn what_we_do_not_answer_goes_to_the_rdma_of_iproute2() {
    require!(tool("rdma", "iproute2"));
    let world = require!(World::one_host(1500));
    let outcome = run(world.first(), &[], &["rdma", "-V"]);
    outcome.expect_success();
    assert!(outcome.stdout.contains("iproute2"), "{outcome}");
}

#[test]
fn files_of_ferroce_sysfs_are_those_that_programs_see() {
    let world = require!(World::one_host(1500));
    let ferroce = Artifacts::get().ferroce();
    let host = world.first();
    let words = [ferroce.as_os_str(), "sysfs".as_ref(), "/tmp/entries".as_ref()];
    let written = host.start(&words, &[]).wait(LIMIT);
    written.expect_success().expect_quiet();
    assert!(written.stdout.contains("ferroce0") && written.stdout.contains("/dev/null"), "{written}");
    let script = r#"
cd /tmp/entries/sys/class/infiniband
for file in $(find ferroce0 -type f); do
    cmp "$file" "/sys/class/infiniband/$file" || exit 1
    count=$((count + 1))
done
test -c /tmp/entries/dev/infiniband/uverbs0 -a -w /tmp/entries/dev/infiniband/ferroce0 || exit 2
test "$(cat ../infiniband_verbs/uverbs0/ibdev ../infiniband_verbs/uverbs0/device/numa_node)" = "ferroce0
-1" || exit 3
test -z "$(find /tmp/entries -xtype l)" || exit 4
test $count -gt 100
"#;
    run(host, &[], &["sh", "-c", script]).expect_success().expect_quiet();
    let again = host.start(&words, &[]).wait(LIMIT);
    assert!(!again.success() && again.stderr.contains("is not empty"), "{again}");
}

/// A directory with the distribution's library as a Python wheel carries it: under a name of its own, inside and outside.
fn wheel() -> Result<PathBuf, Skip> {
    const NAMES: [&str; 2] = ["libibverbs.so.1", "libibverbs-w.so"];
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
    let place = places.iter().map(|place| Path::new(place).join(NAMES[0])).find(|library| library.exists());
    let place = place.ok_or_else(|| Skip("there is no libibverbs.so.1 (Debian: libibverbs1)".into()))?;
    let mut library = std::fs::read(place).expect("a readable library");
    for at in 0..library.len() - NAMES[0].len() {
        if library[at..].starts_with(NAMES[0].as_bytes()) {
            library[at..at + NAMES[1].len()].copy_from_slice(NAMES[1].as_bytes());
        }
    }
    let directory = Artifacts::get().program_path("wheel.libs").expect("the stage is writable");
    std::fs::create_dir_all(&directory).expect("the stage is writable");
    for name in NAMES {
        std::fs::write(directory.join(name), &library).expect("the stage is writable");
    }
    Ok(directory)
}

#[test]
fn program_with_a_libibverbs_of_its_own_under_another_name_uses_ours() {
    let directory = require!(wheel());
    let world = require!(World::one_host(1500));
    let program = Artifacts::get().program_path("wheel").expect("the stage is writable");
    compile_ping_pong(Headers::Minimal, &directory, &program).expect("it compiles");
    let words = [program.to_str().expect("a UTF-8 path"), "-c", "-n", "500"];
    let settings = [("LD_LIBRARY_PATH", directory.to_str().expect("a UTF-8 path"))];
    let host = world.first();
    let outcome = host.start_ferroce(&["--no-preload"], &words, &settings).wait(LIMIT);
    assert!(!outcome.status.success(), "the test would pass with the library that it carries: {outcome}");
    let mut server = host.start_ferroce(&[], &words, &settings);
    host.wait_for_listener(18515, &mut server, LIMIT);
    let client = host.start_ferroce(&[], &[&words[..], &["10.77.0.1"]].concat(), &settings).wait(LIMIT);
    for outcome in [client, server.wait(LIMIT)] {
        outcome.expect_success().expect_quiet();
        assert!(outcome.stdout.contains("500 iters in "), "{outcome}");
    }
    host.expect_no_traces();
}
