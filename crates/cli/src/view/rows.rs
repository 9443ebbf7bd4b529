//! Packets as the page has them: from which host to which, in which message, and what is special about each.

use crate::trace::packet::{CapturedPacket, PacketDirection};
use ferroce_wire::{Headers, Operation, Service, Syndrome};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::IpAddr;

/// A PSN has 24 bits.
const PSNS: u32 = 1 << 24;

/// One direction of a connection: addresses, the destination's QP, and whether it answers.
type Flow = (PacketDirection, IpAddr, IpAddr, u32, bool);

/// What has been seen of a flow.
#[derive(Clone, Copy, Default)]
struct FlowHistory {
    /// The message under way.
    message: Option<usize>,
    /// The PSN of its last packet.
    last: u32,
    /// The latest PSN.
    latest: Option<u32>,
    /// The PSN after it is known: a READ takes as many as its answer has packets.
    follows: bool,
}

/// The packets of a capture.
pub struct Rows {
    most: usize,
    left_out: usize,
    hosts: Vec<String>,
    packets: Vec<Value>,
    /// Of each packet that may turn out to be lost: where it is, by its flow and PSN.
    sent: HashMap<(IpAddr, IpAddr, u32), usize>,
    flows: HashMap<Flow, FlowHistory>,
    messages: usize,
}

impl Rows {
    /// At most so many packets.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            left_out: 0,
            hosts: Vec::new(),
            packets: Vec::new(),
            sent: HashMap::new(),
            flows: HashMap::new(),
            messages: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.packets.is_empty() && self.left_out == 0
    }

    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    pub fn packets(&self) -> &[Value] {
        &self.packets
    }

    pub const fn left_out(&self) -> usize {
        self.left_out
    }

    /// Adds a packet, or counts it if there are enough.
    pub fn take(&mut self, packet: &CapturedPacket) {
        if self.packets.len() >= self.most {
            self.left_out += 1;
            return;
        }
        let CapturedPacket { at, way, from, to, headers, len, operation, .. } = *packet;
        let [from_host, to_host] = self.ends(packet);
        let number = headers.bth.dest_qp;
        let flow = (way, from, to, number, headers.bth.opcode.is_response());
        let mut seen = self.flows.get(&flow).copied().unwrap_or_default();
        let (mut kind, missing) = classify(packet, &seen);
        if !packet.acknowledges() {
            seen.latest = Some(match seen.latest {
                Some(latest) if kind == "retransmission" => latest,
                _ => headers.bth.psn,
            });
            seen.follows = headers.bth.opcode.operation != Operation::ReadRequest;
        }
        let message = match seen.message {
            // A sender that begins again in the middle goes back.
            Some(message) if !packet.begins && headers.bth.psn.wrapping_sub(seen.last) % PSNS < PSNS / 2 => {
                message
            }
            _ => {
                self.messages += 1;
                self.messages - 1
            }
        };
        seen.message = (!packet.ends).then_some(message);
        seen.last = headers.bth.psn;
        self.flows.insert(flow, seen);
        if kind == "nak" && packet.refusal == Some("PSN sequence error") {
            self.mark_lost(packet);
        }
        if missing > 0 {
            kind = "loss";
        }
        if !headers.bth.opcode.is_response() {
            self.sent.insert((from, to, headers.bth.psn), self.packets.len());
        }
        self.packets.push(json!({
            "t": at, "f": from_host, "o": to_host, "q": number, "op": operation, "n": len, "p": headers.bth.psn,
            "m": message, "k": kind, "x": missing, "r": packet.refusal, "h": text_of(&headers),
        }));
    }

    /// The sender and the receiver as numbers of hosts. If the capture contains directions, both sides of one
    /// address are distinguished.
    fn ends(&mut self, packet: &CapturedPacket) -> [usize; 2] {
        let names = match packet.way {
            PacketDirection::Out => [format!("{} (captured here)", packet.from), packet.to.to_string()],
            PacketDirection::In => [packet.from.to_string(), format!("{} (captured here)", packet.to)],
            PacketDirection::Unknown => [packet.from.to_string(), packet.to.to_string()],
        };
        names.map(|name| {
            self.hosts.iter().position(|host| *host == name).unwrap_or_else(|| {
                self.hosts.push(name);
                self.hosts.len() - 1
            })
        })
    }

    /// A NAK names the PSN that it misses: the packet before with that PSN, the other way, was lost.
    fn mark_lost(&mut self, nak: &CapturedPacket) {
        let key = (nak.to, nak.from, nak.headers.bth.psn);
        if let Some(lost) = self.sent.get(&key).and_then(|&at| self.packets.get_mut(at))
            && lost["k"] == ""
        {
            lost["k"] = "loss".into();
        }
    }
}

/// What is special about a packet, and how many packets before it are missing.
fn classify(packet: &CapturedPacket, seen: &FlowHistory) -> (&'static str, u32) {
    let headers = &packet.headers;
    if let Some(aeth) = headers.aeth.filter(|_| packet.acknowledges()) {
        return match Syndrome::from_u8(aeth.syndrome) {
            Syndrome::RnrNak { .. } => ("rnr", 0),
            Syndrome::Ack { .. } => ("ack", 0),
            _ => ("nak", 0),
        };
    }
    if packet.refusal.is_some() {
        return ("nak", 0);
    }
    let connected = matches!(headers.bth.opcode.service, Service::Rc | Service::Uc | Service::Xrc);
    match seen.latest {
        Some(latest) if connected => {
            let ahead = headers.bth.psn.wrapping_sub(latest) % PSNS;
            if ahead == 0 || ahead >= PSNS / 2 {
                ("retransmission", 0)
            } else if ahead > 1 && seen.follows && !headers.bth.opcode.is_response() {
                ("", ahead - 1)
            } else {
                ("", 0)
            }
        }
        _ => ("", 0),
    }
}

/// The headers, a line each.
fn text_of(headers: &Headers) -> String {
    let bth = &headers.bth;
    // Writing to a string doesn't fail.
    let mut text = format!(
        "BTH: {:?} {:?}, QP {:#08x}, PSN {}",
        bth.opcode.service, bth.opcode.operation, bth.dest_qp, bth.psn
    );
    for (set, name) in [(bth.ack_request, "ack request"), (bth.solicited, "solicited"), (bth.becn, "BECN")] {
        if set {
            let _ = write!(text, ", {name}");
        }
    }
    if let Some(deth) = headers.deth {
        let _ = write!(text, "\nDETH: from QP {:#08x}, Q_Key {:#x}", deth.src_qp, deth.qkey);
    }
    if let Some(srqn) = headers.xrc_srqn {
        let _ = write!(text, "\nXRCETH: SRQ {srqn}");
    }
    if let Some(reth) = headers.reth {
        let _ = write!(text, "\nRETH: {} bytes at {:#x}, rkey {:#x}", reth.dma_len, reth.va, reth.rkey);
    }
    if let Some(atomic) = headers.atomic {
        let _ = write!(
            text,
            "\nAtomicETH: at {:#x}, rkey {:#x}, swap or add {:#x}, compare {:#x}",
            atomic.va, atomic.rkey, atomic.swap_or_add, atomic.compare
        );
    }
    if let Some(aeth) = headers.aeth {
        let _ = write!(text, "\nAETH: {:?}, MSN {}", Syndrome::from_u8(aeth.syndrome), aeth.msn);
    }
    if let Some(value) = headers.atomic_ack {
        let _ = write!(text, "\nAtomicAckETH: {value:#x}");
    }
    if let Some(immediate) = headers.immediate {
        let _ = write!(text, "\nImmDt: {:#010x}", u32::from_be_bytes(immediate));
    }
    if let Some(rkey) = headers.invalidate_rkey {
        let _ = write!(text, "\nIETH: rkey {rkey:#x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::packet::tests::packet;
    use ferroce_wire::NakCode;

    fn rows(packets: &[(PacketDirection, Operation, u32, Option<Syndrome>)]) -> Rows {
        let mut rows = Rows::new(100);
        for (at, (way, operation, psn, syndrome)) in packets.iter().enumerate() {
            let bytes = packet(*operation, *psn, *syndrome, 8);
            rows.take(&CapturedPacket::of(at as f64, *way, &bytes).expect("a packet"));
        }
        rows
    }

    fn kinds(rows: &Rows) -> Vec<&str> {
        rows.packets().iter().map(|packet| packet["k"].as_str().expect("a word")).collect()
    }

    #[test]
    fn packets_of_a_message_have_its_number() {
        use Operation as O;
        let rows = rows(&[
            (PacketDirection::Out, O::SendFirst, 7, None),
            (PacketDirection::Out, O::SendLast, 8, None),
            (PacketDirection::In, O::Acknowledge, 8, Some(Syndrome::ACK_UNLIMITED)),
            (PacketDirection::Out, O::SendOnly, 9, None),
        ]);
        let messages: Vec<_> = rows.packets().iter().map(|packet| packet["m"].as_u64()).collect();
        assert_eq!(messages, [Some(0), Some(0), Some(1), Some(2)]);
        assert_eq!(kinds(&rows), ["", "", "ack", ""]);
    }

    #[test]
    fn a_sender_that_goes_back_begins_another_row() {
        use Operation as O;
        let rows = rows(&[
            (PacketDirection::Out, O::SendFirst, 7, None),
            (PacketDirection::Out, O::SendMiddle, 8, None),
            (PacketDirection::Out, O::SendMiddle, 9, None),
            (PacketDirection::Out, O::SendMiddle, 8, None),
            (PacketDirection::Out, O::SendLast, 9, None),
        ]);
        let messages: Vec<_> = rows.packets().iter().map(|packet| packet["m"].as_u64()).collect();
        assert_eq!(messages, [Some(0), Some(0), Some(0), Some(1), Some(1)]);
    }

    #[test]
    fn repetitions_refusals_and_gaps_are_named() {
        use Operation as O;
        let rnr = Some(Syndrome::RnrNak { timer: 1 });
        let rows = rows(&[
            (PacketDirection::Out, O::SendOnly, PSNS - 1, None),
            (PacketDirection::In, O::Acknowledge, PSNS - 1, rnr),
            (PacketDirection::Out, O::SendOnly, PSNS - 1, None),
            (PacketDirection::Out, O::SendOnly, 0, None),
            (PacketDirection::Out, O::SendOnly, 3, None),
            (PacketDirection::In, O::Acknowledge, 3, Some(Syndrome::Nak(NakCode::RemoteAccessError))),
        ]);
        assert_eq!(kinds(&rows), ["", "rnr", "retransmission", "", "loss", "nak"]);
        assert_eq!(rows.packets()[4]["x"], 2);
    }

    #[test]
    fn what_is_too_much_is_counted() {
        let mut rows = Rows::new(1);
        for psn in 1..4 {
            rows.take(
                &CapturedPacket::of(0.0, PacketDirection::Out, &packet(Operation::SendOnly, psn, None, 8))
                    .expect("a packet"),
            );
        }
        assert_eq!((rows.packets().len(), rows.left_out()), (1, 2));
    }
}
