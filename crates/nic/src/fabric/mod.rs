//! Which way leads to a QP, and what comes by it.
//!
//! In here: the fabrics as the adapter sees them (a link's rings, sockets), packets to multicast groups, capture and faults between the adapter and the fabrics.
//! Out of here: addresses and paths (`network`), sockets (`udp`), rings (`hostlink`), the host's other processes (`host`), what a QP makes of a packet.

mod dispatch;
pub(crate) mod links;
mod multicast;
mod sockets;
mod taps;

pub(crate) use links::LinkSource;
pub(crate) use multicast::GroupSource;
pub(crate) use sockets::{ForwardSource, SocketSource};
pub(crate) use taps::TapSource;
