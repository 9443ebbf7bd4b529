//! Which way leads to a QP, and what comes by it.
//!
//! In here: local addresses and routes, the choice of a fabric, the fabrics as the adapter sees them (a link's rings, sockets), multicast groups, capture and faults between the adapter and the fabrics.
//! Out of here: sockets (`udp`), rings (`hostlink`), the host's other processes (`host`), what a QP makes of a packet.

mod addresses;
mod dispatch;
mod ends;
mod links;
mod multicast;
mod sockets;
mod taps;

pub(crate) use addresses::{Addresses, udp_only};
pub(crate) use dispatch::LastFlow;
pub(crate) use ends::seen_of;
pub(crate) use links::{LinkSource, is_of_this_host};
pub(crate) use multicast::{GroupSource, Multicast};
pub use multicast::{MAX_ATTACHED, MAX_GROUPS};
pub(crate) use sockets::{ForwardSource, Forwarding, SocketSource};
pub(crate) use taps::{TapSource, Taps};
