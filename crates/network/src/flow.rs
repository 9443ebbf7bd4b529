//! The flow of a packet: what its source and destination make of its ICRC.

use ferroce_parts::LastFlow;
use ferroce_types::Datagram;
use ferroce_wire::ROCE_V2_PORT;
use ferroce_wire::icrc::Flow;
use std::net::IpAddr;

/// The IPv4 identification that a packet's ICRC was made for; `None` when the ICRC is wrong.
pub(crate) fn identification(datagram: &Datagram<'_>) -> Option<u16> {
    verify(&mut None, datagram)
}

/// Checks a packet's ICRC, and finds the IPv4 identification it was made for; `flow`: that of the packet before.
#[inline]
pub fn verify(flow: &mut LastFlow, datagram: &Datagram<'_>) -> Option<u16> {
    flow_of(flow, datagram)?.verify(datagram.bytes, datagram.segment)
}

/// What a packet's source and destination make of its ICRC; `None` for a source that sends no such packets. `flow`: that of the packet before.
#[inline]
pub fn flow_of(flow: &mut LastFlow, datagram: &Datagram<'_>) -> Option<Flow> {
    if let Some((source, destination, flow)) = flow
        && *source == datagram.source
        && *destination == datagram.destination
    {
        return Some(*flow);
    }
    let port = datagram.source.port();
    let new = match (datagram.source.ip().to_canonical(), datagram.destination.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Flow::v4(src, dst, port, ROCE_V2_PORT),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Flow::v6(src, dst, port, ROCE_V2_PORT),
        _ => return None,
    };
    *flow = Some((datagram.source, datagram.destination, new));
    Some(new)
}
