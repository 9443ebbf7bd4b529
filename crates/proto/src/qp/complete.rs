//! How work requests end, and what becomes of the QP when one fails.

use crate::state::{Issuer, Wqe};
use crate::tags::OwnEnd;
use crate::{Cause, Env, QpEvent, QpProtocol, SendEnds, SendOp, TagInfo};
use ferroce_types::{Completion, QpState, WcOpcode, WcStatus, vendor_err};

impl<A: Clone> QpProtocol<A> {
    /// Ends the oldest send request, which is removed before its completion is given.
    pub(crate) fn complete_front<E: Env<Address = A>>(&mut self, status: WcStatus, env: &mut E) {
        let Some(wqe) = self.sq.front() else { return };
        if wqe.issuer == Issuer::Program {
            return self.end_front(status, env);
        }
        let end = self.own_end(wqe, status);
        self.sq.drop_front();
        self.req.forget_before(self.sq.head());
        match end {
            // The data have come with answers of the peer, so it waits for no acknowledgement.
            Some(OwnEnd::Data(completion)) => env.complete_tagged(completion, 0, TagInfo::default()),
            // No completion reports that the FIN couldn't be sent.
            Some(OwnEnd::LostFin) => env.event(QpEvent::Fatal),
            None => {}
        }
    }

    /// Removes the oldest request, which is the program's, and gives it to `ends`, and then its completion if it has one. The request is no
    /// longer in the queue when it completes: a panic in the completion queue has it complete at most once.
    #[inline]
    pub(crate) fn end_front(&mut self, status: WcStatus, ends: &mut impl SendEnds<Address = A>) {
        let Some(wqe) = self.sq.front() else { return };
        let completes = wqe.wr.signaled || status != WcStatus::Success;
        let completion = completes.then(|| self.send_completion(wqe, status));
        ends.retire(&wqe.wr, status);
        self.sq.drop_front();
        self.req.forget_before(self.sq.head());
        if let Some(completion) = completion {
            ends.complete_send(completion);
        }
    }

    pub(crate) fn send_completion(&self, wqe: &Wqe<A>, status: WcStatus) -> Completion {
        let (opcode, byte_len) = match wqe.wr.op {
            SendOp::Send | SendOp::SendWithImmediate { .. } | SendOp::SendWithInvalidate { .. } => {
                (WcOpcode::Send, 0)
            }
            SendOp::Write { .. } | SendOp::WriteWithImmediate { .. } => (WcOpcode::RdmaWrite, 0),
            SendOp::Read { .. } => (WcOpcode::RdmaRead, wqe.len),
            SendOp::CompareSwap { .. } => (WcOpcode::CompSwap, 8),
            SendOp::FetchAdd { .. } => (WcOpcode::FetchAdd, 8),
            SendOp::LocalInvalidate { .. } => (WcOpcode::LocalInv, 0),
            SendOp::AtomicWrite { .. } => (WcOpcode::AtomicWrite, 0),
            SendOp::Flush { .. } => (WcOpcode::Flush, 0),
            SendOp::BindMw(_) => (WcOpcode::BindMw, 0),
        };
        Completion {
            byte_len,
            src_qp: self.params.dest_qpn,
            vendor_err: vendor_err(self.reason_of(status)),
            ..Completion::new(wqe.wr.wr_id, status, opcode)
        }
    }

    /// Carries out the oldest send request, which is one without packets.
    pub(crate) fn execute_locally<E: Env<Address = A>>(&mut self, env: &mut E) {
        let Some(wqe) = self.sq.front() else { return };
        let done = match &wqe.wr.op {
            SendOp::BindMw(bind) => env.bind_window(bind).is_ok(),
            SendOp::LocalInvalidate { rkey } => env.invalidate(*rkey).is_ok(),
            _ => return,
        };
        if done {
            self.complete_front(WcStatus::Success, env);
        } else {
            self.fail_front(Cause::Window, env);
        }
    }

    /// Ends the oldest send request with an error that stops the QP: RC and XRC go to ERR, UC and UD to SQE.
    pub(crate) fn fail_front<E: Env<Address = A>>(&mut self, cause: Cause, env: &mut E) {
        self.note_failure(cause, true, env);
        match cause.status() {
            WcStatus::RetryExcErr => self.counters.retries_exceeded += 1,
            WcStatus::RnrRetryExcErr => self.counters.rnr_retries_exceeded += 1,
            _ => {}
        }
        self.complete_front(cause.status(), env);
        if self.is_reliable() {
            self.end_answers(env);
            self.enter_error(env);
        } else {
            self.state = QpState::Sqe;
            self.flush_send_queue(env);
        }
    }

    /// To ERR, with everything flushed. What the responder still owes its peer (a NAK) is left to be sent.
    pub(crate) fn enter_error<E: Env<Address = A>>(&mut self, env: &mut E) {
        let entered = self.state != QpState::Err;
        self.state = QpState::Err;
        self.flush_send_queue(env);
        self.resp.delegated.end_run();
        self.forget_kept(env);
        if let Some(held) = self.resp.take_held() {
            self.complete_held(self.recv_completion(held.wr_id, WcStatus::WrFlushErr), env);
        }
        env.flush_recv_queue();
        if entered && self.params.srq {
            env.event(QpEvent::LastWqeReached);
        }
    }

    pub(crate) fn flush_send_queue<E: Env<Address = A>>(&mut self, env: &mut E) {
        while !self.sq.is_empty() {
            self.complete_front(WcStatus::WrFlushErr, env);
        }
        self.req.halt(self.sq.head());
    }

    /// A receive completion without bytes.
    pub(crate) fn recv_completion(&self, wr_id: u64, status: WcStatus) -> Completion {
        Completion {
            src_qp: self.params.dest_qpn,
            vendor_err: vendor_err(self.reason_of(status)),
            ..Completion::new(wr_id, status, WcOpcode::Recv)
        }
    }

    /// On the first packet in RTR, raises the event "communication established" (IBTA 11.6.3.1).
    pub(crate) fn note_established<E: Env<Address = A>>(&mut self, env: &mut E) {
        if self.state == QpState::Rtr && !self.resp.established {
            self.resp.established = true;
            env.event(QpEvent::CommunicationEstablished);
        }
    }

    /// In SQD: are all started requests done?
    pub(crate) fn report_drained<E: Env<Address = A>>(&mut self, env: &mut E) {
        if self.req.draining && self.req.is_quiet(self.sq.head()) {
            self.req.draining = false;
            env.event(QpEvent::SqDrained);
        }
    }
}
