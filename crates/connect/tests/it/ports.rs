//! Which ports can be had.

use super::namespace::in_namespace;
use super::peer::Peer;

#[test]
fn a_port_is_exclusive_among_the_processes_of_a_host() {
    in_namespace("ports::a_port_is_exclusive_among_the_processes_of_a_host", || {
        let (mut first, mut second) = (Peer::start(), Peer::start());
        assert_eq!(first.ask("bind a 127.0.0.1:7000"), "ok 127.0.0.1:7000");
        for process in [&mut first, &mut second] {
            assert_eq!(process.ask("bind b 0.0.0.0:7000"), "errno 99");
            assert_eq!(process.ask("bind b [::]:7000"), "errno 99");
            assert_eq!(process.ask("bind b [::]:7000 only"), "ok [::]:7000");
            assert_eq!(process.ask("free b"), "ok");
            // Another space has other ports.
            assert_eq!(process.ask("bind b 127.0.0.1:7000 udp"), "ok 127.0.0.1:7000");
            assert_eq!(process.ask("free b"), "ok");
        }
        // Nothing is left of a process that dies.
        first.kill();
        assert_eq!(second.ask("bind b 0.0.0.0:7000"), "ok 0.0.0.0:7000");
        let chosen = second.ask("bind c 127.0.0.1:0");
        let port: u16 = chosen.rsplit_once(':').expect("a port").1.parse().expect("a number");
        assert!(port >= 1024, "{chosen}");
    });
}

/// A peer distinguishes a process's connections by their ports.
#[test]
fn ports_that_are_only_shown_differ() {
    in_namespace("ports::ports_that_are_only_shown_differ", || {
        const COUNT: usize = 2000;
        let mut process = Peer::start();
        let mut ports: Vec<String> =
            (0..COUNT).map(|i| process.ask(&format!("bind {i} 127.0.0.1:0 label"))).collect();
        assert!(ports.iter().all(|port| port.starts_with("ok 127.0.0.1:")));
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), COUNT);
    });
}

#[test]
fn a_shared_port_has_no_listener() {
    in_namespace("ports::a_shared_port_has_no_listener", || {
        let (mut first, mut second) = (Peer::start(), Peer::start());
        assert_eq!(first.ask("bind a 127.0.0.1:7000 reuse"), "ok 127.0.0.1:7000");
        assert_eq!(second.ask("bind a 127.0.0.1:7000 reuse"), "ok 127.0.0.1:7000");
        assert_eq!(second.ask("bind b 127.0.0.1:7000"), "errno 99");
        assert_eq!(first.ask("listen a 1"), "errno 99");
        assert_eq!(second.ask("free a"), "ok");
        assert_eq!(first.ask("listen a 1"), "ok");
        assert_eq!(first.ask("listen a 1"), "errno 22");
        assert_eq!(second.ask("bind a 127.0.0.1:7000 reuse"), "errno 99");
    });
}

/// First bind, second bind, and the errno of the second: 0, EADDRINUSE (98) or EADDRNOTAVAIL (99), as the kernel's `rdma_cm` has it.
const BINDS: &[(&str, &str, i32)] = &[
    // One address each.
    ("10.0.0.1:7000", "10.0.0.1:7000", 98),
    ("10.0.0.1:7000", "10.0.0.2:7000", 0),
    ("10.0.0.1:7000", "10.0.0.1:7001", 0),
    ("[fd00::1]:7000", "[fd00::1]:7000", 98),
    ("[fd00::1]:7000", "[fd00::1]:7000 only", 98),
    ("[fd00::1]:7000", "[fd00::2]:7000", 0),
    ("[fd00::1]:7000", "10.0.0.1:7000", 0),
    // Wide addresses, the loopback ones among them, on either side or both.
    ("0.0.0.0:7000", "0.0.0.0:7000", 99),
    ("0.0.0.0:7000", "10.0.0.1:7000", 99),
    ("10.0.0.1:7000", "0.0.0.0:7000", 99),
    ("127.0.0.1:7000", "127.0.0.1:7000", 99),
    ("127.0.0.1:7000", "10.0.0.1:7000", 99),
    ("10.0.0.1:7000", "127.0.0.1:7000", 99),
    ("[::]:7000", "[::]:7000", 99),
    ("[::]:7000", "[fd00::1]:7000", 99),
    ("[fd00::1]:7000", "[::]:7000", 99),
    ("[::1]:7000", "[::1]:7000", 99),
    ("[::1]:7000", "[fd00::1]:7000", 99),
    // Both families, unless both sides are of one alone, as IPv4 is.
    ("[::]:7000", "0.0.0.0:7000", 99),
    ("0.0.0.0:7000", "[::]:7000", 99),
    ("[::]:7000", "10.0.0.1:7000", 99),
    ("[fd00::1]:7000", "0.0.0.0:7000", 99),
    ("[::1]:7000", "10.0.0.1:7000", 99),
    ("[::]:7000 only", "0.0.0.0:7000", 0),
    ("0.0.0.0:7000", "[::]:7000 only", 0),
    ("[fd00::1]:7000 only", "0.0.0.0:7000", 0),
    ("[::]:7000 only", "[::]:7000", 99),
    ("[::]:7000 only", "[fd00::1]:7000 only", 99),
    // Another port space.
    ("10.0.0.1:7000", "10.0.0.1:7000 udp", 0),
    ("0.0.0.0:7000", "0.0.0.0:7000 udp", 0),
    ("[::]:7000", "10.0.0.1:7000 udp", 0),
    // Both share, or only one does.
    ("10.0.0.1:7000 reuse", "10.0.0.1:7000 reuse", 0),
    ("0.0.0.0:7000 reuse", "0.0.0.0:7000 reuse", 0),
    ("0.0.0.0:7000 reuse", "10.0.0.1:7000 reuse", 0),
    ("[::]:7000 reuse", "10.0.0.1:7000 reuse", 0),
    ("10.0.0.1:7000 reuse", "10.0.0.1:7000", 98),
    ("10.0.0.1:7000", "10.0.0.1:7000 reuse", 98),
    ("0.0.0.0:7000 reuse", "0.0.0.0:7000", 99),
    ("0.0.0.0:7000", "0.0.0.0:7000 reuse", 99),
    ("0.0.0.0:7000", "10.0.0.1:7000 reuse", 99),
];

#[test]
fn two_binds_of_a_port_end_as_with_the_kernel() {
    in_namespace("ports::two_binds_of_a_port_end_as_with_the_kernel", || {
        let (mut first, mut second) = (Peer::start(), Peer::start());
        let errno_of = |process: &mut Peer, how: &str| {
            let answer = process.ask(&format!("bind b {how}"));
            process.ask("free b");
            answer.strip_prefix("errno ").map_or(0, |errno| errno.parse::<i32>().expect("a number"))
        };
        let mut wrong = Vec::new();
        for &(one, other, expected) in BINDS {
            assert!(first.ask(&format!("bind a {one}")).starts_with("ok"), "{one}");
            // In the same process and in another one.
            let errnos = [errno_of(&mut first, other), errno_of(&mut second, other)];
            if errnos != [expected; 2] {
                wrong.push(format!("{one}, then {other}: {errnos:?} instead of {expected}"));
            }
            first.ask("free a");
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

#[test]
fn a_shared_port_is_listened_at_alone() {
    in_namespace("ports::a_shared_port_is_listened_at_alone", || {
        let mut process = Peer::start();
        for (one, other, errno) in
            [("10.0.0.1", "10.0.0.1", 98), ("0.0.0.0", "0.0.0.0", 99), ("10.0.0.1", "0.0.0.0", 99)]
        {
            assert!(process.ask(&format!("bind a {one}:7000 reuse")).starts_with("ok"));
            assert!(process.ask(&format!("bind b {other}:7000 reuse")).starts_with("ok"));
            assert_eq!(process.ask("listen a 1"), format!("errno {errno}"), "{one}, {other}");
            assert_eq!(process.ask("free b"), "ok");
            assert_eq!(process.ask("listen a 1"), "ok");
            assert_eq!(process.ask("free a"), "ok");
        }
    });
}
