//! The requester of UC and UD: each request ends when its last packet has left.

use crate::{Cause, Env, QpProtocol, TransmitError};
use ferroce_types::{Instant, QpState, WcStatus};

impl<A: Clone> QpProtocol<A> {
    /// Sends requests until the budget, the pace, the fabric or the queue ends it; `true` for the budget.
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
            if self.req.is_throttled(now, &self.params) {
                return false;
            }
            let Some(wqe) = self.sq.get(number) else { return false };
            let mut request = self.request(wqe, packet, 1);
            let target = wqe.wr.ud.as_ref();
            if let Some(target) = target {
                self.address(&mut request.headers, target);
            }
            let (packets, bytes) = (wqe.packets, request.bytes);
            match env.transmit(&request.headers, request.source, target.map(|target| &target.address)) {
                Ok(()) => {}
                Err(TransmitError::Blocked | TransmitError::AwaitsMemory) => return false,
                Err(TransmitError::Later(at)) => {
                    self.req.paced_until = Some(at);
                    return false;
                }
                Err(TransmitError::Local | TransmitError::Remote(_)) => {
                    self.fail_front(Cause::LocalMemory, env);
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
}
