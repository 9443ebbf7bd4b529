//! The short way of a small RDMA WRITE or READ: carried out at once, without a packet, on a connection where nothing is under way.
//!
//! As with SENDs ([`crate::PlainSend`]), a function either does all that the general way would do, or says that it hasn't.

use crate::{Completion, Fetch, PlainData, Qp, SendOp, SendWr, WcOpcode, WcStatus};

/// An RDMA WRITE or READ that may take the short way: of one element of memory, or a WRITE of inline data.
#[derive(Clone, Copy, Debug)]
pub struct OneSided<'a> {
    /// Comes back with its completion.
    pub wr_id: u64,
    /// What it writes, or where it reads to.
    pub data: PlainData<'a>,
    /// It is a READ.
    pub reads: bool,
    /// The peer's address.
    pub va: u64,
    /// The peer's key.
    pub rkey: u32,
    /// It asks for a completion.
    pub signaled: bool,
    /// It waits for the READs and atomics before it.
    pub fence: bool,
}

impl<'a> OneSided<'a> {
    /// The same request as a fetch, if it is a READ.
    #[must_use]
    #[inline]
    pub fn fetch(&self) -> Option<Fetch> {
        let Self { wr_id, data: PlainData::Memory(sge), reads: true, va, rkey, signaled, fence } = *self
        else {
            return None;
        };
        Some(Fetch { wr_id, sge, op: SendOp::Read { va, rkey }, signaled, fence })
    }

    /// The same request, if it may take the short way.
    #[must_use]
    pub fn of<A>(wr: &'a SendWr<A>) -> Option<Self> {
        let (reads, va, rkey) = match wr.op {
            SendOp::Write { va, rkey } => (false, va, rkey),
            SendOp::Read { va, rkey } => (true, va, rkey),
            _ => return None,
        };
        let data = PlainData::of(&wr.data)?;
        let of_memory = matches!(data, PlainData::Memory(_));
        (of_memory || !reads).then_some(Self {
            wr_id: wr.wr_id,
            data,
            reads,
            va,
            rkey,
            signaled: wr.signaled,
            fence: wr.fence,
        })
    }
}

impl<A: Clone> Qp<A> {
    /// Whether an RDMA WRITE or READ of one byte or more that is posted now may be carried out at once: all before it have ended, and
    /// the peer is known to expect the PSNs that are sent.
    #[must_use]
    #[inline]
    pub fn may_reach_peer(&self, reads: bool) -> bool {
        let req = &self.req;
        self.may_send_at_once()
            && req.has_been_answered()
            && self.sq.len() == 0
            && req.una == req.max
            && (!reads || self.params.max_rd_atomic > 0)
    }

    /// The request for which [`Qp::may_reach_peer`] has been asked was carried out: its completion, if it asks for one.
    #[must_use]
    #[inline]
    pub fn reached_peer(&mut self, request: &OneSided<'_>) -> Option<Completion> {
        let len = request.data.len() as u32;
        self.sq.count_passed(len);
        let (opcode, byte_len) =
            if request.reads { (WcOpcode::RdmaRead, len) } else { (WcOpcode::RdmaWrite, 0) };
        let src_qp = self.params.dest_qpn;
        let completion = Completion::new(request.wr_id, WcStatus::Success, opcode);
        request.signaled.then_some(Completion { byte_len, src_qp, ..completion })
    }
}
