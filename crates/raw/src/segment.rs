//! Frames that the kernel has merged, or not yet cut, taken apart as they are on a wire.

use ferroce_wire::checksum;
use ferroce_wire::frame::{Frame, IpLayer, Layer, Transport};

const FIN_AND_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Calls `f` with each segment of at most `size` bytes of TCP or UDP payload. What has no such payload stays whole.
pub(super) fn segments(frame: &[u8], size: usize, f: &mut dyn FnMut(&[u8])) {
    let Some((headers, payload_at)) = shape(frame).filter(|_| size > 0) else { return f(frame) };
    let layer = headers.outer;
    let payload = &frame[payload_at..layer.end];
    let count = payload.len().div_ceil(size);
    let mut segment = Vec::with_capacity(payload_at + size);
    for (index, part) in payload.chunks(size).enumerate() {
        segment.clear();
        segment.extend_from_slice(&frame[..payload_at]);
        segment.extend_from_slice(part);
        finish(&mut segment, &layer, index, index * size, index + 1 == count);
        f(&segment);
    }
}

/// Makes the headers of a segment, which are still those of the whole, its own: it is the one with this index, whose payload
/// begins at `offset` of the whole's.
pub(super) fn finish(segment: &mut [u8], layer: &Layer, index: usize, offset: usize, last: bool) {
    let length = segment.len() - layer.network_at;
    let ip = &mut segment[layer.network_at..];
    if let Some(IpLayer::V4 { .. }) = layer.network {
        ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(index as u16);
        ip[4..6].copy_from_slice(&id.to_be_bytes());
    } else {
        ip[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
    }
    let above = &mut segment[layer.transport_at..];
    if let Some(Transport::Udp { .. }) = layer.transport {
        let length = above.len() as u16;
        above[4..6].copy_from_slice(&length.to_be_bytes());
    } else {
        let sequence = u32::from_be_bytes([above[4], above[5], above[6], above[7]]);
        above[4..8].copy_from_slice(&sequence.wrapping_add(offset as u32).to_be_bytes());
        above[13] &= !(if index > 0 { CWR } else { 0 } | if last { 0 } else { FIN_AND_PSH });
    }
    let end = segment.len();
    checksum::fill(segment, &Layer { end, ..*layer });
}

/// The headers, and where the payload begins.
fn shape(frame: &[u8]) -> Option<(Frame, usize)> {
    let headers = Frame::parse(frame)?;
    let at = headers.outer.transport_at;
    let length = match headers.outer.transport? {
        Transport::Tcp { .. } => usize::from(frame.get(at + 12)? >> 4) * 4,
        Transport::Udp { .. } => 8,
        Transport::Esp { .. } => return None,
    };
    (length >= 8 && at + length < headers.outer.end).then_some((headers, at + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet, IPv4 and TCP around this payload.
    fn tcp(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend_from_slice(&[8, 0, 0x45, 0]);
        frame.extend_from_slice(&(40 + payload.len() as u16).to_be_bytes());
        frame.extend_from_slice(&[0, 7, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend_from_slice(&[
            0, 1, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0x50, 0x99, 1, 0, 0, 0, 0, 0,
        ]);
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn segments_of_tcp_are_whole_packets_with_right_checksums() {
        let payload: Vec<u8> = (0..250u8).collect();
        let mut got = Vec::new();
        let mut found = Vec::new();
        segments(&tcp(&payload), 100, &mut |segment| {
            let parsed = Frame::parse(segment).unwrap();
            assert!(checksum::verify(segment, &parsed.outer, false));
            found.push((segment[19], segment[38..42] == [0, 0, 0, 99], segment[47]));
            got.extend_from_slice(&segment[54..]);
        });
        assert_eq!(got, payload);
        // Identification counts up; the sequence number has wrapped after the first byte; CWR first, PSH and FIN last.
        assert_eq!(found, [(7, false, 0x90), (8, true, 0x10), (9, false, 0x19)]);
    }

    #[test]
    fn what_cannot_be_cut_stays_whole() {
        let mut calls = 0;
        segments(&[0; 60], 10, &mut |whole| {
            assert_eq!(whole.len(), 60);
            calls += 1;
        });
        segments(&tcp(b""), 10, &mut |_| calls += 1);
        assert_eq!(calls, 2);
    }
}
