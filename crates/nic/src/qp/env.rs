//! One QP's surroundings as the transport sees them: keys and memory, receive queue, completion queues, fabric.

use super::pacing::Pacing;
use super::payload::{RxPayload, each_piece, fill, fill_ring, references, scatter, source_len};
use super::target::Shared;
use super::{Path, Qp};
use crate::ah::Ah;
use crate::counter::CountedOp;
use crate::cq::{Network, Wc};
use crate::engine::{Inbox, Record, Work};
use crate::events::AsyncEvent;
use crate::mem::{KeyUser, MrTable, atomic, copy, persist};
use crate::packet::{Grh, PacketMeta};
use crate::shm::{self, Link, Peer, Purpose, Sent};
use crate::tap::Direction;
use crate::udp::PushError;
use crate::xrc::Range;
use ferroce_proto::{
    AtomicOp, BindMw, Completion, Data, Env, Instant, Payload, PlaceError, Placement, QpEvent, QpState,
    RecvWqe, RemoteAccess, RemoteError, SendOp, SendWr, Sge, Source, SrqPlace, TransmitError, Violation,
    WcOpcode, WcStatus,
};
use ferroce_wire::{Bth, Headers, Opcode, Service};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// From this many bytes on, a payload stays in its sender's memory until the receiver fetches it.
const REFERENCE: usize = 16 * 1024;

/// The shortest time between two congestion notifications of a QP.
const CNP_INTERVAL: Duration = Duration::from_micros(50);
/// Reserved bytes after a congestion notification's BTH.
const CNP_RESERVED: usize = 16;

/// Where a packet has come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A socket.
    Network,
    /// This process.
    Here,
    /// Another process of this host.
    Process(Peer),
}

/// The surroundings of `qp` while its lock is held.
pub(crate) struct QpEnv<'a> {
    pub(super) qp: &'a Arc<Qp>,
    pub(super) path: Option<&'a Path>,
    pub(super) work: &'a mut Work,
    /// Of the packet at hand.
    pub(super) meta: Option<PacketMeta>,
    /// The peer's process may find the QP in this one's directory.
    pub(super) listed: bool,
    /// What an XRC target has besides.
    pub(super) target: &'a mut Shared,
    pub(super) now: Instant,
    pub(super) pacing: &'a mut Pacing,
}

impl<'a> QpEnv<'a> {
    /// Is a packet from there one that this QP listens to?
    pub(crate) fn accepts(&self, meta: &PacketMeta, origin: Origin) -> bool {
        let mirrors = |own: &PacketMeta| own.src == meta.dst && own.dst == meta.src;
        match (self.qp.service, self.path) {
            (Service::Ud, _) => true,
            (_, Some(Path::Local { meta: own })) => origin == Origin::Here && mirrors(own),
            (_, Some(Path::Shm { meta: own, link })) => {
                // Each of two processes may have made a link: what counts is the process.
                matches!(origin, Origin::Process(from) if from.is(&link.peer())) && mirrors(own)
            }
            (_, Some(Path::Udp { dest, .. })) => {
                origin == Origin::Network
                    && dest.peer().ip() == meta.src
                    && dest.endpoint().address().ip() == meta.dst
            }
            (_, None) => false,
        }
    }

    /// Is a packet from the network one of the peer, which hasn't said anything through shared memory? Then one of the two
    /// processes couldn't share memory with the other.
    pub(crate) fn is_peer_elsewhere(&self, meta: &PacketMeta) -> bool {
        let Some(Path::Shm { meta: own, .. }) = self.path else { return false };
        !self.qp.has_heard() && own.src == meta.dst && own.dst == meta.src
    }

    /// Is a packet from shared memory one of the peer, which this QP can reach by UDP only?
    pub(crate) fn is_peer_astray(&self, meta: &PacketMeta) -> bool {
        let Some(Path::Udp { dest, .. }) = self.path else { return false };
        self.qp.service != Service::Ud
            && dest.peer().ip() == meta.src
            && dest.endpoint().address().ip() == meta.dst
    }

    /// The peer shares memory with this process.
    pub(crate) fn heard(&self) {
        if matches!(self.path, Some(Path::Shm { .. })) {
            self.qp.hear();
        }
    }

    /// Gives the transport one packet.
    pub(crate) fn handle(
        &mut self,
        proto: &mut ferroce_proto::Qp<Arc<Ah>>,
        now: Instant,
        headers: &Headers,
        payload: RxPayload<'_>,
        meta: &PacketMeta,
    ) {
        let request = self.qp.is_target() && headers.bth.opcode.is_request();
        if request && self.keeps(proto, headers, &payload, meta) {
            return;
        }
        self.meta = Some(*meta);
        proto.handle_packet(now, headers, payload, self);
        self.meta = None;
    }

    /// Answers a packet that was marked "congestion experienced" with a congestion notification (annex A17.9.3), but not
    /// more often than a sender can act on.
    pub(crate) fn notify_congestion(&mut self, dest_qp: u32, now: Instant) {
        let Some(Path::Udp { dest, .. }) = self.path else { return };
        let last = self.qp.last_cnp.load(Ordering::Relaxed);
        if last != 0 && now.since(Instant(last)) < CNP_INTERVAL {
            return;
        }
        self.qp.last_cnp.store(now.0, Ordering::Relaxed);
        let headers = Headers::new(Bth { becn: true, ..Bth::new(Opcode::CNP, dest_qp, 0) });
        let sent = self.work.batch.packet(dest, &headers, CNP_RESERVED, |buf| {
            buf.fill(0);
            Ok::<(), ()>(())
        });
        if let Err(error) = sent {
            tracing::warn!(qpn = self.qp.qpn, ?error, "a congestion notification can't be built");
        }
    }

    /// Sends a packet to another process of this host.
    fn transmit_record(
        &mut self,
        link: &Arc<Link>,
        headers: &Headers,
        meta: &PacketMeta,
        len: usize,
        source: Source<'_>,
    ) -> Result<(), TransmitError> {
        let (by, engine) = (self.key_user(), self.qp.engine);
        let by_reference = self.listed && len >= REFERENCE && link.peer_fetches() && !engine.has_capture();
        let pieces = if by_reference { references(by.pd, source)? } else { None };
        let sent = match pieces {
            Some(pieces) => link.send_reference(headers, meta, &pieces),
            None => link.send(headers, meta, len, |ring| {
                fill_ring(by, source, ring)?;
                if engine.has_capture() {
                    engine.show_message(Direction::Out, headers, &ring.to_vec(), meta);
                }
                Ok(())
            }),
        };
        match sent {
            Sent::Published(end) => {
                self.qp.last_record.store(end, Ordering::Relaxed);
                self.work.rings(link);
                Ok(())
            }
            Sent::Full if !self.qp.is_reliable() && link.is_stuck(crate::clock::now()) => Ok(()),
            Sent::Full => {
                self.work.blocked = true;
                self.work.blocked_on = Some(link.clone());
                Err(TransmitError::Blocked)
            }
            Sent::Lost => Ok(()),
            Sent::Failed(error) => Err(error),
        }
    }

    /// What QPs of this process have sent to this one.
    pub(crate) fn inbox(&self) -> &'a Inbox<Record> {
        &self.qp.inbox
    }

    /// The protection domain of what is being done. A target has that of the SRQ at hand.
    fn pd(&self) -> u32 {
        self.target.selected.as_ref().map_or(self.qp.pd.id(), |srq| srq.pd().id())
    }

    fn key_user(&self) -> KeyUser {
        KeyUser { pd: self.pd(), qp: self.qp.serial }
    }

    fn wc(&self, completion: Completion) -> Wc {
        let network = |meta: &PacketMeta| if meta.src.is_ipv4() { Network::Ipv4 } else { Network::Ipv6 };
        let network = self.meta.as_ref().filter(|_| completion.grh).map(network);
        Wc { qp_num: self.qp.qpn, completion, network, checksums_ok: false }
    }

    /// Publishes what was received. The ACK for it has left.
    pub(super) fn publish(&mut self) {
        for wc in std::mem::take(&mut self.work.received) {
            if let Some(counting) = self.qp.counting.get() {
                let Completion { byte_len, status, .. } = wc.completion;
                counting.count(CountedOp::Recv, u64::from(byte_len), status);
            }
            self.work.overrun |= !self.qp.recv_cq.push(wc);
        }
        for (cq, wc) in std::mem::take(&mut self.work.received_elsewhere) {
            self.work.overrun |= !cq.push(wc);
        }
    }
}

impl Env for QpEnv<'_> {
    type Payload<'p> = RxPayload<'p>;
    type Address = Arc<Ah>;

    fn transmit(
        &mut self,
        headers: &Headers,
        source: Source<'_>,
        to: Option<&Arc<Ah>>,
    ) -> Result<(), TransmitError> {
        if let (Source::Remote { rkey, va, len }, Some(srqn)) = (source, self.target.elsewhere) {
            let range = Range { srqn, rkey, va, len };
            let bytes = self.bytes_elsewhere(range)?;
            let sent = self.transmit(headers, Source::Bytes(&bytes), to);
            if sent == Err(TransmitError::Blocked) {
                self.target.fetched = Some((range, Ok(bytes)));
            }
            return sent;
        }
        let by = self.key_user();
        let len = source_len(&source);
        let of_ah = to.map(|ah| ah.path_to(self.qp.engine, headers.bth.dest_qp));
        let Some(path) = of_ah.as_ref().map_or(self.path, Option::as_ref) else {
            // No way there: the packet is lost, as on a wire.
            return Ok(());
        };
        let Work { batch, ahead, .. } = &mut *self.work;
        match path {
            Path::Shm { meta, link } => {
                if self.qp.service == Service::Ud {
                    self.pacing.ask_own(self.now, len)?;
                }
                self.transmit_record(link, headers, &meta.of_packet(headers, len), len, source)
            }
            Path::Udp { dest, share } => {
                if matches!(self.qp.service, Service::Uc | Service::Ud) {
                    if !share.has_room(len as u32) {
                        self.work.blocked = true;
                        return Err(TransmitError::Blocked);
                    }
                    // UC needs no pace where it can see how full the peer's socket is.
                    if self.qp.service == Service::Ud || !share.is_on_this_host() {
                        self.pacing.ask(share, self.now, len)?;
                    }
                }
                match batch.packet(dest, headers, len, |buf| fill(by, ahead, source, buf)) {
                    Err(PushError::Fill(error)) => Err(error),
                    Err(error) => {
                        tracing::warn!(qpn = self.qp.qpn, %error, "a packet can't be built");
                        Ok(())
                    }
                    Ok(()) => Ok(()),
                }
            }
            Path::Local { meta } => {
                let Some(peer) = self.qp.engine.qp(headers.bth.dest_qp) else { return Ok(()) };
                if peer.inbox.is_full() {
                    self.work.blocked = true;
                    return Err(TransmitError::Blocked);
                }
                if self.qp.service == Service::Ud {
                    self.pacing.ask_own(self.now, len)?;
                }
                let mut payload = vec![0; len];
                fill(by, ahead, source, &mut payload)?;
                let record = Record { headers: *headers, payload, meta: meta.of_packet(headers, len) };
                self.qp.engine.show_local(&record);
                peer.inbox.push(record);
                self.work.kicks.push(peer);
                Ok(())
            }
        }
    }

    fn execute_directly(&mut self, peer: u32, wr: &SendWr<Arc<Ah>>, offset: u64, max: u32) -> Option<u32> {
        let Some(Path::Shm { link, .. }) = self.path else { return None };
        if self.qp.service == Service::Xrc {
            // Which protection domain the key must be of depends on the SRQ, which the peer's process knows.
            return None;
        }
        if !link.may_access() || self.qp.engine.has_capture() {
            return None;
        }
        let (pd, ends) = (self.pd(), (self.qp.qpn, peer));
        let range = |va: u64, rkey, len: usize| (rkey, va.wrapping_add(offset), len as u64);
        let done = match (&wr.op, &wr.data) {
            (&SendOp::Write { va, rkey }, Data::Inline(bytes)) => {
                let part = bytes.get(offset as usize..)?;
                let part = &part[..part.len().min(max as usize)];
                link.access(ends, range(va, rkey, part.len()), Purpose::Write, |peer, to| {
                    peer.write(to, part.as_ptr() as u64, part.len()).then_some(part.len() as u32)
                })
            }
            (&SendOp::Write { va, rkey }, Data::Sges(sges)) => {
                let len = (wr.data.len() - offset).min(u64::from(max)) as usize;
                link.access(ends, range(va, rkey, len), Purpose::Write, |peer, to| {
                    each_piece(pd, sges, offset, len, false, |at, addr, len| peer.write(to + at, addr, len))
                })
            }
            (&SendOp::Read { va, rkey }, Data::Sges(sges)) => {
                let len = (wr.data.len() - offset).min(u64::from(max)) as usize;
                link.access(ends, range(va, rkey, len), Purpose::Read, |peer, from| {
                    each_piece(pd, sges, offset, len, true, |at, addr, len| peer.read(from + at, addr, len))
                })
            }
            _ => None,
        };
        if done.is_some() {
            self.heard();
        }
        done
    }

    fn is_undelivered(&self) -> bool {
        let Some(Path::Shm { link, .. }) = self.path else { return false };
        !link.is_dead() && !link.is_consumed(self.qp.last_record.load(Ordering::Relaxed))
    }

    fn window(&self) -> u32 {
        match self.path {
            Some(Path::Udp { share, .. }) => share.window(),
            _ => u32::MAX,
        }
    }

    fn select_srq(&mut self, srqn: u32) -> SrqPlace {
        self.place_of(srqn)
    }

    fn delegate(&mut self, headers: &Headers, payload: &RxPayload<'_>) -> bool {
        self.give_away(headers, payload)
    }

    fn next_recv(&mut self) -> Option<RecvWqe> {
        if let Some(srq) = &self.target.selected {
            let wqe = srq.pop();
            self.target.held = wqe.as_ref().and(Some(srq.clone()));
            return wqe;
        }
        match &self.qp.srq {
            Some(srq) => srq.pop(),
            None => self.qp.rq.lock().pop(),
        }
    }

    fn flush_recv_queue(&mut self) {
        let mut rq = self.qp.rq.lock();
        // From here on post_recv flushes at once.
        self.qp.state.store(QpState::Err as u8, Ordering::Release);
        while let Some(wqe) = rq.pop() {
            let wc = self.wc(flushed_recv(wqe.wr_id));
            self.work.received.push(wc);
        }
    }

    fn place(&mut self, sges: &[Sge], offset: u64, payload: &RxPayload<'_>) -> Result<(), PlaceError> {
        scatter(self.pd(), sges, offset, payload)
    }

    fn place_bytes(&mut self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), ()> {
        scatter(self.pd(), sges, offset, &bytes.into()).map_err(|_| ())
    }

    fn place_grh(&mut self, sges: &[Sge]) -> Result<(), ()> {
        let grh = self.meta.as_ref().map_or([0; Grh::LEN], Grh::of);
        scatter(self.pd(), sges, 0, &grh.as_slice().into()).map_err(|_| ())
    }

    fn check_remote(
        &mut self,
        rkey: u32,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), RemoteError> {
        if self.target.elsewhere.is_some() {
            // The process that has it finds out when it is read.
            return Ok(());
        }
        MrTable::global().check_remote(self.key_user(), rkey, va, len, access)
    }

    fn write_remote(&mut self, rkey: u32, va: u64, payload: &RxPayload<'_>) -> Result<(), RemoteError> {
        let len = payload.len();
        let mut copied = Ok(());
        let copy = |addr| {
            copied = payload.copy_to(0, addr, len);
            copied.map_err(|_| copy::Fault)
        };
        let written =
            MrTable::global().remote(self.key_user(), rkey, va, len as u64, RemoteAccess::Write, copy);
        if copied == Err(PlaceError::Lost) { Err(RemoteError::Lost) } else { written }
    }

    fn atomic_remote(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, RemoteError> {
        let access = match op {
            AtomicOp::Store { .. } => RemoteAccess::Store,
            _ => RemoteAccess::Atomic,
        };
        MrTable::global().remote(self.key_user(), rkey, va, 8, access, |addr| atomic::execute(addr, op))
    }

    fn flush_remote(
        &mut self,
        rkey: u32,
        range: Option<(u64, u64)>,
        placement: Placement,
    ) -> Result<(), RemoteError> {
        let table = MrTable::global();
        let (va, len) = range.or_else(|| table.range(rkey)).ok_or(RemoteError::Access)?;
        table.remote(self.key_user(), rkey, va, len, RemoteAccess::Flush(placement), |addr| {
            // What the QP has written was copied before this packet was looked at.
            fence(Ordering::SeqCst);
            if placement.persistent && len > 0 { persist::write_back(addr, len) } else { Ok(()) }
        })
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), RemoteError> {
        MrTable::global().invalidate(self.key_user(), rkey).map_err(|()| RemoteError::Access)
    }

    fn bind_window(&mut self, bind: &BindMw) -> Result<(), ()> {
        MrTable::global().bind(self.key_user(), bind)
    }

    fn retire(&mut self, wr: &SendWr<Arc<Ah>>, status: WcStatus) {
        if let Some(counting) = self.qp.counting.get()
            && let Some(op) = CountedOp::of(&wr.op)
        {
            counting.count(op, wr.data.len(), status);
        }
    }

    fn written(&mut self, bytes: u32) {
        if let Some(counting) = self.qp.counting.get() {
            counting.count(CountedOp::RemoteWrite, u64::from(bytes), WcStatus::Success);
        }
    }

    fn complete_send(&mut self, completion: Completion) {
        if self.listed && completion.status != WcStatus::Success {
            // The program may use the memory again: what the QP has sent by reference isn't to be fetched any more.
            shm::withdraw_qp(self.qp.qpn);
        }
        self.work.overrun |= !self.qp.send_cq.push(self.wc(completion));
    }

    fn complete_recv(&mut self, completion: Completion) {
        let wc = self.wc(completion);
        match self.target.held.take().as_ref().and_then(|srq| srq.cq()) {
            Some(cq) => self.work.received_elsewhere.push((cq.clone(), wc)),
            None => self.work.received.push(wc),
        }
    }

    fn violation(&mut self, violation: Violation) {
        self.qp.pd.context().count_violation(violation);
    }

    fn event(&mut self, event: QpEvent) {
        if event == QpEvent::SqDrained && !self.qp.notify_drained.load(Ordering::Relaxed) {
            return;
        }
        let about = |cookie| match event {
            QpEvent::Fatal => AsyncEvent::QpFatal(cookie),
            QpEvent::RequestError => AsyncEvent::QpRequestError(cookie),
            QpEvent::AccessError => AsyncEvent::QpAccessError(cookie),
            QpEvent::CommunicationEstablished => AsyncEvent::CommunicationEstablished(cookie),
            QpEvent::SqDrained => AsyncEvent::SqDrained(cookie),
            QpEvent::LastWqeReached => AsyncEvent::QpLastWqeReached(cookie),
        };
        if self.qp.is_target() {
            self.target.raise(about);
        } else {
            self.qp.pd.context().raise(about(self.qp.cookie));
        }
    }
}

/// The completion of a receive work request that was never used.
pub(super) fn flushed_recv(wr_id: u64) -> Completion {
    Completion {
        wr_id,
        status: WcStatus::WrFlushErr,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        immediate: None,
        invalidated_rkey: None,
        src_qp: 0,
        grh: false,
        solicited: false,
    }
}
