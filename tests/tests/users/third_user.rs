//! What a third user of the host can do to the processes of two others by the names, sockets and files at which these meet:
//! the table in docs/design/host.md has a row for each kind.

use super::{
    ASKS, FABRICS, FIRST, LIMIT, PING_PONG, Pair, SECOND, THIRD, expect_no_complaint, holder, hosts, python,
    start, trusting,
};
use ferroce_tests::{Artifacts, Fabric, Host, Process, World, record_skip, require, tool, wait::eventually};
use std::time::Duration;

/// The names that a program has which listens at all addresses, as those spell them that look for it.
const WILDCARD: &str = "-port-0106-7174-0.0.0.0";

fn names(host: &Host) -> String {
    host.admin("cat /proc/net/unix")
}

/// An attacker that has been at it, and goes on until this is dropped.
fn at_it(world: &World, attack: &str) -> Process {
    let mut attacker = python(world, attack);
    attacker.wait_for_output("at it", LIMIT);
    attacker
}

/// The attacker got nothing that was meant for others.
fn expect_nothing_stolen(mut attacker: Process) {
    assert!(!attacker.has_ended(), "{}", attacker.wait(LIMIT));
    assert!(!attacker.stdout().contains("stolen"), "{}", attacker.stdout());
}

/// A listener of `server` at all addresses, and whether a client of `client` reaches it. `between` runs once it listens.
fn connect_at_wildcard<T>(world: &World, [server, client]: [&str; 2], between: impl FnOnce() -> T) -> T {
    let mut server = start(world.first(), server, Fabric::Any, "rping -s -C 2");
    eventually("the server listens", || {
        assert!(!server.has_ended(), "{}", server.wait(LIMIT));
        names(world.first()).contains(WILDCARD)
    });
    let made = between();
    let line = format!("rping -c -C 2 -a {}", world.first().ipv4());
    let client = start(world.first(), client, Fabric::Any, &line);
    for outcome in Pair::finish(client, server) {
        expect_no_complaint(outcome.expect_success());
    }
    made
}

/// Names at which requests for port 7174 of the host's address could be looked for before its wildcard.
const PORT_TRAPS: &str = "
numbers = ['ferroce-%s-port-0106-7174' % user for user in ('2', '2-u12345', '1', '1-u12345', '1-u23456')]
addresses = ['10.77.0.1', '10.77.0.1!', '127.0.0.1', '::', '::!', '::1', '::ffff:10.77.0.1']
names = [n + '-' + a for n in numbers for a in addresses] + numbers";

#[test]
fn requests_for_a_port_go_to_its_user_though_a_third_user_binds_names_that_cover_it() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let _holder = holder(&world, FIRST);
    for users in [[FIRST, FIRST], [SECOND, FIRST], [FIRST, SECOND], [SECOND, SECOND]] {
        let attacker =
            connect_at_wildcard(&world, users, || at_it(&world, &format!("{PORT_TRAPS}\ntrap(names)")));
        expect_nothing_stolen(attacker);
    }
}

#[test]
fn names_that_a_third_user_has_bound_keep_no_user_from_a_port() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let attack = format!("{PORT_TRAPS}\ntrap([n for n in names if n != numbers[0]])");
    let attacker = at_it(&world, &attack);
    for users in [[FIRST, FIRST], [SECOND, FIRST]] {
        connect_at_wildcard(&world, users, || ());
    }
    expect_nothing_stolen(attacker);
}

/// As a port of TCP is.
#[test]
fn a_port_whose_number_a_third_user_has_is_in_use_and_its_user_named() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let number = "ferroce-2-port-0106-7174";
    let listen = |name: &str| {
        format!("s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind('\\0{name}'); s.listen(8)")
    };
    let bound = format!("{}\nprint('at it'); time.sleep(100)", listen(number).replace("; s.listen(8)", ""));
    let listening = format!("{}\nprint('at it'); time.sleep(100)", listen(number));
    let at_address = format!("{}\nprint('at it'); time.sleep(100)", listen(&format!("{number}-0.0.0.0")));
    // More connections than the listener's queue has room for.
    let crowded = |name: &str| {
        format!(
            "{}
held = [s]
for n in range(12):
    c = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); c.setblocking(False); held.append(c)
    try: c.connect('\\0{name}')
    except BlockingIOError: break
else: raise SystemExit('room for all')
print('at it'); time.sleep(100)",
            listen(name)
        )
    };
    let crowds = [crowded(number), crowded(&format!("{number}-0.0.0.0"))];
    for attack in [listening, bound, at_address].into_iter().chain(crowds) {
        let says = "port 7174 is taken by a process of user 34567";
        let _attacker = at_it(&world, &attack);
        let refused = start(world.first(), FIRST, Fabric::Any, "rping -s -C 2").wait(LIMIT);
        assert!(!refused.success() && refused.stderr.contains("Address already in use"), "{refused}");
        assert!(refused.stderr.contains(says), "{says}: {refused}");
        assert_eq!(refused.stderr.matches("ferroce").count(), 1, "one line: {refused}");
    }
    connect_at_wildcard(&world, [FIRST, FIRST], || ());
}

/// The number of a port stays its user's when the process ends that had it first.
#[test]
fn a_number_is_one_users_as_long_as_any_of_the_users_processes_has_it() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let at = |address: &str| {
        let mut server = start(world.first(), FIRST, Fabric::Any, &format!("rping -s -C 2 -a {address}"));
        eventually("the server listens", || {
            assert!(!server.has_ended(), "{}", server.wait(LIMIT));
            names(world.first()).contains(&format!("-port-0106-7174-{address}"))
        });
        server
    };
    let (mut first, mut second) = (at(&world.first().ipv4()), at(&world.first().ipv6()));
    let attacker = at_it(
        &world,
        "import threading
def take():
    while True:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try: s.bind('\\0ferroce-2-port-0106-7174')
        except OSError: continue
        finally: s.close()
        print('stolen the number'); return
for n in range(2): threading.Thread(target=take, daemon=True).start()
print('at it'); time.sleep(100)",
    );
    first.signal(libc::SIGKILL);
    first.wait(LIMIT);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!attacker.stdout().contains("stolen"), "{}", attacker.stdout());
    let line = format!("rping -c -C 2 -a {}", world.first().ipv6());
    let client = start(world.first(), FIRST, Fabric::Any, &line).wait(LIMIT);
    expect_no_complaint(client.expect_success());
    second.wait(LIMIT).expect_success();
}

/// Messages that no process of the port's user has sent.
#[test]
fn a_third_users_messages_reach_no_port_and_no_connection() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let _holder = holder(&world, FIRST);
    let forge = "
import threading
def mad():
    p = bytes([0x64, 0x40, 0xff, 0xff]) + struct.pack('!II', 1, random.getrandbits(24)) + struct.pack('!II', 0x80010000, 1)
    p += bytes([1, 7, 2, 3]) + bytes(12) + struct.pack('!H', random.choice([0x10, 0x12, 0x13, 0x14, 0x15])) + random.randbytes(238) + bytes(4)
    home = bytes(10) + b'\\xff\\xff' + HOME
    record = struct.pack('=I', len(p)) + (home + bytes(4)) * 2 + struct.pack('=HHBBBBI', 4791, 0, 0, 0, 0, 0, 0)
    return b'FRC2' + record + p
def flood():
    while True:
        for name in ['ferroce-2-port-0106-7174-0.0.0.0', 'ferroce-2-port-0106-7174'] + ['ferroce-2-slot-%d' % n for n in slots()]:
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.setblocking(False)
            try: s.connect('\\0' + name); s.send(mad())
            except OSError: pass
            s.close()
        for n in slots(): send(inbox(n), mad())
        time.sleep(0.005)
threading.Thread(target=flood, daemon=True).start()
print('at it'); time.sleep(100)";
    let attacker = at_it(&world, forge);
    for users in [[FIRST, FIRST], [SECOND, FIRST], [FIRST, SECOND]] {
        connect_at_wildcard(&world, users, || ());
    }
    expect_nothing_stolen(attacker);
}

#[test]
fn connections_that_a_third_user_keeps_at_a_port_hold_up_no_request() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let dial = "
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
for n in range(500):
    for name in ['', '-0.0.0.0']:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); held.append(s)
        s.connect('\\0ferroce-2-port-0106-7174' + name)
print('at it'); time.sleep(100)";
    let attacker = connect_at_wildcard(&world, [FIRST, FIRST], || at_it(&world, dial));
    expect_nothing_stolen(attacker);
}

#[test]
fn packets_for_a_guest_go_to_the_guest_though_a_third_user_binds_names_of_its_slot() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    for fabric in FABRICS {
        let world = require!(hosts(|| World::one_host(1500)));
        let _holder = holder(&world, FIRST);
        let pair =
            Pair { users: [SECOND, FIRST], line: "ibv_rc_pingpong -g 1 -c -n 300 -p 19001", port: 19001 };
        let server = pair.start_server(&world, fabric);
        let attacker = at_it(
            &world,
            "taken = slots() | slots('ferroce-1-slot-')
trap(['ferroce-%d-u%d-slot-%d' % (v, u, n) for v in (1, 2) for u in (12345, 23456, 34567) for n in taken])",
        );
        for outcome in Pair::finish(pair.start_client(&world, fabric), server) {
            expect_no_complaint(outcome.expect_success());
        }
        expect_nothing_stolen(attacker);
    }
}

/// The names that list slots don't show which user has the slots.
#[test]
fn names_that_list_slots_keep_no_user_from_devices_when_a_third_user_has_them_all() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let attacker = at_it(
        &world,
        "resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
trap(['ferroce-2-u12345-leader'] + ['ferroce-2-u12345-slot-%d' % n for n in range(1, 4095)])",
    );
    Pair { users: [FIRST, FIRST], line: "ibv_rc_pingpong -g 1 -c -n 100 -p 19001", port: 19001 }
        .run(&world, Fabric::Any);
    expect_nothing_stolen(attacker);
}

/// The same link-local address at another interface is another address: its port is another one too.
#[test]
fn the_holder_of_a_link_local_address_is_the_user_at_its_interface() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    world.first().admin(
        "ip link add other0 type veth peer name other1 && ip link set other1 addrgenmode none up && \
         ip link set other0 addrgenmode none up && ip addr add fe80::1/64 dev other0 nodad",
    );
    let _holder = holder(&world, FIRST);
    let attack = "s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.bind(('fe80::1', 4791, 0, socket.if_nametoindex('other0')))
print('at it'); time.sleep(100)";
    let attacker = at_it(&world, attack);
    for users in [[FIRST, SECOND], [SECOND, FIRST]] {
        // The GID with index 0 is that of the link-local address.
        let line = "ibv_rc_pingpong -g 0 -c -n 100 -p 19001";
        Pair { users, line, port: 19001 }.run(&world, Fabric::Udp);
    }
    expect_nothing_stolen(attacker);
}

/// Memory is shared over a connection whose other end is proven.
#[test]
fn a_third_user_makes_no_links_in_the_name_of_others() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let _holder = holder(&world, FIRST);
    let attacker = at_it(
        &world,
        "names = ['ferroce-2-u%d-leader' % u for u in (23456, 34567)]
names += ['ferroce-2-u%d-slot-%d' % (u, n) for u in (12345, 23456) for n in range(1, 400)]
trap(names)",
    );
    let log = trusting(&world, PING_PONG, [Some(SECOND), Some(FIRST)]);
    assert_eq!(log.matches("shares memory with a process").count(), 2, "{log}");
    expect_nothing_stolen(attacker);
}

/// A process that joins asks the leader for the sockets of the port.
#[test]
fn sockets_that_a_third_user_hands_out_as_a_leader_are_not_taken() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let attacker = at_it(
        &world,
        "import array, threading
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind('\\0ferroce-2-u12345-leader'); listener.listen(64)
bad = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for n in range(64)]
def answer():
    while True:
        c = listener.accept()[0]; c.settimeout(1)
        home = bytes(10) + b'\\xff\\xff' + HOME + bytes(4)
        try:
            socket.send_fds(c, [b'FRCE' + bytes([2, 0, 0, 0]) + home], [b.fileno() for b in bad])
            if c.recv(100): print('stolen a request')
        except OSError: pass
threading.Thread(target=answer, daemon=True).start()
print('at it'); time.sleep(100)",
    );
    let _holder = holder(&world, FIRST);
    for fabric in FABRICS {
        Pair { users: [FIRST, FIRST], line: "ibv_rc_pingpong -g 1 -c -n 100 -p 19001", port: 19001 }
            .run(&world, fabric);
    }
    expect_nothing_stolen(attacker);
}

/// What processes of one user ask each other: sockets, memory, tables, XRC, lifelines, accounts, a port's number.
#[test]
fn a_third_users_requests_get_no_answer_at_any_listener() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    connect_at_wildcard(&world, [FIRST, FIRST], || {
        let ask = format!(
            "{ASKS}
listeners = ['ferroce-2-slot-%d' % n for n in slots()]
listeners += ['ferroce-2-u12345-leader', 'ferroce-2-port-0106-7174', 'ferroce-2-port-0106-7174-0.0.0.0']
for name in listeners:
    for kind in range(1, 13): refused(name, kind)
print('refused')"
        );
        python(&world, &ask).wait(LIMIT).expect_success();
    });
}

/// Gives each name the file that `file` returns, and keeps no descriptor of it that `forget` closes.
const GIVES: &str = "
import array
kept = []
def give(name, kind):
    s, f = socket.socket(socket.AF_UNIX, kind), file()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [f.fileno()]))]
    try: s.connect('\\0' + name); s.sendmsg([b'x'], rights)
    except OSError: pass
    kept.append(s); forget(f)
rows = [line.split() for line in open('/proc/net/unix') if '@ferroce-2-' in line]
names = {(row[7][1:], int(row[4], 16)) for row in rows if row[4] == '0002' or row[5] == '01'}
for name in sorted(names) * 6: give(*name)
print('at it')
time.sleep(600)";

/// TCP connections whose last close waits for an hour.
const LINGERING: &str = "
import threading
gate = socket.socket(); gate.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
gate.bind(('10.77.0.1', 0)); gate.listen(64)
silent = []
def file():
    c = socket.create_connection(gate.getsockname()); silent.append(gate.accept()[0]); c.setblocking(False)
    try:
        while True: c.send(bytes(65536))
    except OSError: pass
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 3600))
    return c
def forget(c): threading.Thread(target=c.close, daemon=True).start()";

/// A file of a FUSE server that answers no close but its own process's (FLUSH): another process's thread can't be killed in it.
const UNANSWERED: &str = "
import ctypes, errno
libc, opener = ctypes.CDLL(None, use_errno=True), os.getpid()
def need(result):
    if result != 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
uid, gid = os.getuid(), os.getgid()
need(libc.unshare(0x10000000 | 0x20000))
for name, text in (('setgroups', 'deny'), ('uid_map', '0 %d 1' % uid), ('gid_map', '0 %d 1' % gid)):
    with open('/proc/self/' + name, 'w') as map: map.write(text)
device = os.open('/dev/fuse', os.O_RDWR)
need(libc.mount(b'fuse', b'/tmp', b'fuse', 0, b'fd=%d,rootmode=40000,user_id=0,group_id=0' % device))
def attributes(n): return struct.pack('=6Q10I', n, *[0] * 8, 0o40755 if n == 1 else 0o100666, 1, 0, 0, 0, 4096, 0)
def serve():
    INIT, LOOKUP, GETATTR, OPEN, FLUSH, FORGET, INTERRUPT = 26, 1, 3, 14, 25, 2, 36
    while True:
        _, call, unique, node, _, _, pid = struct.unpack_from('=IIQQIII', os.read(device, 1 << 18))
        answers = {INIT: struct.pack('=4I2H2I2HI', 7, 31, 0, 0, 12, 9, 1 << 16, 1, 0, 0, 0) + bytes(28),
                   LOOKUP: struct.pack('=4Q2I', 2, 1, 100, 100, 0, 0) + attributes(2),
                   GETATTR: struct.pack('=QII', 100, 0, 0) + attributes(node),
                   OPEN: struct.pack('=QII', 5, 0, 0)}
        if call == FLUSH and pid == opener: answers[FLUSH] = b''
        if call not in (FLUSH, FORGET, INTERRUPT) or call in answers:
            answer, error = answers.get(call, b''), 0 if call in answers else -errno.ENOSYS
            os.write(device, struct.pack('=IiQ', 16 + len(answer), error, unique) + answer)
if os.fork() == 0:
    libc.prctl(1, 9)
    serve()
os.close(device)
opened = open('/tmp/f', 'rb')
def file(): return opened
def forget(f): pass";

const REFUSES_NONE: &str = "the kernel refuses no descriptors (SO_PASSRIGHTS, Linux 6.16)";

fn refuses_descriptors(world: &World) -> bool {
    python(world, "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, 83, 0)").wait(LIMIT).success()
}

/// An idle process answers by its background thread: one that joins gets the sockets of the port from it, and one that connects is accepted.
fn expect_no_hold_up(world: &World, files: &str) {
    let _holder = holder(world, FIRST);
    let waits = Pair { users: [FIRST, FIRST], line: "ibv_rc_pingpong -g 1 -n 100 -e -p 19001", port: 19001 };
    for fabric in super::FABRICS {
        let server = waits.start_server(world, fabric);
        let attack = format!("{files}\n{GIVES}");
        let attacker = connect_at_wildcard(world, [FIRST, FIRST], || at_it(world, &attack));
        for outcome in Pair::finish(waits.start_client(world, fabric), server) {
            expect_no_complaint(outcome.expect_success());
        }
        expect_nothing_stolen(attacker);
    }
}

#[test]
fn descriptors_that_a_third_user_sends_to_every_name_hold_up_no_process() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    expect_no_hold_up(&world, LINGERING);
}

/// Nor can a process end while a thread of it waits for a FUSE server.
#[test]
fn files_whose_close_a_third_user_never_answers_keep_no_process_from_its_end() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    if !refuses_descriptors(&world) {
        return record_skip(REFUSES_NONE);
    }
    expect_no_hold_up(&world, UNANSWERED);
}

/// So no file of its making lies in a socket of another user's, where a last close can wait for its server.
#[test]
fn no_name_takes_a_descriptor_that_a_third_user_sends() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    if !refuses_descriptors(&world) {
        return record_skip(REFUSES_NONE);
    }
    let taken = "
taken = []
def file(): return open('/dev/null')
def forget(f): f.close()
class Watched(socket.socket):
    def sendmsg(self, *what):
        super().sendmsg(*what); taken.append(self.getpeername())
socket.socket = Watched";
    connect_at_wildcard(&world, [FIRST, FIRST], || {
        let attack = GIVES.replace("print('at it')\ntime.sleep(600)", "assert names and not taken, taken");
        python(&world, &format!("{taken}\n{attack}")).wait(LIMIT).expect_success();
    });
}

#[test]
fn a_third_users_notices_lead_no_guest_away_from_its_attendant() {
    let notices = "home = bytes(10) + b'\\xff\\xff' + HOME\nprint('at it')\nwhile True:\n  for s in slots():\n    for kind in (1, 2): send(inbox(s), b'FRCN' + bytes([kind, 0, 0, 0]) + home + bytes(4) + struct.pack('=HHQ', random.choice([7, s]), 0, 2**64 - 1))\n  time.sleep(0.01)";
    super::while_attacked(notices, [SECOND, SECOND]);
}

/// A third user that has a slot of its own lists it as the watcher's.
#[test]
fn a_third_user_neither_watches_others_nor_is_shown_as_their_process() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let _holder = holder(&world, FIRST);
    // Of two names the queues of connections are full: their listeners can't be asked.
    let attack = "names = ['ferroce-2-slot-4000', 'ferroce-2-u12345-slot-4000']
full = []
for n in (4001, 4002):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); full.append(s)
    s.bind('\\0ferroce-2-u12345-slot-%d' % n)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); full.append(s)
    s.bind('\\0ferroce-2-slot-%d' % n); s.listen(0)
    c = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); full.append(c)
    c.connect('\\0ferroce-2-slot-%d' % n)
trap(names)";
    let _attacker = at_it(&world, attack);
    let ferroce = Artifacts::get().ferroce();
    let ferroce = ferroce.to_str().expect("a UTF-8 path");
    let ps = |user: &str| {
        let words = [&World::as_user(user)[..], &[ferroce, "ps", "--json"]].concat();
        world.first().start_ferroce_privileged(&[], &words, &[]).wait(LIMIT).expect_success().stdout.clone()
    };
    assert!(!ps(THIRD).contains("12345"), "{}", ps(THIRD));
    let own = ps(FIRST);
    assert!(own.contains("12345") && own.matches("\"condition\"").count() == 1, "{own}");
}

/// Neither descriptors nor memory of a process are another user's, and no shared memory has a name.
#[test]
fn a_third_user_opens_no_descriptor_and_reads_no_memory_of_others() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let _holder = holder(&world, FIRST);
    let look = "tried = 0
for pid in os.listdir('/proc'):
    try:
        if not pid.isdigit() or os.stat('/proc/' + pid).st_uid != 12345: continue
    except OSError: continue
    for file in ('fd/3', 'fd/1024', 'mem', 'map_files', 'maps', 'environ'):
        try: open('/proc/%s/%s' % (pid, file), 'rb').read(1); print('stolen', file)
        except OSError: tried += 1
assert tried, 'no process'
assert not [f for f in os.listdir('/dev/shm') if 'ferroce' in f]
print('nothing')";
    assert_eq!(python(&world, look).wait(LIMIT).expect_success().stdout, "nothing\n");
}

/// A file that another user has made first is that user's: what is written there can be read there.
#[test]
fn nothing_is_written_to_a_capture_or_a_report_that_a_third_user_has_made() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let directory = "/tmp/ferroce-third-user";
    world.first().admin(&format!("rm -rf {directory}; mkdir -m 1777 {directory}"));
    let made = format!("{directory}/theirs.pcapng");
    let make =
        format!("os.umask(0); open('{made}', 'w').close(); os.symlink('{made}', '{directory}/link.pcapng')");
    python(&world, &make).wait(LIMIT).expect_success();
    let listing = |file: &str| world.first().admin(&format!("stat -c '%a %s' {directory}/{file}"));
    let ferroce = Artifacts::get().ferroce();
    let ferroce = ferroce.to_str().expect("a UTF-8 path");
    let run = |variable: &str, file: &str| {
        let variable = format!("{variable}={directory}/{file}");
        let words = [&World::as_user(FIRST)[..], &["env", &variable, ferroce, "run", "ibv_devinfo"]].concat();
        world.first().start_ferroce_privileged(&[], &words, &[]).wait(LIMIT)
    };
    for file in ["theirs.pcapng", "link.pcapng"] {
        let refused = run("FERROCE_CAPTURE", file);
        assert!(!refused.success() && refused.stderr.contains("it belongs to user 34567"), "{refused}");
    }
    assert_eq!(listing("theirs.pcapng").trim(), "666 0");
    // A link that leads nowhere makes no file.
    let dangling = format!("os.symlink('{directory}/new.pcapng', '{directory}/dangling.pcapng')");
    python(&world, &dangling).wait(LIMIT).expect_success();
    let refused = run("FERROCE_CAPTURE", "dangling.pcapng");
    assert!(!refused.success() && refused.stderr.contains("it belongs to user 34567"), "{refused}");
    let left = world.first().admin(&format!("ls {directory}"));
    assert!(!left.contains("new.pcapng"), "{left}");
    // One that the user makes is the user's alone.
    run("FERROCE_CAPTURE", "own.pcapng").expect_success();
    assert!(listing("own.pcapng").starts_with("600 "), "{}", listing("own.pcapng"));
    world.first().admin(&format!("rm -rf {directory}"));
}
