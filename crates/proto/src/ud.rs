//! Unreliable datagrams (IBTA 9.8.3): one packet is one message, to and from anybody who knows the Q_Key.

use crate::state::NakReason;
use crate::{
    Buffer, Cause, Env, Failure, NoReceive, Payload, QpProtocol, RequestedAccess, UdTarget, Violation, psn,
};
use ferroce_types::{WcStatus, vendor_err};
use ferroce_wire::{Deth, Headers};

/// Bytes of the GRH before the payload in every UD receive.
const GRH: u64 = 40;
/// A work request's Q_Key with this bit asks for the QP's own (IBTA 10.2.5).
const PRIVILEGED: u32 = 1 << 31;

impl<A: Clone> QpProtocol<A> {
    /// Completes the headers of a datagram for `target`.
    pub(crate) fn address(&self, headers: &mut Headers, target: &UdTarget<A>) {
        headers.bth.dest_qp = target.qpn & 0x00ff_ffff;
        let qkey = if target.qkey & PRIVILEGED == 0 { target.qkey } else { self.params.qkey };
        headers.deth = Some(Deth { qkey, src_qp: self.qpn });
    }

    /// Takes a datagram. If there is no receive for it, or the receive is too small for GRH and payload, the datagram is dropped
    /// and the receive stays posted: otherwise any sender with the Q_Key could end the QP.
    pub(crate) fn handle_datagram<E: Env<Address = A>>(
        &mut self,
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) {
        let Some(deth) = headers.deth else { return };
        if deth.qkey != self.params.qkey {
            self.counters.qkey_violations += 1;
            if !self.resp.told_qkey {
                self.resp.told_qkey = true;
                self.remark(Cause::QKey { theirs: deth.qkey, from: deth.src_qp }, env);
            }
            env.violation(Violation::QKey);
            return;
        }
        self.resp.expected = psn::extend(self.resp.expected, headers.bth.psn).wrapping_add(1);
        let total = GRH + payload.len() as u64;
        let held = self.resp.held.take_if(|held| held.capacity() >= total);
        let receive = match held.map_or_else(|| env.next_recv_for(total), Ok) {
            Ok(receive) => receive,
            Err(why) => {
                self.counters.dropped_messages += 1;
                if why == NoReceive::TooSmall && !self.resp.told_length {
                    self.resp.told_length = true;
                    self.remark(Cause::NoRoomForGrh { needs: total }, env);
                }
                return;
            }
        };
        let mut completion = self.recv_completion(receive.wr_id, WcStatus::Success);
        completion.src_qp = deth.src_qp;
        let grh = env.place_grh(&receive.sges);
        if grh.is_err()
            || (!payload.is_empty() && env.place(Buffer::Receive, &receive.sges, GRH, payload, 0).is_err())
        {
            completion.status = WcStatus::LocProtErr;
        } else {
            completion.byte_len = total as u32;
            completion = completion.with_value(headers.immediate, None).with_grh(grh == Ok(true));
            completion.solicited = headers.bth.solicited;
            self.resp.count_message(payload.len() as u64);
        }
        if completion.status != WcStatus::Success {
            let asked = RequestedAccess::of(headers, payload.len());
            let cause = NakReason::BadReceive.cause(asked);
            let flushed = self.sq.len();
            let params = &self.params;
            let failure = Failure { cause, params, request: None, len: 0, receive: Some(&receive), flushed };
            self.reason = env.failed(&failure);
            completion.vendor_err = vendor_err(self.reason);
        }
        env.complete_recv(completion, 0);
        if completion.status != WcStatus::Success {
            self.enter_error(env);
        }
    }
}
