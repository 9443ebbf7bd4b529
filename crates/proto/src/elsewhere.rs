//! An XRC target whose SRQ is of another process: the request is executed there, one at a time, and answered here.

use crate::execute::{Message, ends};
use crate::responder::Refusal;
use crate::{Env, Qp, QpState};
use ferroce_wire::{Headers, NakCode};

/// Whose an SRQ is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SrqPlace {
    /// This process's: the environment executes what is asked for.
    Here,
    /// Another process's, to which requests are given ([`Env::delegate`]).
    Elsewhere,
    /// The target's domain has no such SRQ.
    Nowhere,
}

/// What became of a request that another process has executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Executed {
    /// It is done; the original value if it was an atomic.
    Done {
        /// In host byte order.
        original: u64,
    },
    /// No receive is posted.
    NotReady,
    /// The other process refuses it.
    Refused(NakCode),
}

/// A request that is being executed elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delegated {
    ack_request: bool,
    atomic: bool,
    ends: bool,
}

impl<A: Clone> Qp<A> {
    /// A request is being executed elsewhere: those after it wait, with the caller, until [`Qp::executed`].
    #[must_use]
    pub const fn is_delegating(&self) -> bool {
        self.resp.delegated.is_some()
    }

    /// Gives the expected request away.
    pub(crate) fn delegate<E: Env<Address = A>>(
        &mut self,
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) -> Refusal {
        let opcode = headers.bth.opcode;
        if !env.delegate(headers, payload) {
            return Refusal::Operational;
        }
        let (ack_request, atomic) = (headers.bth.ack_request, opcode.is_atomic());
        self.resp.delegated = Some(Delegated { ack_request, atomic, ends: atomic || ends(opcode) });
        Refusal::Elsewhere
    }

    /// The request that was given away has ended.
    pub fn executed<E: Env<Address = A>>(&mut self, executed: Executed, env: &mut E) {
        let Some(request) = self.resp.delegated.take() else { return };
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return;
        }
        let number = self.resp.expected;
        match executed {
            Executed::Done { original } => {
                self.resp.message = if request.ends { Message::None } else { Message::Elsewhere };
                if request.ends {
                    self.resp.count_message();
                }
                if request.atomic {
                    let keep = usize::from(self.params.max_dest_rd_atomic);
                    self.answers.atomic(number, original, self.resp.msn, keep);
                }
                self.accept(1, request.ack_request && !request.atomic);
            }
            Executed::NotReady => self.not_ready_for(number),
            Executed::Refused(code) => self.refuse(Refusal::of(code), number, env),
        }
    }

    /// Executes a request of another process's target, whichever PSN it has. Nothing is answered: the result says what the
    /// other process is to answer. A refusal takes the QP to ERR.
    pub fn execute_for<E: Env<Address = A>>(
        &mut self,
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) -> Executed {
        if !matches!(self.state, QpState::Rtr | QpState::Rts) || !crate::qp::has_extensions(headers) {
            return Executed::Refused(NakCode::RemoteOperationalError);
        }
        match self.execute_request(headers, payload, env) {
            Ok(_) => Executed::Done { original: self.answers.take_atomic() },
            Err(Refusal::NotReady | Refusal::Lost) => Executed::NotReady,
            Err(refusal) => {
                self.report_refusal(refusal, env);
                self.enter_error(env);
                Executed::Refused(refusal.nak())
            }
        }
    }
}

impl Refusal {
    const fn of(code: NakCode) -> Self {
        match code {
            NakCode::RemoteAccessError => Refusal::Access,
            NakCode::RemoteOperationalError => Refusal::Operational,
            _ => Refusal::Invalid,
        }
    }
}
