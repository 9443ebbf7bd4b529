//! Links and switches: each link has a queue, a rate and a delay.

use crate::host::SimContent;
use ferroce_proto::Payload as _;
use ferroce_wire::Headers;

/// What a packet has on the wire beside headers and payload of RoCEv2: preamble, Ethernet, IPv4, UDP, and the gap after it.
const AROUND: u64 = 8 + 14 + 20 + 8 + 4 + 12;

/// Hosts, leaf switches and spine switches. Each leaf has a link to each spine.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Leaf switches.
    pub leaves: u32,
    /// Hosts of each leaf.
    pub hosts_of_leaf: u32,
    /// Spine switches.
    pub spines: u32,
}

impl Shape {
    /// Hosts in all.
    #[must_use]
    pub const fn hosts(&self) -> u32 {
        self.leaves * self.hosts_of_leaf
    }
}

/// Rates, delays and buffers, the same for all links.
#[derive(Clone, Copy, Debug)]
pub struct LinkSizes {
    /// Bits per nanosecond, which is Gbit/s.
    pub rate: f64,
    /// Nanoseconds from a host to its leaf, with what the host takes.
    pub to_host: u64,
    /// Nanoseconds from a leaf to a spine.
    pub to_spine: u64,
    /// Bytes that a switch keeps for a link.
    pub buffer: u64,
    /// Bytes in that queue from which on packets are marked.
    pub mark: u64,
    /// Bytes that a connection may have in flight: its share of what the peer's socket holds.
    pub socket: u32,
}

impl LinkSizes {
    /// Links of 25 Gbit/s with a round trip of 10 µs.
    pub const DATA_CENTER: Self =
        Self { rate: 25.0, to_host: 2000, to_spine: 500, buffer: 512 << 10, mark: 64 << 10, socket: 1 << 20 };

    /// The same with a round trip of a millisecond, and one QP's share of a socket of the default size.
    pub const LONG_PATH: Self = Self { to_spine: 248_000, socket: 208 << 10, ..Self::DATA_CENTER };

    /// Nanoseconds that `bytes` take on a link.
    #[must_use]
    pub fn time_of(&self, bytes: u64) -> u64 {
        (bytes as f64 * 8.0 / self.rate).ceil() as u64
    }

    /// Nanoseconds there and back through a spine, for packets without bytes.
    #[must_use]
    pub const fn round_trip(&self) -> u64 {
        4 * (self.to_host + self.to_spine)
    }
}

/// A packet on its way.
#[derive(Clone, Debug)]
pub(crate) struct FabricPacket {
    pub(crate) headers: Headers,
    pub(crate) content: SimContent,
    pub(crate) to: u32,
    /// Which of several ways it takes: that of all packets of its flow.
    pub(crate) way: u32,
    /// A switch may mark it, and has.
    pub(crate) is_markable: bool,
    pub(crate) is_marked: bool,
}

impl FabricPacket {
    pub(crate) fn bytes(&self) -> u64 {
        self.headers.packet_len(self.content.payload().len()) as u64 + AROUND
    }
}

/// Where a link ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum NetworkNode {
    Host(u32),
    Leaf(u32),
    Spine(u32),
}

/// One direction of a link. It sends in order: how much waits follows from the end of what it has taken.
#[derive(Clone, Debug)]
struct FabricLink {
    to: NetworkNode,
    delay: u64,
    /// When the last of its packets has left.
    free: u64,
    /// Packets lost by the link, in a million.
    lost: u32,
}

/// What became of a packet at the beginning of a link.
pub(crate) enum Forwarded {
    /// It arrives there then.
    Arrives(NetworkNode, u64),
    /// The queue had no room.
    Dropped,
    /// The link has lost it.
    Lost,
}

/// All links.
pub(crate) struct FabricLinks {
    shape: Shape,
    sizes: LinkSizes,
    links: Vec<FabricLink>,
    pub(crate) marked: u64,
}

impl FabricLinks {
    pub(crate) fn new(shape: Shape, sizes: LinkSizes) -> Self {
        let Shape { leaves, hosts_of_leaf, spines } = shape;
        let link = |to, delay| FabricLink { to, delay, free: 0, lost: 0 };
        let mut links = Vec::new();
        links.extend(
            (0..shape.hosts()).map(|host| link(NetworkNode::Leaf(host / hosts_of_leaf), sizes.to_host)),
        );
        links.extend((0..shape.hosts()).map(|host| link(NetworkNode::Host(host), sizes.to_host)));
        for leaf in 0..leaves {
            links.extend((0..spines).map(|spine| link(NetworkNode::Spine(spine), sizes.to_spine)));
            links.extend((0..spines).map(|_| link(NetworkNode::Leaf(leaf), sizes.to_spine)));
        }
        Self { shape, sizes, links, marked: 0 }
    }

    /// Has the link from a leaf to a spine lose so many of a million packets, in both directions.
    pub(crate) fn lose(&mut self, leaf: u32, spine: u32, in_a_million: u32) {
        for up in [true, false] {
            let link = self.between(leaf, spine, up);
            self.links[link].lost = in_a_million;
        }
    }

    fn between(&self, leaf: u32, spine: u32, up: bool) -> usize {
        let Shape { spines, .. } = self.shape;
        let side = if up { 0 } else { spines };
        (2 * self.shape.hosts() + 2 * spines * leaf + side + spine) as usize
    }

    /// The link that a packet takes from a place.
    fn next(&self, at: NetworkNode, packet: &FabricPacket) -> usize {
        let leaf_of = |host| host / self.shape.hosts_of_leaf;
        match at {
            NetworkNode::Host(host) => host as usize,
            NetworkNode::Leaf(leaf) if leaf == leaf_of(packet.to) => {
                (self.shape.hosts() + packet.to) as usize
            }
            NetworkNode::Leaf(leaf) => self.between(leaf, packet.way % self.shape.spines, true),
            NetworkNode::Spine(spine) => self.between(leaf_of(packet.to), spine, false),
        }
    }

    /// Bytes that wait at a host's own link.
    pub(crate) fn backlog_of_host(&self, host: u32, now: u64) -> u64 {
        self.waiting(host as usize, now)
    }

    fn waiting(&self, link: usize, now: u64) -> u64 {
        (self.links[link].free.saturating_sub(now) as f64 * self.sizes.rate / 8.0) as u64
    }

    /// Sends a packet on from a place. `chance` returns a number below a million.
    pub(crate) fn send(
        &mut self,
        now: u64,
        at: NetworkNode,
        packet: &mut FabricPacket,
        chance: impl FnOnce() -> u32,
    ) -> Forwarded {
        let link = self.next(at, packet);
        // A host waits instead (`World`).
        if !matches!(at, NetworkNode::Host(_)) {
            let waiting = self.waiting(link, now);
            if waiting + packet.bytes() > self.sizes.buffer {
                return Forwarded::Dropped;
            }
            if waiting > self.sizes.mark && packet.is_markable && !packet.is_marked {
                packet.is_marked = true;
                self.marked += 1;
            }
        }
        let time = self.sizes.time_of(packet.bytes());
        let FabricLink { to, delay, free, lost } = &mut self.links[link];
        *free = now.max(*free) + time;
        if *lost > 0 && chance() < *lost { Forwarded::Lost } else { Forwarded::Arrives(*to, *free + *delay) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_wire::{Bth, Opcode};

    const SHAPE: Shape = Shape { leaves: 2, hosts_of_leaf: 2, spines: 2 };
    const SIZES: LinkSizes =
        LinkSizes { rate: 8.0, to_host: 100, to_spine: 10, buffer: 10_000, mark: 3000, socket: 1 << 20 };

    fn packet(to: u32, way: u32) -> FabricPacket {
        let headers = Headers::new(Bth::new(Opcode::CNP, 0, 0));
        FabricPacket {
            headers,
            content: SimContent::Length(1000),
            to,
            way,
            is_markable: true,
            is_marked: false,
        }
    }

    fn way(network: &mut FabricLinks, mut packet: FabricPacket) -> (Vec<NetworkNode>, u64) {
        let (mut places, mut now) = (vec![NetworkNode::Host(0)], 0);
        while let Some(&at) = places.last()
            && at != NetworkNode::Host(packet.to)
        {
            let Forwarded::Arrives(next, then) = network.send(now, at, &mut packet, || 0) else {
                panic!("{places:?}")
            };
            places.push(next);
            now = then;
        }
        (places, now)
    }

    #[test]
    fn a_packet_takes_the_spine_of_its_flow_and_none_within_a_leaf() {
        use NetworkNode::{Host, Leaf, Spine};
        let bytes = packet(3, 1).bytes();
        for spine in 0..2 {
            let mut network = FabricLinks::new(SHAPE, SIZES);
            let (places, time) = way(&mut network, packet(3, spine + 4));
            assert_eq!(places, [Host(0), Leaf(0), Spine(spine), Leaf(1), Host(3)]);
            assert_eq!(time, 4 * bytes + SIZES.round_trip() / 2);
        }
        let (places, _) = way(&mut FabricLinks::new(SHAPE, SIZES), packet(1, 0));
        assert_eq!(places, [Host(0), Leaf(0), Host(1)]);
    }

    #[test]
    fn a_full_queue_marks_and_then_drops() {
        let mut network = FabricLinks::new(SHAPE, SIZES);
        let mut marks = Vec::new();
        let dropped = (0..20).find(|_| {
            let mut packet = packet(3, 0);
            let taken = network.send(0, NetworkNode::Leaf(0), &mut packet, || 0);
            marks.push(packet.is_marked);
            matches!(taken, Forwarded::Dropped)
        });
        let (bytes, dropped) = (packet(3, 0).bytes(), dropped.unwrap());
        assert_eq!(dropped, SIZES.buffer / bytes);
        let first = marks.iter().position(|&marked| marked).unwrap() as u64;
        assert_eq!(first, SIZES.mark / bytes + 1);
        assert_eq!(network.marked, dropped - first);
        // The other spine's link is empty.
        assert!(matches!(
            network.send(0, NetworkNode::Leaf(0), &mut packet(3, 1), || 0),
            Forwarded::Arrives(NetworkNode::Spine(1), _)
        ));
    }

    #[test]
    fn a_link_loses_as_often_as_it_is_told() {
        let mut network = FabricLinks::new(SHAPE, SIZES);
        network.lose(0, 1, 10);
        let mut send = |way, chance| {
            network.send(u64::from(chance) << 30, NetworkNode::Leaf(0), &mut packet(3, way), || chance)
        };
        assert!(matches!(send(1, 9), Forwarded::Lost));
        assert!(matches!(send(1, 10), Forwarded::Arrives(..)));
        assert!(matches!(send(0, 9), Forwarded::Arrives(..)));
    }
}
