//! A request packet: headers and payload of a work request's packet with a given number.

use crate::state::Wqe;
use crate::{Data, PayloadSource, QpProtocol, SendOp, psn};
use ferroce_wire::{AtomicEth, Feth, Headers, Operation, Reth};

/// What the next request packet is.
pub(crate) struct NextRequest<'a> {
    pub(crate) headers: Headers,
    pub(crate) source: PayloadSource<'a>,
    /// Bytes of payload.
    pub(crate) bytes: u32,
}

impl<A: Clone> QpProtocol<A> {
    /// Builds packet `packet` of a work request (for a READ: the request for `psns` response packets from there).
    pub(crate) fn request<'a>(&self, wqe: &'a Wqe<A>, packet: u32, psns: u32) -> NextRequest<'a> {
        let mtu = self.mtu();
        let (offset, bytes) = wqe.slice(packet, mtu);
        let operation = operation(&wqe.wr.op, packet == 0, packet + 1 == wqe.packets);
        let psn = psn::wire(wqe.first + u64::from(packet));
        let mut headers = Headers::new(self.bth(operation, psn));
        let last = packet + psns == wqe.packets;
        headers.bth.solicited = last && wqe.wr.solicited;
        headers.xrc_srqn = headers.bth.opcode.carries_xrceth().then_some(wqe.wr.remote_srqn);
        let mut source = PayloadSource::None;
        let mut sent = 0;
        match wqe.wr.op {
            SendOp::Read { va, rkey } => {
                let end = u64::from(packet + psns) * u64::from(mtu);
                let dma_len = (end.min(u64::from(wqe.len)) - offset) as u32;
                headers.reth = Some(Reth { va: va.wrapping_add(offset), rkey, dma_len });
            }
            SendOp::CompareSwap { va, rkey, compare, swap } => {
                headers.atomic = Some(AtomicEth { va, rkey, swap_or_add: swap, compare });
            }
            SendOp::FetchAdd { va, rkey, add } => {
                headers.atomic = Some(AtomicEth { va, rkey, swap_or_add: add, compare: 0 });
            }
            SendOp::Write { va, rkey } | SendOp::WriteWithImmediate { va, rkey, .. } => {
                if packet == 0 {
                    headers.reth = Some(Reth { va, rkey, dma_len: wqe.len });
                }
                (source, sent) = (payload(wqe, offset, bytes), bytes);
            }
            SendOp::AtomicWrite { va, rkey } => {
                headers.reth = Some(Reth { va, rkey, dma_len: wqe.len });
                (source, sent) = (payload(wqe, offset, bytes), bytes);
            }
            SendOp::Flush { va, rkey, len, placement, whole_region } => {
                headers.reth = Some(Reth { va, rkey, dma_len: len });
                headers.flush =
                    Some(Feth { placement: placement.bits(), selectivity: u8::from(whole_region) });
            }
            _ => (source, sent) = (payload(wqe, offset, bytes), bytes),
        }
        if last {
            match wqe.wr.op {
                SendOp::SendWithImmediate { immediate } | SendOp::WriteWithImmediate { immediate, .. } => {
                    headers.immediate = Some(immediate);
                }
                SendOp::SendWithInvalidate { rkey } => headers.invalidate_rkey = Some(rkey),
                _ => {}
            }
        }
        NextRequest { headers, source, bytes: sent }
    }
}

/// `bytes` of the message of a work request from `offset`.
fn payload<A>(wqe: &Wqe<A>, offset: u64, bytes: u32) -> PayloadSource<'_> {
    match &wqe.wr.data {
        _ if bytes == 0 => PayloadSource::None,
        Data::Sges(sges) => PayloadSource::Local { sges, offset, len: bytes },
        Data::Inline(data) => {
            let from = offset as usize;
            data.get(from..from + bytes as usize).map_or(PayloadSource::None, PayloadSource::Bytes)
        }
    }
}

/// The opcode of a request packet.
const fn operation(op: &SendOp, first: bool, last: bool) -> Operation {
    use Operation as O;
    match (op, first, last) {
        (SendOp::Read { .. }, ..) => O::ReadRequest,
        (SendOp::CompareSwap { .. }, ..) => O::CompareSwap,
        (SendOp::FetchAdd { .. }, ..) => O::FetchAdd,
        (SendOp::AtomicWrite { .. }, ..) => O::AtomicWrite,
        (SendOp::Flush { .. }, ..) => O::Flush,
        (SendOp::Write { .. } | SendOp::WriteWithImmediate { .. }, true, false) => O::WriteFirst,
        (SendOp::Write { .. } | SendOp::WriteWithImmediate { .. }, false, false) => O::WriteMiddle,
        (SendOp::Write { .. }, true, true) => O::WriteOnly,
        (SendOp::Write { .. }, false, true) => O::WriteLast,
        (SendOp::WriteWithImmediate { .. }, true, true) => O::WriteOnlyWithImmediate,
        (SendOp::WriteWithImmediate { .. }, false, true) => O::WriteLastWithImmediate,
        (_, true, false) => O::SendFirst,
        (_, false, false) => O::SendMiddle,
        (SendOp::SendWithImmediate { .. }, true, true) => O::SendOnlyWithImmediate,
        (SendOp::SendWithImmediate { .. }, false, true) => O::SendLastWithImmediate,
        (SendOp::SendWithInvalidate { .. }, true, true) => O::SendOnlyWithInvalidate,
        (SendOp::SendWithInvalidate { .. }, false, true) => O::SendLastWithInvalidate,
        (_, true, true) => O::SendOnly,
        (_, false, true) => O::SendLast,
    }
}
