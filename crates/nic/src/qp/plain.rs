//! Plain SENDs: the short way, from the program's request to the ring or to the packet, and between two processes of a host from the ring
//! to the completion. [`SendRequest::is_plain`] returns whether a SEND is plain. [Fetches](super::fetch) are taken here with them, in the
//! order of their cells, and end here by their results.

use super::broken::EndsOnPanic;
use super::fabric::Listing;
use super::payload::{RxPayload, if_present, scatter};
use super::waiting::absent_of;
use super::{LockedQp, Path, Qp, QpEnv};
use ferroce_access::Fault;
use ferroce_hostlink::{
    CompactHeaders, CompactRecord, Link, RecordRun, RingBytes, SendOutcome, SentPacket, ShmPayload, is_large,
};
use ferroce_mem::{Denied, KeyTable};
use ferroce_os::clock;
use ferroce_parts::{Ah, Poller};
use ferroce_proto::{DataRef, Payload as _, PlainSend, ReceivedWhole, SendEnds, SendOp, SendRequest, SendWr};
use ferroce_queues::{Cq, RecvQueue};
use ferroce_types::{Completion, RecvWqe, Sge, WcStatus};
use ferroce_wire::{Opcode, Operation, Service};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How many messages at most are executed under one lock: a thread that posts a send meanwhile waits.
const TOGETHER: usize = 16;
/// … and how many bytes there may be before the last of them.
const BYTES_TOGETHER: usize = 64 * 1024;

/// Takes the next receive and has `copy` copy a payload of `len` bytes to its memory, if the receive has one element with room for all of
/// it. Returns the receive's number. `None`: the receive is still there.
#[inline(always)]
fn place_front(
    queue: &mut RecvQueue,
    pd: u32,
    len: usize,
    copy: impl Fn(u64) -> Result<(), Fault>,
) -> Option<u64> {
    let &RecvWqe { wr_id, ref sges } = queue.front()?;
    let [sge] = &sges[..] else { return None };
    let placed = len <= sge.length as usize && place(pd, sge, len, copy);
    placed.then(|| {
        queue.drop_front();
        wr_id
    })
}

/// Has `copy` copy a payload to an element of a receive that has room for its `len` bytes. False: the element isn't good for that.
#[inline(always)]
pub(super) fn place(pd: u32, sge: &Sge, len: usize, copy: impl Fn(u64) -> Result<(), Fault>) -> bool {
    let part = Sge { length: len as u32, ..*sge };
    KeyTable::global().local(pd, &part, true, |addr| if_present(addr, len, || copy(addr))).is_ok()
}

impl Qp {
    /// Copies the data of a request into the ring.
    #[inline(always)]
    pub(super) fn fill_plain(&self, data: DataRef<'_>, ring: &RingBytes<'_>) -> Result<(), Denied> {
        match data {
            DataRef::Sges([sge]) => KeyTable::global().local(self.pd.id(), sge, false, |addr| {
                let len = sge.length as usize;
                if_present(addr, len, || ring.copy_from(0, addr, len))
            }),
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
        let LockedQp { proto, connection, listing, path: Some(Path::Shm { link, .. }), .. } = inner else {
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
        // An answer that is awaited may come later than the result.
        let by_result = !proto.awaits_data();
        let params = proto.params();
        let word = immediate.map_or(0, u32::from_ne_bytes);
        let ends = (params.pkey, params.dest_qpn);
        let headers = CompactHeaders::of_send(opcode, ends, psn, (solicited, word));
        let headers = if by_result { headers.acknowledged_by_result() } else { headers };
        let sent = if is_large(len, 1) {
            let listed = *listing == Listing::Listed;
            self.send_large_plain(link, (&headers, *connection), data, listed)
        } else {
            let fill = |ring: &RingBytes<'_>| self.fill_plain(data, ring);
            link.send_on_connection(&headers, (self.qpn, *connection), len as usize, fill)
        };
        // The general way finds the cause again.
        let SendOutcome::Published(end) = sent else { return false };
        self.last_request.store(end, Ordering::Relaxed);
        if let Some(at) = proto.plain_sent(|| self.adapter.engine.lately(), request) {
            self.adapter.schedule(self, at);
        }
        true
    }

    /// Takes the next packets of a run for which that is possible the short way, under one lock. False: there was none, and
    /// [`super::QpEnv::handle_compact`] has to take the next.
    #[inline]
    pub(crate) fn take_by_result(
        self: &Arc<Self>,
        run: &mut RecordRun<'_>,
        mut poller: Option<&mut Poller<'_>>,
    ) -> bool {
        let may = run.next_compact().is_some_and(|packet| packet.headers.is_by_result());
        if !may || self.service != Service::Rc || !self.peer_uses_shm() {
            return false;
        }
        let mut inner = self.inner.lock();
        let unwinding = EndsOnPanic(self);
        let (mut taken, mut bytes, mut overrun) = (0, 0, false);
        if goes_by(inner.path.as_ref(), run.link())
            && !self.is_broken()
            && inner.held.is_empty()
            && inner.waiting.is_empty()
        {
            let proto = &mut inner.proto;
            while !overrun && taken < TOGETHER && bytes < BYTES_TOGETHER && run.next_compact().is_some() {
                if let Some((send, len, wr_id)) = self.place_next(proto, run) {
                    proto.plain_taken(&send, len);
                    // Acknowledged first, then the receive completes.
                    run.settle(true);
                    let mut completion = proto.plain_completion(&send, len, wr_id);
                    self.observe_receive(&completion);
                    overrun = !self.give(&self.recv_cq, &mut completion, poller.as_deref_mut());
                    bytes += len;
                } else if let Some(len) = self.answer_next(proto, run) {
                    run.settle(true);
                    bytes += len;
                } else {
                    break;
                }
                taken += 1;
            }
        }
        std::mem::forget(unwinding);
        drop(inner);
        if overrun {
            self.end_overrun();
        }
        taken > 0
    }

    /// Places the next packet of a run in its receive, if it is a plain SEND. Returns its length and the number of the receive, too.
    #[inline]
    fn place_next(
        &self,
        proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>,
        run: &RecordRun<'_>,
    ) -> Option<(PlainSend, usize, u64)> {
        let packet = run.next_compact()?;
        let send = plain_send(&packet.headers)?;
        if let Some(offered) = run.link().offered(packet, proto.params().dest_qpn) {
            return self.place_offered(proto, send, offered);
        }
        let payload = run.link().payload(packet);
        let len = payload.len();
        self.place_payload(proto, send, &payload.into(), |addr| payload.copy_to(0, addr, len))
    }

    /// The rest of [`Qp::place_next`]; `copy` copies all of the payload to one address.
    #[inline(always)]
    pub(super) fn place_payload(
        &self,
        proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>,
        send: PlainSend,
        payload: &RxPayload<'_>,
        copy: impl Fn(u64) -> Result<(), Fault>,
    ) -> Option<(PlainSend, usize, u64)> {
        let len = payload.len();
        if !proto.expects_plain(&send, len) {
            return None;
        }
        if self.srq.as_ref().is_some_and(|srq| srq.completes_into().is_some()) {
            return None;
        }
        match self.receive_whole(payload, copy) {
            ReceivedWhole::Placed(wr_id) => Some((send, len, wr_id)),
            ReceivedWhole::NoReceive => None,
            ReceivedWhole::Refused(receive) => {
                proto.hold_receive(receive);
                None
            }
        }
    }

    /// Takes the next receive of an RC queue pair for a message of one packet, and places the payload there; `copy` copies all of it to one
    /// address.
    #[inline(always)]
    pub(super) fn receive_whole(
        &self,
        payload: &RxPayload<'_>,
        copy: impl Fn(u64) -> Result<(), Fault>,
    ) -> ReceivedWhole {
        let len = payload.len();
        let (receive, pd) = match &self.srq {
            None => {
                let (mut queue, pd) = (self.rq.lock(), self.pd.id());
                if let Some(wr_id) = place_front(&mut queue, pd, len, &copy) {
                    return ReceivedWhole::Placed(wr_id);
                }
                (queue.pop(), pd)
            }
            Some(srq) => (srq.pop(), srq.pd().id()),
        };
        let Some(receive) = receive else { return ReceivedWhole::NoReceive };
        let placed = match &receive.sges[..] {
            _ if len as u64 > receive.capacity() => false,
            [sge] => place(pd, sge, len, copy),
            sges => absent_of(pd, sges, 0, len, true).is_none() && scatter(pd, sges, 0, payload).is_ok(),
        };
        if placed { ReceivedWhole::Placed(receive.wr_id) } else { ReceivedWhole::Refused(receive) }
    }

    /// The peer has executed everything up to a packet that has taken the short way; `answer` is that to this packet.
    #[inline]
    pub(crate) fn executed(
        self: &Arc<Self>,
        last: &SentPacket,
        answer: Option<ShmPayload<'_>>,
        poller: Option<&mut Poller<'_>>,
    ) {
        let psn = last.psn;
        let mut inner = self.inner.lock();
        if self.is_broken() || inner.connection != last.connection {
            return;
        }
        let unwinding = EndsOnPanic(self);
        let mut ends = Ends { qp: self, poller, overrun: false };
        let done = match &answer {
            None => inner.proto.take_executed(clock::now, psn, &mut ends),
            Some(answer) => {
                let len = answer.len();
                let copy = |addr| answer.copy_to(0, addr, len);
                let place = |sge: &Sge| place(self.pd.id(), sge, len, copy);
                inner.proto.take_fetched(clock::now, (psn, len), place, &mut ends)
            }
        };
        let overrun = ends.overrun;
        let goes_on = !done || inner.proto.wants_transmit();
        std::mem::forget(unwinding);
        drop(inner);
        if goes_on {
            self.go_on_after(last, answer, done);
        }
        if overrun {
            self.end_overrun();
        }
    }

    /// The rest of [`Qp::executed`], the general way. `done`: only what has waited for it is left to do.
    #[inline(never)]
    fn go_on_after(self: &Arc<Self>, last: &SentPacket, answer: Option<ShmPayload<'_>>, done: bool) {
        let (now, psn) = (clock::now(), last.psn);
        self.adapter.with_work(|work| {
            let mut inner = self.inner.lock();
            if inner.connection == last.connection {
                self.work_locked(&mut inner, work, now, |proto, env| match answer {
                    _ if done || env.keeps_result_waiting(proto, psn, answer.as_ref()) => {}
                    None => proto.plain_executed(now, psn, env),
                    Some(answer) => proto.fetched(now, psn, &answer.into(), env),
                });
            }
        });
    }

    /// Gives a completion to `poller`, or to its queue. False: the queue has no room. The queue pair is locked.
    #[inline]
    pub(super) fn give(
        &self,
        cq: &Arc<Cq>,
        completion: &mut Completion,
        poller: Option<&mut Poller<'_>>,
    ) -> bool {
        completion.qp_num = self.qpn;
        poller.is_some_and(|poller| poller.take_of(cq, completion)) || cq.push(*completion)
    }

    /// A completion queue had no room.
    #[cold]
    pub(super) fn end_overrun(self: &Arc<Self>) {
        self.adapter.with_work(|work| self.work(work, clock::now(), |_, env| env.note_overrun()));
    }
}

/// Gives the ends of send requests to the completion queue, or to the poller that waits for them. The queue pair is locked.
pub(super) struct Ends<'q, 'p, 'c> {
    pub(super) qp: &'q Qp,
    pub(super) poller: Option<&'p mut Poller<'c>>,
    /// The completion queue had no room for one.
    pub(super) overrun: bool,
}

impl SendEnds for Ends<'_, '_, '_> {
    type Address = Arc<Ah>;

    #[inline]
    fn retire(&mut self, wr: &SendWr<Arc<Ah>>, status: WcStatus) {
        self.qp.observe_end(wr, status);
    }

    #[inline]
    fn complete_send(&mut self, mut completion: Completion) {
        self.overrun |= !self.qp.give(&self.qp.send_cq, &mut completion, self.poller.as_deref_mut());
    }
}

/// `link` is that by which a queue pair with this path sends.
#[inline]
fn goes_by(path: Option<&Path>, link: &Link) -> bool {
    matches!(path, Some(Path::Shm { link: own, .. }) if std::ptr::eq(&raw const **own, link))
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

/// What the transport has to know of a SEND that the result of its cell acknowledges; `None` for other packets.
#[inline]
fn plain_send(headers: &CompactHeaders) -> Option<PlainSend> {
    if !headers.is_by_result() {
        return None;
    }
    Some(PlainSend {
        psn: headers.psn(),
        pkey: headers.pkey,
        solicited: headers.is_solicited(),
        ack_request: false,
        immediate: headers.immediate_of_send()?,
    })
}

impl QpEnv<'_> {
    /// Whether a packet is a SEND or a fetch that may take the short way, as far as is known without a look at receives and keys.
    pub(crate) fn may_be_short(
        &self,
        proto: &ferroce_proto::QpProtocol<Arc<Ah>>,
        link: &Link,
        packet: &CompactRecord,
    ) -> bool {
        let expects = |send| proto.expects_plain(&send, packet.payload_len());
        self.held.is_empty()
            && self.waiting.is_empty()
            && goes_by(self.path, link)
            && (plain_send(&packet.headers).is_some_and(expects)
                || self.qp.expected_fetch(proto, link, packet).is_some())
    }
}
