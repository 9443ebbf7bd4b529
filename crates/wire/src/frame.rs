//! Ethernet frames as flow rules and receive-side scaling look at them: which header follows which, and their fields.
//!
//! In here: Ethernet with VLAN tags, MPLS, IPv4, IPv6 and its extension headers, TCP, UDP, ESP, and what VXLAN, GRE and
//! MPLS carry inside. Headers that are cut short end the walk: what was found before stands.

const VLAN: u16 = 0x8100;
const VLAN_SERVICE: u16 = 0x88a8;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const MPLS: [u16; 2] = [0x8847, 0x8848];
/// Ethernet within GRE (transparent Ethernet bridging).
const BRIDGED: u16 = 0x6558;

const TCP: u8 = 6;
const UDP: u8 = 17;
const GRE: u8 = 47;
const ESP: u8 = 50;

const VXLAN_PORT: u16 = 4789;
const MPLS_PORT: u16 = 6635;

/// Bytes of an Ethernet header without VLAN tags.
pub const ETHERNET_LEN: usize = 14;

/// An Ethernet header (IEEE 802.3) with its VLAN tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ethernet {
    /// Destination.
    pub dst: [u8; 6],
    /// Source.
    pub src: [u8; 6],
    /// The first tag's priority, drop eligibility and VLAN.
    pub vlan: Option<u16>,
    /// Of what follows the last tag.
    pub ether_type: u16,
}

/// An IPv4 or IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // RFC 791, RFC 8200
pub enum IpLayer {
    V4 {
        src: [u8; 4],
        dst: [u8; 4],
        protocol: u8,
        tos: u8,
        ttl: u8,
        /// Reserved bit, "don't fragment", "more fragments", from the highest of three bits down.
        flags: u8,
    },
    V6 {
        src: [u8; 16],
        dst: [u8; 16],
        /// What the extension headers end with.
        protocol: u8,
        traffic_class: u8,
        hop_limit: u8,
        flow_label: u32,
    },
}

impl IpLayer {
    /// The protocol of what follows.
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        match *self {
            Self::V4 { protocol, .. } | Self::V6 { protocol, .. } => protocol,
        }
    }
}

/// A header above IP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // RFC 9293, RFC 768, RFC 4303
pub enum Transport {
    Tcp { src: u16, dst: u16 },
    Udp { src: u16, dst: u16 },
    Esp { spi: u32, seq: u32 },
}

/// The fields of a tunnel's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // RFC 7348, RFC 2784 and 2890
pub enum Tunnel {
    Vxlan { vni: u32 },
    Gre { flags: u16, protocol: u16, key: u32 },
}

/// The first entry of an MPLS label stack (RFC 3032).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mpls {
    /// What it lies on.
    pub under: Under,
    /// Label, traffic class, bottom of stack, TTL.
    pub entry: u32,
}

/// What a label stack lies on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Under {
    Ethernet,
    Gre,
    Udp,
}

/// Link, network and transport headers; each may be missing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Layer {
    /// The Ethernet header.
    pub ethernet: Option<Ethernet>,
    /// The IP header.
    pub network: Option<IpLayer>,
    /// The header above it. Fragments other than the first have none.
    pub transport: Option<Transport>,
    /// Where the IP header begins.
    pub network_at: usize,
    /// Where the header above it begins.
    pub transport_at: usize,
    /// Where the IP packet ends: a frame may be padded.
    pub end: usize,
}

/// A frame's headers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Frame {
    /// Those it begins with.
    pub outer: Layer,
    /// The label stack, wherever it lies.
    pub mpls: Option<Mpls>,
    /// The tunnel's header.
    pub tunnel: Option<Tunnel>,
    /// What the tunnel carries.
    pub inner: Option<Layer>,
}

impl Frame {
    /// Reads the headers; `None` for what is shorter than an Ethernet header.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut frame = Self::default();
        let mut at = 0;
        let ethernet = ethernet(bytes, &mut at)?;
        frame.outer.ethernet = Some(ethernet);
        let mut ether_type = ethernet.ether_type;
        if MPLS.contains(&ether_type) {
            frame.mpls = labels(bytes, &mut at, Under::Ethernet);
            ether_type = by_version(bytes, at);
        }
        network(bytes, at, ether_type, &mut frame.outer);
        frame.look_inside(bytes);
        Some(frame)
    }

    fn look_inside(&mut self, bytes: &[u8]) {
        let at = self.outer.transport_at;
        match (self.outer.network, self.outer.transport) {
            (_, Some(Transport::Udp { dst: VXLAN_PORT, .. })) => self.vxlan(bytes, at + 8),
            (_, Some(Transport::Udp { dst: MPLS_PORT, .. })) => self.labelled(bytes, at + 8, Under::Udp),
            (Some(network), None) if network.protocol() == GRE && at > 0 => self.gre(bytes, at),
            _ => {}
        }
    }

    fn vxlan(&mut self, bytes: &[u8], mut at: usize) {
        let Some(vni) = be32(bytes, at + 4) else { return };
        self.tunnel = Some(Tunnel::Vxlan { vni: vni >> 8 });
        at += 8;
        self.bridged(bytes, at);
    }

    fn gre(&mut self, bytes: &[u8], mut at: usize) {
        const CHECKSUM: u16 = 1 << 15;
        const KEY: u16 = 1 << 13;
        const SEQUENCE: u16 = 1 << 12;
        let (Some(flags), Some(protocol)) = (be16(bytes, at), be16(bytes, at + 2)) else { return };
        at += 4 + if flags & CHECKSUM != 0 { 4 } else { 0 };
        let key = if flags & KEY != 0 { be32(bytes, at).unwrap_or(0) } else { 0 };
        at += if flags & KEY != 0 { 4 } else { 0 } + if flags & SEQUENCE != 0 { 4 } else { 0 };
        self.tunnel = Some(Tunnel::Gre { flags, protocol, key });
        match protocol {
            BRIDGED => self.bridged(bytes, at),
            _ if MPLS.contains(&protocol) => self.labelled(bytes, at, Under::Gre),
            _ => self.carried(bytes, at, protocol),
        }
    }

    fn labelled(&mut self, bytes: &[u8], mut at: usize, under: Under) {
        self.mpls = labels(bytes, &mut at, under);
        self.carried(bytes, at, by_version(bytes, at));
    }

    fn bridged(&mut self, bytes: &[u8], mut at: usize) {
        let mut layer = Layer::default();
        if let Some(found) = ethernet(bytes, &mut at) {
            layer.ethernet = Some(found);
            network(bytes, at, found.ether_type, &mut layer);
            self.inner = Some(layer);
        }
    }

    fn carried(&mut self, bytes: &[u8], at: usize, ether_type: u16) {
        let mut layer = Layer::default();
        network(bytes, at, ether_type, &mut layer);
        if layer.network.is_some() {
            self.inner = Some(layer);
        }
    }
}

fn ethernet(bytes: &[u8], at: &mut usize) -> Option<Ethernet> {
    let dst = array(bytes, *at)?;
    let src = array(bytes, *at + 6)?;
    let mut ether_type = be16(bytes, *at + 12)?;
    *at += ETHERNET_LEN;
    let mut vlan = None;
    while ether_type == VLAN || ether_type == VLAN_SERVICE {
        let (Some(tag), Some(next)) = (be16(bytes, *at), be16(bytes, *at + 2)) else { break };
        vlan = vlan.or(Some(tag));
        ether_type = next;
        *at += 4;
    }
    Some(Ethernet { dst, src, vlan, ether_type })
}

/// The first entry of a label stack; `at` moves behind the last.
fn labels(bytes: &[u8], at: &mut usize, under: Under) -> Option<Mpls> {
    const BOTTOM: u32 = 1 << 8;
    let first = be32(bytes, *at)?;
    let mut entry = first;
    *at += 4;
    while entry & BOTTOM == 0 {
        entry = be32(bytes, *at)?;
        *at += 4;
    }
    Some(Mpls { under, entry: first })
}

/// The type of the header below a label stack, by its IP version.
fn by_version(bytes: &[u8], at: usize) -> u16 {
    match bytes.get(at).map(|b| b >> 4) {
        Some(4) => IPV4,
        Some(6) => IPV6,
        _ => 0,
    }
}

fn network(bytes: &[u8], at: usize, ether_type: u16, layer: &mut Layer) {
    let found = match ether_type {
        IPV4 => ipv4(bytes, at, layer),
        IPV6 => ipv6(bytes, at, layer),
        _ => None,
    };
    if found.is_some() {
        layer.transport = transport(bytes, layer);
    }
}

fn ipv4(bytes: &[u8], at: usize, layer: &mut Layer) -> Option<()> {
    let header: [u8; 20] = array(bytes, at)?;
    let length = usize::from(header[0] & 15) * 4;
    if header[0] >> 4 != 4 || length < 20 {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    layer.network_at = at;
    layer.end = (at + total.max(length)).min(bytes.len());
    layer.transport_at = if fragment & 0x1fff == 0 { at + length } else { 0 };
    layer.network = Some(IpLayer::V4 {
        src: array(bytes, at + 12)?,
        dst: array(bytes, at + 16)?,
        protocol: header[9],
        tos: header[1],
        ttl: header[8],
        flags: header[6] >> 5,
    });
    Some(())
}

fn ipv6(bytes: &[u8], at: usize, layer: &mut Layer) -> Option<()> {
    const HEADER: usize = 40;
    const FRAGMENT: u8 = 44;
    let first = be32(bytes, at)?;
    let mut protocol = *bytes.get(at + 6)?;
    let (src, dst) = (array(bytes, at + 8)?, array(bytes, at + 24)?);
    if first >> 28 != 6 {
        return None;
    }
    layer.network_at = at;
    layer.end = (at + HEADER + usize::from(be16(bytes, at + 4)?)).min(bytes.len());
    let mut next = at + HEADER;
    let mut whole = true;
    // Hop-by-hop options, routing, fragment, destination options.
    while let 0 | 43 | FRAGMENT | 60 = protocol {
        let (Some(&following), Some(&length)) = (bytes.get(next), bytes.get(next + 1)) else { break };
        if protocol == FRAGMENT {
            whole &= be16(bytes, next + 2).is_some_and(|offset| offset >> 3 == 0);
            next += 8;
        } else {
            next += 8 + usize::from(length) * 8;
        }
        protocol = following;
    }
    layer.transport_at = if whole { next } else { 0 };
    layer.network = Some(IpLayer::V6 {
        src,
        dst,
        protocol,
        traffic_class: (first >> 20) as u8,
        hop_limit: *bytes.get(at + 7)?,
        flow_label: first & 0xf_ffff,
    });
    Some(())
}

fn transport(bytes: &[u8], layer: &Layer) -> Option<Transport> {
    let at = layer.transport_at;
    let bytes = bytes.get(..layer.end)?;
    let protocol = layer.network?.protocol();
    if at == 0 {
        return None;
    }
    Some(match protocol {
        // The whole of the fixed header has to be there.
        TCP if bytes.len() >= at + 20 => Transport::Tcp { src: be16(bytes, at)?, dst: be16(bytes, at + 2)? },
        UDP if bytes.len() >= at + 8 => Transport::Udp { src: be16(bytes, at)?, dst: be16(bytes, at + 2)? },
        ESP => Transport::Esp { spi: be32(bytes, at)?, seq: be32(bytes, at + 4)? },
        _ => return None,
    })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}
