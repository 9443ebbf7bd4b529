//! `ferroce devices` and `ferroce doctor` in network namespaces: each test runs itself again in one of its own, made
//! without privileges. Where that is refused, a test prints so and does nothing.

mod common;

use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Installation, Outcome, run};

/// Names the test that is to run inside its namespace.
const INSIDE: &str = "FERROCE_TEST_INSIDE";

/// Runs `body` in a new user and network namespace.
fn in_namespace(test: &str, body: fn(&Installation)) {
    if std::env::var(INSIDE).as_deref() == Ok(test) {
        return body(&Installation::new());
    }
    let can = Command::new("unshare").args(["-Urn", "ip", "link"]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        ferroce_tests::record_skip("no network namespace can be made here (unshare -Urn ip link)");
        return;
    }
    let outcome = run(Command::new("unshare")
        .arg("-Urn")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, test));
    assert!(
        outcome.status == Some(0) && outcome.stdout.contains("1 passed"),
        "{}{}",
        outcome.stdout,
        outcome.stderr
    );
}

/// Commands, one a line.
fn sh(commands: &str) {
    let output = Command::new("sh").args(["-ec", commands]).output().unwrap();
    assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Another network namespace, as long as this lives: a process that waits in it.
struct OtherHost(Child);

impl OtherHost {
    /// With one end of a veth pair each: `v0` with 10.9.0.1/24 here, `v1` with 10.9.0.2/24 there.
    fn joined_by_veth() -> Self {
        let mut keeper = Command::new("unshare");
        let keeper = keeper.args(["-n", "sleep", "60"]).stdout(Stdio::null()).spawn().unwrap();
        let other = Self(keeper);
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let theirs = format!("/proc/{}/ns/net", other.0.id());
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::fs::read_link(&theirs).unwrap() == own {
            assert!(Instant::now() < deadline, "unshare doesn't start");
            std::thread::sleep(Duration::from_millis(2));
        }
        let pid = other.0.id();
        sh(&format!(
            "ip link add v0 type veth peer name v1
            ip link set v0 addrgenmode none
            ip link set v1 netns {pid}
            ip address add 10.9.0.1/24 dev v0
            ip link set v0 up"
        ));
        other.sh("ip address add 10.9.0.2/24 dev v1
            ip link set v1 up
            ip link set lo up");
        // The kernel reports the carrier a little later.
        while !Command::new("ip")
            .args(["-o", "link", "show", "v0"])
            .output()
            .is_ok_and(|link| String::from_utf8_lossy(&link.stdout).contains("state UP"))
        {
            assert!(Instant::now() < deadline, "v0 gets no carrier");
            std::thread::sleep(Duration::from_millis(2));
        }
        other
    }

    fn sh(&self, commands: &str) {
        sh(&format!("nsenter -t {} -n sh -ec '{commands}'", self.0.id()));
    }
}

impl Drop for OtherHost {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn doctor(ferroce: &Installation, arguments: &[&str]) -> Outcome {
    run(ferroce.ferroce(&["doctor"]).args(arguments))
}

/// The lines that begin with this mark, and whether one of them contains `text`.
fn says(outcome: &Outcome, mark: &str, text: &str) -> bool {
    outcome.stdout.lines().any(|line| line.trim_start().starts_with(mark) && line.contains(text))
}

#[test]
fn devices_are_shown_as_programs_see_them() {
    in_namespace("devices_are_shown_as_programs_see_them", |ferroce| {
        let none = run(&mut ferroce.ferroce(&["devices"]));
        assert_eq!((none.status, none.stdout.as_str()), (Some(0), ""));
        assert!(none.stderr.contains("ferroce doctor"), "{none:?}");

        sh("ip link set lo up");
        let table = run(&mut ferroce.ferroce(&["devices"])).stdout;
        let cells: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(cells[0], ["DEVICE", "INTERFACE", "STATE", "MTU", "GID", "ADDRESS"]);
        let first = ["ferroce0", "lo", "active", "4096", "of", "65536", "0"];
        assert_eq!(cells[1][..7], first, "{table}");
        assert_eq!(cells[1][7..], ["0000:0000:0000:0000:0000:ffff:7f00:0001", "127.0.0.1"]);
        assert_eq!(cells[3], ["2", "0000:0000:0000:0000:0000:0000:0000:0001", "::1"]);

        let json = run(&mut ferroce.ferroce(&["devices", "--json"])).stdout;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json[0]["name"], "ferroce0");
        assert_eq!(json[0]["gids"][1]["address"], "127.0.0.1");
        assert_eq!(json[0]["active_mtu"], 4096);

        let named = run(ferroce.ferroce(&["devices"]).env("FERROCE_DEVICES", "mlx5_0=lo"));
        assert!(named.stdout.contains("mlx5_0"), "{named:?}");
        let wrong = run(ferroce.ferroce(&["devices"]).env("FERROCE_DEVICES", "mlx5_0=eth7"));
        assert_eq!((wrong.status, wrong.stdout.as_str()), (Some(1), ""));
        assert!(wrong.stderr.contains("there is no network interface \"eth7\""), "{wrong:?}");
    });
}

#[test]
fn doctor_finds_nothing_on_a_sound_host() {
    in_namespace("doctor_finds_nothing_on_a_sound_host", |ferroce| {
        sh("ip link set lo up");
        let outcome = doctor(ferroce, &["127.0.0.1"]);
        assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""), "{}", outcome.stdout);
        assert!(
            says(&outcome, "ok", "UDP port 4791 on 127.0.0.1 is free, and datagrams to it arrive."),
            "{outcome:?}"
        );
        assert!(says(&outcome, "ok", "127.0.0.1 is this host"), "{outcome:?}");
        assert!(outcome.stdout.ends_with("\nNothing found that would stop a verbs program here.\n"));
    });
}

#[test]
fn doctor_says_that_there_is_no_interface() {
    in_namespace("doctor_says_that_there_is_no_interface", |ferroce| {
        let outcome = doctor(ferroce, &[]);
        assert_eq!(outcome.status, Some(1));
        assert!(says(&outcome, "error", "There is no device"), "{outcome:?}");
        assert!(says(&outcome, "fix:", "ip link set lo up"), "{outcome:?}");
        let outcome = run(ferroce.ferroce(&["doctor"]).env("FERROCE_DEVICES", "nonsense"));
        assert!(outcome.status == Some(1) && says(&outcome, "error", "has no \"=\""), "{outcome:?}");
    });
}

#[test]
fn doctor_names_the_process_that_has_the_port() {
    in_namespace("doctor_names_the_process_that_has_the_port", |ferroce| {
        sh("ip link set lo up");
        let _holder = UdpSocket::bind("0.0.0.0:4791").unwrap();
        let outcome = doctor(ferroce, &[]);
        assert_eq!(outcome.status, Some(1));
        let holder = format!("127.0.0.1 is taken by process {}", std::process::id());
        assert!(says(&outcome, "error", &holder), "{outcome:?}");
        assert!(says(&outcome, "ok", "UDP port 4791 on ::1 is free"), "{outcome:?}");
    });
}

#[test]
fn doctor_finds_a_packet_filter_on_its_own_address() {
    in_namespace("doctor_finds_a_packet_filter_on_its_own_address", |ferroce| {
        sh("ip link set lo up");
        let rules = "nft add table inet t && nft add chain inet t in '{ type filter hook input priority 0; }' && \
                     nft add rule inet t in udp dport 4791 drop";
        if !Command::new("sh").args(["-c", rules]).output().unwrap().status.success() {
            return ferroce_tests::record_skip("nft can't filter here");
        }
        let outcome = doctor(ferroce, &[]);
        assert_eq!(outcome.status, Some(1));
        assert!(says(&outcome, "error", "does not arrive"), "{outcome:?}");
        assert!(says(&outcome, "fix:", "udp dport 4791 accept"), "{outcome:?}");
    });
}

#[test]
fn doctor_says_that_too_few_files_may_be_open() {
    in_namespace("doctor_says_that_too_few_files_may_be_open", |ferroce| {
        sh("ip link set lo up");
        let command = ferroce.path("bin/ferroce");
        let limited = run(Command::new("sh").args(["-c", "ulimit -n 64; exec \"$0\" doctor"]).arg(command));
        assert_eq!(limited.status, Some(1));
        assert!(says(&limited, "error", "Open files are limited to 64"), "{limited:?}");
    });
}

#[test]
fn doctor_looks_at_the_way_to_a_peer() {
    in_namespace("doctor_looks_at_the_way_to_a_peer", |ferroce| {
        let other = OtherHost::joined_by_veth();
        let outcome = doctor(ferroce, &[]);
        assert_eq!(outcome.status, Some(1), "own addresses need lo");
        assert!(says(&outcome, "fix:", "ip link set lo up"), "{outcome:?}");
        sh("ip link set lo up");
        let outcome = doctor(ferroce, &["10.9.0.2"]);
        assert_eq!(outcome.status, Some(0), "{}", outcome.stdout);
        assert!(says(&outcome, "ok", "10.9.0.2 is reached through ferroce0 from 10.9.0.1."), "{outcome:?}");
        assert!(says(&outcome, "ok", "the way is open"), "{outcome:?}");

        let outcome = doctor(ferroce, &["10.77.0.1"]);
        assert!(
            outcome.status == Some(1) && says(&outcome, "error", "There is no route to 10.77.0.1"),
            "{outcome:?}"
        );
        let outcome = doctor(ferroce, &["fe80::1"]);
        assert!(outcome.status == Some(1) && says(&outcome, "error", "link-local"), "{outcome:?}");

        sh("ip route replace 10.9.0.0/24 dev v0 src 10.9.0.1 mtu 600");
        let outcome = doctor(ferroce, &["10.9.0.2"]);
        assert!(
            outcome.status == Some(1) && says(&outcome, "error", "packets of 600 bytes only"),
            "{outcome:?}"
        );
        assert!(says(&outcome, "fix:", "-m 512"), "{outcome:?}");
        sh("ip route replace 10.9.0.0/24 dev v0 src 10.9.0.1");

        other.sh("ip address del 10.9.0.2/24 dev v1");
        sh("ip neighbour flush dev v0");
        let outcome = doctor(ferroce, &["10.9.0.2"]);
        assert!(!says(&outcome, "ok", "the way is open"), "{outcome:?}");
        assert_eq!(outcome.status, Some(1), "{outcome:?}");
        assert!(
            says(&outcome, "error[peer-unreachable]", "no neighbour answers for 10.9.0.2"),
            "{outcome:?}"
        );
    });
}
