//! Unreliable connections (IBTA 9.8.2): nothing is acknowledged, and a message that loses a packet is gone.

use crate::state::{MessageProgress, NakReason, begins};
use crate::{Env, Payload as _, QpProtocol, RequestedAccess, psn};
use ferroce_wire::Headers;

impl<A: Clone> QpProtocol<A> {
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
        if (number > self.resp.expected || begins(opcode)) && self.resp.message != MessageProgress::None {
            self.counters.dropped_messages += 1;
            self.resp.message = MessageProgress::None;
        }
        self.resp.expected = number + 1;
        if self.resp.message == MessageProgress::None && !begins(opcode) {
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
            Err(NakReason::BadReceive) => {
                let asked = RequestedAccess::of(headers, payload.len());
                self.note_failure(NakReason::BadReceive.cause(asked), false, env);
                self.report_refusal(NakReason::BadReceive, env);
                self.enter_error(env);
            }
            Err(_) => {
                self.counters.dropped_messages += 1;
                self.resp.message = MessageProgress::None;
            }
        }
    }
}
