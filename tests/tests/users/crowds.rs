//! A third user that takes names and sockets by the hundred, or forges rows of the table of names: the processes of others work, and what
//! is reported names the user. Users whose processes come and go.

use super::{FIRST, LIMIT, Pair, ROOT, SECOND, THIRD, expect_no_complaint, holder, hosts, python, start};
use ferroce_tests::{Artifacts, Fabric, Outcome, Process, World, require, tool};

/// An attacker that has been at it, and goes on until this is dropped.
fn at_it(world: &World, attack: &str) -> Process {
    let mut attacker = python(world, attack);
    attacker.wait_for_output("at it", LIMIT);
    attacker
}

/// A command of `ferroce` as a user.
fn ferroce(world: &World, user: &str, command: &[&str]) -> Outcome {
    let ferroce = Artifacts::get().ferroce();
    let words = [&World::as_user(user)[..], &[ferroce.to_str().expect("a UTF-8 path")], command].concat();
    world.first().start_ferroce_privileged(&[], &words, &[]).wait(LIMIT)
}

/// The kernel prints names into `/proc/net/unix` as they are, with their newlines.
#[test]
fn rows_of_the_table_that_a_third_user_forges_take_no_slot_and_accuse_no_process() {
    require!(tool("ibv_devinfo", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let socket = "import socket, os, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind('\\0innocent')
print('inode', os.fstat(s.fileno()).st_ino, flush=True); time.sleep(100)";
    let words = [&World::as_user(SECOND)[..], &["python3", "-uc", socket]].concat();
    let mut innocent = world.first().start_ferroce_privileged(&[], &words, &[]);
    innocent.wait_for_output("inode", LIMIT);
    let inode = innocent.stdout().trim().replace("inode ", "");
    let forge = format!(
        "resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held, rows = [], ['\\n{inode} @ferroce-2-slot-%d' % n for n in range(1, 4095)]
while rows:
    name = '\\0x'
    while rows and len(name) + len(rows[0]) < 107: name += rows.pop(0)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); held.append(s)
    s.bind(name + '\\n')
print('at it'); time.sleep(100)"
    );
    let _attacker = at_it(&world, &forge);
    expect_no_complaint(start(world.first(), FIRST, Fabric::Any, "ibv_devinfo").wait(LIMIT).expect_success());
    for user in [ROOT, FIRST] {
        let doctor = ferroce(&world, user, &["doctor"]);
        assert!(!doctor.stdout.contains("names by which"), "{doctor}");
        assert!(!doctor.stdout.contains("end that process"), "{doctor}");
    }
}

/// Guests look for another attendant when theirs has ended.
#[test]
fn slots_that_a_third_user_lists_as_the_holders_hide_no_attendant() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let mut first = holder(&world, FIRST);
    let line = "ibv_rc_pingpong -g 1 -c -n 300 -p 19001";
    let pair = Pair { users: [SECOND, SECOND], line, port: 19001 };
    let server = pair.start_server(&world, Fabric::Udp);
    let mut second = start(world.first(), FIRST, Fabric::Any, "ibv_rc_pingpong -g 1 -p 19998");
    world.first().wait_for_listener(19998, &mut second, LIMIT);
    let _attacker = at_it(
        &world,
        "resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
for n in range(1, 4000):
    for name in ('ferroce-2-slot-%d' % n, 'ferroce-2-u12345-slot-%d' % n):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try: s.bind('\\0' + name); held.append(s)
        except OSError: pass
print('at it'); time.sleep(100)",
    );
    first.signal(libc::SIGKILL);
    first.wait(LIMIT);
    for outcome in Pair::finish(pair.start_client(&world, Fabric::Udp), server) {
        expect_no_complaint(outcome.expect_success());
    }
}

/// A watcher keeps of each account what it has read of it, and of a user's accounts a bounded amount.
#[test]
fn accounts_of_a_third_users_processes_fill_no_memory_of_root() {
    let world = require!(hosts(|| World::one_host(1500)));
    let lie = |entries: &str, first: usize| {
        format!(
            "import fcntl
data = ({entries})[:16 << 20]
fd = os.memfd_create('a', os.MFD_ALLOW_SEALING); os.write(fd, data); fcntl.fcntl(fd, 1033, 0xf)
for n in range(30):
    if os.fork(): continue
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind(inbox({first} + n)); s.listen(8)
    os.write(1, b'listens\\n')
    while True:
        c = s.accept()[0]; c.recv(100)
        socket.send_fds(c, [b'FRCE' + bytes([2, 0, 0, 0])], [fd])
time.sleep(100)"
        )
    };
    // As long as an account may be, and no account; and one of which many objects are made.
    // The liars of the first round keep their names until they have ended.
    for (entries, first) in
        [("b'[' + b'1,' * (8 << 20)", 2000), ("b'{\"queue_pairs\":[' + b'{},' * 16000 + b'{}]}'", 2100)]
    {
        let mut liars = python(&world, &lie(entries, first));
        liars.wait_for_output(&"listens\n".repeat(30), LIMIT);
        let ferroce = Artifacts::get().ferroce();
        let watch = format!(
            "import subprocess, resource
subprocess.run(['{}', 'ps'], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)",
            ferroce.display()
        );
        let watched =
            world.first().start_ferroce_privileged(&[], &["python3", "-c", &watch], &[]).wait(LIMIT);
        let kilobytes: u64 = watched.expect_success().stdout.trim().parse().expect("a number");
        assert!(kilobytes < 200_000, "{entries}: {kilobytes} kB");
    }
}

/// The holder of the port ends, a process of another user is faster than the next one, and so on.
#[test]
fn processes_of_many_users_that_start_and_end_at_once_use_all_addresses() {
    require!(tool("ibv_devinfo", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    for _ in 0..8 {
        let users = [FIRST, SECOND, THIRD, ROOT].repeat(2).into_iter();
        let processes: Vec<_> =
            users.map(|user| start(world.first(), user, Fabric::Any, "ibv_devinfo")).collect();
        for mut process in processes {
            expect_no_complaint(process.wait(LIMIT).expect_success());
        }
    }
}
