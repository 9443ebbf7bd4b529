//! Interoperability with the kernel's soft-RoCE: Ferroce on a host, `rdma_rxe` in a guest beside it.
//!
//! The ignored tests are the same with everything combined; `cargo xtask soak --guest` runs them.

use ferroce_tests::{Artifacts, Guest, Host, Outcome, Skip, World, require, tool};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(100);
const PORT: u16 = 18515;
const PING_PONGS: [&[&str]; 4] = [
    &["ibv_rc_pingpong", "-c", "-s", "20000", "-n", "500"],
    &["ibv_uc_pingpong", "-c", "-s", "20000", "-n", "500"],
    &["ibv_ud_pingpong", "-c", "-s", "1000"],
    &["ibv_srq_pingpong", "-c", "-n", "100"],
];
const PERFTEST: [&str; 4] = ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw"];

/// Which side listens; the other connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Ferroce,
    Rxe,
}

/// What a run of a program is made of, besides the program.
#[derive(Clone, Copy, Debug)]
struct Cell {
    server: Server,
    /// Its index, the same on both sides.
    gid: &'static str,
    path_mtu: &'static str,
}

/// No packet of ours is refused.
const NEVER: u64 = u64::MAX;
/// A ping-pong's side ends at its last completion: what is sent again to it after that is for a QP that is gone.
const LATE: u64 = 500;

/// `rdma_rxe` has UDP port 4791 of the guest until it is gone.
const GIVE_UP_PORT: &str = "rdma link delete rxe0 && rmmod rdma_rxe";

const LINK_LOCAL: &str = "0";
const IPV4: &str = "1";
const IPV6: &str = "2";

/// Every combination with a path MTU.
fn all_cells(path_mtu: &'static str) -> impl Iterator<Item = Cell> {
    [LINK_LOCAL, IPV4, IPV6].into_iter().flat_map(move |gid| {
        [Server::Ferroce, Server::Rxe].into_iter().map(move |server| Cell { server, gid, path_mtu })
    })
}

/// For program number `n`: two cells that differ in everything, so that four programs have every pair of values.
fn two_cells(n: usize) -> [Cell; 2] {
    let cell = |server, far: bool, long: bool| Cell {
        server,
        gid: if far { IPV6 } else { IPV4 },
        path_mtu: if long { "4096" } else { "1024" },
    };
    let (far, long) = (n & 1 == 1, n & 2 == 2);
    [cell(Server::Ferroce, far, long), cell(Server::Rxe, !far, !long)]
}

/// How a run ended on both sides.
struct Sides {
    ferroce: Outcome,
    rxe: Outcome,
}

impl Sides {
    #[track_caller]
    fn expect_success(&self) -> &Self {
        assert!(self.ferroce.success() && self.rxe.success(), "{self}");
        self
    }
}

impl fmt::Display for Sides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ferroce: {}rxe: {}", self.ferroce, self.rxe)
    }
}

/// A host with a guest beside it.
struct Lab<'w> {
    host: &'w Host,
    guest: Guest<'w>,
}

impl<'w> Lab<'w> {
    fn new(world: &'w World) -> Result<Self, Skip> {
        Ok(Self { host: world.first(), guest: Guest::start(world, 1500)? })
    }

    fn set_path_mtu(&self, path_mtu: &str) {
        self.guest.set_mtu(if path_mtu == "1024" { 1500 } else { 9000 });
    }

    /// Runs a program on both sides to its end, ours with `options` of `ferroce run`.
    fn run(&self, server: Server, options: &[&str], words: &[&str]) -> Sides {
        let address = match server {
            Server::Ferroce => self.host.ipv4(),
            Server::Rxe => self.guest.ipv4().into(),
        };
        let mut client_words = words.to_vec();
        client_words.push(&address);
        match server {
            Server::Ferroce => {
                let mut ferroce = self.host.start_ferroce(options, words, &[]);
                self.host.wait_for_listener(PORT, &mut ferroce, LIMIT);
                let rxe = self.guest.start_script(&client_words.join(" ")).wait(LIMIT);
                Sides { ferroce: ferroce.wait(Duration::from_secs(5)), rxe }
            }
            Server::Rxe => {
                let mut rxe = self.guest.start_server(words, PORT);
                let ferroce = self.host.start_ferroce(options, &client_words, &[]).wait(LIMIT);
                Sides { ferroce, rxe: rxe.wait(Duration::from_secs(5)) }
            }
        }
    }

    /// Runs a program in the guest against itself, on both sides with Ferroce over `udp`.
    fn run_inside(&self, options: &str, words: &[&str]) {
        let ferroce = Artifacts::get().ferroce();
        let line = format!("FERROCE_FABRIC=udp {} run{options} -- {}", ferroce.display(), words.join(" "));
        let mut server = self.guest.start_server(&[&line], PORT);
        let client = self.guest.start_script(&format!("{line} {}", self.guest.ipv4())).wait(LIMIT);
        let server = server.wait(Duration::from_secs(5));
        for side in [&client, &server] {
            assert!(
                side.success() && !side.stdout.contains("invalid data"),
                "server: {server}client: {client}"
            );
        }
    }

    /// Runs `stream` under loss on both sides: 1 % of what the guest sends, of what we send and of what comes to us.
    fn stream_under_loss(&self, stream: &str, server: Server, more: &[&str]) {
        let options = ["--fault", "drop=1%,seed=7", "--capture", "/tmp/capture.pcapng"];
        let mut words = vec![stream, "-s", "20000"];
        words.extend(more);
        let sides = self.run(server, &options, &words);
        sides.expect_success();
        for side in [&sides.ferroce, &sides.rxe] {
            assert!(side.stdout.contains("were right"), "{sides}");
        }
        expect_no_nak_but_for_loss(&self.host.path("/tmp/capture.pcapng"));
    }

    fn ping_pong(&self, program: &[&str], cell: Cell) {
        eprintln!("{} {cell:?}", program[0]);
        let mut words = program.to_vec();
        words.extend(["-g", cell.gid]);
        // UD has the MTU of the port.
        if program[0] != "ibv_ud_pingpong" {
            words.extend(["-m", cell.path_mtu]);
        }
        let sides = self.run(cell.server, &[], &words);
        sides.expect_success();
        for side in [&sides.ferroce, &sides.rxe] {
            assert!(side.stdout.contains(" usec/iter"), "no closing line:\n{sides}");
            assert!(!side.stdout.contains("invalid data"), "{sides}");
        }
        sides.ferroce.expect_quiet();
    }

    fn perftest(&self, program: &str, cell: Cell) {
        eprintln!("{program} {cell:?}");
        let words = [program, "-F", "-n", "1000", "-x", cell.gid, "-m", cell.path_mtu];
        let sides = self.run(cell.server, &[], &words);
        sides.expect_success();
        let size = if program == "ib_atomic_bw" { " 8 " } else { " 65536 " };
        let row = |line: &str| line.starts_with(size) && line.contains(" 1000 ");
        assert!(sides.ferroce.stdout.lines().any(row), "no row:\n{sides}");
    }

    /// The kernel took every packet that came, but for one in `but_for` at most, and has nothing to complain about.
    fn expect_nothing_refused(&self, but_for: u64) {
        let traffic = self.guest.traffic();
        assert!(traffic.arrived > 0, "{traffic:?}");
        let refused = traffic.arrived - traffic.accepted;
        assert!(refused <= traffic.arrived / but_for, "rdma_rxe refused packets of ours: {traffic:?}");
        self.expect_nothing_said();
    }

    fn expect_nothing_said(&self) {
        let kernel = self.guest.run("dmesg --level=emerg,alert,crit,err,warn");
        let wrong = |line: &&str| ["rxe", "WARNING", "BUG"].iter().any(|word| line.contains(word));
        assert_eq!(kernel.lines().find(wrong), None);
    }
}

fn ping_pong_tools() -> Result<(), Skip> {
    PING_PONGS.iter().try_for_each(|program| tool(program[0], "ibverbs-utils").map(drop))
}

fn perftest_tools() -> Result<(), Skip> {
    PERFTEST.iter().try_for_each(|program| tool(program, "perftest").map(drop))
}

#[test]
fn ping_pongs_with_rxe_are_right() {
    require!(ping_pong_tools());
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    for path_mtu in ["1024", "4096"] {
        lab.set_path_mtu(path_mtu);
        for (n, program) in PING_PONGS.iter().enumerate() {
            for cell in two_cells(n).into_iter().filter(|cell| cell.path_mtu == path_mtu) {
                lab.ping_pong(program, cell);
            }
        }
    }
    lab.ping_pong(PING_PONGS[0], Cell { server: Server::Rxe, gid: LINK_LOCAL, path_mtu: "1024" });
    lab.expect_nothing_refused(LATE);
}

#[test]
fn perftest_with_rxe_ends_well() {
    require!(perftest_tools());
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    for path_mtu in ["1024", "4096"] {
        lab.set_path_mtu(path_mtu);
        for (n, program) in PERFTEST.iter().enumerate() {
            for cell in two_cells(n).into_iter().filter(|cell| cell.path_mtu == path_mtu) {
                lab.perftest(program, cell);
            }
        }
    }
    lab.expect_nothing_refused(NEVER);
}

/// Checked byte by byte by both sides; READs and atomics are asked for again in the midst of everything else.
#[test]
fn every_operation_with_rxe_is_right_under_loss() {
    require!(tool("tshark", "tshark"));
    let stream = require!(Artifacts::get().c_program("stream"));
    let stream = stream.to_str().expect("a UTF-8 path");
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    lab.guest.run("tc qdisc add dev eth0 root netem loss 1%");
    let runs: [(Server, &str, &[&str]); 4] = [
        (Server::Ferroce, "1024", &["-n", "1200", "-g", IPV6]),
        (Server::Rxe, "1024", &["-n", "600", "-g", IPV4, "-o", "send"]),
        (Server::Rxe, "4096", &["-n", "1200", "-g", IPV4]),
        (Server::Ferroce, "4096", &["-n", "600", "-g", IPV6, "-o", "write_imm"]),
    ];
    for (server, path_mtu, words) in runs {
        eprintln!("{server:?} {path_mtu} {words:?}");
        lab.set_path_mtu(path_mtu);
        lab.stream_under_loss(stream, server, &[words, &["-m", path_mtu]].concat());
    }
    lab.expect_nothing_refused(NEVER);
}

/// Each side sends to a group that the other is attached to.
#[test]
fn multicast_with_rxe_goes_both_ways() {
    let program = require!(Artifacts::get().c_program("multicast"));
    let program = program.to_str().expect("a UTF-8 path");
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    for (gid, group) in [(IPV4, "239.77.1.2"), (LINK_LOCAL, "ff02::7777"), (IPV6, "ff05::7777")] {
        let words = |role| [program, "-g", gid, "-n", "400", "-q", "2", "-i", "1000", role, group];
        let got_all = "each of 2 got all of 400";

        let mut rxe = lab.guest.start_script(&[&words("receive")[..], &["-j"]].concat().join(" "));
        rxe.wait_for_output("attached", LIMIT);
        let ferroce = lab.host.start_ferroce(&[], &words("send"), &[]).wait(LIMIT);
        let sides = Sides { ferroce, rxe: rxe.wait(LIMIT) };
        sides.expect_success();
        assert!(sides.rxe.stdout.contains(got_all), "{group}: {sides}");

        let mut ferroce = lab.host.start_ferroce(&[], &words("receive"), &[]);
        ferroce.wait_for_output("attached", LIMIT);
        let rxe = lab.guest.start_script(&words("send").join(" ")).wait(LIMIT);
        let sides = Sides { ferroce: ferroce.wait(LIMIT), rxe };
        sides.expect_success().ferroce.expect_quiet();
        assert!(sides.ferroce.stdout.contains(got_all), "{group}: {sides}");
    }
    lab.expect_nothing_said();
}

/// Neither side has answered a request with a NAK other than one for a PSN sequence error.
fn expect_no_nak_but_for_loss(capture: &Path) {
    // Copied out, because tshark gives up its rights and can't look into the host's private /tmp.
    let copy = std::env::temp_dir().join(format!("ferroce-rxe-{}.pcapng", std::process::id()));
    std::fs::copy(capture, &copy).expect("the capture was written");
    let naks = |filter: &str| {
        let mut command = Command::new("tshark");
        command.env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME");
        let output = command.arg("-r").arg(&copy).args(["-Y", filter]).output().expect("tshark runs");
        assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let sequence_errors = naks("infiniband.aeth.syndrome == 0x60").lines().count();
    let others = naks("infiniband.aeth.syndrome > 0x60");
    let _ = std::fs::remove_file(&copy);
    assert!(sequence_errors > 0, "nothing was lost");
    assert!(others.is_empty(), "{others}");
}

/// The guest's kernel under Ferroce: Linux 6.1 is the oldest that Debian maintains.
/// The guest has `/dev/udmabuf`, or else `vgem`, unlike many a container's host.
#[test]
fn dma_bufs_of_the_guests_kernel_are_registered() {
    let program = require!(Artifacts::get().c_program("newer"));
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    lab.guest.run(GIVE_UP_PORT);
    lab.guest.run("[ -e /dev/udmabuf ] || modprobe vgem");
    let ferroce = Artifacts::get().ferroce();
    for case in ["dma_bufs_of_the_kernel_are_registered", "device_memory_is_exported_and_registered_again"] {
        for fabric in ["local", "udp"] {
            let (ferroce, program) = (ferroce.display(), program.display());
            let line = format!("FERROCE_FABRIC={fabric} {ferroce} run -- {program} {case}");
            let outcome = lab.guest.start_script(&line).wait(LIMIT);
            outcome.expect_success();
            assert!(outcome.stdout.ends_with("ok\n") && !outcome.stdout.contains("skipped"), "{outcome}");
        }
    }
}

#[test]
fn udp_fabric_is_right_on_the_guests_kernel() {
    require!(ping_pong_tools());
    let stream = require!(Artifacts::get().c_program("stream"));
    let stream = stream.to_str().expect("a UTF-8 path");
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    lab.guest.run(GIVE_UP_PORT);
    lab.run_inside("", &["ibv_rc_pingpong", "-c", "-n", "200", "-g", IPV6, "-s", "20000"]);
    lab.run_inside("", &["ibv_uc_pingpong", "-c", "-n", "200", "-g", IPV4, "-e"]);
    lab.run_inside("", &["ibv_ud_pingpong", "-c", "-n", "200", "-g", LINK_LOCAL]);
    lab.run_inside("", &["ibv_srq_pingpong", "-c", "-g", IPV4, "-n", "10"]);
    lab.run_inside("", &[stream, "-n", "1200", "-s", "20000"]);
    lab.run_inside(
        " --fault drop=1%,dup=1%,reorder=1%,corrupt=1%,seed=3",
        &[stream, "-n", "600", "-s", "8000"],
    );
    lab.expect_nothing_said();
}

#[test]
#[ignore = "takes minutes: every combination"]
fn all_ping_pongs_with_rxe_at_path_mtu_1024_are_right() {
    all_ping_pongs("1024");
}

#[test]
#[ignore = "takes minutes: every combination"]
fn all_ping_pongs_with_rxe_at_path_mtu_4096_are_right() {
    all_ping_pongs("4096");
}

fn all_ping_pongs(path_mtu: &'static str) {
    require!(ping_pong_tools());
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    lab.set_path_mtu(path_mtu);
    for cell in all_cells(path_mtu) {
        PING_PONGS.iter().for_each(|program| lab.ping_pong(program, cell));
    }
    lab.expect_nothing_refused(LATE);
}

#[test]
#[ignore = "takes minutes: every combination"]
fn all_of_perftest_with_rxe_at_path_mtu_1024_ends_well() {
    all_of_perftest("1024");
}

#[test]
#[ignore = "takes minutes: every combination"]
fn all_of_perftest_with_rxe_at_path_mtu_4096_ends_well() {
    all_of_perftest("4096");
}

fn all_of_perftest(path_mtu: &'static str) {
    require!(perftest_tools());
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    lab.set_path_mtu(path_mtu);
    for cell in all_cells(path_mtu).filter(|cell| cell.gid != LINK_LOCAL) {
        PERFTEST.iter().for_each(|program| lab.perftest(program, cell));
    }
    lab.expect_nothing_refused(NEVER);
}

/// Few rounds each: two programs that poll in an emulated machine hand over to each other rarely.
#[test]
#[ignore = "takes minutes: every flavour, size and kind of GID"]
fn all_of_udp_fabric_is_right_on_the_guests_kernel() {
    require!(ping_pong_tools());
    require!(perftest_tools());
    let world = require!(World::one_host_with_tap(1500));
    let lab = require!(Lab::new(&world));
    lab.guest.run(GIVE_UP_PORT);
    for (program, rounds) in [
        ("ibv_rc_pingpong", "200"),
        ("ibv_uc_pingpong", "200"),
        ("ibv_ud_pingpong", "200"),
        ("ibv_srq_pingpong", "10"),
    ] {
        let large = if program == "ibv_ud_pingpong" { "1024" } else { "65536" };
        for (gid, size) in [(LINK_LOCAL, "1"), (IPV4, "1000"), (IPV6, large)] {
            let words = [program, "-c", "-n", rounds, "-g", gid, "-s", size];
            lab.run_inside("", &words);
            lab.run_inside("", &[&words[..], &["-e"]].concat());
        }
    }
    for program in PERFTEST {
        lab.run_inside("", &[program, "-F", "-n", "100"]);
    }
    lab.expect_nothing_said();
}

macro_rules! suites_inside {
    ($($name:ident: $program:literal;)*) => {
        mod inside {$(
            #[test]
            #[ignore = "takes minutes: a test program of this workspace, on the guest's kernel"]
            fn $name() {
                super::suite_inside($program);
            }
        )*}
    };
}

suites_inside! {
    adapter_discovery: "net_discovery";
    adapter_fabric: "fabric";
    adapter_verbs: "verbs";
}

/// Runs a compiled test program of this workspace in a guest, one test at a time.
fn suite_inside(program: &str) {
    let artifacts = Artifacts::get();
    let program = artifacts.stage_program(&test_program(program)).expect("the stage is writable");
    let library = artifacts.library_dir();
    let stage = library.ancestors().nth(3).expect("STAGE/dist/lib/ferroce").display();
    let world = require!(World::one_host_with_tap(1500));
    let guest = require!(Guest::start(&world, 1500));
    let script = format!(
        "{GIVE_UP_PORT} && \
         FERROCE_TEST_DIR={stage} FERROCE_FABRIC=udp {} --test-threads=1",
        program.display()
    );
    let outcome = guest.start_script(&script).wait(Duration::from_secs(220));
    eprintln!("{}", outcome.stdout);
    let ok = "test result: ok. ";
    assert!(
        outcome.expect_success().stdout.contains(ok) && !outcome.stdout.contains("ok. 0 passed"),
        "{outcome}"
    );
}

/// The newest build of a test program, beside this one.
fn test_program(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this program has a path");
    let is_build = |path: &PathBuf| {
        let hash = path.file_name().and_then(|file| file.to_str()?.strip_prefix(name)?.strip_prefix('-'));
        hash.is_some_and(|hash| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let age = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    let files = std::fs::read_dir(own.parent().expect("a directory")).expect("our own directory");
    let builds = files.flatten().map(|entry| entry.path()).filter(is_build);
    builds.max_by_key(age).unwrap_or_else(|| panic!("{name} isn't built: run cargo test --no-run first"))
}
