//! Packets for QP 1 from an attacker.

use super::connections::{connected, hosts, open};
use super::namespace::in_namespace;
use super::peer::Peer;
use ferroce_types::HostAddr;
use ferroce_wire::cm::{
    ConnectPath, Ece, GSI_QKEY, GSI_QPN, IpHeader, MAD_LEN, Mad, Message, PortSpace, Request, ServiceId,
    TransportService,
};
use ferroce_wire::icrc::Flow;
use ferroce_wire::{Bth, Deth, Headers, ICRC_LEN, Opcode, ROCE_V2_PORT};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

/// Another host.
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const COUNT: u32 = 100_000;
/// What a process may take more than before, in KiB.
const MORE: u64 = 32 << 10;

/// Numbers from a seed, the same in every run.
struct Sequence(u64);

impl Sequence {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
}

/// A request for a port that could be meant well.
pub fn request(from: Ipv4Addr, to: SocketAddr, id: u32, qpn: u32) -> Mad {
    let header = IpHeader { source: (from, 4000).into(), destination: to.ip() };
    let mut private_data = [0; Request::PRIVATE_DATA];
    private_data[..36].copy_from_slice(&header.emit());
    let message = Message::Request(Request {
        local_comm_id: id,
        service_id: ServiceId::of_port(PortSpace::Tcp, to.port()),
        ca_guid: 0x1234,
        qkey: 0,
        qpn,
        responder_resources: 1,
        initiator_depth: 1,
        local_eecn: 0,
        remote_eecn: 0,
        remote_response_timeout: 20,
        transport: TransportService::Rc,
        flow_control: false,
        starting_psn: 0,
        local_response_timeout: 20,
        retry_count: 7,
        pkey: 0xffff,
        path_mtu: 3,
        rdc_exists: false,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        srq: false,
        primary: ConnectPath {
            local_gid: HostAddr::new(from.into(), 0).gid(),
            remote_gid: HostAddr::new(to.ip(), 0).gid(),
            hop_limit: 64,
            ..ConnectPath::NONE
        },
        alternate: ConnectPath::NONE,
        ece: Ece::default(),
        private_data,
    });
    Mad { transaction: u64::from(id), message }
}

/// The packet of a MAD.
pub fn packet(flow: &Flow, mad: &[u8; MAD_LEN]) -> Vec<u8> {
    let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, GSI_QPN, 0));
    headers.deth = Some(Deth { qkey: GSI_QKEY, src_qp: GSI_QPN });
    let mut packet = vec![0; headers.len() + MAD_LEN + ICRC_LEN];
    let begin = headers.emit(&mut packet).expect("room");
    packet[begin..begin + MAD_LEN].copy_from_slice(mad);
    let length = packet.len();
    let mut crc = flow.start(length, 0);
    crc.bth(&packet[..length - ICRC_LEN]);
    packet[length - ICRC_LEN..].copy_from_slice(&crc.finish());
    packet
}

fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Sends what the attacker sends, from its host.
pub fn send() {
    let socket = UdpSocket::bind((STRANGER, 0)).expect("a socket");
    let port = socket.local_addr().expect("its address").port();
    let flow = Flow::v4(STRANGER, VICTIM, port, ROCE_V2_PORT);
    let mut random = Sequence(7);
    for n in 1..=COUNT {
        let id = n & 0xff_ffff;
        let mut mad = request(STRANGER, (VICTIM, 7175).into(), id, id).emit();
        if n % 2 == 0 {
            // Other attributes, too, and anything anywhere.
            mad[17] = 0x10 + (random.next() % 11) as u8;
            for _ in 0..random.next() % 8 {
                mad[4 + random.next() as usize % (MAD_LEN - 4)] = random.next() as u8;
            }
        }
        let to = SocketAddr::from((VICTIM, ROCE_V2_PORT));
        let _ = socket.send_to(&packet(&flow, &mad), to);
    }
}

#[test]
fn a_flood_of_requests_and_of_nonsense_keeps_nobody_from_connecting() {
    in_namespace("flood::a_flood_of_requests_and_of_nonsense_keeps_nobody_from_connecting", || {
        let (mut server, mut stranger) = hosts(&[]);
        let mut client = Peer::start();
        open(&mut server, &mut client, "127.0.0.1:7174");
        // Its program looks at nothing that comes.
        let mut victim = Peer::start();
        assert_ne!(victim.ask("open"), "0");
        assert_eq!(victim.ask("bind q 0.0.0.0:7175"), "ok 0.0.0.0:7175");
        assert_eq!(victim.ask("listen q 4"), "ok");
        let all = [server.pid(), client.pid(), victim.pid()];
        let before = all.map(resident);
        let flood = std::thread::spawn(move || stranger.ask("flood"));
        for n in 0..50 {
            connected(&mut server, &mut client, &format!("127.0.0.1:{}", 40000 + n), "127.0.0.1:7174");
            assert_eq!(client.ask("drop c"), "ok");
            assert_eq!(server.event(), "disconnected s");
            assert_eq!(server.ask("drop s"), "ok");
        }
        assert_eq!(flood.join().expect("the flood"), "ok");
        for (process, before) in all.into_iter().zip(before) {
            let more = resident(process).saturating_sub(before);
            assert!(more < MORE, "{more} KiB more");
        }
    });
}
