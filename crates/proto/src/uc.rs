//! Unreliable connections (IBTA 9.8.2): nothing is acknowledged, and a message that loses a packet is gone.

use crate::execute::{Message, begins};
use crate::responder::Refusal;
use crate::{Env, Instant, Qp, QpState, TransmitError, WcStatus, psn};
use ferroce_wire::Headers;

impl<A: Clone> Qp<A> {
    /// Sends requests of a UC QP; each ends when its last packet has left.
    pub(crate) fn send_unacknowledged<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        env: &mut E,
        budget: &mut u32,
    ) -> bool {
        while matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.report_drained(env);
            let number = self.req.cursor;
            let packet = self.req.packet;
            if self.state == QpState::Sqd && packet == 0 {
                return false;
            }
            let first = self.req.next - u64::from(packet);
            let Some(wqe) = self.sq.get_mut(number) else { return false };
            if wqe.wr.op.is_local() {
                self.execute_locally(env);
                continue;
            }
            if *budget == 0 {
                return true;
            }
            wqe.first = first;
            let (_, bytes) = wqe.slice(packet, self.params.path_mtu.max(1));
            if self.req.is_throttled(now, &self.params) {
                return false;
            }
            let Some(wqe) = self.sq.get(number) else { return false };
            let request = self.request(wqe, packet, 1);
            let packets = wqe.packets;
            match env.transmit(&request.headers, request.source, None) {
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
            if self.req.sent_unacknowledged(packets) {
                self.complete_front(WcStatus::Success, env);
            }
        }
        false
    }

    /// Takes a request packet of a UC QP. Errors drop the message in silence and keep the receive for the next one; only
    /// a receive whose own memory is wrong ends the QP.
    pub(crate) fn handle_unacknowledged<E: Env<Address = A>>(
        &mut self,
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) {
        self.note_established(env);
        let number = psn::extend(self.resp.expected, headers.bth.psn);
        if number < self.resp.expected {
            self.counters.duplicates += 1;
            return;
        }
        let opcode = headers.bth.opcode;
        if number > self.resp.expected {
            self.counters.out_of_order += 1;
        }
        if (number > self.resp.expected || begins(opcode)) && self.resp.message != Message::None {
            self.counters.dropped_messages += 1;
            self.resp.message = Message::None;
        }
        self.resp.expected = number + 1;
        if self.resp.message == Message::None && !begins(opcode) {
            // The rest of a message that was lost.
            return;
        }
        let result = if opcode.is_send() {
            self.execute_send(headers, payload, env)
        } else {
            self.execute_write(headers, payload, env)
        };
        match result {
            Ok(()) => {}
            Err(Refusal::BadReceive) => {
                self.report_refusal(Refusal::BadReceive, env);
                self.enter_error(env);
            }
            Err(_) => {
                self.counters.dropped_messages += 1;
                self.resp.message = Message::None;
            }
        }
    }
}
