//! Packets for QP 1 from an attacker.

use super::connections::{connected, listening};
use super::namespace::in_namespace;
use super::peer::Peer;
use ferroce_wire::cm::{
    ConnectPath, Ece, GSI_QKEY, GSI_QPN, IpHeader, MAD_LEN, Mad, Message, PortSpace, Request, ServiceId,
    TransportService,
};
use ferroce_wire::icrc::Flow;
use ferroce_wire::{Bth, Deth, Headers, ICRC_LEN, Opcode, ROCE_V2_PORT};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const VICTIM: Ipv4Addr = Ipv4Addr::LOCALHOST;
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

/// A request that could be meant well.
fn request(id: u32) -> Mad {
    let header = IpHeader { source: (STRANGER, 4000).into(), destination: VICTIM.into() };
    let mut private_data = [0; Request::PRIVATE_DATA];
    private_data[..36].copy_from_slice(&header.emit());
    let message = Message::Request(Request {
        local_comm_id: id,
        service_id: ServiceId::of_port(PortSpace::Tcp, 7175),
        ca_guid: 0x666,
        qkey: 0,
        qpn: id,
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
            local_gid: STRANGER.to_ipv6_mapped().octets(),
            remote_gid: VICTIM.to_ipv6_mapped().octets(),
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
fn packet(flow: &Flow, mad: &[u8; MAD_LEN]) -> Vec<u8> {
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

#[test]
fn a_flood_of_requests_and_of_nonsense_keeps_nobody_from_connecting() {
    in_namespace("flood::a_flood_of_requests_and_of_nonsense_keeps_nobody_from_connecting", || {
        let (mut server, mut client) = listening("127.0.0.1:7174");
        // Its program looks at nothing that comes.
        let mut victim = Peer::start();
        assert_ne!(victim.ask("open"), "0");
        assert_eq!(victim.ask("bind q 127.0.0.1:7175"), "ok 127.0.0.1:7175");
        assert_eq!(victim.ask("listen q 4"), "ok");
        let all = [server.pid(), client.pid(), victim.pid()];
        let before = all.map(resident);
        let flood = std::thread::spawn(|| {
            let socket = UdpSocket::bind((STRANGER, 0)).expect("a socket");
            let port = socket.local_addr().expect("its address").port();
            let flow = Flow::v4(STRANGER, VICTIM, port, ROCE_V2_PORT);
            let mut random = Sequence(7);
            for n in 1..=COUNT {
                let mut mad = request(n & 0xff_ffff).emit();
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
        });
        for n in 0..50 {
            connected(&mut server, &mut client, &format!("127.0.0.1:{}", 40000 + n), "127.0.0.1:7174");
            assert_eq!(client.ask("drop c"), "ok");
            assert_eq!(server.event(), "disconnected s");
            assert_eq!(server.ask("drop s"), "ok");
        }
        flood.join().expect("the flood");
        for (process, before) in all.into_iter().zip(before) {
            let more = resident(process).saturating_sub(before);
            assert!(more < MORE, "{more} KiB more");
        }
    });
}
