//! Unreliable datagrams (IBTA 9.8.3): one packet is one message, to and from anybody who knows the Q_Key.

use crate::{Env, Instant, Payload, Qp, QpState, TransmitError, Violation, WcStatus, psn};
use ferroce_wire::{Deth, Headers};

/// Bytes of the GRH before the payload in every UD receive.
const GRH: u64 = 40;
/// A work request's Q_Key with this bit asks for the QP's own (IBTA 10.2.5).
const PRIVILEGED: u32 = 1 << 31;

impl<A: Clone> Qp<A> {
    /// Sends requests of a UD QP; each ends when its packet has left.
    pub(crate) fn send_datagrams<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        env: &mut E,
        budget: &mut u32,
    ) -> bool {
        while matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.report_drained(env);
            if self.state == QpState::Sqd {
                return false;
            }
            let number = self.req.cursor;
            let first = self.req.next;
            let Some(wqe) = self.sq.get_mut(number) else { return false };
            if *budget == 0 {
                return true;
            }
            wqe.first = first;
            let bytes = wqe.len;
            if self.req.is_throttled(now, &self.params) {
                return false;
            }
            let Some(wqe) = self.sq.get(number) else { return false };
            let Some(target) = wqe.wr.ud.as_ref() else { return false };
            let mut request = self.request(wqe, 0, 1);
            request.headers.bth.dest_qp = target.qpn & 0x00ff_ffff;
            let qkey = if target.qkey & PRIVILEGED == 0 { target.qkey } else { self.params.qkey };
            request.headers.deth = Some(Deth { qkey, src_qp: self.qpn });
            match env.transmit(&request.headers, request.source, Some(&target.address)) {
                Ok(()) => {}
                Err(TransmitError::Blocked) => return false,
                Err(TransmitError::Later(at)) => {
                    self.req.paced_until = Some(at);
                    return false;
                }
                Err(TransmitError::Local | TransmitError::Remote(_)) => {
                    self.fail_front(WcStatus::LocProtErr, env);
                    continue;
                }
            }
            self.counters.requests_sent += 1;
            self.req.note_sent(now, bytes, &self.params);
            *budget = budget.saturating_sub(bytes.max(64));
            self.req.sent_unacknowledged(1);
            self.complete_front(WcStatus::Success, env);
        }
        false
    }

    /// Takes a datagram. A receive that is too small for GRH and payload ends with LOC_LEN_ERR and the QP with it.
    pub(crate) fn handle_datagram<E: Env<Address = A>>(
        &mut self,
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) {
        let Some(deth) = headers.deth else { return };
        if deth.qkey != self.params.qkey {
            self.counters.qkey_violations += 1;
            env.violation(Violation::QKey);
            return;
        }
        self.resp.expected = psn::extend(self.resp.expected, headers.bth.psn).wrapping_add(1);
        let Some(receive) = env.next_recv() else {
            self.counters.dropped_messages += 1;
            return;
        };
        let total = GRH + payload.len() as u64;
        let mut completion = self.recv_completion(receive.wr_id, WcStatus::Success);
        completion.src_qp = deth.src_qp;
        if total > receive.capacity() {
            completion.status = WcStatus::LocLenErr;
        } else if env.place_grh(&receive.sges).is_err()
            || (!payload.is_empty() && env.place(&receive.sges, GRH, payload, 0).is_err())
        {
            completion.status = WcStatus::LocProtErr;
        } else {
            completion.byte_len = total as u32;
            completion.immediate = headers.immediate;
            completion.grh = true;
            completion.solicited = headers.bth.solicited;
            self.resp.count_message();
        }
        env.complete_recv(completion);
        if completion.status != WcStatus::Success {
            self.enter_error(env);
        }
    }
}
