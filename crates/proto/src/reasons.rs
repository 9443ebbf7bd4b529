//! Reporting why requests fail, and learning it from the peer.

use crate::{Cause, Env, Failure, Payload, PayloadSource, QpProtocol, Telling};
use core::time::Duration;
use ferroce_types::{Instant, QpState, WcStatus};
use ferroce_wire::Headers;

/// Packets from before the first PSN until that is reported.
const STRANGERS_TOLD: u8 = 3;

/// How long a request waits for a receive of the peer before that is reported.
const NOT_READY_TOLD: Duration = Duration::from_secs(3);

/// Bytes of the payload of a packet that comes before a NAK: the number, and zeros. A NAK itself carries two bytes, or none.
const BEFORE_NAK: usize = 4;

/// The payload of an acknowledgement with the number of a reason that its fabric lets it carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NumberedReason {
    Now(u16),
    Ahead(u16),
}

fn told(payload: &impl Payload) -> NumberedReason {
    let mut bytes = [0; 2];
    let number = match payload.len() {
        0 | 1 => 0,
        _ => payload.copy_first(&mut bytes).map_or(0, |()| u16::from_le_bytes(bytes)),
    };
    if payload.len() == BEFORE_NAK { NumberedReason::Ahead(number) } else { NumberedReason::Now(number) }
}

impl<A: Clone> QpProtocol<A> {
    /// The number of the reason for the NAK with this PSN, as the peer has sent it; 0: none. `None`: the packet isn't a NAK, but
    /// contains the number for the NAK that follows.
    #[cold]
    pub(crate) fn told(&mut self, psn: u64, payload: &impl Payload) -> Option<u16> {
        match told(payload) {
            NumberedReason::Ahead(number) => {
                self.req.told_ahead = Some((psn, number));
                None
            }
            NumberedReason::Now(0) => {
                Some(self.req.told_ahead.filter(|&(of, _)| of == psn).map_or(0, |(_, number)| number))
            }
            NumberedReason::Now(number) => Some(number),
        }
    }

    /// Sends a NAK, and the number of its reason if there is one; false: not now.
    #[cold]
    pub(crate) fn send_nak<E: Env<Address = A>>(&self, nak: &Headers, reason: u16, env: &mut E) -> bool {
        let mut bytes = [0; BEFORE_NAK];
        bytes[..2].copy_from_slice(&reason.to_le_bytes());
        let source = match env.telling() {
            Telling::WithNak if reason != 0 => PayloadSource::Bytes(&bytes[..2]),
            Telling::BeforeNak if reason != 0 => {
                if env.transmit(nak, PayloadSource::Bytes(&bytes), None).is_err() {
                    return false;
                }
                PayloadSource::None
            }
            _ => PayloadSource::None,
        };
        env.transmit(nak, source, None).is_ok()
    }

    /// The number of the reason for which the QP has failed; 0 if it hasn't, or because the program wants it.
    #[must_use]
    pub const fn reason(&self) -> u16 {
        self.reason
    }

    /// Reports why the QP is about to fail. Its send requests are flushed, except for the first one if it has `ended`.
    #[cold]
    pub(crate) fn note_failure<E: Env<Address = A>>(&mut self, cause: Cause, ended: bool, env: &mut E) {
        let front = self.sq.front().filter(|_| ended);
        let failure = Failure {
            cause,
            params: &self.params,
            request: front.map(|wqe| &wqe.wr),
            len: front.map_or(0, |wqe| wqe.len),
            receive: self.resp.held.as_ref(),
            flushed: self.sq.len() - u32::from(front.is_some()),
        };
        self.reason = env.failed(&failure);
    }

    /// A completion queue has no room for a completion of this QP: the caller moves the QP to ERR.
    pub fn note_overrun<E: Env<Address = A>>(&mut self, env: &mut E) {
        if !matches!(self.state, QpState::Reset | QpState::Err) {
            self.note_failure(Cause::Overrun, false, env);
        }
    }

    /// Reports something that doesn't end the QP. Returns the number of the reason.
    #[cold]
    pub(crate) fn remark<E: Env<Address = A>>(&self, cause: Cause, env: &mut E) -> u16 {
        let params = &self.params;
        env.failed(&Failure { cause, params, request: None, len: 0, receive: None, flushed: 0 })
    }

    /// Requests are flushed that were posted after the QP had failed.
    #[cold]
    pub(crate) fn remark_posted_after<E: Env<Address = A>>(&mut self, env: &mut E) {
        if self.reason != 0 && !self.told_posted_after {
            self.told_posted_after = true;
            self.remark_front(Cause::PostedAfter { reason: self.reason }, self.sq.len(), env);
        }
    }

    /// Reports something about the oldest send request that doesn't end the QP.
    #[cold]
    fn remark_front<E: Env<Address = A>>(&self, cause: Cause, flushed: u32, env: &mut E) {
        let front = self.sq.front();
        env.failed(&Failure {
            cause,
            params: &self.params,
            request: front.map(|wqe| &wqe.wr),
            len: front.map_or(0, |wqe| wqe.len),
            receive: None,
            flushed,
        });
    }

    /// The peer has no receive for the oldest packet. A wait without limit is reported once.
    #[cold]
    pub(crate) fn note_not_ready<E: Env<Address = A>>(&mut self, now: Instant, told: u16, env: &mut E) {
        let waited = now.since(*self.req.not_ready_since.get_or_insert(now));
        if waited >= NOT_READY_TOLD && self.params.rnr_retry == 7 && !self.req.told_not_ready {
            self.req.told_not_ready = true;
            self.remark_front(Cause::StillNotReady { waited, told }, 0, env);
        }
    }

    /// A packet has come from before the first PSN, and none that was executed.
    #[cold]
    pub(crate) fn remark_stranger<E: Env<Address = A>>(&mut self, psn: u32, env: &mut E) {
        self.resp.strangers = self.resp.strangers.saturating_add(1);
        if self.resp.strangers == STRANGERS_TOLD {
            self.remark(Cause::BeforeFirst { psn, expected: self.resp.expected_psn() }, env);
        }
    }

    /// The reason that a completion with this status has.
    #[inline]
    pub(crate) fn reason_of(&self, status: WcStatus) -> u16 {
        if matches!(status, WcStatus::Success) { 0 } else { self.reason }
    }
}
