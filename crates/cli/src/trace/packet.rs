//! A RoCEv2 packet of a capture: its headers, and what it is a part of.

use ferroce_wire::cm::{GSI_QPN, Mad, Message, RejectReason};
use ferroce_wire::{Headers, ICRC_LEN, NakCode, Operation, ROCE_V2_PORT, Service, Syndrome};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of the payload of a packet that goes ahead of a NAK, with the number of its reason. A NAK within a host carries the number itself, in
/// fewer bytes.
const AHEAD_OF_NAK: usize = 4;

/// The direction of a packet, seen from the capturing process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PacketDirection {
    Out,
    In,
    /// The capture doesn't contain it.
    Unknown,
}

/// A packet.
#[derive(Clone, Debug)]
pub struct CapturedPacket {
    /// Seconds since the capture's first packet.
    pub at: f64,
    pub way: PacketDirection,
    pub from: IpAddr,
    pub to: IpAddr,
    pub headers: Headers,
    /// Bytes of the payload.
    pub len: usize,
    /// What it is a part of.
    pub operation: &'static str,
    /// It is the first packet of that.
    pub begins: bool,
    /// It is the last packet of that.
    pub ends: bool,
    /// What it refuses, if it does.
    pub refusal: Option<&'static str>,
}

impl CapturedPacket {
    /// Reads an IP packet. `None`: it isn't RoCEv2, or carries the reason of a NAK that follows.
    pub fn of(at: f64, way: PacketDirection, bytes: &[u8]) -> Option<Self> {
        let datagram = RoceDatagram::of(bytes)?;
        let (headers, header_len) = Headers::parse(datagram.payload).ok()?;
        let len = datagram.len.checked_sub(header_len + ICRC_LEN + usize::from(headers.bth.pad))?;
        if headers.bth.opcode.operation == Operation::Acknowledge && len == AHEAD_OF_NAK {
            return None;
        }
        let (mut operation, begins, ends) = place(&headers);
        let mut refusal = headers.aeth.and_then(|aeth| refusal(Syndrome::from_u8(aeth.syndrome)));
        let payload = datagram.payload.get(header_len..header_len + len);
        if headers.bth.dest_qp == GSI_QPN
            && headers.deth.is_some()
            && let Some(mad) = payload.and_then(|payload| Mad::parse(payload).ok())
        {
            operation = cm_name(&mad.message);
            if let Message::Reject(reject) = mad.message {
                refusal = Some(rejection(reject.reason));
            }
        }
        let RoceDatagram { from, to, .. } = datagram;
        Some(Self { at, way, from, to, headers, len, operation, begins, ends, refusal })
    }

    /// It does nothing but acknowledge.
    pub fn acknowledges(&self) -> bool {
        self.headers.bth.opcode.operation == Operation::Acknowledge
    }

    /// Address and key of the memory that it names.
    pub fn remote(&self) -> Option<(u64, u32)> {
        let Headers { reth, atomic, .. } = self.headers;
        reth.map(|reth| (reth.va, reth.rkey)).or(atomic.map(|atomic| (atomic.va, atomic.rkey)))
    }
}

/// A message of the connection manager.
fn cm_name(message: &Message) -> &'static str {
    match message {
        Message::Request(_) => "CM REQ (connect)",
        Message::Mra(_) => "CM MRA (wait)",
        Message::Reject(_) => "CM REJ (reject)",
        Message::Reply(_) => "CM REP (accept)",
        Message::ReadyToUse(_) => "CM RTU (ready to use)",
        Message::DisconnectRequest(_) => "CM DREQ (disconnect)",
        Message::DisconnectReply(_) => "CM DREP (disconnected)",
        Message::SidrRequest(_) => "CM SIDR_REQ (resolve)",
        Message::SidrReply(_) => "CM SIDR_REP (resolved)",
    }
}

fn rejection(reason: RejectReason) -> &'static str {
    match reason {
        RejectReason::INVALID_SERVICE_ID => "no listener at this port",
        RejectReason::CONSUMER => "rejected by the program",
        RejectReason::STALE_CONNECTION => "stale connection",
        RejectReason::TIMEOUT => "timeout",
        RejectReason::NO_QP | RejectReason::NO_RESOURCES => "no resources",
        _ => "rejected",
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
struct RoceDatagram<'a> {
    from: IpAddr,
    to: IpAddr,
    /// As many bytes as were captured, and how many there were.
    payload: &'a [u8],
    len: usize,
}

impl<'a> RoceDatagram<'a> {
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

impl fmt::Display for PacketDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Out => "out",
            Self::In => "in",
            Self::Unknown => "?",
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use ferroce_wire::cm::{CommIds, GSI_QKEY, Reject};
    use ferroce_wire::{Aeth, Bth, Deth, Opcode};

    /// An IPv4 packet from 10.0.0.1 to 10.0.0.2.
    pub fn packet(operation: Operation, psn: u32, syndrome: Option<Syndrome>, payload: usize) -> Vec<u8> {
        let mut headers = Headers::new(Bth::new(Opcode { service: Service::Rc, operation }, 0x12_3456, psn));
        headers.aeth = syndrome.map(|syndrome| Aeth { syndrome: syndrome.to_u8(), msn: 1 });
        around(&headers, &vec![0; payload])
    }

    /// An IPv4 packet from 10.0.0.1 to 10.0.0.2.
    fn around(headers: &Headers, payload: &[u8]) -> Vec<u8> {
        let mut transport = vec![0; 64];
        let len = headers.emit(&mut transport).unwrap();
        transport.truncate(len);
        transport.extend_from_slice(payload);
        transport.resize(len + payload.len() + ICRC_LEN, 0);
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
    fn messages_of_the_connection_manager_have_their_names() {
        let opcode = Opcode { service: Service::Ud, operation: Operation::SendOnly };
        let mut headers = Headers::new(Bth::new(opcode, GSI_QPN, 5));
        headers.deth = Some(Deth { qkey: GSI_QKEY, src_qp: GSI_QPN });
        let ids = CommIds { local: 1, remote: 2 };
        let of = |message| {
            let mad = Mad { transaction: 1, message };
            CapturedPacket::of(0.0, PacketDirection::In, &around(&headers, &mad.emit())).unwrap()
        };
        assert_eq!(of(Message::ReadyToUse(ids)).operation, "CM RTU (ready to use)");
        let rejected = of(Message::Reject(Reject::of_request(ids, RejectReason::INVALID_SERVICE_ID)));
        assert_eq!(
            (rejected.operation, rejected.refusal),
            ("CM REJ (reject)", Some("no listener at this port"))
        );
    }
}
