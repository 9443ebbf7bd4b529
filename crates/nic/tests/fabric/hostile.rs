//! A process that shares memory with a hostile one of the same user: the hostile one's own QPs may fail, and nothing else.

use super::namespace::in_namespace;
use super::peer::{MEMORY, Remote};
use super::side::{Side, open};
use ferroce_proto::SendOp;
use ferroce_tests::wait::eventually;
use ferroce_types::WcStatus;
use ferroce_wire::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const SIZES: [usize; 4] = [1, 64, 4096, 60_000];

/// Traffic with a process that behaves well, in a thread of its own. Every byte is checked.
struct Traffic {
    remote: Remote,
    qpn: u32,
    rounds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Side>,
}

impl Traffic {
    fn start() -> Self {
        let mut remote = Remote::start();
        let side = Side::new(&open(), Service::Rc, MEMORY);
        remote.connect(&side, 14);
        let (rounds, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let qpn = side.qp.qpn();
        let far = (remote.addr + MEMORY as u64 / 2, remote.rkey);
        let (counted, stopped) = (rounds.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut side = side;
            while !stopped.load(Ordering::Relaxed) {
                round(&mut side, far, counted.load(Ordering::Relaxed));
                counted.fetch_add(1, Ordering::Relaxed);
            }
            side
        });
        let this = Self { remote, qpn, rounds, stop, thread };
        this.goes_on();
        this
    }

    /// Waits for a round that began after this call.
    #[track_caller]
    fn goes_on(&self) {
        let now = self.rounds.load(Ordering::Relaxed);
        eventually("traffic with the other process goes on", || {
            self.thread.is_finished() || self.rounds.load(Ordering::Relaxed) > now + 2
        });
        assert!(!self.thread.is_finished(), "it has failed");
    }

    /// Ends it, and everything that belongs to it.
    fn end(self) {
        self.goes_on();
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap().close();
        drop(self.remote);
    }
}

/// Sends, and gets the same back; writes, and reads the same back.
fn round(side: &mut Side, (va, rkey): (u64, u32), number: u64) {
    let len = SIZES[number as usize % SIZES.len()];
    let pattern: Vec<u8> = (0..len).map(|i| (i as u64 * 7 + number * 13) as u8).collect();
    let (here, there) = (side.sge(0, len), side.sge(MEMORY / 2, len));
    let success = |side: &Side| assert_eq!(side.wait().status, WcStatus::Success);
    for echoed in [true, false] {
        side.memory[..len].copy_from_slice(&pattern);
        side.memory[MEMORY / 2..][..len].fill(!pattern[0]);
        if echoed {
            side.recv(1, there);
            side.send(2, SendOp::Send, here, None);
            success(side);
        } else {
            side.send(3, SendOp::Write { va, rkey }, here, None);
            success(side);
            side.send(4, SendOp::Read { va, rkey }, there, None);
        }
        success(side);
        assert!(side.memory[MEMORY / 2..][..len] == pattern, "{len} bytes came back damaged");
    }
}

/// A hostile process, and a QP connected with it over which something has been written.
fn hostile() -> (Remote, Side) {
    let mut remote = Remote::start();
    let side = Side::new(&open(), Service::Rc, MEMORY);
    // A link that is broken shows soon.
    remote.connect(&side, 12);
    let write = SendOp::Write { va: remote.addr, rkey: remote.rkey };
    side.send(1, write, side.sge(0, 100), None);
    assert_eq!(side.wait().status, WcStatus::Success);
    side.recv(2, side.sge(MEMORY / 2, 100));
    side.send(3, SendOp::Send, side.sge(0, 100), None);
    for _ in 0..2 {
        assert_eq!(side.wait().status, WcStatus::Success);
    }
    (remote, side)
}

/// For each word of `what`, has a new process write to its links what doesn't belong there (`scribble::scribble`). `breaks`: the link
/// to that process then fails.
fn scribble(what: &[&str], breaks: bool) {
    let traffic = Traffic::start();
    for what in what {
        let (mut remote, side) = hostile();
        assert_eq!(remote.member.ask(&format!("scribble {what}")), "ok");
        traffic.goes_on();
        if breaks {
            side.send(7, SendOp::Send, side.sge(0, 100), None);
            assert_ne!(side.wait().status, WcStatus::Success, "{what}");
        }
        side.close();
    }
    traffic.end();
}

#[test]
fn nonsense_in_a_ring_breaks_the_writers_link_only() {
    in_namespace("hostile::nonsense_in_a_ring_breaks_the_writers_link_only", || {
        scribble(&["garbage", "zeros", "bulk-between-lines", "bulk-beyond", "long-bulk"], true);
    });
}

#[test]
fn nonsense_about_room_harms_nobody() {
    in_namespace("hostile::nonsense_about_room_harms_nobody", || {
        scribble(&["head-ahead", "head-back", "waits", "words-of-the-other"], false);
    });
}

#[test]
fn packets_for_the_qps_of_others_are_not_accepted() {
    in_namespace("hostile::packets_for_the_qps_of_others_are_not_accepted", || {
        let traffic = Traffic::start();
        let (mut remote, side) = hostile();
        for qpn in [traffic.qpn, 0, 1, 0xff_ffff, traffic.qpn + 1] {
            assert_eq!(remote.member.ask(&format!("forge {qpn}")), "ok");
            traffic.goes_on();
        }
        side.close();
        traffic.end();
    });
}

#[test]
fn bells_without_end_keep_nobody_from_working() {
    in_namespace("hostile::bells_without_end_keep_nobody_from_working", || {
        let traffic = Traffic::start();
        for len in [1, 64] {
            let (mut remote, side) = hostile();
            remote.member.tell(&format!("bells {len}"));
            traffic.goes_on();
            // Requests of others are answered meanwhile.
            let (_other, another) = hostile();
            another.close();
            assert_eq!(remote.member.answer(), "ok");
            side.close();
        }
        traffic.end();
    });
}

#[test]
fn slots_that_a_process_only_claims_are_not_believed() {
    in_namespace("hostile::slots_that_a_process_only_claims_are_not_believed", || {
        let (mut hostile, side) = hostile();
        let mut good = Remote::start();
        assert_eq!(hostile.member.ask(&format!("claim {}", good.qpn >> 12)), "ok");
        let mut other = Side::new(&side.context, Service::Rc, MEMORY);
        // This process first: it has to find out by itself where that slot is.
        other.connect(good.qpn);
        assert_eq!(good.member.ask(&format!("connect {}", other.qp.qpn())), "ok");
        for number in 0..8 {
            round(&mut other, (good.addr, good.rkey), number);
        }
        other.close();
        side.close();
    });
}

/// Begins an access to the region of `side`, by way of its queue pair, that never ends.
fn begin_access(remote: &mut Remote, side: &Side) {
    let access = format!("access {} {}", side.mr.rkey(), side.qp.qpn());
    assert_eq!(remote.member.ask(&access), "ok");
}

#[test]
fn an_access_that_never_ends_keeps_no_object_that_it_does_not_use() {
    in_namespace("hostile::an_access_that_never_ends_keeps_no_object_that_it_does_not_use", || {
        let traffic = Traffic::start();
        let (mut remote, side) = hostile();
        begin_access(&mut remote, &side);
        let unknown = Side::new(&open(), Service::Rc, MEMORY);
        unknown.mr.deregister().unwrap();
        unknown.qp.destroy().unwrap();
        // One that the process knows, and doesn't use.
        let known = Side::new(&open(), Service::Rc, MEMORY);
        known.connect(remote.qpn);
        known.mr.deregister().unwrap();
        known.qp.destroy().unwrap();
        // A revocation that waits ends with EBUSY.
        assert_eq!(side.mr.deregister().unwrap_err().errno(), libc::EBUSY);
        remote.member.kill();
        eventually("the process's end is noticed", || side.qp.destroy().is_ok());
        side.mr.deregister().unwrap();
        traffic.end();
    });
}

#[test]
fn an_access_that_never_ends_keeps_objects_until_the_process_is_gone() {
    in_namespace("hostile::an_access_that_never_ends_keeps_objects_until_the_process_is_gone", || {
        let traffic = Traffic::start();
        let (mut remote, side) = hostile();
        begin_access(&mut remote, &side);
        for refused in [side.mr.deregister(), side.qp.destroy()] {
            assert_eq!(refused.unwrap_err().errno(), libc::EBUSY);
        }
        traffic.goes_on();
        // Both are still there.
        side.send(5, SendOp::Write { va: remote.addr, rkey: remote.rkey }, side.sge(0, 100), None);
        assert_eq!(side.wait().status, WcStatus::Success);
        remote.member.kill();
        eventually("the process's end is noticed", || side.qp.destroy().is_ok());
        side.mr.deregister().unwrap();
        traffic.end();
    });
}

#[test]
fn an_access_under_way_outlives_its_link_and_is_waited_for() {
    in_namespace("hostile::an_access_under_way_outlives_its_link_and_is_waited_for", || {
        let traffic = Traffic::start();
        let (mut remote, side) = hostile();
        begin_access(&mut remote, &side);
        assert_eq!(remote.member.ask("scribble zeros"), "ok");
        // The thread of the traffic makes progress, so it has read the ring by now.
        traffic.goes_on();
        side.send(7, SendOp::Send, side.sge(0, 100), None);
        assert_ne!(side.wait().status, WcStatus::Success, "the link has ended");
        assert_eq!(side.mr.deregister().unwrap_err().errno(), libc::EBUSY);
        traffic.goes_on();
        remote.member.kill();
        eventually("the process's end is noticed", || side.mr.deregister().is_ok());
        side.qp.destroy().unwrap();
        traffic.end();
    });
}

#[test]
fn memory_of_a_process_that_sees_no_exit_is_reached_by_packets_only() {
    in_namespace("hostile::memory_of_a_process_that_sees_no_exit_is_reached_by_packets_only", || {
        // A process that doesn't poll.
        let mut remote = Remote::start();
        let side = Side::new(&open(), Service::Rc, MEMORY);
        assert_eq!(remote.member.ask(&format!("reconnect {}", side.qp.qpn())), "ok");
        side.connect(remote.qpn);
        let write = || {
            side.send(1, SendOp::Write { va: remote.addr, rkey: remote.rkey }, side.sge(0, 64), None);
            assert_eq!(side.wait().status, WcStatus::Success);
            // The other's background thread, which would carry out what it finds, looks for more for a moment only.
            std::thread::sleep(Duration::from_millis(1));
        };
        // The link is made with the first.
        write();
        let packets_of_writes = || {
            let before = side.qp.counters().requests_sent;
            (0..20).for_each(|_| write());
            side.qp.counters().requests_sent - before
        };
        assert!(packets_of_writes() < 20, "some are carried out without a packet");
        assert_eq!(remote.member.ask("scribble unseeing"), "ok");
        assert!(packets_of_writes() >= 20, "a packet for each");
        side.close();
    });
}

#[test]
fn introductions_that_make_no_sense_are_refused() {
    in_namespace("hostile::introductions_that_make_no_sense_are_refused", || {
        let traffic = Traffic::start();
        let slot = traffic.qpn >> 12;
        let mut remote = Remote::start();
        for how in [
            "without-descriptors",
            "one-descriptor",
            "three-descriptors",
            "253-descriptors",
            "no-memory",
            "no-directory",
            "unsealed",
            "small",
            "small-directory",
            "swapped",
            "short",
            "long",
            "very-long",
            "frame-only",
            "another-layout",
            "another-kind",
        ] {
            let said = remote.member.ask(&format!("offer {slot} {how}"));
            assert!(["refused", "closed"].contains(&&*said), "{how}: {said}");
        }
        traffic.goes_on();
        assert_eq!(remote.member.ask(&format!("offer {slot} rightly")), "granted");
        // Nothing is left of them.
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = descriptors();
        for how in ["253-descriptors", "three-descriptors", "unsealed", "no-directory", "rightly"] {
            remote.member.ask(&format!("offer {slot} {how}"));
        }
        eventually("their descriptors are closed", || descriptors() <= before);
        traffic.end();
    });
}

/// As a process of another layout does.
#[test]
fn a_process_that_refuses_to_share_memory_is_reached_by_packets() {
    in_namespace("hostile::a_process_that_refuses_to_share_memory_is_reached_by_packets", || {
        let mut remote = Remote::start();
        // SAFETY: no other thread reads the environment yet.
        unsafe { std::env::set_var("FERROCE_FABRIC", "udp") };
        let mut side = Side::new(&open(), Service::Rc, MEMORY);
        let slot = side.qp.qpn() >> 12;
        remote.connect(&side, 14);
        let far = (remote.addr + MEMORY as u64 / 2, remote.rkey);
        for number in 0..20 {
            round(&mut side, far, number);
        }
        assert_eq!(remote.member.ask(&format!("offer {slot} rightly")), "refused");
        side.close();
    });
}

#[test]
fn a_flood_of_connections_keeps_nobody_from_working() {
    in_namespace("hostile::a_flood_of_connections_keeps_nobody_from_working", || {
        let traffic = Traffic::start();
        let slot = traffic.qpn >> 12;
        let mut flooder = Remote::start();
        flooder.member.tell(&format!("flood {slot} 3000"));
        for _ in 0..3 {
            traffic.goes_on();
        }
        assert_ne!(flooder.member.answer(), "0");
        // A process that makes one link after the other.
        let links: usize = flooder.member.ask(&format!("links {slot} 100")).parse().unwrap();
        assert!((1..100).contains(&links), "{links} links");
        let (_remote, side) = hostile();
        side.close();
        traffic.goes_on();
        traffic.end();
    });
}
