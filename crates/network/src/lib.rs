//! The process in the network: its addresses, the paths from them to queue pairs of others, multicast groups, QP 1.
//!
//! In here: [`Network`], which the adapter is built on; the process of this host that a MAD is for; which processes of the host are gone.
//! Out of here: the adapter and its queue pairs (`ferroce_nic`), sockets (`ferroce_udp`), shared memory (`ferroce_hostlink`), the host's
//! other processes (`ferroce_host`), what MADs mean (`ferroce_cm`).

#![forbid(unsafe_code)]

mod addresses;
mod flow;
pub mod gsi;
mod locals;
mod multicast;
mod network;
mod paths;
mod taps;

pub use flow::{flow_of, verify};
pub use locals::is_of_this_host;
pub use multicast::{Group, MAX_ATTACHED, MAX_GROUPS, Multicast};
pub use network::{Forwarding, Network};
pub use paths::{AddressPair, path_mtu};
pub use taps::{Faults, Taps};
