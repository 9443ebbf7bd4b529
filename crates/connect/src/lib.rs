//! Connections between processes of a host and between hosts: the communication manager of this process.
//!
//! In here: ports and their owners, the way of MADs to their receivers, the timers of connections, and events.
//! Out of here: what the messages mean (`ferroce_cm`), how MADs travel (`ferroce_nic`), ids, event channels and QPs of
//! librdmacm (`capi`).
//!
//! Everything here may be called from any thread, never waits for a peer, and isn't a cancellation point.
#![forbid(unsafe_code)]

mod connection;
mod manager;
mod port;
mod state;

pub use connection::{connect, lookup};
pub use ferroce_cm::{Accept, Connect, ConnectionEvent, ConnectionQp, ConnectionRoute, Lookup, LookupReply};
pub use ferroce_wire::cm::{
    ConnectPath, Ece, IpHeader, PortSpace, Reject, RejectReason, Reply, Request, ServiceId, SidrReply,
    SidrRequest, SidrStatus, TransportService,
};
pub use manager::end_all;
pub use port::{Bind, BoundPort, bind};
pub use state::{CmEvent, Connection, Incoming, Sink};
