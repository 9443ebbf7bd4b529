//! Servers that fork: with RDMAV_FORK_SAFE a stream changes from TCP to an rsocket.

use super::{LIMIT, Place, SOCKETS, TCP, segments, words, write};
use ferroce_tests::{World, require, tool};
use std::path::Path;

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

/// What the Python programs of both sides begin with. `kind` returns what a number leads to.
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

/// It greets the client that connects, and sends back what it gets.
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
        Some(settings) => {
            // Set behind `ferroce run`, which refuses what means nothing.
            let settings: Vec<String> =
                settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let set = std::iter::once("env").chain(settings.iter().map(String::as_str));
            world.first().start_ferroce(SOCKETS, &set.chain(line).collect::<Vec<_>>(), FORK_SAFE)
        }
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
    // The server leaves the request for an rsocket unanswered, whatever bytes it has received: the program may send the same bytes as
    // rdma-core's library does in its request.
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

/// rdma-core's library at the server, which announces in the stream that it listens.
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

/// A process that has waited for an rsocket forks. Its child listens, and both wait at the same time: neither takes the other's wakeups.
#[test]
fn a_child_and_its_parent_are_woken_each_by_its_own_sockets() {
    let world = require!(World::one_host(9000));
    let program = write(
        world.first(),
        "program",
        "
import os, signal, socket, sys
def serve(port):
    ready, pipe = os.pipe()
    pid = os.fork()
    if pid:
        os.read(ready, 1)
        return pid
    listener = socket.create_server((sys.argv[1], port))
    os.write(pipe, b'x')
    while True:
        stream, _ = listener.accept()
        stream.sendall(stream.recv(100))
        stream.recv(1)
        stream.close()
def visit(port):
    stream = socket.create_connection((sys.argv[1], port), timeout=30)
    stream.sendall(b'word')
    assert stream.recv(100) == b'word'
    stream.close()
children = [serve(7001)]
visit(7001)
children.append(serve(7002))
for _ in range(60):
    visit(7002)
for child in children:
    os.kill(child, signal.SIGKILL)
print('ok')
",
    );
    let address = world.first().ipv4();
    world.first().start_ferroce(SOCKETS, &["python3", &program, &address], &[]).wait(2 * LIMIT).expect_ok();
}
