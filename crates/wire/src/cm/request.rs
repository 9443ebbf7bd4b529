//! REQ: a request for a connection (IBTA 12.6.5).

use super::fields::{Data, bytes, put, put_u16, put_u24, put_u32, put_u64, u16_at, u24_at, u32_at, u64_at};
use super::{Ece, ServiceId};

/// What kind of service a connection has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransportService {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Reliable datagram, which no adapter has.
    Rd,
    /// Extended reliable connected.
    Xrc,
    /// A value of "transport service type" and "extended transport type" that means nothing.
    Unknown(u8),
}

/// A path of a REQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectPath {
    /// The requester's LID; 0xffff where there are none.
    pub local_lid: u16,
    /// The responder's LID.
    pub remote_lid: u16,
    /// The requester's GID.
    pub local_gid: [u8; 16],
    /// The responder's GID.
    pub remote_gid: [u8; 16],
    /// 20 bits.
    pub flow_label: u32,
    /// 6 bits, as in a path record.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Both ends are in one subnet.
    pub subnet_local: bool,
    /// Local ACK timeout, 5 bits: 4.096 µs · 2^n.
    pub ack_timeout: u8,
}

/// A request for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The requester's communication ID.
    pub local_comm_id: u32,
    /// What it wants to be connected with.
    pub service_id: ServiceId,
    /// The requester's CA GUID.
    pub ca_guid: u64,
    /// The requester's Q_Key; connections have none.
    pub qkey: u32,
    /// The requester's QPN, 24 bits.
    pub qpn: u32,
    /// RDMA READs and atomics that the requester answers at a time.
    pub responder_resources: u8,
    /// RDMA READs and atomics that the requester asks at a time.
    pub initiator_depth: u8,
    /// The requester's EECN, 24 bits.
    pub local_eecn: u32,
    /// The responder's EECN, 24 bits.
    pub remote_eecn: u32,
    /// How long the responder may take for an answer, 5 bits: 4.096 µs · 2^n.
    pub remote_response_timeout: u8,
    /// The kind of service.
    pub transport: TransportService,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// The PSN from which the *responder* shall send, 24 bits.
    pub starting_psn: u32,
    /// How long the requester may take for an answer, 5 bits.
    pub local_response_timeout: u8,
    /// Retry count of the connection, 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU as a code: 1 (256) to 5 (4096).
    pub path_mtu: u8,
    /// There is a reliable datagram channel.
    pub rdc_exists: bool,
    /// RNR retry count of the connection, 3 bits.
    pub rnr_retry_count: u8,
    /// How often a message of the CM is sent again, 4 bits.
    pub max_cm_retries: u8,
    /// The requester's QP receives from an SRQ.
    pub srq: bool,
    /// The path.
    pub primary: ConnectPath,
    /// Another one, for path migration; [`ConnectPath::NONE`] as a rule.
    pub alternate: ConnectPath,
    /// What the requester's adapter offers.
    pub ece: Ece,
    /// The consumer's; with IP port spaces the first 36 bytes are an [`IpHeader`](super::IpHeader).
    pub private_data: [u8; Request::PRIVATE_DATA],
}

impl Request {
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 92;
}

impl ConnectPath {
    /// No path.
    pub const NONE: Self = Self {
        local_lid: 0,
        remote_lid: 0,
        local_gid: [0; 16],
        remote_gid: [0; 16],
        flow_label: 0,
        packet_rate: 0,
        traffic_class: 0,
        hop_limit: 0,
        sl: 0,
        subnet_local: false,
        ack_timeout: 0,
    };
}

impl TransportService {
    /// Of the transport service type (2 bits) and the extended transport type (3 bits).
    const fn of(service: u8, extended: u8) -> Self {
        match (service, extended) {
            (0, _) => Self::Rc,
            (1, _) => Self::Uc,
            (2, _) => Self::Rd,
            (_, 1) => Self::Xrc,
            (_, other) => Self::Unknown(other),
        }
    }

    const fn codes(self) -> (u8, u8) {
        match self {
            Self::Rc => (0, 0),
            Self::Uc => (1, 0),
            Self::Rd => (2, 0),
            Self::Xrc => (3, 1),
            Self::Unknown(other) => (3, other & 7),
        }
    }
}

/// Bytes of a path but for its last one.
const PATH_LEN: usize = 43;

impl ConnectPath {
    /// The path that begins at `at`.
    fn parse(data: &Data, at: usize) -> Self {
        let flow = u32_at(data, at + 36);
        let last = data[at + 42];
        Self {
            local_lid: u16_at(data, at),
            remote_lid: u16_at(data, at + 2),
            local_gid: bytes(data, at + 4),
            remote_gid: bytes(data, at + 20),
            flow_label: flow >> 12,
            packet_rate: flow as u8 & 0x3f,
            traffic_class: data[at + 40],
            hop_limit: data[at + 41],
            sl: last >> 4,
            subnet_local: last & 8 != 0,
            ack_timeout: data[at + PATH_LEN] >> 3,
        }
    }

    fn emit(&self, data: &mut Data, at: usize) {
        put_u16(data, at, self.local_lid);
        put_u16(data, at + 2, self.remote_lid);
        put(data, at + 4, self.local_gid);
        put(data, at + 20, self.remote_gid);
        put_u32(data, at + 36, self.flow_label << 12 | u32::from(self.packet_rate & 0x3f));
        data[at + 40] = self.traffic_class;
        data[at + 41] = self.hop_limit;
        data[at + 42] = self.sl << 4 | u8::from(self.subnet_local) << 3;
        data[at + PATH_LEN] = self.ack_timeout << 3;
    }
}

impl Request {
    pub(super) fn parse(data: &Data, modifier: u32) -> Self {
        let (b43, b47, b50, b51) = (data[43], data[47], data[50], data[51]);
        Self {
            local_comm_id: u32_at(data, 0),
            service_id: ServiceId(u64_at(data, 8)),
            ca_guid: u64_at(data, 16),
            qkey: u32_at(data, 28),
            qpn: u24_at(data, 32),
            responder_resources: data[35],
            local_eecn: u24_at(data, 36),
            initiator_depth: data[39],
            remote_eecn: u24_at(data, 40),
            remote_response_timeout: b43 >> 3,
            transport: TransportService::of(b43 >> 1 & 3, b51 & 7),
            flow_control: b43 & 1 != 0,
            starting_psn: u24_at(data, 44),
            local_response_timeout: b47 >> 3,
            retry_count: b47 & 7,
            pkey: u16_at(data, 48),
            path_mtu: b50 >> 4,
            rdc_exists: b50 & 8 != 0,
            rnr_retry_count: b50 & 7,
            max_cm_retries: b51 >> 4,
            srq: b51 & 8 != 0,
            primary: ConnectPath::parse(data, 52),
            alternate: ConnectPath::parse(data, 96),
            ece: Ece { vendor_id: u24_at(data, 5), options: modifier },
            private_data: bytes(data, 140),
        }
    }

    /// Writes the message, and returns the attribute modifier.
    pub(super) fn emit(&self, data: &mut Data) -> u32 {
        let (service, extended) = self.transport.codes();
        put_u32(data, 0, self.local_comm_id);
        put_u24(data, 5, self.ece.vendor_id);
        put_u64(data, 8, self.service_id.0);
        put_u64(data, 16, self.ca_guid);
        put_u32(data, 28, self.qkey);
        put_u24(data, 32, self.qpn);
        data[35] = self.responder_resources;
        put_u24(data, 36, self.local_eecn);
        data[39] = self.initiator_depth;
        put_u24(data, 40, self.remote_eecn);
        data[43] = self.remote_response_timeout << 3 | service << 1 | u8::from(self.flow_control);
        put_u24(data, 44, self.starting_psn);
        data[47] = self.local_response_timeout << 3 | self.retry_count & 7;
        put_u16(data, 48, self.pkey);
        data[50] = self.path_mtu << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry_count & 7;
        data[51] = self.max_cm_retries << 4 | u8::from(self.srq) << 3 | extended;
        self.primary.emit(data, 52);
        self.alternate.emit(data, 96);
        put(data, 140, self.private_data);
        self.ece.options
    }
}
