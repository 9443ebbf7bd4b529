//! From an address vector to the addresses of two hosts, and from a packet back to what a receiver sees of its addresses:
//! GIDs everywhere, LIDs too where ports are InfiniBand.

use super::{Context, OfContext as _};
use ferroce_mem::Pd;
use ferroce_netdev::{LinkLayer, MULTICAST_LIDS, ip_of, why_no_lid};
use ferroce_network::AddressPair;
use ferroce_parts::AddressVector;
use ferroce_types::{HostAddr, PacketMeta, Result, invalid};

/// The hop limit of packets that are addressed by a LID: they don't leave the subnet. Packets that are addressed by a GRH
/// have another, so the receiver knows which of them have a GRH.
const HOP_LIMIT_BY_LID: u8 = 1;
/// A GRH's hop limit that would be taken for [`HOP_LIMIT_BY_LID`] counts as the default.
const DEFAULT_HOP_LIMIT: u8 = 0;

/// What the receiver of a datagram sees of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReceivedAddress {
    /// The sender's LID; 0: it has none.
    pub(crate) slid: u16,
    /// There is a GRH.
    pub(crate) grh: bool,
}

impl Context {
    /// The hosts that an address vector names.
    ///
    /// # Errors
    /// EINVAL for a source GID that doesn't exist, and for a LID that no host has.
    pub(crate) fn ends(&self, av: &AddressVector) -> Result<AddressPair> {
        if av.is_global { self.ends_of_gids(av) } else { self.ends_of_lids(av.dlid) }
    }

    fn ends_of_gids(&self, av: &AddressVector) -> Result<AddressPair> {
        let mut source = self.source(av.sgid_index)?;
        let to = HostAddr::new(ip_of(av.dgid), source.ifindex);
        if !LinkLayer::current().is_infiniband() {
            let from = HostAddr::new(source.ip, source.scope_id);
            return Ok(AddressPair { from, to, hop_limit: av.hop_limit });
        }
        // The port's one GID reaches groups of all kinds; which family of IP carries them isn't the program's concern.
        if to.is_group() && source.ip.is_ipv4() == to.is_ipv6() {
            let fits = |entry: &ferroce_netdev::GidEntry| entry.ip.is_ipv6() == to.is_ipv6();
            source = self.gids().into_iter().map(|(_, entry)| entry).find(fits).unwrap_or(source);
        }
        let hop_limit = match av.hop_limit {
            HOP_LIMIT_BY_LID if !to.is_group() => DEFAULT_HOP_LIMIT,
            given => given,
        };
        Ok(AddressPair { from: HostAddr::new(source.ip, source.scope_id), to, hop_limit })
    }

    fn ends_of_lids(&self, dlid: u16) -> Result<AddressPair> {
        let Some(lids) = self.port().lids else {
            let netdev = &self.device().info().netdev;
            let why = why_no_lid(netdev).unwrap_or_else(|| format!("{} had no LID", netdev.name));
            return invalid!("dlid {dlid} without a GRH: {why}");
        };
        if MULTICAST_LIDS.contains(&dlid) {
            return invalid!("dlid {dlid:#x} without a GRH: a multicast group is addressed by its MGID too");
        }
        let Some(to) = lids.address_of(dlid) else {
            return invalid!("dlid {dlid}: the hosts of {lids} have LIDs 1 to {}", lids.last());
        };
        Ok(AddressPair {
            from: HostAddr::new(lids.address(), 0),
            to: HostAddr::new(to, 0),
            hop_limit: HOP_LIMIT_BY_LID,
        })
    }
}

/// What the receiver of a datagram with these addresses sees of them, whose queue pair is of the domain `pd`.
#[inline]
pub(crate) fn seen_of(meta: &PacketMeta, pd: &Pd) -> ReceivedAddress {
    match LinkLayer::current() {
        LinkLayer::Ethernet => ReceivedAddress { slid: 0, grh: true },
        LinkLayer::InfiniBand => {
            let slid = pd.context().port().lids.and_then(|lids| lids.lid_of(meta.src));
            let by_lid = slid.is_some() && meta.ttl == HOP_LIMIT_BY_LID && !meta.dst.is_multicast();
            ReceivedAddress { slid: slid.unwrap_or(0), grh: !by_lid }
        }
    }
}
