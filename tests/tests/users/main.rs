//! Two users on a host: the processes of the one reach those of the other, and the network, while one of them has UDP port
//! 4791 for both.

mod crowds;
mod privileged;
mod third_user;
mod trusted;

use ferroce_tests::{Fabric, Host, Outcome, Process, Skip, World, require, tool, wait::eventually};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(40);
/// Users of whom nothing else is known.
const FIRST: &str = "12345";
const SECOND: &str = "23456";
const ROOT: &str = "0";
/// The attacker.
const THIRD: &str = "34567";

/// Hosts that several users can be had on.
fn hosts(world: impl FnOnce() -> Result<World, Skip>) -> Result<World, Skip> {
    tool("setpriv", "util-linux")?;
    World::needs_other_users()?;
    world()
}

fn start(host: &Host, user: &str, fabric: Fabric, line: &str) -> Process {
    let words = [&World::as_user(user)[..], &line.split_whitespace().collect::<Vec<_>>()].concat();
    host.start_ferroce_privileged(&[], &words, fabric.settings())
}

/// A program of two sides: the server of the first user at the last host, the client of the second user at the first.
struct Pair<'a> {
    users: [&'a str; 2],
    line: &'a str,
    port: u16,
}

impl Pair<'_> {
    fn start_server(&self, world: &World, fabric: Fabric) -> Process {
        let mut server = start(world.last(), self.users[0], fabric, self.line);
        world.last().wait_for_listener(self.port, &mut server, LIMIT);
        server
    }

    fn start_client(&self, world: &World, fabric: Fabric) -> Process {
        start(world.first(), self.users[1], fabric, &format!("{} {}", self.line, world.last().ipv4()))
    }

    fn finish(mut client: Process, mut server: Process) -> [Outcome; 2] {
        let client = client.wait(LIMIT);
        if !client.success() {
            server.signal(libc::SIGTERM);
        }
        [client, server.wait(LIMIT)]
    }

    fn run(&self, world: &World, fabric: Fabric) {
        let server = self.start_server(world, fabric);
        for outcome in Self::finish(self.start_client(world, fabric), server) {
            expect_no_complaint(outcome.expect_success());
        }
    }
}

/// The library has refused nothing and found nothing wrong. (The programs themselves talk on standard error.)
fn expect_no_complaint(outcome: &Outcome) {
    assert!(!outcome.stderr.contains("ferroce"), "{outcome}");
}

/// Keeps the port until it is killed.
fn holder(world: &World, user: &str) -> Process {
    let idle = Pair { users: [user, user], line: "ibv_rc_pingpong -g 1 -p 19999", port: 19999 };
    idle.start_server(world, Fabric::Any)
}

const FABRICS: [Fabric; 2] = [Fabric::Any, Fabric::Udp];

#[test]
fn pairs_of_two_users_and_between_them_run_at_once() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    for fabric in FABRICS {
        let world = require!(hosts(|| World::one_host(1500)));
        // The last acknowledgement of the holder's last process may end with it.
        let _holder = holder(&world, FIRST);
        let pair = |users, line, port| Pair { users, line, port };
        let pairs = [
            pair([FIRST, FIRST], "ibv_rc_pingpong -g 1 -n 200 -p 19001", 19001),
            pair([SECOND, SECOND], "ibv_rc_pingpong -g 1 -n 200 -p 19002", 19002),
            pair([FIRST, SECOND], "ibv_rc_pingpong -g 1 -n 200 -p 19003", 19003),
            pair([SECOND, FIRST], "ibv_rc_pingpong -g 1 -n 200 -e -p 19004", 19004),
        ];
        let servers: Vec<_> = pairs.iter().map(|pair| pair.start_server(&world, fabric)).collect();
        let clients: Vec<_> = pairs.iter().map(|pair| pair.start_client(&world, fabric)).collect();
        for (client, server) in clients.into_iter().zip(servers) {
            for outcome in Pair::finish(client, server) {
                expect_no_complaint(outcome.expect_success());
            }
        }
    }
}

#[test]
fn perftest_runs_between_two_users() {
    require!(tool("ib_send_bw", "perftest"));
    let world = require!(hosts(|| World::one_host(9000)));
    let _holder = holder(&world, FIRST);
    for users in [[FIRST, SECOND], [SECOND, FIRST]] {
        for line in
            ["ib_send_bw -F -n 100 -s 20000", "ib_write_bw -F -n 100 -s 20000", "ib_read_lat -F -n 50"]
        {
            Pair { users, line: &format!("{line} -p 18999"), port: 18999 }.run(&world, Fabric::Any);
        }
    }
}

/// Any user is the holder who is first.
#[test]
fn a_guest_names_a_holder_who_can_read_its_packets() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    for (holding, trust, warned) in
        [(FIRST, "", true), (FIRST, "12345", false), (FIRST, ":12345", false), (ROOT, "", false)]
    {
        let world = require!(hosts(|| World::one_host(1500)));
        let _holder = holder(&world, holding);
        let words = [&World::as_user(SECOND)[..], &["ibv_rc_pingpong", "-g", "1", "-p", "19001"]].concat();
        let trust = [("FERROCE_TRUST", trust), ("FERROCE_LOG", "ferroce_host=warn")];
        let mut server = world.first().start_ferroce_privileged(&[], &words, &trust);
        world.first().wait_for_listener(19001, &mut server, LIMIT);
        let address = world.first().ipv4();
        let words = [&words[..], &[&*address]].concat();
        let client = world.first().start_ferroce_privileged(&[], &words, &trust);
        for outcome in Pair::finish(client, server) {
            let says = "can read, lose and change the packets";
            let lines = outcome.expect_success().stderr.matches(says).count();
            assert_eq!(lines, usize::from(warned), "{holding} {trust:?}: {outcome}");
            assert!(!warned || outcome.stderr.contains("is held by user 12345"), "{outcome}");
        }
    }
}

/// Root is a user like another: it holds the port for others, and is a guest where another has it.
#[test]
fn root_and_a_user_serve_each_other() {
    require!(tool("ib_send_bw", "perftest"));
    for (holding, other) in [(ROOT, FIRST), (FIRST, ROOT)] {
        let world = require!(hosts(|| World::one_host(1500)));
        let _holder = holder(&world, holding);
        for users in [[holding, other], [other, holding]] {
            let line = "ib_send_bw -F -n 100 -s 20000 -p 18999";
            Pair { users, line, port: 18999 }.run(&world, Fabric::Any);
        }
    }
}

#[test]
fn a_guest_reaches_another_host_and_is_reached() {
    require!(tool("ib_send_bw", "perftest"));
    let world = require!(hosts(|| World::two_hosts(1500)));
    // The first host's port is the first user's, so the second user is a guest there.
    let mut idle = start(world.first(), FIRST, Fabric::Any, "ibv_rc_pingpong -g 1 -p 19999");
    world.first().wait_for_listener(19999, &mut idle, LIMIT);
    for line in ["ib_send_bw -F -n 100 -s 20000", "ib_read_bw -F -n 50 -s 20000", "ib_write_lat -F -n 50"] {
        Pair { users: [FIRST, SECOND], line: &format!("{line} -p 18999"), port: 18999 }
            .run(&world, Fabric::Any);
    }
}

#[test]
fn connections_are_made_between_two_users() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let _holder = holder(&world, FIRST);
    for [server, client] in [[FIRST, SECOND], [SECOND, FIRST], [SECOND, SECOND]] {
        let line = format!("rping -a {} -C 3", world.first().ipv4());
        let mut server = start(world.first(), server, Fabric::Any, &format!("{line} -s"));
        world.first().wait_for_rdma_port(0x0106, 7174, &mut server, LIMIT);
        let client = start(world.first(), client, Fabric::Any, &format!("{line} -c"));
        for outcome in Pair::finish(client, server) {
            expect_no_complaint(outcome.expect_success());
        }
    }
}

/// As [`trusting_users`], of the first and the second user.
fn trusting(world: &World, line: &str, trust: [Option<&str>; 2]) -> String {
    trusting_users(world, line, [FIRST, SECOND], trust)
}

/// A program of two users on port 19001, each of whom trusts the users that a list names; what both sides have logged of it.
fn trusting_users(world: &World, line: &str, users: [&str; 2], trust: [Option<&str>; 2]) -> String {
    let line: Vec<&str> = line.split_whitespace().chain(["-p", "19001"]).collect();
    let side = |index: usize, server: &[&str]| {
        let mut settings = vec![("FERROCE_LOG", "ferroce_hostlink=debug")];
        settings.extend(trust[index].map(|list| ("FERROCE_TRUST", list)));
        let words = [&World::as_user(users[index])[..], &line, server].concat();
        world.first().start_ferroce_privileged(&[], &words, &settings)
    };
    let mut server = side(0, &[]);
    world.first().wait_for_listener(19001, &mut server, LIMIT);
    let client = side(1, &[&world.first().ipv4()]);
    Pair::finish(client, server).map(|outcome| outcome.expect_success().stderr.clone()).concat()
}

const PING_PONG: &str = "ibv_rc_pingpong -g 1 -c -n 200";

#[test]
fn perftest_runs_through_the_shared_memory_of_two_users() {
    require!(tool("ib_send_bw", "perftest"));
    let world = require!(hosts(|| World::one_host(1500)));
    let _holder = holder(&world, FIRST);
    for line in ["ib_send_bw -F -n 100 -s 20000", "ib_write_bw -F -n 100 -s 20000", "ib_read_lat -F -n 50"] {
        let log = trusting(&world, line, [Some(SECOND), Some(FIRST)]);
        // Each side at least once.
        assert!(log.matches("shares memory with a process").count() >= 2, "{line}: {log}");
    }
}

#[test]
fn users_share_memory_where_both_have_said_so() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let _holder = holder(&world, FIRST);
    // By user and by group; each list may have more. A user's group has the same number here.
    for trust in [[SECOND, FIRST], ["root, 23456", ":12345,:99"]] {
        let log = trusting(&world, PING_PONG, trust.map(Some));
        assert_eq!(log.matches("shares memory with a process").count(), 2, "{trust:?}: {log}");
    }
    for trust in [[None, None], [Some(SECOND), None], [None, Some(FIRST)], [Some("34567"), Some(":34567")]] {
        let log = trusting(&world, PING_PONG, trust);
        assert!(!log.contains("shares memory"), "{trust:?}: {log}");
    }
    let wrong = world.first().start_ferroce(&[], &["true"], &[("FERROCE_TRUST", "no-such-name")]).wait(LIMIT);
    assert_eq!(wrong.status.code(), Some(125), "{wrong}");
    assert!(wrong.stderr.contains("neither a user nor a group"), "{wrong}");
}

/// A rootless container that shares its host's network: its root is the second user, and no other user has a number there.
#[test]
fn a_container_whose_users_have_no_number_for_the_holder_is_a_guest_if_it_says_so() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let _holder = holder(&world, FIRST);
    let container = |trust: &str, more: &[&str]| {
        let within = ["unshare", "--user", "--map-root-user", "ibv_rc_pingpong", "-g", "1", "-p", "19001"];
        let words = [&World::as_user(SECOND)[..], &within, more].concat();
        let settings = [("FERROCE_TRUST", trust), ("FERROCE_LOG", "ferroce_hostlink=debug")];
        world.first().start_ferroce_privileged(&[], &words, &settings)
    };
    let refused = container("root", &[]).wait(LIMIT);
    assert!(!refused.success() && refused.stderr.contains("FERROCE_TRUST=unmapped"), "{refused}");
    for trust_of_first in ["root", SECOND] {
        let words = ["ibv_rc_pingpong", "-g", "1", "-p", "19001"];
        let words = [&World::as_user(FIRST)[..], &words].concat();
        let mut server =
            world.first().start_ferroce_privileged(&[], &words, &[("FERROCE_TRUST", trust_of_first)]);
        world.first().wait_for_listener(19001, &mut server, LIMIT);
        let [client, _] = Pair::finish(container("unmapped", &[&world.first().ipv4()]), server);
        let shares = client.expect_success().stderr.contains("shares memory with a process");
        assert_eq!(shares, trust_of_first == SECOND, "{client}");
    }
}

/// Asks the holder of a name for something, which answers nothing.
const ASKS: &str = "
home = bytes(10) + b'\\xff\\xff' + HOME
def refused(name, kind):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(10)
    try:
        s.connect('\\0' + name)
        s.send(b'FRCE' + bytes([2, kind, 0, 0]) + home + bytes(4))
        answer = s.recvmsg(200, 4096)
    except (ConnectionResetError, BrokenPipeError): answer = (b'', [])
    assert answer[:2] == (b'', []), (name, kind, answer)";

/// Trust is of memory that both make for the purpose, and of nothing else that processes of one user do for each other.
#[test]
fn a_trusted_user_gets_no_sockets_and_no_tables() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let words = [&World::as_user(FIRST)[..], &["ibv_rc_pingpong", "-g", "1", "-p", "19001"]].concat();
    let mut server = world.first().start_ferroce_privileged(&[], &words, &[("FERROCE_TRUST", "34567")]);
    world.first().wait_for_listener(19001, &mut server, LIMIT);
    let ask = format!(
        "{ASKS}
slot = slots('ferroce-2-u12345-slot-').pop()
for kind in [1, 3, 4, 5, 6, 7, 8, 9, 10, 11]: refused('ferroce-2-slot-%d' % slot, kind)
print('refused')"
    );
    python(&world, &ask).wait(LIMIT).expect_success();
    assert!(!server.has_ended(), "{}", server.wait(LIMIT));
}

/// A port of librdmacm is one user's, as a TCP port is.
#[test]
fn a_port_is_one_users() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let line = format!("rping -a {} -C 3 -s", world.first().ipv4());
    let mut server = start(world.first(), FIRST, Fabric::Any, &line);
    world.first().wait_for_rdma_port(0x0106, 7174, &mut server, LIMIT);
    let other = start(world.first(), SECOND, Fabric::Any, &line).wait(LIMIT);
    assert!(!other.success() && other.stderr.contains("Address already in use"), "{other}");
}

#[test]
fn guests_go_on_when_the_holder_is_killed() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let mut holder = holder(&world, FIRST);
    let line = "ibv_rc_pingpong -g 1 -n 3000 -p 19001";
    let pair = Pair { users: [SECOND, SECOND], line, port: 19001 };
    let server = pair.start_server(&world, Fabric::Udp);
    let client = pair.start_client(&world, Fabric::Udp);
    holder.signal(libc::SIGKILL);
    holder.wait(LIMIT);
    for outcome in Pair::finish(client, server) {
        expect_no_complaint(outcome.expect_success());
    }
    // Of the former holder's user is a guest now, or the holder again.
    let pair = Pair { users: [FIRST, SECOND], line: "ibv_rc_pingpong -g 1 -n 100 -p 19002", port: 19002 };
    pair.run(&world, Fabric::Any);
    world.first().expect_no_traces();
}

#[test]
fn a_stopped_holder_keeps_the_port_and_says_whose_it_is() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let holder = holder(&world, FIRST);
    let pair = Pair { users: [SECOND, SECOND], line: "ibv_rc_pingpong -g 1 -n 100 -p 19001", port: 19001 };
    let words = [&World::as_user(SECOND)[..], &pair.line.split_whitespace().collect::<Vec<_>>()].concat();
    let log = [("FERROCE_FABRIC", "udp"), ("FERROCE_LOG", "ferroce_host=warn")];
    let mut server = world.first().start_ferroce_privileged(&[], &words, &log);
    world.first().wait_for_listener(pair.port, &mut server, LIMIT);
    holder.signal(libc::SIGSTOP);
    let refused = start(world.first(), SECOND, Fabric::Udp, "ibv_rc_pingpong -g 1 -p 19002").wait(LIMIT);
    assert!(!refused.success(), "{refused}");
    assert!(refused.stderr.contains("is taken by a process of user 12345"), "{refused}");
    eventually("the guest names the user of the port", || {
        server.stderr().contains("is held by user 12345, none of whose processes answers")
    });
    holder.signal(libc::SIGCONT);
    for outcome in Pair::finish(pair.start_client(&world, Fabric::Udp), server) {
        outcome.expect_success();
    }
}

/// What a third user does, in Python, while `pair` runs beside it: the pair doesn't care.
fn while_attacked(attack: &str, users: [&str; 2]) {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let _holder = holder(&world, FIRST);
    let pair = Pair { users, line: "ibv_rc_pingpong -g 1 -n 300 -c -p 19001", port: 19001 };
    let words = [&World::as_user(SECOND)[..], &pair.line.split_whitespace().collect::<Vec<_>>()].concat();
    // A guest that doesn't trust the holder logs a line about that.
    let log = [("FERROCE_FABRIC", "udp"), ("FERROCE_LOG", "ferroce_host=warn"), ("FERROCE_TRUST", FIRST)];
    let mut server = world.first().start_ferroce_privileged(&[], &words, &log);
    world.first().wait_for_listener(pair.port, &mut server, LIMIT);
    let mut attacker = python(&world, attack);
    attacker.wait_for_output("at it", LIMIT);
    let [client, server] = Pair::finish(pair.start_client(&world, Fabric::Udp), server);
    // The server has all messages, and the client has acknowledged all of the server's.
    expect_no_complaint(server.expect_success());
    // The acknowledgement of the client's last message may be lost, and the server gone when the message is sent again.
    if client.stderr.contains("no queue pair has the peer's QP number") {
        assert_eq!(client.status.code(), Some(1), "{client}");
        assert_eq!(client.stderr.matches("ferroce: ").count(), 1, "{client}");
        assert!(client.stderr.contains("(SEND of 4096 bytes"), "{client}");
    } else {
        expect_no_complaint(client.expect_success());
    }
    assert!(!attacker.has_ended(), "{}", attacker.wait(LIMIT));
}

const TOOLS: &str = "
import socket, os, struct, random, time, resource, ipaddress, select
HOME = ipaddress.ip_address('10.77.0.1').packed
def slots(prefix='ferroce-2-slot-'):
    lines = open('/proc/net/unix').read().split()
    return {int(w.rsplit('-', 1)[1]) for w in lines if w.startswith('@' + prefix)}
def inbox(slot): return '\\0ferroce-2-slot-%d' % slot
def packet(qpn): return bytes([0x04, 0x40, 0xff, 0xff]) + struct.pack('!II', qpn, random.getrandbits(24)) + bytes(20)
def forged(qpn):
    p, home = packet(qpn), bytes(10) + b'\\xff\\xff' + HOME
    record = struct.pack('=I', len(p)) + (home + bytes(4)) * 2 + struct.pack('=HHBBBBI', 5000, 0, 0, 0, 0, 0, 0)
    return b'FRC2' + record + p
u = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); u.setblocking(False)
def send(to, what):
    try: u.sendto(what, to)
    except OSError: pass
def trap(names):
    held = {}
    for name in names:
        for kind in (socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
            s = socket.socket(socket.AF_UNIX, kind)
            try: s.bind('\\0' + name)
            except OSError: continue
            if kind == socket.SOCK_SEQPACKET: s.listen(64)
            s.setblocking(False); held[s] = name
    assert held, names
    waiting, numbers = select.epoll(), {s.fileno(): s for s in held}
    for n in numbers: waiting.register(n, select.EPOLLIN)
    print('at it')
    while True:
        for s in [numbers[n] for n, _ in waiting.poll(1)]:
            try:
                c = s.accept()[0] if s.type == socket.SOCK_SEQPACKET else s
                if c is not s: c.settimeout(0.3)
                what, fds = c.recvmsg(1 << 17, 4096)[:2]
            except OSError: continue
            if what or fds: print('stolen from', held[s], len(what), what[:8], len(fds))
";

fn python(world: &World, code: &str) -> Process {
    let code = format!("{TOOLS}\n{code}");
    world.first().start_ferroce_privileged(
        &[],
        &[&World::as_user(THIRD)[..], &["python3", "-uc", &code]].concat(),
        &[],
    )
}

#[test]
fn a_flood_of_guests_inboxes_by_a_third_user_loses_no_message() {
    let flood = "print('at it')\nwhile True:\n  for s in slots():\n    for i in range(20): send(inbox(s), forged(s << 12 | i))\n  time.sleep(0.002)";
    while_attacked(flood, [SECOND, SECOND]);
}

#[test]
fn a_flood_of_packets_for_slots_that_nobody_has_harms_nobody() {
    let flood = "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.77.0.1', 0)); print('at it')\nwhile True:\n  for i in range(50): s.sendto(packet(random.getrandbits(24)), ('10.77.0.1', 4791))\n  time.sleep(0.001)";
    while_attacked(flood, [FIRST, SECOND]);
}

#[test]
fn holders_asked_by_a_third_user_to_read_everything_go_on() {
    let ask = "home = bytes(10) + b'\\xff\\xff' + HOME\nprint('at it')\nwhile True:\n  for s in slots(): send(inbox(s), b'FRCN' + bytes([1, 0, 0, 0]) + home + bytes(4) + struct.pack('=HHQ', 7, 0, 2**64 - 1))\n  time.sleep(0.01)";
    while_attacked(ask, [FIRST, SECOND]);
}

#[test]
fn connections_of_a_third_user_take_no_descriptor_for_long() {
    let dial = "held = []\nfor n in range(400):\n  s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.setblocking(False); held.append(s)\n  try: s.connect('\\0ferroce-2-u12345-leader')\n  except OSError: pass\nprint('at it')\nwhile True: time.sleep(1)";
    while_attacked(dial, [FIRST, FIRST]);
}

#[test]
fn connections_that_a_third_user_keeps_take_no_descriptor_of_the_holder() {
    let world = require!(hosts(|| World::one_host(1500)));
    let holder = holder(&world, FIRST);
    let count = || std::fs::read_dir(format!("/proc/{}/fd", holder.id())).expect("a process").count();
    let before = count();
    assert!(before > 64, "the sockets of the port at least, not {before}");
    let dial = "held = []
for n in range(400):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); held.append(s)
    s.connect('\\0ferroce-2-u12345-leader')
print('at it')
time.sleep(60)";
    let mut attacker = python(&world, dial);
    attacker.wait_for_output("at it", LIMIT);
    eventually("the holder has hung up", || count() <= before);
    assert!(!attacker.has_ended(), "{}", attacker.wait(LIMIT));
}

/// A third user that joined could read what comes for the processes of others.
#[test]
fn a_third_user_joins_neither_the_port_nor_the_names_of_others() {
    let world = require!(hosts(|| World::one_host(1500)));
    let _holder = holder(&world, FIRST);
    let mut guest = start(world.first(), SECOND, Fabric::Any, "ibv_rc_pingpong -g 1 -p 19001");
    world.first().wait_for_listener(19001, &mut guest, LIMIT);
    let bind = "for option in [0, socket.SO_REUSEPORT, socket.SO_REUSEADDR, socket.SO_REUSEPORT | socket.SO_REUSEADDR]:
    for address in ['10.77.0.1', '0.0.0.0', '::ffff:10.77.0.1', '::']:
        s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_DGRAM)
        for one in [socket.SO_REUSEPORT, socket.SO_REUSEADDR]:
            if option & one == one: s.setsockopt(socket.SOL_SOCKET, one, 1)
        try: s.bind((address, 4791))
        except OSError: continue
        raise SystemExit('bound to %s with %d' % (address, option))
tried = 0
for line in open('/proc/net/unix'):
    field = line.split()
    if len(field) < 8 or not field[7].startswith('@ferroce-'): continue
    s = socket.socket(socket.AF_UNIX, int(field[4]))
    try: s.bind('\\0' + field[7][1:])
    except OSError: tried += 1; continue
    raise SystemExit('bound to ' + field[7])
assert tried >= 7, tried
print('neither')";
    assert_eq!(python(&world, bind).wait(LIMIT).expect_success().stdout, "neither\n");
}

#[test]
fn forwarded_packets_of_a_third_user_are_refused_and_told() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let _holder = holder(&world, FIRST);
    let words = [&World::as_user(SECOND)[..], &["ibv_rc_pingpong", "-g", "1", "-p", "19001"]].concat();
    let log = [("FERROCE_LOG", "ferroce_host=debug")];
    let mut guest = world.first().start_ferroce_privileged(&[], &words, &log);
    world.first().wait_for_listener(19001, &mut guest, LIMIT);
    let forge = "while True:\n  for s in slots(): send(inbox(s), forged(s << 12))\n  time.sleep(0.01)";
    let _attacker = python(&world, forge);
    eventually("the guest logs it", || {
        guest.stderr().contains("packets refused: the process that passed them on")
    });
}

#[test]
fn nobody_takes_a_slot_that_is_taken_and_who_takes_all_others_is_found() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let _holder = holder(&world, FIRST);
    let squat =
        "resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
taken, held, refused = slots(), [], set()
for n in range(1, 4095):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); held.append(s)
    try: s.bind(inbox(n))
    except OSError: refused.add(n)
assert refused == taken and taken, (refused, taken)
print('at it')
time.sleep(60)";
    let mut squatter = python(&world, squat);
    squatter.wait_for_output("at it", LIMIT);
    let outcome = start(world.first(), SECOND, Fabric::Any, "ibv_rc_pingpong -g 1 -p 19001").wait(LIMIT);
    assert!(!outcome.success(), "{outcome}");
    assert!(outcome.stderr.contains("all slots of this host's QPN space are taken"), "{outcome}");
    assert!(
        outcome.stderr.contains("4093 by sockets of user 34567 at which no process listens"),
        "{outcome}"
    );
}
