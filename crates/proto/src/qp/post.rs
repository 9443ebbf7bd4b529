//! What is taken into the send queue.

use crate::state::{Issuer, Wqe};
use crate::{Data, DataRef, MAX_MESSAGE, PostError, QpProtocol, SendOp, SendRequest};
use ferroce_types::QpState;
use ferroce_wire::Service;

impl<A: Clone> QpProtocol<A> {
    /// Takes a send work request. Nothing leaves before [`QpProtocol::transmit`]; in ERR and SQE that call flushes it.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_send(&mut self, request: &SendRequest<'_, A>) -> Result<(), PostError> {
        self.check_post(request, 0)?;
        self.enqueue(request, Issuer::Program);
        Ok(())
    }

    /// Adds a work request of the program or of the adapter to the send queue.
    pub(crate) fn enqueue(&mut self, request: &SendRequest<'_, A>, issuer: Issuer) {
        let packets = packets(&request.op, request.data.len() as u32, self.mtu());
        self.sq.push(request, (packets, 0), issuer);
    }

    /// Whether what was posted last may wait for the next acknowledgement, so that it leaves in one train with what is posted until then: it
    /// is short, and many packets before it aren't acknowledged yet. An acknowledgement, or the timer that waits for it, has
    /// [`QpProtocol::transmit`] called.
    #[must_use]
    pub fn may_wait_for_more(&self) -> bool {
        /// Requests that leave together.
        const TRAIN: u64 = 32;
        const SHORT: u32 = 1024;
        let (req, tail) = (&self.req, self.sq.tail());
        self.state == QpState::Rts
            && self.is_reliable()
            && !self.params.lossless
            && req.error.is_none()
            && self.gathers_short()
            && req.next == req.max
            && tail - req.cursor < TRAIN
            && self.sq.get(tail.wrapping_sub(1)).is_some_and(|last| last.len <= SHORT)
    }

    /// So many packets aren't acknowledged that short requests wait for one another.
    #[inline]
    pub(crate) fn gathers_short(&self) -> bool {
        const UNDER_WAY: u64 = 8;
        self.req.next - self.req.una >= UNDER_WAY
    }

    /// Whether [`QpProtocol::post_send`] would take a send work request after `before` others.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn check_post(&self, wr: &SendRequest<'_, A>, before: u32) -> Result<(), PostError> {
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State(self.state));
        }
        let longest = match self.service {
            Service::Ud => u64::from(self.params.path_mtu).min(MAX_MESSAGE),
            _ => MAX_MESSAGE,
        };
        if !self.offers(wr) {
            return Err(PostError::Operation);
        }
        if wr.data.len() > longest {
            return Err(PostError::Length { len: wr.data.len(), most: longest });
        }
        if !self.sq.has_room(before) {
            return Err(PostError::QueueFull);
        }
        Ok(())
    }

    /// Send requests of the program that haven't ended and have an element with this local key.
    #[must_use]
    pub fn sends_naming(&self, lkey: u32) -> usize {
        let names = |wqe: &&Wqe<A>| match &wqe.wr.data {
            Data::Sges(sges) => sges.iter().any(|sge| sge.lkey == lkey && sge.length > 0),
            Data::Inline(_) => false,
        };
        let all = (self.sq.head()..self.sq.tail()).filter_map(|number| self.sq.get(number));
        all.filter(|wqe| wqe.issuer == Issuer::Program).filter(names).count()
    }

    /// Does the service have this operation?
    fn offers(&self, wr: &SendRequest<'_, A>) -> bool {
        let inline = matches!(wr.data, DataRef::Inline(_));
        match (self.service, &wr.op) {
            (Service::Ud, SendOp::Send | SendOp::SendWithImmediate { .. }) => wr.ud.is_some(),
            (Service::Ud, _) => false,
            (
                _,
                SendOp::Send
                | SendOp::SendWithImmediate { .. }
                | SendOp::Write { .. }
                | SendOp::WriteWithImmediate { .. }
                | SendOp::LocalInvalidate { .. }
                | SendOp::BindMw(_),
            ) => true,
            (Service::Rc | Service::Xrc, SendOp::SendWithInvalidate { .. }) => true,
            (
                Service::Rc | Service::Xrc,
                SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. },
            ) => !inline,
            (Service::Rc, SendOp::AtomicWrite { .. }) => wr.data.len() == 8,
            (Service::Rc, SendOp::Flush { placement, .. }) => placement.bits() != 0 && wr.data.is_empty(),
            _ => false,
        }
    }
}

/// PSNs that a work request takes.
pub(super) fn packets(op: &SendOp, len: u32, mtu: u32) -> u32 {
    match op {
        SendOp::LocalInvalidate { .. } | SendOp::BindMw(_) => 0,
        SendOp::CompareSwap { .. }
        | SendOp::FetchAdd { .. }
        | SendOp::AtomicWrite { .. }
        | SendOp::Flush { .. } => 1,
        _ => len.div_ceil(mtu).max(1),
    }
}
