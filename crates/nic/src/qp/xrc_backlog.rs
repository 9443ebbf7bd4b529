//! Requests of an XRC target that another process executes, and those that wait meanwhile.

use super::xrc_target::{DeferredPacket, DelegatedPacket, PendingDelegations, XrcTargetPart};
use super::{Qp, QpEnv, RxPayload};
use crate::adapter::ThreadBuffers;
use ferroce_mem::KeyUser;
use ferroce_parts::Ah;
use ferroce_proto::{DelegateError, Executed, Payload, SrqPlace, TransmitError};
use ferroce_types::{Access, Instant, PacketMeta, QpState, RemoteError, slot_of};
use ferroce_wire::Headers;
use ferroce_xrc::message::{Hello, ReadRange};
use ferroce_xrc::{ConnectError, DomainFile, SrqProcess};
use std::sync::Arc;

/// Packets that wait, at most, and their bytes. What is beyond is as good as lost.
const MAX_BACKLOG: usize = 8192;
const MAX_BACKLOG_BYTES: usize = 16 << 20;
/// Packets that another process has at a time, and their bytes: they fit into a socket's usual buffer.
const MAX_DELEGATED: usize = 64;
const MAX_DELEGATED_BYTES: usize = 128 << 10;

type Proto = ferroce_proto::QpProtocol<Arc<Ah>>;

impl QpEnv<'_> {
    /// Must a request wait, for others or until its SRQ's process is reached? Then it is kept.
    pub(super) fn defer(
        &mut self,
        proto: &Proto,
        headers: &Headers,
        payload: &RxPayload<'_>,
        meta: &PacketMeta,
    ) -> bool {
        let behind = !self.xrc_target.backlog.is_empty() || !self.can_execute(proto, headers, payload.len());
        if !behind && !self.must_connect(proto, headers) {
            return false;
        }
        let bytes = self.xrc_target.backlog_bytes + payload.len();
        if self.xrc_target.backlog.len() < MAX_BACKLOG && bytes <= MAX_BACKLOG_BYTES {
            let mut copy = vec![0; payload.len()];
            if payload.copy(&mut copy).is_ok() {
                self.xrc_target.backlog_bytes = bytes;
                self.xrc_target.backlog.push_back(DeferredPacket {
                    headers: *headers,
                    payload: copy,
                    meta: *meta,
                });
            }
        }
        true
    }

    /// Can a request be executed, here or elsewhere, although others are under way?
    fn can_execute(&self, proto: &Proto, headers: &Headers, len: usize) -> bool {
        let delegated = &self.xrc_target.delegated;
        if delegated.packets.is_empty() {
            return !proto.is_delegating();
        }
        let slot = headers.xrc_srqn.map(slot_of);
        let same =
            |process: &SrqProcess| process.number() == delegated.connection && Some(process.slot) == slot;
        delegated.packets.len() < MAX_DELEGATED
            && delegated.bytes + len <= MAX_DELEGATED_BYTES
            && proto.can_follow(headers)
            && self.xrc_target.srq_processes.iter().any(same)
    }

    /// Does a request name an SRQ of a process that isn't reached yet? It will be, when the QP isn't locked any more.
    fn must_connect(&mut self, proto: &Proto, headers: &Headers) -> bool {
        let Some(srqn) = headers.xrc_srqn else { return false };
        let slot = slot_of(srqn);
        let asked = self.xrc_target.srq_processes.iter().find(|process| process.slot == slot);
        if asked.is_some_and(|process| !process.is_reached) {
            return true;
        }
        let known =
            self.qp.adapter.host.owns(srqn) || self.xrc_target.unreachable == Some(slot) || asked.is_some();
        let runs = matches!(proto.state(), QpState::Rtr | QpState::Rts | QpState::Sqd);
        if known || !runs || !self.qp.has_shared_domain() {
            return false;
        }
        self.work.unconnected.push((self.qp.clone(), srqn));
        true
    }

    /// Gives the transport what has waited.
    pub(crate) fn handle_backlog(&mut self, proto: &mut Proto, now: Instant) {
        while let Some(kept) = self.xrc_target.backlog.pop_front() {
            let waits = !self.can_execute(proto, &kept.headers, kept.payload.len());
            if waits || self.must_connect(proto, &kept.headers) {
                self.xrc_target.backlog.push_front(kept);
                return;
            }
            self.xrc_target.backlog_bytes -= kept.payload.len();
            self.meta = Some(kept.meta);
            proto.handle_packet(now, &kept.headers, RxPayload::of_packet(&kept.payload), self);
            self.meta = None;
        }
    }

    /// Refuses what has waited for the process of a slot, which has no such SRQ, and gives the transport the rest.
    pub(crate) fn refuse_backlog(&mut self, proto: &mut Proto, now: Instant, slot: u16) {
        self.xrc_target.unreachable = Some(slot);
        self.handle_backlog(proto, now);
        self.xrc_target.unreachable = None;
    }

    /// Where an SRQ is, and from here on the one at hand.
    pub(super) fn locate_srq(&mut self, srqn: u32) -> SrqPlace {
        self.xrc_target.srq = self.qp.srq_of_domain(srqn);
        self.xrc_target.remote_srqn = None;
        if self.xrc_target.srq.is_some() {
            return SrqPlace::Here;
        }
        if self.xrc_target.srq_processes.iter().any(|process| process.slot == slot_of(srqn)) {
            self.xrc_target.remote_srqn = Some(srqn);
            return SrqPlace::OtherProcess;
        }
        SrqPlace::Nowhere
    }

    pub(super) fn delegate_request(
        &mut self,
        headers: &Headers,
        payload: &RxPayload<'_>,
        run: u32,
    ) -> Result<(), DelegateError> {
        let XrcTargetPart { srq_processes, remote_srqn, delegated, .. } = &mut **self.xrc_target;
        let slot = remote_srqn.map(slot_of);
        let at =
            srq_processes.iter().position(|process| Some(process.slot) == slot).ok_or(DelegateError::Gone)?;
        let process = &srq_processes[at];
        match process.execute(headers, payload, run) {
            // What executed there has ended, perhaps with its device context, and had nothing to do. The request is lost, as on a wire, and
            // when it comes again the process is asked anew.
            Err(DelegateError::Gone) if delegated.packets.is_empty() => {
                self.qp.adapter.xrc.close(&srq_processes.swap_remove(at));
                return Err(DelegateError::Full);
            }
            given => given?,
        }
        delegated.connection = process.number();
        delegated
            .packets
            .push_back(DelegatedPacket { bytes: payload.len(), receives: completes_receive(headers) });
        delegated.bytes += payload.len();
        Ok(())
    }

    /// So many requests have come back from a connection, or fewer: executed, or not looked at.
    pub(crate) fn take_back(
        &mut self,
        proto: &mut Proto,
        number: u64,
        count: u32,
        executed: Option<Executed>,
    ) {
        for _ in 0..count {
            let XrcTargetPart { srq_processes, delegated, .. } = &mut **self.xrc_target;
            let process = srq_processes.iter_mut().find(|process| process.number() == number);
            let (true, Some(process)) = (delegated.connection == number, process) else { return };
            let Some(packet) = delegated.packets.pop_front() else { return };
            delegated.bytes -= packet.bytes;
            // A receive that is too short completes with the packet that shows it.
            let receives = packet.receives || matches!(executed, Some(Executed::Refused(_)));
            process.note_outcome(proto.next_number(), receives);
            if let Some(executed) = executed {
                proto.executed(executed, self);
            }
        }
    }

    /// All requests before this number are acknowledged: reports that to the processes that have executed them.
    #[inline]
    pub(super) fn report_acknowledged(&mut self, from: u64) {
        if !self.xrc_target.srq_processes.is_empty() {
            for process in &mut self.xrc_target.srq_processes {
                process.report_acknowledged(from);
            }
        }
    }

    /// As what executes requests of another process's target: so many more of them are acknowledged. Their receives complete.
    pub(crate) fn note_acknowledged(&mut self, count: u32) {
        let acknowledged = &mut self.xrc_target.acknowledged;
        *acknowledged = acknowledged.saturating_add(count.into());
    }

    /// The QP is broken: no acknowledgement is reported any more, to this process or by it. What waits for one completes.
    pub(super) fn abandon_acknowledgements(&mut self) {
        if self.xrc_target.acknowledged != u64::MAX {
            self.xrc_target.acknowledged = u64::MAX;
        }
        if !self.xrc_target.srq_processes.is_empty() {
            self.qp.leave_srq_processes(self.xrc_target);
        }
    }

    /// Over a network, asks the initiator for time while another process doesn't answer. What it sends again needn't wait here.
    pub(super) fn ask_for_time(&mut self, proto: &mut Proto, psn: u32) {
        let waits = self.xrc_target.has_backlog() || self.xrc_target.fetching.is_some();
        if proto.ask_for_time(self.now, psn, waits, self) {
            self.xrc_target.drop_backlog();
        }
    }

    /// The bytes of a READ response that are in another process's memory; blocked until they have come.
    pub(super) fn remote_bytes(&mut self, range: ReadRange) -> Result<Vec<u8>, TransmitError> {
        let target = &mut **self.xrc_target;
        if let Some((fetched, result)) = target.fetched.take()
            && fetched == range
        {
            let bytes = result.map_err(TransmitError::Remote)?;
            let whole = bytes.len() == range.len as usize;
            return if whole { Ok(bytes) } else { Err(TransmitError::Remote(RemoteError::Operational)) };
        }
        if target.fetching.is_none() {
            let slot = slot_of(range.srqn);
            let asked =
                target.srq_processes.iter().find(|process| process.slot == slot && process.fetch(&range));
            let asked = asked.ok_or(TransmitError::Remote(RemoteError::Operational))?;
            target.fetching = Some((asked.number(), range));
        }
        Err(TransmitError::Blocked)
    }

    /// Such bytes have come by a connection. What it wasn't asked for, or for a QP that was reset since, is nothing.
    pub(crate) fn fetched(&mut self, number: u64, result: Result<Vec<u8>, RemoteError>) {
        if let Some((_, range)) = self.xrc_target.fetching.take_if(|(asked, _)| *asked == number) {
            self.xrc_target.fetched = Some((range, result));
        }
    }

    /// The process at the other end of a connection executes requests.
    pub(crate) fn srq_process_reached(&mut self, number: u64) {
        let processes = &mut self.xrc_target.srq_processes;
        if let Some(process) = processes.iter_mut().find(|process| process.number() == number) {
            process.is_reached = true;
        }
    }

    /// The connection with this number has ended.
    pub(crate) fn lose_srq_process(&mut self, number: u64) -> Lost {
        let processes = &mut self.xrc_target.srq_processes;
        let Some(at) = processes.iter().position(|process| process.number() == number) else {
            return Lost::Nothing;
        };
        let process = processes.swap_remove(at);
        if !process.is_reached {
            return Lost::Answer(process.slot);
        }
        self.fetched(number, Err(RemoteError::Operational));
        let given = self.xrc_target.delegated.connection == number;
        if given {
            self.xrc_target.delegated = PendingDelegations::NONE;
        }
        if given { Lost::Requests } else { Lost::Nothing }
    }
}

/// What is lost with a connection to a process that has SRQs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lost {
    Nothing,
    /// Requests may have been given to it.
    Requests,
    /// The process of this slot hasn't answered, or has no such SRQ.
    Answer(u16),
}

impl Qp {
    /// Asks the process that has an SRQ which a packet has named. What has waited for that goes on when the process answers.
    pub(crate) fn connect_srq_process(self: &Arc<Self>, work: &mut ThreadBuffers, srqn: u32) {
        let slot = slot_of(srqn);
        let known = |inner: &super::LockedQp| {
            inner.xrc_target.srq_processes.iter().any(|process| process.slot == slot)
        };
        let Some(domain) = self.domain.as_ref().filter(|_| !known(&self.inner.lock())) else { return };
        let asked = self.adapter.ask_srq_process(self, domain, srqn);
        let now = ferroce_os::clock::now();
        self.work(work, now, |proto, env| {
            let processes = &mut env.xrc_target.srq_processes;
            // Another thread may have been faster.
            if !processes.iter().any(|process| process.slot == slot) {
                // With the QP locked, so that the answer finds what it is for.
                let asked =
                    asked.and_then(|connection| self.adapter.xrc.await_answer(self, slot, connection));
                match asked {
                    Ok(process) => processes.push(process),
                    Err(ConnectError::NoSrq) => return env.refuse_backlog(proto, now, slot),
                    // What waits comes again, and then it is asked again. It hasn't been silent.
                    Err(ConnectError::Refused) => {
                        env.xrc_target.drop_backlog();
                        proto.note_result();
                    }
                }
            }
            env.handle_backlog(proto, now);
        });
    }

    /// Requests that wait are lost, as on a wire: the initiator sends them again.
    pub(crate) fn drop_backlog(&self) {
        let mut inner = self.inner.lock();
        inner.xrc_target.drop_backlog();
        inner.proto.note_result();
    }

    /// The domain has a file, by which other processes may have it too.
    fn has_shared_domain(&self) -> bool {
        self.domain.as_ref().is_some_and(|domain| domain.file.is_some())
    }

    /// The SRQ of this process with a number, if it is of the target's domain.
    pub(crate) fn srq_of_domain(&self, srqn: u32) -> Option<Arc<ferroce_queues::Srq>> {
        self.domain.as_ref().and_then(|domain| self.adapter.srqs.get(srqn, domain))
    }

    /// The user of keys for requests to an SRQ: the domain of the SRQ, and this QP.
    pub(crate) fn user_of(&self, srq: &ferroce_queues::Srq) -> KeyUser {
        KeyUser { pd: srq.pd().id(), qp: self.serial }
    }

    /// What another process has to know of this target.
    pub(crate) fn hello(&self, srqn: u32, file: DomainFile) -> Hello {
        let inner = self.inner.lock();
        let params = inner.proto.params();
        let (dest_qpn, path_mtu) = (params.dest_qpn, params.path_mtu);
        // The target looks at the QP's rights itself, as they change.
        let access = Access::ALL;
        Hello { srqn, qpn: self.qpn, dest_qpn, path_mtu, access, file }
    }

    /// Executes another process's requests from here on.
    pub(crate) fn run_as_proxy(self: &Arc<Self>, dest_qpn: u32, path_mtu: u32, access: Access) {
        self.adapter.with_work(|work| {
            let now = ferroce_os::clock::now();
            self.work(work, now, |proto, env| {
                let params = proto.params_mut();
                (params.dest_qpn, params.path_mtu, params.access) = (dest_qpn, path_mtu, access);
                (params.lossless, params.srq, params.max_dest_rd_atomic) = (true, true, 1);
                for state in [QpState::Init, QpState::Rtr] {
                    proto.set_state(state, env);
                }
                env.xrc_target.acknowledged = proto.next_number();
            });
        });
    }

    /// No request comes any more, and no acknowledgement: completes what was received, and flushes the receive of a message in progress.
    pub(crate) fn fail_proxy(self: &Arc<Self>) {
        let now = ferroce_os::clock::now();
        self.adapter.with_work(|work| {
            self.work(work, now, |proto, env| {
                env.xrc_target.acknowledged = u64::MAX;
                proto.set_state(QpState::Err, env);
            });
        });
    }

    /// Forgets what waits and lets other processes go: the QP goes back to RESET, or ends.
    pub(super) fn reset_xrc_target(&self, inner: &mut super::LockedQp) {
        if !self.is_target() {
            return;
        }
        inner.xrc_target.drop_backlog();
        inner.xrc_target.delegated = PendingDelegations::NONE;
        (inner.xrc_target.fetching, inner.xrc_target.fetched) = (None, None);
        self.leave_srq_processes(&mut inner.xrc_target);
    }

    /// Closes the connections to processes with SRQs: what they have received completes there.
    fn leave_srq_processes(&self, target: &mut XrcTargetPart) {
        for process in target.srq_processes.drain(..) {
            self.adapter.xrc.close(&process);
        }
    }
}

/// A message that uses a receive ends with this packet.
fn completes_receive(headers: &Headers) -> bool {
    let opcode = headers.bth.opcode;
    (opcode.is_send() || headers.immediate.is_some()) && (opcode.is_last() || opcode.is_only())
}
