//! Packets beyond a gap on real sockets: whose are kept, and what the peer is sent for them.

use super::namespace::in_namespace;
use super::side::{Side, open};
use ferroce_nic::Poll as _;
use ferroce_os::clock;
use ferroce_os::sys::{self, EngineFd};
use ferroce_tests::wait::eventually;
use ferroce_types::{HostAddr, is_adapter_port};
use ferroce_udp::{Dest, Endpoint, TxBatch};
use ferroce_wire::crc::extend;
use ferroce_wire::icrc::Flow;
use ferroce_wire::{Bth, Headers, NakCode, Opcode, Operation, Packet, ROCE_V2_PORT, Reth, Service, Syndrome};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::Arc;

/// The first PSN of a [`Side`].
pub const PSN: u32 = 0xff_fff0;
/// Bytes of a WRITE, each of which is one packet, for bytes of its own.
const LEN: usize = 256;
const WRITES: usize = 40;
const NAK: u8 = Syndrome::Nak(NakCode::PsnSequenceError).to_u8();

/// A queue pair on the fabric `udp`. What its peer would send is sent by the test, from one port.
pub struct Responder {
    pub side: Side,
    pub peer: Side,
    pub dest: Dest,
    wire: EngineFd,
}

/// An acknowledgement on the wire: how many PSNs it is behind the first one, its syndrome and its payload.
pub type Answer = (u32, u8, Vec<u8>);

impl Responder {
    /// `ports`: a range that the peer's port is from.
    pub fn new(ports: &str) -> Self {
        // SAFETY: no other thread reads the environment yet, or it is read no more.
        unsafe { std::env::set_var("FERROCE_FABRIC", "udp") };
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", ports).unwrap();
        let context = open();
        let [side, peer] = [(); 2].map(|()| Side::new(&context, Service::Rc, LEN * WRITES));
        side.connect(peer.qp.qpn());
        let dest = another_port(&side);
        Self { side, peer, dest, wire: wire() }
    }

    /// The WRITE with this number arrives, from the port of `dest`.
    fn arrives_from(&self, dest: &Dest, number: usize, ack_request: bool) {
        let before = self.side.qp.counters().packets_received;
        let opcode = Opcode { service: Service::Rc, operation: Operation::WriteOnly };
        let psn = PSN.wrapping_add(number as u32) & 0xff_ffff;
        let mut headers = Headers::new(Bth { ack_request, ..Bth::new(opcode, self.side.qp.qpn(), psn) });
        let (va, rkey) = (self.side.addr() + (number * LEN) as u64, self.side.mr.rkey());
        headers.reth = Some(Reth { va, rkey, dma_len: LEN as u32 });
        let mut batch = TxBatch::new();
        let fill = |buffer: &mut [u8], crc| {
            buffer.fill(1 + number as u8);
            Ok::<u32, ()>(extend(crc, buffer))
        };
        batch.packet(dest, &headers, LEN, fill).unwrap();
        assert_eq!(batch.flush(clock::now()).sent, 1);
        eventually("the packet arrives", || {
            self.peer.cq.poll(1, |_| ()).unwrap();
            self.side.qp.counters().packets_received == before + 1
        });
    }

    pub fn arrives(&self, number: usize) {
        self.arrives_from(&self.dest, number, true);
    }

    /// The first WRITEs, so many, have been executed, and no others.
    pub fn has_executed(&self, count: usize) {
        for number in 0..WRITES {
            let byte = if number < count { 1 + number as u8 } else { 0 };
            assert!(self.side.memory[number * LEN..][..LEN].iter().all(|&it| it == byte), "{number}");
        }
    }

    /// The acknowledgements that have been sent since the last call. Each ICRC is right.
    pub fn answers(&self) -> Vec<Answer> {
        let mut answers = Vec::new();
        let mut buffer = [0; 65536];
        while let Ok(len) = sys::read(self.wire.raw(), &mut buffer) {
            let (header, bytes) = buffer[..len].split_at(28);
            let port = u16::from_be_bytes([header[20], header[21]]);
            let Ok(packet) = Packet::parse(bytes) else { panic!("not a packet") };
            let bth = packet.headers.bth;
            if bth.dest_qp == self.peer.qp.qpn() {
                let address = |at: usize| Ipv4Addr::from([0, 1, 2, 3].map(|byte| header[at + byte]));
                let flow = Flow::v4(address(12), address(16), port, ROCE_V2_PORT);
                let identification = u16::from_be_bytes([header[4], header[5]]);
                assert_eq!(flow.verify(bytes, identification), Some(identification));
                let syndrome = packet.headers.aeth.unwrap().syndrome;
                answers.push((bth.psn.wrapping_sub(PSN) & 0xff_ffff, syndrome, packet.payload.to_vec()));
            }
        }
        answers
    }
}

/// A port that sends to a QP of this host.
pub fn another_port(side: &Side) -> Dest {
    let address = own_address(side);
    Arc::new(Endpoint::new(address, None)).dest(address, 0, 0, side.qp.qpn()).unwrap()
}

/// The address that packets to a queue pair go to.
pub fn own_address(side: &Side) -> HostAddr {
    let ip = Ipv6Addr::from(side.context.gid(1).unwrap().gid).to_canonical();
    assert!(matches!(ip, IpAddr::V4(_)));
    HostAddr::new(ip, 0)
}

/// Packets of IPv4 that come to any interface, one by one.
fn wire() -> EngineFd {
    let args = ["link", "set", "lo", "gso_max_segs", "1"];
    assert!(Command::new("ip").args(args).status().unwrap().success());
    let wire = sys::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK).unwrap();
    // SAFETY: all-zero bytes are a valid sockaddr_ll.
    let mut all: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    all.sll_family = libc::AF_PACKET as u16;
    all.sll_protocol = (libc::ETH_P_IP as u16).to_be();
    // SAFETY: the address and its length belong together.
    let bound = unsafe {
        libc::bind(wire.raw(), std::ptr::from_ref(&all).cast(), size_of::<libc::sockaddr_ll>() as u32)
    };
    assert_eq!(bound, 0);
    wire
}

#[test]
fn a_report_precedes_the_nak_to_a_ferroce_host() {
    in_namespace("keeping::a_report_precedes_the_nak_to_a_ferroce_host", || {
        let responder = Responder::new("20000 30000");
        assert!(!is_adapter_port(responder.dest.source_port()));
        responder.arrives(0);
        responder.answers();
        responder.arrives(2);
        let report = |bits: u64| bits.to_le_bytes().to_vec();
        assert_eq!(responder.answers(), [(1, NAK, report(1)), (1, NAK, vec![])]);
        responder.has_executed(1);
        responder.arrives(5);
        assert_eq!(responder.answers(), [(1, NAK, report(0b1001)), (1, NAK, vec![])]);
        responder.arrives(1);
        // What is missing then.
        responder.has_executed(3);
        assert_eq!(responder.answers(), [(3, NAK, report(0b10)), (3, NAK, vec![])]);
        responder.arrives(4);
        responder.arrives(3);
        responder.has_executed(6);
        assert_eq!(responder.answers().last().map(|(psn, _, bytes)| (*psn, bytes.len())), Some((5, 0)));
    });
}

#[test]
fn nothing_of_an_adapter_is_kept_and_it_gets_bare_naks() {
    in_namespace("keeping::nothing_of_an_adapter_is_kept_and_it_gets_bare_naks", || {
        let responder = Responder::new("50000 60000");
        assert!(is_adapter_port(responder.dest.source_port()));
        responder.arrives(0);
        responder.answers();
        for number in [2, 3, 9, 2] {
            responder.arrives(number);
        }
        let answers = responder.answers();
        assert!(
            !answers.is_empty() && answers.iter().all(|answer| *answer == (1, NAK, vec![])),
            "{answers:?}"
        );
        for number in 1..4 {
            responder.arrives(number);
            responder.has_executed(1 + number);
        }
    });
}

#[test]
fn a_packet_from_another_port_is_neither_kept_nor_believed() {
    in_namespace("keeping::a_packet_from_another_port_is_neither_kept_nor_believed", || {
        let responder = Responder::new("20000 30000");
        let other = another_port(&responder.side);
        responder.arrives(0);
        // It is kept before the peer's.
        responder.arrives_from(&other, 2, true);
        responder.arrives(3);
        responder.answers();
        responder.arrives(1);
        responder.has_executed(2);
        assert_eq!(responder.answers(), [(2, NAK, vec![0; 8]), (2, NAK, vec![])]);
        // It comes after the peer's.
        responder.arrives(3);
        responder.arrives_from(&other, 5, true);
        responder.answers();
        responder.arrives(2);
        responder.has_executed(4);
        assert_eq!(responder.answers().last().map(|(psn, _, bytes)| (*psn, bytes.len())), Some((3, 0)));
    });
}
