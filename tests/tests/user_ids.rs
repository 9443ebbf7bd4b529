//! Processes share sockets and memory with those of their own user alone; whatever numbers a user has
//! in their user namespace, and whichever of its user ids a process has switched to.

use ferroce_tests::{Artifacts, Fabric, Host, Outcome, Process, Skip, World, require, tool};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Has no number in the namespaces made here, nor has the other.
const VICTIM: &str = "1234";
const STRANGER: &str = "5555";
const OVERFLOW: &str = "65534";

/// A host, if other users can be had on it: root alone can become them.
fn host_of_many_users() -> Result<World, Skip> {
    tool("setpriv", "util-linux")?;
    let world = World::one_host(1500)?;
    World::needs_other_users()?;
    Ok(world)
}

/// Words that run a program as a user without capabilities.
fn as_user<'a>(user: &'a str, words: &[&'a str]) -> Vec<&'a str> {
    [&World::as_user(user)[..], words].concat()
}

/// The same in a user namespace of its own in which no user has a number.
fn without_number<'a>(user: &'a str, words: &[&'a str]) -> Vec<&'a str> {
    as_user(user, &[&["unshare", "-U"], words].concat())
}

fn start(host: &Host, words: &[&str]) -> Process {
    host.start_ferroce_privileged(&[], words, &[])
}

/// Asks the holder of the leader's name for the sockets of UDP port 4791, and prints how many come.
const STEAL: &str = "
import socket, ipaddress
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(20)
s.connect('\\0ferroce-2-u65534-leader')
address = b'\\xff\\xff' + ipaddress.ip_address('10.77.0.1').packed
try:
    s.send(b'FRCE' + bytes([2, 1, 0, 0]) + b'\\0' * 10 + address + b'\\0' * 4)
    sockets = len(socket.recv_fds(s, 4096, 64)[1])
except (ConnectionResetError, BrokenPipeError):
    sockets = 0
print(sockets, 'sockets')
";

/// A victim that waits for its peer, and what a thief got from it.
fn steal(user_of_victim: &str, victim: &[&str], thief: &[&str]) -> Result<(), Skip> {
    tool("ibv_rc_pingpong", "ibverbs-utils")?;
    let world = host_of_many_users()?;
    let host = world.first();
    let mut server = start(host, &[victim, &["ibv_rc_pingpong", "-g", "1"]].concat());
    host.wait_for_listener(18515, &mut server, LIMIT);
    let names = host.admin("cat /proc/net/unix");
    assert!(names.contains(&format!("@ferroce-2-u{user_of_victim}-leader")), "{names}");
    let thief = start(host, &[thief, &["python3", "-c", STEAL]].concat()).wait(LIMIT);
    assert_eq!(thief.expect_success().stdout, "0 sockets\n");
    Ok(())
}

#[test]
fn a_process_without_a_number_gives_other_users_no_sockets() {
    require!(steal(OVERFLOW, &without_number(VICTIM, &[]), &as_user(STRANGER, &[])));
}

#[test]
fn a_process_without_a_number_gives_other_users_without_a_number_no_sockets() {
    require!(steal(OVERFLOW, &without_number(VICTIM, &[]), &without_number(STRANGER, &[])));
}

/// What runs a program as user 65534 of a namespace that maps 65,536 users, as containers do.
const IN_CONTAINER: &str = "
import os, ctypes, sys, signal
asks, answers = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    ctypes.CDLL(None).unshare(0x10000000)
    os.write(asks[1], b'x'); os.read(answers[0], 1)
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    os.execvp(sys.argv[1], sys.argv[1:])
os.read(asks[0], 1)
for kind in 'uid_map', 'gid_map':
    open(f'/proc/{child}/{kind}', 'w').write('0 100000 65536')
os.write(answers[1], b'x')
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";

#[test]
fn nobody_of_a_container_gives_other_users_no_sockets() {
    require!(steal(OVERFLOW, &["python3", "-c", IN_CONTAINER], &as_user(STRANGER, &[])));
}

/// The two sides of a ping-pong, started alike.
fn ping_pong(world: &World, server: &[&str], client: &[&str]) -> (Outcome, Outcome) {
    let host = world.first();
    let ping_pong = ["ibv_rc_pingpong", "-g", "1", "-n", "100"];
    let mut server = start(host, &[server, &ping_pong].concat());
    host.wait_for_listener(18515, &mut server, LIMIT);
    let client = start(host, &[client, &ping_pong, &["10.77.0.1"]].concat()).wait(LIMIT);
    if !client.success() {
        server.signal(libc::SIGTERM);
    }
    (client, server.wait(LIMIT))
}

#[test]
fn users_without_a_number_do_not_meet() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(host_of_many_users());
    let (client, _) = ping_pong(&world, &without_number(VICTIM, &[]), &without_number(STRANGER, &[]));
    assert!(!client.success(), "{client}");
    assert!(client.stderr.contains("UDP port 4791 of"), "{client}");
    assert!(client.stderr.contains("stands for all users without a number"), "{client}");
}

#[test]
fn processes_of_one_user_without_a_number_meet_in_their_namespace() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(host_of_many_users());
    let script = "ibv_rc_pingpong -g 1 -n 100 & server=$!
        until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.01; done
        ibv_rc_pingpong -g 1 -n 100 10.77.0.1 && wait $server";
    let outcome = start(world.first(), &without_number(VICTIM, &["sh", "-c", script])).wait(LIMIT);
    outcome.expect_success().expect_quiet();
}

/// Some daemons run as the user `nobody`, whose number is the overflow user id, but its own id where the namespace maps all users.
#[test]
fn processes_of_nobody_meet() {
    require!(tool("ibv_rc_pingpong", "ibverbs-utils"));
    let world = require!(host_of_many_users());
    let (client, server) = ping_pong(&world, &as_user(OVERFLOW, &[]), &as_user(OVERFLOW, &[]));
    client.expect_success().expect_quiet();
    server.expect_success().expect_quiet();
}

/// The kernel reports the effective user id of a connecting process, so that one counts, also of a process that has two.
#[test]
fn processes_of_one_effective_user_meet_whatever_their_real_users() {
    let users = &*require!(Artifacts::get().c_program("surroundings/user_ids"));
    for settings in [Fabric::Any, Fabric::Udp].map(Fabric::settings) {
        for (server, client) in
            [(["0", "65534"], ["0", "65534"]), (["1234", "0"], ["0", "0"]), (["1234", "5555"], ["0", "5555"])]
        {
            let world = require!(host_of_many_users());
            let host = world.first();
            let words = |ids: [&str; 2]| [users.to_owned(), ids[0].to_owned(), ids[1].to_owned()];
            let mut server = host.start_ferroce_privileged(&[], &words(server), settings);
            host.wait_for_listener(18515, &mut server, LIMIT);
            let line = [&words(client)[..], &["10.77.0.1".to_owned()]].concat();
            let client = host.start_ferroce_privileged(&[], &line, settings).wait(LIMIT);
            client.expect_success().expect_quiet();
            server.wait(LIMIT).expect_success().expect_quiet();
        }
    }
}
