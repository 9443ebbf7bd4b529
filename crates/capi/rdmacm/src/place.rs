//! Where an id is, where its peer is, and the route between them.

use std::net::{IpAddr, SocketAddr};

use ferroce_abi::verbs::{ibv_ah_attr, ibv_gid, ibv_global_route};
use ferroce_connect::ConnectionRoute;

use crate::devices::SharedDevice;

/// TTL or hop limit of packets.
pub(crate) const HOP_LIMIT: u8 = 64;

/// The addresses of an id and of its peer, as far as they are known.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct IdPlace {
    pub(crate) source: Option<SocketAddr>,
    pub(crate) destination: Option<SocketAddr>,
    pub(crate) way: Option<PeerRoute>,
}

/// The route of packets to the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerRoute {
    pub(crate) device: SharedDevice,
    pub(crate) route: ConnectionRoute,
    /// The source's place in the device's GID table.
    pub(crate) sgid_index: u8,
    /// Path MTU as a code.
    pub(crate) mtu: u8,
}

/// The LIDs of both ends of a way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerLids {
    pub(crate) from: u16,
    pub(crate) to: u16,
}

impl PeerRoute {
    /// Its ends by their LIDs: the port's address, and a host of its subnet.
    pub(crate) fn lids(&self) -> Option<PeerLids> {
        let lids = self.device.nic().port().lids?;
        if lids.address() != self.route.from.ip() {
            return None;
        }
        Some(PeerLids { from: lids.own(), to: lids.lid_of(self.route.to.ip())? })
    }

    /// The address vector to the peer: with its LID if both ends have LIDs, otherwise with its GID.
    pub(crate) fn ah_attr(&self) -> ibv_ah_attr {
        let lids = self.lids();
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: gid(self.route.to.ip()),
                flow_label: self.route.flow_label,
                sgid_index: self.sgid_index,
                hop_limit: self.route.hop_limit,
                traffic_class: self.route.traffic_class,
            },
            dlid: lids.map_or(0, |lids| lids.to),
            sl: self.route.sl,
            src_path_bits: 0,
            static_rate: 0,
            is_global: lids.is_none().into(),
            port_num: 1,
        }
    }
}

/// An address as a GID.
pub(crate) fn gid(ip: IpAddr) -> ibv_gid {
    ibv_gid { raw: ferroce_netdev::gid_of(ip) }
}
