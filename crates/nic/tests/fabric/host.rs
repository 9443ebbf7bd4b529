//! Many processes, one UDP port, one QPN space.

use super::member::{Member, address, endpoint};
use super::namespace::{in_namespace, in_root_namespace};
use super::packets::push;
use ferroce_host::{Host, HostError, RequestHandler, frame};
use ferroce_os::clock;
use ferroce_os::sys::{self, AbstractName, EngineFd};
use ferroce_tests::wait::eventually;
use ferroce_types::{Datagram, HostAddr, slot_of};
use ferroce_udp::{RecvOutcome, TxBatch, receiving_socket};
use ferroce_wire::{MIN_PACKET_LEN, Operation};
use std::fs::{File, read_to_string};
use std::io::{self, BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LO4: &str = "127.0.0.1";
const LO6: &str = "::1";

fn assert_nothing_is_left() {
    eventually("all names and sockets are gone", || {
        let names = read_to_string("/proc/net/unix").unwrap();
        let ports = read_to_string("/proc/net/udp").unwrap() + &read_to_string("/proc/net/udp6").unwrap();
        !names.contains("@ferroce-") && !ports.contains(":12B7 ")
    });
}

/// Numbers from a seed, the same in every run.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

#[test]
fn packets_reach_the_owner_through_joins_and_kills() {
    in_namespace("host::packets_reach_the_owner_through_joins_and_kills", || {
        const MEMBERS: usize = 6;
        const EACH: u64 = 20;
        let mut random = Sequence(7);
        let address_of = |round: usize| [LO4, LO6][round % 2];
        let join = || {
            let mut member = Member::joined(LO4);
            assert_eq!(member.ask(&format!("join {LO6}")), "ok");
            member
        };
        let mut members: Vec<Member> = (0..MEMBERS).map(|_| join()).collect();
        for round in 0..40 {
            let to = address_of(round);
            let before: Vec<[u64; 2]> =
                members.iter_mut().map(|m| ["own", "foreign"].map(|n| m.number(n))).collect();
            // Processes that join at the same moment may take slots that share a socket; then each of them reads it.
            let slots: Vec<u64> = members.iter_mut().map(|m| m.number("slot")).collect();
            let shares = |slot: u64| slots.iter().filter(|other| **other % 64 == slot % 64).count() > 1;
            let sender = random.below(MEMBERS);
            for slot in &slots {
                let len = [0, 1, 64, 1023, 1024][random.below(5)];
                assert_eq!(members[sender].ask(&format!("send {to} {slot} {EACH} {len}")), EACH.to_string());
            }
            for ((member, [own, foreign]), slot) in members.iter_mut().zip(before).zip(&slots) {
                eventually("the owner has all its packets", || member.number("own") == own + EACH);
                assert_eq!(member.number("bad"), 0, "round {round}");
                assert!(shares(*slot) || member.number("foreign") == foreign, "round {round}");
            }
            // One or two at a time, the leader often among them, while others join.
            let mut starting: Vec<Member> = Vec::new();
            for _ in 0..=random.below(2) {
                members.remove(random.below(members.len())).kill();
                starting.push(Member::start());
            }
            starting.iter_mut().for_each(|m| m.tell(&format!("join {LO4}\njoin {LO6}")));
            for mut member in starting {
                assert_eq!(
                    (member.answer(), member.answer()),
                    ("ok".to_owned(), "ok".to_owned()),
                    "round {round}"
                );
                members.push(member);
            }
        }
        let mut slots: Vec<u64> = members.iter_mut().map(|m| m.number("slot")).collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), MEMBERS, "slots are exclusive");
        members.into_iter().for_each(Member::kill);
        assert_nothing_is_left();
    });
}

#[test]
fn kills_in_the_middle_of_a_join_harm_nobody() {
    in_namespace("host::kills_in_the_middle_of_a_join_harm_nobody", || {
        let mut random = Sequence(11);
        for round in 0..60 {
            // Without survivors in every other round: then it is the making of the group that is cut short.
            let mut survivor = (round % 2 == 0).then(|| Member::joined(LO4));
            let mut victims: Vec<Member> = (0..3).map(|_| Member::start()).collect();
            victims.iter_mut().for_each(|m| m.tell(&format!("join {LO4}")));
            std::thread::sleep(Duration::from_micros(random.below(8000) as u64));
            victims.into_iter().for_each(Member::kill);
            let mut newcomer = Member::joined(LO4);
            let slot = newcomer.number("slot");
            let sender = survivor.as_mut().unwrap_or(&mut newcomer);
            assert_eq!(sender.ask(&format!("send {LO4} {slot} 5 64")), "5");
            eventually("packets arrive", || newcomer.number("own") == 5);
        }
        assert_nothing_is_left();
    });
}

#[test]
fn many_first_joiners_at_once_end_up_with_one_group() {
    in_namespace("host::many_first_joiners_at_once_end_up_with_one_group", || {
        for _ in 0..5 {
            let mut members: Vec<Member> = (0..8).map(|_| Member::start()).collect();
            members.iter_mut().for_each(|m| m.tell(&format!("join {LO4}")));
            assert!(members.iter_mut().all(|m| m.answer() == "ok"));
            let sockets = read_to_string("/proc/net/udp").unwrap().matches(":12B7 ").count();
            assert_eq!(sockets, 64);
            let leaders: u64 = members.iter_mut().map(|m| m.number("leader")).sum();
            assert_eq!(leaders, 1);
            for receiver in 0..8 {
                let slot = members[receiver].number("slot");
                assert_eq!(members[(receiver + 1) % 8].ask(&format!("send {LO4} {slot} 3 100")), "3");
                eventually("packets arrive", || members[receiver].number("own") == 3);
            }
            members.into_iter().for_each(Member::kill);
            assert_nothing_is_left();
        }
    });
}

#[test]
fn stopped_leader_blocks_nobody() {
    in_namespace("host::stopped_leader_blocks_nobody", || {
        let mut leader = Member::joined(LO4);
        let mut second = Member::joined(LO4);
        assert_eq!((leader.number("leader"), second.number("leader")), (1, 0));
        leader.stop();
        let mut third = Member::joined(LO4);
        let slot = third.number("slot");
        assert_eq!(second.ask(&format!("send {LO4} {slot} 70 512")), "70");
        eventually("the newcomer has its packets", || third.number("own") == 70);
        // Also when it is stopped in the middle of a crowd, and continues later.
        let _more: Vec<Member> = (0..5).map(|_| Member::joined(LO4)).collect();
        leader.go_on();
        let slot = leader.number("slot");
        assert_eq!(third.ask(&format!("send {LO4} {slot} 3 512")), "3");
        eventually("the leader goes on", || leader.number("own") == 3);
    });
}

/// Each process that joins asks the leader first, whose queue has room for 64 connections, closed ones included.
#[test]
fn a_crowd_that_fills_the_queue_of_a_stopped_leader_joins_others() {
    in_namespace("host::a_crowd_that_fills_the_queue_of_a_stopped_leader_joins_others", || {
        const CROWD: usize = 80;
        let mut leader = Member::joined(LO4);
        let second = Member::joined(LO6);
        assert_eq!(leader.number("leader"), 1);
        leader.stop();
        let mut crowd: Vec<Member> = (0..CROWD).map(|_| Member::start()).collect();
        crowd.iter_mut().for_each(|member| member.tell(&format!("join {LO6}")));
        assert!(crowd.iter_mut().all(|member| member.answer() == "ok"));
        // What only the leader has is missing to those that come later, and what others have isn't.
        let late = Host::join().unwrap();
        let error = endpoint(&late, address(LO4)).unwrap_err();
        assert!(matches!(error, HostError::Unresponsive { stopped: true, .. }), "{error}");
        endpoint(&late, address(LO6)).unwrap();
        // Also where no process but the leader could be asked.
        crowd.into_iter().chain([second]).for_each(Member::kill);
        drop(late);
        endpoint(&Host::join().unwrap(), address(LO6)).unwrap();
        leader.go_on();
        endpoint(&Host::join().unwrap(), address(LO4)).unwrap();
    });
}

#[test]
fn dead_leaders_name_goes_to_who_joins_next() {
    in_namespace("host::dead_leaders_name_goes_to_who_joins_next", || {
        let leader = Member::joined(LO4);
        let mut other = Member::joined(LO4);
        leader.kill();
        let mut next = Member::joined(LO4);
        assert_eq!((other.number("leader"), next.number("leader")), (0, 1));
    });
}

#[test]
fn holders_that_are_all_stopped_are_reported_as_unresponsive() {
    in_namespace("host::holders_that_are_all_stopped_are_reported_as_unresponsive", || {
        let only = Member::joined(LO4);
        only.stop();
        let joiner = Host::join().unwrap();
        let error = endpoint(&joiner, address(LO4)).unwrap_err();
        assert!(matches!(error, HostError::Unresponsive { .. }), "{error}");
        // Another address is not affected.
        endpoint(&joiner, address(LO6)).unwrap();
        only.go_on();
        endpoint(&joiner, address(LO4)).unwrap();
    });
}

/// As in a frozen cgroup, where no state is that of a stopped process.
#[test]
fn holders_whose_threads_all_sleep_are_reported_as_stopped() {
    in_namespace("host::holders_whose_threads_all_sleep_are_reported_as_stopped", || {
        let mut only = Member::joined(LO4);
        assert_eq!(only.ask("sleep"), "ok");
        let joiner = Host::join().unwrap();
        let error = endpoint(&joiner, address(LO4)).unwrap_err();
        assert!(matches!(error, HostError::Unresponsive { stopped: true, .. }), "{error}");
    });
}

#[test]
fn holders_that_are_stopped_are_known_to_be_stopped_however_often_they_are_asked() {
    /// A listener has room for 64 connections that its process hasn't accepted, whether they are closed or not.
    const TIMES: usize = 30;
    in_namespace(
        "host::holders_that_are_stopped_are_known_to_be_stopped_however_often_they_are_asked",
        || {
            let only = Member::joined(LO4);
            only.stop();
            let joiner = Host::join().unwrap();
            for time in 0..TIMES {
                let error = endpoint(&joiner, address(LO4)).unwrap_err();
                assert!(matches!(error, HostError::Unresponsive { stopped: true, .. }), "{time}: {error}");
            }
            only.go_on();
            endpoint(&joiner, address(LO4)).unwrap();
        },
    );
}

/// Connects to the listener of a name until its queue is full. The connections are closed, which empties no queue.
pub fn fill(name: &str) {
    let name = AbstractName::new(name);
    for connections in 0.. {
        let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK).unwrap();
        match sys::connect(socket.raw(), &name) {
            Ok(()) => assert!(connections < 10_000),
            Err(error) => return assert_eq!(error.raw_os_error(), Some(libc::EAGAIN)),
        }
    }
}

/// As after twenty joins by processes that have ended since.
#[test]
fn holders_that_are_stopped_are_known_to_be_stopped_by_one_that_finds_their_queues_full() {
    in_namespace(
        "host::holders_that_are_stopped_are_known_to_be_stopped_by_one_that_finds_their_queues_full",
        || {
            let mut members: Vec<Member> = (0..2).map(|_| Member::joined(LO4)).collect();
            let slots: Vec<u64> = members.iter_mut().map(|member| member.number("slot")).collect();
            members.iter().for_each(|member| member.stop());
            fill(&format!("ferroce-2-u{}-leader", sys::user_id()));
            slots.iter().for_each(|slot| fill(&format!("ferroce-2-slot-{slot}")));
            let joiner = Host::join().unwrap();
            let error = endpoint(&joiner, address(LO4)).unwrap_err();
            assert!(matches!(error, HostError::Unresponsive { stopped: true, .. }), "{error}");
            members[0].go_on();
            endpoint(&joiner, address(LO4)).unwrap();
        },
    );
}

#[test]
fn port_of_a_foreign_program_is_reported_with_its_user() {
    in_namespace("host::port_of_a_foreign_program_is_reported_with_its_user", || {
        for taken in ["127.0.0.1:4791", "0.0.0.0:4791"] {
            let foreign = UdpSocket::bind(taken).unwrap();
            let joiner = Host::join().unwrap();
            match endpoint(&joiner, address(LO4)).unwrap_err() {
                HostError::AddressInUse { address: a, holder } => {
                    assert_eq!((a, holder.uid), (address(LO4), Some(0)))
                }
                other => panic!("{other}"),
            }
            drop(foreign);
            endpoint(&joiner, address(LO4)).unwrap();
        }
    });
}

/// As while a process of ours makes its group of sockets, or lets go of it, on a machine that is busy with other things.
#[test]
fn port_that_this_user_lets_go_of_is_waited_for() {
    in_namespace("host::port_that_this_user_lets_go_of_is_waited_for", || {
        let held = UdpSocket::bind("127.0.0.1:4791").unwrap();
        let release = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(400));
            drop(held);
        });
        endpoint(&Host::join().unwrap(), address(LO4)).unwrap();
        release.join().unwrap();
    });
}

/// As at the second address of a device, whose holder was waited for at the first and ends just then.
#[test]
fn port_that_is_let_go_of_is_taken_also_when_no_time_is_left() {
    /// The first time one of TCP, as if the port were taken still: no socket of UDP is listed there.
    fn open(v6: bool) -> io::Result<EngineFd> {
        static IS_FREE: AtomicBool = AtomicBool::new(false);
        if IS_FREE.swap(true, Ordering::Relaxed) {
            return receiving_socket(v6);
        }
        sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)
    }
    in_namespace("host::port_that_is_let_go_of_is_taken_also_when_no_time_is_left", || {
        let _taken = TcpListener::bind("127.0.0.1:4791").unwrap();
        let joiner = Host::join().unwrap();
        let sockets = joiner.sockets(address(LO4), open, Duration::from_secs(60));
        assert!(sockets.unwrap().is_some());
    });
}

#[test]
fn all_connections_that_can_wait_are_answered_before_a_wait_for_them_begins() {
    const KIND: u8 = 77;
    struct Counting(AtomicUsize);
    impl RequestHandler for Counting {
        fn serve(&self, _: EngineFd, _: &[u8], _: Vec<EngineFd>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    in_namespace("host::all_connections_that_can_wait_are_answered_before_a_wait_for_them_begins", || {
        let (asked, asking) = (Host::join().unwrap(), Host::join().unwrap());
        let counting = Arc::new(Counting(AtomicUsize::new(0)));
        asked.services().register(KIND, counting.clone());
        let slot = asked.slots()[0];
        let mut clients = Vec::new();
        while let Ok(client) = asking.dial(slot) {
            frame::send(client.raw(), &mut frame::header(KIND), &[]).unwrap();
            clients.push(client);
        }
        assert!(clients.len() > 16);
        asked.answer_requests_to(slot);
        assert_eq!(counting.0.load(Ordering::Relaxed), clients.len());
    });
}

#[test]
fn address_that_is_not_ours_is_refused() {
    in_namespace("host::address_that_is_not_ours_is_refused", || {
        let joiner = Host::join().unwrap();
        for foreign in
            [address("192.0.2.1"), address("2001:db8::1"), HostAddr::new("fe80::1".parse().unwrap(), 77)]
        {
            let error = endpoint(&joiner, foreign).unwrap_err();
            assert_eq!(error.errno(), libc::EADDRNOTAVAIL, "{error}");
        }
    });
}

#[test]
fn slots_are_exclusive_usable_and_spread_over_the_steering_classes() {
    in_namespace("host::slots_are_exclusive_usable_and_spread_over_the_steering_classes", || {
        // One process takes slots in its own class; others take other classes while there are any.
        let members: Vec<_> = (0..40).map(|_| Host::join().unwrap()).collect();
        let mut classes: Vec<u16> = members.iter().map(|m| m.slots()[0] % 64).collect();
        classes.sort_unstable();
        classes.dedup();
        assert_eq!(classes.len(), 40);
        let first = &members[0];
        for _ in 0..5 {
            let slot = first.claim_slot().unwrap();
            assert_eq!(slot % 64, first.slots()[0] % 64);
            let qpn = u32::from(slot) << 12 | 0xfff;
            assert!(slot_of(qpn) == slot && slot != 0 && slot != 4095);
            assert!(first.owns(qpn) && !members[1].owns(qpn));
        }
    });
}

#[test]
fn packets_read_by_the_wrong_process_are_forwarded() {
    in_namespace("host::packets_read_by_the_wrong_process_are_forwarded", || {
        for to in [LO4, LO6] {
            let (mut owner, mut thief, mut sender) =
                (Member::joined(to), Member::joined(to), Member::joined(to));
            let (owned, other) = (owner.number("slot"), thief.number("slot"));
            // Each reads the other's socket.
            owner.ask(&format!("read {}", other % 64));
            thief.ask(&format!("read {}", owned % 64));
            for (round, len) in [0, 200, 1024].into_iter().enumerate() {
                assert_eq!(sender.ask(&format!("send {to} {owned} 50 {len}")), "50");
                eventually("forwarded packets arrive", || owner.number("own") == 50 * (round as u64 + 1));
            }
            assert_eq!((owner.number("bad"), owner.number("taken"), owner.number("foreign")), (0, 150, 0));
            // It counts a packet when it has sent it: the owner may have it before.
            eventually("the thief has counted them", || thief.number("forwarded") == 150);
            assert_eq!(thief.number("foreign"), 150);
            // A packet for a slot that no process has is counted and dropped.
            owner.kill();
            assert_eq!(sender.ask(&format!("send {to} {owned} 9 64")), "9");
            eventually("they are counted", || thief.number("unknown") == 9);
        }
    });
}

#[test]
fn a_process_without_room_for_what_is_passed_on_is_waited_for() {
    /// More than the queue of a UNIX socket has room for.
    const PACKETS: u64 = 40;
    in_namespace("host::a_process_without_room_for_what_is_passed_on_is_waited_for", || {
        let (from, to) = (Host::join().unwrap(), Host::join().unwrap());
        let mut bytes = [0; MIN_PACKET_LEN];
        bytes[5..8].copy_from_slice(&(u32::from(to.slots()[0]) << 12 | 7).to_be_bytes()[1..]);
        let datagram = Datagram {
            source: "127.0.0.1:49152".parse().unwrap(),
            destination: address(LO4),
            tos: 0,
            ttl: None,
            flow_label: 0,
            is_of_user: false,
            segment: 0,
            bytes: &bytes,
        };
        let pass_on = || (0..PACKETS).for_each(|_| from.forward(&[datagram]));
        let dropped = || from.stats().dropped.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                let mut taken = 0;
                eventually("all have come", || {
                    to.recv_forwarded(&mut |packets| taken += packets.len() as u64);
                    taken == PACKETS
                });
            });
            pass_on();
            busy.join().unwrap();
        });
        assert_eq!(dropped(), 0);
        // Not for ever: it may have stopped.
        pass_on();
        assert!(dropped() > 0);
        let (before, began) = (dropped(), Instant::now());
        pass_on();
        assert_eq!(dropped() - before, PACKETS);
        assert!(began.elapsed() < Duration::from_secs(1));
    });
}

#[test]
fn who_leaves_has_dealt_with_what_it_has_read() {
    in_namespace("host::who_leaves_has_dealt_with_what_it_has_read", || {
        // It has the port, and answers who joins.
        let mut sender = Member::joined(LO4);
        let host = Host::join().unwrap();
        let slot = host.slots()[0];
        let steering = (slot % 64) as u8;
        let endpoint = endpoint(&host, address(LO4)).unwrap();
        let mut send = || assert_eq!(sender.ask(&format!("send {LO4} {slot} 1 64")), "1");
        let (reads, has_read) = std::sync::mpsc::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let endpoint = &endpoint;
            scope.spawn(move || {
                let mut take = |_: &[Datagram<'_>]| {
                    reads.send(()).unwrap();
                    goes_on.recv().unwrap();
                };
                let read = || endpoint.recv(steering, clock::now(), &mut take).unwrap().count() > 0;
                eventually("a packet is read", read);
            });
            send();
            has_read.recv().unwrap();
            let leaving = scope.spawn(|| endpoint.leave());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!leaving.is_finished(), "a thread has a packet in its hands");
            go_on.send(()).unwrap();
            leaving.join().unwrap();
        });
        send();
        let read = endpoint.recv(steering, clock::now(), &mut |_| panic!("who has left takes nothing"));
        assert!(matches!(read, Ok(RecvOutcome::Busy)));
    });
}

#[test]
fn child_of_a_dead_member_keeps_neither_slot_nor_port() {
    in_namespace("host::child_of_a_dead_member_keeps_neither_slot_nor_port", || {
        let mut member = Member::joined(LO4);
        let child: i32 = member.ask("fork").parse().unwrap();
        // Until the child has closed what it inherited.
        eventually("the child holds none of the parent's sockets", || {
            let fds = std::fs::read_dir(format!("/proc/{child}/fd")).unwrap();
            let names = fds.filter_map(|f| std::fs::read_link(f.ok()?.path()).ok());
            names.filter(|n| n.to_string_lossy().starts_with("socket:")).count() == 0
        });
        assert_eq!(member.ask(&format!("join {LO6}")), "ok", "the parent notices nothing");
        member.kill();
        assert_nothing_is_left();
        // SAFETY: the grandchild is in this test's PID namespace, where it was started a moment ago.
        assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0, "the child lives");
    });
}

#[test]
fn list_of_devices_without_a_descriptor_left_is_emfile() {
    in_namespace("host::list_of_devices_without_a_descriptor_left_is_emfile", || {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 1000 };
        // SAFETY: a valid rlimit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) }, 0);
        assert_eq!(ferroce_nic::devices().unwrap_err().errno(), libc::EMFILE);
    });
}

#[test]
fn too_few_descriptors_are_reported_and_none_is_leaked() {
    in_namespace("host::too_few_descriptors_are_reported_and_none_is_leaked", || {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let limit = |soft: usize| {
            let limit = libc::rlimit { rlim_cur: soft as u64, rlim_max: 1000 };
            // SAFETY: a valid rlimit.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        };
        let mut member = Member::joined(LO6);
        let joiner = Host::join().unwrap();
        // The limit is one of numbers: below this one and `room`, at most `room` are free.
        let lowest_free = || File::open("/dev/null").unwrap().as_raw_fd() as usize;
        // One address has to be made, the other one received.
        for to in [LO4, LO6] {
            let before = open();
            for room in [0, 1, 20, 63] {
                limit(lowest_free() + room);
                let error = endpoint(&joiner, address(to)).unwrap_err();
                assert_eq!(error.errno(), libc::EMFILE, "{to} with room for {room}: {error}");
                limit(1000);
                // Connections over which no request has come may be closed meanwhile.
                assert!(open() <= before, "{to} with room for {room}");
            }
            joiner.answer_requests();
            let before = open();
            endpoint(&joiner, address(to)).unwrap();
            assert_eq!(open(), before + 64);
        }
        let slot = member.number("slot");
        assert_eq!(member.ask(&format!("send {LO6} {slot} 5 64")), "5");
        eventually("packets arrive", || member.number("own") == 5);
    });
}

#[test]
fn joining_works_without_proc() {
    in_namespace("host::joining_works_without_proc", || {
        let mut member = Member::joined(LO4);
        let slot = member.number("slot");
        // SAFETY: C strings, in a mount namespace of this test's own.
        let hidden = unsafe {
            libc::mount(c"none".as_ptr(), c"/proc".as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null())
        };
        assert_eq!(hidden, 0);
        let joiner = Host::join().unwrap();
        let endpoint = endpoint(&joiner, address(LO4)).unwrap();
        let dest = endpoint.dest(endpoint.address(), 0, 0, (slot << 12) as u32).unwrap();
        let mut batch = TxBatch::new();
        push(&mut batch, &dest, Operation::SendMiddle, (slot << 12) as u32, 1, 100);
        assert_eq!(batch.flush(clock::now()).sent, 1);
        eventually("the member has the packet", || member.number("own") == 1);
        member.kill();
        // Its sockets live on in the joiner, and the name of the leader is free.
        assert!(Host::join().unwrap().is_leader());
    });
}

/// A process of another user, in the same network namespace, that runs Python `code` and then prints "ready".
fn other_user(code: &str) -> Option<Child> {
    if !read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295")) {
        return None;
    }
    let mut child = Command::new("python3")
        .args(["-c", &format!("import socket,time\n{code}\nprint('ready',flush=True)\ntime.sleep(50)")])
        .uid(65534)
        .gid(65534)
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take()?).read_line(&mut line).ok()?;
    assert_eq!(line, "ready\n", "{code}");
    Some(child)
}

#[test]
fn another_users_names_and_sockets_are_not_mistaken_for_ours() {
    in_root_namespace("host::another_users_names_and_sockets_are_not_mistaken_for_ours", || {
        // Takes names that are ours by spelling: the leader's, and every slot's but a few.
        let squatter = other_user(
            "held=[]\n\
             for name in ['u0-leader']+['slot-%d'%s for s in range(1,400)]:\n\
             \x20for kind in (socket.SOCK_SEQPACKET,socket.SOCK_DGRAM):\n\
             \x20 s=socket.socket(socket.AF_UNIX,kind); s.bind('\\0ferroce-2-'+name); held.append(s)\n\
             \x20 if kind==socket.SOCK_SEQPACKET: s.listen(5)",
        );
        let Some(mut squatter) = squatter else {
            ferroce_tests::record_skip("no second user can be had here (or no python3)");
            return;
        };
        let joiner = Host::join().unwrap();
        assert!(joiner.slots()[0] >= 400 && !joiner.is_leader());
        endpoint(&joiner, address(LO4)).unwrap();
        // A process that takes the port.
        let taker = other_user("s=socket.socket(socket.AF_INET6,socket.SOCK_DGRAM); s.bind(('::1',4791))");
        match endpoint(&joiner, address(LO6)).unwrap_err() {
            HostError::AddressInUse { holder, .. } => assert_eq!(holder.uid, Some(65534)),
            other => panic!("{other}"),
        }
        squatter.kill().unwrap();
        squatter.wait().unwrap();
        let mut taker = taker.unwrap();
        taker.kill().unwrap();
        taker.wait().unwrap();
        endpoint(&joiner, address(LO6)).unwrap();
    });
}

#[test]
fn forwarded_packets_of_another_user_are_not_taken() {
    in_root_namespace("host::forwarded_packets_of_another_user_are_not_taken", || {
        let joiner = Host::join().unwrap();
        let slot = joiner.slots()[0];
        // A well-formed packet for our slot, sent first by root, which is our own user, then by another user.
        let qpn = u32::from(slot) << 12;
        let mut blob = b"FRC2".to_vec();
        blob.extend_from_slice(&16_u32.to_ne_bytes());
        blob.extend_from_slice(&[0; 52]);
        blob.extend_from_slice(&[0; 4]);
        blob.extend_from_slice(&qpn.to_be_bytes());
        blob.extend_from_slice(&[0; 8]);
        let code = format!(
            "s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM); s.sendto(bytes({blob:?}),'\\0ferroce-2-slot-{slot}')"
        );
        let own = Command::new("python3").args(["-c", &format!("import socket\n{code}")]).status();
        if !own.is_ok_and(|s| s.success()) {
            ferroce_tests::record_skip("no python3");
            return;
        }
        eventually("a packet of our own user arrives", || joiner.recv_forwarded(&mut |_| ()) == Some(1));
        let Some(mut other) = other_user(&code) else {
            ferroce_tests::record_skip("no second user can be had here");
            return;
        };
        // The process has printed "ready" after sending, so the packet would be in the queue.
        assert_eq!(joiner.recv_forwarded(&mut |_| ()), Some(0));
        other.kill().unwrap();
        other.wait().unwrap();
    });
}

#[test]
fn a_holder_that_runs_and_is_slow_to_answer_is_waited_for() {
    in_namespace("host::a_holder_that_runs_and_is_slow_to_answer_is_waited_for", || {
        let holder = Host::join().unwrap();
        endpoint(&holder, address(LO4)).unwrap();
        let joiner = Host::join().unwrap();
        // As on a machine whose processors are busy with other programs.
        let slow = {
            let holder = holder.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_secs(3));
                for _ in 0..2000 {
                    holder.answer_requests();
                    std::thread::sleep(Duration::from_millis(5));
                    if Arc::strong_count(&holder) == 1 {
                        return;
                    }
                }
            })
        };
        endpoint(&joiner, address(LO4)).unwrap();
        drop(holder);
        slow.join().unwrap();
    });
}

#[test]
fn holders_of_several_addresses_are_waited_for_together() {
    in_namespace("host::holders_of_several_addresses_are_waited_for_together", || {
        const MOST: Duration = Duration::from_secs(15);
        let holder = Host::join().unwrap();
        endpoint(&holder, address(LO4)).unwrap();
        let joiner = Host::join().unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // A process that runs, and answers when the time for one address isn't up yet.
            scope.spawn(|| {
                let begun = Instant::now();
                while !is_over.load(Ordering::Relaxed) {
                    if begun.elapsed() > Duration::from_secs(10) {
                        holder.answer_requests();
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            let joined = joiner.sockets(address(LO4), receiving_socket, MOST).map(drop);
            is_over.store(true, Ordering::Relaxed);
            assert!(matches!(joined, Err(HostError::Unresponsive { .. })), "{joined:?}");
        });
        is_over.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    holder.answer_requests();
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            eventually("a holder that answers is asked all the same", || {
                joiner.sockets(address(LO4), receiving_socket, MOST).is_ok()
            });
            is_over.store(true, Ordering::Relaxed);
        });
    });
}
