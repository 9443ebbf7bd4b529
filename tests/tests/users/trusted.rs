//! What a user who is trusted can do by the memory that the processes share: a trusted user may waste time, and nothing else.

use super::{FIRST, LIMIT, Pair, ROOT, THIRD, expect_no_complaint, hosts, python, start, trusting_users};
use ferroce_tests::{Fabric, Outcome, Process, World, require, tool};

/// Makes links by hand, without any QP, with a `LAYOUT`. `regions` are the keys that the peer's directory lists.
const LINKS: &str = "
import ctypes, fcntl, mmap, array
RING = 4096 * (64 + 8) + (512 << 10); LINK = 2 * (4096 + RING); REGIONS = 65536; DIRECTORY = 4096 + REGIONS * 64 + 4 * 4096 * 64
cookie = ctypes.create_string_buffer(struct.pack('=Q', random.getrandbits(64)), 8)
def memory(size):
    fd = os.memfd_create('link', os.MFD_ALLOW_SEALING); os.ftruncate(fd, size); fcntl.fcntl(fd, 1033, 2 | 4)
    return fd
def link(slot):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(10); s.connect('\\0ferroce-2-slot-%d' % slot)
    shared, directory = memory(LINK), memory(DIRECTORY)
    m = mmap.mmap(shared, LINK)
    hello = b'FRCE' + bytes([2, 2, 0, 0]) + struct.pack('=QQQ', LAYOUT, random.getrandbits(62), ctypes.addressof(cookie)) + cookie.raw
    try:
        s.send(b'FRCE' + bytes([2, 12, 0, 0])); s.recv(100)
        socket.send_fds(s, [hello], [shared, directory])
        answer, fds = socket.recv_fds(s, 100, 4)[:2]
    except (ConnectionResetError, BrokenPipeError): fds = []
    os.close(shared); os.close(directory)
    return (s, m, fds[0]) if fds else None
def regions(directory):
    v = mmap.mmap(directory, DIRECTORY, prot=mmap.PROT_READ)
    return [name & 0xffffffff for name in array.array('Q', v[4096:4096 + REGIONS * 64])[::8] if name]
def name(m, lane, key): m[256 + 64 * lane:264 + 64 * lane] = struct.pack('=Q', key << 32 | 0xabcdef << 8 | 1)
slot = slots('ferroce-2-u12345-slot-').pop()
";

/// [`LINKS`] with the layout of this build.
fn links_by_hand() -> String {
    format!("LAYOUT = {}{LINKS}", ferroce_hostlink::LAYOUT)
}

/// A server of the first user that trusts the third, and may have so many descriptors.
fn server(world: &World, descriptors: &str) -> Process {
    let limit = format!("--nofile={descriptors}");
    let line = ["prlimit", &limit, "ibv_rc_pingpong", "-g", "1", "-n", "100", "-p", "19001"];
    let words = [&World::as_user(FIRST)[..], &line].concat();
    let mut server = world.first().start_ferroce_privileged(&[], &words, &[("FERROCE_TRUST", THIRD)]);
    world.first().wait_for_listener(19001, &mut server, LIMIT);
    server
}

fn client(world: &World, user: &str) -> Process {
    let line = format!("ibv_rc_pingpong -g 1 -n 100 -p 19001 {}", world.first().ipv4());
    start(world.first(), user, Fabric::Any, &line)
}

fn expect_success([client, server]: [Outcome; 2]) {
    for outcome in [client, server] {
        expect_no_complaint(outcome.expect_success());
    }
}

#[test]
fn trusted_user_holds_up_no_deregistration() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let server = server(&world, "1024");
    let by_hand = links_by_hand();
    let hold = format!(
        "{by_hand}
_, m, directory = link(slot)
keys = regions(directory)
assert keys
for lane in range(4): name(m, lane, keys[lane % len(keys)])
print('at it')
time.sleep(60)"
    );
    let mut attacker = python(&world, &hold);
    attacker.wait_for_output("at it", LIMIT);
    // The server deregisters its region at its end.
    expect_success(Pair::finish(client(&world, FIRST), server));
    assert!(!attacker.has_ended(), "{}", attacker.wait(LIMIT));
}

/// A trusted user chooses where its cookie is, and the kernel lets root write into each program that the user's process executes.
#[test]
fn root_copies_nothing_from_or_to_the_memory_of_a_trusted_users_process() {
    require!(tool("ib_write_bw", "perftest"));
    let world = require!(hosts(|| World::one_host(1500)));
    for users in [[FIRST, ROOT], [ROOT, FIRST]] {
        for line in ["ib_write_bw -F -n 100 -s 20000", "ib_read_bw -F -n 50 -s 20000"] {
            let log = trusting_users(&world, line, users, [Some(users[1]), Some(users[0])]);
            assert!(log.matches("shares memory with a process").count() >= 2, "{line}: {log}");
            assert!(!log.contains("copies=true"), "{line}: {log}");
        }
    }
}

#[test]
fn links_of_a_trusted_user_take_a_bounded_part_of_all_descriptors() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    // A link takes four descriptors, and all of them take at most a quarter.
    for (descriptors, links) in [("4096", 64), ("512", 32)] {
        let server = server(&world, descriptors);
        let by_hand = links_by_hand();
        let take = format!(
            "{by_hand}
r, w = os.pipe()
for n in range(12):
    if os.fork() == 0:
        held = [l for l in [link(slot) for n in range(8)] if l]
        os.write(w, bytes([len(held)])); time.sleep(60); os._exit(0)
print('has %d links' % sum(os.read(r, 1)[0] for n in range(12)))
time.sleep(60)"
        );
        let mut attacker = python(&world, &take);
        attacker.wait_for_output("links", LIMIT);
        assert_eq!(attacker.stdout().trim(), format!("has {links} links"), "of {descriptors}");
        // Other processes of that user are reached by packets.
        expect_success(Pair::finish(client(&world, THIRD), server));
    }
}
