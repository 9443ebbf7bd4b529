//! Odd surroundings: real-time threads, forged ICMP packets, a limit of threads, an interface that isn't up yet, names that
//! another program has taken, a port that another program has, and variables that mean nothing.

use ferroce_tests::{Artifacts, Fabric, Pair, Skip, World, require, tool, wait::eventually};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// The first two processors that programs of this host may use.
fn two_processors(world: &World) -> Result<[String; 2], Skip> {
    let list = world.first().admin("python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)))'");
    match list.split_whitespace().collect::<Vec<_>>()[..] {
        [first, second, ..] => Ok([first.to_owned(), second.to_owned()]),
        _ => Err(Skip("one processor only".into())),
    }
}

/// The memory of a process that computes is served, as an adapter would, however its thread is scheduled.
fn a_computing_process_is_served(policy: &str) {
    let program = &*require!(Artifacts::get().c_program("surroundings/busy_processor"));
    let world = require!(World::one_host(9000));
    let [cpu, other] = require!(two_processors(&world));
    for settings in [Fabric::Any, Fabric::Udp].map(Fabric::settings) {
        for opener in ["thread", "process"] {
            let words = [program, opener, policy, &cpu, &other];
            let mut process = world.first().start_ferroce_privileged(&[], &words, settings);
            process.wait(LIMIT).expect_success().expect_quiet();
        }
    }
}

#[test]
fn a_process_that_computes_bound_to_a_processor_is_served() {
    a_computing_process_is_served("other");
}

#[test]
fn a_process_that_computes_in_real_time_is_served() {
    require!(real_time());
    a_computing_process_is_served("fifo");
}

/// Whether this machine lets a process be one of real time.
fn real_time() -> Result<(), Skip> {
    let world = World::one_host(1500)?;
    tool("chrt", "util-linux")?;
    if world.first().admin("chrt -f 10 true && echo yes || echo no").trim() == "yes" {
        Ok(())
    } else {
        Err(Skip("no real-time scheduling here".into()))
    }
}

/// "Fragmentation needed" and "packet too big" about a packet from port 4791, as anybody can send them.
const FORGE: &str = "
import socket, struct, ipaddress, sys
source, victim, peer, mtu = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
packed = lambda a: ipaddress.ip_address(a).packed
def checksum(b):
    s = sum(struct.unpack(f'!{len(b) // 2}H', b))
    while s >> 16: s = (s & 0xffff) + (s >> 16)
    return ~s & 0xffff
udp = struct.pack('!HHHH', 4791, 4791, 1100, 0)
if ':' in victim:
    inner = struct.pack('!IHBB', 6 << 28, 1100, 17, 64) + packed(victim) + packed(peer) + udp + bytes(20)
    icmp = struct.pack('!BBHI', 2, 0, 0, mtu) + inner
    s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    s.bind((source, 0))
else:
    inner = struct.pack('!BBHHHBBH', 0x45, 0, 1120, 0, 0x4000, 64, 17, 0) + packed(victim) + packed(peer)
    inner = inner[:10] + struct.pack('!H', checksum(inner)) + inner[12:]
    icmp = struct.pack('!BBHHH', 3, 4, 0, 0, mtu) + inner + udp
    icmp = icmp[:2] + struct.pack('!H', checksum(icmp)) + icmp[4:]
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    s.bind((source, 0))
s.sendto(icmp, (victim, 0))
";

/// A forged packet that the kernel of the first host believes ends no connection there, and keeps none from being made.
fn forged_packets_end_nothing(addresses: [&str; 3], gid_index: &str, mtu: &str) {
    let stream = &*require!(Artifacts::get().c_program("traffic/stream"));
    // Packets that are longer than any that IPv6 must carry.
    let world = require!(World::two_hosts(9000));
    let [victim, peer, attacker] = addresses;
    let (first, last) = (world.first(), world.last());
    let more = if attacker.contains(':') { "nodad" } else { "" };
    last.admin(&format!("ip addr add {attacker} dev eth0 {more}"));
    let attacker = attacker.split('/').next().expect("an address");
    let forge = format!("python3 -c \"{FORGE}\" {attacker} {victim} {peer} {mtu}");
    let learned = || first.admin(&format!("ip route get {peer}"));

    let words = [stream, "-g", gid_index, "-m", "4096", "-n", "30000", "-s", "20000"];
    let mut server = last.start_ferroce(&[], &words, &[]);
    last.wait_for_listener(18515, &mut server, LIMIT);
    let mut client = first.start_ferroce(&[], &[&words[..], &[&last.ipv4()]].concat(), &[]);
    // In the middle of the transfer.
    first.admin("until grep -q ':12B7 ' /proc/net/udp /proc/net/udp6; do sleep 0.01; done");
    last.admin(&forge);
    assert!(learned().contains(&format!("mtu {mtu}")), "the kernel believes it: {}", learned());
    client.wait(LIMIT).expect_success();
    server.wait(LIMIT).expect_success();

    assert!(learned().contains(&format!("mtu {mtu}")), "it still does: {}", learned());
    let outcome = Pair::new(&world, Fabric::Any)
        .limit(LIMIT)
        .run(&[stream, "-g", gid_index, "-m", "4096", "-n", "100"]);
    outcome.expect_success();
}

#[test]
fn a_forged_fragmentation_needed_ends_no_connection() {
    forged_packets_end_nothing(["10.77.0.1", "10.77.0.2", "10.77.0.99/24"], "1", "552");
}

#[test]
fn a_forged_packet_too_big_ends_no_connection() {
    forged_packets_end_nothing(["fd77::1", "fd77::2", "fd77::99/64"], "2", "1280");
}

/// Sends ICMP packets to `victim`, until it is killed, as a host of the address `source`. They report that the victim's packets from these
/// ports to `peer` found a closed port, no route, too small an MTU, and no UDP.
const FORGE_UNREACHABLE: &str = "
import socket, struct, sys
source, victim, peer, *ports = sys.argv[1:]
def packed(a): return socket.inet_pton(socket.AF_INET, a)
def checksum(b):
    s = sum(struct.unpack(f'!{len(b) // 2}H', b))
    while s >> 16: s = (s & 0xffff) + (s >> 16)
    return ~s & 0xffff
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
s.bind((source, 0))
packets = []
for code in (3, 1, 4, 2):
    for port in ports:
        inner = struct.pack('!BBHHHBBH', 0x45, 0, 1120, 0, 0x4000, 64, 17, 0) + packed(victim) + packed(peer)
        icmp = struct.pack('!BBHHH', 3, code, 0, 0, 552) + inner + struct.pack('!HHHH', int(port), 4791, 1100, 0)
        packets.append(icmp[:2] + struct.pack('!H', checksum(icmp)) + icmp[4:])
rounds = 0
while True:
    for packet in packets: s.sendto(packet, (victim, 0))
    rounds += 1
    if rounds == 1000: print('many', flush=True)
";

/// ICMP errors that sockets receive end no connection, and trains of segments go on.
#[test]
fn a_forged_port_unreachable_ends_no_connection() {
    let stream = &*require!(Artifacts::get().c_program("traffic/stream"));
    let world = require!(World::two_hosts(9000));
    let (first, last) = (world.first(), world.last());
    last.admin("ip addr add 10.77.0.99/24 dev eth0");
    let words = [stream, "-m", "4096", "-n", "30000", "-s", "20000"];
    let mut server = last.start_ferroce(&[], &words, &[]);
    last.wait_for_listener(18515, &mut server, LIMIT);
    let (victim, peer) = (first.ipv4(), last.ipv4());
    let words = [&words[..], &[&peer]].concat();
    let mut client = first.start_ferroce(&[], &words, &[("FERROCE_LOG", "info")]);
    // The sockets of the client's address, 10.77.0.1, that aren't bound to the RoCE port.
    let sending = "awk '$2 ~ /^01004D0A:/ && $2 !~ /:12B7$/ { print $2 }' /proc/net/udp";
    let port = |line: &str| Some(u16::from_str_radix(line.rsplit(':').next()?, 16).ok()?.to_string());
    let mut ports: Vec<String> = Vec::new();
    eventually("a socket to send from", || {
        assert!(!client.has_ended(), "{}", client.wait(LIMIT));
        ports = first.admin(sending).lines().filter_map(port).collect();
        !ports.is_empty()
    });
    let mut forge = vec!["python3", "-c", FORGE_UNREACHABLE, "10.77.0.99", &victim, &peer];
    forge.extend(ports.iter().map(String::as_str));
    let mut attacker = last.start_ferroce_privileged(&[], &forge, &[]);
    attacker.wait_for_output("many", LIMIT);
    assert!(!client.has_ended(), "the packets came too late");
    let client = client.wait(LIMIT);
    client.expect_success();
    assert!(!client.stderr.contains("no UDP segmentation"), "{client}");
    server.wait(LIMIT).expect_success();
}

/// A route with an MTU of its own is another matter: that MTU is configured on the host.
#[test]
fn a_path_mtu_above_that_of_the_route_is_refused() {
    let stream = &*require!(Artifacts::get().c_program("traffic/stream"));
    let world = require!(World::two_hosts(1500));
    world.first().admin("ip route add 10.77.0.2/32 dev eth0 mtu 700");
    let outcome = Pair::new(&world, Fabric::Any).limit(LIMIT).run(&[stream, "-n", "100"]);
    assert!(outcome.client.stderr.contains("path_mtu 1024 is above the 512 bytes"), "{outcome}");
}

/// In a sandbox, or after a change of the root directory.
#[test]
fn without_proc_devices_open_and_events_are_announced() {
    let program = &*require!(Artifacts::get().c_program("completions/event_descriptors"));
    let world = require!(World::one_host(1500));
    for settings in [Fabric::Any, Fabric::Udp].map(Fabric::settings) {
        for case in ["readiness", "event_loop"] {
            let script =
                format!("mount -t tmpfs none /proc && ! test -e /proc/self && exec {program} {case}");
            let words = ["unshare", "-m", "sh", "-c", &script];
            let mut process = world.first().start_ferroce_privileged(&[], &words, settings);
            process.wait(LIMIT).expect_success().expect_quiet();
        }
    }
}

#[test]
fn a_refused_thread_is_told() {
    require!(tool("ibv_devinfo", "ibverbs-utils"));
    let world = require!(World::one_host(1500));
    require!(World::needs_other_users());
    // A user who has no other process: its first is all that it may have.
    let words =
        ["setpriv", "--reuid", "4321", "--clear-groups", "prlimit", "--nproc=1:1", "ibv_devinfo", "-v"];
    let outcome = world.first().start_ferroce_privileged(&[], &words, &[]).wait(LIMIT);
    assert!(outcome.stderr.contains("ferroce: ibv_open_device: starting the background thread"), "{outcome}");
}

/// Variables with wrong names or values, each with the beginning of the line about it.
const MISTAKES: [(&str, &str, &str); 6] = [
    ("FERROCE_FAULT", "duplicate=1%", "FERROCE_FAULT=duplicate=1%: "),
    ("FERROCE_FABRIC", "upd", "FERROCE_FABRIC=upd: the only value is udp"),
    ("FERROCE_COPIES", "cpu", "FERROCE_COPIES=cpu: the values are guarded and kernel"),
    ("FERROCE_CAPTURE", "/nonexistent/x", "FERROCE_CAPTURE=/nonexistent/x: No such file or directory"),
    ("FERROCE_LOG", "debgu", "FERROCE_LOG=debgu: "),
    ("FERROCE_FALUT", "drop=1%", "unknown variable FERROCE_FALUT (did you mean FERROCE_FAULT?)"),
];

#[test]
fn variables_that_mean_nothing_keep_ferroce_run_from_running() {
    let world = require!(World::one_host(1500));
    for (name, value, line) in MISTAKES {
        let outcome = world.first().start_ferroce(&[], &["echo", "run"], &[(name, value)]).wait(LIMIT);
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(
            outcome.stdout.is_empty() && outcome.stderr.starts_with(&format!("ferroce run: {line}")),
            "{outcome}"
        );
    }
    let given =
        world.first().start_ferroce(&["--fault", "drop=1%"], &["true"], &[("FERROCE_FAULT", "wrong")]);
    { given }.wait(LIMIT).expect_success().expect_quiet();
}

#[test]
fn variables_that_mean_nothing_are_told_once_by_the_library() {
    require!(tool("ibv_devinfo", "ibverbs-utils"));
    let world = require!(World::one_host(1500));
    let library = Artifacts::get().library_dir();
    let library = library.to_str().expect("a UTF-8 path");
    for (name, value, line) in MISTAKES {
        let settings = [(name, value), ("LD_LIBRARY_PATH", library)];
        let outcome = world.first().start(&["ibv_devinfo"], &settings).wait(LIMIT);
        outcome.expect_success();
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome}");
        assert!(outcome.stderr.starts_with(&format!("ferroce: {line}")), "{outcome}");
    }
}

/// A program that starts before its interface is up gets lo. With lo's address, it can't reach another host or be reached from one.
#[test]
fn a_loopback_address_and_another_hosts_are_no_pair() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let lo = ("0", &[("FERROCE_DEVICES", "ferroce0=lo")][..]);
    let eth0 = ("1", &[][..]);
    for (server, client, says) in [
        (eth0, lo, "ferroce: ibv_modify_qp: 10.77.0.2 doesn't reach 127.0.0.1"),
        (lo, eth0, "ferroce: ibv_modify_qp: 127.0.0.1 doesn't reach 10.77.0.1"),
    ] {
        let world = require!(World::two_hosts(1500));
        let words = ["ibv_rc_pingpong", "-g", server.0];
        let mut server = world.last().start_ferroce(&[], &words, server.1);
        world.last().wait_for_listener(18515, &mut server, LIMIT);
        let words = ["ibv_rc_pingpong", "-g", client.0, "10.77.0.2"];
        let client = world.first().start_ferroce(&[], &words, client.1).wait(LIMIT);
        // The server knows both addresses first.
        let server = server.wait(LIMIT);
        assert!(!client.success() && server.stderr.contains(says), "{client}{server}");
    }
}

/// Takes the names of all slots.
const SQUAT: &str = "
import socket, time, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (10000, 10000))
held = []
for slot in range(1, 4095):
    s = socket.socket(socket.AF_UNIX, LISTEN and socket.SOCK_SEQPACKET or socket.SOCK_DGRAM)
    s.bind('\\0ferroce-2-slot-%d' % slot)
    if LISTEN: s.listen(4)
    held.append(s)
print('ready', flush=True)
time.sleep(100)
";

#[test]
fn who_takes_all_names_of_a_user_is_found() {
    require!(tool("ibv_devinfo", "ibverbs-utils"));
    let world = require!(World::one_host(1500));
    require!(World::needs_other_users());
    let host = world.first();
    let as_user = |user: &'static str| ["setpriv", "--reuid", user, "--clear-groups"];
    for (listen, by_library) in
        [("False", "4094 by sockets of user 5555 at which no process listens"), ("True", "of user 5555")]
    {
        let script = format!("LISTEN={listen}{SQUAT}");
        let words = [&as_user("5555")[..], &["python3", "-c", &script]].concat();
        let mut squatter = host.start_ferroce_privileged(&[], &words, &[]);
        squatter.wait_for_output("ready", LIMIT);
        let words = [&as_user("4321")[..], &["ibv_devinfo"]].concat();
        let victim = host.start_ferroce_privileged(&[], &words, &[]).wait(LIMIT);
        assert!(victim.stderr.contains(by_library), "{victim}");
        let ferroce = Artifacts::get().ferroce();
        let words = [&as_user("4321")[..], &[ferroce.to_str().expect("a UTF-8 path"), "doctor"]].concat();
        let doctor = host.start_ferroce_privileged(&[], &words, &[]).wait(LIMIT);
        let says = "4094 of the 4094 names by which Ferroce processes find each other are held by others: ";
        assert!(doctor.stdout.contains(says), "{doctor}");
        assert!(doctor.stdout.contains("There is none left"), "{doctor}");
    }
}

/// Binds UDP port 4791 of an address.
const HOLD: &str = "
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('10.77.0.9', 4791))
print('ready', flush=True)
time.sleep(100)
";

/// The device's other addresses work, and `ibv_modify_qp` refuses the one that is left out.
#[test]
fn an_address_whose_port_somebody_else_has_is_left_out() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    host.admin("ip addr add 10.77.0.9/24 dev eth0");
    let mut holder = host.start(&["python3", "-c", HOLD], &[]);
    holder.wait_for_output("ready", LIMIT);
    let outcome = Pair::new(&world, Fabric::Udp).limit(LIMIT).run(&["ibv_rc_pingpong", "-g", "1"]);
    outcome.expect_success();
    for side in [&outcome.client, &outcome.server] {
        let lines: Vec<&str> = side.stderr.lines().collect();
        assert!(lines.len() == 1 && lines[0].contains("UDP port 4791 of 10.77.0.9 "), "{outcome}");
        assert!(lines[0].ends_with("; the address is left out, the device's others work"), "{outcome}");
    }
    let outcome = Pair::new(&world, Fabric::Udp).limit(LIMIT).run(&["ibv_rc_pingpong", "-g", "2"]);
    assert!(!outcome.client.success() && !outcome.server.success(), "{outcome}");
    assert!(outcome.server.stderr.contains("ferroce: ibv_modify_qp: "), "{outcome}");
}
