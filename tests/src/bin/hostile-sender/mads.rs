//! Messages of the communication manager that no sane peer sends: requests without end, messages again and again, messages with changed
//! bytes, and answers to the victim's messages that make no sense.

use crate::forge::{Random, seal};
use ferroce_wire::cm::{
    CommIds, ConnectPath, DisconnectRequest, Ece, GSI_QKEY, GSI_QPN, IpHeader, MAD_LEN, Mad, Message, Mra,
    PortSpace, Reject, RejectReason, Rejected, Reply, Request, ServiceId, SidrRequest, TransportService,
};
use ferroce_wire::icrc::Flow;
use ferroce_wire::{Bth, Deth, Headers, Opcode};
use std::net::IpAddr;

/// Where the CM's message begins in a packet.
const MAD_AT: usize = 20;

/// What the messages are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Requests, each for a connection of its own.
    Flood,
    /// A few requests and replies, each sent again and again.
    Replayed,
    /// Messages of all kinds, some of them about the victim's own connections, with a few bytes changed.
    Mutated,
}

impl Kind {
    pub(crate) fn named(name: &str) -> Option<Self> {
        [("flood", Self::Flood), ("replayed", Self::Replayed), ("mutated", Self::Mutated)]
            .into_iter()
            .find_map(|(of, kind)| (of == name).then_some(kind))
    }
}

/// Makes messages for the listener at `to` and `port`, from `from`.
pub(crate) struct Mads {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) port: u16,
    pub(crate) kind: Kind,
    pub(crate) flow: Flow,
    pub(crate) random: Random,
    pub(crate) number: u32,
    /// The victim's numbers of connections, and the sender's, from the victim's answers.
    known: Vec<CommIds>,
}

fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Mads {
    pub(crate) fn new(from: IpAddr, to: IpAddr, port: u16, kind: Kind, flow: Flow, seed: u64) -> Self {
        Self { from, to, port, kind, flow, random: Random::new(seed), number: 0, known: Vec::new() }
    }

    /// Takes a packet of the victim.
    pub(crate) fn heard(&mut self, packet: &[u8]) {
        let mad = packet.get(MAD_AT..MAD_AT + MAD_LEN).and_then(|mad| mad.try_into().ok());
        let Some(Ok(mad)) = mad.map(|mad: &[u8; MAD_LEN]| Mad::parse(mad)) else { return };
        if let Message::Reply(reply) = mad.message {
            let ids = CommIds { local: reply.remote_comm_id, remote: reply.local_comm_id };
            if self.known.len() < 256 {
                self.known.push(ids);
            } else {
                let at = self.random.below(256) as usize;
                self.known[at] = ids;
            }
        }
    }

    /// The next packet.
    pub(crate) fn packet(&mut self) -> Vec<u8> {
        self.number += 1;
        let number = match self.kind {
            Kind::Flood => self.number,
            Kind::Replayed => self.number % 16 + 1,
            Kind::Mutated => self.random.below(512) + 1,
        };
        let message = match self.kind {
            Kind::Flood => self.request(number),
            Kind::Replayed if number.is_multiple_of(2) => self.reply(number),
            Kind::Replayed => self.request(number),
            Kind::Mutated => self.any(number),
        };
        let mut mad = Mad { transaction: number.into(), message }.emit();
        if self.kind == Kind::Mutated {
            for _ in 0..self.random.below(9) {
                mad[self.random.below(MAD_LEN as u32) as usize] = self.random.below(256) as u8;
            }
        }
        let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, GSI_QPN, self.number & 0xff_ffff));
        headers.deth = Some(Deth { qkey: GSI_QKEY, src_qp: GSI_QPN });
        let mut packet = vec![0; MAD_AT];
        headers.emit(&mut packet).expect("the headers fit");
        packet.extend(mad);
        seal(packet, &self.flow)
    }

    fn any(&mut self, number: u32) -> Message {
        let learnt = (!self.known.is_empty()).then(|| self.random.below(self.known.len() as u32) as usize);
        let ids = match learnt {
            Some(at) if self.random.below(4) != 0 => self.known[at],
            _ => CommIds { local: number, remote: self.random.below(u32::MAX) },
        };
        match self.random.below(9) {
            0 | 1 => self.request(number),
            2 => self.reply(number),
            3 => Message::ReadyToUse(ids),
            4 => {
                Message::DisconnectRequest(DisconnectRequest { ids, remote_qpn: self.random.below(1 << 24) })
            }
            5 => Message::DisconnectReply(ids),
            6 => Message::Mra(Mra { ids, received: Rejected::Reply, service_timeout: 4 }),
            7 => Message::Reject(Reject {
                rejected: Rejected::Reply,
                ..Reject::of_request(ids, RejectReason(self.random.below(40) as u16))
            }),
            _ => {
                let mut private_data = [0; SidrRequest::PRIVATE_DATA];
                private_data[..36].copy_from_slice(&self.header().emit());
                let service_id = ServiceId::of_port(PortSpace::Udp, self.port);
                Message::SidrRequest(SidrRequest {
                    request_id: number,
                    pkey: 0xffff,
                    service_id,
                    private_data,
                })
            }
        }
    }

    fn header(&self) -> IpHeader {
        IpHeader { source: (self.from, 40_000).into(), destination: self.to }
    }

    /// A request whose answer isn't waited for.
    fn request(&mut self, number: u32) -> Message {
        let mut private_data = [0; Request::PRIVATE_DATA];
        private_data[..36].copy_from_slice(&self.header().emit());
        let primary = ConnectPath {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: gid(self.from),
            remote_gid: gid(self.to),
            hop_limit: 64,
            ack_timeout: 1,
            ..ConnectPath::NONE
        };
        Message::Request(Request {
            local_comm_id: number,
            service_id: ServiceId::of_port(PortSpace::Tcp, self.port),
            ca_guid: 0x0bad,
            qkey: 0,
            qpn: number & 0xff_ffff,
            responder_resources: 1,
            initiator_depth: 1,
            local_eecn: 0,
            remote_eecn: 0,
            remote_response_timeout: self.random.below(12) as u8,
            transport: TransportService::Rc,
            flow_control: true,
            starting_psn: 1,
            local_response_timeout: self.random.below(12) as u8,
            retry_count: 7,
            pkey: 0xffff,
            path_mtu: 3,
            rdc_exists: false,
            rnr_retry_count: 7,
            max_cm_retries: self.random.below(4) as u8,
            srq: false,
            primary,
            alternate: ConnectPath::NONE,
            ece: Ece::default(),
            private_data,
        })
    }

    /// A reply to a request that the victim hasn't sent.
    fn reply(&mut self, number: u32) -> Message {
        Message::Reply(Reply {
            local_comm_id: number,
            remote_comm_id: self.random.below(u32::MAX),
            qkey: 0,
            qpn: number,
            eecn: 0,
            starting_psn: 0,
            responder_resources: 1,
            initiator_depth: 1,
            target_ack_delay: 15,
            failover_accepted: 0,
            flow_control: true,
            rnr_retry_count: 7,
            srq: false,
            ca_guid: 0x0bad,
            ece: Ece::default(),
            private_data: [0; Reply::PRIVATE_DATA],
        })
    }
}
