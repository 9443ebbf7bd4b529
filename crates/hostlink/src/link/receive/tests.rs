//! What a reader of a ring takes, and what it refuses.

mod model;

use super::*;
use crate::compact::CompactHeaders;
use crate::directory::{Directory, PeerDirectory};
use crate::link::{LEN, LinkEnd, PeerProcess, SendOutcome};
use crate::payload::RingBytes;
use crate::protocol::NO_CELL;
use crate::record::MAX_PAYLOAD;
use ferroce_access::SharedMemory;
use ferroce_os::sys;
use ferroce_wire::{Opcode, Reth};
use std::time::Duration;

#[derive(PartialEq, Eq, Debug)]
pub(in crate::link) enum RingEvent {
    /// The packet of this QP with this PSN was executed by the peer.
    Executed(u32, u32),
    /// A READ or an atomic with this PSN was, and so many bytes of [`pattern`] are its answer.
    Answered(u32, usize),
    /// A packet with this PSN came.
    Came(u32),
}

/// Bytes of a payload or of an answer, by the PSN of its packet.
fn pattern(psn: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32 + psn) as u8).collect()
}

/// Answers the next packet, if it is one that the result of its cell answers.
fn answer(run: &RecordRun<'_>) {
    if let (Some(room), Some(packet)) = (run.answer(), run.next_compact()) {
        room.put(&pattern(packet.headers.psn(), room.to_vec().len()));
    }
}

/// Notes what happens, and executes packets with even PSNs.
#[derive(Default)]
pub(in crate::link) struct RingEvents<'a> {
    pub(in crate::link) events: Vec<RingEvent>,
    /// The payloads of the packets.
    bytes: Vec<Vec<u8>>,
    /// No more than one run is wanted.
    has_enough: bool,
    /// Called once, while a packet is dealt with.
    meanwhile: Option<&'a dyn Fn()>,
}

impl Receive for RingEvents<'_> {
    fn run(&mut self, run: &mut RecordRun<'_>) -> bool {
        while let Some(packet) = run.next_compact() {
            let psn = packet.headers.psn();
            self.events.push(RingEvent::Came(psn));
            self.bytes.push(run.link().payload(packet).to_vec());
            let executed = packet.headers.is_by_result() && psn.is_multiple_of(2);
            if executed {
                answer(run);
            }
            run.settle(executed);
            if let Some(meanwhile) = self.meanwhile.take() {
                meanwhile();
            }
        }
        !self.has_enough
    }

    fn executed(&mut self, last: SentPacket, answer: Option<ShmPayload<'_>>) {
        self.events.push(match answer.map(ShmPayload::to_vec) {
            None => RingEvent::Executed(last.qpn, last.psn),
            Some(bytes) => {
                assert_eq!(bytes, pattern(last.psn, bytes.len()));
                RingEvent::Answered(last.psn, bytes.len())
            }
        });
    }
}

/// Both ends of a link, whose maker has been answered.
pub(in crate::link) fn link() -> [Link; 2] {
    let [link, other] = unanswered_link();
    other.answered();
    [link, other]
}

fn unanswered_link() -> [Link; 2] {
    let memory = SharedMemory::create(LEN, false).unwrap();
    let same = SharedMemory::open(sys::duplicate_engine(memory.fd()).unwrap(), LEN, true).unwrap();
    let [one, other] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
    let link = |connection, memory: SharedMemory, end| {
        let link = Link::new(1, 1, 0, None, connection, memory.into(), end);
        link.offer_compact();
        link
    };
    [link(one, memory, LinkEnd::Maker), link(other, same, LinkEnd::Peer)]
}

fn link_to_itself() -> Link {
    let connection = sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM).unwrap();
    let memory = SharedMemory::create(LEN, false).unwrap();
    let link = Link::new(1, 0, 1, None, connection, memory.into(), LinkEnd::Both);
    link.offer_compact();
    link
}

pub(in crate::link) fn try_send(link: &Link, qpn: u32, psn: u32, by_result: bool) -> Option<u64> {
    try_send_bytes(link, qpn, psn, by_result, &[])
}

fn try_send_bytes(link: &Link, qpn: u32, psn: u32, by_result: bool, bytes: &[u8]) -> Option<u64> {
    let opcode = Opcode::from_u8(4).unwrap();
    let headers = CompactHeaders::of_send(opcode, (0xffff, 9), psn, (false, 0));
    let headers = if by_result { headers.acknowledged_by_result() } else { headers };
    try_send_packet(link, qpn, &headers, bytes)
}

fn try_send_packet(link: &Link, qpn: u32, headers: &CompactHeaders, bytes: &[u8]) -> Option<u64> {
    let fill = |ring: &RingBytes<'_>| {
        ring.put(bytes);
        Ok::<(), ()>(())
    };
    match link.send_on_connection(headers, (qpn, 1), bytes.len(), fill) {
        SendOutcome::Published(end) => Some(end),
        SendOutcome::Full => None,
        other => panic!("{other:?}"),
    }
}

/// Sends a READ of so many bytes, if there is room for it and its answer.
fn try_read(link: &Link, psn: u32, len: usize) -> Option<u64> {
    let (opcode, reth) = (Opcode::from_u8(0x0c).unwrap(), Reth { va: 0, rkey: 0, dma_len: len as u32 });
    try_send_packet(link, 3, &CompactHeaders::of_fetch(opcode, (0xffff, 9), psn, reth), &[])
}

/// Sends an atomic, if there is room.
fn try_atomic(link: &Link, psn: u32) -> Option<u64> {
    let (opcode, reth) = (Opcode::from_u8(0x14).unwrap(), Reth { va: 0, rkey: 0, dma_len: 0 });
    try_send_packet(link, 3, &CompactHeaders::of_fetch(opcode, (0xffff, 9), psn, reth), &[7; 16])
}

/// Returns the position after the cell.
pub(in crate::link) fn send(link: &Link, qpn: u32, psn: u32, by_result: bool) -> u64 {
    try_send(link, qpn, psn, by_result).expect("room")
}

/// What happens at the end that has sent `sends` (QPs and PSNs) when the peer receives them and answers, with PSN 7, while that
/// end deals with another packet.
fn told(sends: impl IntoIterator<Item = (u32, u32)>) -> Vec<RingEvent> {
    let [link, peer] = link();
    for (qpn, psn) in sends {
        send(&link, qpn, psn, true);
    }
    send(&peer, 5, 1, false);
    // On a thread of its own, as it takes locks of the same ranks.
    let answers = || {
        peer.receive_last(&mut RingEvents::default());
        send(&peer, 5, 7, false);
    };
    let answers = || std::thread::scope(|scope| scope.spawn(answers).join().unwrap());
    let mut told = RingEvents { meanwhile: Some(&answers), ..RingEvents::default() };
    assert_eq!(link.receive(64, &mut told), Some(true));
    assert_eq!(link.receive(64, &mut told), Some(false));
    assert!(!link.is_dead() && !peer.is_dead());
    told.events
}

#[test]
fn a_process_takes_what_it_leaves_for_itself_and_learns_of_its_end() {
    let link = link_to_itself();
    assert!(link.is_to_itself() && !link.has_unclaimed());
    assert!(link.peer_takes_compact());
    for psn in 2..=4 {
        send(&link, 3, psn, true);
    }
    let leaves_one_more = || {
        send(&link, 5, 6, true);
    };
    let mut told = RingEvents { meanwhile: Some(&leaves_one_more), ..RingEvents::default() };
    while link.has_unclaimed() {
        assert_eq!(link.receive(64, &mut told), Some(true));
    }
    // A SEND that is left to the general rules has no end by its result.
    let came = [2, 3, 4].map(RingEvent::Came);
    let ends = [RingEvent::Executed(3, 4), RingEvent::Came(6), RingEvent::Executed(5, 6)];
    assert!(told.events.iter().eq(came.iter().chain(&ends)), "{:?}", told.events);
    assert!(link.unread().is_none() && !link.has_results());
}

#[test]
fn a_peer_that_names_the_same_bulk_again_and_again_gives_no_more_work_than_a_full_ring() {
    let takes: [fn(&Link, &mut RingEvents<'_>); 3] = [
        |peer, told| assert_eq!(peer.receive(64, told), Some(true)),
        |peer, told| assert!(peer.receive_arrived(peer.arrived(), told)),
        |peer, told| peer.receive_last(told),
    ];
    for take in takes {
        let [link, peer] = link();
        let headers = CompactHeaders::of_send(Opcode::from_u8(4).unwrap(), (0xffff, 9), 1, (false, 0));
        for _ in 0..64 {
            let sent = link.publish::<()>(0, |space| {
                let cell = link.to_peer.place.cell(space.position);
                Ok(crate::record::write_compact(cell, &headers, MAX_PAYLOAD, Some(0)))
            });
            assert!(matches!(sent, SendOutcome::Published(_)));
        }
        let mut told = RingEvents::default();
        take(&peer, &mut told);
        assert!(told.events.len() <= BULK / MAX_PAYLOAD + 1, "{}", told.events.len());
    }
}

#[test]
fn what_had_arrived_is_taken_and_nothing_that_comes_later() {
    let [link, peer] = link();
    send(&link, 3, 2, false);
    let first = peer.arrived();
    let comes_later = || {
        send(&link, 3, 4, false);
    };
    let mut told = RingEvents { meanwhile: Some(&comes_later), ..RingEvents::default() };
    assert!(peer.receive_arrived(first, &mut told));
    assert_eq!(told.events, [RingEvent::Came(2)]);

    // Another thread reads the ring, which has some of what has arrived now, and nothing of what had arrived before.
    let look = || {
        let mut other = RingEvents::default();
        assert!(peer.receive_arrived(first, &mut other));
        assert!(!peer.receive_arrived(peer.arrived(), &mut other));
        assert!(other.events.is_empty());
    };
    let look = || std::thread::scope(|scope| scope.spawn(look).join().unwrap());
    told.meanwhile = Some(&look);
    assert_eq!(peer.receive(64, &mut told), Some(true));
    assert!(told.meanwhile.is_none());
}

#[test]
fn what_a_process_has_left_for_itself_has_been_taken_when_its_end_is_known() {
    let link = link_to_itself();
    send(&link, 3, 2, true);
    send(&link, 3, 4, true);
    let arrived = link.arrived();
    /// Asks when the SENDs have been executed, and their QP doesn't know yet.
    struct Asks<'a>(&'a Link, ArrivalMark, u32);
    impl Receive for Asks<'_> {
        fn run(&mut self, run: &mut RecordRun<'_>) -> bool {
            while run.next().is_some() {
                run.settle(true);
            }
            true
        }

        fn executed(&mut self, _: SentPacket, _: Option<ShmPayload<'_>>) {
            let Self(link, arrived, ends) = self;
            let other = || link.receive_arrived(*arrived, &mut RingEvents::default());
            assert!(!std::thread::scope(|scope| scope.spawn(other).join().unwrap()));
            *ends += 1;
        }
    }
    let mut asks = Asks(&link, arrived, 0);
    assert!(link.receive_arrived(arrived, &mut asks));
    assert_ne!(asks.2, 0);
    assert!(!link.has_unclaimed());
}

#[test]
fn a_turn_takes_no_more_bytes_than_a_ring_has_room_for() {
    const LONG: usize = 60_000;
    /// Leaves a record for each that comes.
    struct Leaves<'a>(&'a Link, usize);
    impl Receive for Leaves<'_> {
        fn run(&mut self, run: &mut RecordRun<'_>) -> bool {
            while run.next().is_some() {
                run.settle(false);
                self.1 += 1;
                try_send_bytes(self.0, 3, 2, false, &[1; LONG]).unwrap();
            }
            true
        }

        fn executed(&mut self, _: SentPacket, _: Option<ShmPayload<'_>>) {}
    }
    let [link, peer] = link();
    try_send_bytes(&link, 3, 2, false, &[1; LONG]).unwrap();
    let mut leaves = Leaves(&link, 0);
    assert_eq!(peer.receive(64, &mut leaves), Some(true));
    assert!(leaves.1 >= BULK / LONG && leaves.1 <= 2 * BULK / LONG, "{} records", leaves.1);
}

#[test]
fn the_last_turn_goes_beyond_one_ring_of_bulk() {
    let take = |take: fn(&Link, &mut RingEvents<'_>)| {
        let [link, peer] = link();
        for _ in 0..BULK / MAX_PAYLOAD {
            try_send_bytes(&link, 3, 2, true, &[1; MAX_PAYLOAD]).unwrap();
        }
        assert_eq!(try_send_bytes(&link, 3, 2, true, &[1; MAX_PAYLOAD]), None, "all of the bulk is in use");
        let end = send(&link, 3, 4, true);
        let mut told = RingEvents::default();
        take(&peer, &mut told);
        assert_eq!(told.events.last(), Some(&RingEvent::Came(4)));
        assert!(peer.is_read(end));
    };
    take(|peer, told| peer.receive_last(told));
    take(|peer, told| assert!(peer.receive_arrived(peer.arrived(), told)));
}

#[test]
fn packets_of_any_length_go_round_the_ring() {
    let [link, peer] = link();
    // Cells and bulk are used several times; the end of the bulk is met by payloads of one line and of several.
    let lengths = [0, 8, 16, 17, 40, 41, 900];
    let mut told = RingEvents::default();
    for n in 0..30_000u32 {
        let len = lengths[n as usize * 7919 % lengths.len()];
        let bytes: Vec<u8> = (0..len).map(|at| (n + at) as u8).collect();
        try_send_bytes(&link, 3, 2 * n, true, &bytes).unwrap();
        assert_eq!(peer.receive(64, &mut told), Some(true));
        let mut sender = RingEvents::default();
        assert_eq!(link.receive(64, &mut sender), Some(true));
        let psn = (2 * n) & 0xff_ffff;
        assert_eq!(sender.events, [RingEvent::Executed(3, psn)]);
        assert_eq!((told.events.pop(), told.bytes.pop()), (Some(RingEvent::Came(psn)), Some(bytes)));
    }
    assert!(told.events.is_empty() && told.bytes.is_empty());
}

#[test]
fn a_packet_is_acknowledged_when_it_is_settled_and_what_comes_then_is_another_run() {
    let [link, peer] = link();
    send(&link, 3, 2, true);
    // On a thread of its own, as it takes locks of the same ranks.
    let look = || {
        let mut sender = RingEvents::default();
        assert_eq!(link.receive(64, &mut sender), Some(true));
        assert_eq!(sender.events, [RingEvent::Executed(3, 2)]);
        send(&link, 3, 4, true);
    };
    let look = || std::thread::scope(|scope| scope.spawn(look).join().unwrap());
    let mut told = RingEvents { meanwhile: Some(&look), has_enough: true, ..RingEvents::default() };
    assert_eq!(peer.receive(64, &mut told), Some(true));
    assert!(told.meanwhile.is_none());
    send(&link, 3, 6, true);
    assert_eq!(told.events, [RingEvent::Came(2)], "the next was published after the look");
    assert_eq!(peer.receive(64, &mut told), Some(true));
    assert_eq!(told.events, [2, 4, 6].map(RingEvent::Came));
}

#[test]
fn what_a_panic_has_kept_from_being_dealt_with_is_left_and_given_back() {
    /// Executes a packet and panics.
    struct Panics;
    impl Receive for Panics {
        fn run(&mut self, run: &mut RecordRun<'_>) -> bool {
            run.settle(true);
            panic!("on purpose");
        }

        fn executed(&mut self, _: SentPacket, _: Option<ShmPayload<'_>>) {}
    }
    let [link, peer] = link();
    let ends = [2, 4].map(|psn| send(&link, 3, psn, true));
    let receive = std::panic::AssertUnwindSafe(|| peer.receive(64, &mut Panics));
    assert!(std::panic::catch_unwind(receive).is_err());
    assert!(!peer.has_records() && peer.is_read(ends[1]));
    let mut sender = RingEvents::default();
    link.receive_last(&mut sender);
    assert_eq!(sender.events, [RingEvent::Executed(3, 2)]);
    assert!(!link.is_unacknowledged(ends[1]));
}

#[test]
fn a_result_is_to_come_no_more_when_the_qp_has_panicked_of_it() {
    /// Panics when a packet was executed.
    struct Panics;
    impl Receive for Panics {
        fn run(&mut self, _: &mut RecordRun<'_>) -> bool {
            true
        }

        fn executed(&mut self, _: SentPacket, _: Option<ShmPayload<'_>>) {
            panic!("on purpose");
        }
    }
    let [link, peer] = link();
    let end = send(&link, 3, 2, true);
    peer.receive_last(&mut RingEvents::default());
    let receive = std::panic::AssertUnwindSafe(|| link.receive(64, &mut Panics));
    assert!(std::panic::catch_unwind(receive).is_err());
    assert!(!link.is_unacknowledged(end));
}

#[test]
fn a_peer_that_sleeps_is_woken_for_an_answer_and_for_a_result() {
    let asks: [&dyn Fn(&Link); 3] = [
        &|link| assert!(try_read(link, 2, 100).is_some()),
        &|link| assert!(try_atomic(link, 2).is_some()),
        &|link| assert!(try_send(link, 3, 2, true).is_some()),
    ];
    for asks in asks {
        let [link, peer] = link();
        let sleeper = Directory::new().unwrap();
        let directory = PeerDirectory::open(sys::duplicate_engine(sleeper.fd()).unwrap()).unwrap();
        assert!(peer.remote.set(PeerProcess { process: 1, directory, memory: None }).is_ok());
        let is_woken = || sys::wait_for(link.connection.raw(), libc::POLLIN, Duration::ZERO);
        asks(&link);
        peer.receive_last(&mut RingEvents::default());
        assert!(!is_woken(), "it doesn't sleep");
        asks(&link);
        sleeper.bell().waiter_sleeps();
        peer.receive_last(&mut RingEvents::default());
        assert!(is_woken());
    }
}

#[test]
fn an_answer_comes_with_its_result_and_between_those_of_other_packets() {
    let [link, peer] = link();
    send(&link, 3, 2, true);
    for (psn, len) in [(4, 1), (6, 24), (8, 25), (10, MAX_PAYLOAD)] {
        assert!(try_read(&link, psn, len).is_some());
    }
    for psn in [12, 14] {
        assert!(try_atomic(&link, psn).is_some());
    }
    // Left to the general rules.
    assert!(try_read(&link, 15, 100).is_some() && try_atomic(&link, 17).is_some());
    send(&link, 3, 18, true);
    send(&link, 3, 20, true);
    assert!(try_atomic(&link, 22).is_some());
    peer.receive_last(&mut RingEvents::default());
    let mut sender = RingEvents::default();
    link.receive_last(&mut sender);
    let answered = [(4, 1), (6, 24), (8, 25), (10, MAX_PAYLOAD), (12, 8), (14, 8)]
        .map(|(psn, len)| RingEvent::Answered(psn, len));
    let events = [RingEvent::Executed(3, 2)].into_iter().chain(answered);
    let events = events.chain([RingEvent::Executed(3, 20), RingEvent::Answered(22, 8)]);
    assert!(sender.events.iter().eq(&events.collect::<Vec<_>>()), "{:?}", sender.events);
    assert!(!link.may_have_work() && link.unacked.lock().is_empty());
}

#[test]
fn no_room_is_used_again_before_its_result_has_been_read() {
    // Cells, and bulk of answers. All have been dealt with.
    let fills: [fn(&Link) -> Option<u64>; 3] = [
        |link| try_send(link, 3, 2, true),
        |link| try_read(link, 2, MAX_PAYLOAD),
        |link| try_atomic(link, 2),
    ];
    for fill in fills {
        let [link, peer] = link();
        let sent = std::iter::from_fn(|| fill(&link)).count();
        assert!(sent == CELLS || sent == BULK / MAX_PAYLOAD, "{sent}");
        peer.receive_last(&mut RingEvents::default());
        assert!(peer.unread().is_none());
        assert_eq!(fill(&link), None, "the results are unread");
        assert!(link.wake_when_room(3), "nor is there room for a queue pair that waits");
        let mut told = RingEvents::default();
        link.receive_last(&mut told);
        assert!(!told.events.is_empty() && link.has_room_for_blocked());
        assert!(fill(&link).is_some());
    }
}

/// Sends from another thread while an answer is being read: the room of the answer isn't free.
struct SendsMeanwhile<'a>(&'a Link, Vec<bool>);

impl Receive for SendsMeanwhile<'_> {
    fn run(&mut self, _: &mut RecordRun<'_>) -> bool {
        true
    }

    fn executed(&mut self, last: SentPacket, answer: Option<ShmPayload<'_>>) {
        let sends = || try_read(self.0, 2, MAX_PAYLOAD).is_some();
        self.1.push(std::thread::scope(|scope| scope.spawn(sends).join().unwrap()));
        assert_eq!(answer.map(ShmPayload::to_vec), Some(pattern(last.psn, MAX_PAYLOAD)));
    }
}

#[test]
fn the_room_of_an_answer_is_not_used_again_while_the_qp_is_told_of_it() {
    let [link, peer] = link();
    while try_read(&link, 2, MAX_PAYLOAD).is_some() {}
    peer.receive_last(&mut RingEvents::default());
    let mut told = SendsMeanwhile(&link, Vec::new());
    link.receive_last(&mut told);
    // The first answer is in the only room that may become free.
    assert_eq!(told.1.len(), BULK / MAX_PAYLOAD);
    assert!(!told.1[0] && told.1[1..].iter().all(|sent| *sent), "{:?}", told.1);
}

/// Sends a packet more when the peer has executed some.
struct GoesOn<'a>(&'a Link, Vec<bool>);

impl Receive for GoesOn<'_> {
    fn run(&mut self, _: &mut RecordRun<'_>) -> bool {
        true
    }

    fn executed(&mut self, _: SentPacket, _: Option<ShmPayload<'_>>) {
        self.1.push(try_send(self.0, 3, 4, true).is_some());
    }
}

#[test]
fn a_qp_that_goes_on_because_of_results_uses_their_room() {
    let [link, peer] = link();
    while try_send(&link, 3, 2, true).is_some() {}
    peer.receive_last(&mut RingEvents::default());
    let mut told = GoesOn(&link, Vec::new());
    link.receive_last(&mut told);
    assert_eq!(told.1, [true]);
}

#[test]
fn what_a_peer_has_answered_before_its_end_is_told_and_nothing_else() {
    /// Executes the packets, and dies before the result of the second is there.
    struct Dies;
    impl Receive for Dies {
        fn run(&mut self, run: &mut RecordRun<'_>) -> bool {
            answer(run);
            run.settle(true);
            answer(run);
            panic!("on purpose");
        }

        fn executed(&mut self, _: SentPacket, _: Option<ShmPayload<'_>>) {}
    }
    let [link, peer] = link();
    let ends = [2, 4].map(|psn| try_atomic(&link, psn).unwrap());
    // A process that is killed runs no destructor, which would leave the second packet.
    let receive = std::panic::AssertUnwindSafe(|| peer.receive(64, &mut Dies));
    assert!(std::panic::catch_unwind(receive).is_err());
    peer.from_peer.place.result(1).store(0, Ordering::Relaxed);
    let mut sender = RingEvents::default();
    link.receive_last(&mut sender);
    assert_eq!(sender.events, [RingEvent::Answered(2, 8)]);
    assert!(!link.is_unacknowledged(ends[0]) && link.awaited.first() == 1);
}

#[test]
fn nothing_is_taken_before_the_maker_is_answered_nor_of_a_link_that_has_ended() {
    let [link, peer] = unanswered_link();
    let mut told = RingEvents::default();
    send(&link, 3, 2, true);
    assert!(!peer.has_records() && peer.receive(64, &mut told).is_none());
    assert!(peer.receive_arrived(peer.arrived(), &mut told));
    assert!(told.events.is_empty());
    peer.answered();
    assert!(peer.has_records() && peer.receive_arrived(peer.arrived(), &mut told));
    assert_eq!(told.events, [RingEvent::Came(2)]);
    send(&link, 3, 4, true);
    peer.broken();
    assert!(!peer.has_records() && peer.receive_arrived(peer.arrived(), &mut told));
    assert_eq!(told.events, [RingEvent::Came(2)]);
}

#[test]
fn a_result_that_cannot_be_breaks_the_link() {
    let [link, peer] = link();
    send(&link, 3, 2, true);
    for result in [1 << 2 | 1, u64::MAX, 0] {
        peer.from_peer.place.result(0).store(result, Ordering::Relaxed);
        assert_eq!(link.receive(64, &mut RingEvents::default()), Some(false), "the result of another cell");
    }
    peer.from_peer.place.result(0).store(3, Ordering::Relaxed);
    link.receive(64, &mut RingEvents::default());
    assert!(link.is_dead());
}

#[test]
fn a_result_that_the_peer_takes_back_breaks_the_link() {
    let [link, _peer] = link();
    send(&link, 3, 2, true);
    send(&link, 3, 4, true);
    // The first result has been seen, and isn't there any more.
    let mut until = NO_CELL;
    assert_eq!(link.take_results(&mut until), (None, Err(Broken)));
    assert_eq!((until, link.awaited.first()), (2, 0));
}

#[test]
fn what_was_executed_before_a_result_that_cannot_be_is_told() {
    let [link, peer] = link();
    for psn in [2, 4] {
        send(&link, 3, psn, true);
    }
    peer.receive_last(&mut RingEvents::default());
    peer.from_peer.place.result(1).store(1 << 2 | 3, Ordering::Relaxed);
    let mut sender = RingEvents::default();
    link.receive(64, &mut sender);
    assert_eq!(sender.events, [RingEvent::Executed(3, 2)]);
    assert!(link.is_dead() && !link.awaited.may_come_before(NO_CELL, |_| false));
}

#[test]
fn what_the_peer_has_executed_is_told_before_its_answer_comes() {
    assert_eq!(told([(3, 2)]), [RingEvent::Came(1), RingEvent::Executed(3, 2), RingEvent::Came(7)]);
}

#[test]
fn what_the_peer_leaves_is_known_before_its_answer_comes() {
    let events = told([(3, 1), (3, 2), (4, 3), (4, 4), (4, 5)]);
    let executed = [RingEvent::Executed(3, 2), RingEvent::Executed(4, 4)];
    assert_eq!(events.len(), 4, "{events:?}");
    assert!(events[0] == RingEvent::Came(1) && events[3] == RingEvent::Came(7), "{events:?}");
    assert!(executed.iter().all(|event| events[1..3].contains(event)), "{events:?}");
}

#[test]
fn an_answer_by_result_is_to_come_until_the_sender_knows_of_it() {
    let [link, peer] = link();
    let end = send(&link, 3, 2, true);
    assert!(link.is_unacknowledged(end), "no reader has looked at it");
    peer.receive_last(&mut RingEvents::default());
    assert!(link.is_unacknowledged(end), "no reader has looked at the result");
    assert!(link.has_records() && link.may_have_work());
    link.receive_last(&mut RingEvents::default());
    assert!(!link.has_records() && !link.may_have_work());
    assert!(!link.is_unacknowledged(end) && link.unread().is_none());
}

/// Whether it is acknowledged, by a reader that takes what the peer has executed meanwhile.
struct Asks<'a> {
    link: &'a Link,
    end: u64,
    answers: Vec<bool>,
}

impl Receive for Asks<'_> {
    fn run(&mut self, _: &mut RecordRun<'_>) -> bool {
        true
    }

    fn executed(&mut self, _: SentPacket, _: Option<ShmPayload<'_>>) {
        self.answers.push(self.link.is_unacknowledged(self.end));
    }
}

#[test]
fn a_result_is_to_come_while_the_sender_is_told() {
    let [link, peer] = link();
    let end = send(&link, 3, 2, true);
    peer.receive_last(&mut RingEvents::default());
    let mut asks = Asks { link: &link, end, answers: Vec::new() };
    link.receive_last(&mut asks);
    assert_eq!(asks.answers, [true]);
    assert!(!link.is_unacknowledged(end));
}

#[test]
fn what_others_have_sent_later_is_not_waited_for() {
    let [link, peer] = link();
    let end = send(&link, 3, 2, false);
    peer.receive_last(&mut RingEvents::default());
    assert!(!link.is_unacknowledged(end));
    send(&link, 4, 4, true);
    peer.receive_last(&mut RingEvents::default());
    assert!(link.has_results() && !link.is_unacknowledged(end));
    link.receive_last(&mut RingEvents::default());
    send(&link, 4, 6, true);
    peer.receive_last(&mut RingEvents::default());
    assert!(link.has_results() && !link.is_unacknowledged(end));
}

#[test]
fn what_becomes_of_a_send_is_known_though_the_way_back_has_no_room() {
    let [link, peer] = link();
    while try_send(&peer, 5, 1, false).is_some() {}
    let mut end = 0;
    for psn in [2, 1, 4] {
        end = send(&link, 3, psn, true);
    }
    peer.receive_last(&mut RingEvents::default());
    assert!(link.is_unacknowledged(end));
    let mut sender = RingEvents::default();
    link.receive_last(&mut sender);
    assert_eq!(sender.events[0], RingEvent::Executed(3, 4));
    assert!(!link.is_unacknowledged(end) && link.unacked.lock().is_empty());
}

#[test]
fn more_qps_than_are_told_at_once_are_told_before_the_answer_comes() {
    let events = told((10..200).map(|qpn| (qpn, 2)));
    assert_eq!(events.len(), 192);
    assert_eq!((events.first(), events.last()), (Some(&RingEvent::Came(1)), Some(&RingEvent::Came(7))));
}
