//! Plain SENDs between two processes of a host: the short way, from the program's request to the ring and from the ring to
//! the completion. [`ferroce_proto::PlainSend`] says when a SEND is plain.

use super::broken::EndsOnPanic;
use super::env::REFERENCE;
use super::{Inner, Path, Qp, QpEnv};
use crate::ah::Ah;
use ferroce_hostlink::{CompactHeaders, CompactRecord, Link, Sent};
use ferroce_mem::{Denied, KeyTable};
use ferroce_os::clock;
use ferroce_proto::{Data, PlainSend, SendOp, SendWr, Sge};
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
        let short = (request.sge.length as usize) < REFERENCE && self.cap.max_send_sge > 0;
        if self.service != Service::Rc || !short || self.is_inherited() {
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
        let Inner { proto, path: Some(Path::Shm { link, .. }), .. } = inner else { return false };
        let PlainRequest { wr_id, sge, immediate, signaled, solicited } = *request;
        let usable = self.peer_uses_shm()
            && link.peer_takes_compact()
            && !self.is_broken()
            && !self.adapter.has_capture();
        let Some(psn) = proto.plain_psn(u64::from(sge.length)).filter(|_| usable) else { return false };
        let operation =
            if immediate.is_some() { Operation::SendOnlyWithImmediate } else { Operation::SendOnly };
        let params = proto.params();
        let headers = CompactHeaders::of_send(
            Opcode { service: Service::Rc, operation },
            (params.pkey, params.dest_qpn),
            psn,
            (solicited, immediate.map_or(0, u32::from_ne_bytes)),
        );
        let len = sge.length as usize;
        let sent: Sent<Denied> = link.send_with(&headers, len, |ring| {
            KeyTable::global().local(self.pd.id(), &sge, false, |addr| ring.copy_from(0, addr, len))
        });
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
}

impl QpEnv<'_> {
    /// Gives the transport a packet of the QP's connection.
    #[inline]
    pub(crate) fn handle_compact(
        &mut self,
        proto: &mut ferroce_proto::Qp<Arc<Ah>>,
        link: &Link,
        packet: &CompactRecord,
    ) {
        let headers = &packet.headers;
        let payload = link.payload(packet).into();
        if let Some(immediate) = headers.immediate_of_send() {
            let send = PlainSend {
                psn: headers.psn(),
                pkey: headers.pkey,
                solicited: headers.is_solicited(),
                ack_request: headers.asks_for_ack(),
                immediate,
            };
            if proto.take_plain(&send, &payload, self) {
                return;
            }
        }
        proto.handle_packet(self.now, &headers.headers(), payload, self);
    }
}
