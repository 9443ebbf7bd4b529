//! Connections between processes of a host and between hosts: the communication manager of this process.
//!
//! In here: ports and who has them, the way of MADs to the process that they are for, the timers of connections, and events.
//! Out of here: what the messages mean (`ferroce_cm`), how MADs travel (`ferroce_nic`), ids, event channels and QPs of
//! librdmacm (`capi`).
//!
//! Everything here may be called from any thread, never waits for a peer, and is no cancellation point.
#![forbid(unsafe_code)]

mod connection;
mod event;
mod manager;
mod port;

pub use connection::{Connection, connect, lookup};
pub use event::{Event, Incoming, IncomingLookup, Sink};
pub use ferroce_cm::{Accept, Answer, Connect, Lookup, QpParams, Route};
pub use ferroce_wire::cm::{
    ConnectPath, Ece, IpHeader, PortSpace, Reject, RejectReason, Reply, Request, ServiceId, SidrReply,
    SidrRequest, SidrStatus, Transport,
};
pub use manager::end_all;
pub use port::{Bind, Port, bind};
