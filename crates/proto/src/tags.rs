//! Tag matching at the receiver (ibv_post_srq_ops(3)): the header of a message, where the message goes, and the READ by which the
//! adapter carries out a rendezvous.

use crate::state::{Issuer, Wqe};
use crate::state::{NakReason, Tagged, begins, ends};
use crate::{
    DataRef, Env, MAX_MESSAGE, Payload, PlaceError, QpProtocol, SendOp, SendRequest, TagInfo, Taken,
};
use ferroce_types::{Completion, RecvWqe, Sge, SgeList, TagFlags, WcOpcode, WcStatus};
use ferroce_wire::{Headers, Opcode, Rvh, TagOperation, Tmh};

/// Bytes of the longest request of a rendezvous, headers included: it has to fit into any packet.
pub const MAX_RENDEZVOUS_REQUEST: usize = 256;

/// What a work request of the adapter comes to.
#[derive(Debug)]
pub(crate) enum OwnEnd {
    /// The data of a rendezvous are there, or can't be had.
    Data(Completion),
    /// The FIN couldn't be sent.
    LostFin,
}

impl<A: Clone> QpProtocol<A> {
    /// Reads the header of a message whose first packet this is, and takes what the message goes to.
    pub(crate) fn take_tagged<E: Env<Address = A>>(
        &mut self,
        opcode: Opcode,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) -> Result<RecvWqe, NakReason> {
        let (header, rendezvous) = read_headers(payload)?;
        if let Some(rvh) = rendezvous {
            let whole = begins(opcode) && ends(opcode) && payload.len() <= MAX_RENDEZVOUS_REQUEST;
            if !whole || u64::from(rvh.len) > MAX_MESSAGE {
                return Err(NakReason::Invalid);
            }
        }
        let Taken { receive, matched, sync_required } =
            env.next_tagged(&header).ok_or(NakReason::NotReady)?;
        let rendezvous = rendezvous.filter(|_| matched);
        self.resp.tagged = Some(Tagged { header, matched, sync_required, rendezvous });
        Ok(receive)
    }

    /// The request of a rendezvous has matched: completes its tag and fetches the data. A FIN to the peer follows when they are
    /// there.
    pub(crate) fn start_rendezvous<E: Env<Address = A>>(&mut self, rvh: Rvh, headers: &Headers, env: &mut E) {
        self.resp.count_message(0);
        let (Some(receive), Some(tagged)) = (self.resp.take_held(), self.resp.tagged.take()) else { return };
        let mut completion = self
            .recv_completion(receive.wr_id, WcStatus::Success)
            .with_value(headers.immediate, headers.invalidate_rkey)
            .with_tags(TagFlags { matched: true, ..TagFlags::default() });
        completion.opcode = WcOpcode::TmRecv;
        completion.solicited = headers.bth.solicited;
        let Tmh { tag, app_ctx, .. } = tagged.header;
        env.complete_tagged(completion, self.resp.expected, TagInfo { tag, app_ctx });
        let read = SendOp::Read { va: rvh.va, rkey: rvh.rkey };
        let sges = first_bytes(&receive.sges, rvh.len);
        self.issue(Issuer::Rendezvous, receive.wr_id, read, DataRef::Sges(&sges));
        let fin = Tmh { operation: TagOperation::Fin, ..tagged.header };
        self.issue(Issuer::Fin, 0, SendOp::Send, DataRef::Inline(&fin.emit()));
    }

    /// Adds a work request of the adapter. The limit of the send queue is the program's.
    fn issue(&mut self, issuer: Issuer, wr_id: u64, op: SendOp, data: DataRef<'_>) {
        let fence = issuer == Issuer::Fin;
        let (signaled, solicited) = (true, false);
        let request = SendRequest { wr_id, op, data, signaled, solicited, fence, ud: None, remote_srqn: 0 };
        self.enqueue(&request, issuer);
    }

    /// What a work request of the adapter comes to that ends with this status.
    pub(crate) fn own_end(&self, wqe: &Wqe<A>, status: WcStatus) -> Option<OwnEnd> {
        let good = status == WcStatus::Success;
        if wqe.issuer != Issuer::Rendezvous {
            return (!good && status != WcStatus::WrFlushErr).then_some(OwnEnd::LostFin);
        }
        let status = if good { status } else { WcStatus::TmRndvIncomplete };
        let tags = TagFlags { data_valid: good, ..TagFlags::default() };
        let mut completion = self.recv_completion(wqe.wr.wr_id, status).with_tags(tags);
        completion.opcode = WcOpcode::TmRecv;
        completion.byte_len = if good { wqe.len } else { 0 };
        Some(OwnEnd::Data(completion))
    }

    /// The receive of the message in progress has ended.
    pub(crate) fn complete_held<E: Env<Address = A>>(&mut self, mut completion: Completion, env: &mut E) {
        let number = self.resp.expected;
        let Some(tagged) = self.resp.tagged.take() else { return env.complete_recv(completion, number) };
        let Tmh { operation, tag, app_ctx } = tagged.header;
        let (matched, sync_required) = (tagged.matched, tagged.sync_required);
        let good = completion.status == WcStatus::Success;
        completion.opcode = match operation {
            TagOperation::Eager | TagOperation::Rendezvous => WcOpcode::TmRecv,
            TagOperation::NoTag | TagOperation::Fin => WcOpcode::TmNoTag,
        };
        let completion =
            completion.with_tags(TagFlags { sync_required, matched, data_valid: matched && good });
        if !good && tagged.is_unexpected() {
            env.forget_unexpected();
        }
        let info = if matched { TagInfo { tag, app_ctx } } else { TagInfo::default() };
        env.complete_tagged(completion, number, info);
    }
}

/// The headers at the front of a message.
fn read_headers(payload: &impl Payload) -> Result<(Tmh, Option<Rvh>), NakReason> {
    let mut bytes = [0; Tmh::LEN + Rvh::LEN];
    let there = bytes.len().min(payload.len());
    payload.copy_first(&mut bytes[..there]).map_err(|PlaceError| NakReason::Invalid)?;
    let (tmh, rest) = bytes[..there].split_first_chunk().ok_or(NakReason::Invalid)?;
    let header = Tmh::parse(tmh).ok_or(NakReason::Invalid)?;
    if header.operation != TagOperation::Rendezvous {
        return Ok((header, None));
    }
    let rvh = rest.first_chunk().ok_or(NakReason::Invalid)?;
    Ok((header, Some(Rvh::parse(rvh))))
}

/// As much of a buffer as holds `len` bytes.
fn first_bytes(sges: &[Sge], len: u32) -> SgeList {
    let mut left = len;
    let mut first = SgeList::new();
    for sge in sges {
        let length = sge.length.min(left);
        if length > 0 {
            first.push(Sge { length, ..*sge });
        }
        left -= length;
    }
    first
}
