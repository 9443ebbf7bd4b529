//! How streams begin and end when a peer doesn't keep to the usual order: requests that no peer confirms, programs that end or are
//! killed.

use super::{LIMIT, Place, SOCKETS, TCP, write};
use ferroce_tests::{Host, World, require};

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

/// A program may end without closing its sockets: what it has sent arrives, and then the end of the stream.
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

/// A close returns though the peer is stopped. The peer gets all bytes and the end in order when it goes on: the closed stream is attended
/// in the background, and the end of the process waits for it.
#[test]
fn a_close_does_not_wait_for_a_stopped_peer() {
    [Place::OneHost, Place::OneHostUdp].into_iter().for_each(close_before_a_stopped_peer);
}

fn close_before_a_stopped_peer(place: Place) {
    let world = require!(place.world());
    let server = write(
        world.last(),
        "server",
        "
import os, signal, socket, sys
listener = socket.create_server((sys.argv[1], 7000))
streams = [listener.accept()[0] for _ in range(2)]
for stream in streams:
    stream.sendall(b'x')
os.kill(os.getpid(), signal.SIGSTOP)
for stream in streams:
    total = 0
    while data := stream.recv(100000):
        total += len(data)
    print(total, 'bytes and the end')
",
    );
    let client = write(
        world.first(),
        "client",
        "
import socket, sys, time
streams = [socket.create_connection((sys.argv[1], 7000)) for _ in range(2)]
for stream in streams:
    stream.recv(1)
    stream.sendall(bytes(20000))
time.sleep(0.2)
streams[0].setblocking(False)
began = time.monotonic()
for stream in streams:
    stream.close()
took = time.monotonic() - began
assert took < 20, took
print('closed', flush=True)
",
    );
    let address = world.last().ipv4();
    let start = |host: &Host, program: &str| {
        host.start_ferroce(SOCKETS, &["python3", program, &address], place.settings())
    };
    let mut server = start(world.last(), &server);
    world.last().wait_for_rdma_port(TCP, 7000, &mut server, LIMIT);
    let mut client = start(world.first(), &client);
    client.wait_for_output("closed", LIMIT);
    server.signal(libc::SIGCONT);
    client.wait(LIMIT).expect_success();
    let outcome = server.wait(LIMIT);
    outcome.expect_success();
    assert_eq!(outcome.stdout.matches("20000 bytes and the end").count(), 2, "{outcome}");
}

/// A client sends, shuts its end, gets a byte, and exits without `close`. Its server then reads the last of what has come, slowly.
#[test]
fn a_stream_that_is_shut_ends_in_order_when_its_program_exits() {
    [Place::OneHost, Place::OneHostUdp, Place::TwoHosts].into_iter().for_each(shut_and_exit);
}

fn shut_and_exit(place: Place) {
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
        "
import socket, sys
connection = socket.create_connection((sys.argv[1], 7000))
connection.sendall(bytes(1 << 20))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
connection.detach()
",
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
    assert!(outcome.stdout.contains("0 left and the end"), "{outcome}");
}

/// A killed program hasn't announced the end of its stream. On one host its death ends the connection.
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
