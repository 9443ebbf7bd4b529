//! Fetches between two processes of a host, that is READs of one packet and atomics: the short way, from the program's request to the
//! ring, from the ring to the answer, and from the answer to the completion. [`SendRequest::fetches_to`] returns an element for requests
//! that may take it.

use super::broken::EndsOnPanic;
use super::payload::fill_ring;
use super::plain::goes_by;
use super::{LockedQp, Path, Qp};
use crate::ah::Ah;
use crate::poller::Poller;
use ferroce_access::{Fault, atomic, copy};
use ferroce_hostlink::{CompactHeaders, CompactRecord, Link, RecordRun, SendOutcome};
use ferroce_mem::{KeyTable, KeyUser};
use ferroce_os::clock;
use ferroce_proto::{FetchAnswer, FetchOp, PayloadSource, SendOp, SendRequest, TransmitError};
use ferroce_types::{AtomicOp, RemoteAccess, Sge, WcStatus};
use ferroce_wire::{Opcode, Operation, Reth, Service};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of what an atomic swaps in or adds, and of what it compares with.
const OPERANDS: usize = 16;

/// What is left to do when a packet has been taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    Nothing,
    /// Requests have waited for it.
    GoesOn,
    /// The completion had no room.
    Overrun,
}

/// Bytes that fetches of a run may still be answered with the short way: the peer is woken after the run.
pub(crate) struct Budget(u32);

impl Budget {
    pub(crate) const fn new() -> Self {
        Self(64 * 1024)
    }
}

impl Qp {
    /// Sends a fetch, without a bell.
    #[inline(never)]
    pub(super) fn send_fetch(
        self: &Arc<Self>,
        inner: &mut LockedQp,
        fetch: &SendRequest<'_, Arc<Ah>>,
    ) -> bool {
        let LockedQp { proto, path: Some(Path::Shm { link, .. }), .. } = inner else { return false };
        let usable = self.peer_uses_shm()
            && link.peer_takes_compact()
            && !self.is_broken()
            && !self.adapter.has_capture()
            && !copy::by_kernel();
        let Some(psn) = proto.fetch_psn(fetch).filter(|_| usable) else { return false };
        if self.may_overrun(link, proto.signaled_len(), fetch.signaled) {
            return false;
        }
        let (operation, reth, operands) = match fetch.op {
            // It could be carried out without the peer when those before it have ended.
            SendOp::Read { rkey, .. }
                if proto.is_behind_one_sided() && self.prefers_to_execute(link, rkey, fetch.data.len()) =>
            {
                return false;
            }
            SendOp::Read { va, rkey } => {
                (Operation::ReadRequest, Reth { va, rkey, dma_len: fetch.data.len() as u32 }, None)
            }
            SendOp::CompareSwap { va, rkey, compare, swap } => {
                (Operation::CompareSwap, Reth { va, rkey, dma_len: 0 }, Some([swap, compare]))
            }
            SendOp::FetchAdd { va, rkey, add } => {
                (Operation::FetchAdd, Reth { va, rkey, dma_len: 0 }, Some([add, 0]))
            }
            _ => return false,
        };
        let params = proto.params();
        let ends = (params.pkey, params.dest_qpn);
        let headers = CompactHeaders::of_fetch(Opcode { service: Service::Rc, operation }, ends, psn, reth);
        let sent = link.send_on_connection::<()>(&headers, operands.map_or(0, |_| OPERANDS), |ring| {
            if let Some([first, second]) = operands {
                ring.put([first.to_ne_bytes(), second.to_ne_bytes()].as_flattened());
            }
            Ok(())
        });
        // Whatever keeps it, the general way finds it again.
        let SendOutcome::Published(end) = sent else { return false };
        self.last_request.store(end, Ordering::Relaxed);
        if let Some(at) = proto.fetch_sent(|| self.adapter.engine.lately(), fetch) {
            self.adapter.schedule(self, at);
        }
        true
    }

    /// Takes the next packet of a run if it is a fetch or the answer to one, and that is possible the short way. `None`: it isn't, and
    /// [`super::QpEnv::handle_compact`] has to take the packet.
    #[inline(never)]
    pub(crate) fn take_fetch(
        self: &Arc<Self>,
        run: &mut RecordRun<'_>,
        budget: &mut Budget,
        poller: Option<&mut Poller<'_>>,
    ) -> Option<Rest> {
        let packet = run.next_compact()?;
        let Opcode { service, operation } = packet.headers.opcode();
        let answers = matches!(operation, Operation::ReadResponseOnly | Operation::AtomicAcknowledge);
        let asks = matches!(operation, Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd);
        let usable = self.service == Service::Rc
            && service == Service::Rc
            && self.peer_uses_shm()
            && !self.adapter.has_capture()
            // Counters count READs of the peer's.
            && (answers || !self.observers.any());
        if !(answers || asks) || !usable {
            return None;
        }
        let mut inner = self.inner.lock();
        let unwinding = EndsOnPanic(self);
        let link = run.link();
        let rest = if !goes_by(inner.path.as_ref(), link) || self.is_broken() {
            None
        } else if answers {
            self.take_answer(&mut inner, link, packet, poller)
        } else {
            self.answer(&mut inner, link, packet, budget)
        };
        if rest.is_some() {
            run.settle(false);
        }
        std::mem::forget(unwinding);
        drop(inner);
        if rest == Some(Rest::Overrun) {
            self.end_overrun();
        }
        rest
    }

    /// Executes a fetch, and sends its answer.
    #[inline]
    fn answer(
        &self,
        inner: &mut LockedQp,
        link: &Link,
        packet: &CompactRecord,
        budget: &mut Budget,
    ) -> Option<Rest> {
        let (proto, headers) = (&mut inner.proto, &packet.headers);
        let op = fetch_of(link, packet)?;
        let left = budget.0.checked_sub(op.len())?;
        if link.payload(packet).len() > 0 || !proto.expects_fetch(headers.psn(), headers.pkey, &op) {
            return None;
        }
        let params = proto.params();
        let opcode = Opcode { service: Service::Rc, operation: op.answer() };
        let ends = (params.pkey, params.dest_qpn);
        let answer = CompactHeaders::of_answer(opcode, ends, headers.psn(), proto.fetch_aeth());
        let by = KeyUser { pd: self.pd.id(), qp: self.serial };
        let mut original = 0;
        // An atomic is executed when there is room for its answer.
        let sent = link.send_on_connection(&answer, op.len() as usize, |ring| match op {
            FetchOp::Read { va, rkey, len } => fill_ring(by, PayloadSource::Remote { rkey, va, len }, ring),
            FetchOp::Atomic { va, rkey, op } => {
                original = KeyTable::global()
                    .remote(by, rkey, va, 8, RemoteAccess::Atomic, |addr| atomic::execute(addr, op))
                    .map_err(TransmitError::Remote)?;
                ring.put(&original.to_ne_bytes());
                Ok(())
            }
        });
        let SendOutcome::Published(_) = sent else { return None };
        proto.fetch_answered(&op, original);
        budget.0 = left;
        Some(Rest::Nothing)
    }

    /// Places the answer to a fetch, and ends the request.
    #[inline]
    fn take_answer(
        &self,
        inner: &mut LockedQp,
        link: &Link,
        packet: &CompactRecord,
        poller: Option<&mut Poller<'_>>,
    ) -> Option<Rest> {
        let (proto, headers) = (&mut inner.proto, &packet.headers);
        let payload = link.payload(packet);
        let len = payload.len();
        let operation = headers.opcode().operation;
        let answer =
            FetchAnswer { psn: headers.psn(), pkey: headers.pkey, operation, aeth: headers.aeth(), len };
        let sge = proto.place_of(&answer)?;
        let place = |len: usize, copy: &dyn Fn(u64) -> Result<(), Fault>| {
            let part = Sge { length: len as u32, ..sge };
            KeyTable::global().local(self.pd.id(), &part, true, copy).ok()
        };
        if operation == Operation::AtomicAcknowledge {
            let [original, _] = link.operands(packet).map(u64::to_ne_bytes);
            place(original.len(), &|addr| copy::write(addr, &original))?;
        } else {
            place(len, &|addr| payload.copy_to(0, addr, len).map_err(|_| Fault))?;
        }
        let mut overrun = false;
        proto.fetch_ended(clock::now, |request, completion| {
            self.observe_end(request, WcStatus::Success);
            if let Some(mut completion) = completion {
                overrun = !self.give(&self.send_cq, &mut completion, poller);
            }
        });
        Some(if overrun {
            Rest::Overrun
        } else if proto.wants_transmit() {
            Rest::GoesOn
        } else {
            Rest::Nothing
        })
    }
}

/// What a packet that is a fetch asks for.
#[inline]
fn fetch_of(link: &Link, packet: &CompactRecord) -> Option<FetchOp> {
    let Reth { va, rkey, dma_len: len } = packet.headers.reth();
    let op = match packet.headers.opcode().operation {
        Operation::ReadRequest => return Some(FetchOp::Read { va, rkey, len }),
        Operation::CompareSwap => {
            let [swap, compare] = link.operands(packet);
            AtomicOp::CompareSwap { compare, swap }
        }
        Operation::FetchAdd => AtomicOp::FetchAdd { add: link.operands(packet)[0] },
        _ => return None,
    };
    Some(FetchOp::Atomic { va, rkey, op })
}
