//! The short way of SENDs, WRITEs, READs and atomics over UDP, and of their answers. A packet that has come alone goes from the socket to the
//! completion, and one that leaves alone from the request to the socket, without the buffers that packets need which come or leave together.
//!
//! As in [`super::plain`], each function does all that the general way would do, or returns that the general way has to.

use super::broken::EndsOnPanic;
use super::payload::{RxPayload, if_present};
use super::plain::{Ends, place};
use super::{LockedQp, Path, Poster, Qp};
use crate::adapter::ThreadBuffers;
use ferroce_access::{atomic, copy, summed};
use ferroce_mem::{Denied, KeyTable, KeyUser};
use ferroce_network::flow_of;
use ferroce_parts::{Ah, LastFlow, settings};
use ferroce_proto::{
    DataRef, FetchOp, Payload as _, PlainSend, QpProtocol, ReceivedWhole, SendOp, SendRequest,
};
use ferroce_queues::CountedOp;
use ferroce_types::{Datagram, Instant, RemoteAccess, Sge, WcStatus};
use ferroce_udp::{Dest, TxBatch, send_at_once};
use ferroce_wire::crc::extend;
use ferroce_wire::icrc::Flow;
use ferroce_wire::{AtomicEth, Bth, Headers, Opcode, Operation, Reth, Service, ShortPacket};
use std::sync::Arc;

/// Bytes of the longest packet that leaves alone without a batch: it is built on the stack.
const LONGEST: usize = 256;
/// Bytes of an ACK: BTH, AETH and ICRC.
const ACK: usize = 20;
/// Bytes of the longest request without data: BTH, AtomicETH and ICRC.
const REQUEST: usize = 44;
/// Bytes of the result of an atomic: BTH, AETH, AtomicAckETH and ICRC.
const RESULT: usize = 28;

/// Where a packet goes.
enum Outlet<'a> {
    Batch(&'a mut TxBatch),
    Socket,
}

impl Outlet<'_> {
    /// Sends a packet, which takes `ROOM` bytes at most if it leaves alone; `fill` as in [`TxBatch::packet`]. False: nothing was sent.
    #[inline(always)]
    fn send<const ROOM: usize, E>(
        self,
        dest: &Dest,
        headers: &Headers,
        (len, now): (usize, Instant),
        fill: impl FnOnce(&mut [u8], u32) -> Result<u32, E>,
    ) -> bool {
        match self {
            Self::Batch(batch) => batch.packet(dest, headers, len, fill).is_ok(),
            Self::Socket => send_at_once(&mut [0; ROOM], dest, headers, (len, now), fill).is_ok(),
        }
    }
}

/// What has become of a packet.
struct TakenAlone {
    taken: bool,
    /// A completion had no room.
    overrun: bool,
}

const LEFT: TakenAlone = TakenAlone { taken: false, overrun: false };

impl Qp {
    /// Posts a request that leaves alone. False, and nothing has happened: the general way has to.
    #[inline]
    pub(super) fn post_alone(self: &Arc<Self>, request: &mut SendRequest<'_, Arc<Ah>>) -> bool {
        if !may_leave_alone(&request.op) || self.is_inherited() {
            return false;
        }
        let mut inner = self.inner.lock();
        let unwinding = EndsOnPanic(self);
        let sent = Poster::new(self, &mut inner, None, false).send_at_once(request);
        std::mem::forget(unwinding);
        sent
    }

    /// Sends a SEND or a WRITE of `len` bytes. False, and nothing has happened: the general way has to.
    #[inline(never)]
    pub(super) fn send_alone(
        self: &Arc<Self>,
        inner: &mut LockedQp,
        request: &SendRequest<'_, Arc<Ah>>,
        len: u64,
    ) -> bool {
        // A tap sees what is in a batch.
        self.adapter.taps.is_none() && self.send_by(Outlet::Socket, inner, request, len)
    }

    /// Adds a SEND or a WRITE of `len` bytes to the packets that leave for the network. False, and nothing has happened: the general way has to.
    #[inline]
    pub(super) fn send_packet(
        self: &Arc<Self>,
        inner: &mut LockedQp,
        work: &mut ThreadBuffers,
        request: &SendRequest<'_, Arc<Ah>>,
        len: u64,
    ) -> bool {
        self.send_by(Outlet::Batch(&mut work.batch), inner, request, len)
    }

    #[inline(always)]
    fn send_by(
        self: &Arc<Self>,
        outlet: Outlet<'_>,
        inner: &mut LockedQp,
        request: &SendRequest<'_, Arc<Ah>>,
        len: u64,
    ) -> bool {
        let is_ecn_capable = inner.is_ecn_capable();
        let LockedQp { proto, path: Some(Path::Udp { dest, socket, .. }), .. } = inner else { return false };
        let usable = request.is_single() && !request.fence && !self.is_broken();
        let Some(psn) = proto.plain_psn(len, || socket.window()).filter(|_| usable) else { return false };
        let (operation, immediate, reth) = match request.op {
            SendOp::Write { va, rkey } => {
                (Operation::WriteOnly, None, Some(Reth { va, rkey, dma_len: len as u32 }))
            }
            SendOp::SendWithImmediate { immediate } => {
                (Operation::SendOnlyWithImmediate, Some(immediate), None)
            }
            _ => (Operation::SendOnly, None, None),
        };
        let opcode = Opcode { service: Service::Rc, operation };
        let (params, solicited) = (proto.params(), request.solicited);
        let bth = Bth::new(opcode, params.dest_qpn, psn);
        let headers = Headers::new(Bth { pkey: params.pkey, solicited, ack_request: true, ..bth });
        let headers = Headers { immediate, reth, ..headers };
        let marked = is_ecn_capable.then(|| dest.ecn_capable());
        let dest = marked.as_ref().unwrap_or(dest);
        let fill = |buf: &mut [u8], crc| match request.data {
            DataRef::Sges([sge]) => {
                let mut sum = crc;
                KeyTable::global().local(self.pd.id(), sge, false, |addr| {
                    sum = if_present(addr, buf.len(), || summed::read(addr, buf, crc))?;
                    Ok(())
                })?;
                Ok(sum)
            }
            DataRef::Sges(_) => Err(Denied),
            DataRef::Inline(bytes) => {
                buf.copy_from_slice(bytes);
                Ok(extend(crc, buf))
            }
        };
        let now = self.adapter.engine.lately();
        let sent = outlet.send::<LONGEST, _>(dest, &headers, (len as usize, now), fill);
        if sent && let Some(at) = proto.plain_sent(|| now, request) {
            self.adapter.schedule(self, at);
        }
        sent
    }

    /// Sends a READ or an atomic with what leaves from `work`; without it, alone. False, and nothing has happened: the general way has to.
    #[inline(never)]
    pub(super) fn ask(
        self: &Arc<Self>,
        inner: &mut LockedQp,
        work: Option<&mut ThreadBuffers>,
        fetch: &SendRequest<'_, Arc<Ah>>,
    ) -> bool {
        let outlet = match work {
            Some(work) => Outlet::Batch(&mut work.batch),
            None if self.adapter.taps.is_some() => return false,
            None => Outlet::Socket,
        };
        let LockedQp { proto, path: Some(Path::Udp { dest, socket, .. }), .. } = inner else { return false };
        let psn = proto.fetch_psn(fetch, || socket.window());
        let Some(psn) = psn.filter(|_| !self.is_broken()) else { return false };
        let atomic =
            |va, rkey, swap_or_add, compare| (None, Some(AtomicEth { va, rkey, swap_or_add, compare }));
        let (operation, (reth, atomic)) = match fetch.op {
            SendOp::Read { va, rkey } => {
                let dma_len = fetch.data.len() as u32;
                (Operation::ReadRequest, (Some(Reth { va, rkey, dma_len }), None))
            }
            SendOp::CompareSwap { va, rkey, compare, swap } => {
                (Operation::CompareSwap, atomic(va, rkey, swap, compare))
            }
            SendOp::FetchAdd { va, rkey, add } => (Operation::FetchAdd, atomic(va, rkey, add, 0)),
            _ => return false,
        };
        let params = proto.params();
        let bth = Bth::new(Opcode { service: Service::Rc, operation }, params.dest_qpn, psn);
        let headers = Headers::new(Bth { pkey: params.pkey, ack_request: true, ..bth });
        let headers = Headers { reth, atomic, ..headers };
        let now = self.adapter.engine.lately();
        let sent = outlet.send::<REQUEST, _>(dest, &headers, (0, now), no_payload);
        if sent && let Some(at) = proto.fetch_sent(|| now, fetch) {
            self.adapter.schedule(self, at);
        }
        sent
    }

    /// Takes a packet that has come alone, and that `packet` is read from. False: the general way has to, and goes on where this has ended.
    #[inline]
    pub(crate) fn take_alone(
        self: &Arc<Self>,
        datagram: &Datagram<'_>,
        packet: &ShortPacket<'_>,
        now: Instant,
    ) -> bool {
        let mut inner = self.inner.lock();
        let unwinding = EndsOnPanic(self);
        let TakenAlone { taken, overrun } = self.take_locked(&mut inner, datagram, packet, now);
        let goes_on = taken && inner.proto.wants_transmit();
        std::mem::forget(unwinding);
        drop(inner);
        if overrun {
            self.end_overrun();
        }
        if goes_on {
            self.adapter.with_work(|work| self.work(work, now, |_, _| ()));
        }
        taken
    }

    #[inline(always)]
    fn take_locked(
        self: &Arc<Self>,
        inner: &mut LockedQp,
        datagram: &Datagram<'_>,
        packet: &ShortPacket<'_>,
        now: Instant,
    ) -> TakenAlone {
        let LockedQp { proto, path: Some(Path::Udp { dest, from, .. }), held, waiting, .. } = inner else {
            return LEFT;
        };
        let usable =
            self.service == Service::Rc && !self.is_broken() && held.is_empty() && waiting.is_empty();
        if !usable || datagram.congestion_experienced() {
            return LEFT;
        }
        let intact = from_peer(from, dest, datagram)
            .and_then(|flow| flow.verify(datagram.bytes, datagram.segment))
            .is_some();
        match packet {
            _ if !intact => LEFT,
            ShortPacket::Send { bth, immediate, payload } => {
                self.take_send(proto, dest, &PlainSend::new(bth, *immediate), payload)
            }
            ShortPacket::Write { bth, reth, payload } => self.take_write(proto, dest, bth, reth, payload),
            ShortPacket::Acknowledge { bth } => {
                let mut ends = Ends { qp: self, poller: None, overrun: false };
                let taken = proto.take_acknowledgement(now, bth, &mut ends);
                self.schedule_timeout(proto);
                TakenAlone { taken, overrun: ends.overrun }
            }
            ShortPacket::Read { bth, reth } => self.answer(inner, bth, &FetchOp::read(reth)),
            ShortPacket::Atomic { bth, atomic } => match FetchOp::atomic(bth.opcode.operation, atomic) {
                Some(op) => self.answer(inner, bth, &op),
                None => LEFT,
            },
            ShortPacket::ReadResponse { bth, payload } => self.take_answer(proto, now, bth, payload),
            ShortPacket::AtomicAcknowledge { bth, original } => {
                self.take_answer(proto, now, bth, &original.to_ne_bytes())
            }
        }
    }

    #[inline(always)]
    fn schedule_timeout(self: &Arc<Self>, proto: &QpProtocol<Arc<Ah>>) {
        if let Some(at) = proto.next_timeout() {
            self.adapter.schedule(self, at);
        }
    }

    /// Executes a READ or an atomic, and answers it.
    #[inline(never)]
    fn answer(&self, inner: &mut LockedQp, bth: &Bth, op: &FetchOp) -> TakenAlone {
        let is_ecn_capable = inner.is_ecn_capable();
        let LockedQp { proto, path: Some(Path::Udp { dest, .. }), .. } = inner else { return LEFT };
        // Counters count READs of the peer's.
        let usable = !settings::is_careful() && !self.observers.any();
        if !usable || !proto.expects_fetch(bth.psn, bth.pkey, op) {
            return LEFT;
        }
        let (table, by) = (KeyTable::global(), KeyUser { pd: self.pd.id(), qp: self.serial });
        // What is wrong with a key is found out by the general way.
        let original = match *op {
            FetchOp::Read { va, rkey, len } => {
                let fill = |buf: &mut [u8], crc| {
                    table.remote(by, rkey, va, u64::from(len), RemoteAccess::Read, |addr| {
                        if_present(addr, buf.len(), || summed::read(addr, buf, crc))
                    })
                };
                let (len, now) = (len as usize, self.adapter.engine.lately());
                let response = proto.fetch_response(op, 0);
                let marked = is_ecn_capable.then(|| dest.ecn_capable());
                let dest = marked.as_ref().unwrap_or(dest);
                if send_at_once(&mut [0; LONGEST], dest, &response, (len, now), fill).is_err() {
                    return LEFT;
                }
                0
            }
            FetchOp::Atomic { va, rkey, op: atomic } => {
                let execute = |addr| if_present(addr, 8, || atomic::execute(addr, atomic));
                let Ok(original) = table.remote(by, rkey, va, 8, RemoteAccess::Atomic, execute) else {
                    return LEFT;
                };
                let now = self.adapter.engine.lately();
                let response = proto.fetch_response(op, original);
                let sent = send_at_once(&mut [0; RESULT], dest, &response, (0, now), no_payload);
                debug_assert!(sent.is_ok(), "{sent:?}");
                original
            }
        };
        proto.fetch_answered(op, original);
        TakenAlone { taken: true, overrun: false }
    }

    /// Takes the answer to a READ or an atomic.
    #[inline(never)]
    fn take_answer(
        self: &Arc<Self>,
        proto: &mut QpProtocol<Arc<Ah>>,
        now: Instant,
        bth: &Bth,
        answer: &[u8],
    ) -> TakenAlone {
        if settings::is_careful() {
            return LEFT;
        }
        let mut ends = Ends { qp: self, poller: None, overrun: false };
        let place = |sge: &Sge| place(self.pd.id(), sge, answer.len(), |addr| copy::write(addr, answer));
        let taken = proto.take_answer(now, bth, answer.len(), place, &mut ends);
        self.schedule_timeout(proto);
        TakenAlone { taken, overrun: ends.overrun }
    }

    /// Takes a SEND, and acknowledges it before the receive completes.
    #[inline(always)]
    fn take_send(
        self: &Arc<Self>,
        proto: &mut QpProtocol<Arc<Ah>>,
        dest: &Dest,
        send: &PlainSend,
        payload: &[u8],
    ) -> TakenAlone {
        let payload = RxPayload::of_packet(payload);
        let len = payload.len();
        let completes_elsewhere = self.srq.as_ref().is_some_and(|srq| srq.completes_into().is_some());
        if completes_elsewhere || proto.owes_acknowledgement() || !proto.expects_plain(send, len) {
            return LEFT;
        }
        let wr_id = match self.receive_whole(&payload, |addr| payload.copy_to(0, addr, len)) {
            ReceivedWhole::Placed(wr_id) => wr_id,
            ReceivedWhole::NoReceive => return LEFT,
            ReceivedWhole::Refused(receive) => {
                proto.hold_receive(receive);
                return LEFT;
            }
        };
        proto.plain_taken(send, len);
        self.acknowledge(proto, dest);
        let mut completion = proto.plain_completion(send, len, wr_id);
        self.observe_receive(&completion);
        let overrun = !self.give(&self.recv_cq, &mut completion, None);
        TakenAlone { taken: true, overrun }
    }

    /// Takes a WRITE, and acknowledges it.
    #[inline(always)]
    fn take_write(
        self: &Arc<Self>,
        proto: &mut QpProtocol<Arc<Ah>>,
        dest: &Dest,
        bth: &Bth,
        reth: &Reth,
        payload: &[u8],
    ) -> TakenAlone {
        let len = payload.len();
        if settings::is_careful() || proto.owes_acknowledgement() || !proto.expects_write(bth, reth, len) {
            return LEFT;
        }
        let (by, bytes) = (KeyUser { pd: self.pd.id(), qp: self.serial }, len as u64);
        let write = |addr| if_present(addr, len, || copy::write(addr, payload));
        // What is wrong with a key is found out by the general way.
        if len > 0
            && KeyTable::global().remote(by, reth.rkey, reth.va, bytes, RemoteAccess::Write, write).is_err()
        {
            return LEFT;
        }
        if let Some(counting) = self.observers.counters() {
            counting.count(CountedOp::RemoteWrite, bytes, WcStatus::Success);
        }
        proto.write_taken(bth, len);
        self.acknowledge(proto, dest);
        TakenAlone { taken: true, overrun: false }
    }

    /// Sends the ACK that is owed.
    #[inline(always)]
    fn acknowledge(&self, proto: &mut QpProtocol<Arc<Ah>>, dest: &Dest) {
        if let Some(ack) = proto.take_ack() {
            // Not the time of the turn: the copy may have taken many milliseconds.
            let now = self.adapter.engine.lately();
            let sent = send_at_once(&mut [0; ACK], dest, &ack, (0, now), no_payload);
            debug_assert!(sent.is_ok(), "{sent:?}");
        }
    }
}

/// Requests that a packet may carry which leaves alone.
const fn may_leave_alone(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Send
            | SendOp::SendWithImmediate { .. }
            | SendOp::Write { .. }
            | SendOp::Read { .. }
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
    )
}

/// The payload of a packet without one, for [`send_at_once`].
#[inline(always)]
const fn no_payload(_: &mut [u8], crc: u32) -> Result<u32, Denied> {
    Ok(crc)
}

/// The flow of a packet from the peer to this address; `None` for another packet. `from`: that of the last one.
#[inline(always)]
fn from_peer(from: &mut LastFlow, dest: &Dest, datagram: &Datagram<'_>) -> Option<Flow> {
    match from {
        Some((source, to, flow)) if *source == datagram.source && *to == datagram.destination => Some(*flow),
        _ if datagram.ends() == (dest.peer().ip(), dest.endpoint().address().ip()) => flow_of(from, datagram),
        _ => None,
    }
}
