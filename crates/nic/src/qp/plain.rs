//! Plain SENDs between two processes of a host: the short way, from the program's request to the ring and from the ring to
//! the completion. [`ferroce_proto::PlainSend`] says when a SEND is plain.

use super::broken::EndsOnPanic;
use super::env::REFERENCE;
use super::payload::scatter;
use super::{Inner, Path, Qp, QpEnv};
use crate::ah::Ah;
use ferroce_access::{Fault, copy};
use ferroce_hostlink::{CompactHeaders, CompactRecord, CompactRun, Link, RingBytes, Sent, SentPacket};
use ferroce_mem::{Denied, KeyTable};
use ferroce_os::clock;
use ferroce_proto::{Data, PlainSend, SendOp, SendWr, Sge, WcStatus};
use ferroce_queues::Wc;
use ferroce_wire::{Opcode, Operation, Service};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A send request that may take the short way: SEND, of one element of memory.
#[derive(Clone, Copy, Debug)]
pub struct PlainRequest {
    /// Comes back with its completion.
    pub wr_id: u64,
    /// Its memory.
    pub sge: Sge,
    /// Immediate data, as they are on the wire.
    pub immediate: Option<[u8; 4]>,
    /// It asks for a completion.
    pub signaled: bool,
    /// The peer's completion is solicited.
    pub solicited: bool,
}

impl Qp {
    /// Sends a request at once, if that is possible the short way. False, and nothing has happened: [`Qp::post_send`] has to.
    #[inline]
    pub fn post_plain(self: &Arc<Self>, request: &PlainRequest) -> bool {
        let short = (request.sge.length as usize) < REFERENCE || !copy::by_kernel();
        if self.service != Service::Rc || !short || self.cap.max_send_sge == 0 || self.is_inherited() {
            return false;
        }
        let mut inner = self.inner.lock();
        let unwinding = EndsOnPanic(self);
        let sent = self.send_plain(&mut inner, request);
        std::mem::forget(unwinding);
        sent
    }

    #[inline]
    fn send_plain(self: &Arc<Self>, inner: &mut Inner, request: &PlainRequest) -> bool {
        let Inner { proto, connection, path: Some(Path::Shm { link, .. }), .. } = inner else { return false };
        let PlainRequest { wr_id, sge, immediate, signaled, solicited } = *request;
        let usable = self.peer_uses_shm()
            && link.peer_takes_compact()
            && !self.is_broken()
            && !self.adapter.has_capture();
        let Some(psn) = proto.plain_psn(u64::from(sge.length)).filter(|_| usable) else { return false };
        // An answer that is awaited may come later than the position.
        let by_position = link.peer_tells_positions() && !proto.awaits_data();
        let operation =
            if immediate.is_some() { Operation::SendOnlyWithImmediate } else { Operation::SendOnly };
        let params = proto.params();
        let headers = CompactHeaders::of_send(
            Opcode { service: Service::Rc, operation },
            (params.pkey, params.dest_qpn),
            psn,
            (solicited, immediate.map_or(0, u32::from_ne_bytes)),
            by_position,
        );
        let len = sge.length as usize;
        let fill = |ring: &RingBytes<'_>| {
            KeyTable::global().local(self.pd.id(), &sge, false, |addr| ring.copy_from(0, addr, len))
        };
        let sent: Sent<Denied> = if by_position {
            link.send_awaited(&headers, (self.qpn, *connection), len, fill)
        } else {
            link.send_with(&headers, len, fill)
        };
        // Whatever keeps it, the general way finds it again.
        let Sent::Published(end) = sent else { return false };
        self.last_record.store(end, Ordering::Relaxed);
        let op = immediate.map_or(SendOp::Send, |immediate| SendOp::SendWithImmediate { immediate });
        let request = SendWr {
            wr_id,
            op,
            data: Data::Sges(std::iter::once(sge).collect()),
            signaled: signaled || self.sq_sig_all,
            solicited,
            fence: false,
            ud: None,
            remote_srqn: 0,
        };
        if let Some(at) = proto.plain_sent(clock::now(), request, sge.length) {
            self.adapter.schedule(self, at);
        }
        link.ring_bell();
        true
    }

    /// Takes the next packet of a run, if that is possible the short way. False: [`QpEnv::handle_compact`] has to.
    #[inline]
    pub(crate) fn take_plain(self: &Arc<Self>, run: &mut CompactRun<'_>) -> bool {
        let Some(packet) = run.next().filter(|packet| run.is_by_position(packet)) else { return false };
        let Some(send) = plain_send(&packet.headers, true) else { return false };
        if self.service != Service::Rc || !self.peer_uses_shm() {
            return false;
        }
        let mut overrun = false;
        let mut inner = self.inner.lock();
        let unwinding = EndsOnPanic(self);
        let taken = self.take_send(&mut inner, run, packet, &send, &mut overrun);
        std::mem::forget(unwinding);
        drop(inner);
        if overrun {
            self.end_overrun();
        }
        taken
    }

    #[inline]
    fn take_send(
        self: &Arc<Self>,
        inner: &mut Inner,
        run: &mut CompactRun<'_>,
        packet: &CompactRecord,
        send: &PlainSend,
        overrun: &mut bool,
    ) -> bool {
        let Inner { proto, path: Some(Path::Shm { link, .. }), .. } = inner else { return false };
        let from = run.link();
        let is_connected = std::ptr::eq(&raw const **link, from) || link.peer().is(&from.peer());
        let payload = from.payload(packet);
        let len = payload.len();
        if !is_connected || self.is_broken() || !proto.expects_plain(send, len) {
            return false;
        }
        let (receive, pd) = match &self.srq {
            None => (self.rq.lock().pop(), self.pd.id()),
            Some(srq) if srq.completes_into().is_none() => (srq.pop(), srq.pd().id()),
            Some(_) => return false,
        };
        let Some(receive) = receive else { return false };
        let fits = len as u64 <= receive.capacity();
        let placed = match &receive.sges[..] {
            _ if !fits => false,
            // It has room for all.
            [sge] => {
                let part = Sge { length: len as u32, ..*sge };
                let copy = |addr| payload.copy_to(0, addr, len).map_err(|_| Fault);
                KeyTable::global().local(pd, &part, true, copy).is_ok()
            }
            sges => scatter(pd, sges, 0, &payload.into()).is_ok(),
        };
        if !placed {
            proto.hold_receive(receive);
            return false;
        }
        let completion = proto.plain_taken(send, len, receive.wr_id);
        run.settle(true);
        // The receive is told of when this has been done.
        run.acknowledge();
        self.observe_receive(&completion);
        let wc = Wc { qp_num: self.qpn, completion, network: None, checksums_ok: false };
        *overrun = !self.recv_cq.push(wc);
        true
    }

    /// The peer has executed everything up to a SEND that has taken the short way.
    #[inline]
    pub(crate) fn executed(self: &Arc<Self>, last: &SentPacket) {
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
                let wc = Wc { qp_num: self.qpn, completion, network: None, checksums_ok: false };
                overrun |= !self.send_cq.push(wc);
            }
        });
        let goes_on = !done || inner.proto.wants_transmit();
        std::mem::forget(unwinding);
        drop(inner);
        if overrun {
            self.end_overrun();
        } else if goes_on {
            let now = clock::now();
            self.adapter.with_work(|work| {
                self.work(work, now, |proto, env| proto.plain_executed(now, psn, env));
            });
        }
    }

    /// A completion queue had no room.
    #[cold]
    fn end_overrun(self: &Arc<Self>) {
        self.adapter.with_work(|work| self.work(work, clock::now(), |_, env| env.note_overrun()));
    }
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
        proto: &mut ferroce_proto::Qp<Arc<Ah>>,
        link: &Link,
        packet: &CompactRecord,
        by_position: bool,
    ) -> bool {
        let headers = &packet.headers;
        let payload = link.payload(packet).into();
        if let Some(send) = plain_send(headers, by_position)
            && proto.take_plain(&send, &payload, self)
        {
            return by_position;
        }
        proto.handle_packet(self.now, &headers.headers(), payload, self);
        false
    }
}
