//! REQ: a request for a connection (IBTA 12.6.5).

use super::{Ece, ServiceId};

/// What kind of service a connection has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
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
    pub transport: Transport,
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
