//! One QP's surroundings as the transport sees them: keys and memory, receive queue, completion queues, fabric.

mod failed;
mod incoming;
mod middles;
mod outgoing;

pub(in crate::qp) use failed::{operation_of_request, state_of};
pub(crate) use incoming::PacketOrigin;
pub(crate) use middles::is_middle;

use super::payload::{RxPayload, scatter, scatter_rest, source_len};
use super::received::{OfSrq, ReceiveCompletions};
use super::waiting::WaitingPackets;
use super::xrc_target::XrcTargetSlot;
use super::{Path, Qp};
use crate::adapter::ThreadBuffers;
use crate::device::{OfContext as _, seen_of};
use ferroce_access::atomic;
use ferroce_mem::{Denied, KeyTable, KeyUser, write_back};
use ferroce_netdev::LinkLayer;
use ferroce_netdev::{Grh, grh_of};
use ferroce_parts::{Ah, KeptOfQp, UnackedPace, UnreadRecords, settings};
use ferroce_proto::{
    Buffer, DelegateError, Env, Failure, KeptPacket, LookedAt, NeededMemory, NoReceive, Payload,
    PayloadSource, PlaceError, QpEvent, ReceivedWhole, SendEnds, SendOp, SendWr, SrqPlace, TagInfo, Taken,
    Telling, TransmitError, Unanswered, Violation,
};
use ferroce_queues::{CountedOp, WcTags};
use ferroce_types::{
    AsyncEvent, AtomicOp, BindMw, Completion, Instant, PacketMeta, Placement, QpState, RecvWqe, RemoteAccess,
    RemoteError, Sge, TagFlags, WcOpcode, WcStatus, vendor_err,
};
use ferroce_wire::{Headers, Service, Tmh};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The surroundings of `qp` while its lock is held.
pub(crate) struct QpEnv<'a> {
    pub(super) qp: &'a Arc<Qp>,
    /// The number of its connection.
    pub(super) connection: u64,
    pub(super) path: Option<&'a Path>,
    pub(crate) work: &'a mut ThreadBuffers,
    /// Of the packet at hand.
    pub(super) meta: Option<PacketMeta>,
    /// The peer's process may find the QP in this one's directory.
    pub(super) listed: bool,
    /// The QP is about to change to UDP: no packet leaves before.
    pub(super) falls_back: bool,
    /// What an XRC target has besides.
    pub(super) xrc_target: &'a mut XrcTargetSlot,
    pub(super) now: Instant,
    pub(super) unacked_pace: &'a mut UnackedPace,
    pub(super) unread: &'a mut UnreadRecords,
    /// Receive completions that wait for their acknowledgement to leave.
    pub(super) held: &'a mut ReceiveCompletions,
    /// Packets that wait for memory.
    pub(crate) waiting: &'a mut WaitingPackets,
    /// Packets that wait for those before them.
    pub(super) kept: &'a mut KeptOfQp,
    /// Packets with data are sent as ECN-capable.
    pub(super) ecn: bool,
}

impl QpEnv<'_> {
    /// The protection domain of what is being done. A target has that of the SRQ at hand.
    fn pd(&self) -> u32 {
        self.xrc_target.srq.as_ref().map_or(self.qp.pd.id(), |srq| srq.pd().id())
    }

    /// The protection domain of the elements that a payload is placed into. The elements of a receive belong to the domain of the queue
    /// that it was posted to: a shared receive queue may be of another domain than the QP.
    pub(super) fn pd_of(&self, buffer: Buffer) -> u32 {
        match (buffer, &self.qp.srq) {
            (Buffer::Receive, Some(srq)) => srq.pd().id(),
            _ => self.pd(),
        }
    }

    pub(super) fn key_user(&self) -> KeyUser {
        KeyUser { pd: self.pd(), qp: self.qp.serial }
    }

    /// Adds to a completion of the transport what the QP and the packet have.
    fn whole(&self, mut completion: Completion) -> Completion {
        completion.qp_num = self.qp.qpn;
        let of_packet = self.meta.as_ref().filter(|_| self.qp.service == Service::Ud);
        let Some(meta) = of_packet.filter(|_| completion.opcode == WcOpcode::Recv) else { return completion };
        let slid = seen_of(meta, &self.qp.pd).slid;
        // On InfiniBand `sl` is a service level, so it doesn't contain the type of the packet.
        let shown = completion.grh() && !LinkLayer::current().is_infiniband();
        Completion { sl: if shown { packet_type(meta.src) } else { 0 }, slid, ..completion }
    }

    /// A completion queue had no room.
    pub(super) fn note_overrun(&mut self) {
        self.work.overrun = true;
    }

    /// Publishes what was received, and holds back what isn't acknowledged: from this number on.
    #[inline]
    pub(super) fn publish(&mut self, unacknowledged_from: u64) {
        if !(self.work.received.is_empty() && self.held.is_empty()) {
            self.publish_up_to(unacknowledged_from);
        }
    }

    fn publish_up_to(&mut self, unacknowledged_from: u64) {
        let unacknowledged_from = unacknowledged_from.min(self.xrc_target.acknowledged);
        let received = &mut self.work.received;
        if !self.held.is_empty() {
            received.put_back(self.held);
        }
        if unacknowledged_from != u64::MAX && !received.is_empty() {
            received.hold_back(unacknowledged_from, self.held);
        }
        if !received.is_empty() {
            self.publish_received();
        }
    }

    /// The QP has failed, and the program is about to learn of it: it may use its memory again.
    fn withdraw(&self) {
        if self.listed {
            ferroce_hostlink::withdraw_qp(self.qp.qpn);
        }
    }

    fn publish_received(&mut self) {
        let ThreadBuffers { received, overrun, .. } = &mut *self.work;
        for (completion, _) in received.own.drain(..) {
            self.qp.observe_receive(&completion);
            *overrun |= !self.qp.recv_cq.push(completion);
        }
        if received.of_srqs.is_empty() {
            return;
        }
        for OfSrq { srq, completion, tags, .. } in received.of_srqs.drain(..) {
            let Some(cq) = srq.completes_into() else { continue };
            // The match of a rendezvous is followed by its data.
            let TagFlags { matched, data_valid, .. } = completion.tags();
            if !matched || data_valid {
                self.qp.observe_receive(&completion);
            }
            *overrun |= !cq.push_tagged(completion, tags);
        }
    }
}

impl SendEnds for QpEnv<'_> {
    type Address = Arc<Ah>;

    fn retire(&mut self, wr: &SendWr<Arc<Ah>>, status: WcStatus) {
        self.qp.observe_end(wr, status);
    }

    fn complete_send(&mut self, completion: Completion) {
        if completion.status != WcStatus::Success {
            self.withdraw();
        }
        self.work.overrun |= !self.qp.send_cq.push(self.whole(completion));
    }
}

impl Env for QpEnv<'_> {
    type Payload<'p> = RxPayload<'p>;

    fn transmit(
        &mut self,
        headers: &Headers,
        source: PayloadSource<'_>,
        to: Option<&Arc<Ah>>,
    ) -> Result<(), TransmitError> {
        let Some(ah) = to else { return self.send(headers, source, None) };
        ah.ask(self.now).map_err(TransmitError::Later)?;
        let len = source_len(&source);
        self.send(headers, source, to).inspect(|()| ah.sent(self.now, len))
    }

    fn execute_directly(
        &mut self,
        peer: u32,
        wr: &SendWr<Arc<Ah>>,
        buffer: Buffer,
        offset: u64,
        max: u32,
    ) -> Result<Option<u32>, TransmitError> {
        self.reach_peer(peer, wr, self.pd_of(buffer), (offset, max))
    }

    fn prefers_to_execute(&self, wr: &SendWr<Arc<Ah>>) -> bool {
        let Some(Path::Shm { link, .. }) = self.path else { return false };
        let (SendOp::Write { rkey, .. } | SendOp::Read { rkey, .. }) = wr.op else { return false };
        self.qp.prefers_to_execute(link, rkey, wr.data.len(), outgoing::elements(&wr.data))
    }

    fn answer_may_come(&mut self, peer: u32, oldest: Unanswered) -> bool {
        if self.waiting.has_answers() {
            // It has come.
            return true;
        }
        match self.path {
            Some(Path::Shm { link, .. }) if !link.is_dead() => {
                // The peer publishes an answer before it gives the request's cell back, and before it clears the flag that it owes one.
                // So the cell and the flag are read before the rings.
                if link.is_unacknowledged(self.qp.last_request.load(Ordering::Relaxed)) {
                    return true;
                }
                let links = self.qp.adapter.links.to_same_process(link);
                links.iter().any(|link| link.peer_owes((self.qp.qpn, peer)))
                    || self.unread.may_be_in_rings(&links, oldest)
            }
            _ => false,
        }
    }

    fn is_ecn_capable(&self) -> bool {
        self.ecn
    }

    fn window(&self) -> u32 {
        match self.path {
            Some(Path::Udp { socket, .. }) => socket.window(),
            _ => u32::MAX,
        }
    }

    fn keep(&mut self, number: u64, headers: &Headers, payload: &RxPayload<'_>) -> bool {
        // An adapter doesn't understand what is kept, and sends all of it again. It gets no report either, though the packet before came
        // from a Ferroce host.
        self.note_whom_to_tell();
        let Some(meta) = self.meta.filter(PacketMeta::of_no_adapter) else { return false };
        self.kept.keep(number, headers, payload, meta.source_port)
    }

    fn take_kept(&mut self, number: u64) -> Option<KeptPacket> {
        self.kept.take(number, self.meta?.source_port)
    }

    fn forget_kept(&mut self) {
        self.kept.forget();
    }

    fn look(&mut self, needed: &NeededMemory<'_>, len: usize) -> LookedAt {
        self.look_at_needed(needed, len)
    }

    fn await_memory_of_kept(&mut self, packets: Vec<KeptPacket>) {
        self.keep_waiting_before_all(packets);
    }

    fn payload_of(bytes: &[u8]) -> RxPayload<'_> {
        RxPayload::of_packet(bytes)
    }

    fn select_srq(&mut self, srqn: u32) -> SrqPlace {
        self.locate_srq(srqn)
    }

    fn delegate(
        &mut self,
        headers: &Headers,
        payload: &RxPayload<'_>,
        run: u32,
    ) -> Result<(), DelegateError> {
        // The answer comes later, without the packet.
        self.note_whom_to_tell();
        self.delegate_request(headers, payload, run)
    }

    fn next_recv(&mut self) -> Option<RecvWqe> {
        if let Some(srq) = &self.xrc_target.srq {
            let wqe = srq.pop();
            self.xrc_target.receiving_srq = wqe.as_ref().and(Some(srq.clone()));
            return wqe;
        }
        match &self.qp.srq {
            Some(srq) => srq.pop(),
            None => self.qp.rq.lock().pop(),
        }
    }

    #[inline]
    fn receive_whole(&mut self, payload: &RxPayload<'_>) -> ReceivedWhole {
        self.qp.receive_whole(payload, |addr| payload.copy_to(0, addr, payload.len()))
    }

    fn next_recv_for(&mut self, len: u64) -> Result<RecvWqe, NoReceive> {
        let taken = match &self.qp.srq {
            Some(srq) => srq.pop_for(len),
            None => self.qp.rq.lock().pop_for(len),
        };
        if taken == Err(NoReceive::TooSmall) {
            let qpn = self.qp.qpn;
            tracing::debug!(qpn, len, "datagram dropped: the next receive is smaller than GRH and payload");
        }
        taken
    }

    fn flush_recv_queue(&mut self) {
        let mut rq = self.qp.rq.lock();
        // From here on post_recv flushes at once.
        self.qp.state.store(QpState::Err as u8, Ordering::Release);
        while let Some(wqe) = rq.pop() {
            let flushed = self.whole(self.qp.flushed_recv(wqe.wr_id));
            self.work.received.own.push((flushed, 0));
        }
    }

    fn flush_unacknowledged(&mut self, from: u64) {
        self.work.received.put_back(self.held);
        self.work.received.flush(from, |wr_id| self.qp.flushed_recv(wr_id));
    }

    fn next_tagged(&mut self, header: &Tmh) -> Option<Taken> {
        self.qp.srq.as_ref()?.take_for(header)
    }

    fn place(
        &mut self,
        buffer: Buffer,
        sges: &[Sge],
        offset: u64,
        payload: &RxPayload<'_>,
        skip: usize,
    ) -> Result<(), PlaceError> {
        scatter_rest(self.pd_of(buffer), sges, offset, payload, skip)
    }

    fn place_bytes(&mut self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), ()> {
        scatter(self.pd_of(Buffer::Request), sges, offset, &RxPayload::of_packet(bytes)).map_err(|_| ())
    }

    fn place_grh(&mut self, sges: &[Sge]) -> Result<bool, ()> {
        if self.meta.as_ref().is_some_and(|meta| !seen_of(meta, &self.qp.pd).grh) {
            return Ok(false);
        }
        let grh = self.meta.as_ref().map_or([0; Grh::LEN], grh_of);
        let placed = scatter(self.pd_of(Buffer::Receive), sges, 0, &RxPayload::of_packet(&grh));
        placed.map(|_| true).map_err(|_| ())
    }

    fn check_remote(
        &mut self,
        rkey: u32,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), RemoteError> {
        if self.xrc_target.remote_srqn.is_some() {
            // The process that has it finds out when it is read.
            return Ok(());
        }
        KeyTable::global().check_remote(self.key_user(), rkey, va, len, access)
    }

    fn write_remote(&mut self, rkey: u32, va: u64, payload: &RxPayload<'_>) -> Result<(), RemoteError> {
        let len = payload.len();
        let copy = |addr| match payload {
            RxPayload::Careful(_) if settings::is_strict() => payload.copy_last_byte_first(addr),
            _ => payload.copy_to(0, addr, len),
        };
        KeyTable::global().remote(self.key_user(), rkey, va, len as u64, RemoteAccess::Write, copy)
    }

    fn atomic_remote(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, RemoteError> {
        let access = match op {
            AtomicOp::Store { .. } => RemoteAccess::Store,
            _ => RemoteAccess::Atomic,
        };
        KeyTable::global().remote(self.key_user(), rkey, va, 8, access, |addr| {
            let execute = || atomic::execute(addr, op);
            if settings::checks_memory() { ferroce_mem::place_atomically(addr, execute) } else { execute() }
        })
    }

    fn flush_remote(
        &mut self,
        rkey: u32,
        range: Option<(u64, u64)>,
        placement: Placement,
    ) -> Result<(), RemoteError> {
        let table = KeyTable::global();
        let (va, len) = range.or_else(|| table.range(rkey)).ok_or(RemoteError::Access)?;
        table.remote(self.key_user(), rkey, va, len, RemoteAccess::Flush(placement), |addr| {
            // SYNC: pairs with the acquire loads of threads that read `va`: the QP's earlier WRITEs, copied by this thread, are visible
            // before the acknowledgement of the FLUSH.
            fence(Ordering::SeqCst);
            if placement.persistent && len > 0 { write_back(addr, len) } else { Ok(()) }
        })
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), RemoteError> {
        KeyTable::global().invalidate(self.key_user(), rkey).map_err(|Denied| RemoteError::Access)
    }

    fn bind_window(&mut self, bind: &BindMw) -> Result<(), ()> {
        KeyTable::global().bind(self.key_user(), bind).map_err(|Denied| ())
    }

    fn written(&mut self, bytes: u32) {
        if let Some(counting) = self.qp.observers.counters() {
            counting.count(CountedOp::RemoteWrite, u64::from(bytes), WcStatus::Success);
        }
    }

    fn was_read(&mut self, bytes: u32, ends: bool) {
        if let Some(counting) = self.qp.observers.counters() {
            counting.count_read(u64::from(bytes), ends);
        }
    }

    fn complete_recv(&mut self, completion: Completion, number: u64) {
        let completion = self.whole(completion);
        // Only what a target has is written to.
        let held = match self.xrc_target.receiving_srq {
            Some(_) => self.xrc_target.receiving_srq.take(),
            None => None,
        };
        match held.as_ref().or(self.qp.srq.as_ref()).filter(|srq| srq.completes_into().is_some()) {
            Some(srq) => {
                let (srq, tags) = (srq.clone(), WcTags::default());
                self.work.received.of_srqs.push(OfSrq { srq, completion, number, tags });
            }
            None => self.work.received.own.push((completion, number)),
        }
    }

    fn forget_unexpected(&mut self) {
        if let Some(srq) = &self.qp.srq {
            srq.forget_unexpected();
        }
    }

    fn complete_tagged(&mut self, completion: Completion, number: u64, info: TagInfo) {
        let completion = self.whole(completion);
        if let Some(srq) = self.qp.srq.clone() {
            self.work.received.of_srqs.push(OfSrq { srq, completion, number, tags: info.into() });
        }
    }

    fn violation(&mut self, violation: Violation) {
        self.qp.pd.context().count_violation(violation);
    }

    fn failed(&mut self, failure: &Failure<'_, Arc<Ah>>) -> u16 {
        self.explain(failure)
    }

    fn telling(&self) -> Telling {
        match self.path {
            Some(Path::Shm { .. }) if !self.qp.adapter.has_capture() => Telling::WithNak,
            Some(Path::Udp { .. }) if self.qp.peer_is_told.load(Ordering::Relaxed) => Telling::BeforeNak,
            _ => Telling::Never,
        }
    }

    fn event(&mut self, event: QpEvent) {
        if event == QpEvent::SqDrained && !self.qp.notify_drained.load(Ordering::Relaxed) {
            return;
        }
        let about = |user_handle| match event {
            QpEvent::Fatal => AsyncEvent::QpFatal(user_handle),
            QpEvent::RequestError => AsyncEvent::QpRequestError(user_handle),
            QpEvent::AccessError => AsyncEvent::QpAccessError(user_handle),
            QpEvent::CommunicationEstablished => AsyncEvent::CommunicationEstablished(user_handle),
            QpEvent::SqDrained => AsyncEvent::SqDrained(user_handle),
            QpEvent::LastWqeReached => AsyncEvent::QpLastWqeReached(user_handle),
        };
        if matches!(event, QpEvent::Fatal | QpEvent::RequestError | QpEvent::AccessError) {
            self.withdraw();
        }
        if self.qp.is_target() {
            self.xrc_target.raise(about);
        } else {
            self.qp.pd.owner().raise(about(self.qp.user_handle));
        }
    }
}

impl Qp {
    /// The completion of a receive work request that was never used, because the QP has failed for a reason, or for none.
    pub(in crate::qp) fn flushed_recv(&self, wr_id: u64) -> Completion {
        let vendor_err = vendor_err(self.reason.load(Ordering::Relaxed));
        let flushed = Completion::new(wr_id, WcStatus::WrFlushErr, WcOpcode::Recv);
        Completion { vendor_err, qp_num: self.qpn, ..flushed }
    }
}

/// `sl` of a UD receive on RoCE, in the encoding of ConnectX adapters, which UCX uses: bit 3 for a UDP header, below it 1 for
/// IPv6 and 2 for IPv4.
fn packet_type(source: IpAddr) -> u8 {
    match source {
        IpAddr::V6(_) => 0b1001,
        IpAddr::V4(_) => 0b1010,
    }
}
