//! The packets between the first and the last one of a long message: placed and checked in one pass, the key looked up once for all of them.
//!
//! A packet lies in the program's memory before its ICRC is known to be right. If the ICRC is wrong, the packet hasn't come, and the next one
//! with its PSN is placed over it ([why that is right](../../../../../docs/decisions/083-placed-before-the-icrc.md)).

use super::{PacketOrigin, QpEnv};
use crate::qp::payload::if_present;
use ferroce_access::{Fault, summed};
use ferroce_mem::KeyTable;
use ferroce_parts::{Ah, settings};
use ferroce_proto::MiddlePlace;
use ferroce_types::{Datagram, Instant, RemoteAccess, Sge};
use ferroce_wire::icrc::Flow;
use ferroce_wire::{BTH_LEN, Headers, ICRC_LEN, Opcode};
use std::sync::Arc;

/// Where opcode, destination QPN, the byte with the request for an ACK, and PSN are in a BTH.
const OPCODE: usize = 0;
const ACK_REQUEST: usize = 8;
const PSN: std::ops::Range<usize> = 9..12;

/// Whether a packet's opcode is that of a packet between the first and the last one of a message.
pub(crate) fn is_middle(datagram: &Datagram<'_>) -> bool {
    Opcode::from_u8(datagram.bytes[OPCODE]).is_some_and(Opcode::is_middle)
}

/// What has come of packets that were placed.
#[derive(Clone, Copy, Default)]
struct Placed {
    /// Those that are intact, the first ones.
    intact: usize,
    /// The one behind them isn't, and is dropped.
    damaged: bool,
}

impl QpEnv<'_> {
    /// Takes the first ones of these packets, which have come from one source for this QP, if they are the next ones of a message in progress,
    /// and neither its first nor its last one. Returns how many were dealt with.
    pub(crate) fn take_middles(
        &self,
        proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>,
        now: Instant,
        datagrams: &[Datagram<'_>],
        flow: &Flow,
    ) -> usize {
        let Some(first) = datagrams.first() else { return 0 };
        if settings::is_careful()
            || !self.waiting.is_empty()
            || !self.accepts(first.ends(), PacketOrigin::Network)
        {
            return 0;
        }
        let Ok((Headers { bth, .. }, BTH_LEN)) = Headers::parse(first.bytes) else { return 0 };
        let Some(middles) = proto.middles(&bth) else { return 0 };
        let follows = |(number, other): &(usize, &Datagram<'_>)| {
            let psn = bth.psn.wrapping_add(*number as u32).to_be_bytes();
            other.bytes.len() == BTH_LEN + middles.packet + ICRC_LEN
                && other.source == first.source
                && !other.congestion_experienced()
                // Opcode, flags and partition key.
                && other.bytes[..4] == first.bytes[..4]
                && other.bytes[PSN] == psn[1..]
        };
        let run = datagrams.iter().enumerate().take(middles.most).take_while(follows).count();
        let place = |run: &[Datagram<'_>], addr| place(run, addr, middles.packet, flow);
        let table = KeyTable::global();
        let placed = match middles.place {
            _ if run == 0 => return 0,
            MiddlePlace::Remote { va, rkey } => {
                let (run, len) = (&datagrams[..run], (run * middles.packet) as u64);
                let by = self.key_user();
                table
                    .remote(by, rkey, va, len, RemoteAccess::Write, |addr| {
                        if_present(addr, len as usize, || place(run, addr))
                    })
                    .unwrap_or_default()
            }
            MiddlePlace::Local(buffer, sges, offset) => {
                let Some(element) = rest_of_element(sges, offset) else { return 0 };
                let run = &datagrams[..run.min(element.length as usize / middles.packet)];
                let piece = Sge { length: (run.len() * middles.packet) as u32, ..element };
                let mut placed = Placed::default();
                // What is wrong with a key is found out by the general way.
                let _ = table.local(self.pd_of(buffer), &piece, true, |addr| {
                    placed = if_present(addr, piece.length as usize, || place(run, addr))?;
                    Ok(())
                });
                placed
            }
        };
        let taken = &datagrams[..placed.intact];
        if !taken.is_empty() {
            let asks = taken.iter().any(|datagram| datagram.bytes[ACK_REQUEST] & 0x80 != 0);
            proto.middles_taken(now, bth.opcode.operation, taken.len() as u32, asks);
        }
        if placed.damaged {
            tracing::trace!(qpn = self.qp.qpn, "packet refused: wrong ICRC");
        }
        placed.intact + usize::from(placed.damaged)
    }
}

/// What is left of the element in which this byte of a message is.
fn rest_of_element(sges: &[Sge], mut offset: u64) -> Option<Sge> {
    for sge in sges {
        let length = u64::from(sge.length);
        if offset < length {
            let addr = sge.addr.wrapping_add(offset);
            return Some(Sge { addr, length: (length - offset) as u32, ..*sge });
        }
        offset -= length;
    }
    None
}

/// Copies the payloads of these packets to `addr` and behind it, up to the first one whose ICRC is wrong.
///
/// # Errors
/// [`Fault`] when there is no memory for the first one. The first one of the others for which there is none isn't dealt with.
fn place(datagrams: &[Datagram<'_>], addr: u64, packet: usize, flow: &Flow) -> Result<Placed, Fault> {
    let mut placed = Placed::default();
    for datagram in datagrams {
        let (bth, rest) = datagram.bytes.split_at(BTH_LEN);
        let Some((payload, icrc)) = rest.split_last_chunk::<ICRC_LEN>() else { break };
        let mut sum = flow.start(datagram.bytes.len(), datagram.segment);
        sum.bth(bth);
        match summed::write(addr + (placed.intact * packet) as u64, payload, sum.so_far()) {
            Ok(crc) => sum.took(payload.len(), crc),
            Err(Fault) if placed.intact > 0 => break,
            Err(Fault) => return Err(Fault),
        }
        if sum.check(*icrc).is_none() {
            placed.damaged = true;
            break;
        }
        placed.intact += 1;
    }
    Ok(placed)
}
