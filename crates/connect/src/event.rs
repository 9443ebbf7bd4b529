//! What happens to listeners and connections.

use crate::Connection;
use ferroce_types::HostAddr;
use ferroce_wire::cm::{IpHeader, Reject, Reply, Request, SidrReply, SidrRequest};
use std::net::SocketAddr;
use std::time::Duration;

/// Whom events are told: an id of librdmacm.
pub trait Sink: Send + Sync {
    /// Something has happened. The events of one connection come in order and one at a time, by whichever thread makes progress. It must not
    /// block, and may call back into this crate.
    fn event(&self, event: Event);
}

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// To a listener: a peer wants a connection.
    Request(Incoming),
    /// To a listener: a peer looks up a datagram service.
    Lookup(IncomingLookup),
    /// The peer has accepted. [`Connection::establish`] tells it that this side is ready.
    Reply(Box<Reply>),
    /// The peer that was accepted is ready.
    Established,
    /// The peer, or its communication manager, has said no, or has given up after it was accepted.
    Rejected(Box<Reject>),
    /// The peer hasn't answered: -ETIMEDOUT.
    Unreachable,
    /// The request hasn't been answered for two seconds, and the peer's host rejects its packets (ICMP). It is sent again meanwhile.
    PortClosed {
        /// The peer.
        peer: SocketAddr,
        /// After this time the request is given up.
        rest: Duration,
    },
    /// The connection has ended.
    Disconnected {
        /// The peer hasn't answered this side's request for the end: -ETIMEDOUT.
        timed_out: bool,
    },
    /// Packets of the connection that has ended are gone from the network.
    TimewaitExit,
    /// The answer to a lookup.
    Answer(Box<SidrReply>),
}

/// A peer's request for a connection.
#[derive(Debug)]
pub struct Incoming {
    /// The connection that it may become. Dropped, it is rejected with [`RejectReason::CONSUMER`](crate::RejectReason::CONSUMER).
    pub connection: Connection,
    /// What the peer says.
    pub request: Box<Request>,
    /// Addresses as the programs know them. The destination's port is the listener's.
    pub header: IpHeader,
    /// The address that the request came to: this side's GID.
    pub local: HostAddr,
    /// The peer's address: its GID.
    pub remote: HostAddr,
}

/// A peer's lookup of a datagram service.
#[derive(Debug)]
pub struct IncomingLookup {
    /// The lookup, to be answered. Dropped, it is answered with [`SidrStatus::REJECT`](crate::SidrStatus::REJECT).
    pub connection: Connection,
    /// What the peer says.
    pub request: Box<SidrRequest>,
    /// Addresses as the programs know them. The destination's port is the listener's.
    pub header: IpHeader,
    /// The address that the request came to: this side's GID.
    pub local: HostAddr,
    /// The peer's address: its GID.
    pub remote: HostAddr,
}
