//! A queue pair that is connected anew, with the numbers of its last connection, receives nothing that was sent before.

use super::namespace::in_namespace;
use super::peer::Remote;
use super::side::{Side, open};
use ferroce_nic::Poll as _;
use ferroce_types::WcStatus;
use ferroce_wire::Service;

/// Messages of a connection.
const MESSAGES: usize = 20;
const OLD: u8 = 1;
const NEW: u8 = 2;

fn post_receives(side: &mut Side) {
    side.memory.fill(0);
    for n in 0..MESSAGES {
        side.recv(n as u64, side.sge(n, 1));
    }
}

/// `may_be_late`: the kernel may still have messages in its hands, some of the times, when the next connection is made.
fn connections_follow_each_other(may_be_late: bool) {
    let mut remote = Remote::start();
    let mut side = Side::new(&open(), Service::Rc, MESSAGES);
    let reconnect = format!("reconnect {}", side.qp.qpn());
    let burst = |byte: u8| format!("burst {MESSAGES} {byte}");
    assert_eq!(remote.member.ask(&reconnect), "ok");
    side.connect(remote.qpn);
    let mut late = 0;
    for generation in 0..40 {
        post_receives(&mut side);
        // After a poll, packets are left to the polling thread for a moment: the background thread doesn't take them.
        side.cq.poll(1, |wc| panic!("{wc:?}")).unwrap();
        // What is sent finds the queue pair as it was connected, or in RESET.
        let in_reset = generation % 2 == 1;
        if in_reset {
            side.reset();
        }
        for command in [&burst(OLD), &reconnect] {
            assert_eq!(remote.member.ask(command), "ok");
        }
        if !in_reset {
            side.reset();
        }
        side.connect(remote.qpn);
        post_receives(&mut side);
        assert_eq!(remote.member.ask(&burst(NEW)), "ok");
        for n in 0..MESSAGES {
            let wc = side.wait();
            assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, n as u64), "connection {generation}");
        }
        let is_new = side.memory.iter().all(|&byte| byte == NEW);
        assert!(is_new || may_be_late, "connection {generation}: {:?}", side.memory);
        late += u32::from(!is_new);
        // The next one begins with RESET.
        assert_eq!(remote.member.ask(&reconnect), "ok");
        side.reset();
        side.connect(remote.qpn);
    }
    assert!(late <= 4, "{late} connections have received messages of the one before");
    side.close();
}

#[test]
fn messages_of_an_earlier_connection_are_not_received() {
    in_namespace("reset::messages_of_an_earlier_connection_are_not_received", || {
        connections_follow_each_other(false)
    });
}

#[test]
fn messages_of_an_earlier_connection_are_not_received_over_udp() {
    in_namespace("reset::messages_of_an_earlier_connection_are_not_received_over_udp", || {
        // SAFETY: no other thread reads the environment yet.
        unsafe { std::env::set_var("FERROCE_FABRIC", "udp") };
        connections_follow_each_other(true);
    });
}
