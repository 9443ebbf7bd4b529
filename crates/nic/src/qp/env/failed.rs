//! Why a QP fails: the transport's cause, with details from keys, from queues and from what this host knows about the peer.

use super::QpEnv;
use crate::qp::{Path, Qp};
use ferroce_explain::{
    InterfaceName, KeyFault, PeerLocation, PeerName, Reason, Report, RequestOutcome, Subject,
};
use ferroce_host::is_stopped;
use ferroce_hostlink::{Link, Unserved};
use ferroce_mem::KeyTable;
use ferroce_netdev::PortState;
use ferroce_parts::Ah;
use ferroce_parts::voice::Untold;
use ferroce_proto::{
    Buffer, Cause, Data, Failure, QpParams, Refusing, RequestedAccess, SendOp, SendWr, ack_timeout, rnr_delay,
};
use ferroce_types::{QpState, Sge, Unreachable, slot_of};
use ferroce_wire::{Operation, Service};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Qp {
    /// Reports to the process at the link's other end that its packets are dropped, if this QP's state receives nothing.
    pub(crate) fn note_unserved(&self, link: &Link) {
        let state = self.state.load(Ordering::Acquire);
        if matches!(state_of(state), Some(QpState::Reset | QpState::Init | QpState::Err)) {
            link.note_unserved(self.qpn, Unserved::State(state));
        }
    }

    /// The QP goes to RESET or RTS: clears what its last failure has noted.
    pub(in crate::qp) fn forget_failure(&self) {
        self.reason.store(0, Ordering::Relaxed);
        self.drops_strangers.store(false, Ordering::Relaxed);
        self.peer_is_told.store(false, Ordering::Relaxed);
    }
}

impl QpEnv<'_> {
    /// As [`ferroce_proto::Env::failed`]. The line is logged when no QP is locked.
    #[cold]
    pub(super) fn explain(&mut self, failure: &Failure<'_, Arc<Ah>>) -> u16 {
        if matches!(failure.cause, Cause::Refuses { .. } | Cause::NoReceive { .. }) {
            self.note_whom_to_tell();
        }
        let reason = self.reason(failure);
        let number = reason.number();
        match failure.cause {
            // The sender logs it, if its retries run out.
            Cause::NoReceive { .. } => return number,
            Cause::BeforeFirst { .. } => self.qp.drops_strangers.store(true, Ordering::Relaxed),
            Cause::PostedAfter { .. }
            | Cause::QKey { .. }
            | Cause::NoRoomForGrh { .. }
            | Cause::StillNotReady { .. } => {}
            _ => self.qp.reason.store(number, Ordering::Relaxed),
        }
        let subject = subject(failure);
        let (qpn, flushed) = (self.qp.qpn, failure.flushed);
        let report = Report { qpn, peer: self.peer(failure), subject, reason, flushed };
        self.work.said.push(Untold::new(report));
        number
    }

    /// Notes whether the sender of the current packet may receive the reason of a refusal.
    pub(super) fn note_whom_to_tell(&self) {
        if let Some(meta) = &self.meta {
            self.qp.peer_is_told.store(meta.of_no_adapter(), Ordering::Relaxed);
        }
    }

    fn reason(&mut self, failure: &Failure<'_, Arc<Ah>>) -> Reason {
        let params = failure.params;
        match failure.cause {
            Cause::Refused { status, told } => Reason::Peer { reported: told, status },
            Cause::NoAnswer { tries, asked_for, answered } => match asked_for {
                Some(expected) => Reason::Psn { sent: Some(params.sq_psn), expected: Some(expected) },
                None => self.silence(tries, answered, params),
            },
            Cause::SequenceErrors => Reason::SequenceErrors,
            Cause::NotReady { tries, timer, told } => {
                Reason::NotReady { reported: told, tries, wait: rnr_delay(timer) }
            }
            Cause::StillNotReady { waited, told } => Reason::StillNotReady { reported: told, waited },
            Cause::LocalMemory => self.local_fault(failure.request),
            Cause::NoReadDepth => Reason::NoReadDepth,
            Cause::ShortResult => Reason::ShortResult,
            Cause::BadResponse => Reason::BadResponse,
            Cause::Window => match failure.request.map(|wr| &wr.op) {
                Some(&SendOp::LocalInvalidate { rkey }) => Reason::NotInvalidated { key: rkey },
                _ => Reason::NotBound,
            },
            Cause::Refuses { why, asked } => self.refusal(why, asked, failure),
            Cause::RefusedElsewhere => Reason::Elsewhere,
            Cause::NoReceive { first: true } => Reason::NeverPosted,
            Cause::NoReceive { first: false } => Reason::NoneLeft,
            Cause::BeforeFirst { psn, expected } => Reason::Psn { sent: Some(psn), expected: Some(expected) },
            Cause::QKey { theirs, .. } => Reason::QKey { theirs, ours: params.qkey },
            Cause::NoRoomForGrh { needs } => Reason::GrhRoom { needs },
            Cause::PostedAfter { reason } => Reason::PostedAfter { first: reason },
            Cause::Overrun => Reason::Overrun,
        }
    }

    fn refusal(&self, why: Refusing, asked: RequestedAccess, failure: &Failure<'_, Arc<Ah>>) -> Reason {
        match why {
            Refusing::QpRights => Reason::QpRights,
            Refusing::Depth => Reason::Depth { limit: failure.params.max_dest_rd_atomic },
            Refusing::Misaligned => Reason::Misaligned { va: asked.va },
            Refusing::PacketLength => {
                Reason::PacketLength { len: asked.packet, mtu: failure.params.path_mtu }
            }
            Refusing::Malformed => Reason::Malformed,
            Refusing::TooLong => {
                Reason::TooLong { len: asked.len, room: failure.receive.map_or(0, |wqe| wqe.capacity()) }
            }
            Refusing::Gone(_) => Reason::Key { key: asked.rkey, fault: KeyFault::Gone },
            Refusing::Access(access) => {
                let range = (asked.va, asked.len);
                let fault = KeyTable::global().remote_fault(self.key_user(), asked.rkey, range, access);
                Reason::Key { key: asked.rkey, fault }
            }
            Refusing::Receive => {
                let sges = failure.receive.map_or(&[][..], |wqe| &wqe.sges);
                key_fault(self.pd_of(Buffer::Receive), sges, true)
            }
            Refusing::Invalidation => Reason::NotInvalidated { key: asked.rkey },
            Refusing::NoSrq => Reason::NoSrq,
        }
    }

    /// What is wrong with a send request's own memory.
    fn local_fault(&self, request: Option<&SendWr<Arc<Ah>>>) -> Reason {
        let Some(wr) = request else { return Reason::Malformed };
        let writes =
            matches!(wr.op, SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        match &wr.data {
            Data::Sges(sges) => key_fault(self.pd_of(Buffer::Request), sges, writes),
            Data::Inline(_) => Reason::Malformed,
        }
    }

    /// Why no answer came: checks what this host knows about the peer.
    fn silence(&self, tries: u8, answered: bool, params: &QpParams) -> Reason {
        let each = ack_timeout(params.timeout).unwrap_or_default();
        let peer = params.dest_qpn;
        let here = match self.path {
            None => return self.no_route(None),
            Some(Path::Shm { link, .. }) if link.is_to_itself() => true,
            Some(Path::Shm { link, .. }) if link.is_dead() => return Reason::ProcessGone,
            Some(Path::Shm { link, .. }) => {
                let stopped = link.peer_pid().filter(|&pid| is_stopped(pid));
                if let Some(pid) = stopped {
                    return Reason::ProcessStopped { pid };
                }
                return match link.unserved(peer, time_of(tries, each)) {
                    Some(Unserved::NoQp) => Reason::NoQp,
                    Some(Unserved::State(state)) => Reason::NotReceiving { state: state_of(state) },
                    None => Reason::Ignored { tries, each },
                };
            }
            Some(Path::Udp { dest, .. }) if !dest.endpoint().has_route(dest.peer()) => {
                return self.no_route(None);
            }
            Some(Path::Udp { dest, .. }) => dest.peer().ip() == dest.endpoint().address().ip(),
        };
        let host = &self.qp.adapter.host;
        let silent = Reason::NoAnswer { tries, each, answered };
        if !here {
            return match self.said_by_network(tries, each) {
                Some(Unreachable::Port) => Reason::PortClosed,
                None if self.interface_that_is_down().is_none() => silent,
                icmp => self.no_route(icmp),
            };
        }
        if !host.owns(peer) {
            // All processes that use an address of this host share the QPN space.
            if host.is_free(slot_of(peer)) {
                return Reason::NoQp;
            }
            let stopped = host.holder(slot_of(peer)).filter(|&pid| is_stopped(pid));
            return stopped.map_or(silent, |pid| Reason::ProcessStopped { pid });
        }
        let Some(peer) = self.qp.adapter.qp(peer) else { return Reason::NoQp };
        let state = state_of(peer.state.load(Ordering::Acquire));
        match state {
            Some(QpState::Reset | QpState::Init | QpState::Err) => Reason::NotReceiving { state },
            _ if peer.drops_strangers.load(Ordering::Relaxed) => {
                Reason::Psn { sent: Some(params.sq_psn), expected: None }
            }
            _ => silent,
        }
    }

    fn no_route(&self, icmp: Option<Unreachable>) -> Reason {
        self.interface_that_is_down().map_or(Reason::NoRoute { icmp }, |name| Reason::InterfaceDown { name })
    }

    /// The interface of the QP's device, if it is down.
    fn interface_that_is_down(&self) -> Option<InterfaceName> {
        let context = self.qp.context();
        let is_down = context.port().state != PortState::Active;
        is_down.then(|| InterfaceName::new(&context.device().info().netdev.name))
    }

    /// The last ICMP error for the peer's address since the first of the tries.
    fn said_by_network(&self, tries: u8, each: Duration) -> Option<Unreachable> {
        let Some(Path::Udp { dest, .. }) = self.path else { return None };
        dest.unreachable(time_of(tries, each))
    }

    /// The peer that the report names.
    fn peer(&self, failure: &Failure<'_, Arc<Ah>>) -> Option<PeerName> {
        if let Cause::QKey { from, .. } = failure.cause {
            let address = self.meta.as_ref().map(|meta| meta.src);
            return Some(PeerName { qpn: from, address, process: PeerLocation::Unknown });
        }
        if self.qp.service == Service::Ud {
            return None;
        }
        let qpn = failure.params.dest_qpn;
        Some(match self.path? {
            Path::Shm { meta, link } => {
                let other = link.peer_pid().map_or(PeerLocation::Unknown, PeerLocation::Other);
                let process = if link.is_to_itself() { PeerLocation::This } else { other };
                PeerName { qpn, address: Some(meta.dst), process }
            }
            Path::Udp { dest, .. } => {
                PeerName { qpn, address: Some(dest.peer().ip()), process: PeerLocation::Unknown }
            }
        })
    }
}

/// The longest time that `tries` tries take with a timeout of `each`; at least a second.
fn time_of(tries: u8, each: Duration) -> Duration {
    /// A local ACK timeout expires after up to four times its value (IBTA 9.7.6.1.3).
    const LONGEST: u32 = 4;
    (each * LONGEST * u32::from(tries)).max(Duration::from_secs(1))
}

/// What is wrong with the first bad element of a list.
fn key_fault(pd: u32, sges: &[Sge], write: bool) -> Reason {
    match KeyTable::global().local_fault(pd, sges, write) {
        Some((key, fault)) => Reason::Key { key, fault },
        None => Reason::Malformed,
    }
}

pub(in crate::qp) fn state_of(state: u8) -> Option<QpState> {
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err]
        .into_iter()
        .find(|&s| s as u8 == state)
}

fn subject(failure: &Failure<'_, Arc<Ah>>) -> Subject {
    let len = u64::from(failure.len);
    match (failure.cause, failure.request) {
        (Cause::Refuses { asked, .. }, _) => {
            let (operation, names_memory) = operation_of(asked.operation);
            let remote = (names_memory && asked.rkey != 0).then_some((asked.va, asked.rkey));
            let receive = failure.receive.map(|wqe| wqe.wr_id);
            Subject::Refusal { operation, len: asked.len, remote, receive }
        }
        (Cause::QKey { .. } | Cause::NoRoomForGrh { .. } | Cause::BeforeFirst { .. }, _) => Subject::Dropped,
        (cause, Some(wr)) => {
            let (operation, remote) = operation_of_request(&wr.op);
            let outcome = match cause {
                Cause::StillNotReady { .. } => RequestOutcome::Waits,
                _ => RequestOutcome::Ends(cause.status()),
            };
            Subject::Request { wr_id: wr.wr_id, operation, len, remote, outcome }
        }
        _ => Subject::QueuePair,
    }
}

/// The name of a send request's operation, and the memory of the peer that it names.
pub(in crate::qp) fn operation_of_request(op: &SendOp) -> (&'static str, Option<(u64, u32)>) {
    match *op {
        SendOp::Send => ("SEND", None),
        SendOp::SendWithImmediate { .. } => ("SEND with immediate", None),
        SendOp::SendWithInvalidate { .. } => ("SEND with invalidate", None),
        SendOp::Write { va, rkey } => ("RDMA WRITE", Some((va, rkey))),
        SendOp::WriteWithImmediate { va, rkey, .. } => ("RDMA WRITE with immediate", Some((va, rkey))),
        SendOp::Read { va, rkey } => ("RDMA READ", Some((va, rkey))),
        SendOp::CompareSwap { va, rkey, .. } => ("compare-and-swap", Some((va, rkey))),
        SendOp::FetchAdd { va, rkey, .. } => ("fetch-and-add", Some((va, rkey))),
        SendOp::AtomicWrite { va, rkey } => ("atomic write", Some((va, rkey))),
        SendOp::Flush { va, rkey, .. } => ("flush", Some((va, rkey))),
        SendOp::LocalInvalidate { .. } => ("local invalidate", None),
        SendOp::BindMw(_) => ("bind of a window", None),
    }
}

/// The same of a peer's request, and whether it names memory.
fn operation_of(operation: Operation) -> (&'static str, bool) {
    match operation {
        Operation::WriteFirst | Operation::WriteMiddle | Operation::WriteLast | Operation::WriteOnly => {
            ("RDMA WRITE", true)
        }
        Operation::WriteLastWithImmediate | Operation::WriteOnlyWithImmediate => {
            ("RDMA WRITE with immediate", true)
        }
        Operation::ReadRequest => ("RDMA READ", true),
        Operation::CompareSwap => ("compare-and-swap", true),
        Operation::FetchAdd => ("fetch-and-add", true),
        Operation::AtomicWrite => ("atomic write", true),
        Operation::Flush => ("flush", true),
        _ => ("SEND", false),
    }
}
