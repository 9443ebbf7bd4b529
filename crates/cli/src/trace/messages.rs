//! Packets of a capture as messages: a line for each message, and for each response that isn't a plain acknowledgement.

use super::packet::{CapturedPacket, PacketDirection};
use ferroce_wire::Operation;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

/// Messages that are under way at a time; of more, the beginning isn't remembered.
const MOST: usize = 1 << 16;

/// A message, or an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct PacketMessage {
    /// Seconds since the capture's first packet.
    pub at: f64,
    pub way: PacketDirection,
    pub from: IpAddr,
    pub to: IpAddr,
    /// The queue pair that it is for.
    pub number: u32,
    pub operation: &'static str,
    pub bytes: u64,
    /// Packets that it has come in.
    pub packets: u64,
    /// Of its last packet.
    pub psn: u32,
    /// Address and key of the memory that it names.
    pub remote: Option<(u64, u32)>,
    /// The error in a response.
    pub refusal: Option<&'static str>,
    /// Its first packets aren't in the capture.
    pub incomplete: bool,
    /// It does nothing but acknowledge.
    pub acknowledges: bool,
}

/// Between whom a message is under way.
type Flow = (PacketDirection, IpAddr, IpAddr, u32, bool);

/// Messages of which not all packets have come yet.
#[derive(Default)]
pub struct MessageTracker(HashMap<Flow, PacketMessage>);

impl MessageTracker {
    /// Takes a packet. Returns the message that it ends.
    pub fn packet(&mut self, packet: &CapturedPacket) -> Option<PacketMessage> {
        let CapturedPacket { at, way, from, to, headers, len, operation, begins, ends, refusal } = *packet;
        let flow = (way, from, to, headers.bth.dest_qp, headers.bth.opcode.is_response());
        let mut message = match self.0.remove(&flow) {
            Some(message) if !begins => message,
            _ => PacketMessage {
                at,
                way,
                from,
                to,
                number: headers.bth.dest_qp,
                operation,
                bytes: 0,
                packets: 0,
                psn: headers.bth.psn,
                remote: packet.remote(),
                refusal,
                incomplete: !begins,
                acknowledges: packet.acknowledges(),
            },
        };
        message.operation = operation;
        message.bytes += match (headers.bth.opcode.operation, &headers.reth) {
            // It asks for as many.
            (Operation::ReadRequest, Some(reth)) => u64::from(reth.dma_len),
            _ => len as u64,
        };
        message.packets += 1;
        message.psn = headers.bth.psn;
        if ends {
            return Some(message);
        }
        if self.0.len() < MOST {
            self.0.insert(flow, message);
        }
        None
    }
}

impl fmt::Display for PacketMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, way, from, to, number, operation, bytes, packets, psn, .. } = self;
        write!(f, "{at:12.6} {way:3} {from} > {to} QP {number:#08x} ")?;
        match self.refusal {
            Some(refusal) if self.acknowledges => write!(f, "NAK: {refusal}")?,
            Some(refusal) => write!(f, "{operation}: {refusal}")?,
            None if self.acknowledges => f.write_str("ACK")?,
            None => {
                let plural = if *packets == 1 { "" } else { "s" };
                write!(f, "{operation}, {bytes} bytes in {packets} packet{plural}")?;
            }
        }
        write!(f, ", PSN {psn}")?;
        if let Some((va, rkey)) = self.remote {
            write!(f, ", at {va:#x} by key {rkey:#x}")?;
        }
        f.write_str(if self.incomplete { ", its beginning is missing" } else { "" })
    }
}

impl PacketMessage {
    /// For scripts.
    pub fn to_json(&self) -> Value {
        json!({
            "seconds": self.at,
            "direction": self.way.to_string(),
            "from": self.from,
            "to": self.to,
            "qp": self.number,
            "operation": self.operation,
            "bytes": self.bytes,
            "packets": self.packets,
            "psn": self.psn,
            "address": self.remote.map(|(va, _)| va),
            "rkey": self.remote.map(|(_, rkey)| rkey),
            "refusal": self.refusal,
            "incomplete": self.incomplete,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::packet::tests::packet;
    use ferroce_wire::{NakCode, Syndrome};

    /// Takes an IP packet.
    fn take(
        messages: &mut MessageTracker,
        at: f64,
        way: PacketDirection,
        bytes: &[u8],
    ) -> Option<PacketMessage> {
        messages.packet(&CapturedPacket::of(at, way, bytes)?)
    }

    #[test]
    fn packets_of_a_message_are_one_line() {
        let mut messages = MessageTracker::default();
        let mut line_of = |operation, psn, payload| {
            take(&mut messages, 0.5, PacketDirection::Out, &packet(operation, psn, None, payload))
                .map(|m| m.to_string())
        };
        assert_eq!(line_of(Operation::SendFirst, 7, 1024), None);
        assert_eq!(line_of(Operation::SendMiddle, 8, 1024), None);
        let line = "    0.500000 out 10.0.0.1 > 10.0.0.2 QP 0x123456 SEND, 2052 bytes in 3 packets, PSN 9";
        assert_eq!(line_of(Operation::SendLast, 9, 4).unwrap(), line);
        assert!(
            line_of(Operation::SendLast, 12, 4)
                .unwrap()
                .ends_with("4 bytes in 1 packet, PSN 12, its beginning is missing")
        );
    }

    #[test]
    fn what_is_refused_is_named() {
        let mut messages = MessageTracker::default();
        let nak = Some(Syndrome::Nak(NakCode::RemoteAccessError));
        let message =
            take(&mut messages, 0.0, PacketDirection::In, &packet(Operation::Acknowledge, 3, nak, 0))
                .unwrap();
        assert!(message.to_string().ends_with("QP 0x123456 NAK: remote access error, PSN 3"), "{message}");
        assert_eq!(message.to_json()["refusal"], "remote access error");
        assert!(
            take(&mut messages, 0.0, PacketDirection::In, &packet(Operation::Acknowledge, 3, nak, 4))
                .is_none()
        );
        assert!(
            take(&mut messages, 0.0, PacketDirection::In, &packet(Operation::Acknowledge, 3, nak, 2))
                .is_some()
        );
        let ack = take(
            &mut messages,
            0.0,
            PacketDirection::In,
            &packet(Operation::Acknowledge, 4, Some(Syndrome::ACK_UNLIMITED), 0),
        );
        assert!(ack.unwrap().to_string().ends_with(" ACK, PSN 4"));
    }

    #[test]
    fn whatever_else_is_in_a_capture_is_passed_over() {
        let mut messages = MessageTracker::default();
        let good = packet(Operation::SendOnly, 1, None, 8);
        for len in 0..good.len() - 12 {
            // Only what is cut off behind the headers has a length that is known.
            assert_eq!(
                take(&mut messages, 0.0, PacketDirection::In, &good[..len]).is_some(),
                len >= 40,
                "{len}"
            );
        }
        for at in [0, 9, 22, 24] {
            let mut bad = good.clone();
            bad[at] ^= 0x80;
            assert_eq!(take(&mut messages, 0.0, PacketDirection::In, &bad).is_some(), at == 24, "{at}");
        }
    }
}
