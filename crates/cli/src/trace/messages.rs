//! Packets of a capture as messages: a line for each one, and for each answer that says more than that all is well.

use ferroce_wire::{Headers, ICRC_LEN, NakCode, Operation, ROCE_V2_PORT, Service, Syndrome};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Messages that are under way at a time; of more, the beginning isn't remembered.
const MOST: usize = 1 << 16;
/// Bytes of the payload of a packet that goes ahead of a NAK, with the number of its reason. A NAK within a host carries the number itself, in
/// fewer bytes.
const AHEAD_OF_NAK: usize = 4;

/// Which way a packet went, as whoever captured it saw it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Way {
    Out,
    In,
    /// The capture doesn't say.
    Unknown,
}

/// A message, or an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Seconds since the capture's first packet.
    pub at: f64,
    pub way: Way,
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
    /// What an answer says, where it isn't good news.
    pub refusal: Option<&'static str>,
    /// Its first packets aren't in the capture.
    pub incomplete: bool,
    /// It does nothing but acknowledge.
    pub acknowledges: bool,
}

/// Between whom a message is under way.
type Flow = (Way, IpAddr, IpAddr, u32, bool);

/// Messages of which not all packets have come yet.
#[derive(Default)]
pub struct Messages(HashMap<Flow, Message>);

impl Messages {
    /// Takes an IP packet. Returns the message that it ends.
    pub fn packet(&mut self, at: f64, way: Way, bytes: &[u8]) -> Option<Message> {
        let datagram = Datagram::of(bytes)?;
        let (headers, header_len) = Headers::parse(datagram.payload).ok()?;
        let rest = datagram.len.checked_sub(header_len + ICRC_LEN + usize::from(headers.bth.pad))?;
        if headers.bth.opcode.operation == Operation::Acknowledge && rest == AHEAD_OF_NAK {
            return None;
        }
        let (operation, begins, ends) = place(&headers);
        let flow = (way, datagram.from, datagram.to, headers.bth.dest_qp, headers.bth.opcode.is_response());
        let mut message = match self.0.remove(&flow) {
            Some(message) if !begins => message,
            _ => Message {
                at,
                way,
                from: datagram.from,
                to: datagram.to,
                number: headers.bth.dest_qp,
                operation,
                bytes: 0,
                packets: 0,
                psn: headers.bth.psn,
                remote: headers
                    .reth
                    .map(|reth| (reth.va, reth.rkey))
                    .or(headers.atomic.map(|atomic| (atomic.va, atomic.rkey))),
                refusal: headers.aeth.and_then(|aeth| refusal(Syndrome::from_u8(aeth.syndrome))),
                incomplete: !begins,
                acknowledges: headers.bth.opcode.operation == Operation::Acknowledge,
            },
        };
        message.operation = operation;
        message.bytes += match (headers.bth.opcode.operation, &headers.reth) {
            // It asks for as many.
            (Operation::ReadRequest, Some(reth)) => u64::from(reth.dma_len),
            _ => rest as u64,
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

/// What the packet is of, and whether it is the first and the last of that.
fn place(headers: &Headers) -> (&'static str, bool, bool) {
    use Operation as O;
    let opcode = headers.bth.opcode;
    if opcode.service == Service::Cnp {
        return ("congestion notification", true, true);
    }
    match opcode.operation {
        O::SendFirst => ("SEND", true, false),
        O::SendMiddle => ("SEND", false, false),
        O::SendLast => ("SEND", false, true),
        O::SendLastWithImmediate => ("SEND with immediate", false, true),
        O::SendLastWithInvalidate => ("SEND with invalidate", false, true),
        O::SendOnly => ("SEND", true, true),
        O::SendOnlyWithImmediate => ("SEND with immediate", true, true),
        O::SendOnlyWithInvalidate => ("SEND with invalidate", true, true),
        O::WriteFirst => ("RDMA WRITE", true, false),
        O::WriteMiddle => ("RDMA WRITE", false, false),
        O::WriteLast => ("RDMA WRITE", false, true),
        O::WriteLastWithImmediate => ("RDMA WRITE with immediate", false, true),
        O::WriteOnly => ("RDMA WRITE", true, true),
        O::WriteOnlyWithImmediate => ("RDMA WRITE with immediate", true, true),
        O::ReadRequest => ("RDMA READ", true, true),
        O::ReadResponseFirst => ("READ response", true, false),
        O::ReadResponseMiddle => ("READ response", false, false),
        O::ReadResponseLast => ("READ response", false, true),
        O::ReadResponseOnly => ("READ response", true, true),
        O::Acknowledge => ("ACK", true, true),
        O::AtomicAcknowledge => ("atomic response", true, true),
        O::CompareSwap => ("compare-and-swap", true, true),
        O::FetchAdd => ("fetch-and-add", true, true),
        O::Flush => ("flush", true, true),
        O::AtomicWrite => ("atomic write", true, true),
        O::CongestionNotification => ("congestion notification", true, true),
    }
}

fn refusal(syndrome: Syndrome) -> Option<&'static str> {
    match syndrome {
        Syndrome::Ack { .. } => None,
        Syndrome::RnrNak { .. } => Some("receiver not ready"),
        Syndrome::Nak(NakCode::PsnSequenceError) => Some("PSN sequence error"),
        Syndrome::Nak(NakCode::InvalidRequest) => Some("invalid request"),
        Syndrome::Nak(NakCode::RemoteAccessError) => Some("remote access error"),
        Syndrome::Nak(NakCode::RemoteOperationalError) => Some("remote operational error"),
        Syndrome::Nak(NakCode::InvalidRdRequest) => Some("invalid RD request"),
        Syndrome::Reserved(_) => Some("reserved syndrome"),
    }
}

/// A RoCEv2 datagram.
struct Datagram<'a> {
    from: IpAddr,
    to: IpAddr,
    /// As many bytes as were captured, and how many there were.
    payload: &'a [u8],
    len: usize,
}

impl<'a> Datagram<'a> {
    fn of(packet: &'a [u8]) -> Option<Self> {
        let (from, to, udp) = match packet.first()? >> 4 {
            4 => {
                let header = usize::from(packet[0] & 15) * 4;
                let address = |at: usize| {
                    let bytes: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
                    Some(IpAddr::V4(Ipv4Addr::from(bytes)))
                };
                (*packet.get(9)? == 17).then_some(())?;
                (address(12)?, address(16)?, packet.get(header..)?)
            }
            6 => {
                let address = |at: usize| {
                    let bytes: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
                    Some(IpAddr::V6(Ipv6Addr::from(bytes)))
                };
                (*packet.get(6)? == 17).then_some(())?;
                (address(8)?, address(24)?, packet.get(40..)?)
            }
            _ => return None,
        };
        let word = |at: usize| Some(u16::from_be_bytes(*udp.get(at..at + 2)?.first_chunk()?));
        (word(2)? == ROCE_V2_PORT).then_some(())?;
        let len = usize::from(word(4)?).checked_sub(8)?;
        Some(Self { from, to, payload: udp.get(8..)?, len })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Out => "out",
            Self::In => "in",
            Self::Unknown => "?",
        })
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, way, from, to, number, operation, bytes, packets, psn, .. } = self;
        write!(f, "{at:12.6} {way:3} {from} > {to} QP {number:#08x} ")?;
        match self.refusal {
            Some(refusal) => write!(f, "NAK: {refusal}")?,
            None if self.acknowledges => f.write_str("ACK")?,
            None => write!(f, "{operation}, {bytes} bytes in {packets} packets")?,
        }
        write!(f, ", PSN {psn:#08x}")?;
        if let Some((va, rkey)) = self.remote {
            write!(f, ", at {va:#x} by key {rkey:#x}")?;
        }
        f.write_str(if self.incomplete { ", its beginning is missing" } else { "" })
    }
}

impl Message {
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
pub mod tests {
    use super::*;
    use ferroce_wire::{Aeth, Bth, Opcode};

    /// An IPv4 packet from 10.0.0.1 to 10.0.0.2.
    fn packet(operation: Operation, psn: u32, syndrome: Option<Syndrome>, payload: usize) -> Vec<u8> {
        let mut headers = Headers::new(Bth::new(Opcode { service: Service::Rc, operation }, 0x12_3456, psn));
        headers.aeth = syndrome.map(|syndrome| Aeth { syndrome: syndrome.to_u8(), msn: 1 });
        let mut transport = vec![0; 64];
        let len = headers.emit(&mut transport).unwrap();
        transport.truncate(len);
        transport.resize(len + payload + ICRC_LEN, 0);
        let mut bytes = vec![0_u8; 28];
        (bytes[0], bytes[9]) = (0x45, 17);
        bytes[12..16].copy_from_slice(&[10, 0, 0, 1]);
        bytes[16..20].copy_from_slice(&[10, 0, 0, 2]);
        bytes[22..24].copy_from_slice(&ROCE_V2_PORT.to_be_bytes());
        bytes[24..26].copy_from_slice(&(transport.len() as u16 + 8).to_be_bytes());
        [bytes, transport].concat()
    }

    /// An IPv4 packet that is a whole SEND.
    pub fn send_only() -> Vec<u8> {
        packet(Operation::SendOnly, 1, None, 8)
    }

    #[test]
    fn packets_of_a_message_are_one_line() {
        let mut messages = Messages::default();
        let mut take = |operation, psn, payload| {
            messages.packet(0.5, Way::Out, &packet(operation, psn, None, payload)).map(|m| m.to_string())
        };
        assert_eq!(take(Operation::SendFirst, 7, 1024), None);
        assert_eq!(take(Operation::SendMiddle, 8, 1024), None);
        let line =
            "    0.500000 out 10.0.0.1 > 10.0.0.2 QP 0x123456 SEND, 2052 bytes in 3 packets, PSN 0x000009";
        assert_eq!(take(Operation::SendLast, 9, 4).unwrap(), line);
        assert!(
            take(Operation::SendLast, 12, 4)
                .unwrap()
                .ends_with("4 bytes in 1 packets, PSN 0x00000c, its beginning is missing")
        );
    }

    #[test]
    fn what_is_refused_is_named() {
        let mut messages = Messages::default();
        let nak = Some(Syndrome::Nak(NakCode::RemoteAccessError));
        let message = messages.packet(0.0, Way::In, &packet(Operation::Acknowledge, 3, nak, 0)).unwrap();
        assert!(
            message.to_string().ends_with("QP 0x123456 NAK: remote access error, PSN 0x000003"),
            "{message}"
        );
        assert_eq!(message.to_json()["refusal"], "remote access error");
        assert!(
            messages.packet(0.0, Way::In, &packet(Operation::Acknowledge, 3, nak, AHEAD_OF_NAK)).is_none()
        );
        assert!(messages.packet(0.0, Way::In, &packet(Operation::Acknowledge, 3, nak, 2)).is_some());
        let ack = messages.packet(
            0.0,
            Way::In,
            &packet(Operation::Acknowledge, 4, Some(Syndrome::ACK_UNLIMITED), 0),
        );
        assert!(ack.unwrap().to_string().ends_with(" ACK, PSN 0x000004"));
    }

    #[test]
    fn whatever_else_is_in_a_capture_is_passed_over() {
        let mut messages = Messages::default();
        let good = packet(Operation::SendOnly, 1, None, 8);
        for len in 0..good.len() - 12 {
            // Only what is cut off behind the headers has a length that is known.
            assert_eq!(messages.packet(0.0, Way::In, &good[..len]).is_some(), len >= 40, "{len}");
        }
        for at in [0, 9, 22, 24] {
            let mut bad = good.clone();
            bad[at] ^= 0x80;
            assert_eq!(messages.packet(0.0, Way::In, &bad).is_some(), at == 24, "{at}");
        }
    }
}
