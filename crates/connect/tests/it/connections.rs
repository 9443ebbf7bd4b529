//! Connections from the request to the end, between processes.

use super::namespace::in_namespace;
use super::peer::Peer;
use ferroce_tests::wait::eventually;
use std::time::{Duration, Instant};

const SERVER: &str = "127.0.0.1:7174";
const CLIENT: &str = "127.0.0.1:40000";

/// A process that listens at `address`, and one that doesn't.
pub fn listening(address: &str) -> (Peer, Peer) {
    let (mut server, mut client) = (Peer::start(), Peer::start());
    open(&mut server, &mut client, address);
    (server, client)
}

pub fn open(server: &mut Peer, client: &mut Peer, address: &str) {
    assert_ne!(server.ask("open"), "0");
    assert_ne!(client.ask("open"), "0");
    assert_eq!(server.ask(&format!("bind p {address}")), format!("ok {address}"));
    assert_eq!(server.ask("listen p 10"), "ok");
}

/// The number of the interface, on either host.
const ETH0: u32 = 7;
/// The addresses of two hosts.
const HOSTS: [[&str; 3]; 2] = [["10.9.0.1", "fd09::1", "fe80::1"], ["10.9.0.2", "fd09::2", "fe80::2"]];

/// A process of this host and one of another, with a network between them.
pub fn hosts(environment: &[(&str, &str)]) -> (Peer, Peer) {
    let here = Peer::start_with(environment, 0);
    let there = Peer::start_with(environment, libc::CLONE_NEWNET);
    let pid = there.pid().to_string();
    // The namespace is there when the process answers.
    let index = ETH0.to_string();
    let veth = ["ip", "link", "add", "eth0", "index", &index, "type", "veth", "peer", "name", "eth0"];
    run(&[&veth[..], &["index", &index, "netns", &pid]].concat());
    let set_up = |enter: &[&str], addresses: [&str; 3]| {
        let ip = |words: &[&str]| run(&[enter, &["ip"], words].concat());
        ip(&["address", "add", &format!("{}/24", addresses[0]), "dev", "eth0"]);
        ip(&["address", "add", &format!("{}/64", addresses[1]), "dev", "eth0", "nodad"]);
        ip(&["address", "add", &format!("{}/64", addresses[2]), "dev", "eth0", "nodad"]);
        ip(&["link", "set", "lo", "up"]);
        ip(&["link", "set", "eth0", "up"]);
    };
    let enter = ["nsenter", "-n", "-t", &pid];
    set_up(&[], HOSTS[0]);
    set_up(&enter, HOSTS[1]);
    // The kernel may take a second to find the carrier, and an interface is a device from then on.
    for enter in [&[][..], &enter] {
        eventually("the interface has carrier", || has_carrier(enter));
    }
    (here, there)
}

fn has_carrier(enter: &[&str]) -> bool {
    let words = [enter, &["ip", "-o", "link", "show", "dev", "eth0"]].concat();
    let shown = std::process::Command::new(words[0]).args(&words[1..]).output().expect("a program");
    String::from_utf8_lossy(&shown.stdout).contains("state UP")
}

fn run(words: &[&str]) {
    let status = std::process::Command::new(words[0]).args(&words[1..]).status();
    assert!(status.expect("a program").success(), "{words:?}");
}

/// Both after a request was accepted and established.
pub fn connected(server: &mut Peer, client: &mut Peer, from: &str, to: &str) {
    assert_eq!(client.ask(&format!("connect c {from} {to} 4097 hello")), "ok");
    let ip = from.rsplit_once(':').expect("a port").0.trim_matches(['[', ']']);
    let ip = ip.split('%').next().expect("an address");
    assert_eq!(server.event(), format!("request {ip} 4097 hello"));
    assert_eq!(server.ask("name s"), "ok");
    assert_eq!(server.ask("accept s 8193 welcome"), "ok");
    assert_eq!(client.event(), "reply c 8193 welcome");
    assert_eq!(client.ask("establish c"), "ok");
    assert_eq!(server.event(), "established s");
}

#[test]
fn two_processes_connect_and_disconnect() {
    in_namespace("connections::two_processes_connect_and_disconnect", || {
        for (to, from) in [(SERVER, CLIENT), ("[::1]:7174", "[::1]:40000")] {
            let (mut server, mut client) = listening(to);
            connected(&mut server, &mut client, from, to);
            assert_eq!(client.ask("disconnect c"), "ok");
            assert_eq!(server.event(), "disconnected s");
            // The peer's program has to agree.
            assert_eq!(client.ask("quiet 200"), "nothing");
            assert_eq!(server.ask("disconnect s"), "ok");
            assert_eq!(client.event(), "disconnected c");
            assert_eq!((client.event(), server.event()), ("exit c".to_owned(), "exit s".to_owned()));
        }
    });
}

#[test]
fn two_processes_of_a_host_connect_though_packets_are_delayed() {
    const NAME: &str = "connections::two_processes_of_a_host_connect_though_packets_are_delayed";
    in_namespace(NAME, || {
        let faults = [("FERROCE_FAULT", "reorder=50%,seed=7")];
        let [mut server, mut client] = [(); 2].map(|()| Peer::start_with(&faults, 0));
        open(&mut server, &mut client, SERVER);
        connected(&mut server, &mut client, CLIENT, SERVER);
        assert_eq!(client.ask("disconnect c"), "ok");
        assert_eq!(server.event(), "disconnected s");
    });
}

#[test]
fn one_process_connects_with_itself() {
    in_namespace("connections::one_process_connects_with_itself", || {
        let (mut both, _) = listening(SERVER);
        assert_eq!(both.ask(&format!("connect c {CLIENT} {SERVER} 4097 hello")), "ok");
        assert_eq!(both.event(), "request 127.0.0.1 4097 hello");
        assert_eq!(both.ask("name s"), "ok");
        assert_eq!(both.ask("accept s 8193 welcome"), "ok");
        assert_eq!(both.event(), "reply c 8193 welcome");
        assert_eq!(both.ask("establish c"), "ok");
        assert_eq!(both.event(), "established s");
        assert_eq!(both.ask("drop c"), "ok");
        assert_eq!(both.event(), "disconnected s");
    });
}

#[test]
fn who_is_rejected_is_told_why() {
    in_namespace("connections::who_is_rejected_is_told_why", || {
        let (mut server, mut client) = listening(SERVER);
        assert_eq!(client.ask(&format!("connect c {CLIENT} {SERVER} 4097 hello")), "ok");
        assert_eq!(server.event(), "request 127.0.0.1 4097 hello");
        assert_eq!(server.ask("name s"), "ok");
        assert_eq!(server.ask("reject s no"), "ok");
        assert_eq!(server.ask("accept s 1 late"), "errno 22");
        assert_eq!(client.event(), "rejected c 28 no");
        // No process listens there.
        assert_eq!(client.ask(&format!("connect d {CLIENT} 127.0.0.1:7175 4098 hello")), "ok");
        assert_eq!(client.event(), "rejected d 8");
        // The listener's user has gone before it has looked.
        assert_eq!(client.ask(&format!("connect e {CLIENT} {SERVER} 4099 hello")), "ok");
        assert_eq!(server.event(), "request 127.0.0.1 4099 hello");
        assert_eq!(server.ask("name s"), "ok");
        assert_eq!(server.ask("drop s"), "ok");
        assert_eq!(client.event(), "rejected e 28");
        assert_eq!(server.ask("free p"), "ok");
        assert_eq!(client.ask(&format!("connect f {CLIENT} {SERVER} 4100 hello")), "ok");
        assert_eq!(client.event(), "rejected f 8");
    });
}

#[test]
fn datagram_services_are_looked_up() {
    in_namespace("connections::datagram_services_are_looked_up", || {
        let (mut server, mut client) = listening(SERVER);
        assert_eq!(server.ask("bind u 0.0.0.0:7174 udp"), "ok 0.0.0.0:7174");
        assert_eq!(server.ask("listen u 10 udp"), "ok");
        assert_eq!(client.ask(&format!("lookup c {CLIENT} {SERVER} hello")), "ok");
        assert_eq!(server.event(), "lookup hello");
        assert_eq!(server.ask("name s"), "ok");
        assert_eq!(server.ask("answer s 77 here"), "ok");
        assert_eq!(client.event(), "answer c 0 77 here");
        assert_eq!(client.ask(&format!("lookup d {CLIENT} 127.0.0.1:7 hello")), "ok");
        assert_eq!(client.event(), "answer d 1 0");
    });
}

#[test]
fn hundreds_of_connections_come_and_go() {
    in_namespace("connections::hundreds_of_connections_come_and_go", || {
        let (mut server, mut client) = listening(SERVER);
        let serving = std::thread::spawn(move || server.ask("serve 300"));
        assert_eq!(client.ask(&format!("many 300 {CLIENT} {SERVER}")), "300");
        assert_eq!(serving.join().expect("the server"), "300");
    });
}

#[test]
fn two_hosts_connect_over_the_network() {
    in_namespace("connections::two_hosts_connect_over_the_network", || {
        let (mut server, mut client) = hosts(&[]);
        open(&mut server, &mut client, "0.0.0.0:7174");
        assert_eq!(server.ask("bind q [::]:7175"), "ok [::]:7175");
        assert_eq!(server.ask("listen q 10"), "ok");
        let link_local = |host, port| format!("[fe80::{host}%{ETH0}]:{port}");
        assert_eq!(
            server.ask(&format!("bind r {}", link_local(1, 7176))),
            format!("ok {}", link_local(1, 7176))
        );
        assert_eq!(server.ask("listen r 10"), "ok");
        for (from, to) in [
            ("10.9.0.2:4000", "10.9.0.1:7174"),
            ("[fd09::2]:4000", "[fd09::1]:7175"),
            (&link_local(2, 4000), &link_local(1, 7176)),
        ] {
            connected(&mut server, &mut client, from, to);
            assert_eq!(server.ask("drop s"), "ok");
            assert_eq!(client.event(), "disconnected c");
            assert_eq!(client.ask("drop c"), "ok");
        }
        // No process listens there.
        assert_eq!(client.ask("connect d 10.9.0.2:4000 10.9.0.1:1 7 hello"), "ok");
        assert_eq!(client.event(), "rejected d 8");
    });
}

#[test]
fn a_peer_that_is_killed_is_missed_at_once() {
    in_namespace("connections::a_peer_that_is_killed_is_missed_at_once", || {
        // Connected: both sides get the event as if the other had asked for the end.
        let (mut server, mut client) = listening(SERVER);
        connected(&mut server, &mut client, CLIENT, SERVER);
        client.kill();
        assert_eq!((server.event(), server.event()), ("disconnected s".to_owned(), "exit s".to_owned()));
        let mut client = Peer::start();
        assert_ne!(client.ask("open"), "0");
        connected(&mut server, &mut client, CLIENT, SERVER);
        server.kill();
        assert_eq!(client.event(), "disconnected c");
        assert_eq!(client.event(), "exit c");

        // Accepted, but not ready yet.
        let (mut server, mut client) = listening(SERVER);
        assert_eq!(client.ask(&format!("connect c {CLIENT} {SERVER} 4097 hello")), "ok");
        assert_eq!(server.event(), "request 127.0.0.1 4097 hello");
        assert_eq!(server.ask("name s"), "ok");
        assert_eq!(server.ask("accept s 8193 welcome"), "ok");
        assert_eq!(client.event(), "reply c 8193 welcome");
        client.kill();
        assert_eq!(server.event(), "rejected s 4");

        // Asked only.
        let mut client = Peer::start();
        assert_ne!(client.ask("open"), "0");
        assert_eq!(client.ask(&format!("connect c {CLIENT} {SERVER} 4097 hello")), "ok");
        assert_eq!(server.event(), "request 127.0.0.1 4097 hello");
        assert_eq!(server.ask("name s"), "ok");
        client.kill();
        assert_eq!(server.ask("quiet 500"), "nothing");
        assert_eq!(server.ask("accept s 8193 welcome"), "errno 22");

        // The asked process dies: the next request finds no listener.
        let mut client = Peer::start();
        assert_ne!(client.ask("open"), "0");
        assert_eq!(client.ask(&format!("connect c {CLIENT} {SERVER} 4097 hello")), "ok");
        assert_eq!(server.event(), "request 127.0.0.1 4097 hello");
        server.kill();
        assert_eq!(client.event(), "rejected c 8");
    });
}

#[test]
fn a_listener_that_is_killed_before_it_reads_a_request_is_missed_at_once() {
    in_namespace(
        "connections::a_listener_that_is_killed_before_it_reads_a_request_is_missed_at_once",
        || {
            let (server, mut client) = listening(SERVER);
            server.signal(libc::SIGSTOP);
            assert_eq!(client.ask(&format!("connect c {CLIENT} {SERVER} 4097 hello")), "ok");
            // Many requests lie there. One of them is the last.
            for n in 0..20 {
                assert_eq!(client.ask(&format!("connect c{n} {CLIENT} {SERVER} {} hello", 5000 + n)), "ok");
            }
            assert_eq!(client.ask("quiet 300"), "nothing");
            let killed = Instant::now();
            server.kill();
            assert_eq!(client.event(), "rejected c 8");
            let mut rejected: Vec<String> = (0..20).map(|_| client.event()).collect();
            rejected.sort();
            let mut expected: Vec<String> = (0..20).map(|n| format!("rejected c{n} 8")).collect();
            expected.sort();
            assert_eq!(rejected, expected);
            // Before the first repetition, which comes six seconds after the request.
            assert!(killed.elapsed() < Duration::from_secs(5));
        },
    );
}

#[test]
fn a_listener_that_is_killed_while_it_reads_requests_is_missed_at_once() {
    in_namespace("connections::a_listener_that_is_killed_while_it_reads_requests_is_missed_at_once", || {
        const ROUNDS: u64 = 8;
        let mut client = Peer::start();
        assert_ne!(client.ask("open"), "0");
        for round in 0..ROUNDS {
            let mut server = Peer::start();
            assert_ne!(server.ask("open"), "0");
            assert_eq!(server.ask(&format!("bind p {SERVER}")), format!("ok {SERVER}"));
            assert_eq!(server.ask("listen p 100"), "ok");
            for n in 0..4 {
                let number = 100 * round + n;
                assert_eq!(client.ask(&format!("connect c{number} {CLIENT} {SERVER} {number} hello")), "ok");
            }
            std::thread::sleep(Duration::from_micros(600 * round));
            let killed = Instant::now();
            server.kill();
            for _ in 0..4 {
                let event = client.event();
                assert!(event.starts_with("rejected c") && event.ends_with(" 8"), "{event}");
            }
            // Before the first repetition, which comes six seconds after the request.
            assert!(killed.elapsed() < Duration::from_secs(5), "round {round}");
        }
    });
}

#[test]
fn a_request_that_is_given_up_is_forgotten_by_the_process_that_has_it() {
    in_namespace("connections::a_request_that_is_given_up_is_forgotten_by_the_process_that_has_it", || {
        let (mut server, mut client) = listening(SERVER);
        assert_eq!(client.ask(&format!("connect c {CLIENT} {SERVER} 4097 hello")), "ok");
        assert_eq!(server.event(), "request 127.0.0.1 4097 hello");
        assert_eq!(server.ask("name s"), "ok");
        assert_eq!(client.ask("drop c"), "ok");
        assert_eq!(server.ask("quiet 300"), "nothing");
        assert_eq!(server.ask("accept s 8193 welcome"), "errno 22");
    });
}

#[test]
fn connections_are_made_and_ended_though_the_network_loses_messages() {
    in_namespace("connections::connections_are_made_and_ended_though_the_network_loses_messages", || {
        let faults = [("FERROCE_FAULT", "drop=1%,dup=1%,reorder=1%,seed=7")];
        let (mut server, mut client) = hosts(&faults);
        open(&mut server, &mut client, "10.9.0.1:7174");
        assert_eq!(server.ask("bind q 10.9.0.1:7175"), "ok 10.9.0.1:7175");
        assert_eq!(server.ask("listen q 1000"), "ok");
        // It stays to repeat its last message.
        let serving = std::thread::spawn(move || (server.ask("serve 1000"), server));
        assert_eq!(client.ask("burst 1000 10.9.0.2:4000 10.9.0.1:7175"), "1000 1000");
        assert_eq!(serving.join().expect("the server").0, "1000");
    });
}

#[test]
fn thousands_of_connections_are_open_at_once() {
    in_namespace("connections::thousands_of_connections_are_open_at_once", || {
        const COUNT: u32 = 10_000;
        let (mut server, mut client) = (Peer::start(), Peer::start());
        assert_ne!((server.ask("open"), client.ask("open")), ("0".to_owned(), "0".to_owned()));
        assert_eq!(server.ask(&format!("bind p {SERVER}")), format!("ok {SERVER}"));
        assert_eq!(server.ask(&format!("listen p {COUNT}")), "ok");
        let serving = std::thread::spawn(move || server.ask(&format!("serve {COUNT}")));
        assert_eq!(client.ask(&format!("burst {COUNT} {CLIENT} {SERVER}")), format!("{COUNT} {COUNT}"));
        assert_eq!(serving.join().expect("the server"), COUNT.to_string());
    });
}

#[test]
fn a_process_that_is_stopped_keeps_no_other_waiting() {
    in_namespace("connections::a_process_that_is_stopped_keeps_no_other_waiting", || {
        let (stopped, mut client) = listening(SERVER);
        let mut server = Peer::start();
        assert_ne!(server.ask("open"), "0");
        assert_eq!(server.ask("bind p 127.0.0.1:7175"), "ok 127.0.0.1:7175");
        assert_eq!(server.ask("listen p 10"), "ok");
        stopped.signal(libc::SIGSTOP);
        for n in 0..200 {
            assert_eq!(client.ask(&format!("connect x{n} {CLIENT} {SERVER} {} hello", 5000 + n)), "ok");
        }
        connected(&mut server, &mut client, CLIENT, "127.0.0.1:7175");
        assert_eq!(client.ask("drop c"), "ok");
        assert_eq!(server.event(), "disconnected s");
        // Some requests have found room, the others come again.
        stopped.signal(libc::SIGCONT);
        let mut stopped = stopped;
        assert!(stopped.event().starts_with("request 127.0.0.1 "));
    });
}
