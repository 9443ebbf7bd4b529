//! The short way of a small RDMA WRITE or READ: carried out at once, without a packet, on a connection without outstanding
//! requests.
//!
//! As with SENDs ([`crate::PlainSend`]), a function either does all that the general way would do, or nothing, and returns that.

use crate::{QpProtocol, SendOp, SendRequest};
use ferroce_types::{Completion, WcOpcode, WcStatus};

impl<A: Clone> QpProtocol<A> {
    /// Whether an RDMA WRITE or READ of one byte or more that is posted now may be carried out at once: all before it have ended, and
    /// the peer is known to expect the PSNs that are sent.
    #[must_use]
    #[inline(always)]
    pub fn may_reach_peer(&self, reads: bool) -> bool {
        let req = &self.req;
        self.params.lossless
            && self.may_send_at_once()
            && req.has_been_answered()
            && self.sq.is_empty()
            && req.una == req.max
            && (!reads || self.params.max_rd_atomic > 0)
    }

    /// The request for which [`QpProtocol::may_reach_peer`] has been asked was carried out: its completion, if it asks for one.
    #[must_use]
    #[inline(always)]
    pub fn reached_peer(&mut self, request: &SendRequest<'_, A>) -> Option<Completion> {
        let len = request.data.len() as u32;
        self.sq.count_passed(len);
        let (opcode, byte_len) = match request.op {
            SendOp::Read { .. } => (WcOpcode::RdmaRead, len),
            _ => (WcOpcode::RdmaWrite, 0),
        };
        let src_qp = self.params.dest_qpn;
        let completion = Completion::new(request.wr_id, WcStatus::Success, opcode);
        request.signaled.then_some(Completion { byte_len, src_qp, ..completion })
    }
}
