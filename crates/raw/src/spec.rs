//! What a flow matches: the headers that it names, and in them the bits that its masks select.

use ferroce_types::{Result, invalid};
use ferroce_wire::frame::{Ethernet, Frame, IpLayer, Layer, Transport, Tunnel, Under};

/// A value and the bits of it that count.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Masked<T> {
    /// The value.
    pub value: T,
    /// Its bits that count.
    pub mask: T,
}

impl<T: Bits> Masked<T> {
    fn agrees(&self, found: &T) -> bool {
        found.agrees(&self.value, &self.mask)
    }
}

/// Numbers and addresses, as far as masks are concerned.
pub trait Bits {
    /// Both are alike where the mask has ones.
    fn agrees(&self, other: &Self, mask: &Self) -> bool;
}

macro_rules! number {
    ($($type:ty)*) => {$(
        impl Bits for $type {
            fn agrees(&self, other: &Self, mask: &Self) -> bool {
                (self ^ other) & mask == 0
            }
        }
    )*};
}
number!(u8 u16 u32);

impl<const N: usize> Bits for [u8; N] {
    fn agrees(&self, other: &Self, mask: &Self) -> bool {
        self.iter().zip(other).zip(mask).all(|((a, b), m)| (a ^ b) & m == 0)
    }
}

/// A header that frames must have, with the values of its fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields are those of ibv_create_flow(3)
pub enum Match {
    Ethernet {
        dst: Masked<[u8; 6]>,
        src: Masked<[u8; 6]>,
        /// Of what follows the last VLAN tag.
        ether_type: Masked<u16>,
        /// A mask of 0 takes frames without a tag too.
        vlan: Masked<u16>,
    },
    Ipv4 {
        src: Masked<[u8; 4]>,
        dst: Masked<[u8; 4]>,
        protocol: Masked<u8>,
        tos: Masked<u8>,
        ttl: Masked<u8>,
        /// As in the header: reserved bit, "don't fragment", "more fragments".
        flags: Masked<u8>,
    },
    Ipv6 {
        src: Masked<[u8; 16]>,
        dst: Masked<[u8; 16]>,
        protocol: Masked<u8>,
        traffic_class: Masked<u8>,
        hop_limit: Masked<u8>,
        flow_label: Masked<u32>,
    },
    Tcp {
        src: Masked<u16>,
        dst: Masked<u16>,
    },
    Udp {
        src: Masked<u16>,
        dst: Masked<u16>,
    },
    Esp {
        spi: Masked<u32>,
        seq: Masked<u32>,
    },
    Vxlan {
        vni: Masked<u32>,
    },
    Gre {
        flags: Masked<u16>,
        protocol: Masked<u16>,
        key: Masked<u32>,
    },
    /// The stack lies on what the specification before it names.
    Mpls {
        entry: Masked<u32>,
    },
}

/// One of a flow's specifications.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spec {
    /// Of what a tunnel carries.
    pub inner: bool,
    /// The header.
    pub header: Match,
}

impl Match {
    /// Which header of a frame this is about: none may be named twice.
    const fn place(&self) -> usize {
        match self {
            Self::Ethernet { .. } => 0,
            Self::Ipv4 { .. } | Self::Ipv6 { .. } => 1,
            Self::Tcp { .. } | Self::Udp { .. } | Self::Esp { .. } => 2,
            Self::Vxlan { .. } | Self::Gre { .. } => 3,
            Self::Mpls { .. } => 4,
        }
    }

    fn is_ethernet(&self, found: &Ethernet) -> bool {
        let Self::Ethernet { dst, src, ether_type, vlan } = self else { return false };
        let tagged = match found.vlan {
            Some(tag) => vlan.agrees(&tag),
            None => vlan.mask == 0,
        };
        tagged && dst.agrees(&found.dst) && src.agrees(&found.src) && ether_type.agrees(&found.ether_type)
    }

    fn is_network(&self, found: &IpLayer) -> bool {
        match (self, found) {
            (
                Self::Ipv4 { src, dst, protocol, tos, ttl, flags },
                IpLayer::V4 { src: s, dst: d, protocol: p, tos: t, ttl: l, flags: f },
            ) => {
                src.agrees(s)
                    && dst.agrees(d)
                    && protocol.agrees(p)
                    && tos.agrees(t)
                    && ttl.agrees(l)
                    && flags.agrees(f)
            }
            (
                Self::Ipv6 { src, dst, protocol, traffic_class, hop_limit, flow_label },
                IpLayer::V6 { src: s, dst: d, protocol: p, traffic_class: t, hop_limit: h, flow_label: f },
            ) => {
                src.agrees(s)
                    && dst.agrees(d)
                    && protocol.agrees(p)
                    && traffic_class.agrees(t)
                    && hop_limit.agrees(h)
                    && flow_label.agrees(f)
            }
            _ => false,
        }
    }

    fn is_transport(&self, found: &Transport) -> bool {
        match (self, found) {
            (Self::Tcp { src, dst }, Transport::Tcp { src: s, dst: d })
            | (Self::Udp { src, dst }, Transport::Udp { src: s, dst: d }) => src.agrees(s) && dst.agrees(d),
            (Self::Esp { spi, seq }, Transport::Esp { spi: i, seq: q }) => spi.agrees(i) && seq.agrees(q),
            _ => false,
        }
    }

    fn is_tunnel(&self, found: &Tunnel) -> bool {
        match (self, found) {
            (Self::Vxlan { vni }, Tunnel::Vxlan { vni: v }) => vni.agrees(v),
            (Self::Gre { flags, protocol, key }, Tunnel::Gre { flags: f, protocol: p, key: k }) => {
                flags.agrees(f) && protocol.agrees(p) && key.agrees(k)
            }
            _ => false,
        }
    }

    fn is_in(&self, layer: &Layer) -> bool {
        match self.place() {
            0 => layer.ethernet.is_some_and(|found| self.is_ethernet(&found)),
            1 => layer.network.is_some_and(|found| self.is_network(&found)),
            _ => layer.transport.is_some_and(|found| self.is_transport(&found)),
        }
    }
}

/// Checks that each header is named once, and none where it can't be.
///
/// # Errors
/// [`Error::Invalid`](ferroce_types::Error::Invalid).
pub(super) fn check(specs: &[Spec]) -> Result<()> {
    let mut seen = [[false; 5]; 2];
    for Spec { inner, header } in specs {
        if *inner && header.place() > 2 {
            return invalid!("a tunnel or a label stack within a tunnel");
        }
        if std::mem::replace(&mut seen[usize::from(*inner)][header.place()], true) {
            return invalid!("two specifications of the same header");
        }
    }
    Ok(())
}

/// Do all specifications match?
pub(super) fn matches(specs: &[Spec], frame: &Frame) -> bool {
    let mut under = Under::Ethernet;
    specs.iter().all(|Spec { inner, header }| {
        let layer = if *inner { frame.inner.as_ref() } else { Some(&frame.outer) };
        let matched = match header {
            Match::Mpls { entry } => {
                frame.mpls.is_some_and(|mpls| mpls.under == under && entry.agrees(&mpls.entry))
            }
            Match::Vxlan { .. } | Match::Gre { .. } => {
                frame.tunnel.is_some_and(|found| header.is_tunnel(&found))
            }
            _ => layer.is_some_and(|layer| header.is_in(layer)),
        };
        under = match header {
            Match::Gre { .. } => Under::Gre,
            Match::Udp { .. } => Under::Udp,
            _ => Under::Ethernet,
        };
        matched
    })
}
