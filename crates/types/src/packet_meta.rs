//! What the network layer reports about a packet: addresses, TOS, TTL.

use std::net::IpAddr;

/// A flow label has 20 bits.
pub const MAX_FLOW_LABEL: u32 = 0xf_ffff;

/// Network-layer facts of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketMeta {
    /// The sender's address.
    pub src: IpAddr,
    /// The receiver's address, or that of a multicast group.
    pub dst: IpAddr,
    /// Type of service or traffic class, with the two ECN bits.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// IPv6: 20 bits.
    pub flow_label: u32,
    /// Bytes of the UDP payload.
    pub len: u16,
    /// The UDP port that it has come from; 0 if it hasn't come by UDP.
    pub source_port: u16,
}

/// Whether adapters or the kernel's soft RoCE send from this UDP port: annex A17 has them distinguish flows by 0xc000 to 0xffff, and `bnxt_re`
/// in Linux sends from 0x8cd1. Ferroce sends from other ports, where the machine has some.
#[must_use]
pub const fn is_adapter_port(port: u16) -> bool {
    matches!(port, 0xc000.. | 0x8cd1)
}

impl PacketMeta {
    /// It has come from a UDP port that adapters and the kernel's soft RoCE don't send from: see [`is_adapter_port`].
    #[must_use]
    pub const fn of_no_adapter(&self) -> bool {
        self.source_port != 0 && !is_adapter_port(self.source_port)
    }

    /// The longest UDP payload: with its UDP and IPv4 headers a longer payload couldn't be a packet.
    pub const MAX_LEN: u16 = u16::MAX - 28;

    /// The facts of a packet with so many bytes from BTH to ICRC. A packet that is too long for a network, because it never
    /// meets one, counts as the longest one.
    #[must_use]
    #[inline]
    pub fn with_len(&self, len: usize) -> Self {
        let len = u16::try_from(len).map_or(Self::MAX_LEN, |len| len.min(Self::MAX_LEN));
        Self { len, ..*self }
    }
}
