//! Plain SENDs: the short way, from the program's request to the ring or to the packet, and between two processes of a host from the ring
//! to the completion. [`SendRequest::is_plain`] returns whether a SEND is plain.

use super::broken::EndsOnPanic;
use super::payload::{fill_summed, scatter};
use super::{LockedQp, Path, Qp, QpEnv};
use crate::adapter::ThreadBuffers;
use crate::ah::Ah;
use crate::poller::Poller;
use ferroce_hostlink::{
    CompactHeaders, CompactRecord, CompactRun, Link, RingBytes, SendOutcome, SentPacket, ShmPayload,
    SinglePacket,
};
use ferroce_mem::{Denied, KeyTable, KeyUser};
use ferroce_os::clock;
use ferroce_os::sync::{MutexGuard, class};
use ferroce_proto::{DataRef, PayloadSource, PlainSend, SendOp, SendRequest};
use ferroce_queues::{RecvQueue, Srq};
use ferroce_types::{Completion, RecvWqe, Sge, WcStatus};
use ferroce_wire::{Bth, Headers, Opcode, Operation, Service};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How many messages at most are executed under one lock: a thread that posts a receive meanwhile waits.
const TOGETHER: usize = 16;
/// … and how many bytes there may be before the last of them.
const BYTES_TOGETHER: usize = 64 * 1024;

/// The numbers of the receives of messages that were executed under one lock.
type Receives = SmallVec<[u64; TOGETHER]>;

/// Where receives come from.
enum ReceiveSource<'a> {
    Own(MutexGuard<'a, class::ReceiveQueue, RecvQueue>),
    Shared(&'a Srq),
}

impl ReceiveSource<'_> {
    #[inline]
    fn pop(&mut self) -> Option<RecvWqe> {
        match self {
            Self::Own(queue) => queue.pop(),
            Self::Shared(queue) => queue.pop(),
        }
    }

    /// As the function of this name, if the receives are the QP's own.
    #[inline]
    fn place_front(&mut self, pd: u32, payload: &ShmPayload<'_>) -> Option<u64> {
        match self {
            Self::Own(queue) => place_front(queue, pd, payload),
            Self::Shared(_) => None,
        }
    }
}

/// Takes the next receive and copies a payload to its memory, if the receive has one element with room for all of the payload. Returns
/// the receive's number. `None`: the receive is still there.
#[inline]
fn place_front(queue: &mut RecvQueue, pd: u32, payload: &ShmPayload<'_>) -> Option<u64> {
    let &RecvWqe { wr_id, ref sges } = queue.front()?;
    let [sge] = &sges[..] else { return None };
    let placed = payload.len() <= sge.length as usize && place(pd, sge, payload);
    placed.then(|| {
        queue.drop_front();
        wr_id
    })
}

/// Copies a payload to an element of a receive that has room for all of it. False: the element isn't good for that.
#[inline(always)]
fn place(pd: u32, sge: &Sge, payload: &ShmPayload<'_>) -> bool {
    let len = payload.len();
    let part = Sge { length: len as u32, ..*sge };
    let copy = |addr| payload.copy_to(0, addr, len);
    KeyTable::global().local(pd, &part, true, copy).is_ok()
}

impl Qp {
    /// Copies the data of a request into the ring.
    #[inline(always)]
    fn fill_plain(&self, data: DataRef<'_>, ring: &RingBytes<'_>) -> Result<(), Denied> {
        match data {
            DataRef::Sges([sge]) => KeyTable::global()
                .local(self.pd.id(), sge, false, |addr| ring.copy_from(0, addr, sge.length as usize)),
            DataRef::Sges(_) => Err(Denied),
            DataRef::Inline(bytes) => {
                ring.put(bytes);
                Ok(())
            }
        }
    }

    /// Sends a SEND of `len` bytes without a bell. False, and nothing has happened: the general way has to.
    #[inline(always)]
    pub(super) fn send_plain(
        self: &Arc<Self>,
        inner: &mut LockedQp,
        request: &SendRequest<'_, Arc<Ah>>,
        len: u64,
    ) -> bool {
        let LockedQp { proto, connection, path: Some(Path::Shm { link, .. }), .. } = inner else {
            return false;
        };
        let SendRequest { data, solicited, .. } = *request;
        let (opcode, immediate) = opcode_of(&request.op);
        let usable = self.peer_uses_shm()
            && link.peer_takes_compact()
            && !self.is_broken()
            && !self.adapter.has_capture();
        let Some(psn) = proto.plain_psn(len, || u32::MAX).filter(|_| usable && request.is_plain()) else {
            return false;
        };
        // An answer that is awaited may come later than the position.
        let by_position = link.may_await() && !proto.awaits_data();
        let params = proto.params();
        let headers = CompactHeaders::of_send(
            opcode,
            (params.pkey, params.dest_qpn),
            psn,
            (solicited, immediate.map_or(0, u32::from_ne_bytes)),
            by_position,
        );
        let fill = |ring: &RingBytes<'_>| self.fill_plain(data, ring);
        let sent = link.send_plain(&headers, (self.qpn, *connection), len as usize, fill);
        // The general way finds the cause again.
        let SendOutcome::Published(end) = sent else { return false };
        self.last_request.store(end, Ordering::Relaxed);
        self.burst.forget();
        if let Some(at) = proto.plain_sent(|| self.adapter.engine.lately(), request) {
            self.adapter.schedule(self, at);
        }
        true
    }

    /// Adds a SEND of `len` bytes to the packets that leave for the network. False, and nothing has happened: the general way has to.
    #[inline]
    pub(super) fn send_packet(
        self: &Arc<Self>,
        inner: &mut LockedQp,
        work: &mut ThreadBuffers,
        request: &SendRequest<'_, Arc<Ah>>,
        len: u64,
    ) -> bool {
        let is_ecn_capable = inner.is_ecn_capable();
        let LockedQp { proto, path: Some(Path::Udp { dest, socket }), .. } = inner else { return false };
        let usable = request.is_plain() && !self.is_broken();
        let Some(psn) = proto.plain_psn(len, || socket.window()).filter(|_| usable) else { return false };
        let (opcode, immediate) = opcode_of(&request.op);
        let (params, solicited) = (proto.params(), request.solicited);
        let bth = Bth::new(opcode, params.dest_qpn, psn);
        let headers = Headers::new(Bth { pkey: params.pkey, solicited, ack_request: true, ..bth });
        let source = match request.data {
            DataRef::Sges(sges) => PayloadSource::Local { sges, offset: 0, len: len as u32 },
            DataRef::Inline(bytes) => PayloadSource::Bytes(bytes),
        };
        let by = KeyUser { pd: self.pd.id(), qp: self.serial };
        let marked = is_ecn_capable.then(|| dest.ecn_capable());
        let dest = marked.as_ref().unwrap_or(dest);
        let fill = |buf: &mut [u8], crc| fill_summed(by, source, buf, crc);
        if work.batch.packet(dest, &Headers { immediate, ..headers }, len as usize, fill).is_err() {
            return false;
        }
        if let Some(at) = proto.plain_sent(clock::now, request) {
            self.adapter.schedule(self, at);
        }
        true
    }

    /// Takes the next packets of a run for which that is possible the short way, under one lock and with one acknowledgement. False:
    /// there was none, and [`QpEnv::handle_compact`] has to take the next.
    #[inline]
    pub(crate) fn take_plain(
        self: &Arc<Self>,
        run: &mut CompactRun<'_>,
        mut poller: Option<&mut Poller<'_>>,
    ) -> bool {
        let may = run.next().is_some_and(|packet| run.is_by_position(packet));
        if !may || self.service != Service::Rc || !self.peer_uses_shm() {
            return false;
        }
        let before = run.settled().len();
        let mut receives = Receives::new();
        let mut inner = self.inner.lock();
        let unwinding = EndsOnPanic(self);
        self.take_sends(&mut inner, run, &mut receives);
        let executed = run.settled().len() > before;
        let overrun = executed && {
            // Acknowledged first, then the receives complete. The headers are read again: to keep what was read of them costs more.
            run.acknowledge();
            let (proto, link) = (&inner.proto, run.link());
            let mut told = run.settled()[before..].iter().zip(&receives).filter_map(|(packet, &wr_id)| {
                let (send, len) = (plain_send(&packet.headers, true)?, link.payload(packet).len());
                let completion = self.received(proto, &send, (len, wr_id));
                self.observe_receive(&completion);
                Some(completion)
            });
            let mut passes = |completion: &Completion| {
                poller.as_mut().is_some_and(|poller| poller.take_of(&self.recv_cq, completion))
            };
            let rest = told.by_ref().find(|completion| !passes(completion));
            rest.is_some_and(|first| !self.recv_cq.push_all(std::iter::once(first).chain(told)))
        };
        std::mem::forget(unwinding);
        drop(inner);
        if overrun {
            self.end_overrun();
        }
        executed
    }

    /// Takes a packet for a thread that polls for its completion, if that is possible the short way. False, and nothing has happened:
    /// [`Qp::take_plain`] has to.
    pub(crate) fn take_single(self: &Arc<Self>, single: SinglePacket<'_>, poller: &mut Poller<'_>) -> bool {
        let (link, packet) = (single.link(), single.packet());
        let Some(send) = plain_send(&packet.headers, true) else { return false };
        let may = self.service == Service::Rc && self.srq.is_none() && poller.polls(&self.recv_cq);
        if !may || !self.peer_uses_shm() {
            return false;
        }
        let mut inner = self.inner.lock();
        let unwinding = EndsOnPanic(self);
        let payload = link.payload(packet);
        let wr_id = if inner.goes_by(link)
            && !self.is_broken()
            && inner.held.is_empty()
            && inner.proto.expects_plain(&send, payload.len())
            && self.recv_cq.lets_pass()
        {
            place_front(&mut self.rq.lock(), self.pd.id(), &payload)
        } else {
            None
        };
        if let Some(wr_id) = wr_id {
            inner.proto.plain_taken(&send, payload.len());
            single.acknowledge();
            let completion = self.received(&inner.proto, &send, (payload.len(), wr_id));
            self.observe_receive(&completion);
            poller.take(&completion);
        }
        std::mem::forget(unwinding);
        wr_id.is_some()
    }

    /// Executes packets from the next of a run on, as long as they are plain SENDs, and adds the numbers of their receives to
    /// `receives`.
    #[inline]
    fn take_sends(&self, inner: &mut LockedQp, run: &mut CompactRun<'_>, receives: &mut Receives) {
        let from = run.link();
        if !inner.goes_by(from) || self.is_broken() || !inner.held.is_empty() {
            return;
        }
        let proto = &mut inner.proto;
        let (mut queue, pd) = match &self.srq {
            None => (ReceiveSource::Own(self.rq.lock()), self.pd.id()),
            Some(srq) if srq.completes_into().is_none() => (ReceiveSource::Shared(srq), srq.pd().id()),
            Some(_) => return,
        };
        let mut bytes = 0;
        while receives.len() < TOGETHER
            && bytes < BYTES_TOGETHER
            && let Some(packet) = run.next().filter(|packet| run.is_by_position(packet))
            && let Some(send) = plain_send(&packet.headers, true)
            && let payload = from.payload(packet)
            && proto.expects_plain(&send, payload.len())
        {
            let len = payload.len();
            let wr_id = match queue.place_front(pd, &payload) {
                Some(wr_id) => wr_id,
                None => {
                    let Some(receive) = queue.pop() else { return };
                    let placed = match &receive.sges[..] {
                        _ if len as u64 > receive.capacity() => false,
                        [sge] => place(pd, sge, &payload),
                        sges => scatter(pd, sges, 0, &payload.into()).is_ok(),
                    };
                    if !placed {
                        return proto.hold_receive(receive);
                    }
                    receive.wr_id
                }
            };
            proto.plain_taken(&send, len);
            receives.push(wr_id);
            run.settle(true);
            bytes += len;
        }
    }

    /// The peer has executed everything up to a SEND that has taken the short way.
    #[inline]
    pub(crate) fn executed(self: &Arc<Self>, last: &SentPacket, mut poller: Option<&mut Poller<'_>>) {
        let psn = last.psn;
        let mut inner = self.inner.lock();
        if self.is_broken() || inner.connection != last.connection {
            return;
        }
        let unwinding = EndsOnPanic(self);
        let mut overrun = false;
        let done = inner.proto.take_executed(clock::now, psn, |request, completion| {
            self.observe_end(request, WcStatus::Success);
            if let Some(completion) = completion {
                overrun |= !self.give_send_completion(completion, poller.as_deref_mut());
            }
        });
        let goes_on = !done || inner.proto.wants_transmit();
        std::mem::forget(unwinding);
        drop(inner);
        if goes_on {
            self.go_on_after(psn);
        }
        if overrun {
            self.end_overrun();
        }
    }

    /// The rest of [`Qp::executed`], the general way.
    #[inline(never)]
    fn go_on_after(self: &Arc<Self>, psn: u32) {
        let now = clock::now();
        self.adapter.with_work(|work| {
            self.work(work, now, |proto, env| proto.plain_executed(now, psn, env));
        });
    }

    /// Gives the completion of a send request to `poller`, or to its queue. False: the queue has no room. The queue pair is locked.
    #[inline]
    pub(super) fn give_send_completion(
        &self,
        completion: Completion,
        poller: Option<&mut Poller<'_>>,
    ) -> bool {
        let completion = Completion { qp_num: self.qpn, ..completion };
        poller.is_some_and(|poller| poller.take_of(&self.send_cq, &completion))
            || self.send_cq.push(completion)
    }

    /// The completion of the receive `wr_id` of a SEND of `len` bytes that was taken.
    #[inline]
    fn received(
        &self,
        proto: &ferroce_proto::QpProtocol<Arc<Ah>>,
        send: &PlainSend,
        (len, wr_id): (usize, u64),
    ) -> Completion {
        Completion { qp_num: self.qpn, ..proto.plain_completion(send, len, wr_id) }
    }

    /// A completion queue had no room.
    #[cold]
    pub(super) fn end_overrun(self: &Arc<Self>) {
        self.adapter.with_work(|work| self.work(work, clock::now(), |_, env| env.note_overrun()));
    }
}

impl LockedQp {
    /// This is the link that the queue pair sends by.
    #[inline]
    pub(super) fn goes_by(&self, link: &Link) -> bool {
        matches!(&self.path, Some(Path::Shm { link: own, .. }) if std::ptr::eq(&raw const **own, link))
    }
}

/// The opcode of a SEND in one packet, and its immediate data.
#[inline(always)]
fn opcode_of(op: &SendOp) -> (Opcode, Option<[u8; 4]>) {
    let (operation, immediate) = match *op {
        SendOp::SendWithImmediate { immediate } => (Operation::SendOnlyWithImmediate, Some(immediate)),
        _ => (Operation::SendOnly, None),
    };
    (Opcode { service: Service::Rc, operation }, immediate)
}

/// Wakes the peer, if it sleeps. True: it is this process, and this thread [takes](crate::adapter::Adapter::take_what_was_left) what it has
/// sent when no QP is locked.
#[inline]
pub(super) fn ring_bell(inner: &LockedQp) -> bool {
    let Some(Path::Shm { link, .. }) = &inner.path else { return false };
    link.ring_bell();
    link.is_to_itself()
}

/// What the transport has to know of a SEND in one packet, which it answers with a packet unless it is acknowledged `by_position`;
/// `None` for other packets.
#[inline]
fn plain_send(headers: &CompactHeaders, by_position: bool) -> Option<PlainSend> {
    Some(PlainSend {
        psn: headers.psn(),
        pkey: headers.pkey,
        solicited: headers.is_solicited(),
        ack_request: headers.asks_for_ack() && !by_position,
        immediate: headers.immediate_of_send()?,
    })
}

impl QpEnv<'_> {
    /// Gives the transport a packet of the QP's connection. Returns whether it was executed as a plain SEND that is acknowledged by
    /// position.
    #[inline]
    pub(crate) fn handle_compact(
        &mut self,
        proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>,
        link: &Link,
        packet: &CompactRecord,
        by_position: bool,
    ) -> bool {
        let headers = &packet.headers;
        let payload = link.payload(packet).into();
        if headers.opcode.service == Service::Rc
            && let Some(send) = plain_send(headers, by_position)
            && proto.take_plain(&send, &payload, self)
        {
            if by_position {
                self.work.received.acknowledge();
            }
            return by_position;
        }
        proto.handle_packet(self.now, &link.headers(packet), payload, self);
        false
    }
}
