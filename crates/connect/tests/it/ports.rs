//! Which ports can be had.

use super::namespace::in_namespace;
use super::peer::Peer;

#[test]
fn a_port_is_exclusive_among_the_processes_of_a_host() {
    in_namespace("ports::a_port_is_exclusive_among_the_processes_of_a_host", || {
        let (mut first, mut second) = (Peer::start(), Peer::start());
        assert_eq!(first.ask("bind a 127.0.0.1:7000"), "ok 127.0.0.1:7000");
        for process in [&mut first, &mut second] {
            assert_eq!(process.ask("bind b 127.0.0.1:7000"), "errno 98");
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

#[test]
fn a_shared_port_has_no_listener() {
    in_namespace("ports::a_shared_port_has_no_listener", || {
        let (mut first, mut second) = (Peer::start(), Peer::start());
        assert_eq!(first.ask("bind a 127.0.0.1:7000 reuse"), "ok 127.0.0.1:7000");
        assert_eq!(second.ask("bind a 127.0.0.1:7000 reuse"), "ok 127.0.0.1:7000");
        assert_eq!(second.ask("bind b 127.0.0.1:7000"), "errno 98");
        assert_eq!(first.ask("listen a 1"), "errno 98");
        assert_eq!(second.ask("free a"), "ok");
        assert_eq!(first.ask("listen a 1"), "ok");
        assert_eq!(first.ask("listen a 1"), "errno 22");
        assert_eq!(second.ask("bind a 127.0.0.1:7000 reuse"), "errno 98");
    });
}
