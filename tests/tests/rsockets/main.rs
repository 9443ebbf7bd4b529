//! Sockets over RDMA: Debian's programs of rsockets, and programs of ordinary sockets under `ferroce run --sockets`, unmodified,
//! within a host on whatever fabric they choose and over `udp`, and between two hosts.

mod ends;
mod forking;

use ferroce_tests::{Artifacts, Fabric, Host, Process, World, require, tool};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Port spaces.
const TCP: u16 = 0x0106;

/// Where both sides run.
#[derive(Clone, Copy)]
enum Place {
    OneHost,
    OneHostUdp,
    TwoHosts,
}

impl Place {
    fn world(self) -> Result<World, ferroce_tests::Skip> {
        match self {
            Self::OneHost | Self::OneHostUdp => World::one_host(9000),
            Self::TwoHosts => World::two_hosts(1500),
        }
    }

    fn settings(self) -> &'static [(&'static str, &'static str)] {
        if matches!(self, Self::OneHostUdp) { Fabric::Udp.settings() } else { Fabric::Any.settings() }
    }
}

/// In a line of words, `SERVER` stands for the server's IPv4 address.
fn words(line: &str, world: &World) -> Vec<String> {
    line.split_whitespace().map(|word| word.replace("SERVER", &world.last().ipv4())).collect()
}

/// A server that has the port, and its client.
fn start(place: Place, world: &World, port: u16, server: &str, client: &str) -> (Process, Process) {
    let mut server = world.last().start_ferroce(&[], &words(server, world), place.settings());
    world.last().wait_for_rdma_port(TCP, port, &mut server, LIMIT);
    (server, world.first().start_ferroce(&[], &words(client, world), place.settings()))
}

/// Runs a program of which both sides end.
fn run(place: Place, port: u16, server: &str, client: &str) {
    require!(tool(server.split_whitespace().next().expect("a program"), "rdmacm-utils"));
    let world = require!(place.world());
    let (mut server, mut client) = start(place, &world, port, server, client);
    let (client, server) = (client.wait(LIMIT), server.wait(LIMIT));
    assert!(client.success() && server.success(), "server: {server}client: {client}");
    client.expect_quiet();
    server.expect_quiet();
    for host in [world.first(), world.last()] {
        host.expect_no_traces();
    }
}

/// Makes a test of each name at each place.
macro_rules! everywhere {
    ($($name:ident: $port:literal, $server:literal, $client:literal;)*) => {
        everywhere! { one_host, OneHost: $($name: $port, $server, $client;)* }
        everywhere! { one_host_udp, OneHostUdp: $($name: $port, $server, $client;)* }
        everywhere! { two_hosts, TwoHosts: $($name: $port, $server, $client;)* }
    };
    ($module:ident, $place:ident: $($name:ident: $port:literal, $server:literal, $client:literal;)*) => {
        mod $module {$(
            #[test]
            fn $name() {
                super::run(super::Place::$place, $port, $server, $client);
            }
        )*}
    };
}

everywhere! {
    rstream: 7471, "rstream -I 20 -C 200 -S all", "rstream -s SERVER -I 20 -C 200 -S all";
    rstream_async: 7471, "rstream -I 50 -C 20 -T a -T v", "rstream -s SERVER -I 50 -C 20 -T a -T v";
    rstream_blocking: 7471, "rstream -I 500 -C 3 -T b -T v", "rstream -s SERVER -I 500 -C 3 -T b -T v";
    rstream_nonblocking: 7471, "rstream -I 50 -C 20 -T n -T v", "rstream -s SERVER -I 50 -C 20 -T n -T v";
    rstream_blocking_all_sizes: 7471, "rstream -C 20 -S all -T b", "rstream -s SERVER -C 20 -S all -T b";
    rstream_nonblocking_all_sizes: 7471, "rstream -C 20 -S all -T n", "rstream -s SERVER -C 20 -S all -T n";
    rstream_async_all_sizes: 7471, "rstream -C 20 -S all -T a", "rstream -s SERVER -C 20 -S all -T a";
    rstream_resolve: 7471, "rstream -I 50 -C 20 -T r", "rstream -s SERVER -I 50 -C 20 -T r";
    rstream_large: 7471, "rstream -I 5 -C 4 -S 3000000 -T v", "rstream -s SERVER -I 5 -C 4 -S 3000000 -T v";
    rstream_keepalive: 7471, "rstream -I 20 -C 20 -k 1", "rstream -s SERVER -I 20 -C 20 -k 1";
    rstream_small_buffers: 7471, "rstream -B 4096 -I 20 -C 20 -S 20000 -T v",
        "rstream -s SERVER -B 4096 -I 20 -C 20 -S 20000 -T v";
    riostream: 7471, "riostream -I 20 -C 20 -S all", "riostream -s SERVER -I 20 -C 20 -S all";
    riostream_blocking: 7471, "riostream -I 50 -C 3 -T b -T v", "riostream -s SERVER -I 50 -C 3 -T b -T v";
    riostream_async: 7471, "riostream -I 50 -C 3 -T a", "riostream -s SERVER -I 50 -C 3 -T a";
}

/// Bytes without a pattern that repeats.
fn bytes(length: usize) -> Vec<u8> {
    let mut state = 7u64;
    let mut content = Vec::with_capacity(length + 8);
    while content.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The low bits of such a sequence repeat soon.
        content.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    content.truncate(length);
    content
}

#[test]
fn rcopy_copies_every_byte() {
    for place in [Place::OneHost, Place::OneHostUdp, Place::TwoHosts] {
        copy(place, 40_000_003);
    }
}

#[test]
#[ignore = "copies a gibibyte, three times"]
fn rcopy_copies_a_gibibyte() {
    for place in [Place::OneHost, Place::OneHostUdp, Place::TwoHosts] {
        copy(place, 1 << 30);
    }
}

/// Has rcopy copy a file of so many bytes, and compares.
fn copy(place: Place, length: usize) {
    require!(tool("rcopy", "rdmacm-utils"));
    let world = require!(place.world());
    let content = bytes(length);
    std::fs::write(world.first().path("/tmp/original"), &content).expect("the host's /tmp");
    let (server, mut client) = start(place, &world, 7427, "rcopy", "rcopy /tmp/original SERVER:/tmp/copy");
    client.wait(2 * LIMIT).expect_success();
    let copy = std::fs::read(world.last().path("/tmp/copy")).expect("the copy");
    assert!(copy == content, "the copy of {} bytes differs", content.len());
    server.signal(libc::SIGKILL);
}

#[test]
fn udpong_sends_datagrams() {
    require!(tool("udpong", "rdmacm-utils"));
    for place in [Place::OneHost, Place::OneHostUdp, Place::TwoHosts] {
        // Not `-T e`: udpong sends again what isn't answered within a millisecond, and on a busy machine never catches up.
        for how in ["", " -T a", " -T b", " -S 1900 -T b"] {
            let world = require!(place.world());
            let line = format!("udpong -b SERVER{how}");
            let mut server = world.last().start_ferroce(&[], &words(&line, &world), place.settings());
            wait_for_udp(world.last(), 7174, &mut server);
            let line = format!("udpong -s SERVER -C 200{how}");
            let mut client = world.first().start_ferroce(&[], &words(&line, &world), place.settings());
            let outcome = client.wait(LIMIT);
            outcome.expect_success().expect_quiet();
            assert!(outcome.stdout.contains("custom"), "{outcome}");
            server.signal(libc::SIGKILL);
        }
    }
}

fn wait_for_udp(host: &Host, port: u16, server: &mut Process) {
    let name = format!(":{port:04X} ");
    let start = std::time::Instant::now();
    while !host.admin("cat /proc/net/udp").contains(&name) {
        assert!(!server.has_ended() && start.elapsed() < LIMIT, "{}", server.wait(Duration::ZERO));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A case of `c/sockets/behaviour.c`, on TCP and UDP of the kernel and on rsockets: what it expects isn't what we think of sockets, but
/// what the kernel makes of them.
fn behaves(case: &str) {
    let path = require!(Artifacts::get().c_program("sockets/behaviour"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    host.start(&[&*path, case], &[]).wait(LIMIT).expect_ok();
    let own = host.ipv4();
    for (address, fabric) in [("127.0.0.1", Fabric::Any), (&*own, Fabric::Any), (&*own, Fabric::Udp)] {
        let settings = [fabric.settings(), &[("ADDRESS", address)]].concat();
        host.start_ferroce(&["--sockets"], &[&*path, case], &settings).wait(LIMIT).expect_ok();
    }
    host.expect_no_traces();
}

macro_rules! behaviour {
    ($($case:ident)*) => {
        mod behaviour {
            $(
                #[test]
                fn $case() {
                    super::behaves(stringify!($case));
                }
            )*

            #[test]
            fn every_case_is_run() {
                let path = super::require!(super::Artifacts::get().c_program("sockets/behaviour"));
                let listed = std::process::Command::new(path).output().expect("the program runs").stdout;
                let listed = String::from_utf8(listed).expect("case names are ASCII");
                assert_eq!(listed.lines().collect::<Vec<_>>(), [$(stringify!($case)),*]);
            }
        }
    };
}

behaviour! {
    names bad_calls refused connects_after_a_refusal nonblocking_connect connects_again half_close end_behind_bytes closed_peer peek_and_wait full duplex two_readers
    sender_beside_reader select_with_pipe epoll_sets more_ready_than_room added_while_another_waits added_at_once once_for_one_thread sets_of_sets
    signals_end_waits restarts errno_stays stops handlers_use_sockets jumps handlers_change_the_mask threads_end cancelled_threads_sleep_on
    levels numbers_that_lead_elsewhere streams_of_stdio sleepers copies options many reset reset_after_the_end datagrams pieces
    datagrams_to_a_new_server unread
}

/// Sockets of programs are rsockets under this.
const SOCKETS: &[&str] = &["--sockets"];

#[test]
fn iperf3_runs_over_rsockets() {
    require!(tool("iperf3", "iperf3"));
    for place in [Place::OneHost, Place::TwoHosts] {
        let world = require!(place.world());
        let line = |line: &str| words(line, &world);
        let mut server = world.last().start_ferroce(SOCKETS, &line("iperf3 -s -1 -B SERVER"), &[]);
        world.last().wait_for_rdma_port(TCP, 5201, &mut server, LIMIT);
        let client = line("iperf3 -c SERVER -n 100M -P 2");
        let outcome = world.first().start_ferroce(SOCKETS, &client, &[]).wait(LIMIT);
        outcome.expect_success();
        assert!(outcome.stdout.contains("iperf Done"), "{outcome}");
        server.wait(LIMIT).expect_success();
        // Nothing went over TCP.
        assert!(segments(&world) < 10, "{} segments of TCP", segments(&world));
    }
}

/// So many segments the server's host has got by TCP.
fn segments(world: &World) -> u64 {
    let counted = world.last().admin("cat /proc/net/snmp");
    let numbers = counted.lines().filter(|line| line.starts_with("Tcp:")).nth(1).expect("TCP's numbers");
    numbers.split(' ').nth(10).and_then(|number| number.parse().ok()).expect("segments")
}

#[test]
fn a_python_server_serves_curl() {
    require!(tool("curl", "curl"));
    for place in [Place::OneHost, Place::TwoHosts] {
        let world = require!(place.world());
        let content = bytes(5_000_000);
        std::fs::write(world.last().path("/tmp/page"), &content).expect("the host's /tmp");
        let line = words("python3 -u -m http.server --directory /tmp --bind SERVER 8080", &world);
        // The server asks for its own name, which can't be resolved here.
        let resolver = [("RES_OPTIONS", "timeout:1 attempts:1")];
        let mut server = world.last().start_ferroce(SOCKETS, &line, &resolver);
        server.wait_for_output("Serving", LIMIT);
        for _ in 0..3 {
            let line = words("curl -sS -o /tmp/got http://SERVER:8080/page", &world);
            world.first().start_ferroce(SOCKETS, &line, &[]).wait(LIMIT).expect_success();
            let got = std::fs::read(world.first().path("/tmp/got")).expect("what curl got");
            assert!(got == content, "{} bytes of {}, or others", got.len(), content.len());
        }
        // A connection by an ordinary socket is refused.
        let line = words("curl -sS http://SERVER:8080/page", &world);
        assert!(!world.first().start(&line, &[]).wait(LIMIT).success());
        server.signal(libc::SIGKILL);
    }
}

/// Writes a Python program to a host.
fn write(host: &Host, name: &str, text: &str) -> String {
    let path = format!("/tmp/{name}.py");
    std::fs::write(host.path(&path), text).expect("the host's /tmp");
    path
}

/// Without a device an rsocket can't be, and the socket is an ordinary one.
#[test]
fn without_a_device_sockets_are_ordinary() {
    let path = require!(Artifacts::get().c_program("sockets/behaviour"));
    let world = require!(World::one_host(1500));
    let outcome = world
        .first()
        .start_ferroce(SOCKETS, &["env", "FERROCE_DEVICES=none", &*path, "half_close"], &[])
        .wait(LIMIT);
    assert!(Path::new(&path).exists());
    outcome.expect_success();
}
