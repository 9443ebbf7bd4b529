//! Packets for tests.

use ferroce_types::Datagram;
use ferroce_udp::{Dest, TxBatch};
use ferroce_wire::crc::extend;
use ferroce_wire::icrc::Flow;
use ferroce_wire::{Bth, Headers, Opcode, Operation, Packet, ROCE_V2_PORT, Reth, Service};
use std::net::IpAddr;

pub fn headers(operation: Operation, qpn: u32, psn: u32) -> Headers {
    let opcode = Opcode::new(Service::Rc, operation).unwrap();
    let mut headers = Headers::new(Bth::new(opcode, qpn, psn));
    if operation == Operation::WriteFirst {
        headers.reth = Some(Reth { va: 0x1000, rkey: 7, dma_len: 1 << 20 });
    }
    headers
}

/// The payload that a packet of this PSN and length has.
pub fn payload(psn: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (psn as usize * 31 + i * 7) as u8).collect()
}

pub fn push(batch: &mut TxBatch, dest: &Dest, operation: Operation, qpn: u32, psn: u32, len: usize) {
    batch
        .packet(dest, &headers(operation, qpn, psn), len, |buffer, crc| {
            buffer.copy_from_slice(&payload(psn, len));
            Ok::<_, ()>(extend(crc, buffer))
        })
        .unwrap();
}

/// Checks the ICRC and the payload of a packet made by [`push`]; the IPv4 identification that its ICRC is for.
pub fn identification(datagram: &Datagram<'_>) -> Option<u16> {
    let port = datagram.source.port();
    let flow = match (datagram.source.ip(), datagram.destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Flow::v4(from, to, port, ROCE_V2_PORT),
        (IpAddr::V6(from), IpAddr::V6(to)) => Flow::v6(from, to, port, ROCE_V2_PORT),
        _ => return None,
    };
    let packet = Packet::parse(datagram.bytes).ok()?;
    let right = packet.payload == payload(packet.headers.bth.psn, packet.payload.len());
    flow.verify(datagram.bytes, datagram.segment).filter(|_| right)
}
