//! The requests of users of the communication manager, and its events.

use ferroce_types::HostAddr;
use ferroce_wire::cm::{
    Ece, IpHeader, Mad, PortSpace, Reject, Reply, Request, ServiceId, SidrReply, SidrRequest, SidrStatus,
    TransportService,
};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A connection or lookup: its communication ID on this side.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(pub u32);

/// Between which addresses the packets of a connection go, and how. The communication manager's own go the same way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionRoute {
    /// The local address: the GID of this side.
    pub from: HostAddr,
    /// The peer's address: its GID.
    pub to: HostAddr,
    /// Traffic class or type of service.
    pub traffic_class: u8,
    /// Hop limit or TTL.
    pub hop_limit: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// Service level, 4 bits.
    pub sl: u8,
}

/// A requester's QP, and the attributes of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionQp {
    /// The kind of service.
    pub transport: TransportService,
    /// Its QPN.
    pub qpn: u32,
    /// It receives from an SRQ.
    pub srq: bool,
    /// The PSN from which the *peer* shall send, 24 bits: this side's `rq_psn`.
    pub starting_psn: u32,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU as a code: 1 (256) to 5 (4096).
    pub path_mtu: u8,
    /// RDMA READs and atomics that this side answers at a time.
    pub responder_resources: u8,
    /// RDMA READs and atomics that this side asks at a time.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// 3 bits.
    pub retry_count: u8,
    /// 3 bits.
    pub rnr_retry_count: u8,
    /// Local ACK timeout, 5 bits: 4.096 µs · 2^n. A connection that has ended is in time-wait for that long.
    pub ack_timeout: u8,
}

/// A connection to be made (rdma_connect(3)).
#[derive(Clone, Copy, Debug)]
pub struct Connect<'a> {
    /// The way there.
    pub route: ConnectionRoute,
    /// What the connection is wanted with.
    pub service_id: ServiceId,
    /// Addresses and port as the programs know them; all port spaces of librdmacm have it.
    pub header: Option<IpHeader>,
    /// GUID of the adapter.
    pub ca_guid: u64,
    /// The QP.
    pub qp: ConnectionQp,
    /// What the adapter offers.
    pub ece: Ece,
    /// The consumer's: at most 56 bytes behind a header, 92 without one.
    pub private_data: &'a [u8],
}

/// The answer to a request for a connection (rdma_accept(3)).
#[derive(Clone, Copy, Debug)]
pub struct Accept<'a> {
    /// GUID of the adapter.
    pub ca_guid: u64,
    /// The QP's number.
    pub qpn: u32,
    /// With XRC: the QPN of the target.
    pub eecn: u32,
    /// The QP receives from an SRQ.
    pub srq: bool,
    /// The PSN from which the *peer* shall send, 24 bits: this side's `rq_psn`.
    pub starting_psn: u32,
    /// RDMA READs and atomics that this side answers at a time.
    pub responder_resources: u8,
    /// RDMA READs and atomics that this side asks at a time.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// 3 bits.
    pub rnr_retry_count: u8,
    /// Delay before this side acknowledges, 5 bits: 4.096 µs · 2^n.
    pub target_ack_delay: u8,
    /// What the adapter has chosen.
    pub ece: Ece,
    /// The consumer's: at most 196 bytes.
    pub private_data: &'a [u8],
}

/// A datagram service to be looked up (rdma_connect(3) of a datagram id).
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    /// The way there.
    pub route: ConnectionRoute,
    /// What is looked up.
    pub service_id: ServiceId,
    /// Addresses and port as the programs know them.
    pub header: Option<IpHeader>,
    /// Partition key.
    pub pkey: u16,
    /// The consumer's: at most 180 bytes behind a header, 216 without one.
    pub private_data: &'a [u8],
}

/// The answer to a lookup (rdma_accept(3) and rdma_reject(3) of a datagram id).
#[derive(Clone, Copy, Debug)]
pub struct LookupReply<'a> {
    /// [`SidrStatus::SUCCESS`] with a QPN and Q_Key, or why there is none.
    pub status: SidrStatus,
    /// The QPN.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// What the adapter has chosen.
    pub ece: Ece,
    /// The consumer's: at most 136 bytes.
    pub private_data: &'a [u8],
}

/// A listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub u64);

/// What a listener takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    /// The port space.
    pub space: PortSpace,
    /// The port.
    pub port: u16,
    /// The address that requests must be for; the unspecified or a loopback one takes those for any.
    pub address: IpAddr,
    /// An unspecified IPv6 address doesn't stand for IPv4.
    pub v6_only: bool,
    /// Requests for connections of this kind; lookups when there is none.
    pub transport: Option<TransportService>,
    /// So many requests may wait for [`Cm::take`](crate::Cm::take); further ones are dropped, and come again.
    pub backlog: u32,
}

/// What is shown of a connection or lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Its communication ID on this side.
    pub id: u32,
    /// Its state by the kernel's name (`enum ib_cm_state`), as "REQ_SENT".
    pub state: &'static str,
    /// This side's address and port; port 0: unknown.
    pub local: SocketAddr,
    /// The peer's address and port; port 0: unknown.
    pub peer: SocketAddr,
    /// The QPN of this side; 0: none yet.
    pub qpn: u32,
    /// When it began to wait for the peer or for this side's program; `None`: it doesn't wait.
    pub since: Option<Duration>,
}

/// A MAD, and the addresses between which it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressedMad {
    /// The sender.
    pub from: HostAddr,
    /// The receiver.
    pub to: HostAddr,
    /// Traffic class or type of service of the packet.
    pub traffic_class: u8,
    /// A process of this user has made it, and not in answer to a MAD for which that isn't so. False: it came from the network, where any user
    /// of this host can send from the host's addresses.
    pub is_of_user: bool,
    /// The MAD.
    pub mad: Mad,
}

/// The user whose process gets a request within this host.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum AskedUser {
    /// Not known, or of another host.
    #[default]
    Unknown,
    /// This process's own.
    Own,
    /// Another one.
    Other(u32),
}

impl AddressedMad {
    /// An answer, with the addresses the other way round.
    #[must_use]
    pub const fn answered_by(&self, mad: Mad) -> Self {
        let Self { from: to, to: from, traffic_class, is_of_user, .. } = *self;
        Self { from, to, traffic_class, is_of_user, mad }
    }
}

/// Something that the user of the communication manager has to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request for a connection has come.
    Request {
        /// To this listener.
        listener: ListenerId,
        /// The connection that it may become.
        handle: Handle,
        /// The peer's message.
        request: Box<Request>,
        /// Addresses as the programs know them.
        header: IpHeader,
        /// Between which addresses.
        route: ConnectionRoute,
    },
    /// A lookup has come.
    Lookup {
        /// To this listener.
        listener: ListenerId,
        /// The lookup.
        handle: Handle,
        /// The peer's message.
        request: Box<SidrRequest>,
        /// Addresses as the programs know them.
        header: IpHeader,
        /// Between which addresses.
        route: ConnectionRoute,
    },
    /// An event of a connection or lookup of this side.
    Of(Handle, ConnectionEvent),
}

/// An event of a connection or lookup, as each layer above passes it on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConnectionEvent {
    /// The peer has accepted (REP).
    Reply(Box<Reply>),
    /// The peer that was accepted is ready (RTU).
    Established,
    /// The peer, or its communication manager, has rejected the request, or has given up after it was accepted (REJ).
    Rejected(Box<Reject>),
    /// The peer hasn't answered: -ETIMEDOUT.
    Unreachable,
    /// The connection has ended.
    Disconnected {
        /// The peer hasn't answered this side's request for the end: -ETIMEDOUT.
        timed_out: bool,
    },
    /// Packets of the connection are gone from the network.
    TimewaitExit,
    /// The answer to a lookup.
    Answer(Box<SidrReply>),
}

/// Why something can't be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CmError {
    /// Too much private data.
    PrivateData {
        /// How much it is.
        given: usize,
        /// How much it may be.
        most: usize,
    },
    /// The connection isn't in a state for this: the peer may have given up meanwhile.
    State {
        /// What it is instead.
        state: &'static str,
    },
    /// It is established already.
    Established,
    /// No more connections can be had.
    TooMany {
        /// How many there may be.
        most: usize,
    },
}

impl fmt::Display for CmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrivateData { given, most } => {
                write!(f, "{given} bytes of private data are too many: {most} fit")
            }
            Self::State { state } => write!(f, "the connection is {state}"),
            Self::Established => f.write_str("the connection is established already"),
            Self::TooMany { most } => write!(f, "{most} connections exist, and no more can"),
        }
    }
}

impl std::error::Error for CmError {}
