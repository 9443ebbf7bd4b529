//! Packets between the first and the last one of a long message are placed before their ICRC is known: what a damaged one may change.

use super::namespace::in_namespace;
use super::side::{Side, open};
use ferroce_nic::Poll as _;
use ferroce_os::clock;
use ferroce_proto::SendOp;
use ferroce_tests::wait::eventually;
use ferroce_types::HostAddr;
use ferroce_types::{QpState, WcStatus};
use ferroce_udp::{Dest, Endpoint, TxBatch};
use ferroce_wire::Service;
use ferroce_wire::crc::extend;
use ferroce_wire::{Aeth, Bth, Headers, Opcode, Operation, Reth, Syndrome};
use std::net::Ipv6Addr;
use std::sync::Arc;

/// The first PSN of a [`Side`], and the path MTU of its packets.
const PSN: u32 = 0xff_fff0;
const MTU: usize = 1024;
const PACKETS: usize = 6;
const MESSAGE: usize = (PACKETS - 1) * MTU + 100;
/// Bytes before the message, and behind it, that nothing may change.
const AROUND: usize = 4096;
const UNTOUCHED: u8 = 0xee;

const WRITE: [Operation; 3] = [Operation::WriteFirst, Operation::WriteMiddle, Operation::WriteLast];
const READ: [Operation; 3] =
    [Operation::ReadResponseFirst, Operation::ReadResponseMiddle, Operation::ReadResponseLast];
const SEND: [Operation; 3] = [Operation::SendFirst, Operation::SendMiddle, Operation::SendLast];

/// A packet of the message, by its number.
#[derive(Clone, Copy)]
enum Sent {
    Intact(usize),
    /// Its payload isn't that of its ICRC.
    Damaged(usize),
    /// Its ICRC is wrong, and the address that it names.
    Astray(usize),
    /// It has four bytes fewer, and a wrong ICRC.
    Short(usize),
}

/// A queue pair on the fabric `udp`. What its peer would send is sent by the test.
struct Receiver {
    side: Side,
    peer: Side,
    dest: Dest,
}

impl Receiver {
    fn new(service: Service) -> Self {
        // SAFETY: no other thread reads the environment yet, or it is read no more.
        unsafe { std::env::set_var("FERROCE_FABRIC", "udp") };
        let context = open();
        let [mut side, peer] = [(); 2].map(|()| Side::new(&context, service, MESSAGE + 2 * AROUND));
        side.memory.fill(UNTOUCHED);
        side.connect(peer.qp.qpn());
        let ip = Ipv6Addr::from(context.gid(1).unwrap().gid).to_canonical();
        let address = HostAddr::new(ip, 0);
        let dest = Arc::new(Endpoint::new(address, None)).dest(address, 0, 0, side.qp.qpn()).unwrap();
        Self { side, peer, dest }
    }

    /// The bytes of the message in packet `number`.
    fn payload(number: usize) -> Vec<u8> {
        (number * MTU..MESSAGE.min((number + 1) * MTU)).map(|i| ((i * 7) ^ (i >> 8)) as u8 & 0x7f).collect()
    }

    fn push(&self, batch: &mut TxBatch, [first, middle, last]: [Operation; 3], sent: Sent) {
        let (Sent::Intact(number) | Sent::Damaged(number) | Sent::Astray(number) | Sent::Short(number)) =
            sent;
        let operation = match number {
            0 => first,
            _ if number == PACKETS - 1 => last,
            _ => middle,
        };
        let opcode = Opcode { service: self.side.qp.service(), operation };
        let psn = PSN.wrapping_add(number as u32) & 0xff_ffff;
        let ack_request = number == PACKETS - 1;
        let mut headers = Headers::new(Bth { ack_request, ..Bth::new(opcode, self.side.qp.qpn(), psn) });
        if opcode.carries_reth() {
            let offset = if matches!(sent, Sent::Astray(_)) { 16 } else { AROUND };
            let (va, rkey) = (self.side.addr() + offset as u64, self.side.mr.rkey());
            headers.reth = Some(Reth { va, rkey, dma_len: MESSAGE as u32 });
        }
        if opcode.carries_aeth() {
            headers.aeth = Some(Aeth { syndrome: Syndrome::ACK_UNLIMITED.to_u8(), msn: 1 });
        }
        let mut payload = Self::payload(number);
        if matches!(sent, Sent::Short(_)) {
            payload.truncate(payload.len() - 4);
        }
        let fill = |buffer: &mut [u8], crc| {
            buffer.copy_from_slice(&payload);
            let right = extend(crc, buffer);
            if matches!(sent, Sent::Damaged(_)) {
                // More than two bytes: over IPv4 an identification may explain less.
                buffer[40..44].iter_mut().for_each(|byte| *byte ^= 0x5a);
                return Ok::<u32, ()>(right);
            }
            Ok(if matches!(sent, Sent::Intact(_)) { right } else { right ^ 0x5a5a_5a5a })
        };
        batch.packet(&self.dest, &headers, payload.len(), fill).unwrap();
    }

    /// Sends packets, and waits until the queue pair has dealt with them: an intact one that was executed long ago comes last.
    fn arrive(&self, operations: [Operation; 3], packets: &[Sent]) {
        let before = self.side.qp.counters().packets_received;
        let mut batch = TxBatch::new();
        packets.iter().for_each(|&sent| self.push(&mut batch, operations, sent));
        let service = self.side.qp.service();
        let opcode = Opcode { service, operation: Operation::SendOnly };
        let end = Headers::new(Bth::new(opcode, self.side.qp.qpn(), PSN - 1));
        batch.packet(&self.dest, &end, 0, |_, crc| Ok::<u32, ()>(crc)).unwrap();
        assert_eq!(batch.flush(clock::now()).sent, packets.len() + 1);
        let intact = packets.iter().filter(|sent| matches!(sent, Sent::Intact(_))).count() as u64;
        eventually("the packets arrive", || {
            self.peer.cq.poll(1, |_| ()).unwrap();
            self.side.qp.counters().packets_received == before + intact + 1
        });
    }

    fn intact(&self, operations: [Operation; 3], numbers: std::ops::Range<usize>) {
        self.arrive(operations, &numbers.map(Sent::Intact).collect::<Vec<_>>());
    }

    /// The first `whole` packets lie in memory, those from `untouched` on don't, and nothing around the message has changed.
    fn check(&self, whole: usize, untouched: usize) {
        let memory = &self.side.memory;
        for number in 0..PACKETS {
            let payload = Self::payload(number);
            let placed = &memory[AROUND + number * MTU..][..payload.len()];
            assert!(number >= whole || placed == payload, "packet {number}");
            assert!(
                number < untouched || placed.iter().all(|&byte| byte == UNTOUCHED),
                "packet {number} was placed"
            );
        }
        let around = memory[..AROUND].iter().chain(&memory[AROUND + MESSAGE..]);
        assert!(around.copied().all(|byte| byte == UNTOUCHED), "bytes outside of the message have changed");
    }

    /// A damaged packet lies there, as far as it is a part of the message in progress.
    fn has_something_of(&self, number: usize) -> bool {
        self.side.memory[AROUND + number * MTU..][..MTU].iter().any(|&byte| byte != UNTOUCHED)
    }

    fn messages(&self) -> u64 {
        self.side.qp.counters().messages_received
    }
}

/// The packet `victim` is damaged. Of an operation that is repeated, it and all behind it come again.
fn survives_damage(service: Service, operations: [Operation; 3], victim: usize) {
    let receiver = Receiver::new(service);
    let side = &receiver.side;
    if operations == READ {
        side.send(7, SendOp::Read { va: 4096, rkey: 1 }, side.sge(AROUND, MESSAGE), None);
    } else {
        side.recv(7, side.sge(AROUND, MESSAGE));
    }
    let sent: Vec<_> =
        (0..PACKETS).map(|n| if n == victim { Sent::Damaged(n) } else { Sent::Intact(n) }).collect();
    receiver.arrive(operations, &sent);
    receiver.check(victim, victim + 1);
    assert!(receiver.has_something_of(victim), "placed in one pass");
    assert_eq!(receiver.messages(), 0);
    if service == Service::Rc {
        receiver.intact(operations, victim..PACKETS);
        receiver.check(PACKETS, PACKETS);
        assert_eq!(receiver.messages(), u64::from(operations != READ));
        if operations != WRITE {
            let wc = receiver.side.wait();
            assert_eq!((wc.wr_id, wc.status), (7, WcStatus::Success));
        }
    }
}

#[test]
fn a_damaged_packet_of_a_message_in_progress_is_overwritten_when_it_comes_again() {
    const NAME: &str =
        "placing::a_damaged_packet_of_a_message_in_progress_is_overwritten_when_it_comes_again";
    in_namespace(NAME, || {
        for victim in 1..PACKETS - 1 {
            survives_damage(Service::Rc, WRITE, victim);
            survives_damage(Service::Rc, SEND, victim);
            survives_damage(Service::Rc, READ, victim);
            survives_damage(Service::Uc, WRITE, victim);
        }
    });
}

/// The first packet names the place of a WRITE, and programs wait for the last byte.
#[test]
fn a_damaged_packet_that_begins_or_ends_a_message_is_not_placed() {
    in_namespace("placing::a_damaged_packet_that_begins_or_ends_a_message_is_not_placed", || {
        for operations in [WRITE, SEND] {
            let receiver = Receiver::new(Service::Rc);
            receiver.side.recv(7, receiver.side.sge(AROUND, MESSAGE));
            let rest: Vec<_> = (1..PACKETS).map(Sent::Intact).collect();
            for first in [Sent::Damaged(0), Sent::Astray(0)] {
                receiver.arrive(operations, &[&[first], &rest[..]].concat());
                receiver.check(0, 0);
            }
            receiver.intact(operations, 0..PACKETS - 1);
            receiver.arrive(operations, &[Sent::Damaged(PACKETS - 1)]);
            receiver.check(PACKETS - 1, PACKETS - 1);
            receiver.intact(operations, PACKETS - 1..PACKETS);
            receiver.check(PACKETS, PACKETS);
            assert_eq!(receiver.messages(), 1);
        }
    });
}

#[test]
fn only_the_next_packet_of_the_message_in_progress_is_placed() {
    in_namespace("placing::only_the_next_packet_of_the_message_in_progress_is_placed", || {
        let receiver = Receiver::new(Service::Rc);
        // No message is in progress.
        receiver.arrive(WRITE, &[Sent::Damaged(1)]);
        receiver.check(0, 0);
        receiver.intact(WRITE, 0..2);
        // A packet is missing before it, it has come already, it is another operation's, it is shorter than the others.
        receiver.arrive(WRITE, &[Sent::Damaged(3), Sent::Intact(4), Sent::Damaged(1)]);
        receiver.arrive(SEND, &[Sent::Damaged(2)]);
        receiver.arrive(WRITE, &[Sent::Short(2)]);
        receiver.check(2, 2);
        receiver.intact(WRITE, 2..PACKETS);
        receiver.check(PACKETS, PACKETS);
    });
}

/// The region of a message in progress has ended.
#[test]
fn a_packet_for_memory_that_is_gone_is_refused_once_it_is_known_to_be_intact() {
    const NAME: &str = "placing::a_packet_for_memory_that_is_gone_is_refused_once_it_is_known_to_be_intact";
    in_namespace(NAME, || {
        let receiver = Receiver::new(Service::Rc);
        receiver.intact(WRITE, 0..2);
        receiver.side.mr.deregister().unwrap();
        receiver.arrive(WRITE, &[Sent::Damaged(2)]);
        receiver.check(2, 2);
        assert_eq!(receiver.side.qp.query().unwrap().state, QpState::Rts);
        receiver.intact(WRITE, 2..3);
        receiver.check(2, 2);
        assert_eq!(receiver.side.qp.query().unwrap().state, QpState::Err);
    });
}
