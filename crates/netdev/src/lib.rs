//! What the host's network looks like: interfaces, which of them are devices, GID tables, port attributes,
//! routes, sockets and their users, and news about the network.
//!
//! In here: rtnetlink(7), sock_diag(7), ethtool, the rules that make a device of a network interface, and what addresses look like to programs.
//! Out of here: packets, UDP sockets, verbs objects. Nothing is kept between calls but what the caller holds.

#![cfg_attr(not(test), forbid(unsafe_code))]

mod devices;
mod ethtool;
mod gid;
mod grh;
mod guid;
mod interface;
mod link_layer;
mod monitor;
mod neighbour;
mod netlink;
mod port;
mod route;
mod sockets;

use std::io;

pub use devices::{DEVICES_VARIABLE, DeviceInfo, VENDOR_ID, VENDOR_PART_ID, discover, discover_as};
pub use gid::{GID_TABLE_LEN, GidChange, GidEntry, GidTable};
pub use grh::{Grh, grh_of};
pub use interface::{Address, Netdev, interfaces};
pub use link_layer::{
    LAST_UNICAST_LID, LINK_LAYER_VARIABLE, Lids, LinkLayer, MULTICAST_LIDS, gid_of, ip_of, mlid_of,
    why_no_lid,
};
pub use monitor::{Changes, Monitor};
pub use neighbour::{is_neighbour_known, look_for_neighbour};
pub use port::{LastSpeed, LinkSpeed, MAX_MTU, PortAttributes, PortState, active_mtu};
pub use route::{LocalAddresses, Route, RouteKind, route_to, way};
pub use sockets::{NamedSocket, UdpSocket, named_sockets, udp_sockets};

/// Why the network couldn't be read, or what is wrong with `FERROCE_DEVICES`.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The kernel refused or failed to answer a routing netlink request.
    #[error("asking the kernel {what}: {source}")]
    Netlink {
        /// What was asked for.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The interface went away.
    #[error("there is no network interface with index {ifindex} any more")]
    Gone {
        /// Its index.
        ifindex: u32,
    },
    /// An entry of `FERROCE_DEVICES` isn't `DEVICE=INTERFACE` with a possible device name.
    #[error(
        "FERROCE_DEVICES: {entry:?} {problem}; write DEVICE=INTERFACE, as in \"mlx5_0=eth0,mlx5_1=eth1\""
    )]
    Syntax {
        /// The entry as written.
        entry: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// `FERROCE_DEVICES` names an interface that doesn't exist.
    #[error(
        "FERROCE_DEVICES: there is no network interface {interface:?} for {device:?} (there is: {known})"
    )]
    UnknownInterface {
        /// The device that was to be made of it.
        device: String,
        /// The name that isn't known.
        interface: String,
        /// Names that are, separated by commas.
        known: String,
    },
    /// `FERROCE_DEVICES` gives one device name or one interface twice.
    #[error("FERROCE_DEVICES: {name:?} is named twice")]
    Twice {
        /// The name.
        name: String,
    },
}

impl NetError {
    /// The errno for the C interfaces: the system's, or EINVAL for what is wrong with `FERROCE_DEVICES`.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Netlink { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::Gone { .. } => libc::ENODEV,
            _ => libc::EINVAL,
        }
    }

    /// For `map_err`: a netlink error with what was asked.
    fn asking(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| NetError::Netlink { what, source }
    }
}
