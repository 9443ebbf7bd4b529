//! Port attributes that follow from the network interface (ibv_query_port(3)).

use super::gid::GID_TABLE_LEN;
use super::interface::Netdev;
use super::link_layer::{Lids, LinkLayer};

/// Largest path MTU in bytes that the transport knows.
pub const MAX_MTU: u32 = 4096;
/// Smallest one.
const MIN_MTU: u32 = 256;
/// IPv6 and UDP headers, BTH, the longest extension headers and the ICRC: what rxe and adapters reserve.
const HEADROOM: u32 = 80;
/// Mbit/s assumed for an interface that reports no speed: about that of paravirtual adapters.
const DEFAULT_MBPS: u32 = 10_000;
/// Mbit/s taken for `lo`, which is memory.
const LOOPBACK_MBPS: u32 = 100_000;

/// `enum ibv_port_state`, those that an Ethernet port has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// `IBV_PORT_DOWN`
    Down = 1,
    /// `IBV_PORT_ACTIVE`
    Active = 4,
}

/// Attributes of a device's one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAttributes {
    /// Whether it can carry packets.
    pub state: PortState,
    /// Physical state as the architecture numbers it: 5 link up, 3 disabled.
    pub phys_state: u8,
    /// Largest path MTU that fits the interface, in bytes.
    pub active_mtu: u32,
    /// [`MAX_MTU`].
    pub max_mtu: u32,
    /// Speed and width.
    pub speed: LinkSpeed,
    /// The interface's speed in Mbit/s.
    pub mbps: u32,
    /// What programs see it as.
    pub link_layer: LinkLayer,
    /// On InfiniBand, unless its address has no LID.
    pub lids: Option<Lids>,
    /// 1: the default partition only.
    pub pkey_tbl_len: u16,
    /// [`GID_TABLE_LEN`].
    pub gid_tbl_len: u32,
}

/// A rate the way ibv_query_port(3) encodes it: lanes × speed of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkSpeed {
    /// `active_width`: 1 is one lane, 2 four, 4 eight, 8 twelve, 16 two.
    pub width: u8,
    /// `active_speed`: 1 SDR (2.5 Gbit/s a lane), 2 DDR, 4 QDR, 8 FDR-10, 16 FDR, 32 EDR, 64 HDR, 128 NDR, 256 XDR.
    pub speed: u16,
}

/// Rates in Mbit/s with their encoding, in the combinations that Ethernet adapters report.
const SPEEDS: [(u32, LinkSpeed); 10] = [
    (2_500, LinkSpeed { width: 1, speed: 1 }),
    (5_000, LinkSpeed { width: 1, speed: 2 }),
    (10_000, LinkSpeed { width: 1, speed: 4 }),
    (25_000, LinkSpeed { width: 1, speed: 32 }),
    (40_000, LinkSpeed { width: 2, speed: 4 }),
    (50_000, LinkSpeed { width: 16, speed: 32 }),
    (100_000, LinkSpeed { width: 2, speed: 32 }),
    (200_000, LinkSpeed { width: 2, speed: 64 }),
    (400_000, LinkSpeed { width: 2, speed: 128 }),
    (800_000, LinkSpeed { width: 2, speed: 256 }),
];

impl LinkSpeed {
    /// The encoding of a rate in Mbit/s: the smallest that isn't below it, else the largest.
    #[must_use]
    pub fn from_mbps(mbps: u32) -> Self {
        let fits = SPEEDS.iter().find(|(rate, _)| *rate >= mbps);
        fits.unwrap_or(&SPEEDS[SPEEDS.len() - 1]).1
    }
}

impl PortAttributes {
    /// The attributes of the port on `netdev`.
    #[must_use]
    pub fn of(netdev: &Netdev) -> Self {
        Self::on(LinkLayer::current(), netdev)
    }

    /// As on this link layer.
    fn on(link_layer: LinkLayer, netdev: &Netdev) -> Self {
        let (state, phys_state) = if netdev.is_up() { (PortState::Active, 5) } else { (PortState::Down, 3) };
        let default = if netdev.is_loopback() { LOOPBACK_MBPS } else { DEFAULT_MBPS };
        let mbps = netdev.speed_mbps.unwrap_or(default);
        Self {
            state,
            phys_state,
            active_mtu: active_mtu(netdev.mtu),
            max_mtu: MAX_MTU,
            speed: LinkSpeed::from_mbps(mbps),
            mbps,
            link_layer,
            lids: link_layer.is_infiniband().then(|| Lids::of(netdev)).flatten(),
            pkey_tbl_len: 1,
            gid_tbl_len: GID_TABLE_LEN as u32,
        }
    }

    /// Its LID; 0: it has none.
    #[must_use]
    pub fn lid(&self) -> u16 {
        self.lids.map_or(0, |lids| lids.own())
    }

    /// The LID of the subnet manager; 0: there is none.
    #[must_use]
    pub fn sm_lid(&self) -> u16 {
        self.lids.map_or(0, |lids| lids.subnet_manager())
    }

    /// `IBV_PORT_CM_SUP`, and on Ethernet `IBV_PORT_IP_BASED_GIDS`.
    #[must_use]
    pub fn capabilities(&self) -> u32 {
        match self.link_layer {
            LinkLayer::Ethernet => 1 << 16 | 1 << 26,
            LinkLayer::InfiniBand => 1 << 16,
        }
    }
}

/// The speed that a port last had while it was active, in Mbit/s. One that is down has none.
#[derive(Clone, Copy, Default, Debug)]
pub struct LastSpeed(Option<u32>);

impl LastSpeed {
    /// Takes over the port's attributes. True when its speed is another than before.
    pub fn update(&mut self, port: &PortAttributes) -> bool {
        if port.state != PortState::Active {
            return false;
        }
        self.0.replace(port.mbps).is_some_and(|before| before != port.mbps)
    }
}

/// The largest path MTU that fits an interface of this MTU: `mtu - 80`, rounded down to 256, 512, 1024, 2048 or
/// 4096. An interface too small even for 256 gives 256; its packets are then fragmented or refused by the system.
#[must_use]
pub fn active_mtu(netdev_mtu: u32) -> u32 {
    let room = netdev_mtu.saturating_sub(HEADROOM).clamp(MIN_MTU, MAX_MTU);
    1 << room.ilog2()
}

#[cfg(test)]
mod tests {
    use super::super::interface::tests::netdev;
    use super::*;

    #[test]
    fn active_mtu_leaves_room_for_headers() {
        for (mtu, active) in [
            (0, 256),
            (68, 256),
            (591, 256),
            (592, 512),
            (1280, 1024),
            (1500, 1024),
            (2127, 1024),
            (2128, 2048),
            (4175, 2048),
            (4176, 4096),
            (9000, 4096),
            (65536, 4096),
            (u32::MAX, 4096),
        ] {
            assert_eq!(active_mtu(mtu), active, "interface of {mtu}");
        }
    }

    #[test]
    fn speed_is_never_reported_below_the_interface_unless_it_is_beyond_the_encoding() {
        assert_eq!(LinkSpeed::from_mbps(1_000), LinkSpeed { width: 1, speed: 1 });
        assert_eq!(LinkSpeed::from_mbps(10_000), LinkSpeed { width: 1, speed: 4 });
        assert_eq!(LinkSpeed::from_mbps(20_000), LinkSpeed { width: 1, speed: 32 });
        assert_eq!(LinkSpeed::from_mbps(100_000), LinkSpeed { width: 2, speed: 32 });
        assert_eq!(LinkSpeed::from_mbps(u32::MAX), LinkSpeed { width: 2, speed: 256 });
    }

    #[test]
    fn speed_has_changed_when_an_active_port_has_another_than_the_last_time_it_was_active() {
        let mut eth0 = netdev("eth0", 2, &["10.0.0.1"]);
        let up = eth0.flags;
        let mut last = LastSpeed::default();
        for (mbps, flags, changed) in [
            (Some(10_000), up, false),
            (Some(10_000), up, false),
            (None, 0, false),
            (Some(10_000), up, false),
            (None, 0, false),
            (Some(25_000), up, true),
            (Some(1_000), up, true),
        ] {
            (eth0.speed_mbps, eth0.flags) = (mbps, flags);
            assert_eq!(last.update(&PortAttributes::of(&eth0)), changed, "{mbps:?}");
        }
    }

    #[test]
    fn only_a_port_of_infiniband_has_lids() {
        let eth0 = netdev("eth0", 2, &["10.0.0.7"]);
        let port = PortAttributes::on(LinkLayer::InfiniBand, &eth0);
        assert_eq!((port.lid(), port.sm_lid(), port.capabilities()), (7, 1, 1 << 16));
        let port = PortAttributes::on(LinkLayer::Ethernet, &eth0);
        assert_eq!((port.lid(), port.sm_lid(), port.capabilities()), (0, 0, 0x0401_0000));
        let without = PortAttributes::on(LinkLayer::InfiniBand, &netdev("eth0", 2, &["fe80::1"]));
        assert_eq!((without.lid(), without.sm_lid()), (0, 0));
    }

    #[test]
    fn port_is_active_only_with_carrier() {
        let mut eth0 = netdev("eth0", 2, &["10.0.0.1"]);
        let up = PortAttributes::of(&eth0);
        assert_eq!((up.state, up.phys_state, up.active_mtu), (PortState::Active, 5, 1024));
        for (flags, operstate) in [
            (0, libc::IF_OPER_DOWN),
            (libc::IFF_UP, libc::IF_OPER_DOWN),
            (libc::IFF_UP | libc::IFF_RUNNING, libc::IF_OPER_DORMANT),
        ] {
            (eth0.flags, eth0.operstate) = (flags as u32, operstate as u8);
            let down = PortAttributes::of(&eth0);
            assert_eq!((down.state, down.phys_state), (PortState::Down, 3));
        }
    }
}
