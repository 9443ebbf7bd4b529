//! The short way of a plain SEND: one packet, on a connection where nothing is unusual.
//!
//! Each function either does all that the general way would do, or nothing, and returns that: the caller then takes the general
//! way. So the general way has all the rules, and these functions only what remains of them for such messages.

use crate::state::{Issuer, SMALLEST_CHARGE, Sample};
use crate::{Env, Payload, QpProtocol, ReceivedWhole, SendEnds, SendOp, SendRequest, psn};
use ferroce_types::{Completion, Instant, QpState, RecvWqe, WcStatus};
use ferroce_wire::{Bth, Headers, Opcode, Operation, Reth, Service};

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

impl PlainSend {
    /// What has come, if it is a SEND of RC in one packet.
    #[must_use]
    #[inline]
    pub fn of(headers: &Headers) -> Option<Self> {
        let Headers { bth, immediate, .. } = headers;
        let has_immediate = match bth.opcode {
            Opcode { service: Service::Rc, operation: Operation::SendOnly } => false,
            Opcode { service: Service::Rc, operation: Operation::SendOnlyWithImmediate } => true,
            _ => return None,
        };
        (immediate.is_some() == has_immediate).then(|| Self::new(bth, *immediate))
    }

    /// A SEND with this BTH and these immediate data.
    #[must_use]
    #[inline]
    pub const fn new(bth: &Bth, immediate: Option<[u8; 4]>) -> Self {
        let Bth { psn, pkey, solicited, ack_request, .. } = *bth;
        Self { psn, pkey, solicited, ack_request, immediate }
    }
}

impl<A: Clone> QpProtocol<A> {
    /// Nothing is unusual: what is posted now may leave at once, after all that was posted before.
    #[inline(always)]
    pub(crate) fn may_send_at_once(&self) -> bool {
        self.state == QpState::Rts
            && self.service == Service::Rc
            && self.answers.is_empty()
            && self.req.has_sent_all(self.sq.tail())
            && self.params.rate.is_none()
            && self.sq.has_room(0)
    }

    /// A request has left at once where nothing is lost: starts the local ACK timer, if none runs, and returns when that runs out.
    #[inline(always)]
    pub(crate) fn start_ack_timer(&mut self, now: impl FnOnce() -> Instant) -> Option<Instant> {
        if self.req.ack_deadline.is_some() {
            return None;
        }
        self.req.arm(now(), &self.params);
        self.req.ack_deadline
    }

    /// The PSN of a SEND or a WRITE of `len` bytes if it may leave at once, in one packet and after all that was posted before. `window`:
    /// [`Env::window`].
    #[must_use]
    #[inline(always)]
    pub fn plain_psn(&self, len: u64, window: impl FnOnce() -> u32) -> Option<u32> {
        let ready =
            len <= u64::from(self.mtu()) && self.may_send_at_once() && self.has_window_at_once(len, window);
        ready.then(|| psn::wire(self.req.next))
    }

    /// The window lets a packet that costs `len` bytes leave at once.
    #[inline(always)]
    pub(crate) fn has_window_at_once(&self, len: u64, window: impl FnOnce() -> u32) -> bool {
        self.params.lossless || !self.gathers_short() && self.req.has_window(len, window())
    }

    /// The SEND or WRITE for which [`QpProtocol::plain_psn`] gave the PSN has left. Returns when [`QpProtocol::handle_timeout`] wants to be called for
    /// it, unless that was to be called earlier anyway. Where nothing is lost, `now` is asked only if no other request is waited for.
    #[inline(always)]
    pub fn plain_sent(
        &mut self,
        now: impl FnOnce() -> Instant,
        request: &SendRequest<'_, A>,
    ) -> Option<Instant> {
        let psn = self.req.next;
        let len = self.sq.push(request, (1, psn), Issuer::Program).len;
        self.counters.requests_sent += 1;
        self.req.sent_plain(u64::from(len), matches!(request.op, SendOp::Write { .. }));
        self.start_timers(now, psn)
    }

    /// The packet with this PSN has left at once: starts the timers, and returns when the next of them runs out if it may be the first to do
    /// so. Where nothing is lost, `now` is asked only if no other request is waited for.
    #[inline(always)]
    pub(crate) fn start_timers(&mut self, now: impl FnOnce() -> Instant, psn: u64) -> Option<Instant> {
        if self.params.lossless {
            return self.start_ack_timer(now);
        }
        let (at, in_flight) = (now(), self.req.in_flight);
        self.req.sample.get_or_insert(Sample { psn, at, in_flight, probe: None });
        self.req.arm(at, &self.params);
        self.req.next_timeout()
    }

    /// A request for data is outstanding: acknowledgements of other requests may come before its answer.
    #[must_use]
    #[inline]
    pub const fn awaits_data(&self) -> bool {
        self.req.unfinished_reads > 0
    }

    /// The peer has executed the SEND with this PSN, for which [`QpProtocol::plain_psn`] gave it, and everything before: as an
    /// acknowledgement that came as a packet.
    #[inline]
    pub fn plain_executed<E: Env<Address = A>>(&mut self, now: Instant, psn: u32, env: &mut E) {
        let number = psn::extend(self.req.una, psn);
        let is_awaited = matches!(self.state, QpState::Rts | QpState::Sqd)
            && (self.req.una..self.req.max).contains(&number);
        if is_awaited {
            self.acknowledge(now, number + 1, env);
            self.settle(env);
        }
    }

    /// As [`QpProtocol::plain_executed`], for requests that need only completions: gives each request that ends to `ends`, and its
    /// completion if it is signaled. `now` is called only if other packets are outstanding. False: call [`QpProtocol::plain_executed`] for
    /// the rest.
    #[inline]
    pub fn take_executed(
        &mut self,
        now: impl FnOnce() -> Instant,
        psn: u32,
        ends: &mut impl SendEnds<Address = A>,
    ) -> bool {
        let (before, number) = (self.req.una, psn::extend(self.req.una, psn));
        let is_unusual = self.req.error.is_some() || self.req.recovery.is_some();
        if self.state != QpState::Rts || is_unusual || number >= self.req.max {
            return false;
        }
        let mut bytes = 0;
        while self.req.una <= number
            && let Some(wqe) = self.sq.front()
            && wqe.packets == 1
            && wqe.issuer == Issuer::Program
            && !wqe.wants_data()
        {
            bytes += SMALLEST_CHARGE.max(u64::from(wqe.len));
            self.req.una = wqe.end();
            self.end_front(WcStatus::Success, ends);
        }
        if self.req.una > before {
            // Without outstanding packets and without a sample, the time isn't used.
            let quiet = self.req.una == self.req.max && self.req.sample.is_none();
            self.moved(if quiet { Instant::default() } else { now() }, bytes);
        }
        self.req.una > number
    }

    /// Takes an acknowledgement that has come as a packet with this BTH and is neither a NAK nor asks for time. False: the caller takes the
    /// general way, which goes on where this has ended. `ends` is that of [`QpProtocol::take_executed`].
    #[inline]
    pub fn take_acknowledgement(
        &mut self,
        now: Instant,
        bth: &Bth,
        ends: &mut impl SendEnds<Address = A>,
    ) -> bool {
        let is_new = psn::extend(self.req.una, bth.psn) >= self.req.una;
        let done = is_new && bth.pkey == self.params.pkey && self.take_executed(|| now, bth.psn, ends);
        self.counters.packets_received += u64::from(done);
        done
    }

    /// Whether a SEND of `len` bytes that has come in one packet is as usual: it is the next, and may be executed at once.
    #[must_use]
    #[inline]
    pub fn expects_plain(&self, send: &PlainSend, len: usize) -> bool {
        self.expects(send.psn, send.pkey) && !self.params.tags && len <= self.mtu() as usize
    }

    /// Whether a request that has come in one packet with this PSN and partition key is the next.
    #[inline]
    pub(crate) fn expects(&self, psn: u32, pkey: u16) -> bool {
        let receives = match self.state {
            QpState::Rts | QpState::Sqd => true,
            // The first packet raises an event.
            QpState::Rtr => self.resp.established,
            _ => false,
        };
        receives
            && self.service == Service::Rc
            && pkey == self.params.pkey
            && psn == psn::wire(self.resp.expected)
            && self.resp.is_between_messages()
    }

    /// A SEND of `len` bytes that was expected has been placed in its receive. The caller then publishes [`QpProtocol::plain_completion`].
    #[inline]
    pub fn plain_taken(&mut self, send: &PlainSend, len: usize) {
        self.resp.count_plain(len as u64);
        self.accept(1, send.ack_request);
    }

    /// Whether a WRITE of `len` bytes that has come in one packet is as usual: it is the next, and its QP permits it.
    #[must_use]
    #[inline]
    pub fn expects_write(&self, bth: &Bth, reth: &Reth, len: usize) -> bool {
        self.expects(bth.psn, bth.pkey)
            && self.params.access.remote_write
            && reth.dma_len as usize == len
            && len <= self.mtu() as usize
    }

    /// A WRITE of `len` bytes that was expected has been placed.
    #[inline]
    pub fn write_taken(&mut self, bth: &Bth, len: usize) {
        self.counters.packets_received += 1;
        self.resp.count_message(len as u64);
        self.accept(1, bth.ack_request);
    }

    /// The completion of the receive `wr_id` of a SEND of `len` bytes that was taken.
    #[must_use]
    #[inline]
    pub fn plain_completion(&self, send: &PlainSend, len: usize, wr_id: u64) -> Completion {
        let completion = self.recv_completion(wr_id, WcStatus::Success).with_value(send.immediate, None);
        Completion { byte_len: len as u32, solicited: send.solicited, ..completion }
    }

    /// The next message has been given `receive`, though it may not fit into it: the general way uses the receive, and reports an error.
    pub fn hold_receive(&mut self, receive: RecvWqe) {
        self.resp.held = Some(receive);
    }

    /// Takes a SEND of one packet. False: the caller takes the general way, which uses the receive that may have been taken for it.
    #[inline]
    pub fn take_plain<E: Env<Address = A>>(
        &mut self,
        send: &PlainSend,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) -> bool {
        let len = payload.len();
        if !self.expects_plain(send, len) {
            return false;
        }
        let wr_id = match env.receive_whole(payload) {
            ReceivedWhole::Placed(wr_id) => wr_id,
            ReceivedWhole::NoReceive => return false,
            ReceivedWhole::Refused(receive) => {
                self.hold_receive(receive);
                return false;
            }
        };
        let number = self.resp.expected;
        self.plain_taken(send, len);
        env.complete_recv(self.plain_completion(send, len, wr_id), number);
        true
    }
}
