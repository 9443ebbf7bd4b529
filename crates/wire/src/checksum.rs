//! The Internet checksum (RFC 1071) of IPv4, TCP and UDP headers in Ethernet frames.

use crate::frame::{IpLayer, Layer, Transport};

/// The one's complement sum of `bytes` as 16-bit words in network order, folded; a last odd byte is a word's first.
#[must_use]
pub fn sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    // Word order within the sum doesn't matter, byte order only for its result.
    let mut total: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    total += u64::from(u32::from_ne_bytes(last));
    u16::from_be(fold(total))
}

fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

fn add(parts: &[u16]) -> u16 {
    fold(parts.iter().map(|&part| u64::from(part)).sum())
}

/// The sum of the pseudo-header that TCP and UDP checksums cover besides their packet.
fn pseudo_header(network: &IpLayer, length: usize) -> u16 {
    let addresses = match network {
        IpLayer::V4 { src, dst, .. } => add(&[sum(src), sum(dst)]),
        IpLayer::V6 { src, dst, .. } => add(&[sum(src), sum(dst)]),
    };
    add(&[addresses, network.protocol().into(), (length >> 16) as u16, length as u16])
}

/// Where the checksum lies in a transport header.
const fn place(transport: &Transport) -> Option<usize> {
    match transport {
        Transport::Tcp { .. } => Some(16),
        Transport::Udp { .. } => Some(6),
        Transport::Esp { .. } => None,
    }
}

/// Are the checksums of the IPv4 header and of TCP or UDP right? `sealed`: that of TCP or UDP is known to be. A UDP
/// packet without one (0) has nothing to be wrong. Not for IPv6, nor for other packets: false.
#[must_use]
pub fn verify(frame: &[u8], layer: &Layer, sealed: bool) -> bool {
    let (Some(network @ IpLayer::V4 { .. }), Some(transport)) = (&layer.network, &layer.transport) else {
        return false;
    };
    let header = header_length(frame, layer);
    let whole = |range: core::ops::Range<usize>| frame.get(range).map(sum);
    if whole(layer.network_at..layer.network_at + header) != Some(0xffff) {
        return false;
    }
    let Some(at) = place(transport) else { return false };
    let packet = layer.transport_at..layer.end;
    let none = matches!(transport, Transport::Udp { .. })
        && frame.get(packet.start + at..packet.start + at + 2) == Some(&[0, 0]);
    let pseudo = pseudo_header(network, packet.len());
    sealed || none || whole(packet).is_some_and(|sum| add(&[sum, pseudo]) == 0xffff)
}

fn header_length(frame: &[u8], layer: &Layer) -> usize {
    frame.get(layer.network_at).map_or(0, |byte| usize::from(byte & 15) * 4)
}

/// Computes the checksum of an IPv4 header, and of TCP or UDP above IPv4 or IPv6. A fragment's TCP or UDP is left alone.
pub fn fill(frame: &mut [u8], layer: &Layer) {
    let Some(network) = &layer.network else { return };
    if let IpLayer::V4 { .. } = network {
        let end = layer.network_at + header_length(frame, layer);
        if let Some(header) = frame.get_mut(layer.network_at..end) {
            put(header, 10, 0, false);
        }
    }
    let fragment = matches!(network, IpLayer::V4 { flags, .. } if flags & 1 != 0);
    let (Some(transport), false) = (&layer.transport, fragment) else { return };
    let Some(at) = place(transport) else { return };
    if let Some(packet) = frame.get_mut(layer.transport_at..layer.end) {
        let pseudo = pseudo_header(network, packet.len());
        put(packet, at, pseudo, matches!(transport, Transport::Udp { .. }));
    }
}

/// Ends a checksum that has been begun: its place holds the sum of the pseudo-header, and it covers everything from
/// `start` on. `at` is its place from there.
pub fn complete(frame: &mut [u8], start: usize, at: usize) {
    let Some(packet) = frame.get_mut(start..) else { return };
    let Some(place) = packet.get(at..at + 2) else { return };
    let begun = u16::from_be_bytes([place[0], place[1]]);
    put(packet, at, begun, true);
}

/// Writes the checksum of `packet` at `at`. `nonzero`: 0 would mean that there is none.
fn put(packet: &mut [u8], at: usize, more: u16, nonzero: bool) {
    let Some(place) = packet.get_mut(at..at + 2) else { return };
    place.fill(0);
    let sum = !add(&[sum(packet), more]);
    let sum = if nonzero && sum == 0 { 0xffff } else { sum };
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}
