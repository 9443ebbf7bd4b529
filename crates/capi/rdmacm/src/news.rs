//! What has happened to an id, until the program fetches the event.

use std::ffi::c_int;

use ferroce_connect::{Incoming, IncomingLookup, Reject, Reply, SidrReply};

use crate::group::Joined;

/// What has happened to an id.
pub(crate) enum IdNews {
    AddrResolved,
    AddrError(c_int),
    RouteResolved,
    /// A peer wants a connection.
    Request(Box<Incoming>),
    /// A peer looks up a datagram service.
    Lookup(Box<IncomingLookup>),
    Response(Box<Reply>),
    Established,
    Rejected(Box<Reject>),
    Unreachable,
    Disconnected {
        timed_out: bool,
    },
    TimewaitExit,
    Answer(Box<SidrReply>),
    DeviceRemoval,
    AddrChange,
    Joined(Joined),
    AddrInfo(c_int),
    User {
        status: c_int,
        arg: u64,
    },
}
