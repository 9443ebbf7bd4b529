//! Sockets over RDMA: Debian's programs of rsockets, and programs of ordinary sockets under `ferroce run --sockets`, unmodified,
//! within a host on whatever fabric they choose and over `udp`, and between two hosts.

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
    names bad_calls refused connects_after_a_refusal nonblocking_connect half_close end_behind_bytes closed_peer peek_and_wait full duplex two_readers sender_beside_reader
    select_with_pipe epoll_sets more_ready_than_room added_while_another_waits added_at_once once_for_one_thread sets_of_sets
    signals_end_waits levels numbers_that_lead_elsewhere streams_of_stdio sleepers copies options many reset datagrams pieces
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
        // The server asks for its own name, which nobody here knows.
        let resolver = [("RES_OPTIONS", "timeout:1 attempts:1")];
        let mut server = world.last().start_ferroce(SOCKETS, &line, &resolver);
        server.wait_for_output("Serving", LIMIT);
        for _ in 0..3 {
            let line = words("curl -sS -o /tmp/got http://SERVER:8080/page", &world);
            world.first().start_ferroce(SOCKETS, &line, &[]).wait(LIMIT).expect_success();
            let got = std::fs::read(world.first().path("/tmp/got")).expect("what curl got");
            assert!(got == content, "{} bytes of {}, or others", got.len(), content.len());
        }
        // Who has an ordinary socket finds nobody.
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

const READ_ALL: &str = "
import socket, sys
listener = socket.create_server((sys.argv[1], 7000))
connection, _ = listener.accept()
connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
print('accepted', flush=True)
total = 0
try:
    while data := connection.recv(100000):
        total += len(data)
    print(total, 'bytes and the end')
except (ConnectionResetError, TimeoutError) as error:
    print('lost:', error)
";

/// Requests that no peer confirms, from one that is killed and from many that live, keep a listener from others for seconds at most,
/// however short its backlog is.
#[test]
fn a_listener_recovers_from_requests_that_are_not_confirmed() {
    let world = require!(World::one_host(1500));
    let host = world.first();
    let server = write(
        host,
        "server",
        "
import socket, sys
listener = socket.create_server((sys.argv[1], 7000), backlog=1)
print('listening', flush=True)
while True:
    connection, _ = listener.accept()
    connection.sendall(b'hi')
    connection.close()
",
    );
    // As an rsocket asks, but the answer is left unread.
    let half = write(
        host,
        "half",
        "
import ctypes as C, socket, struct, sys, time
lib = C.CDLL('librdmacm.so.1', use_errno=True)
lib.rdma_create_event_channel.restype = C.c_void_p
class Parameters(C.Structure):
    _fields_ = [('data', C.c_char_p), ('length', C.c_uint8), ('bytes', C.c_uint8 * 6), ('qpn', C.c_uint32)]
data = bytes([1, 2, 1, 0x80]) + bytes(4) + struct.pack('>QIIQII', 0x1000, 1, 2, 0x2000, 2, 65536)
to = struct.pack('=H', socket.AF_INET) + struct.pack('>H', 7000) + socket.inet_aton(sys.argv[1]) + bytes(8)
kept = []
for count in range(int(sys.argv[2])):
    channel, ident, event = C.c_void_p(lib.rdma_create_event_channel()), C.c_void_p(), C.c_void_p()
    assert lib.rdma_create_id(channel, C.byref(ident), None, 0x0106) == 0
    for step in lambda: lib.rdma_resolve_addr(ident, None, to, 9000), lambda: lib.rdma_resolve_route(ident, 9000):
        assert step() == 0
        assert lib.rdma_get_cm_event(channel, C.byref(event)) == 0
        lib.rdma_ack_cm_event(event)
    wanted = Parameters(data, len(data), (C.c_uint8 * 6)(1, 1, 0, 7, 7, 0), 0x123456 + count)
    assert lib.rdma_connect(ident, C.byref(wanted)) == 0
    kept.append((channel, ident))
print('asked', flush=True)
time.sleep(100)
",
    );
    let client = write(
        host,
        "client",
        "
import socket, sys
connection = socket.create_connection((sys.argv[1], 7000), timeout=40)
assert connection.recv(100, socket.MSG_WAITALL) == b'hi'
",
    );
    let address = host.ipv4();
    let mut server = host.start_ferroce(SOCKETS, &["python3", &server, &address], &[]);
    server.wait_for_output("listening", LIMIT);
    for (count, lives) in [("1", false), ("40", true)] {
        let mut asking = host.start_ferroce(&[], &["python3", &half, &address, count], &[]);
        asking.wait_for_output("asked", LIMIT);
        if !lives {
            asking.signal(libc::SIGKILL);
        }
        for _ in 0..3 {
            host.start_ferroce(SOCKETS, &["python3", &client, &address], &[]).wait(LIMIT).expect_success();
        }
        asking.signal(libc::SIGKILL);
    }
    server.signal(libc::SIGKILL);
}

/// A program may end without closing its sockets: what it has sent arrives, and the end is told.
#[test]
fn what_was_sent_before_the_end_of_a_program_arrives() {
    let world = require!(World::two_hosts(1500));
    let server = write(world.last(), "server", READ_ALL);
    let client = write(
        world.first(),
        "client",
        "
import socket, sys
connection = socket.create_connection((sys.argv[1], 7000))
connection.sendall(bytes(3000000))
connection.detach()
",
    );
    let address = world.last().ipv4();
    let mut server = world.last().start_ferroce(SOCKETS, &["python3", &server, &address], &[]);
    world.last().wait_for_rdma_port(TCP, 7000, &mut server, LIMIT);
    world.first().start_ferroce(SOCKETS, &["python3", &client, &address], &[]).wait(LIMIT).expect_success();
    let outcome = server.wait(LIMIT);
    outcome.expect_success();
    assert!(outcome.stdout.contains("3000000 bytes and the end"), "{outcome}");
}

/// The end of a stream that a program has shut isn't undone by how the program ends.
#[test]
fn a_stream_that_is_shut_ends_in_order_however_its_program_ends() {
    let in_order = "connection.detach()";
    for place in [Place::OneHost, Place::OneHostUdp] {
        for end in [in_order, "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"] {
            shut_and_end(place, end);
        }
    }
    shut_and_end(Place::TwoHosts, in_order);
}

/// A client sends and shuts its end, gets a byte, and ends. Its server then reads the last of what has come, slowly.
fn shut_and_end(place: Place, end: &str) {
    let world = require!(place.world());
    let server = write(
        world.last(),
        "server",
        "
import signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
listener = socket.create_server((sys.argv[1], 7000))
connection, _ = listener.accept()
left = 1 << 20
while left > 10000:
    left -= len(connection.recv(min(left - 10000, 5000)))
connection.sendall(b'x')
print('the rest is there', flush=True)
signal.sigwait([signal.SIGUSR1])
try:
    while data := connection.recv(1000):
        left -= len(data)
    print(left, 'left and the end')
except OSError as error:
    print(left, 'left, lost:', error)
",
    );
    let client = write(
        world.first(),
        "client",
        &format!(
            "
import os, signal, socket, sys
connection = socket.create_connection((sys.argv[1], 7000))
connection.sendall(bytes(1 << 20))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
{end}
"
        ),
    );
    let address = world.last().ipv4();
    let start = |host: &Host, program: &str| {
        host.start_ferroce(SOCKETS, &["python3", program, &address], place.settings())
    };
    let mut server = start(world.last(), &server);
    world.last().wait_for_rdma_port(TCP, 7000, &mut server, LIMIT);
    start(world.first(), &client).wait(LIMIT);
    server.wait_for_output("the rest is there", LIMIT);
    server.signal(libc::SIGUSR1);
    let outcome = server.wait(LIMIT);
    outcome.expect_success();
    assert!(outcome.stdout.contains("0 left and the end"), "{end}: {outcome}");
}

/// A program that is killed hasn't said that its stream ends. Its host says so for it.
#[test]
fn a_killed_peer_is_no_end_of_the_stream() {
    lose_a_peer(Place::OneHost);
}

/// Between hosts keep-alives find out.
#[test]
fn a_killed_peer_between_hosts_is_no_end_of_the_stream() {
    lose_a_peer(Place::TwoHosts);
}

fn lose_a_peer(place: Place) {
    let world = require!(place.world());
    let server = write(world.last(), "server", READ_ALL);
    let client = write(
        world.first(),
        "client",
        "
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 7000))
connection.sendall(bytes(1000))
time.sleep(100)
",
    );
    let address = world.last().ipv4();
    let mut server = world.last().start_ferroce(SOCKETS, &["python3", &server, &address], &[]);
    world.last().wait_for_rdma_port(TCP, 7000, &mut server, LIMIT);
    let client = world.first().start_ferroce(SOCKETS, &["python3", &client, &address], &[]);
    server.wait_for_output("accepted", LIMIT);
    client.signal(libc::SIGKILL);
    // Eight times the local ACK timeout that connections get, threefold as adapters wait: 52 s.
    let outcome = server.wait(2 * LIMIT);
    outcome.expect_success();
    assert!(outcome.stdout.contains("lost:"), "{outcome}");
}

/// A server forks for its connection: with RDMAV_FORK_SAFE both sides change from TCP to rsockets when they first send or receive.
#[test]
fn a_server_that_forks_serves_by_rsockets() {
    require!(tool("rstream", "rdmacm-utils"));
    for place in [Place::OneHost, Place::OneHostUdp, Place::TwoHosts] {
        let world = require!(place.world());
        let settings = [FORK_SAFE, place.settings()].concat();
        let before = segments(&world);
        let line = words("rstream -b SERVER -I 100 -C 20 -S 65536 -T f -T v", &world);
        let mut server = world.last().start_ferroce(SOCKETS, &line, &settings);
        world.last().wait_for_listener(7471, &mut server, LIMIT);
        let line = words("rstream -s SERVER -I 100 -C 20 -S 65536 -T f -T v", &world);
        let client = world.first().start_ferroce(SOCKETS, &line, &settings).wait(LIMIT);
        let server = server.wait(LIMIT);
        assert!(client.success() && server.success(), "server: {server}client: {client}");
        client.expect_quiet();
        // Connections are made by TCP, and no data go there.
        assert!(segments(&world) - before < 100, "{before} segments of TCP, then {}", segments(&world));
    }
}

/// RDMAV_FORK_SAFE.
const FORK_SAFE: &[(&str, &str)] = &[("RDMAV_FORK_SAFE", "1")];

/// What the Python programs of both sides begin with. `kind` tells what a number leads to.
const FORKING: &str = "
import os, socket, struct, sys, threading, time
address = (sys.argv[1], 7000)
started = time.monotonic()
def passed():
    return time.monotonic() - started
def kind(s):
    inode = str(os.fstat(s.fileno()).st_ino)
    return 'rsocket' if any(line.split()[6] == inode for line in open('/proc/net/unix')) else 'TCP'
def all_of(s):
    got = b''
    while part := s.recv(1000):
        got += part
    return got
";

/// It greets whoever connects, and sends back what it gets.
const GREETER: &str = "
listener = socket.create_server(address)
print('listening', flush=True)
connection, _ = listener.accept()
listener.close()
if os.fork() != 0:
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
print('greets', flush=True)
connection.sendall(b'greeting')
print('by', kind(connection), flush=True)
connection.sendall(connection.recv(1000))
";

/// It waits for the greeting without a word.
const GREETED: &str = "
connection = socket.create_connection(address)
got = connection.recv(1000)
assert got == b'greeting', got
print('by', kind(connection), flush=True)
connection.sendall(b'question')
got = all_of(connection)
assert got == b'question', got
";

/// A fork-safe server, `server`, and the other side, `client`, which is the program's plain self without settings; returns what
/// both have printed.
fn fork_safely(
    world: &World,
    server: (&str, &[&str]),
    client: (&str, Option<&[(&str, &str)]>),
) -> (String, String) {
    let path = write(world.last(), "server", &[FORKING, server.0].concat());
    let address = world.last().ipv4();
    let line = [&["python3", &*path, &*address], server.1].concat();
    let mut server = world.last().start_ferroce(SOCKETS, &line, FORK_SAFE);
    server.wait_for_output("listening", LIMIT);
    let path = write(world.first(), "client", &[FORKING, client.0].concat());
    let line = ["python3", &*path, &*address];
    let mut client = match client.1 {
        Some(settings) => world.first().start_ferroce(SOCKETS, &line, &[FORK_SAFE, settings].concat()),
        None => world.first().start(&line, &[]),
    };
    let (client, server) = (client.wait(LIMIT), server.wait(LIMIT));
    assert!(client.success() && server.success(), "server: {server}client: {client}");
    (server.stdout, client.stdout)
}

/// A client that waits for the server's greeting, by recv and by poll, select and epoll, gets it and nothing else.
#[test]
fn a_server_that_forks_greets_first() {
    let world = require!(World::two_hosts(1500));
    let waiting = GREETED.replace("got = connection.recv(1000)", "WAIT\ngot = connection.recv(1000)");
    let waiting = format!("import select\n{waiting}assert passed() < 9, passed()\n");
    for wait in [
        "",
        "
poll = select.poll()
poll.register(connection, select.POLLIN)
(_, events), = poll.poll(30000)
assert events == select.POLLIN, events",
        "assert select.select([connection], [], [connection], 30) == ([connection], [], [])",
        "assert select.select([connection], [], [], 30)[0] == [connection]",
    ] {
        let (server, client) =
            fork_safely(&world, (GREETER, &[]), (&waiting.replace("WAIT", wait), Some(&[])));
        assert!(server.contains("by rsocket") && client.contains("by rsocket"), "{server}{client}");
    }
    // One that is in an epoll set goes on by TCP, once the server has waited for it.
    let waiting = waiting.replace("passed() < 9", "passed() < 30").replace(
        "WAIT",
        "
epoll = select.epoll()
epoll.register(connection, select.EPOLLIN)
(_, events), = epoll.poll(30)
assert events == select.EPOLLIN, events",
    );
    let (server, client) = fork_safely(&world, (GREETER, &[]), (&waiting, Some(&[])));
    assert!(server.contains("by TCP") && client.contains("by TCP"), "{server}{client}");
}

/// A client of TCP alone reads what the server has sent and nothing else, also when it is silent while the server waits for an
/// rsocket. If it sends, the server doesn't wait.
#[test]
fn clients_of_tcp_read_what_a_server_that_forks_sends() {
    let world = require!(World::two_hosts(1500));
    let (server, _) = fork_safely(&world, (GREETER, &[]), (GREETED, None));
    assert!(server.contains("by TCP"), "{server}");
    for (pause, late) in [("0", "1"), ("1", "0")] {
        let server = "
listener = socket.create_server(address)
print('listening', flush=True)
connection, _ = listener.accept()
time.sleep(float(sys.argv[2]))
connection.sendall(connection.recv(1000))
print('by', kind(connection), flush=True)
";
        let client = "
connection = socket.create_connection(address)
time.sleep(LATE)
connection.sendall(b'question')
got = all_of(connection)
assert got == b'question', got
assert passed() < 9, passed()
";
        let (server, _) = fork_safely(&world, (server, &[pause]), (&client.replace("LATE", late), None));
        assert!(server.contains("by TCP"), "{server}");
    }
}

/// When the client can't have an rsocket, or none that connects, both sides go on by TCP, and the stream has no byte more.
#[test]
fn a_replacement_that_fails_leaves_the_stream_alone() {
    let world = require!(World::two_hosts(1500));
    let (server, client) =
        fork_safely(&world, (GREETER, &[]), (GREETED, Some(&[("FERROCE_DEVICES", "none")])));
    assert!(server.contains("by TCP") && client.contains("by TCP"), "{server}{client}");
    // Nobody answers the request for an rsocket, whatever word has come: that of rdma-core's library may be what the program says.
    for (word, greeting) in [("send(b'x', socket.MSG_OOB)", ""), ("sendall(bytes(4))", "bytes(4) + ")] {
        let server = "
listener = socket.create_server(address)
print('listening', flush=True)
connection, _ = listener.accept()
connection.WORD
connection.settimeout(30)
assert connection.recv(1000) == b'question'
connection.sendall(b'greeting')
assert connection.recv(1000) == b''
";
        let client = "
connection = socket.create_connection(address)
connection.sendall(b'question')
assert kind(connection) == 'TCP'
expected = GREETING b'greeting'
got = connection.recv(len(expected), socket.MSG_WAITALL)
assert got == expected, got
print('took', passed(), flush=True)
";
        let path = write(world.last(), "server", &[FORKING, &server.replace("WORD", word)].concat());
        let address = world.last().ipv4();
        let mut server = world.last().start(&["python3", &path, &address], &[]);
        server.wait_for_output("listening", LIMIT);
        let client = [FORKING, &client.replace("GREETING", greeting)].concat();
        let path = write(world.first(), "client", &client);
        let client =
            world.first().start_ferroce(SOCKETS, &["python3", &path, &address], FORK_SAFE).wait(LIMIT);
        let server = server.wait(LIMIT);
        assert!(client.success() && server.success(), "server: {server}client: {client}");
    }
}

/// A server that looks at its connection only when its client has given up: the word comes too late, and isn't read.
#[test]
fn a_late_server_goes_on_by_tcp() {
    let world = require!(World::two_hosts(1500));
    let (server, client) = fork_safely(&world, (GREETER, &["12"]), (GREETED, Some(&[])));
    assert!(server.contains("by TCP") && client.contains("by TCP"), "{server}{client}");
}

/// What a program has set before an rsocket takes a socket's place stays, and copies of a listener's number accept as it does.
#[test]
fn options_outlive_the_replacement() {
    let world = require!(World::two_hosts(1500));
    let settings = "
timeout = struct.pack('ll', 1, 0)
def prepare(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
def check(s):
    assert kind(s) == 'rsocket'
    for name in socket.SO_RCVTIMEO, socket.SO_SNDTIMEO:
        assert s.getsockopt(socket.SOL_SOCKET, name, 16) == timeout
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert s.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 77
    assert not s.get_inheritable()
    try:
        assert False, s.recv(100)
    except BlockingIOError:
        pass
";
    let server = "
listener = socket.create_server(address)
copy = listener.dup()
listener.close()
print('listening', flush=True)
connection, _ = copy.accept()
prepare(connection)
connection.sendall(b'greeting')
check(connection)
time.sleep(5)
";
    let client = "
connection = socket.create_connection(address)
prepare(connection)
assert connection.recv(100) == b'greeting'
check(connection)
";
    fork_safely(&world, (&[settings, server].concat(), &[]), (&[settings, client].concat(), Some(&[])));
}

/// A number that led to a socket which was to be replaced, and leads elsewhere now, is nothing of rsockets. A child that is forked
/// while another thread waits for an rsocket doesn't wait for that thread.
#[test]
fn what_numbers_have_been_is_forgotten() {
    let world = require!(World::one_host(1500));
    let server = "
listener = socket.create_server(address)
print('listening', flush=True)
connections = [listener.accept()[0] for _ in range(3)]
time.sleep(3)
print('got', all_of(connections[1]), flush=True)
print('got', all_of(connections[2]), flush=True)
";
    let client = "
first = socket.create_connection(address)
number = first.detach()
os.closerange(number, number + 1)
ends = os.pipe()
assert number in ends, (number, ends)
os.write(ends[1], b'x')
assert os.read(ends[0], 10) == b'x'
second = socket.create_connection(address)
third = socket.create_connection(address)
ends = os.pipe()
os.dup2(ends[1], third.fileno())
os.write(third.fileno(), b'x')
assert os.read(ends[0], 10) == b'x'
assert passed() < 5, passed()
thread = threading.Thread(target=second.recv, args=(100,), daemon=True)
thread.start()
time.sleep(0.5)
child = os.fork()
if child == 0:
    second.sendall(b'from the child')
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert passed() < 9, passed()
os._exit(0)
";
    let (server, _) = fork_safely(&world, (server, &[]), (client, Some(&[])));
    assert!(server.contains("from the child"), "{server}");
}

/// An rsocket from another address than the peer's isn't taken for the peer's.
#[test]
fn a_stranger_is_not_taken_for_the_peer() {
    let world = require!(World::two_hosts(1500));
    let path = write(world.last(), "server", &[FORKING, GREETER].concat());
    let address = world.last().ipv4();
    let mut server = world.last().start_ferroce(SOCKETS, &["python3", &path, &address], FORK_SAFE);
    server.wait_for_output("listening", LIMIT);
    // The peer is silent, so the server waits for its rsocket.
    let path = write(world.first(), "client", &[FORKING, GREETED].concat());
    let mut client = world.first().start(&["python3", &path, &address], &[]);
    world.last().wait_for_rdma_port(TCP, 7000, &mut server, LIMIT);
    let stranger = "
connection = socket.create_connection(address)
assert kind(connection) == 'rsocket'
try:
    got = connection.recv(100)
except ConnectionResetError:
    got = b''
assert got == b'', got
assert passed() < 9, passed()
";
    let path = write(world.last(), "stranger", &[FORKING, stranger].concat());
    world.last().start_ferroce(SOCKETS, &["python3", &path, &address], &[]).wait(LIMIT).expect_success();
    let (client, server) = (client.wait(LIMIT), server.wait(LIMIT));
    assert!(client.success() && server.success(), "server: {server}client: {client}");
    assert!(server.stdout.contains("by TCP"), "{server}");
}

/// Signals come while both sides wait for the other: they wait on.
#[test]
fn signals_do_not_stop_a_replacement() {
    let world = require!(World::two_hosts(1500));
    let signals = "
import signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
";
    for (server_later, client_later) in [("1", "0"), ("0", "1")] {
        let server = GREETER.replace("print('greets'", &[signals, "print('greets'"].concat());
        let client = GREETED
            .replace(
                "got = connection.recv(1000)",
                &[signals, "time.sleep(LATER)\ngot = connection.recv(1000)"].concat(),
            )
            .replace("LATER", client_later);
        let [server, client] =
            [server, client].map(|text| text + "signal.setitimer(signal.ITIMER_REAL, 0)\n");
        let (server, client) = fork_safely(&world, (&server, &[server_later]), (&client, Some(&[])));
        assert!(server.contains("by rsocket") && client.contains("by rsocket"), "{server}{client}");
    }
}

/// rdma-core's library at the server, which says in the stream that it listens.
#[test]
fn a_server_of_rdma_cores_library_forks() {
    require!(tool("rstream", "rdmacm-utils"));
    let library = format!("/usr/lib/{}-linux-gnu/rsocket/librspreload.so", std::env::consts::ARCH);
    if !Path::new(&library).exists() {
        require!(Err(ferroce_tests::Skip(format!("no {library}, which is of Debian's librdmacm1"))));
    }
    let world = require!(World::two_hosts(1500));
    let line =
        words(&format!("env LD_PRELOAD={library} rstream -b SERVER -I 100 -C 20 -S 65536 -T f -T v"), &world);
    let mut server = world.last().start_ferroce(&[], &line, FORK_SAFE);
    world.last().wait_for_listener(7471, &mut server, LIMIT);
    let before = segments(&world);
    let line = words("rstream -s SERVER -I 100 -C 20 -S 65536 -T f -T v", &world);
    let client = world.first().start_ferroce(SOCKETS, &line, FORK_SAFE).wait(LIMIT);
    let server = server.wait(LIMIT);
    assert!(client.success() && server.success(), "server: {server}client: {client}");
    client.expect_quiet();
    assert!(segments(&world) - before < 100, "{before} segments of TCP, then {}", segments(&world));
}

/// Children of a fork leave their parent's rsockets alone.
#[test]
fn a_program_that_starts_others_keeps_its_sockets() {
    let world = require!(World::one_host(1500));
    let program = write(
        world.first(),
        "parent",
        "
import socket, subprocess, sys
listener = socket.create_server((sys.argv[1], 7000))
client = socket.create_connection((sys.argv[1], 7000))
server, _ = listener.accept()
for _ in range(3):
    client.sendall(b'before')
    subprocess.run(['true'], check=True, close_fds=True)
    subprocess.run(['true'], check=True, close_fds=False)
    assert server.recv(100) == b'before'
    server.sendall(b'after')
    assert client.recv(100) == b'after'
",
    );
    let address = world.first().ipv4();
    world.first().start_ferroce(SOCKETS, &["python3", &program, &address], &[]).wait(LIMIT).expect_success();
}

/// Without a device an rsocket can't be, and the socket is an ordinary one.
#[test]
fn without_a_device_sockets_are_ordinary() {
    let path = require!(Artifacts::get().c_program("sockets/behaviour"));
    let world = require!(World::one_host(1500));
    let outcome = world
        .first()
        .start_ferroce(SOCKETS, &[&*path, "half_close"], &[("FERROCE_DEVICES", "none")])
        .wait(LIMIT);
    assert!(Path::new(&path).exists());
    outcome.expect_success();
}
