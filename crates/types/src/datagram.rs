//! What a receiver gets for each packet.

use crate::{HostAddr, PacketMeta};
use std::net::{IpAddr, SocketAddr};

/// One RoCEv2 packet as it came from a socket. Nothing in it has been checked but that a BTH and an ICRC fit.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Address and UDP port it came from.
    pub source: SocketAddr,
    /// Our address that it was sent to.
    pub destination: HostAddr,
    /// Type of service or traffic class, with the two ECN bits.
    pub tos: u8,
    /// TTL or hop limit on arrival; `None`: the kernel hasn't attached it.
    pub ttl: Option<u8>,
    /// IPv6: flow label, 0 where there is none.
    pub flow_label: u32,
    /// A process of this user has made it, so it comes from where it claims to. False: it came from the network, whichever way it took here.
    pub is_of_user: bool,
    /// Place in the train that GRO made of it: a first guess of the IPv4 identification, for the ICRC.
    pub segment: u16,
    /// BTH to ICRC.
    pub bytes: &'a [u8],
}

impl Datagram<'_> {
    /// Destination QPN of the BTH; 0 where there is none.
    #[must_use]
    #[inline]
    pub fn dest_qpn(&self) -> u32 {
        self.bytes.get(5..8).map_or(0, |b| u32::from_be_bytes([0, b[0], b[1], b[2]]))
    }

    /// The addresses that it came from and was sent to.
    #[must_use]
    #[inline]
    pub fn ends(&self) -> (IpAddr, IpAddr) {
        (self.source.ip().to_canonical(), self.destination.ip())
    }

    /// Its facts from the network layer.
    #[must_use]
    #[inline]
    pub fn meta(&self) -> PacketMeta {
        let (src, dst) = self.ends();
        PacketMeta {
            src,
            dst,
            tos: self.tos,
            ttl: self.ttl.unwrap_or(64),
            flow_label: self.flow_label,
            len: self.bytes.len() as u16,
            source_port: self.source.port(),
        }
    }

    /// Marked "congestion experienced" on the way.
    #[must_use]
    #[inline]
    pub const fn congestion_experienced(&self) -> bool {
        self.tos & 3 == 3
    }
}
