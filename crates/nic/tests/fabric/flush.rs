//! A queue pair that is flushed or destroyed has taken what its peer acknowledged and sent before.

use super::member::answer_commands;
use super::namespace::in_namespace;
use super::peer::{MEMORY, Remote};
use super::side::{QKEY, Side, open};
use ferroce_nic::{Poll as _, create_ah};
use ferroce_parts::{QpAttr, mask};
use ferroce_proto::{SendOp, UdTarget};
use ferroce_tests::helper::Helper;
use ferroce_types::{QpState, WcStatus};
use ferroce_wire::Service;

const ROUNDS: usize = 30;
/// Messages of a round.
const MESSAGES: u64 = 3;

/// A queue pair, connected anew with a peer that has as many receives as messages come.
fn connect(remote: &mut Remote, side: &Side) {
    assert_eq!(remote.member.ask(&format!("reconnect {}", side.qp.qpn())), "ok");
    side.reset();
    side.connect(remote.qpn);
    assert_eq!(remote.member.ask(&format!("receive {MESSAGES} 8")), "ok");
    // The thread that polls takes what comes, now and for a moment: not the background thread.
    side.cq.poll(1, |wc| panic!("{wc:?}")).unwrap();
}

fn change_to(side: &Side, state: QpState) {
    side.qp.modify(&QpAttr { state, ..QpAttr::default() }, mask::STATE).unwrap();
}

fn use_udp() {
    // SAFETY: no other thread reads the environment yet.
    unsafe { std::env::set_var("FERROCE_FABRIC", "udp") };
}

/// Each operation, and then SENDs: the peer has acknowledged all when it has the SENDs' completions.
fn acknowledged_requests_succeed() {
    let mut remote = Remote::start();
    let side = Side::new(&open(), Service::Rc, MEMORY);
    let (va, rkey) = (remote.addr, remote.rkey);
    let first = [
        SendOp::Send,
        SendOp::Write { va, rkey },
        SendOp::Read { va, rkey },
        SendOp::FetchAdd { va, rkey, add: 1 },
        SendOp::CompareSwap { va, rkey, compare: 0, swap: 1 },
    ];
    for round in 0..ROUNDS {
        connect(&mut remote, &side);
        let op = first[round % first.len()];
        side.send(0, op, side.sge(0, 8), None);
        let sends = MESSAGES - u64::from(op == SendOp::Send);
        (1..=sends).for_each(|n| side.send(n, SendOp::Send, side.sge(8, 8), None));
        assert_eq!(remote.member.ask(&format!("received {MESSAGES}")), "ok");
        if round % 2 == 1 {
            // What has begun ends in SQD as well.
            change_to(&side, QpState::Sqd);
        }
        change_to(&side, QpState::Err);
        for n in 0..=sends {
            let wc = side.wait();
            assert_eq!((wc.wr_id, wc.status), (n, WcStatus::Success), "{op:?}, round {round}");
        }
    }
    side.close();
}

#[test]
fn requests_that_the_peer_has_acknowledged_succeed() {
    in_namespace("flush::requests_that_the_peer_has_acknowledged_succeed", acknowledged_requests_succeed);
}

#[test]
fn requests_that_the_peer_has_acknowledged_succeed_over_udp() {
    in_namespace("flush::requests_that_the_peer_has_acknowledged_succeed_over_udp", || {
        use_udp();
        acknowledged_requests_succeed();
    });
}

/// Short requests that wait for an acknowledgement, to leave together, leave before the queue pair goes to ERR.
#[test]
fn requests_that_wait_for_others_leave_before_the_end() {
    const WAITING: u64 = 20;
    in_namespace("flush::requests_that_wait_for_others_leave_before_the_end", || {
        use_udp();
        let mut remote = Remote::start();
        let side = Side::new(&open(), Service::Rc, MEMORY);
        for _ in 0..ROUNDS {
            connect(&mut remote, &side);
            assert_eq!(remote.member.ask(&format!("receive {} 8", WAITING - MESSAGES)), "ok");
            (0..WAITING).for_each(|n| side.send(n, SendOp::Send, side.sge(8, 8), None));
            change_to(&side, QpState::Err);
            assert_eq!(remote.member.ask(&format!("received {WAITING}")), "ok");
            (0..WAITING).for_each(|_| _ = side.wait());
        }
        side.close();
    });
}

/// Messages that have come before the queue pair goes to ERR, or is destroyed.
fn messages_that_have_come_are_received() {
    let context = open();
    let mut remote = Remote::start();
    for round in 0..ROUNDS {
        let side = Side::new(&context, Service::Rc, MEMORY);
        connect(&mut remote, &side);
        (0..MESSAGES + 1).for_each(|n| side.recv(n, side.sge(0, 8)));
        assert_eq!(remote.member.ask(&format!("burst {MESSAGES} 1")), "ok");
        if round % 2 == 0 {
            change_to(&side, QpState::Err);
            for n in 0..=MESSAGES {
                let wc = side.wait();
                let status = if n < MESSAGES { WcStatus::Success } else { WcStatus::WrFlushErr };
                assert_eq!((wc.wr_id, wc.status), (n, status), "round {round}");
            }
        }
        side.close();
        assert_eq!(remote.member.ask(&format!("sent {MESSAGES}")), "ok", "round {round}");
    }
}

#[test]
fn messages_that_came_before_the_end_are_received_and_acknowledged() {
    const NAME: &str = "flush::messages_that_came_before_the_end_are_received_and_acknowledged";
    in_namespace(NAME, messages_that_have_come_are_received);
}

#[test]
fn messages_that_came_before_the_end_are_received_and_acknowledged_over_udp() {
    const NAME: &str = "flush::messages_that_came_before_the_end_are_received_and_acknowledged_over_udp";
    in_namespace(NAME, || {
        use_udp();
        messages_that_have_come_are_received();
    });
}

/// The process of a helper: a queue pair with two receives for datagrams.
pub fn listener() {
    const LEN: usize = 64;
    let mut side = None;
    answer_commands(|words| match *words {
        ["make"] => {
            let made = side.insert(Side::new(&open(), Service::Ud, 2 * LEN));
            made.connect(0);
            (0..2).for_each(|n| made.recv(n, made.sge(n as usize * LEN, LEN)));
            made.qp.qpn().to_string()
        }
        ["end"] => {
            let side = side.as_ref().unwrap();
            change_to(side, QpState::Err);
            format!("{:?} {:?}", side.wait().status, side.wait().status)
        }
        _ => "what?".into(),
    });
}

/// A process that isn't answered for a tenth of a second uses its shared memory all the same. The thread that ends the queue pair looks
/// for such a process: the background thread may look later.
#[test]
fn messages_of_a_process_that_is_not_answered_yet_are_received_before_the_end() {
    const NAME: &str = "flush::messages_of_a_process_that_is_not_answered_yet_are_received_before_the_end";
    in_namespace(NAME, || {
        let context = open();
        for round in 0..6 {
            let mut listener = Helper::start("listener");
            let qpn = listener.ask("make").parse().unwrap();
            let side = Side::new(&context, Service::Ud, MEMORY);
            side.connect(0);
            listener.stop();
            let address = create_ah(&side.pd, side.av()).unwrap();
            side.send(0, SendOp::Send, side.sge(0, 8), Some(UdTarget { address, qpn, qkey: QKEY }));
            assert_eq!(side.wait().status, WcStatus::Success);
            listener.tell("end");
            listener.go_on();
            assert_eq!(listener.answer(), "Success WrFlushErr", "round {round}");
            side.qp.destroy().unwrap();
        }
    });
}
