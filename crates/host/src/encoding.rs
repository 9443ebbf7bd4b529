//! How packets cross a UNIX datagram to the process that owns them: one record each.

use ferroce_types::{Datagram, HostAddr};
use ferroce_wire::MIN_PACKET_LEN;

/// Record: length (u32), source (16 address, 4 scope, 2 port), destination (16, 4), segment (u16), tos, ttl, has_ttl,
/// is_of_user, flow label (u32), then the packet. Host byte order: it never leaves the host.
pub(super) const RECORD_HEADER: usize = 4 + 22 + 20 + 2 + 4 + 4;

/// Appends a record to `blob`.
pub(super) fn encode(datagram: &Datagram<'_>, blob: &mut Vec<u8>) {
    blob.extend_from_slice(&(datagram.bytes.len() as u32).to_ne_bytes());
    let source = HostAddr::from(datagram.source);
    for address in [source, datagram.destination] {
        blob.extend_from_slice(&address.gid());
        blob.extend_from_slice(&address.scope_id().to_ne_bytes());
    }
    blob.extend_from_slice(&datagram.source.port().to_ne_bytes());
    blob.extend_from_slice(&datagram.segment.to_ne_bytes());
    let ttl = datagram.ttl.unwrap_or(0);
    blob.extend_from_slice(&[
        datagram.tos,
        ttl,
        u8::from(datagram.ttl.is_some()),
        u8::from(datagram.is_of_user),
    ]);
    blob.extend_from_slice(&datagram.flow_label.to_ne_bytes());
    blob.extend_from_slice(datagram.bytes);
}

/// Takes a record off the front of `blob`; `None` when it is empty or makes no sense.
pub(super) fn decode<'a>(blob: &mut &'a [u8]) -> Option<Datagram<'a>> {
    let (header, rest) = blob.split_first_chunk::<RECORD_HEADER>()?;
    let length = u32::from_ne_bytes(*header.first_chunk()?) as usize;
    let (bytes, rest) = rest.split_at_checked(length)?;
    if length < MIN_PACKET_LEN {
        return None;
    }
    let address = |at: usize| -> Option<HostAddr> {
        let scope = u32::from_ne_bytes(*header.get(at + 16..)?.first_chunk()?);
        Some(HostAddr::from_gid(*header.get(at..)?.first_chunk()?, scope))
    };
    let (source, destination) = (address(4)?, address(24)?);
    let port = u16::from_ne_bytes([header[44], header[45]]);
    let segment = u16::from_ne_bytes([header[46], header[47]]);
    let ttl = (header[50] != 0).then_some(header[49]);
    let flow_label = u32::from_ne_bytes(*header[52..].first_chunk()?);
    let source = source.with_port(port);
    let (tos, is_of_user) = (header[48], header[51] != 0);
    *blob = rest;
    Some(Datagram { source, destination, tos, ttl, flow_label, is_of_user, segment, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_damage_is_refused() {
        let mut blob = Vec::new();
        let (v4, v6) = ("10.0.0.1:5000", "[fe80::1%3]:49152");
        for (source, destination, ttl) in [(v4, "10.0.0.2", Some(0)), (v6, "fe80::9", None)] {
            let destination = HostAddr::new(destination.parse().unwrap(), 3);
            let bytes = &[0, 0, 0, 0, 0, 0xab, 0xcd, 0xef, 0, 0, 0, 0, 1, 2, 3, 4, 5];
            let source = source.parse().unwrap();
            let flow_label = 0x1_2345;
            let is_of_user = ttl.is_none();
            let datagram =
                Datagram { source, destination, tos: 0x6b, ttl, flow_label, is_of_user, segment: 513, bytes };
            encode(&datagram, &mut blob);
        }
        let mut rest = &blob[..];
        let first = decode(&mut rest).unwrap();
        assert_eq!((first.source, first.ttl, first.segment), (v4.parse().unwrap(), Some(0), 513));
        assert!(first.congestion_experienced() && !first.is_of_user);
        assert_eq!((first.dest_qpn(), first.flow_label), (0xabcdef, 0x1_2345));
        let second = decode(&mut rest).unwrap();
        assert_eq!((second.source, second.ttl), (v6.parse().unwrap(), None));
        assert!(second.is_of_user);
        assert_eq!(second.destination, HostAddr::new("fe80::9".parse().unwrap(), 3));
        assert!(rest.is_empty() && decode(&mut rest).is_none());
        for cut in 0..RECORD_HEADER + 17 {
            assert!(decode(&mut &blob[..cut]).is_none(), "cut at {cut}");
        }
        blob[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(decode(&mut &blob[..]).is_none());
    }
}
