//! The short way of a plain SEND: one packet, on a connection where nothing is unusual.
//!
//! Each function either does all that the general way would do, or says that it hasn't: the caller then takes the general
//! way, which ends as if nothing had been tried. So the rules are in one place, and this one holds for messages for which they come down to little.

use crate::sendq::{Issuer, Wqe};
use crate::{Buffer, Completion, Env, Instant, Payload, Qp, QpState, SendWr, WcOpcode, WcStatus, psn};
use ferroce_wire::Service;

/// A SEND that has come in one packet.
#[derive(Clone, Copy, Debug)]
pub struct PlainSend {
    /// Packet sequence number.
    pub psn: u32,
    /// Partition key.
    pub pkey: u16,
    /// Its completion raises an event that was asked for solicited completions.
    pub solicited: bool,
    /// The requester wants an acknowledgement.
    pub ack_request: bool,
    /// Immediate data, as they came.
    pub immediate: Option<[u8; 4]>,
}

impl<A: Clone> Qp<A> {
    /// The PSN of a SEND of `len` bytes if it may leave at once, in one packet and after all that was posted before.
    #[must_use]
    #[inline]
    pub fn plain_psn(&self, len: u64) -> Option<u32> {
        let req = &self.req;
        let ready = self.state == QpState::Rts
            && self.service == Service::Rc
            && self.params.lossless
            && len <= u64::from(self.mtu())
            && self.answers.is_empty()
            && req.has_sent_all(self.sq.tail())
            && self.params.rate.is_none()
            && self.sq.has_room(0);
        ready.then(|| psn::wire(req.next))
    }

    /// The SEND for which [`Qp::plain_psn`] gave the PSN has left. Returns when [`Qp::handle_timeout`] wants to be called for
    /// it, unless that was to be called earlier anyway.
    #[inline]
    pub fn plain_sent(&mut self, now: Instant, wr: SendWr<A>, len: u32) -> Option<Instant> {
        self.sq.push(Wqe { wr, len, packets: 1, first: self.req.next, issuer: Issuer::Program });
        self.counters.requests_sent += 1;
        let armed = self.req.ack_deadline.is_some();
        self.req.sent_plain(now, u64::from(len), &self.params);
        if armed { None } else { self.req.ack_deadline }
    }

    /// Takes a SEND of one packet. False: the general way has to, which uses the receive that may have been taken for it.
    #[inline]
    pub fn take_plain<E: Env<Address = A>>(
        &mut self,
        send: &PlainSend,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) -> bool {
        let usual = self.state == QpState::Rts
            && self.service == Service::Rc
            && send.pkey == self.params.pkey
            && send.psn == psn::wire(self.resp.expected)
            && self.resp.is_between_messages()
            && !self.params.tags
            && payload.len() <= self.mtu() as usize;
        if !usual {
            return false;
        }
        let Some(receive) = env.next_recv() else { return false };
        let len = payload.len();
        let fits = len as u64 <= receive.capacity();
        if !fits || (len > 0 && env.place(Buffer::Receive, &receive.sges, 0, payload, 0).is_err()) {
            // The general way uses the receive, and says what is wrong.
            self.resp.held = Some(receive);
            return false;
        }
        self.resp.count_message();
        env.complete_recv(Completion {
            opcode: WcOpcode::Recv,
            byte_len: len as u32,
            immediate: send.immediate,
            solicited: send.solicited,
            ..self.recv_completion(receive.wr_id, WcStatus::Success)
        });
        self.accept(1, send.ack_request);
        true
    }
}
