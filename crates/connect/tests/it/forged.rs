//! MADs that a process of another user forges: it sends from an address of the host, and knows all numbers.

use super::connections::listening;
use super::flood::{packet, request};
use super::namespace::in_namespace;
use ferroce_wire::ROCE_V2_PORT;
use ferroce_wire::cm::{
    CommIds, DisconnectRequest, Ece, Mad, Message, Reject, RejectReason, Rejected, Reply, SidrReply,
    SidrStatus,
};
use ferroce_wire::icrc::Flow;
use std::net::{Ipv4Addr, UdpSocket};

const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
const SERVER: &str = "127.0.0.1:7174";
const CLIENT: &str = "127.0.0.1:40000";
/// A slot that no process has.
const SLOT: u32 = 3000;

struct Attacker(UdpSocket);

impl Attacker {
    fn new() -> Self {
        Self(UdpSocket::bind((HOST, 0)).expect("a socket"))
    }

    fn send(&self, message: Message) {
        let port = self.0.local_addr().expect("its address").port();
        let flow = Flow::v4(HOST, HOST, port, ROCE_V2_PORT);
        let mad = Mad { transaction: 1, message };
        self.0.send_to(&packet(&flow, &mad.emit()), (HOST, ROCE_V2_PORT)).expect("a packet");
    }
}

/// A reply to the request `to` of a process, which names these.
fn reply(to: u32, local_comm_id: u32, qpn: u32) -> Message {
    Message::Reply(Reply {
        local_comm_id,
        remote_comm_id: to,
        qkey: 0,
        qpn,
        eecn: 0,
        starting_psn: 7,
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 15,
        failover_accepted: 0,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        ca_guid: 0x1234,
        ece: Ece::default(),
        private_data: [0; Reply::PRIVATE_DATA],
    })
}

fn rejection(ids: CommIds) -> Message {
    Message::Reject(Reject { rejected: Rejected::Request, ..Reject::of_request(ids, RejectReason::CONSUMER) })
}

#[test]
fn connections_of_one_users_processes_take_no_message_from_the_network() {
    const NAME: &str = "forged::connections_of_one_users_processes_take_no_message_from_the_network";
    in_namespace(NAME, || {
        let (mut server, mut client) = listening(SERVER);
        let attacker = Attacker::new();
        let id = |text: String| text.parse::<u32>().expect("an ID");
        assert_eq!(client.ask(&format!("connect c {CLIENT} {SERVER} 4097 hello")), "ok");
        assert_eq!(server.event(), "request 127.0.0.1 4097 hello");
        let of_client = id(server.ask("peer-id"));
        // Of a slot that no process has, and of one that a process of the user has.
        for local in [SLOT << 20 | 7, of_client + 7] {
            attacker.send(reply(of_client, local, (local >> 20) << 12 | 7));
            attacker.send(rejection(CommIds { local, remote: of_client }));
        }
        attacker.send(rejection(CommIds { local: 0, remote: of_client }));
        assert_eq!(client.ask("quiet 300"), "nothing");
        assert_eq!(server.ask("name s"), "ok");
        assert_eq!(server.ask("accept s 8193 welcome"), "ok");
        assert_eq!(client.event(), "reply c 8193 welcome");
        let of_server = id(client.ask("peer-id"));
        assert_eq!(client.ask("establish c"), "ok");
        assert_eq!(server.event(), "established s");
        for (ids, remote_qpn) in [
            (CommIds { local: of_client, remote: of_server }, 8193),
            (CommIds { local: of_server, remote: of_client }, 4097),
        ] {
            attacker.send(Message::DisconnectRequest(DisconnectRequest { ids, remote_qpn }));
            attacker.send(rejection(ids));
        }
        // As of a process that has the QPN of the client, whose program has died.
        for local in [SLOT << 20 | 8, of_client + 8] {
            attacker.send(request(HOST, SERVER.parse().unwrap(), local, 4097).message);
        }
        assert_eq!((server.ask("quiet 300"), client.ask("quiet 300")), ("nothing".into(), "nothing".into()));
        // Messages that the server's process answers, as if the client's next request had sent them.
        assert_eq!(client.ask("connect d 127.0.0.1:40001 127.0.0.1:7174 4098 again"), "ok");
        assert_eq!(server.event(), "request 127.0.0.1 4098 again");
        let next = id(server.ask("peer-id"));
        attacker.send(reply(of_server + 1000, next, 7));
        attacker.send(request(HOST, "127.0.0.1:1".parse().unwrap(), next, 7).message);
        attacker.send(Message::DisconnectRequest(DisconnectRequest {
            ids: CommIds { local: next, remote: of_server + 1000 },
            remote_qpn: 7,
        }));
        assert_eq!(client.ask("quiet 300"), "nothing");
        assert_eq!(client.ask("disconnect c"), "ok");
        assert_eq!(server.event(), "disconnected s");
    });
}

#[test]
fn lookups_of_one_users_services_take_no_answer_from_the_network() {
    const NAME: &str = "forged::lookups_of_one_users_services_take_no_answer_from_the_network";
    in_namespace(NAME, || {
        let (mut server, mut client) = listening(SERVER);
        assert_eq!(server.ask("bind u 127.0.0.1:7175 udp"), "ok 127.0.0.1:7175");
        assert_eq!(server.ask("listen u 10 udp"), "ok");
        // The attacker takes the client's next number from the request before.
        assert_eq!(client.ask(&format!("connect c {CLIENT} {SERVER} 4097 hello")), "ok");
        assert_eq!(server.event(), "request 127.0.0.1 4097 hello");
        let next = server.ask("peer-id").parse::<u32>().expect("an ID") + 1;
        assert_eq!(client.ask(&format!("lookup l {CLIENT} 127.0.0.1:7175 who")), "ok");
        assert_eq!(server.event(), "lookup who");
        let answer =
            SidrReply { qpn: SLOT << 12 | 7, ..SidrReply::without_qp(next, SidrStatus::SUCCESS, service()) };
        Attacker::new().send(Message::SidrReply(answer));
        assert_eq!(client.ask("quiet 300"), "nothing");
        assert_eq!(server.ask("name c"), "ok");
        assert_eq!(server.ask("name l"), "ok");
        assert_eq!(server.ask("answer l 8193 me"), "ok");
        assert_eq!(client.event(), "answer l 0 8193 me");
    });
}

fn service() -> ferroce_wire::cm::ServiceId {
    ferroce_wire::cm::ServiceId::of_port(ferroce_wire::cm::PortSpace::Udp, 7175)
}
